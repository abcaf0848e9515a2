#include "bench/bench_gpu_rank_group.h"

#include <cuda_runtime.h>

#include <cstdlib>
#include <exception>
#include <thread>

namespace baton::cuda {
namespace {

/// Of ranks in one process: no call may load a kernel, and no stream share a queue with another,
/// while a kernel of one rank waits for what another one has yet to queue. CUDA reads these once,
/// when it begins.
[[maybe_unused]] const bool kSettingsMade = [] {
  ::setenv("CUDA_MODULE_LOADING", "EAGER", 1);
  ::setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 1);
  return true;
}();

void check(cudaError_t error, const char* what) {
  if (error != cudaSuccess) throw CudaError(std::string(what) + ": " + cudaGetErrorString(error));
}

void enable_peers(int devices) {
  for (int from = 0; from < devices; ++from) {
    set_device(from);
    for (int to = 0; to < devices; ++to) {
      if (to == from) continue;
      const cudaError_t error = cudaDeviceEnablePeerAccess(to, 0);
      if (error == cudaErrorPeerAccessAlreadyEnabled) {
        cudaGetLastError();
      } else {
        check(error, "cudaDeviceEnablePeerAccess");
      }
    }
  }
}

volatile std::uint32_t* word_of(const PinnedMemory& memory) {
  return reinterpret_cast<volatile std::uint32_t*>(memory.data());
}

}  // namespace

std::string LocalRanks::missing(int devices) {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess || count < devices) {
    return std::to_string(devices) + " GPUs";
  }
  for (int from = 0; from < devices; ++from) {
    for (int to = 0; to < devices; ++to) {
      int can = 1;
      if (to != from) check(cudaDeviceCanAccessPeer(&can, from, to), "cudaDeviceCanAccessPeer");
      if (can == 0) return "GPUs that can read each other's memory";
    }
  }
  return "";
}

LocalRanks::LocalRanks(RankExchangeOptions options, int devices) : options_(options) {
  options_.ranks_of_device = (options.ranks + devices - 1) / devices;
  enable_peers(devices);
  set_device(0);
  abort_word_ = PinnedMemory(sizeof(std::uint32_t));
  *word_of(abort_word_) = 0;
  ranks_.resize(static_cast<std::size_t>(options.ranks));
  std::vector<std::byte*> buffers;
  for (int r = 0; r < options.ranks; ++r) {
    LocalRank& rank = (*this)[r];
    rank.rank = r;
    rank.device = r % devices;
    set_device(rank.device);
    rank.stream = std::make_unique<OwnedStream>();
    rank.buffer = DeviceMemory(RankExchange::buffer_bytes(options_));
    buffers.push_back(rank.buffer.data());
  }
  init_buffers();
  each([&](LocalRank& rank) {
    RankExchangeOptions own = options_;
    own.rank = rank.rank;
    rank.exchange = std::make_unique<RankExchange>(
        own, buffers, reinterpret_cast<const std::uint32_t*>(abort_word_.data()));
  });
}

void LocalRanks::init_buffers() {
  each([&](LocalRank& rank) {
    RankExchange::init(rank.buffer.data(), options_, rank.stream->get());
    rank.stream->synchronize();
  });
}

void LocalRanks::each(const std::function<void(LocalRank&)>& work) {
  std::vector<std::thread> threads;
  std::vector<std::exception_ptr> failures(ranks_.size());
  for (LocalRank& rank : ranks_) {
    threads.emplace_back([&work, &rank, &failures] {
      try {
        set_device(rank.device);
        work(rank);
      } catch (...) {
        failures[static_cast<std::size_t>(rank.rank)] = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& failure : failures) {
    if (failure != nullptr) std::rethrow_exception(failure);
  }
}

bool LocalRanks::finish(std::chrono::milliseconds patience) {
  const auto until = std::chrono::steady_clock::now() + patience;
  bool in_time = true;
  for (LocalRank& rank : ranks_) {
    set_device(rank.device);
    for (;;) {
      const cudaError_t error = cudaStreamQuery(rank.stream->get());
      if (error == cudaSuccess) break;
      if (error != cudaErrorNotReady) check(error, "ranks");
      if (in_time && std::chrono::steady_clock::now() > until) {
        in_time = false;
        abort();
      }
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
  }
  set_device(0);
  return in_time;
}

void LocalRanks::abort() { *word_of(abort_word_) = 1; }

void LocalRanks::reset() {
  *word_of(abort_word_) = 0;
  init_buffers();
}

}  // namespace baton::cuda
