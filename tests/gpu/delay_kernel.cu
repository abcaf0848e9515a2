#include "tests/gpu/delay_kernel.h"

#include "workers/cuda/launch.cuh"

namespace baton::cuda {

namespace {

__global__ void delay_kernel(unsigned long long nanoseconds) {
  unsigned long long began = 0;
  unsigned long long now = 0;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(began));
  do {
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  } while (now - began < nanoseconds);
}

}  // namespace

void delay(int microseconds, Stream stream) {
  delay_kernel<<<1, 1, 0, stream>>>(1000ULL * static_cast<unsigned long long>(microseconds));
  check(cudaGetLastError(), "delay");
}

}  // namespace baton::cuda
