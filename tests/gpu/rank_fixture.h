// Groups of ranks for tests, and what they should compute.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "bench/bench_gpu_rank_group.h"
#include "tests/gpu/device_fixture.h"

namespace baton::cuda {

constexpr std::chrono::seconds kPatience{20};

struct RankGroup {
  int ranks;
  int devices;
};
inline const RankGroup kRankGroups[] = {{2, 1}, {3, 1}, {4, 1}, {2, 2}, {3, 3}, {4, 4}};

inline std::string group_name(const ::testing::TestParamInfo<RankGroup>& group) {
  return std::to_string(group.param.ranks) + "Ranks" + std::to_string(group.param.devices) +
         (group.param.devices == 1 ? "Gpu" : "Gpus");
}

class RankTest : public ::testing::TestWithParam<RankGroup> {
 protected:
  void SetUp() override {
    const std::string missing = LocalRanks::missing(GetParam().devices);
    if (!missing.empty()) GTEST_SKIP() << "no " << missing;
  }
  /// Lives as long as the test.
  LocalRanks& group(RankExchangeOptions options) {
    options.ranks = GetParam().ranks;
    groups_.push_back(std::make_unique<LocalRanks>(options, GetParam().devices));
    return *groups_.back();
  }

 private:
  std::vector<std::unique_ptr<LocalRanks>> groups_;
};

/// Memory on a rank's device, filled with a pattern that reads as NaN.
template <class T>
class RankMemory {
 public:
  RankMemory(const LocalRank& rank, std::size_t n) : n_(n), device_(rank.device) {
    set_device(device_);
    memory_ = DeviceMemory(std::max<std::size_t>(n, 1) * sizeof(T));
    EXPECT_EQ(cudaMemset(memory_.data(), 0xFF, memory_.bytes()), cudaSuccess);
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);  // the ranks' streams do not wait for it
  }
  RankMemory(const LocalRank& rank, const std::vector<T>& from) : RankMemory(rank, from.size()) {
    write(from);
  }
  T* get() const { return memory_.as<T>(); }
  void write(const std::vector<T>& from) {
    set_device(device_);
    EXPECT_EQ(
        cudaMemcpy(memory_.data(), from.data(), from.size() * sizeof(T), cudaMemcpyHostToDevice),
        cudaSuccess);
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  }
  std::vector<T> read() const {
    std::vector<T> to(n_);
    set_device(device_);
    EXPECT_EQ(cudaMemcpy(to.data(), memory_.data(), n_ * sizeof(T), cudaMemcpyDeviceToHost),
              cudaSuccess);
    return to;
  }

 private:
  std::size_t n_;
  int device_;
  DeviceMemory memory_;
};

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

/// x[i] + ((p0[i] + p1[i]) + p2[i] ...), rounded once. partials[r][i] is rank r's.
inline Bf16 added(Bf16 x, const Bf16* const* partials, std::size_t ranks, std::size_t i) {
  float sum = value(partials[0][i]);
  for (std::size_t r = 1; r < ranks; ++r) sum += value(partials[r][i]);
  return rounded(sum + value(x));
}

inline void add_ranks(std::vector<Bf16>& x, const std::vector<std::vector<Bf16>>& partials) {
  std::vector<const Bf16*> from;
  for (const auto& p : partials) from.push_back(p.data());
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = added(x[i], from.data(), from.size(), i);
}

}  // namespace baton::cuda
