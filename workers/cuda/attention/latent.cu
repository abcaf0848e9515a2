// LatentAttention. A CTA takes a row, some of its heads and, where rows are few, a share of its
// keys, which a second kernel brings together.
//
// The tiled kernel has DeepSeek's 512 + 64 numbers. All of the CTA's heads look at the same 32 keys
// in shared memory, where they are keys and values: scores are a product with all of a vector,
// results one with its first part, taken in turned order. The next keys are on their way meanwhile.
// Of other shapes each head goes through the keys alone, in fp32.
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <stdexcept>
#include <string>

#include "workers/cuda/attention/latent.h"
#include "workers/cuda/attention/pool_block.cuh"
#include "workers/cuda/bf16_pair.cuh"
#include "workers/cuda/current_device.h"
#include "workers/cuda/launch.cuh"
#include "workers/cuda/layer/general.cuh"
#include "workers/cuda/mma.cuh"
#include "workers/cuda/shared_memory.h"

namespace baton::cuda {
namespace {

struct Arguments {
  const Bf16* wide;
  Bf16* out;
  KvLayerView kv;
  const std::int32_t* table;
  const DecodeItem* items;
  const std::int32_t* n_items;
  int heads, rank, width;
  float scale;  // of scores, in powers of two
  int splits;
  float* partial;  // [item][head][split][rank], unless splits is 1
  float2* sums;    // [item][head][split]: the highest score, and the sum of its weights
};

/// The keys of a row that this CTA has.
struct Keys {
  DecodeItem item;
  int begin, end;
};

__device__ __forceinline__ Keys keys_of(const Arguments& a, int multiple) {
  Keys k;
  k.item = a.items[blockIdx.x];
  const int all = k.item.key_end - k.item.key_begin;
  const int each = ((all + a.splits - 1) / a.splits + multiple - 1) / multiple * multiple;
  k.begin = k.item.key_begin + min(all, static_cast<int>(blockIdx.z) * each);
  k.end = min(k.item.key_end, k.begin + each);
  return k;
}

template <bool kPools>
struct Vectors {
  const Bf16* layer;
  const std::int32_t* table;
  const KvLayerView& kv;
  int width;
  __device__ __forceinline__ Vectors(const Arguments& a, const DecodeItem& item)
      : layer(a.kv.pool + a.kv.layer_offset),
        table(a.table + (a.kv.table_shift == nullptr ? 0 : *a.kv.table_shift) + item.first_block),
        kv(a.kv),
        width(a.width) {}
  __device__ __forceinline__ const Bf16* of(int key) const {
    return layer +
           offset_of_block<kPools>(table[key / kv.tokens_per_block], kv.block_stride,
                                   kv.pool_offsets) +
           std::int64_t{key % kv.tokens_per_block} * width;
  }
};

__device__ __forceinline__ std::int64_t place_of(const Arguments& a, int head) {
  return (std::int64_t{blockIdx.x} * a.heads + head) * a.splits + blockIdx.z;
}

// ------------------------------------------------------------------ tiles

constexpr int kRank = 512;
constexpr int kWidth = 576;
constexpr int kStride = kWidth + 8;  // rows four banks apart, for ldmatrix
constexpr int kKeys = 32;
constexpr int kWarps = 8;
constexpr int kThreads = 32 * kWarps;
constexpr int kRowVectors = kWidth / 8;
constexpr int kScoreStride = kKeys + 4;

template <int kTiles>  // of 16 heads
struct Shared {
  __nv_bfloat16 q[16 * kTiles * kStride];
  __nv_bfloat16 keys[2][kKeys * kStride];
  // One tile of heads has each score's sum in two halves: eight warps, four tiles of keys.
  float scores[kTiles == 1 ? 2 : 1][16 * kTiles][kScoreStride];
};

__device__ __forceinline__ std::uint32_t shared_at(const void* p) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(p));
}
/// `bytes` 0: noughts.
__device__ __forceinline__ void copy_16(std::uint32_t to, const void* from, int bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void copies_asked() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int kPending>
__device__ __forceinline__ void copies_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}
/// 32 keys from `first` on; noughts behind the last.
template <bool kPools>
__device__ __forceinline__ void ask_keys(const Vectors<kPools>& vectors, int first, int end,
                                         __nv_bfloat16* to) {
  constexpr int kLanesAKey = kThreads / kKeys;
  const int key = static_cast<int>(threadIdx.x) / kLanesAKey;
  const int lane = static_cast<int>(threadIdx.x) % kLanesAKey;
  const bool here = first + key < end;
  const Bf16* from = vectors.of(here ? first + key : first);
  const std::uint32_t at = shared_at(to + key * kStride);
#pragma unroll
  for (int i = 0; i < kRowVectors / kLanesAKey; ++i) {
    const int vector = lane + kLanesAKey * i;
    copy_16(at + static_cast<std::uint32_t>(vector * 16), from + vector * 8, here ? 16 : 0);
  }
}

