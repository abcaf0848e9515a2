// Direct calls: a rank stores its words into the receivers' memory, each with the call's number,
// and the receiver looks at its own memory until all numbers are this call's. Number and word are
// one 64-bit access, so nothing has to be fenced or flagged.
//
// Calls take turns with two generations of memory. Call n + 2 may overwrite what call n brought,
// because of three things:
//   1. A kernel touches nothing before grid_wait(), so its rank's call before has ended by then:
//      everything that was sent to the rank in that call has been received. (All kernels in between
//      wait likewise, so this holds along any chain of early starts.)
//   2. In every call every rank receives something of every other rank: data in a sum; a token in
//      gathers and broadcasts, also between ranks that have no data for each other, and by rank 0
//      where it only sends.
//   3. So a rank in call n + 2 has ended n + 1, in which it received a word that each other rank
//      sent in its call n + 1, that is, after that one had ended call n.
// With data alone 3 would not hold: two ranks that only send to rank 0 in call n + 1 know nothing
// of each other, and one may still read call n while the other is two calls ahead.
//
// Numbers wrap. A number that lay about for 2^32 calls would be taken for a new one, so twice in
// every 2^30 calls (once a generation) a call renews the numbers of all units that it does not use.
//
// CTAs of one rank wait for CTAs of others: all of a grid's CTAs must be resident at once, and each
// sends all that it has before it waits.
#include <cuda_bf16.h>

#include <algorithm>

#include "workers/cuda/bf16_pair.cuh"
#include "workers/cuda/collective/rank_kernels.h"
#include "workers/cuda/collective/rank_wait.cuh"
#include "workers/cuda/current_device.h"
#include "workers/cuda/hopper.cuh"
#include "workers/cuda/launch.cuh"
#include "workers/cuda/layer/norm.cuh"

namespace baton::cuda {
namespace {

constexpr int kThreads = kDirectThreads;
static_assert(16384 / 8 / 8 <= kThreads, "the norm of the widest row has that many threads");

// ------------------------------------------------------------------ calls

struct Call {
  std::uint32_t number;
  bool over;  // nobody waits any longer
};

/// Behind grid_wait(), by every thread.
__device__ __forceinline__ Call enter_call(const RankLink& link) {
  const RankControl* const control = control_of(link);
  return {load_relaxed(&control->call), load_relaxed(&control->aborted) != 0};
}

/// By one thread of each CTA when all of its threads know the number; the last counts on.
__device__ __forceinline__ void count_call(const RankLink& link, std::uint32_t number) {
  RankControl* const control = control_of(link);
  if (atomicInc(&control->readers, gridDim.x - 1) == gridDim.x - 1) {
    store_relaxed(&control->call, number + 1);
  }
}

/// used(peer): how many of its units this call brings. No peer sends to this generation before this
/// rank has ended the call.
template <class Used>
__device__ __forceinline__ void renew_numbers(const RankLink& link, std::uint32_t call,
                                              bool tokens_used, const Used& used) {
  if ((call & 0x3FFFFFFF) > 1) return;
  const std::size_t first = blockIdx.x * kThreads + threadIdx.x;
  const std::size_t stride = std::size_t{gridDim.x} * kThreads;
  for (int peer = 0; peer < link.ranks - 1; ++peer) {
    RankUnit* const region = region_of(link, link.rank, peer, call);
    for (std::size_t i = used(peer) + first; i < link.layout.region_units; i += stride) {
      store_unit(region + i, {0, 0}, call);
    }
    if (!tokens_used && first == 0) {
      store_unit(token_of(link, link.rank, peer, call), {0, 0}, call);
    }
  }
}

// ------------------------------------------------------------------ clusters

__device__ __forceinline__ void cluster_arrive() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.release;" ::: "memory");
#endif
}
__device__ __forceinline__ void cluster_wait() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
#else
  __syncthreads();
#endif
}

/// To the same place in the shared memory of all CTAs of the cluster.
__device__ __forceinline__ void store_everywhere(uint2* here, uint2 value, int cluster) {
#if __CUDA_ARCH__ >= 900
  for (int cta = 0; cta < cluster; ++cta) {
    asm volatile(
        "st.shared::cluster.v2.u32 [%0], {%1, %2};" ::"r"(hopper::cluster_address(here, cta)),
        "r"(value.x), "r"(value.y)
        : "memory");
  }
#else
  *here = value;
#endif
}

// ------------------------------------------------------------------ sums

struct DirectSum {
  RankLink link;
  const uint2* partial;  // four bf16 at a time: a unit
  uint2* x;
  bool adds;  // to x, else x is not read
  const uint2* weight;
  uint2* y;
  float eps;
  int rows;
  int units;    // of a row
  int cluster;  // CTAs that share a row
  int slice;    // units of a row that a CTA sums up and norms
  int norm_threads;
};

