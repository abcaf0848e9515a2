#include "tests/gpu/bad_kernels.h"

namespace baton::cuda {

namespace {

__global__ void count_up(volatile std::uint32_t* memory) {
  const std::size_t i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x;
  for (;;) memory[i] = memory[i] + 1;
}

__global__ void store(std::uint32_t* to) { *to = 1; }

}  // namespace

void write_nowhere(Stream stream) {
  store<<<1, 1, 0, stream>>>(reinterpret_cast<std::uint32_t*>(0x1000));
}

void write_endlessly(std::uint32_t* memory, std::size_t words, Stream stream) {
  constexpr unsigned kThreads = 256;
  count_up<<<static_cast<unsigned>(words / kThreads), kThreads, 0, stream>>>(memory);
}

}  // namespace baton::cuda