/// kSteps of 32 numbers from `from` on of 16 heads' products with 8 keys.
template <int kSteps>
__device__ __forceinline__ void multiply_keys(const __nv_bfloat16* q, const __nv_bfloat16* keys,
                                              int from, int lane, float (&sum)[4]) {
  // Two sums, or every instruction would wait for the one before.
  float other[4] = {};
  const std::uint32_t q_at = shared_at(q + lane % 16 * kStride + from + lane / 16 * 8);
  const std::uint32_t k_at = shared_at(keys + lane % 8 * kStride + from + lane / 8 * 8);
#pragma unroll 3
  for (int step = 0; step < kSteps; ++step) {
    std::uint32_t left[2][4], b[4];
    load_inputs(k_at + static_cast<std::uint32_t>(step * 64), b);
    load_inputs(q_at + static_cast<std::uint32_t>(step * 64), left[0]);
    load_inputs(q_at + static_cast<std::uint32_t>(step * 64 + 32), left[1]);
    mma(sum, left[0][0], left[0][1], left[0][2], left[0][3], b[0], b[1]);
    mma(other, left[1][0], left[1][1], left[1][2], left[1][3], b[2], b[3]);
  }
#pragma unroll
  for (int e = 0; e < 4; ++e) sum[e] += other[e];
}

template <int kTiles, bool kPools>
__global__ void __launch_bounds__(kThreads, kTiles == 1 ? 2 : 1)
    latent_tiles_kernel(const __grid_constant__ Arguments a) {
  extern __shared__ __align__(16) std::uint8_t dynamic[];
  constexpr int kGroups = kWarps / kTiles;    // of warps, which share the keys' tiles and ranks
  constexpr int kOuts = kRank / kGroups / 8;  // tiles of the result, a warp's
  constexpr int kSteps = kWidth / 32;
  auto& shared = *reinterpret_cast<Shared<kTiles>*>(dynamic);
  const int thread = static_cast<int>(threadIdx.x);
  const int warp = thread / 32, lane = thread % 32;
  const int tile = warp % kTiles, group = warp / kTiles;
  const int first_head = static_cast<int>(blockIdx.y) * 16 * kTiles;
  grid_wait();
  grid_release();
  if (static_cast<int>(blockIdx.x) >= *a.n_items) return;
  const Keys keys = keys_of(a, kKeys);
  const Vectors<kPools> vectors(a, keys.item);
  for (int i = thread; i < 16 * kTiles * kRowVectors; i += kThreads) {
    const int head = i / kRowVectors, vector = i % kRowVectors;
    const bool here = first_head + head < a.heads;
    const Bf16* from =
        a.wide + (std::int64_t{keys.item.row} * a.heads + (here ? first_head + head : 0)) * kWidth +
        vector * 8;
    copy_16(shared_at(shared.q + head * kStride + vector * 8), from, here ? 16 : 0);
  }
  if (keys.begin < keys.end) ask_keys(vectors, keys.begin, keys.end, shared.keys[0]);
  copies_asked();

  float o[kOuts][4] = {};
  // Of heads lane / 4 and lane / 4 + 8; all warps of a tile have the same.
  float most[2] = {-INFINITY, -INFINITY}, total[2] = {};
  int stage = 0;
  for (int first = keys.begin; first < keys.end; first += kKeys, stage ^= 1) {
    if (first + kKeys < keys.end) {
      ask_keys(vectors, first + kKeys, keys.end, shared.keys[stage ^ 1]);
    }
    copies_asked();
    copies_wait<1>();
    __syncthreads();
    const __nv_bfloat16* const k = shared.keys[stage];
    const __nv_bfloat16* const q = shared.q + 16 * tile * kStride;
    const auto put = [&](int half, int n, const float(&s)[4]) {
      float* const to = &shared.scores[half][16 * tile + lane / 4][8 * n + lane % 4 * 2];
      *reinterpret_cast<float2*>(to) = float2{s[0], s[1]};
      *reinterpret_cast<float2*>(to + 8 * kScoreStride) = float2{s[2], s[3]};
    };
    if constexpr (kTiles == 1) {
      float s[4] = {};
      const int n = group % 4, half = group / 4;
      multiply_keys<kSteps / 2>(q, k + 8 * n * kStride, half * kWidth / 2, lane, s);
      put(half, n, s);
    } else {
#pragma unroll
      for (int i = 0; i < kTiles / 2; ++i) {
        float s[4] = {};
        const int n = group * (kTiles / 2) + i;
        multiply_keys<kSteps>(q, k + 8 * n * kStride, 0, lane, s);
        put(0, n, s);
      }
    }
    __syncthreads();

    // Weights, as the left operand of two instructions: [step][head of the two][key pair].
    std::uint32_t p[2][4];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int head = 16 * tile + lane / 4 + 8 * r;
      float s[8];
      float highest = -INFINITY;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int key = 8 * i + lane % 4 * 2;
        float2 two = *reinterpret_cast<const float2*>(&shared.scores[0][head][key]);
        if constexpr (kTiles == 1) {
          const float2 more = *reinterpret_cast<const float2*>(&shared.scores[1][head][key]);
          two = float2{two.x + more.x, two.y + more.y};
        }
        s[2 * i] = first + key < keys.end ? two.x * a.scale : -INFINITY;
        s[2 * i + 1] = first + key + 1 < keys.end ? two.y * a.scale : -INFINITY;
        highest = fmaxf(highest, fmaxf(s[2 * i], s[2 * i + 1]));
      }
      highest = fmaxf(highest, __shfl_xor_sync(~0U, highest, 1));
      highest = fmaxf(highest, __shfl_xor_sync(~0U, highest, 2));
      const float now = fmaxf(most[r], highest);
      const float fade = exp2f(most[r] - now);
      most[r] = now;
      float sum = 0;
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        s[i] = exp2f(s[i] - now);
        sum += s[i];
      }
      sum += __shfl_xor_sync(~0U, sum, 1);
      sum += __shfl_xor_sync(~0U, sum, 2);
      total[r] = total[r] * fade + sum;