/// The same unit of all peers.
template <int kPeers>
__device__ __forceinline__ void receive(const RankUnit* const (&from)[kPeers], std::size_t unit,
                                        std::uint32_t call, RankWait& wait, uint2 (&got)[kPeers]) {
  for (;;) {
    ulonglong2 seen[kPeers];
#pragma unroll
    for (int i = 0; i < kPeers; ++i) seen[i] = load_unit(from[i] + unit);
    bool all = true;
#pragma unroll
    for (int i = 0; i < kPeers; ++i) {
      all = all && is_of(seen[i], call);
      got[i] = data_of(seen[i]);
    }
    if (all || !wait.again()) return;
  }
}

__device__ __forceinline__ void add_unit(float (&sum)[4], uint2 unit) {
  const float2 low = to_floats(unit.x);
  const float2 high = to_floats(unit.y);
  sum[0] += low.x;
  sum[1] += low.y;
  sum[2] += high.x;
  sum[3] += high.y;
}

/// x + ((p0 + p1) + p2 ...); `got` has the peers in rank order, `own` belongs between them.
template <int kPeers>
__device__ __forceinline__ uint2 add_in_order(const RankLink& link, uint2 x, uint2 own,
                                              const uint2 (&got)[kPeers]) {
  float sum[4];
#pragma unroll
  for (int rank = 0; rank <= kPeers; ++rank) {
    if (rank >= link.ranks) break;
    uint2 part = own;
    if (rank < kPeers && rank < link.rank) part = got[rank < kPeers ? rank : 0];
    if (rank > 0 && rank > link.rank) part = got[rank > 0 ? rank - 1 : 0];
    if (rank == 0) {
      const float2 low = to_floats(part.x);
      const float2 high = to_floats(part.y);
      sum[0] = low.x;
      sum[1] = low.y;
      sum[2] = high.x;
      sum[3] = high.y;
    } else {
      add_unit(sum, part);
    }
  }
  add_unit(sum, x);
  return {narrow(sum[0], sum[1]), narrow(sum[2], sum[3])};
}

/// What rms_norm() (rowwise.cu) divides the row by, with its bits.
__device__ __forceinline__ float norm_factor(const uint2* row, const DirectSum& a) {
  const int vectors = a.units / 2;
  const auto* const eights = reinterpret_cast<const uint4*>(row);
  float squares = 0.0F;
  if (static_cast<int>(threadIdx.x) < a.norm_threads) {
    for (int at = static_cast<int>(threadIdx.x); at < vectors; at += a.norm_threads) {
      const uint4 words = eights[at];
      const float2 values[] = {to_floats(words.x), to_floats(words.y), to_floats(words.z),
                               to_floats(words.w)};
#pragma unroll
      for (const float2 pair : values) {
        squares = fmaf(pair.x, pair.x, squares);
        squares = fmaf(pair.y, pair.y, squares);
      }
    }
  }
  const float mean = sum_over_block(squares) / (8.0F * static_cast<float>(vectors));
  return rsqrtf(mean + a.eps);
}

__device__ __forceinline__ uint2 normed(uint2 x, float factor, uint2 weight) {
  const float2 a = to_floats(x.x);
  const float2 b = to_floats(x.y);
  const float2 u = to_floats(weight.x);
  const float2 v = to_floats(weight.y);
  return {narrow(a.x * factor * u.x, a.y * factor * u.y),
          narrow(b.x * factor * v.x, b.y * factor * v.y)};
}

