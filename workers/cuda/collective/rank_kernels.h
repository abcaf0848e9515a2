// The kernels behind RankExchange, as its host code launches them.
#pragma once

#include <array>
#include <cstdint>

#include "workers/cuda/collective/rank_memory.h"
#include "workers/cuda/types.h"

namespace baton::cuda {

/// x += the sum of the ranks' partial, or x = that sum, and then y = rms_norm(x) * weight.
struct RankSum {
  RankLink link;
  const Bf16* partial = nullptr;
  Bf16* x = nullptr;
  bool adds = true;              // else x is not read
  const Bf16* weight = nullptr;  // null: no norm
  Bf16* y = nullptr;
  float eps = 0;
  int rows = 0;
  int hidden = 0;
};

/// Rank r's part, rows x columns[r] words of 32 bits, to `all`, where its columns begin at
/// offset[r] of `total`.
struct RankGather {
  RankLink link;
  const std::uint32_t* part = nullptr;
  std::uint32_t* all = nullptr;  // null: not wanted here
  bool to_all = false;           // else to rank 0
  bool in_place = false;         // the own part is in `all` already
  int rows = 0;
  int total = 0;
  int columns[kMaxRanks] = {};
  int offset[kMaxRanks] = {};
};

constexpr int kDirectThreads = 256;  // of a CTA

/// Clusters of 1, 2, 4 and 8 CTAs that are resident at once; 0: not on this device.
std::array<int, 4> resident_direct_sums(int ranks, int hidden);
/// `clusters` times `cluster` CTAs.
void launch_direct_sum(const RankSum& sum, int clusters, int cluster, Stream stream);

int resident_direct_gathers();
void launch_direct_gather(const RankGather& gather, int ctas, Stream stream);

/// The fewest of any staged kernel.
int resident_staged(int ranks);
/// Without the norm. The number of CTAs follows from the sizes and `most_ctas` (at most kChannels):
/// all ranks have the same.
void launch_staged_sum(const RankSum& sum, int most_ctas, Stream stream);
void launch_staged_gather(const RankGather& gather, int most_ctas, Stream stream);

}  // namespace baton::cuda