#pragma unroll
      for (int step = 0; step < 2; ++step) {
        p[step][r] = narrow(s[4 * step], s[4 * step + 1]);
        p[step][r + 2] = narrow(s[4 * step + 2], s[4 * step + 3]);
      }
#pragma unroll
      for (int t = 0; t < kOuts; ++t) {
        o[t][2 * r] *= fade;
        o[t][2 * r + 1] *= fade;
      }
    }
    const std::uint32_t v_at = shared_at(k + lane * kStride + group * kOuts * 8);
#pragma unroll
    for (int t = 0; t < kOuts; ++t) {
      std::uint32_t b[4];
      load_turned(v_at + static_cast<std::uint32_t>(t * 16), b);
#pragma unroll
      for (int step = 0; step < 2; ++step) {
        mma(o[t], p[step][0], p[step][1], p[step][2], p[step][3], b[2 * step], b[2 * step + 1]);
      }
    }
    __syncthreads();  // the next keys but one take this place
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int head = first_head + 16 * tile + lane / 4 + 8 * r;
    if (head >= a.heads) continue;
    const int column = group * kOuts * 8 + lane % 4 * 2;
    if (a.splits == 1) {
      const float factor = 1.0F / total[r];
      Bf16* to = a.out + (std::int64_t{keys.item.row} * a.heads + head) * kRank + column;
#pragma unroll
      for (int t = 0; t < kOuts; ++t) {
        *reinterpret_cast<std::uint32_t*>(to + 8 * t) =
            narrow(o[t][2 * r] * factor, o[t][2 * r + 1] * factor);
      }
      continue;
    }
    const std::int64_t place = place_of(a, head);
    float* to = a.partial + place * kRank + column;
#pragma unroll
    for (int t = 0; t < kOuts; ++t) {
      *reinterpret_cast<float2*>(to + 8 * t) = float2{o[t][2 * r], o[t][2 * r + 1]};
    }
    if (group == 0 && lane % 4 == 0) a.sums[place] = float2{most[r], total[r]};
  }
}

