// What the tests of the GPU kernels share: device memory, bf16 on the host, timing in a graph.
#pragma once

#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>
#include <vector>

#include "workers/cuda/types.h"

namespace baton::cuda {

inline float value(Bf16 v) {
  const std::uint32_t bits = std::uint32_t{v.bits} << 16;
  float f = 0;
  std::memcpy(&f, &bits, sizeof f);
  return f;
}

inline Bf16 rounded(float f) {
  std::uint32_t bits = 0;
  std::memcpy(&bits, &f, sizeof bits);
  return {static_cast<std::uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16)};
}

inline std::vector<Bf16> random_bf16(std::size_t n, float scale, unsigned seed) {
  std::minstd_rand random(seed);
  std::uniform_real_distribution<float> uniform(-scale, scale);
  std::vector<Bf16> m(n);
  for (Bf16& v : m) v = rounded(uniform(random));
  return m;
}

/// Device memory of n T, filled with a pattern that reads as NaN, freed at the end.
template <typename T>
class Device {
 public:
  explicit Device(std::size_t n) : n_(n) {
    if (cudaMalloc(&data_, n * sizeof(T)) != cudaSuccess) throw CudaError("cudaMalloc");
    cudaMemset(data_, 0xFF, n * sizeof(T));
    cudaDeviceSynchronize();  // the tests' streams do not wait for the default one
  }
  explicit Device(const std::vector<T>& from) : Device(from.size()) { write(from); }
  ~Device() { cudaFree(data_); }
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  T* get() const { return data_; }
  void write(const std::vector<T>& from) {
    EXPECT_EQ(cudaMemcpy(data_, from.data(), from.size() * sizeof(T), cudaMemcpyHostToDevice),
              cudaSuccess);
    cudaDeviceSynchronize();
  }
  std::vector<T> read() const {
    std::vector<T> to(n_);
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    EXPECT_EQ(cudaMemcpy(to.data(), data_, n_ * sizeof(T), cudaMemcpyDeviceToHost), cudaSuccess);
    return to;
  }

 private:
  T* data_ = nullptr;
  std::size_t n_;
};

class DeviceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    int count = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) GTEST_SKIP() << "no GPU";
    ASSERT_EQ(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), cudaSuccess);
  }
  void TearDown() override {
    if (stream_ != nullptr) cudaStreamDestroy(stream_);
  }

  static bool bench() { return std::getenv("BATON_GPU_BENCH") != nullptr; }

  /// work(i), i = 0 .. calls - 1, as one graph; the caller destroys it.
  cudaGraphExec_t captured(int calls, const std::function<void(int)>& work) {
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t exec = nullptr;
    EXPECT_EQ(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), cudaSuccess);
    for (int i = 0; i < calls; ++i) work(i);
    EXPECT_EQ(cudaStreamEndCapture(stream_, &graph), cudaSuccess);
    EXPECT_EQ(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);
    cudaGraphDestroy(graph);
    return exec;
  }

  /// Microseconds of one work(i) of a graph of them; median of 7 replays.
  double graph_us(int calls, const std::function<void(int)>& work) {
    cudaGraphExec_t exec = captured(calls, work);
    cudaEvent_t begin = nullptr;
    cudaEvent_t end = nullptr;
    cudaEventCreate(&begin);
    cudaEventCreate(&end);
    std::vector<double> times;
    for (int round = 0; round < 9; ++round) {
      cudaEventRecord(begin, stream_);
      cudaGraphLaunch(exec, stream_);
      cudaEventRecord(end, stream_);
      EXPECT_EQ(cudaEventSynchronize(end), cudaSuccess);
      float ms = 0;
      cudaEventElapsedTime(&ms, begin, end);
      if (round >= 2) times.push_back(1000.0 * static_cast<double>(ms) / calls);
    }
    std::nth_element(times.begin(), times.begin() + 3, times.end());
    cudaEventDestroy(begin);
    cudaEventDestroy(end);
    cudaGraphExecDestroy(exec);
    return times[3];
  }

  cudaStream_t stream_ = nullptr;
};

}  // namespace baton::cuda
