// Staged calls: a rank leaves data in its own exchange buffer and posts a flag, the others read it
// across the link. CTA b meets CTA b of the other ranks alone, on channel b, and counts what it
// posts; all kinds of calls go on with the same count.
//
// Posts take turns with two halves of the channel's memory. What post s publishes may overwrite
// what post s - 2 did: the CTA has seen post s - 1 of all others by then (await() comes before the
// next fill), and each of them posted that when it had read all of s - 2. So every rank posts and
// awaits everything, also in calls in which only rank 0 reads.
//
// A post is a release at system scope behind a barrier of the CTA, an await an acquire before one:
// they order what all threads of the CTA stored before and load after. All CTAs of a grid must be
// resident at once.
#include <cuda_bf16.h>

#include <algorithm>

#include "workers/cuda/bf16_pair.cuh"
#include "workers/cuda/collective/rank_kernels.h"
#include "workers/cuda/collective/rank_wait.cuh"
#include "workers/cuda/current_device.h"
#include "workers/cuda/launch.cuh"

namespace baton::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int kResident = 2;  // CTAs of a multiprocessor: four ranks in tests share a device
constexpr int kUnroll = 4;    // loads of a thread that are under way at once

/// This CTA's channel.
class Channel {
 public:
  /// Behind grid_wait().
  __device__ __forceinline__ explicit Channel(const RankLink& link)
      : link_(link),
        post_(load_relaxed(&control_of(link)->round[blockIdx.x])),
        wait_(link, load_relaxed(&control_of(link)->aborted) != 0) {}

  /// What `rank` publishes with this post, or `ahead` posts later.
  template <class T>
  __device__ __forceinline__ T* slice(int rank, std::uint32_t ahead = 0) const {
    return reinterpret_cast<T*>(slice_of(link_, rank, static_cast<int>(blockIdx.x), post_ + ahead));
  }

  /// By all threads: publishes the own slice, and waits until the others have published theirs.
  __device__ __forceinline__ void meet() {
    const int peer = static_cast<int>(threadIdx.x);
    const int channel = static_cast<int>(blockIdx.x);
    __syncthreads();
    if (peer < link_.ranks - 1) {
      const int rank = rank_of_peer(link_, peer);
      store_release(flag_of(link_, rank, place_at(link_, rank), channel), post_);
      const std::uint32_t* const flag = flag_of(link_, link_.rank, peer, channel);
      // A peer may be one post ahead.
      while (static_cast<std::int32_t>(load_acquire(flag) - post_) < 0 && wait_.again()) {
      }
    }
    __syncthreads();
    pause_for_tests(link_, post_);
  }

  /// When what was published has been read.
  __device__ __forceinline__ void next() { ++post_; }

  /// By all threads, at the kernel's end.
  __device__ __forceinline__ void close() const {
    __syncthreads();  // nobody still looks for the number it began with
    if (threadIdx.x == 0) store_relaxed(&control_of(link_)->round[blockIdx.x], post_);
  }

 private:
  const RankLink& link_;
  std::uint32_t post_;
  RankWait wait_;
};

// ------------------------------------------------------------------ sums

struct StagedSum {
  RankLink link;
  const uint4* partial;  // vectors of eight bf16
  uint4* x;
  bool adds;  // to x, else x is not read
  std::size_t vectors;
  int share;  // of a CTA, in a round
  int rounds;
};

__device__ __forceinline__ void to_eight(uint4 words, float (&to)[8]) {
  const float2 pairs[] = {to_floats(words.x), to_floats(words.y), to_floats(words.z),
                          to_floats(words.w)};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    to[2 * i] = pairs[i].x;
    to[2 * i + 1] = pairs[i].y;
  }
}

__device__ __forceinline__ void add_eight(float (&sum)[8], uint4 words) {
  float more[8];
  to_eight(words, more);
#pragma unroll
  for (int i = 0; i < 8; ++i) sum[i] += more[i];
}

__device__ __forceinline__ uint4 narrow_eight(const float (&v)[8]) {
  return {narrow(v[0], v[1]), narrow(v[2], v[3]), narrow(v[4], v[5]), narrow(v[6], v[7])};
}

/// This CTA's vectors in a round: [begin, begin + n).
struct Share {
  std::size_t begin;
  int n;

