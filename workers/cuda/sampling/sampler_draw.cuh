// Which token of a row carries the running count or weight to a target, in order of id or of rank,
// and the draw made of such questions. Included by sampler.cu.
#pragma once

#include <cstdint>

#include "workers/cuda/sampling/sampler.h"
#include "workers/cuda/sampling/sampler_row.cuh"
#include "workers/sampling/philox.h"

namespace baton::cuda {
namespace {

// ------------------------------------------------------------------ in order of id

/// The token at which the running sum of f(logit), in order of id, reaches `target` (>= 1). The
/// CTAs' sums are `b` of the last over_row().
template <typename F>
__device__ int walk_by_id(Row& row, u64 target, F f) {
  Shared& s = row.s;
  const Two* const sums = s.of_cta[row.parity ^ 1];
  int owner = 0;
  while (owner < row.ctas - 1 && target > sums[owner].b) target -= sums[owner++].b;
  u64 token = 0;  // 1 + the token, in the one thread that finds it
  if (owner == row.rank) {
    // A run of tokens a thread; its length is odd, so that a warp reads from 32 banks.
    const int run = (row.count + kThreads - 1) / kThreads | 1;
    const int begin = min(static_cast<int>(threadIdx.x) * run, row.count);
    const int end = min(begin + run, row.count);
    u64 mine = 0;
#pragma unroll 8
    for (int i = begin; i < end; ++i) mine += f(row.slice[i]);
    u64 sum = sum_before({mine, 0}, s).a;
    if (sum < target && sum + mine >= target) {
      int at = begin;
      while ((sum += f(row.slice[at])) < target) ++at;
      token = row.first + at + 1;
    }
    __syncthreads();  // of_warp is written again below
  }
  return static_cast<int>(over_row<true>({token, 0}, row).a) - 1;
}

// ------------------------------------------------------------------ in order of rank

/// Fills the histogram of the whole row, in every CTA.
__device__ void fill(Row& row, const Bins& bins) {
  Shared& s = row.s;
  const int thread = static_cast<int>(threadIdx.x);
  for (int i = thread; i < kBins; i += kThreads) {
    s.count[i] = 0;
    s.low[i] = 0;
    s.high[i] = 0;
  }
  __syncthreads();
  row.each([&](float logit, int) {
    const int bin = row.bin(bins, logit);
    if (bin < 0) return;
    const u64 weight = row.weight(logit);
    const auto low = static_cast<unsigned>(weight);
    atomicAdd(&s.count[bin], 1U);
    const unsigned before = atomicAdd(&s.low[bin], low);
    const unsigned high = static_cast<unsigned>(weight >> 32) + (before + low < low ? 1U : 0U);
    if (high != 0) atomicAdd(&s.high[bin], high);
  });
  cluster_sync();
  if (row.ctas == 1) return;
  // Every CTA adds up its share of the bins and gives it to all.
  constexpr int kShare = kBins / kCluster;
  static_assert(kShare <= kThreads);
  const int bin = row.rank * kShare + thread;
  unsigned count = 0;
  u64 weight = 0;
  if (thread < kShare) {
#pragma unroll
    for (int cta = 0; cta < kCluster; ++cta) {
      const Shared* const other = at_rank(&s, cta);
      count += other->count[bin];
      weight += other->low[bin] + (u64{other->high[bin]} << 32);
    }
  }
  cluster_sync();
  if (thread < kShare) {
#pragma unroll
    for (int cta = 0; cta < kCluster; ++cta) {
      Shared* const other = at_rank(&s, cta);
      other->count[bin] = count;
      other->low[bin] = static_cast<unsigned>(weight);
      other->high[bin] = static_cast<unsigned>(weight >> 32);
    }
  }
  cluster_sync();
}

/// The bin in which the running count (or weight) reaches `target`.
__device__ Place locate(Row& row, bool by_count, u64 target) {
  Shared& s = row.s;
  const int first = static_cast<int>(threadIdx.x) * kBinsEach;
  Two mine{0, 0};
  Two each[kBinsEach];
#pragma unroll
  for (int i = 0; i < kBinsEach; ++i) {
    each[i] = {s.low[first + i] + (u64{s.high[first + i]} << 32), s.count[first + i]};
    mine = combine<false>(mine, each[i]);
  }
  if (threadIdx.x == 0) s.place.bin = -1;
  Two before = sum_before(mine, s);
  if (threadIdx.x == kThreads - 1) s.total_weight = before.a + mine.a;
#pragma unroll
  for (int i = 0; i < kBinsEach; ++i) {
    const Two upto = combine<false>(before, each[i]);
    if (by_count ? before.b < target && upto.b >= target : before.a < target && upto.a >= target) {
      s.place = {first + i, static_cast<unsigned>(each[i].b), each[i].a, before};
    }
    before = upto;
  }
  __syncthreads();
  const Place place = s.place;
  __syncthreads();
  return place;
}

struct Found {
  u64 weight;  // of all tokens up to this one
  int token;
};

/// Among the at most kList tokens of one bin: gathers them in every CTA and sorts them.
__device__ Found search_list(Row& row, const Bins& bins, int bin, bool by_count, u64 target) {
  Shared& s = row.s;
  const int thread = static_cast<int>(threadIdx.x);
  if (thread == 0) s.listed = 0;
  __syncthreads();
  row.each([&](float logit, int i) {
    if (row.bin(bins, logit) != bin) return;
    const unsigned at = atomicAdd(&s.listed, 1U);
    if (at < kList) s.list[at] = {key_of(logit), row.first + i};
  });
  cluster_sync();
  if (thread < row.ctas) s.listed_by[thread] = *at_rank(&s.listed, thread);
  __syncthreads();
  int n = 0;
  for (int cta = 0; cta < row.ctas; ++cta) {
    const int listed = static_cast<int>(s.listed_by[cta]);
    if (thread >= n && thread < n + listed) s.merged[thread] = at_rank(s.list, cta)[thread - n];
    n += listed;
  }
  cluster_sync();  // also: nobody reads this CTA's list any more
  if (thread < n) {
    const Entry mine = s.merged[thread];
    int rank = 0;
    for (int i = 0; i < n; ++i) {
      const Entry other = s.merged[i];
      rank += other.key > mine.key || (other.key == mine.key && other.token < mine.token) ? 1 : 0;
    }
    s.list[rank] = mine;
  }
  __syncthreads();
  Entry entry{0, 0};
  u64 weight = 0;
  if (thread < n) {
    entry = s.list[thread];
    weight = row.weight(logit_of(entry.key));
  }
  const Two before = sum_before({weight, thread < n ? 1U : 0U}, s);
  if (thread < n &&
      (by_count ? before.b + 1 == target : before.a < target && before.a + weight >= target)) {
    s.found_weight = before.a + weight;
    s.found_token = entry.token;
  }
  __syncthreads();
  const Found found{s.found_weight, s.found_token};
  __syncthreads();
  return found;
}

/// Among tokens of one and the same logit, which rank by id.
__device__ Found search_ties(Row& row, unsigned key, bool by_count, u64 target, bool want_token) {
  const u64 weight = row.weight(logit_of(key));
  const u64 nth = by_count ? target : (target - 1) / weight + 1;
  if (!want_token) return {nth * weight, -1};
  const auto is_tie = [&](float logit) -> u64 { return key_of(logit) == key ? 1 : 0; };
  u64 mine = 0;
  row.each([&](float logit, int) { mine += is_tie(logit); });
  over_row<false>({0, mine}, row);
  return {nth * weight, walk_by_id(row, nth, is_tie)};
}

/// The token, in rank order, with which the running count or weight reaches `target` (>= 1).
/// `coarse` says whether the histogram is that of `reach`; kept up to date.
__device__ Found search(Row& row, float reach, bool by_count, u64 target, bool want_token,
                        bool& coarse) {
  Bins bins{false, reach, kBinsUsed / reach, 0, 0, 0};
  if (!coarse) fill(row, bins);
  coarse = true;
  u64 before = 0;
  while (true) {
    const Place place = locate(row, by_count, target);
    // Only a count can lie beyond: of tokens without weight.
    if (place.bin < 0) return {before + row.s.total_weight, -1};
    before += place.before.a;
    target -= by_count ? place.before.b : place.before.a;
    if (place.count == 1 && !want_token) return {before + place.weight, -1};
    if (place.count <= kList) {
      const Found found = search_list(row, bins, place.bin, by_count, target);
      return {before + found.weight, found.token};
    }
    unsigned low = kAll;
    unsigned high = 0;
    row.each([&](float logit, int) {
      if (row.bin(bins, logit) != place.bin) return;
      low = min(low, key_of(logit));
      high = max(high, key_of(logit));
    });
    const Two range = over_row<true>({kAll - low, high}, row);
    bins = {true, 0.0F, 0.0F, kAll - static_cast<unsigned>(range.a), static_cast<unsigned>(range.b),
            0};
    if (bins.low == bins.high) {
      const Found found = search_ties(row, bins.low, by_count, target, want_token);
      return {before + found.weight, found.token};
    }
    while ((bins.high - bins.low) >> bins.shift >= kBins) ++bins.shift;
    fill(row, bins);
    coarse = false;
  }
}

/// The number of the units of weight that u in [0, 1) names, 1 .. weight.
__device__ u64 target_of(double u, u64 weight) {
  const u64 target = static_cast<u64>(u * static_cast<double>(weight)) + 1;
  return target < weight ? target : weight;
}

/// The draw of a row whose best logit is known.
__device__ int draw(Row& row, const SampleRow& p, int vocab) {
  row.factor = 1.0F / p.temperature;
  const auto kept_weight = [&](float logit) { return row.weight(logit, p.min_p); };
  Two mine{0, 0};
  row.each([&](float logit, int) {
    mine.a += row.weight(logit);
    mine.b += kept_weight(logit);
  });
  const Two sum = over_row<false>(mine, row);
  const double uniform = uniform_draw(p.seed, p.n_generated, 0);
  const bool top_k = p.top_k > 0 && p.top_k < vocab;
  if (!top_k && p.top_p >= 1.0F && p.min_p == 0.0F) {
    return walk_by_id(row, target_of(uniform, sum.b), kept_weight);
  }
  // What is lighter than min_p is not drawn. All tokens lighter than (1 - top_p) / vocab of the
  // total weigh less than 1 - top_p together: top_p cuts before them. The histogram may leave them
  // out.
  float reach = kReach;
  bool coarse = false;
  u64 weight = sum.a;
  if (top_k) {
    weight = search(row, reach, true, static_cast<u64>(p.top_k), false, coarse).weight;
  } else if (p.top_p >= 1.0F) {
    reach = fminf(reach, 0.02F - logf(p.min_p));
  } else {
    const float share =
        (1.0F - p.top_p) / static_cast<float>(vocab) * (static_cast<float>(sum.a) / kOne);
    reach = fminf(reach, 0.02F - logf(share));
  }
  if (p.top_p < 1.0F) {
    const double part = ceil(static_cast<double>(p.top_p) * static_cast<double>(weight));
    const u64 target = max(min(static_cast<u64>(part), weight), u64{1});
    weight = search(row, reach, false, target, false, coarse).weight;
  }
  weight = min(weight, sum.b);  // min_p keeps a prefix of the ranks too
  return search(row, reach, false, target_of(uniform, weight), true, coarse).token;
}

}  // namespace
}  // namespace baton::cuda