/// Grid (items, heads): what the splits of a row have found, in their order.
__global__ void __launch_bounds__(128) merge_kernel(const __grid_constant__ Arguments a) {
  grid_wait();
  grid_release();
  if (static_cast<int>(blockIdx.x) >= *a.n_items) return;
  const std::int64_t place = (std::int64_t{blockIdx.x} * a.heads + blockIdx.y) * a.splits;
  float most = -INFINITY;
  for (int i = 0; i < a.splits; ++i) most = fmaxf(most, a.sums[place + i].x);
  float total = 0;
  float4 o{0, 0, 0, 0};
  for (int i = 0; i < a.splits; ++i) {
    const float2 sums = a.sums[place + i];
    if (sums.y == 0) continue;  // it had no keys
    const float share = exp2f(sums.x - most);
    total = fmaf(share, sums.y, total);
    const float4 part =
        reinterpret_cast<const float4*>(a.partial + (place + i) * kRank)[threadIdx.x];
    o = float4{fmaf(share, part.x, o.x), fmaf(share, part.y, o.y), fmaf(share, part.z, o.z),
               fmaf(share, part.w, o.w)};
  }
  const float factor = 1.0F / total;
  const DecodeItem item = a.items[blockIdx.x];
  Bf16* const to = a.out + (std::int64_t{item.row} * a.heads + blockIdx.y) * kRank;
  reinterpret_cast<uint2*>(to)[threadIdx.x] =
      uint2{narrow(o.x * factor, o.y * factor), narrow(o.z * factor, o.w * factor)};
}

template <int kTiles, bool kPools>
void launch_tiles(const Arguments& a, int items, Stream stream) {
  take_shared_memory<latent_tiles_kernel<kTiles, kPools>>(sizeof(Shared<kTiles>), "attention");
  const dim3 grid(static_cast<unsigned>(items),
                  static_cast<unsigned>((a.heads + 16 * kTiles - 1) / (16 * kTiles)),
                  static_cast<unsigned>(a.splits));
  launch("latent attention", latent_tiles_kernel<kTiles, kPools>, grid, kThreads,
         sizeof(Shared<kTiles>), stream, a);
}

/// As many as the heads fill and shared memory holds (some GPUs have 99 KiB for a CTA).
int tiles_of(int heads) {
  int device = 0;
  int most = 0;
  check(cudaGetDevice(&device), "cudaGetDevice");
  check(cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device),
        "cudaDeviceGetAttribute");
  const auto holds = [most](std::size_t bytes) { return bytes <= static_cast<std::size_t>(most); };
  if (heads > 32 && holds(sizeof(Shared<4>))) return 4;
  if (heads > 16 && holds(sizeof(Shared<2>))) return 2;
  return 1;
}

template <bool kPools>
void launch_heads(const Arguments& a, int tiles, int items, Stream stream) {
  switch (tiles) {
    case 1:
      return launch_tiles<1, kPools>(a, items, stream);
    case 2:
      return launch_tiles<2, kPools>(a, items, stream);
    default:
      return launch_tiles<4, kPools>(a, items, stream);
  }
}

// ------------------------------------------------------------------ any shape

constexpr int kAnyWarps = 4;
constexpr int kAnyValues = kMostLatentRank / 32;
constexpr int kMostWidth = kMostLatentRank + kMostLatentRope;

