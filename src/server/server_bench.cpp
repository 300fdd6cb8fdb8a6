// What the server costs: N concurrent streams over loopback from a fake engine that gives each a token per step; prints
// CPU time of the io thread per streamed token, and what it adds to a whole small request beside a bare round trip. One
// argument: streams (1000), a second: tokens per stream (50), a third: milliseconds per step (50).
#include <fmt/format.h>
#include <sched.h>
#include <sys/epoll.h>

#include <algorithm>
#include <condition_variable>
#include <cstdlib>
#include <functional>
#include <mutex>
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

ServerOptions local_options() {
  ServerOptions options;
  options.http.host = "127.0.0.1";
  options.http.port = 0;
  options.model_names = {"toy"};
  return options;
}

void run(int n_streams, int n_tokens, int step_ms) {
  set_log_level(LogLevel::kOff);
  FakeText text;
  FakeEngine engine(
      [=](const Request& r) { return FakeScript{.answer = std::string(r.prompt[0] == 'q' ? 1 : n_tokens, 'x')}; },
      std::chrono::milliseconds(step_ms));
  Server server(local_options(), engine, text);
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

double median(std::vector<double> v) {
  std::nth_element(v.begin(), v.begin() + v.size() / 2, v.end());
  return v[v.size() / 2];
}

// The floor: a thread with an epoll loop that answers so many bytes with so many others, whatever they are.
class BareEcho {
 public:
  BareEcho(size_t n_request, size_t n_reply) {
    listener_ = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    if (bind(listener_, reinterpret_cast<sockaddr*>(&address), size) != 0 || listen(listener_, 1) != 0) std::abort();
    getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size);
    port_ = ntohs(address.sin_port);
    thread_ = std::jthread([=, this] { answer(n_request, n_reply); });
  }
  int port() const { return port_; }

 private:
  void answer(size_t n_request, size_t n_reply) {  // until the client leaves
    const int fd = accept(listener_, nullptr, nullptr), epoll = epoll_create1(0);
    epoll_event e{.events = EPOLLIN, .data = {.fd = fd}};
    epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &e);
    std::string request(n_request, 0);
    const std::string reply(n_reply, 'x');
    size_t n = 0;
    while (epoll_wait(epoll, &e, 1, -1) == 1) {
      const ssize_t got = recv(fd, request.data(), n_request - n, 0);
      if (got <= 0) break;
      n = (n + static_cast<size_t>(got)) % n_request;
      if (n == 0 && send(fd, reply.data(), n_reply, MSG_NOSIGNAL) < 0) break;
    }
    close(epoll);
    close(fd);
    close(listener_);
  }

  int listener_ = -1, port_ = 0;
  std::jthread thread_;
};

// One kind of question on one kept connection. The client is the same for all kinds: it sends bytes, sleeps until some
// come back, and ends when as many have come as the first reply had.
class Asker {
 public:
  Asker(int port, std::string request, size_t n_reply)
      : client_(port), request_(std::move(request)), n_reply_(n_reply) {}
  void ask() {
    client_.send(request_);
    size_t n = 0;
    while (n < n_reply_) {
      pollfd p{client_.fd(), POLLIN, 0};
      const ssize_t got = poll(&p, 1, 5000) == 1 ? recv(client_.fd(), bytes_, sizeof bytes_, 0) : 0;
      if (got <= 0) std::abort();
      n += static_cast<size_t>(got);
    }
    if (n > n_reply_) std::abort();  // not the reply that was asked for
  }

 private:
  TestClient client_;
  std::string request_;
  size_t n_reply_;
  char bytes_[16384];
};

size_t reply_bytes(int port, const std::string& request) {
  TestClient client(port);
  client.send(request);
  if (!client.wait_for("\r\n\r\n") || !client.buffered().starts_with("HTTP/1.1 200")) std::abort();
  while (client.more(100)) {
  }
  return client.buffered().size();
}

