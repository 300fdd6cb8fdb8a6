// Collectives between GPUs, one thread per GPU or under mpirun. `cases`: the test body of all carriers, eagerly and in
// recorded graphs. `times`: microseconds per collective in a graph. `skip`: the last rank skips a collective. `stall`: the
// last rank's device is late by more than a stall. `loop`: collectives without end, for a process to be killed; prints
// "ready RANK PID". The last two words are the number of ranks and the stall's seconds. Exit 0: what had to happen did.
#include <cuda_runtime.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "base/error.h"
#include "comm/collective_cases.h"
#include "comm/comm.h"

namespace braid {
namespace {

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

void check(cudaError_t status, const char* what) {
  if (status != cudaSuccess) throw RuntimeFailure(fmt::format("{}: {}", what, cudaGetErrorString(status)));
}

// Device memory of a test's tensors; nobody is in a hurry.
class DeviceBytes {
 public:
  explicit DeviceBytes(int64_t n) { check(cudaMalloc(&data_, static_cast<size_t>(std::max<int64_t>(n, 1))), "cudaMalloc"); }
  DeviceBytes(const DeviceBytes&) = delete;
  DeviceBytes& operator=(const DeviceBytes&) = delete;
  ~DeviceBytes() { cudaFree(data_); }
  Tensor as(Tensor like) const {
    like.data = data_;
    return like;
  }

 private:
  void* data_ = nullptr;
};

void copy(void* to, const void* from, const Tensor& like, cudaStream_t stream) {
  check(cudaMemcpyAsync(to, from, static_cast<size_t>(like.n_bytes()), cudaMemcpyDefault, stream), "cudaMemcpyAsync");
}

// Host tensors through a device's collectives; recorded: each is captured as a graph and replayed once.
class StagedComm final : public Comm {
 public:
  StagedComm(Comm& comm, cudaStream_t stream, bool recorded)
      : Comm(comm.group(), comm.rank(), comm.size()), comm_(comm), stream_(stream), recorded_(recorded) {}

  void all_reduce(Tensor x, const char* name) override {
    through(x, x, [&](Tensor d, Tensor) { comm_.all_reduce(d, name); }, true);
  }
  void all_gather(Tensor out, Tensor in, const char* name) override {
    through(out, in, [&](Tensor o, Tensor i) { comm_.all_gather(o, i, name); });
  }
  void all_gatherv(Tensor out, Tensor in, std::span<const int64_t> counts, const char* name) override {
    through(out, in, [&](Tensor o, Tensor i) { comm_.all_gatherv(o, i, counts, name); });
  }
  void reduce_scatter(Tensor out, Tensor in, const char* name) override {
    through(out, in, [&](Tensor o, Tensor i) { comm_.reduce_scatter(o, i, name); });
  }
  void all_to_all(Tensor out, Tensor in, const char* name) override {
    through(out, in, [&](Tensor o, Tensor i) { comm_.all_to_all(o, i, name); });
  }
  void broadcast(Tensor x, int root, const char* name) override {
    through(x, x, [&](Tensor d, Tensor) { comm_.broadcast(d, root, name); }, true);
  }
  void barrier(const char* name) override { comm_.barrier(name); }

 private:
  template <typename F>
  void through(Tensor out, Tensor in, F collective, bool in_place = false) {
    const DeviceBytes to(out.n_bytes()), from(in.n_bytes());
    copy(from.as(in).data, in.data, in, stream_);
    if (in_place) copy(to.as(out).data, in.data, in, stream_);
    if (!recorded_) {
      collective(to.as(out), from.as(in));
    } else {
      cudaGraph_t graph = nullptr;
      cudaGraphExec_t executable = nullptr;
      check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
      collective(to.as(out), from.as(in));
      check(cudaStreamEndCapture(stream_, &graph), "cudaStreamEndCapture");
      check(cudaGraphInstantiate(&executable, graph, 0), "cudaGraphInstantiate");
      check(cudaGraphLaunch(executable, stream_), "cudaGraphLaunch");
      check(cudaStreamSynchronize(stream_), "replay");
      cudaGraphExecDestroy(executable);
      cudaGraphDestroy(graph);
    }
    copy(out.data, to.as(out).data, out, stream_);
    check(cudaStreamSynchronize(stream_), "collective");
  }

