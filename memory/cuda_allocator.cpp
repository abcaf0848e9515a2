#include "memory/cuda_allocator.h"

#include <cuda_runtime.h>

#include <cstdio>

namespace baton {

namespace {

/// A handle stands for whole allocations of the driver: smaller ones would share one.
constexpr std::uint64_t kGranule = std::uint64_t{2} << 20U;

Status failed(const std::string& what, cudaError_t error) {
  cudaGetLastError();  // not sticky: the next call may succeed
  return Status(ErrorCode::unavailable, what + ": " + cudaGetErrorString(error));
}

std::string hex(const char* bytes, std::size_t n) {
  std::string text;
  for (std::size_t i = 0; i < n; ++i) {
    char two[3];
    std::snprintf(two, sizeof two, "%02x", static_cast<unsigned char>(bytes[i]));
    text += two;
  }
  return text;
}

/// As workers/cuda/device.cpp has it: the two have to agree.
std::string uuid_text(const cudaUUID_t& uuid) {
  const std::string all = hex(uuid.bytes, sizeof uuid.bytes);
  return "GPU-" + all.substr(0, 8) + "-" + all.substr(8, 4) + "-" + all.substr(12, 4) + "-" +
         all.substr(16, 4) + "-" + all.substr(20);
}

class CudaAllocator final : public DeviceAllocator {
 public:
  Result<DeviceBlock> allocate(std::uint64_t bytes) override {
    DeviceBlock block;
    block.bytes = bytes;
    const std::uint64_t whole = (bytes + kGranule - 1) / kGranule * kGranule;
    const std::string what = std::to_string(bytes >> 20U) + " MiB of the GPU";
    cudaError_t error = cudaMalloc(&block.address, whole);
    if (error != cudaSuccess) return failed(what, error);
    cudaIpcMemHandle_t handle{};
    error = cudaMemset(block.address, 0, whole);
    if (error == cudaSuccess) error = cudaDeviceSynchronize();
    if (error == cudaSuccess) error = cudaIpcGetMemHandle(&handle, block.address);
    if (error != cudaSuccess) {
      cudaFree(block.address);
      return failed(what, error);
    }
    block.handle = hex(handle.reserved, sizeof handle.reserved);
    return block;
  }
  void free(const DeviceBlock& block) override { cudaFree(block.address); }
};

}  // namespace

Result<std::unique_ptr<DeviceAllocator>> make_cuda_allocator(const std::string& gpu) {
  int count = 0;
  if (const cudaError_t error = cudaGetDeviceCount(&count); error != cudaSuccess)
    return failed("no GPU is found", error);
  for (int i = 0; i < count; ++i) {
    cudaDeviceProp properties{};
    if (cudaGetDeviceProperties(&properties, i) != cudaSuccess) continue;
    if (gpu != std::to_string(i) && gpu != uuid_text(properties.uuid)) continue;
    cudaError_t error = cudaSetDevice(i);
    if (error == cudaSuccess) error = cudaFree(nullptr);  // makes the context
    if (error != cudaSuccess) return failed("GPU " + gpu, error);
    return std::unique_ptr<DeviceAllocator>(std::make_unique<CudaAllocator>());
  }
  return invalid("there is no GPU " + gpu + " among " + std::to_string(count));
}

}  // namespace baton
