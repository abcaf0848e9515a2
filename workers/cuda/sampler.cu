// One cluster of CTAs a row: every CTA keeps its slice of the logits in shared memory, so that the
// row is read once however often it is looked through.
//
// Weights are fixed-point integers (2^40 is the heaviest token's), so that sums do not depend on
// the order of adding: a draw follows from its row alone. top_k, top_p and the draw itself are one
// question, "which token, in rank order, carries the running count or weight to a target?",
// answered by histograms: first over the distance from the best logit, then, only while more than
// kList tokens share a bin, over the bits of the logits in it; the last bin is sorted. (Radix
// selection as in Alabi and others, "Fast k-selection algorithms for graphics processing units",
// 2012, with weights.)
#include "workers/cuda/sampler.h"

#include <cooperative_groups.h>

#include <algorithm>
#include <cstdint>

#include "workers/cuda/launch.cuh"
#include "workers/philox.h"

namespace baton::cuda {
namespace {

using u64 = unsigned long long;

constexpr int kThreads = 512;
constexpr int kWarps = kThreads / 32;
constexpr int kCluster = 8;
constexpr int kBins = 2048;
constexpr int kBinsEach = kBins / kThreads;
constexpr int kList = kThreads;  // tokens that are sorted directly
constexpr unsigned kAll = 0xFFFFFFFFU;
constexpr float kGreedyBelow = 1e-5F;  // as on the CPU
constexpr float kOne = 0x1p40F;
/// Tokens lighter than exp(-27.7), one part in 2^40, have no weight: 152,000 of them weigh 1.4e-7.
constexpr float kReach = 27.7F;
constexpr float kBinsUsed = kBins - 8;  // rounding may carry a token a little beyond
constexpr unsigned kMinusInfinityKey = 0x007FFFFFU;

struct Two {
  u64 a;
  u64 b;
};

struct Entry {
  unsigned key;
  int token;
};

struct Place {
  int bin;  // -1: the target lies beyond the last bin
  unsigned count;
  u64 weight;
  Two before;  // weight and count of the bins before
};

struct alignas(16) Shared {
  unsigned count[kBins];
  unsigned low[kBins];  // 64-bit sums in halves: shared memory adds 32 bits at a time
  unsigned high[kBins];
  Entry list[kList];
  Entry merged[kList];
  Two of_cta[2][kCluster];
  Two of_warp[kWarps];
  Place place;
  u64 total_weight;
  u64 found_weight;
  int found_token;
  unsigned listed;
  unsigned listed_by[kCluster];
};

// ------------------------------------------------------------------ the cluster

#if __CUDA_ARCH__ >= 900
__device__ __forceinline__ int cluster_rank() {
  return static_cast<int>(cooperative_groups::this_cluster().block_rank());
}
__device__ __forceinline__ void cluster_sync() { cooperative_groups::this_cluster().sync(); }
/// Together: no CTA writes to another's shared memory before that one has started.
__device__ __forceinline__ void cluster_started() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
__device__ __forceinline__ void cluster_await_start() {
  asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
}
template <typename T>
__device__ __forceinline__ T* at_rank(T* mine, int rank) {
  return cooperative_groups::this_cluster().map_shared_rank(mine, rank);
}
#else  // before Hopper a row has one CTA
__device__ __forceinline__ int cluster_rank() { return 0; }
__device__ __forceinline__ void cluster_sync() { __syncthreads(); }
__device__ __forceinline__ void cluster_started() {}
__device__ __forceinline__ void cluster_await_start() {}
template <typename T>
__device__ __forceinline__ T* at_rank(T* mine, int) {
  return mine;
}
#endif

// ------------------------------------------------------------------ logits, keys, weights

/// Grows with the logit; -0 counts as 0, as it compares.
__device__ __forceinline__ unsigned key_of(float logit) {
  const unsigned bits = __float_as_uint(logit + 0.0F);
  return (bits & 0x80000000U) != 0 ? ~bits : bits | 0x80000000U;
}

__device__ __forceinline__ float logit_of(unsigned key) {
  return __uint_as_float((key & 0x80000000U) != 0 ? key & 0x7FFFFFFFU : ~key);
}

/// Where tokens fall into the histogram: by distance from the best (coarse), or by key.
struct Bins {
  bool by_key;
  float reach;
  float scale;
  unsigned low;
  unsigned high;
  int shift;
};

/// One row as one CTA sees it.
struct Row {
  Shared& s;
  float* slice;   // logits of tokens first .. first + count - 1
  int first;
  int count;
  int vectors;    // of 4 logits that may be read at once
  int ctas;
  int rank;
  int parity;
  float best;
  float factor;   // 1 / temperature