/// A cluster takes a row at a time, each of its CTAs a slice. For the norm each CTA gets the whole
/// sum in its shared memory: adding up all squares again costs less than a second exchange, and
/// keeps the order of rms_norm().
template <int kPeers>
__global__ void __launch_bounds__(kThreads) direct_sum_kernel(const __grid_constant__ DirectSum a) {
  extern __shared__ uint4 shared[];
  auto* const row_memory = reinterpret_cast<uint2*>(shared);  // [2][units], rows take turns
  uint2* const scale = row_memory + 2 * a.units;              // [slice]
  const int cta = static_cast<int>(blockIdx.x) % a.cluster;
  const int cluster = static_cast<int>(blockIdx.x) / a.cluster;
  const int clusters = static_cast<int>(gridDim.x) / a.cluster;
  const int begin = cta * a.slice + static_cast<int>(threadIdx.x);
  const int end = min((cta + 1) * a.slice, a.units);
  const bool norm = a.weight != nullptr;

  if (a.link.early_release) grid_release();
  cluster_arrive();  // nobody stores to a CTA's memory that has not begun
  for (int u = begin; norm && u < end; u += kThreads) scale[u - cta * a.slice] = a.weight[u];
  grid_wait();
  const Call call = enter_call(a.link);

  RankUnit* to[kPeers];
  const RankUnit* from[kPeers];
#pragma unroll
  for (int i = 0; i < kPeers; ++i) {  // the last one again where there are fewer
    const int peer = max(0, min(i, a.link.ranks - 2));
    const int rank = a.link.ranks > 1 ? rank_of_peer(a.link, peer) : 0;
    to[i] = region_of(a.link, rank, place_at(a.link, rank), call.number);
    from[i] = region_of(a.link, a.link.rank, peer, call.number);
  }
  for (int row = cluster; row < a.rows; row += clusters) {
    const std::size_t first = static_cast<std::size_t>(row) * a.units;
    for (int u = begin; u < end; u += kThreads) {
      const uint2 own = a.partial[first + u];
#pragma unroll
      for (int i = 0; i < kPeers; ++i) {
        if (i < a.link.ranks - 1) store_unit(to[i] + first + u, own, call.number);
      }
    }
  }
  __syncthreads();
  if (threadIdx.x == 0) count_call(a.link, call.number);
  pause_for_tests(a.link, call.number);
  cluster_wait();

  RankWait wait(a.link, call.over);
  uint2* sums = row_memory;
  for (int row = cluster; row < a.rows; row += clusters) {
    const std::size_t first = static_cast<std::size_t>(row) * a.units;
    for (int u = begin; u < end; u += kThreads) {
      const uint2 own = a.partial[first + u];
      const uint2 x = a.adds ? a.x[first + u] : uint2{0, 0};
      uint2 got[kPeers];
      if (a.link.ranks > 1) receive(from, first + u, call.number, wait, got);
      const uint2 sum = add_in_order(a.link, x, own, got);
      a.x[first + u] = sum;
      if (norm) store_everywhere(sums + u, sum, a.cluster);
    }
    if (!norm) continue;
    cluster_arrive();
    cluster_wait();
    const float factor = norm_factor(sums, a);
    for (int u = begin; u < end; u += kThreads) {
      a.y[first + u] = normed(sums[u], factor, scale[u - cta * a.slice]);
    }
    // The other buffer was read before the meeting above.
    sums = sums == row_memory ? row_memory + a.units : row_memory;
  }
  renew_numbers(a.link, call.number, /*tokens_used=*/false,
                [&](int) { return static_cast<std::size_t>(a.rows) * a.units; });
}

// ------------------------------------------------------------------ gathers

__device__ __forceinline__ unsigned words_of(const RankGather& a, int rank) {
  return static_cast<unsigned>(a.rows) * static_cast<unsigned>(a.columns[rank]);
}

__device__ __forceinline__ void put_word(const RankGather& a, int rank, unsigned index,
                                         std::uint32_t word) {
  const auto columns = static_cast<unsigned>(a.columns[rank]);
  const unsigned row = a.rows == 1 ? 0 : index / columns;
  a.all[static_cast<std::size_t>(row) * a.total + a.offset[rank] + (index - row * columns)] = word;
}

__device__ __forceinline__ void send_part(const RankGather& a, std::uint32_t call) {
  const RankLink& link = a.link;
  const unsigned words = words_of(a, link.rank);
  const int receivers = a.to_all ? link.ranks - 1 : link.rank == 0 ? 0 : 1;  // rank 0 is peer 0
  for (unsigned u = blockIdx.x * kThreads + threadIdx.x; 2 * u < words; u += gridDim.x * kThreads) {
    const uint2 data = {a.part[2 * u], 2 * u + 1 < words ? a.part[2 * u + 1] : 0};
    for (int peer = 0; peer < receivers; ++peer) {
      const int rank = rank_of_peer(link, peer);
      store_unit(region_of(link, rank, place_at(link, rank), call) + u, data, call);
    }
  }
}

__device__ __forceinline__ void receive_parts(const RankGather& a, std::uint32_t call,
                                              RankWait& wait) {
  const unsigned first = blockIdx.x * kThreads + threadIdx.x;
  const unsigned stride = gridDim.x * kThreads;
  const unsigned own = a.in_place ? 0 : words_of(a, a.link.rank);
  for (unsigned i = first; i < own; i += stride) put_word(a, a.link.rank, i, a.part[i]);
  for (int peer = 0; peer < a.link.ranks - 1; ++peer) {
    const int rank = rank_of_peer(a.link, peer);
    const unsigned words = words_of(a, rank);
    const RankUnit* const region = region_of(a.link, a.link.rank, peer, call);
    for (unsigned u = first; 2 * u < words; u += stride) {
      ulonglong2 unit;
      do {
        unit = load_unit(region + u);
      } while (!is_of(unit, call) && wait.again());
      const uint2 data = data_of(unit);
      put_word(a, rank, 2 * u, data.x);
      if (2 * u + 1 < words) put_word(a, rank, 2 * u + 1, data.y);
    }
  }
}