  Comm& comm_;
  cudaStream_t stream_;
  bool recorded_;
};

struct Rank {
  World& world;
  int rank;
  cudaStream_t stream;
  Comm& all;
};

// Results of attention merged on their way, against the same in double. Some ranks saw nothing of some heads, and their
// values there are NaN.
template <typename T>
void merge_case(const Rank& r, DType type, int64_t tokens, int64_t heads, int64_t d, float (*read)(T), T (*write)(float)) {
  const int ranks = r.all.size();
  const int64_t all_heads = heads * ranks, n = tokens * all_heads;
  auto value = [&](int rank, int64_t i) { return static_cast<float>(test::hash_of(rank, i, 5) % 2001) / 1000.0f - 1.0f; };
  auto lse = [&](int rank, int64_t row) {
    const uint64_t h = test::hash_of(rank, row, 6);
    return h % 5 == 0 ? (h % 2 == 0 ? -INFINITY : NAN) : static_cast<float>(h % 4001) / 500.0f - 4.0f;
  };
  std::vector<T> values(static_cast<size_t>(n * d)), y(static_cast<size_t>(tokens * heads * d));
  std::vector<float> lses(static_cast<size_t>(n));
  for (int64_t row = 0; row < n; ++row) {
    lses[static_cast<size_t>(row)] = lse(r.rank, row);
    for (int64_t i = row * d; i < (row + 1) * d; ++i) values[static_cast<size_t>(i)] = write(lse(r.rank, row) < INFINITY && lse(r.rank, row) > -INFINITY ? value(r.rank, i) : NAN);
  }
  const Tensor y_host(y.data(), type, {tokens, heads, d}), v_host(values.data(), type, {tokens, all_heads, d}), l_host(lses.data(), DType::kF32, {tokens, all_heads});
  const DeviceBytes y_device(y_host.n_bytes()), v_device(v_host.n_bytes()), l_device(l_host.n_bytes());
  copy(v_device.as(v_host).data, v_host.data, v_host, r.stream);
  copy(l_device.as(l_host).data, l_host.data, l_host, r.stream);
  if (!r.all.merge_heads(y_device.as(y_host), v_device.as(v_host), l_device.as(l_host), "case_merge")) throw RuntimeFailure("merge_heads: no peers");
  copy(y_host.data, y_device.as(y_host).data, y_host, r.stream);
  check(cudaStreamSynchronize(r.stream), "merge_heads");
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t h = 0; h < heads; ++h) {
      const int64_t row = t * all_heads + r.rank * heads + h;
      for (int64_t i = 0; i < d; ++i) {
        double sum = 0, weight = 0;
        for (int k = 0; k < ranks; ++k) {
          const float l = lse(k, row);
          if (!(l < INFINITY && l > -INFINITY)) continue;
          weight += std::exp(static_cast<double>(l));
          sum += std::exp(static_cast<double>(l)) * read(write(value(k, row * d + i)));
        }
        const double want = weight > 0 ? sum / weight : 0, got = read(y[static_cast<size_t>((t * heads + h) * d + i)]);
        if (!(std::abs(got - want) <= (type == DType::kF32 ? 1e-6 : 1.0 / 128))) {
          throw RuntimeFailure(fmt::format("merge_heads {} x {} x {}: {} where {} is right on rank {}", tokens, heads, d, got, want, r.rank));
        }
      }
    }
  }
}

void merge_cases(const Rank& r) {
  for (const int64_t tokens : {1, 3, 40}) {
    merge_case<float>(r, DType::kF32, tokens, 3, 18, [](float x) { return x; }, [](float x) { return x; });
    merge_case<BFloat16>(r, DType::kBF16, tokens, 8, 128, [](BFloat16 x) { return to_float(x); }, [](float x) { return to_bfloat16(x); });
  }
}