  __device__ __forceinline__ Share(const StagedSum& a, int round) {
    begin = (static_cast<std::size_t>(round) * gridDim.x + blockIdx.x) * a.share;
    n = begin >= a.vectors
            ? 0
            : static_cast<int>(min(static_cast<std::size_t>(a.share), a.vectors - begin));
  }
};

template <class T>
__device__ __forceinline__ void copy_flat(const T* from, T* to, int n) {
  int i = static_cast<int>(threadIdx.x);
  for (; i + (kUnroll - 1) * kThreads < n; i += kUnroll * kThreads) {
    T held[kUnroll];
#pragma unroll
    for (int j = 0; j < kUnroll; ++j) held[j] = from[i + j * kThreads];
#pragma unroll
    for (int j = 0; j < kUnroll; ++j) to[i + j * kThreads] = held[j];
  }
  for (; i < n; i += kThreads) to[i] = from[i];
}

/// Two ranks: each reads all that the other has published, and adds it up itself.
__global__ void __launch_bounds__(kThreads, kResident)
    one_shot_kernel(const __grid_constant__ StagedSum a) {
  if (a.link.early_release) grid_release();
  grid_wait();
  Channel channel(a.link);
  const bool first = a.link.rank == 0;
  for (int round = 0; round < a.rounds; ++round) {
    const Share share(a, round);
    const uint4* const partial = a.partial + share.begin;
    uint4* const x = a.x + share.begin;
    copy_flat(partial, channel.slice<uint4>(a.link.rank), share.n);
    channel.meet();
    const uint4* const theirs = channel.slice<const uint4>(1 - a.link.rank);
    for (int i = static_cast<int>(threadIdx.x); i < share.n; i += kUnroll * kThreads) {
      uint4 got[kUnroll];
#pragma unroll
      for (int j = 0; j < kUnroll; ++j) {
        if (i + j * kThreads < share.n) got[j] = load_peer(theirs + i + j * kThreads);
      }
#pragma unroll
      for (int j = 0; j < kUnroll; ++j) {
        const int at = i + j * kThreads;
        if (at >= share.n) continue;
        const uint4 own = partial[at];
        float sum[8];
        const uint4 theirs_here = got[j];
        to_eight(first ? own : theirs_here, sum);
        add_eight(sum, first ? theirs_here : own);
        add_eight(sum, a.adds ? x[at] : uint4{0, 0, 0, 0});
        x[at] = narrow_eight(sum);
      }
    }
    channel.next();
  }
  channel.close();
}

/// Adds up the own part [begin, end) of a share: partial + what the peers have published; to x and
/// to `published`, from its start.
template <int kPeers>
__device__ __forceinline__ void reduce_part(const StagedSum& a, const Channel& channel,
                                            const Share& share, int begin, int end,
                                            uint4* published) {
  const uint4* from[kPeers];
#pragma unroll
  for (int i = 0; i < kPeers; ++i) {  // the last one again where there are fewer
    from[i] = channel.slice<const uint4>(rank_of_peer(a.link, min(i, a.link.ranks - 2)));
  }
  for (int i = begin + static_cast<int>(threadIdx.x); i < end; i += kThreads) {
    uint4 got[kPeers];
#pragma unroll
    for (int p = 0; p < kPeers; ++p) got[p] = load_peer(from[p] + i);
    const uint4 own = a.partial[share.begin + i];
    const uint4 x = a.adds ? a.x[share.begin + i] : uint4{0, 0, 0, 0};
    float sum[8];
#pragma unroll
    for (int rank = 0; rank <= kPeers; ++rank) {
      if (rank >= a.link.ranks) break;
      uint4 part = own;
      if (rank < kPeers && rank < a.link.rank) part = got[rank < kPeers ? rank : 0];
      if (rank > 0 && rank > a.link.rank) part = got[rank > 0 ? rank - 1 : 0];
      if (rank == 0) {
        to_eight(part, sum);
      } else {
        add_eight(sum, part);
      }
    }
    add_eight(sum, x);
    const uint4 result = narrow_eight(sum);
    a.x[share.begin + i] = result;
    published[i - begin] = result;
  }
}

