// What this machine can do at most, measured beside every benchmark's results: shares of it mean more than times.
#pragma once
#include "ops/cpu/kernels.h"

namespace braid {

struct CpuCeilings {
  double float32_gflops = 0.0, bf16_gflops = 0.0;  // nothing but multiply-adds in registers
  double gigabytes = 0.0;                          // per second, reading memory once, front to back
};

// The best of several tries with n_threads at once, counted in time of computing, which other programs do not stretch.
CpuCeilings measure_ceilings(const Kernels& kernels, int n_threads);

double wall_seconds();
double thread_seconds();  // that the calling thread has computed

}  // namespace braid