void cases_of(const Rank& r) {
  for (const bool recorded : {false, true}) {
    StagedComm staged(r.all, r.stream, recorded);
    test::CollectiveCases(staged, recorded ? 2 : 1).run();
  }
  merge_cases(r);
  std::vector<int> self{r.rank};
  const auto alone = r.world.group(r.rank, "alone", self);
  StagedComm staged(*alone, r.stream, false);
  test::CollectiveCases(staged, 3).run();
}

void times_of(const Rank& r) {
  constexpr int kCalls = 50, kReplays = 5;
  const int size = r.all.size();
  const DeviceBytes a(int64_t{64} << 20), b(int64_t{64} << 20);
  check(cudaMemset(a.as({}).data, 0, size_t{64} << 20), "cudaMemset");
  struct Kind {
    const char* name;
    std::function<void(int64_t)> call;
  };
  auto tensor = [&](const DeviceBytes& d, int64_t rows, int64_t bytes) { return d.as(Tensor(nullptr, DType::kF32, {rows, bytes / 4 / rows})); };
  const Kind kinds[] = {
      {"all_reduce", [&](int64_t n) { r.all.all_reduce(tensor(a, 1, n), "time_reduce"); }},
      {"all_gather", [&](int64_t n) { r.all.all_gather(tensor(b, size, n), tensor(a, 1, n / size), "time_gather"); }},
      {"reduce_scatter", [&](int64_t n) { r.all.reduce_scatter(tensor(b, 1, n / size), tensor(a, size, n), "time_scatter"); }},
      {"all_to_all", [&](int64_t n) { r.all.all_to_all(tensor(b, size, n), tensor(a, size, n), "time_to_all"); }},
  };
  if (r.rank == 0) std::printf("us per collective in a graph of %d\n%-15s %9s %9s %9s %9s %9s\n", kCalls, "bytes", "1 KB", "16 KB", "64 KB", "1 MB", "64 MB");
  for (const Kind& kind : kinds) {
    if (r.rank == 0) std::printf("%-15s", kind.name);
    for (int64_t bytes : {int64_t{1} << 10, int64_t{16} << 10, int64_t{64} << 10, int64_t{1} << 20, int64_t{64} << 20}) {
      kind.call(bytes);  // sets up what is needed on first use
      cudaGraph_t graph = nullptr;
      cudaGraphExec_t executable = nullptr;
      check(cudaStreamBeginCapture(r.stream, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
      for (int i = 0; i < kCalls; ++i) kind.call(bytes);
      check(cudaStreamEndCapture(r.stream, &graph), "cudaStreamEndCapture");
      check(cudaGraphInstantiate(&executable, graph, 0), "cudaGraphInstantiate");
      std::vector<double> times;
      for (int i = 0; i < kReplays; ++i) {
        check(cudaStreamSynchronize(r.stream), "cudaStreamSynchronize");
        r.all.host().barrier("time_start");
        const auto start = Clock::now();
        check(cudaGraphLaunch(executable, r.stream), "cudaGraphLaunch");
        check(cudaStreamSynchronize(r.stream), "cudaStreamSynchronize");
        times.push_back(seconds_since(start) * 1e6 / kCalls);
      }
      std::sort(times.begin(), times.end());
      if (r.rank == 0) std::printf(" %9.1f", times[times.size() / 2]);
      cudaGraphExecDestroy(executable);
      cudaGraphDestroy(graph);
    }
    if (r.rank == 0) std::printf("\n");
  }
}

void skip_of(const Rank& r) {
  const DeviceBytes x(256);
  const Tensor t = x.as(Tensor(nullptr, DType::kF32, {64}));
  r.world.set_step(r.rank, 12);
  r.all.all_reduce(t, "attn_out");
  if (r.rank != r.all.size() - 1) r.all.all_reduce(t, "moe_out");
  r.all.broadcast(t, 0, "other");
  r.world.launched(r.rank);
  check(cudaStreamSynchronize(r.stream), "cudaStreamSynchronize");
  if (const std::string why = r.world.failure(); !why.empty()) throw RuntimeFailure(why);
}

// The last rank's device sleeps for three stalls before its part; the others' devices wait for it.
void stall_of(const Rank& r, double stall) {
  const DeviceBytes x(256);
  const Tensor t = x.as(Tensor(nullptr, DType::kF32, {64}));
  r.world.set_step(r.rank, 5);
  static double nap;
  nap = 3 * stall;
  auto sleep = [](void*) { std::this_thread::sleep_for(std::chrono::duration<double>(nap)); };
  if (r.rank == r.all.size() - 1) check(cudaLaunchHostFunc(r.stream, sleep, nullptr), "cudaLaunchHostFunc");
  r.all.all_reduce(t, "attn_out");
  r.world.launched(r.rank);
  check(cudaStreamSynchronize(r.stream), "cudaStreamSynchronize");
  if (const std::string why = r.world.failure(); !why.empty()) throw RuntimeFailure(why);
}

void loop_of(const Rank& r) {
  const DeviceBytes x(4096);
  const Tensor t = x.as(Tensor(nullptr, DType::kF32, {1024}));
  std::printf("ready %d %d\n", r.rank, static_cast<int>(getpid()));
  std::fflush(stdout);
  for (int64_t step = 1;; ++step) {
    r.world.set_step(r.rank, step);
    r.all.all_reduce(t, "attn_out");
    r.world.launched(r.rank);
    check(cudaStreamSynchronize(r.stream), "cudaStreamSynchronize");
    if (const std::string why = r.world.failure(); !why.empty()) throw RuntimeFailure(why);
  }
}

// The first error of a local rank, "" if all went well.
std::string run_ranks(const std::string& mode, World& world, double stall) {
  std::vector<std::thread> threads;
  std::vector<std::string> errors(static_cast<size_t>(world.n_local()));
  for (int i = 0; i < world.n_local(); ++i) {
    threads.emplace_back([&, i] {
      const int rank = world.first_local() + i;
      try {
        cudaStream_t stream = nullptr;
        check(cudaSetDevice(world.first_on_host() + i), "cudaSetDevice");
        check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
        world.use_stream(rank, stream);
        std::vector<int> everyone;
        for (int r = 0; r < world.size(); ++r) everyone.push_back(r);
        const auto all = world.group(rank, "tp", everyone);
        const Rank r{world, rank, stream, *all};
        if (mode == "cases") cases_of(r);
        if (mode == "times") times_of(r);
        if (mode == "skip") skip_of(r);
        if (mode == "stall") stall_of(r, stall);
        if (mode == "loop") loop_of(r);
      } catch (const std::exception& e) {
        errors[static_cast<size_t>(i)] = e.what();
        world.fail(e.what());
      }
    });
  }
  for (std::thread& t : threads) t.join();
  for (const std::string& e : errors) {
    if (!e.empty()) return e;
  }
  return "";
}

int run(const std::string& mode, int size, double stall) {
  const auto world = make_world({.size = size, .stall_seconds = stall, .gpus = true});
  const auto start = Clock::now();
  const std::string error = run_ranks(mode, *world, stall);
  const double seconds = seconds_since(start);
  std::printf("%s after %.1f s: %s\n", mode.c_str(), seconds, error.empty() ? "ok" : error.c_str());
  if (mode == "cases" || mode == "times") return error.empty() ? 0 : 1;
  if (mode == "skip") return error.find("moe_out") != std::string::npos ? 0 : 1;
  if (mode == "stall") return error.find("step 5") != std::string::npos ? 0 : 1;
  return error.empty() ? 1 : 0;
}

}  // namespace
}  // namespace braid

int main(int argc, char** argv) {
  if (argc < 3) return std::fprintf(stderr, "usage: nccl_check cases|times|skip|stall|loop RANKS [STALL_SECONDS]\n"), 2;
  try {
    return braid::run(argv[1], std::atoi(argv[2]), argc > 3 ? std::atof(argv[3]) : 8.0);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "nccl_check: %s\n", e.what());
    return 1;
  }
}