  __device__ __forceinline__ float distance(float logit) const { return (best - logit) * factor; }
  /// In 2^-40 of the best token's, rounded down; at least 1 for what lies within kReach.
  __device__ __forceinline__ u64 weight(float logit, float least = 0.0F) const {
    const float x = distance(logit);
    const float w = __expf(-x);
    // By shifts: conversions to 64 bits would share the pipe of the exponentials.
    const unsigned bits = __float_as_uint(w);
    const u64 mantissa = u64{(bits & 0x007FFFFFU) | 0x00800000U} << 24;
    return x < kReach && w >= least ? mantissa >> (134 - (bits >> 23)) : 0;
  }
  __device__ __forceinline__ int bin(const Bins& bins, float logit) const {
    if (bins.by_key) {
      const unsigned key = key_of(logit);
      return key < bins.low || key > bins.high ? -1
                                               : static_cast<int>((bins.high - key) >> bins.shift);
    }
    const float x = distance(logit);
    return x < bins.reach ? static_cast<int>(x * bins.scale) : -1;
  }

  /// f(logit, index in the slice) for every logit; a thread's indices ascend.
  template <typename F>
  __device__ __forceinline__ void each(F f) const {
    const int thread = static_cast<int>(threadIdx.x);
    for (int i = thread; i < vectors; i += kThreads) {
      const float4 v = reinterpret_cast<const float4*>(slice)[i];
      f(v.x, 4 * i);
      f(v.y, 4 * i + 1);
      f(v.z, 4 * i + 2);
      f(v.w, 4 * i + 3);
    }
    for (int i = 4 * vectors + thread; i < count; i += kThreads) f(slice[i], i);
  }
};

// ------------------------------------------------------------------ sums and scans

template <bool kMax>
__device__ __forceinline__ Two combine(Two x, Two y) {
  if (kMax) return {x.a > y.a ? x.a : y.a, x.b > y.b ? x.b : y.b};
  return {x.a + y.a, x.b + y.b};
}

/// Sum or maximum over all threads of the row, known to all of them. The CTAs' own values stay in
/// of_cta[row.parity ^ 1] until the next but one call (two buffers: a CTA may be one call ahead).
template <bool kMax>
__device__ Two over_row(Two mine, Row& row) {
  Shared& s = row.s;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  for (int step = 16; step > 0; step /= 2) {
    mine = combine<kMax>(mine, {__shfl_xor_sync(kAll, mine.a, step),
                                __shfl_xor_sync(kAll, mine.b, step)});
  }
  if (lane == 0) s.of_warp[warp] = mine;
  __syncthreads();
  if (warp == 0) {
    mine = lane < kWarps ? s.of_warp[lane] : Two{0, 0};
    for (int step = 16; step > 0; step /= 2) {
      mine = combine<kMax>(mine, {__shfl_xor_sync(kAll, mine.a, step),
                                  __shfl_xor_sync(kAll, mine.b, step)});
    }
    if (lane < row.ctas) *at_rank(&s.of_cta[row.parity][row.rank], lane) = mine;
  }
  cluster_sync();
  Two all = s.of_cta[row.parity][0];
  for (int cta = 1; cta < row.ctas; ++cta) all = combine<kMax>(all, s.of_cta[row.parity][cta]);
  row.parity ^= 1;
  return all;
}

/// Sum over the threads before this one. A barrier must follow before the next use of of_warp.
__device__ Two sum_before(Two mine, Shared& s) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  Two sum = mine;
  for (int step = 1; step < 32; step *= 2) {
    const Two left{__shfl_up_sync(kAll, sum.a, step), __shfl_up_sync(kAll, sum.b, step)};
    if (lane >= step) sum = combine<false>(sum, left);
  }
  if (lane == 31) s.of_warp[warp] = sum;
  __syncthreads();
  sum = {sum.a - mine.a, sum.b - mine.b};
  for (int i = 0; i < warp; ++i) sum = combine<false>(sum, s.of_warp[i]);
  return sum;
}

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
    if (by_count ? before.b < target && upto.b >= target
                 : before.a < target && upto.a >= target) {
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
  if (thread < n && (by_count ? before.b + 1 == target
                              : before.a < target && before.a + weight >= target)) {
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
    bins = {true, 0.0F, 0.0F, kAll - static_cast<unsigned>(range.a),
            static_cast<unsigned>(range.b), 0};
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

__device__ int draw(Row& row, const SampleRow& p, int vocab) {
  row.factor = 1.0F / p.temperature;
  const auto kept_weight = [&](float logit) { return row.weight(logit, p.min_p); };
  Two mine{0, 0};
  row.each([&](float logit, int) {
    mine.a += row.weight(logit);
    mine.b += kept_weight(logit);
  });
  const Two sum = over_row<false>(mine, row);
  const double uniform = uniform_draw(p.seed, p.choice, p.n_generated, 0);
  const bool top_k = p.top_k > 0 && p.top_k < vocab;
  if (!top_k && p.top_p >= 1.0F) {
    return walk_by_id(row, target_of(uniform, sum.b), kept_weight);
  }
  // All tokens lighter than (1 - top_p) / vocab of the total weigh less than 1 - top_p together:
  // top_p cuts before them, and the histogram may leave them out.
  float reach = kReach;
  bool coarse = false;
  u64 weight = sum.a;
  if (top_k) {
    weight = search(row, reach, true, static_cast<u64>(p.top_k), false, coarse).weight;
  } else {
    const float share = (1.0F - p.top_p) / static_cast<float>(vocab) *
                        (static_cast<float>(sum.a) / kOne);
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

// ------------------------------------------------------------------ the kernel

__device__ __forceinline__ unsigned shared_address(const void* p) {
  return static_cast<unsigned>(__cvta_generic_to_shared(p));
}

/// Copies the slice to shared memory, 16 bytes at a time where its address allows, all under way at
/// once.
__device__ void stage(const float* from, float* to, int count) {
  const int thread = static_cast<int>(threadIdx.x);
  const int vectors = reinterpret_cast<std::uintptr_t>(from) % 16 == 0 ? count / 4 : 0;
  for (int i = thread; i < vectors; i += kThreads) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(to + 4 * i)),
                 "l"(from + 4 * i)
                 : "memory");
  }
  for (int i = 4 * vectors + thread; i < count; i += kThreads) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(shared_address(to + i)),
                 "l"(from + i)
                 : "memory");
  }
  asm volatile("cp.async.wait_all;" ::: "memory");
}