/// More ranks: each adds up a part of every share and publishes the result, which the others read.
template <int kPeers>
__global__ void __launch_bounds__(kThreads, kPeers > 3 ? 1 : kResident)
    two_shot_kernel(const __grid_constant__ StagedSum a) {
  if (a.link.early_release) grid_release();
  grid_wait();
  Channel channel(a.link);
  const int ranks = a.link.ranks;
  const int part = (a.share + ranks - 1) / ranks;
  for (int round = 0; round < a.rounds; ++round) {
    const Share share(a, round);
    const int begin = min(part * a.link.rank, share.n);
    const int end = min(begin + part, share.n);
    uint4* const published = channel.slice<uint4>(a.link.rank);
    copy_flat(a.partial + share.begin, published, begin);
    copy_flat(a.partial + share.begin + end, published + end, share.n - end);
    channel.meet();
    reduce_part<kPeers>(a, channel, share, begin, end, channel.slice<uint4>(a.link.rank, 1));
    channel.next();
    channel.meet();
    // Each rank begins with the one behind it, so that not all read the same one at first.
    const int whole = part * ranks;
    for (int i = static_cast<int>(threadIdx.x); i < whole; i += kUnroll * kThreads) {
      uint4 got[kUnroll];
      int at[kUnroll];
#pragma unroll
      for (int j = 0; j < kUnroll; ++j) {
        const int behind = i + j * kThreads + part * (a.link.rank + 1);
        at[j] = behind >= whole ? behind - whole : behind;
        const int owner = at[j] / part;
        if (i + j * kThreads >= whole || at[j] >= share.n || owner == a.link.rank) {
          at[j] = -1;
        } else {
          got[j] = load_peer(channel.slice<const uint4>(owner) + (at[j] - owner * part));
        }
      }
#pragma unroll
      for (int j = 0; j < kUnroll; ++j) {
        if (at[j] >= 0) a.x[share.begin + at[j]] = got[j];
      }
    }
    channel.next();
  }
  channel.close();
}

// ------------------------------------------------------------------ gathers

struct StagedGather {
  RankGather gather;
  unsigned share[kMaxRanks];  // words of a rank's part, of a CTA, in a round; multiples of 4
  int rounds;
};

/// Words [begin, begin + n) of rank's part, which lies flat at `from`, to where they belong.
/// T: uint4 where all columns are multiples of four words.
template <class T, bool kPeer>
__device__ __forceinline__ void put_words(const RankGather& g, int rank, unsigned begin, unsigned n,
                                          const T* from) {
  constexpr unsigned kWords = sizeof(T) / 4;
  const auto columns = static_cast<unsigned>(g.columns[rank]);
  for (unsigned i = threadIdx.x; i * kWords < n; i += kUnroll * kThreads) {
    T held[kUnroll];
#pragma unroll
    for (int j = 0; j < kUnroll; ++j) {
      const unsigned at = i + j * kThreads;
      if (at * kWords >= n) continue;
      if constexpr (kPeer) {
        held[j] = load_peer(from + at);
      } else {
        held[j] = from[at];
      }
    }
#pragma unroll
    for (int j = 0; j < kUnroll; ++j) {
      const unsigned at = (i + j * kThreads) * kWords;
      if (at >= n) continue;
      const unsigned row = (begin + at) / columns;
      const unsigned column = begin + at - row * columns;
      *reinterpret_cast<T*>(g.all + static_cast<std::size_t>(row) * g.total + g.offset[rank] +
                            column) = held[j];
    }
  }
}

/// Where a CTA's words of rank's part begin in a round, and how many there are.
__device__ __forceinline__ uint2 words_in_round(const StagedGather& a, int rank, int round) {
  const std::size_t words =
      static_cast<std::size_t>(a.gather.rows) * static_cast<std::size_t>(a.gather.columns[rank]);
  const std::size_t begin =
      (static_cast<std::size_t>(round) * gridDim.x + blockIdx.x) * a.share[rank];
  if (begin >= words) return {0, 0};
  return {static_cast<unsigned>(begin),
          static_cast<unsigned>(min(static_cast<std::size_t>(a.share[rank]), words - begin))};
}

template <class T>
__global__ void __launch_bounds__(kThreads, kResident)
    staged_gather_kernel(const __grid_constant__ StagedGather a) {
  if (a.gather.link.early_release) grid_release();
  grid_wait();
  const RankGather& g = a.gather;
  const int me = g.link.rank;
  Channel channel(g.link);
  for (int round = 0; round < a.rounds; ++round) {
    const uint2 own = words_in_round(a, me, round);
    if (g.to_all || me != 0) {
      const auto* const from = reinterpret_cast<const T*>(g.part + own.x);
      copy_flat(from, channel.slice<T>(me), static_cast<int>(own.y * 4 / sizeof(T)));
    }
    channel.meet();
    if (g.all != nullptr) {
      for (int peer = 0; peer < g.link.ranks - 1; ++peer) {
        const int rank = rank_of_peer(g.link, peer);
        const uint2 theirs = words_in_round(a, rank, round);
        put_words<T, true>(g, rank, theirs.x, theirs.y, channel.slice<const T>(rank));
      }
      if (!g.in_place) {
        put_words<T, false>(g, me, own.x, own.y, reinterpret_cast<const T*>(g.part + own.x));
      }
    }
    channel.next();
  }
  channel.close();
}