__global__ void __launch_bounds__(kThreads)
    direct_gather_kernel(const __grid_constant__ RankGather a) {
  if (a.link.early_release) grid_release();
  grid_wait();
  const Call call = enter_call(a.link);
  const bool speaks = blockIdx.x == 0 && static_cast<int>(threadIdx.x) < a.link.ranks - 1;
  const int peer = static_cast<int>(threadIdx.x);
  if (speaks) {
    const int rank = rank_of_peer(a.link, peer);
    store_unit(token_of(a.link, rank, place_at(a.link, rank), call.number), {0, 0}, call.number);
  }
  send_part(a, call.number);
  __syncthreads();
  if (threadIdx.x == 0) count_call(a.link, call.number);
  pause_for_tests(a.link, call.number);

  RankWait wait(a.link, call.over);
  if (a.all != nullptr) receive_parts(a, call.number, wait);
  if (speaks) {
    const RankUnit* const token = token_of(a.link, a.link.rank, peer, call.number);
    while (!is_of(load_unit(token), call.number) && wait.again()) {
    }
  }
  renew_numbers(a.link, call.number, /*tokens_used=*/true, [&](int from) {
    const bool sent = a.to_all || a.link.rank == 0;
    return sent ? std::size_t{(words_of(a, rank_of_peer(a.link, from)) + 1) / 2} : 0;
  });
}

// ------------------------------------------------------------------ host

using SumKernel = void (*)(DirectSum);

SumKernel sum_kernel(int ranks) {
  return ranks <= 2   ? direct_sum_kernel<1>
         : ranks <= 4 ? direct_sum_kernel<3>
                      : direct_sum_kernel<7>;
}

int slice_of_row(int units, int cluster) { return (units + cluster - 1) / cluster; }

std::size_t shared_bytes(int hidden, int cluster) {
  const int units = hidden / 4;
  return sizeof(uint2) * static_cast<std::size_t>(2 * units + slice_of_row(units, cluster));
}

}  // namespace

std::array<int, 4> resident_direct_sums(int ranks, int hidden) {
  SumKernel kernel = sum_kernel(ranks);
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(shared_bytes(hidden, 1))),
        "direct sum");
  std::array<int, 4> resident{};
  for (int i = 0; i < 4; ++i) {
    const int cluster = 1 << i;
    if (cluster == 1) {
      check(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident[0], kernel, kThreads,
                                                          shared_bytes(hidden, 1)),
            "direct sum");
      resident[0] *= multiprocessors();
    } else if (is_hopper()) {
      cudaLaunchAttribute attribute{};
      attribute.id = cudaLaunchAttributeClusterDimension;
      attribute.val.clusterDim = {static_cast<unsigned>(cluster), 1, 1};
      cudaLaunchConfig_t config{};
      config.gridDim = static_cast<unsigned>(cluster);
      config.blockDim = kThreads;
      config.dynamicSmemBytes = shared_bytes(hidden, cluster);
      config.attrs = &attribute;
      config.numAttrs = 1;
      check(cudaOccupancyMaxActiveClusters(&resident[static_cast<std::size_t>(i)], kernel, &config),
            "direct sum");
    }
  }
  return resident;
}

void launch_direct_sum(const RankSum& sum, int clusters, int cluster, Stream stream) {
  DirectSum a{};
  a.link = sum.link;
  a.partial = reinterpret_cast<const uint2*>(sum.partial);
  a.x = reinterpret_cast<uint2*>(sum.x);
  a.adds = sum.adds;
  a.weight = reinterpret_cast<const uint2*>(sum.weight);
  a.y = reinterpret_cast<uint2*>(sum.y);
  a.eps = sum.eps;
  a.rows = sum.rows;
  a.units = sum.hidden / 4;
  a.cluster = cluster;
  a.slice = slice_of_row(a.units, cluster);
  a.norm_threads = NormShape::of(sum.hidden / 8).threads;
  launch_clusters(
      "add_reduced", sum_kernel(sum.link.ranks), static_cast<unsigned>(clusters * cluster),
      kThreads, sum.weight == nullptr ? 0 : shared_bytes(sum.hidden, cluster), cluster, stream, a);
}

int resident_direct_gathers() {
  int each = 0;
  check(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&each, direct_gather_kernel, kThreads, 0),
        "direct gather");
  return each * multiprocessors();
}

void launch_direct_gather(const RankGather& gather, int ctas, Stream stream) {
  int most = 0;  // words of a part
  for (int r = 0; r < gather.link.ranks; ++r) {
    most = std::max(most, gather.rows * gather.columns[r]);
  }
  const int wanted = std::max(1, (most / 2 + kThreads - 1) / kThreads);
  launch("gather", direct_gather_kernel, static_cast<unsigned>(std::min(ctas, wanted)), kThreads, 0,
         stream, gather);
}

}  // namespace baton::cuda