__global__ void __launch_bounds__(kThreads, 2)
    sample_kernel(float* logits, int vocab, int slice, int ctas, bool staged, const SampleRow* rows,
                  const std::int32_t* masked, std::int32_t* tokens) {
  extern __shared__ __align__(16) unsigned char memory[];
  Shared& s = *reinterpret_cast<Shared*>(memory);
  float* const held = reinterpret_cast<float*>(memory + sizeof(Shared));
  grid_release();
  grid_wait();
  const SampleRow p = rows[blockIdx.x / ctas];
  if (p.logits_row < 0) return;  // the whole cluster leaves
  cluster_started();
  const int thread = static_cast<int>(threadIdx.x);
  const int rank = cluster_rank();
  const int first = min(rank * slice, vocab);
  const int count = min(slice, vocab - first);
  float* const global = logits + static_cast<std::size_t>(p.logits_row) * vocab + first;
  if (staged) stage(global, held, count);
  __syncthreads();
  float* const values = staged ? held : global;
  for (int i = thread; i < p.n_masked; i += kThreads) {
    const int at = masked[p.first_masked + i] - first;
    if (at >= 0 && at < count) values[at] = -INFINITY;
  }
  __syncthreads();
  const bool aligned = reinterpret_cast<std::uintptr_t>(values) % 16 == 0;
  Row row{s, values, first, count, aligned ? count / 4 : 0, ctas, rank, 0, 0.0F, 0.0F};

  float best = -INFINITY;
  int best_at = 0;
  bool bad = false;
  row.each([&](float logit, int i) {
    if (logit > best) {
      best = logit;
      best_at = i;
    }
    bad = bad || !(logit < INFINITY);
  });
  // The greatest pair (logit, ~id): of equal logits the lowest id.
  u64 mine = u64{key_of(best)} << 32 | (kAll - static_cast<unsigned>(first + best_at));
  if (bad) mine = ~u64{0};
  cluster_await_start();
  const u64 all = over_row<true>({mine, 0}, row).a;
  const auto key = static_cast<unsigned>(all >> 32);
  int token = static_cast<int>(kAll - static_cast<unsigned>(all));
  // The cluster met after every remote write: no CTA is gone while another writes to it.
  if (key == kAll || key <= kMinusInfinityKey) {
    token = kNoSample;
  } else if (!(p.temperature < kGreedyBelow || p.top_k == 1)) {
    row.best = logit_of(key);
    token = draw(row, p, vocab);
  }
  if (rank == 0 && thread == 0) tokens[p.output] = token;
}

int attribute(cudaDeviceAttr which) {
  int device = 0;
  int value = 0;
  check(cudaGetDevice(&device), "sample");
  check(cudaDeviceGetAttribute(&value, which, device), "sample");
  return value;
}

}  // namespace

std::size_t sample_workspace_bytes(int, int) { return 0; }

void sample(float* logits, int vocab, const SampleRow* rows, int n_rows, const std::int32_t* masked,
            std::int32_t* tokens, void*, Stream stream) {
  if (n_rows <= 0) return;
  if (vocab <= 0) throw CudaError("sample: an empty vocabulary");
  const int ctas = attribute(cudaDevAttrClusterLaunch) != 0 ? kCluster : 1;
  const int slice = ((vocab + ctas - 1) / ctas + 3) / 4 * 4;
  const std::size_t most =
      static_cast<std::size_t>(attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin));
  const std::size_t with_slice = sizeof(Shared) + static_cast<std::size_t>(slice) * sizeof(float);
  const bool staged = with_slice <= most;
  const std::size_t shared = staged ? with_slice : sizeof(Shared);
  check(cudaFuncSetAttribute(sample_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(shared)),
        "sample");
  cudaLaunchAttribute attributes[2]{};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim.x = static_cast<unsigned>(ctas);
  attributes[1].val.clusterDim.y = 1;
  attributes[1].val.clusterDim.z = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(n_rows) * static_cast<unsigned>(ctas));
  config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = shared;
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = ctas > 1 ? 2 : 1;
  check(cudaLaunchKernelEx(&config, sample_kernel, logits, vocab, slice, ctas, staged, rows, masked,
                           tokens),
        "sample");
}

}  // namespace baton::cuda
