// What the server costs: N concurrent streams over loopback from a fake engine that gives each a token per step; prints
// CPU time of the io thread per streamed token, and what it adds to a whole small request beside a bare round trip. One
// argument: streams (1000), a second: tokens per stream (50), a third: milliseconds per step (50).
#include <fmt/format.h>
#include <sys/epoll.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <semaphore>
#include <thread>

#include "base/log.h"
#include "server/server.h"
#include "server/testing/fake_engine.h"
#include "server/testing/fake_text.h"
#include "server/testing/test_client.h"

namespace braid {
namespace {

double io_cpu_seconds(int port) {
  const std::string text = TestClient(port).ask("GET", "/metrics").body;
  const size_t at = text.find("\nbraid_io_cpu_seconds_total{");
  return std::strtod(text.c_str() + text.find("} ", at) + 2, nullptr);
}

struct StreamEnds {
  int complete = 0, broken = 0;
  std::vector<double> seconds;  // from the start to each stream's [DONE]
};

// Reads all streams to their end in one thread.
StreamEnds read_all(std::vector<TestClient>& clients, Clock::time_point begin) {
  StreamEnds ends;
  const int epoll = epoll_create1(0);
  std::vector<std::string> tails(clients.size());
  for (size_t i = 0; i < clients.size(); ++i) {
    epoll_event e{.events = EPOLLIN, .data = {.u64 = i}};
    epoll_ctl(epoll, EPOLL_CTL_ADD, clients[i].fd(), &e);
  }
  size_t open = clients.size();
  std::vector<epoll_event> events(256);
  std::vector<char> bytes(65536);
  while (open > 0) {
    const int n = epoll_wait(epoll, events.data(), static_cast<int>(events.size()), 30000);
    if (n <= 0) break;
    for (int k = 0; k < n; ++k) {
      const size_t i = events[k].data.u64;
      const ssize_t got = recv(clients[i].fd(), bytes.data(), bytes.size(), 0);
      if (got > 0) tails[i].append(bytes.data(), got);
      if (tails[i].size() > 64) tails[i].erase(0, tails[i].size() - 64);
      const bool done = tails[i].find("[DONE]") != std::string::npos;
      if (!done && got > 0) continue;
      ++(done ? ends.complete : ends.broken);
      ends.seconds.push_back(std::chrono::duration<double>(Clock::now() - begin).count());
      epoll_ctl(epoll, EPOLL_CTL_DEL, clients[i].fd(), nullptr);
      --open;
    }
  }
  close(epoll);
  ends.broken += static_cast<int>(open);
  return ends;
}

void run(int n_streams, int n_tokens, int step_ms) {
  set_log_level(LogLevel::kOff);
  FakeText text;
  FakeEngine engine(
      [=](const Request& r) { return FakeScript{.answer = std::string(r.prompt[0] == 'q' ? 1 : n_tokens, 'x')}; },
      std::chrono::milliseconds(step_ms));
  ServerOptions options;
  options.http.host = "127.0.0.1";
  options.http.port = 0;
  options.model_names = {"toy"};
  Server server(options, engine, text);
  server.start();

  const double cpu_before = io_cpu_seconds(server.port());
  const auto begin = Clock::now();
  std::vector<TestClient> clients;
  for (int i = 0; i < n_streams; ++i) {
    clients.emplace_back(server.port());
    clients.back().send(
        TestClient::request_bytes("POST", "/v1/chat/completions",
                                  R"({"model":"toy","messages":[{"role":"user","content":"hi"}],"stream":true})"));
  }
  const double cpu_requests = io_cpu_seconds(server.port());
  StreamEnds ends = read_all(clients, begin);
  const double cpu = io_cpu_seconds(server.port()) - cpu_before;
  const double tokens = static_cast<double>(n_streams) * (n_tokens + 1);
  std::sort(ends.seconds.begin(), ends.seconds.end());
  fmt::print("{} streams, {} tokens each, a step every {} ms: {} complete, {} broken\n", n_streams, n_tokens + 1,
             step_ms, ends.complete, ends.broken);
  fmt::print("last stream ended after {:.2f} s; the steps alone take {:.2f} s\n",
             ends.seconds.empty() ? 0 : ends.seconds.back(), (n_tokens + 1) * step_ms * 1e-3);
  fmt::print("io thread: {:.2f} us CPU per token, requests included ({:.2f} s in all, {:.2f} s while connecting)\n",
             cpu / tokens * 1e6, cpu, cpu_requests - cpu_before);
}

double p50_us(const std::function<void()>& ask) {
  std::vector<double> us;
  for (int i = 0; i < 2000; ++i) {
    const auto t = Clock::now();
    ask();
    us.push_back(std::chrono::duration<double, std::micro>(Clock::now() - t).count());
  }
  std::nth_element(us.begin(), us.begin() + 1000, us.end());
  return us[1000];
}

// A bare round trip over loopback: a thread that answers so many bytes with so many others.
double bare_p50_us(size_t n_request, size_t n_reply) {
  const int listener = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  if (bind(listener, reinterpret_cast<sockaddr*>(&address), size) != 0 || listen(listener, 1) != 0) std::abort();
  getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size);
  std::thread peer([=] {
    const int fd = accept(listener, nullptr, nullptr);
    std::string request(n_request, 0);
    const std::string reply(n_reply, 'x');
    while (recv(fd, request.data(), n_request, MSG_WAITALL) == static_cast<ssize_t>(n_request))
      if (send(fd, reply.data(), n_reply, MSG_NOSIGNAL) < 0) break;
    close(fd);
  });
  double p50 = 0;
  {
    TestClient client(ntohs(address.sin_port));
    std::string reply(n_reply, 0);
    p50 = p50_us([&] {
      client.send(std::string(n_request, 'x'));
      if (recv(client.fd(), reply.data(), n_reply, MSG_WAITALL) != static_cast<ssize_t>(n_reply)) std::abort();
    });
  }
  peer.join();
  close(listener);
  return p50;
}

// The fake engine asked directly: two hand-overs between threads.
double engine_p50_us(Engine& engine) {
  std::binary_semaphore ended{0};
  return p50_us([&] {
    Request r;
    r.id = engine.next_id();
    r.prompt = {'q'};
    r.sampling.max_tokens = 1;
    engine.submit(std::move(r), [&](Delta&& d) {
      if (d.finish != FinishReason::kNone) ended.release();
    });
    ended.acquire();
  });
}

void latency() {
  FakeText text;
  FakeEngine engine([](const Request&) { return FakeScript{.answer = "x"}; });
  ServerOptions options;
  options.http.host = "127.0.0.1";
  options.http.port = 0;
  options.model_names = {"toy"};
  Server server(options, engine, text);
  server.start();
  TestClient client(server.port());
  const std::string body = R"({"prompt":"q","max_tokens":1})";
  size_t n_reply = 0;
  const auto ask = [&](const std::string& method, const std::string& path, const std::string& request) {
    return p50_us([&] {
      const TestReply reply = client.ask(method, path, request);
      if (reply.status != 200) std::abort();
      n_reply = reply.body.size() + 250;  // with its head
    });
  };
  const double ping = ask("GET", "/ping", "");
  const double whole = ask("POST", "/v1/completions", body);
  const double bare = bare_p50_us(TestClient::request_bytes("POST", "/v1/completions", body).size(), n_reply);
  const double alone = engine_p50_us(engine);
  fmt::print("p50: bare loopback round trip {:.0f} us, /ping {:.0f} us, one-token completion {:.0f} us, the engine asked "
             "directly {:.0f} us: the server adds {:.0f} us, {:.2f} round trips\n",
             bare, ping, whole, alone, whole - alone, (whole - alone) / bare);
}

}  // namespace
}  // namespace braid

int main(int argc, char** argv) {
  const auto argument = [&](int i, int fallback) { return argc > i ? std::atoi(argv[i]) : fallback; };
  braid::run(argument(1, 1000), argument(2, 50), argument(3, 50));
  braid::latency();
}