// ------------------------------------------------------------------ host

constexpr std::size_t kLeastBytes = 8 << 10;  // of a CTA: more CTAs than that are no quicker

std::size_t ctas_for(std::size_t bytes, int most) {
  return std::clamp<std::size_t>((bytes + kLeastBytes - 1) / kLeastBytes, 1,
                                 static_cast<std::size_t>(most));
}

using StagedSumKernel = void (*)(StagedSum);
StagedSumKernel staged_sum_kernel(int ranks) {
  return ranks <= 2 ? one_shot_kernel : ranks <= 4 ? two_shot_kernel<3> : two_shot_kernel<7>;
}

}  // namespace

int resident_staged(int ranks) {
  int sums = 0;
  int vectors = 0;
  int words = 0;
  check(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&sums, staged_sum_kernel(ranks), kThreads, 0),
        "staged sum");
  check(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&vectors, staged_gather_kernel<uint4>,
                                                      kThreads, 0),
        "staged gather");
  check(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&words, staged_gather_kernel<std::uint32_t>,
                                                      kThreads, 0),
        "staged gather");
  return std::min({sums, vectors, words}) * multiprocessors();
}

void launch_staged_sum(const RankSum& sum, int most_ctas, Stream stream) {
  StagedSum a{};
  a.link = sum.link;
  a.partial = reinterpret_cast<const uint4*>(sum.partial);
  a.x = reinterpret_cast<uint4*>(sum.x);
  a.adds = sum.adds;
  a.vectors = static_cast<std::size_t>(sum.rows) * static_cast<std::size_t>(sum.hidden / 8);
  const std::size_t most = sum.link.layout.slice_bytes / sizeof(uint4);
  const std::size_t ctas = ctas_for(a.vectors * sizeof(uint4), most_ctas);
  const std::size_t rounds = (a.vectors + ctas * most - 1) / (ctas * most);
  const std::size_t share = (a.vectors + rounds * ctas - 1) / (rounds * ctas);
  a.share = static_cast<int>(std::min((share + 7) / 8 * 8, most));  // whole lines
  a.rounds = static_cast<int>(rounds);
  launch("add_reduced", staged_sum_kernel(sum.link.ranks), static_cast<unsigned>(ctas), kThreads, 0,
         stream, a);
}

void launch_staged_gather(const RankGather& gather, int most_ctas, Stream stream) {
  StagedGather a{};
  a.gather = gather;
  std::size_t most = 0;  // words of a part
  bool fours = true;     // on every rank alike, but for alignment: what is published is the same
  const auto words_of = [&](int r) {
    return static_cast<std::size_t>(gather.rows) * static_cast<std::size_t>(gather.columns[r]);
  };
  for (int r = 0; r < gather.link.ranks; ++r) {
    most = std::max(most, words_of(r));
    fours = fours && gather.columns[r] % 4 == 0;
  }
  for (const std::uint32_t* pointer :
       {gather.part, static_cast<const std::uint32_t*>(gather.all)}) {
    fours = fours && reinterpret_cast<std::uintptr_t>(pointer) % sizeof(uint4) == 0;
  }
  const std::size_t ctas = ctas_for(4 * most, most_ctas);
  const std::size_t in_round = ctas * (gather.link.layout.slice_bytes / 4);
  const std::size_t rounds = std::max<std::size_t>(1, (most + in_round - 1) / in_round);
  for (int r = 0; r < gather.link.ranks; ++r) {
    const std::size_t share = (words_of(r) + rounds * ctas - 1) / (rounds * ctas);
    a.share[r] = static_cast<unsigned>((share + 3) / 4 * 4);
  }
  a.rounds = static_cast<int>(rounds);
  launch("gather", fours ? staged_gather_kernel<uint4> : staged_gather_kernel<std::uint32_t>,
         static_cast<unsigned>(ctas), kThreads, 0, stream, a);
}

}  // namespace baton::cuda