void run_on(const std::vector<int>& cpus) {  // the calling thread, and those that it starts from now on
  cpu_set_t set;
  CPU_ZERO(&set);
  for (int cpu : cpus) CPU_SET(cpu, &set);
  if (sched_setaffinity(0, sizeof set, &set) != 0) std::abort();
}

struct Cores {
  std::vector<int> client, server, engine;
};

// What the server adds to a small request. The bare echo runs where the server does, and the engine is asked from
// there. All kinds are asked in turn, 50 at a time, and what is compared is compared within such a round.
void latency(const std::string& where, const Cores& cores) {
  run_on(cores.engine);
  FakeText text;
  FakeEngine engine([](const Request&) { return FakeScript{.answer = "x"}; });
  run_on(cores.server);
  Server server(local_options(), engine, text);
  server.start();
  const std::string completion =
      TestClient::request_bytes("POST", "/v1/completions", R"({"prompt":"q","max_tokens":1})");
  const std::string ping_request = TestClient::request_bytes("GET", "/ping");
  const size_t n_reply = reply_bytes(server.port(), completion);
  BareEcho echo(completion.size(), n_reply);
  run_on(cores.client);
  Asker bare(echo.port(), completion, n_reply);
  Asker ping(server.port(), ping_request, reply_bytes(server.port(), ping_request));
  Asker whole(server.port(), completion, n_reply);
  std::mutex mutex;
  std::condition_variable changed;
  bool ended = false;
  const auto ask_engine = [&] {  // two hand-overs between threads, which sleep meanwhile, as the io thread does
    Request r;
    r.id = engine.next_id();
    r.prompt = {'q'};
    r.sampling.max_tokens = 1;
    engine.submit(std::move(r), [&](Delta&& d) {
      if (d.finish == FinishReason::kNone) return;
      {
        const std::scoped_lock lock(mutex);
        ended = true;
      }
      changed.notify_one();
    });
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return std::exchange(ended, false); });
  };
  const std::function<void()> kinds[] = {[&] { bare.ask(); }, [&] { ping.ask(); }, [&] { whole.ask(); }, ask_engine};
  std::vector<double> p50[4], added, trips;
  for (int round = 0; round < 60; ++round) {
    for (int kind = 0; kind < 4; ++kind) {
      if (kind == 3) run_on(cores.server);  // as the io thread asks it
      std::vector<double> us;
      for (int i = 0; i < 50; ++i) {
        const auto t = Clock::now();
        kinds[kind]();
        us.push_back(std::chrono::duration<double, std::micro>(Clock::now() - t).count());
      }
      p50[kind].push_back(median(us));
    }
    run_on(cores.client);
    added.push_back(p50[2].back() - p50[3].back());
    trips.push_back(added.back() / p50[0].back());
  }
  fmt::print(
      "{}, p50: bare loopback round trip {:.1f} us, /ping {:.1f}, one-token completion {:.1f}, the engine alone "
      "{:.1f}: the server adds {:.1f} us, {:.2f} round trips\n",
      where, median(p50[0]), median(p50[1]), median(p50[2]), median(p50[3]), median(added), median(trips));
}

// A wake-up on the same core costs a few microseconds, one of a sleeping core many times that, and left alone the
// scheduler settles on one placement or another for minutes, and not on the same for the bare pair as for the server's
// three threads. So cores are given; the last line is what one gets without.
void latencies() {
  cpu_set_t allowed;
  std::vector<int> all;
  sched_getaffinity(0, sizeof allowed, &allowed);
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu)
    if (CPU_ISSET(cpu, &allowed)) all.push_back(cpu);
  const std::vector<int> one = {all[0]}, other = {all.back()};
  latency("client, server and engine on one core", {one, one, one});
  if (all.size() == 1) return;
  latency("the client on another core", {one, other, other});
  latency("the engine on another core", {one, one, other});
  latency("anywhere", {all, all, all});
}

}  // namespace
}  // namespace braid

int main(int argc, char** argv) {
  const auto argument = [&](int i, int fallback) { return argc > i ? std::atoi(argv[i]) : fallback; };
  braid::run(argument(1, 1000), argument(2, 50), argument(3, 50));
  braid::latencies();
}
