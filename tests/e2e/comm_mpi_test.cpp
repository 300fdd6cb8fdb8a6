// Collectives under mpirun, for comm_mpi_test.sh. `cases WORLD`: the test body of the threads over several groups, the
// control channel, and times. `loop WORLD`: collectives without end, for a process to be stopped or killed; prints
// "ready RANK PID" lines first. `idle WORLD`: all but process 0 wait for control messages without end. `skip WORLD`:
// the last rank skips a collective. `terminate WORLD`: ends in good order at SIGTERM.
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <thread>

#include "base/error.h"
#include "comm/collective_cases.h"
#include "comm/comm.h"

namespace braid {
namespace {

std::vector<int> all_ranks(int size) {
  std::vector<int> ranks;
  for (int r = 0; r < size; ++r) ranks.push_back(r);
  return ranks;
}

// Body per local rank; the first error of a rank, "" if all went well.
std::string run_local(World& world, const std::function<void(int)>& body) {
  std::vector<std::thread> threads;
  std::vector<std::string> errors(static_cast<size_t>(world.n_local()));
  for (int i = 0; i < world.n_local(); ++i) {
    threads.emplace_back([&, i] {
      try {
        body(world.first_local() + i);
      } catch (const std::exception& e) {
        errors[static_cast<size_t>(i)] = e.what();
      }
    });
  }
  for (std::thread& t : threads) t.join();
  for (const std::string& e : errors) {
    if (!e.empty()) return e;
  }
  return "";
}

void cases_of(World& world, int rank) {
  const int size = world.size();
  auto all = world.group(rank, "tp", all_ranks(size));
  test::CollectiveCases(*all, 1).run();
  std::vector<int> half, column;
  for (int r = 0; r < size; ++r) {
    if (r / (size / 2) == rank / (size / 2)) half.push_back(r);
    if (r % 2 == rank % 2) column.push_back(r);
  }
  auto near = world.group(rank, "half", half);
  auto far = world.group(rank, "column", column);
  test::CollectiveCases(*near, 2).run();
  test::CollectiveCases(*far, 3).run();
  if (rank > 0) {  // not a power of two, and uneven over the processes
    std::vector<int> odd_ranks = all_ranks(size);
    odd_ranks.erase(odd_ranks.begin());
    auto odd = world.group(rank, "odd", odd_ranks);
    test::CollectiveCases(*odd, 4).run();
  }
  all->barrier("timing");
  for (int64_t n : {256, 65536, 1048576}) {
    std::vector<float> x(static_cast<size_t>(n));
    const int calls = n > 100'000 ? 10 : 200;
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < calls; ++i) all->all_reduce(Tensor(x.data(), DType::kF32, {n}), "timing");
    const double us = std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count();
    if (rank == 0) std::printf("all_reduce of %ld bytes: %.1f us\n", static_cast<long>(n * 4), us / calls);
  }
}

void check_control(World& world) {
  for (size_t bytes : {size_t{0}, size_t{100}, size_t{300'000}}) {
    std::vector<std::byte> message(bytes);
    for (size_t i = 0; i < bytes; ++i) message[i] = static_cast<std::byte>(i * 7);
    if (world.process() == 0) {
      world.control_send(message);
    } else if (world.n_processes() > 1 && world.control_receive() != message) {
      throw RuntimeFailure("a control message came out different");
    }
  }
}

void loop_rank(World& world, int rank) {
  auto comm = world.group(rank, "tp", all_ranks(world.size()));
  std::vector<float> x(512);
  comm->barrier("start");
  std::printf("ready %d %d\n", rank, static_cast<int>(getpid()));
  std::fflush(stdout);
  for (int64_t step = 1;; ++step) {
    world.set_step(rank, step);
    comm->all_reduce(Tensor(x.data(), DType::kF32, {512}), "attn_out");
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    comm->all_reduce(Tensor(x.data(), DType::kF32, {512}), "moe_out");
  }
}

void skip_rank(World& world, int rank) {
  auto comm = world.group(rank, "tp", all_ranks(world.size()));
  std::vector<float> x(64), all(static_cast<size_t>(64 * world.size()));
  world.set_step(rank, 12);
  const Tensor t(x.data(), DType::kF32, {64});
  comm->all_reduce(t, "attn_out");
  if (rank != world.size() - 1) comm->all_reduce(t, "moe_out");
  comm->all_gather(Tensor(all.data(), DType::kF32, {world.size(), 64}), t, "logits");
}

double cpu_seconds() {
  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
         1e-6 * static_cast<double>(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
}

int run(const std::string& mode, int size) {
  auto world = make_world({size, 8});
  std::string error;
  if (mode == "cases") {
    error = run_local(*world, [&](int rank) { cases_of(*world, rank); });
    if (error.empty()) check_control(*world);
    world = nullptr;  // a second world in the same processes
    world = make_world({size, 8});
    if (error.empty()) {
      error = run_local(*world, [&](int rank) {
        auto comm = world->group(rank, "again", all_ranks(size));
        test::CollectiveCases(*comm, 5).run();
      });
    }
  } else if (mode == "loop") {
    error = run_local(*world, [&](int rank) { loop_rank(*world, rank); });
  } else if (mode == "skip") {
    error = run_local(*world, [&](int rank) { skip_rank(*world, rank); });
  } else if (mode == "terminate") {
    std::atomic<bool> asked{false};
    world->set_terminate_handler([&] { asked = true; });
    std::printf("ready %d %d\n", world->first_local(), static_cast<int>(getpid()));
    std::fflush(stdout);
    while (!asked) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  } else if (mode == "idle") {
    std::printf("ready %d %d\n", world->first_local(), static_cast<int>(getpid()));
    std::fflush(stdout);
    if (world->process() > 0) {
      world->control_receive();
    } else {
      const double before = cpu_seconds();
      std::this_thread::sleep_for(std::chrono::seconds(3));
      std::printf("idle: %.1f %% of a core\n", (cpu_seconds() - before) / 3 * 100);
      std::fflush(stdout);
      std::this_thread::sleep_for(std::chrono::hours(1));
    }
  } else {
    throw Error("mode '{}' is unknown; use cases, loop, skip, terminate or idle", mode);
  }
  if (!error.empty()) throw RuntimeFailure(error);
  std::printf("process %d: right\n", world->process());
  std::fflush(stdout);
  return 0;
}

}  // namespace
}  // namespace braid

int main(int argc, char** argv) {
  try {
    return braid::run(argc > 1 ? argv[1] : "", argc > 2 ? std::atoi(argv[2]) : 4);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "comm_mpi_test: %s\n", e.what());
    return 1;
  }
}
