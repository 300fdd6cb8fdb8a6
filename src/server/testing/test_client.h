// A blocking HTTP client on plain sockets for the server's tests: sends any bytes, reads one reply at a time.
#pragma once
#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace braid {

struct TestReply {
  int status = 0;                              // 0: no reply
  std::map<std::string, std::string> headers;  // names as sent
  std::string body;                            // chunks put together
  bool complete = false;                       // the body ended as announced
};

class TestClient {
 public:
  explicit TestClient(int port, int receive_buffer_bytes = 0) : fd_(socket(AF_INET, SOCK_STREAM, 0)) {
    if (receive_buffer_bytes > 0)
      setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &receive_buffer_bytes, sizeof receive_buffer_bytes);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) close();
  }
  ~TestClient() { close(); }
  TestClient(TestClient&& other) noexcept : fd_(std::exchange(other.fd_, -1)), in_(std::move(other.in_)) {}
  TestClient(const TestClient&) = delete;

  void close() {
    if (fd_ >= 0) ::close(fd_);
    fd_ = -1;
  }
  bool connected() const { return fd_ >= 0; }
  int fd() const { return fd_; }

  void send(std::string_view bytes) {
    while (fd_ >= 0 && !bytes.empty()) {
      const ssize_t n = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (n <= 0) return;
      bytes.remove_prefix(n);
    }
  }
  static std::string request_bytes(const std::string& method, const std::string& path, const std::string& body = "",
                                   const std::string& headers = "") {
    const bool has_body = !body.empty() || method == "POST";
    return fmt::format("{} {} HTTP/1.1\r\nHost: test\r\n{}{}\r\n{}", method, path, headers,
                       has_body ? fmt::format("Content-Length: {}\r\n", body.size()) : "", body);
  }
  // Waits for more bytes; false: closed, or nothing for timeout_ms.
  bool more(int timeout_ms = 5000) {
    pollfd p{fd_, POLLIN, 0};
    if (fd_ < 0 || poll(&p, 1, timeout_ms) <= 0) return false;
    char bytes[16384];
    const ssize_t n = recv(fd_, bytes, sizeof bytes, 0);
    if (n <= 0) return false;
    in_.append(bytes, n);
    return true;
  }
  const std::string& buffered() const { return in_; }
  bool wait_for(std::string_view text, int timeout_ms = 5000) {
    while (in_.find(text) == in_.npos)
      if (!more(timeout_ms)) return false;
    return true;
  }
  bool closed_by_server(int timeout_ms = 5000) {  // reads and drops what comes before the end
    pollfd p{fd_, POLLIN, 0};
    char bytes[16384];
    while (poll(&p, 1, timeout_ms) > 0)
      if (recv(fd_, bytes, sizeof bytes, 0) <= 0) return true;
    return false;
  }

  TestReply read_reply(bool head_only = false, int timeout_ms = 5000) {
    TestReply r;
    size_t end;
    while ((end = in_.find("\r\n\r\n")) == in_.npos)
      if (!more(timeout_ms)) return r;
    const std::string head = in_.substr(0, end + 2);
    in_.erase(0, end + 4);
    r.status = std::stoi(head.substr(9, 3));
    for (size_t at = head.find("\r\n") + 2; at < head.size();) {
      const size_t stop = head.find("\r\n", at), colon = head.find(": ", at);
      r.headers[head.substr(at, colon - at)] = head.substr(colon + 2, stop - colon - 2);
      at = stop + 2;
    }
    if (head_only || r.status == 100 || r.status == 204) return r.complete = true, r;
    if (r.headers.count("Transfer-Encoding")) return read_chunks(r, timeout_ms), r;
    if (!r.headers.count("Content-Length")) {
      while (more(timeout_ms)) {
      }
      r.body = std::exchange(in_, {});
      return r.complete = true, r;
    }
    const size_t n = std::stoul(r.headers["Content-Length"]);
    while (in_.size() < n)
      if (!more(timeout_ms)) return r;
    r.body = in_.substr(0, n);
    in_.erase(0, n);
    r.complete = true;
    return r;
  }

  TestReply ask(const std::string& method, const std::string& path, const std::string& body = "",
                const std::string& headers = "") {
    send(request_bytes(method, path, body, headers));
    return read_reply(method == "HEAD");
  }

 private:
  void read_chunks(TestReply& r, int timeout_ms) {
    for (;;) {
      size_t line;
      while ((line = in_.find("\r\n")) == in_.npos)
        if (!more(timeout_ms)) return;
      const size_t n = std::stoul(in_.substr(0, line), nullptr, 16);
      while (in_.size() < line + 2 + n + 2)
        if (!more(timeout_ms)) return;
      r.body += in_.substr(line + 2, n);
      in_.erase(0, line + 2 + n + 2);
      if (n == 0) return void(r.complete = true);
    }
  }

  int fd_;
  std::string in_;
};

// The payloads of "data: ..." lines.
inline std::vector<std::string> sse_events(std::string_view body) {
  std::vector<std::string> events;
  while (!body.empty()) {
    const size_t end = std::min(body.find("\n\n"), body.size());
    std::string_view event = body.substr(0, end);
    body.remove_prefix(std::min(end + 2, body.size()));
    if (event.starts_with("data: ")) events.emplace_back(event.substr(6));
  }
  return events;
}

}  // namespace braid