/// Grid (items, heads). Warps take keys in turns, a lane every 32nd number.
template <bool kPools>
__global__ void __launch_bounds__(32 * kAnyWarps)
    latent_any_kernel(const __grid_constant__ Arguments a) {
  __shared__ float q[kMostWidth];
  __shared__ float found[kAnyWarps][kMostLatentRank];
  __shared__ float2 sums[kAnyWarps];
  grid_wait();
  grid_release();
  if (static_cast<int>(blockIdx.x) >= *a.n_items) return;
  const int thread = static_cast<int>(threadIdx.x);
  const int warp = thread / 32, lane = thread % 32;
  const int head = static_cast<int>(blockIdx.y);
  const DecodeItem item = a.items[blockIdx.x];
  const Vectors<kPools> vectors(a, item);
  const std::int64_t at = std::int64_t{item.row} * a.heads + head;
  for (int i = thread; i < a.width; i += 32 * kAnyWarps) q[i] = value(a.wide + at * a.width + i);
  __syncthreads();
  float o[kAnyValues] = {};
  float most = -INFINITY, total = 0;
  for (int key = item.key_begin + warp; key < item.key_end; key += kAnyWarps) {
    const Bf16* const vector = vectors.of(key);
    float score = 0;
    for (int i = lane; i < a.width; i += 32) score = fmaf(q[i], value(vector + i), score);
    score = warp_sum(score) * a.scale;
    const float now = fmaxf(most, score);
    const float fade = exp2f(most - now), weight = exp2f(score - now);
    most = now;
    total = total * fade + weight;
#pragma unroll
    for (int i = 0; i < kAnyValues; ++i) {
      const int n = lane + 32 * i;
      if (n < a.rank) o[i] = fmaf(weight, value(vector + n), o[i] * fade);
    }
  }
#pragma unroll
  for (int i = 0; i < kAnyValues; ++i) found[warp][lane + 32 * i] = o[i];
  if (lane == 0) sums[warp] = float2{most, total};
  __syncthreads();
  most = -INFINITY;
  for (int w = 0; w < kAnyWarps; ++w) most = fmaxf(most, sums[w].x);
  for (int i = thread; i < a.rank; i += 32 * kAnyWarps) {
    float out = 0;
    total = 0;
    for (int w = 0; w < kAnyWarps; ++w) {
      const float share = exp2f(sums[w].x - most);  // 0 for a warp without keys
      total = fmaf(share, sums[w].y, total);
      out = fmaf(share, found[w][i], out);
    }
    store(a.out + at * a.rank + i, out / total);
  }
}

constexpr int kMostSplits = 32;
constexpr float kLog2E = 1.44269504F;

}  // namespace

LatentAttention::LatentAttention(const Options& options) : options_(options) {
  const LatentShape& s = options.shape;
  if (s.heads < 1 || s.rank < 8 || s.rank > kMostLatentRank || s.rope > kMostLatentRope ||
      s.rank % 8 != 0 || s.rope % 8 != 0 || s.plain % 8 != 0) {
    throw std::invalid_argument("latent attention: " + std::to_string(s.rank) + " and " +
                                std::to_string(s.rope) + " numbers");
  }
  if (s.rank != kRank || s.width() != kWidth) return;
  tiles_ = tiles_of(s.heads);
  const int of_heads = (s.heads + 16 * tiles_ - 1) / (16 * tiles_);
  places_ = std::max(1, multiprocessors() * (tiles_ == 1 ? 2 : 1) / of_heads);
}

int LatentAttention::splits_of(int items) const {
  if (tiles_ == 0 || options_.deterministic || items <= 0) return 1;
  return std::clamp(places_ / items, 1, kMostSplits);
}

/// items * splits_of(items) is at most places_, or splits_of() is 1.
std::size_t LatentAttention::workspace_bytes() const {
  if (tiles_ == 0 || options_.deterministic) return 0;
  const auto lines =
      static_cast<std::size_t>(places_) * static_cast<std::size_t>(options_.shape.heads);
  return lines * (kRank * sizeof(float) + sizeof(float2));
}

void LatentAttention::run(const Bf16* wide, Bf16* out, const KvLayerView& kv,
                          const std::int32_t* block_table, const DecodeWork& work, float scale,
                          void* workspace, Stream stream) const {
  if (work.launch <= 0) return;
  const LatentShape& s = options_.shape;
  Arguments a{};
  a.wide = wide;
  a.out = out;
  a.kv = kv;
  a.table = block_table;
  a.items = work.items;
  a.n_items = work.n_items;
  a.heads = s.heads;
  a.rank = s.rank;
  a.width = s.width();
  a.scale = scale * kLog2E;
  a.splits = splits_of(work.launch);
  const auto lines = static_cast<std::size_t>(places_) * static_cast<std::size_t>(s.heads);
  a.partial = static_cast<float*>(workspace);
  a.sums = reinterpret_cast<float2*>(a.partial + lines * kRank);
  const bool pools = kv.pool_offsets != nullptr;
  const dim3 by_head(static_cast<unsigned>(work.launch), static_cast<unsigned>(s.heads));
  if (tiles_ == 0) {
    launch("latent attention", pools ? latent_any_kernel<true> : latent_any_kernel<false>, by_head,
           32 * kAnyWarps, 0, stream, a);
    return;
  }
  if (pools) {
    launch_heads<true>(a, tiles_, work.launch, stream);
  } else {
    launch_heads<false>(a, tiles_, work.launch, stream);
  }
  if (a.splits > 1) launch("merge of rows", merge_kernel, by_head, 128, 0, stream, a);
}

}  // namespace baton::cuda
