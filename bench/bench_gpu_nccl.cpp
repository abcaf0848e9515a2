#include "bench/bench_gpu_nccl.h"

#include <dlfcn.h>

#include <numeric>

namespace baton::cuda {
namespace {

// Of nccl.h, which need not be there.
constexpr int kNcclBfloat16 = 9;
constexpr int kNcclSum = 0;
using InitAll = int (*)(void** communicators, int n, const int* devices);
using AllReduce = int (*)(const void* from, void* to, std::size_t n, int type, int operation,
                          void* communicator, Stream stream);
using Destroy = int (*)(void* communicator);

template <class F>
F function(void* library, const char* name) {
  void* const found = ::dlsym(library, name);
  if (found == nullptr) throw CudaError(std::string("no ") + name + " in NCCL's library");
  return reinterpret_cast<F>(found);
}

}  // namespace

Nccl::Nccl(const std::string& path, int ranks)
    : library_(::dlopen(path.c_str(), RTLD_NOW)), ranks_(static_cast<std::size_t>(ranks)) {
  if (library_ == nullptr) throw CudaError(::dlerror());
  std::vector<int> devices(ranks_.size());
  std::iota(devices.begin(), devices.end(), 0);
  if (function<InitAll>(library_, "ncclCommInitAll")(ranks_.data(), ranks, devices.data()) != 0) {
    throw CudaError("ncclCommInitAll failed");
  }
}

Nccl::~Nccl() {
  const auto destroy = function<Destroy>(library_, "ncclCommDestroy");
  for (void* rank : ranks_) destroy(rank);
}

void Nccl::all_reduce(int rank, void* data, std::size_t n, Stream stream) {
  static const auto call = function<AllReduce>(library_, "ncclAllReduce");
  if (call(data, data, n, kNcclBfloat16, kNcclSum, ranks_[static_cast<std::size_t>(rank)],
           stream) != 0) {
    throw CudaError("ncclAllReduce failed");
  }
}

}  // namespace baton::cuda
