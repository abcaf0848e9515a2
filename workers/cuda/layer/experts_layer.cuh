// What the layer kernel of experts (experts_layer.cu) needs beside the experts' own ring
// (experts_ring.cuh): dense matrices through the same ring, and norms in shared memory. But
// for copy_dense() all of it is done by the kFewWarps warps that multiply, which meet at barrier
// kMeeting.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "workers/cuda/eight.cuh"
#include "workers/cuda/layer/experts_few.cuh"
#include "workers/cuda/layer/experts_layer.h"
#include "workers/cuda/layer/general.cuh"

namespace baton::cuda::expert_layers {

using namespace expert_ring;

constexpr int kMeeting = 1;
constexpr int kMostDenseTiles = 4;  // of 16 features, that a CTA computes at once
constexpr int kHeldVectors = 4;     // of eight weights, that a thread asks for before it needs them

/// A matrix in bf16, [out, in], cut by outputs: a CTA takes `features` of them at a time.
struct Dense {
  CUtensorMap map;
  const __nv_bfloat16* data;
  int out, in;
  int features;     // a multiple of 8
  int parts;        // ceil(out / features)
  int units;        // of 64 inputs
  int splits;       // stages of a part, ...
  int stage_units;  // of so many units, the last one of fewer
};

#ifdef BATON_HOPPER

__device__ __forceinline__ void meet() { hopper::sync_threads(kMeeting, kMultiplyingFew); }

/// One thread: asks for all of this CTA's parts.
__device__ __forceinline__ void copy_dense(const Dense& m, const Ring& ring, Place& place,
                                           std::uint64_t policy) {
  const int bytes = m.features * kRowBytes * m.stage_units;  // units behind the last count, too
  for (int part = static_cast<int>(blockIdx.x); part < m.parts;
       part += static_cast<int>(gridDim.x)) {
    for (int split = 0; split < m.splits; ++split) {
      std::uint64_t* const full = &ring.full[place.stage];
      hopper::barrier_wait(&ring.empty[place.stage], place.parity ^ 1);
      hopper::barrier_expect(full, bytes);
      hopper::copy_box_3d(ring.memory + place.stage * ring.bytes, &m.map, part * m.features,
                          split * m.stage_units, full, policy);
      place.advance(ring.stages);
    }
  }
}

/// This CTA's parts come into the L2 cache. By single lines: the copy engine's own prefetch
/// (cp.async.bulk.prefetch) gained nothing, with any policy (one H100).
__device__ __forceinline__ void prefetch_dense(const Dense& m) {
  constexpr int kLine = 128;
  for (int part = static_cast<int>(blockIdx.x); part < m.parts;
       part += static_cast<int>(gridDim.x)) {
    const int first = part * m.features;
    const auto* const from =
        reinterpret_cast<const std::uint8_t*>(m.data) + std::int64_t{first} * m.in * 2;
    const int bytes = min(m.features, m.out - first) * m.in * 2;
    for (int at = static_cast<int>(threadIdx.x) * kLine; at < bytes;
         at += kMultiplyingFew * kLine) {
      asm volatile("prefetch.global.L2 [%0];" ::"l"(from + at));
    }
  }
}

/// Adds a unit's products to the sums of kTiles tiles. Rows behind m.features are whatever lies
/// there.
template <int kTiles>
__device__ __forceinline__ void multiply_unit(std::uint32_t unit, int k, int lane,
                                              const Inputs<1>& x, Sums<1> (&sums)[kTiles]) {
  const auto row = unit + static_cast<std::uint32_t>((lane % 8 + lane / 8 % 2 * 8) * kRowBytes);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    std::uint32_t b[4];
    load_inputs(
        x.at[0] + x.step[0] * static_cast<std::uint32_t>(k * kRowBytes + half * kRowBytes / 2), b);
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        std::uint32_t a[4];
        const int chunk = (half * 4 + i * 2 + lane / 16) ^ (lane % 8);
        load_inputs(row + static_cast<std::uint32_t>(t * kExpertTile * kRowBytes + chunk * 16), a);
        mma(sums[t].found[i][0], a[0], a[1], a[2], a[3], b[2 * i], b[2 * i + 1]);
      }
    }
  }
}

/// All of this CTA's parts of m: put(row, feature, sum) gets each sum, `x` are the rows. `partial`
/// is room for kMostDenseTiles tiles of all warps.
template <int kTiles, class Put>
__device__ __forceinline__ void multiply_parts(const Dense& m, int rows, const Ring& ring,
                                               Place& place, const Inputs<1>& x, float* partial,
                                               const Put& put) {
  const int warp = static_cast<int>(threadIdx.x) / kLanes;
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  for (int part = static_cast<int>(blockIdx.x); part < m.parts;
       part += static_cast<int>(gridDim.x)) {
    Sums<1> sums[kTiles];
#pragma unroll
    for (int t = 0; t < kTiles; ++t) sums[t].clear();
    for (int split = 0; split < m.splits; ++split) {
      const int first = split * m.stage_units;
      const int n = min(m.stage_units, m.units - first);
      const std::uint32_t stage = hopper::shared_address(ring.memory + place.stage * ring.bytes);
      hopper::barrier_wait(&ring.full[place.stage], place.parity);
      // A unit is its warp's by its number in the matrix: stages need not be multiples of the
      // warps.
      for (int u = (warp + kFewWarps - first % kFewWarps) % kFewWarps; u < n; u += kFewWarps) {
        multiply_unit<kTiles>(stage + static_cast<std::uint32_t>(u * m.features * kRowBytes),
                              first + u, lane, x, sums);
      }
      __syncwarp();
      if (lane == 0) hopper::barrier_arrive(&ring.empty[place.stage]);
      place.advance(ring.stages);
    }
    meet();  // nobody reads what was there
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        partial[((warp * kTiles + t) * 4 + e) * kLanes + lane] = sums[t].of(0, e);
      }
    }
    meet();
    for (int of = warp; of < 4 * kTiles; of += kFewWarps) {
      const int row = lane % 4 * 2 + of % 2;
      const int feature = of / 4 * kExpertTile + lane / 4 + of / 2 % 2 * 8;
      if (row >= rows || feature >= m.features || part * m.features + feature >= m.out) continue;
      float sum = 0;
#pragma unroll
      for (int w = 0; w < kFewWarps; ++w) sum += partial[(w * kTiles * 4 + of) * kLanes + lane];
      put(row, part * m.features + feature, sum);
    }
  }
}

template <class Put>
__device__ __forceinline__ void multiply_dense(const Dense& m, int rows, const Ring& ring,
                                               Place& place, const Inputs<1>& x, float* partial,
                                               const Put& put) {
  if (m.features <= kExpertTile) return multiply_parts<1>(m, rows, ring, place, x, partial, put);
  if (m.features <= 2 * kExpertTile) {
    return multiply_parts<2>(m, rows, ring, place, x, partial, put);
  }
  if (m.features <= 3 * kExpertTile) {
    return multiply_parts<3>(m, rows, ring, place, x, partial, put);
  }
  multiply_parts<kMostDenseTiles>(m, rows, ring, place, x, partial, put);
}

/// [rows, in] into shared memory, rows `stride` bytes apart, noughts behind each up to a unit.
__device__ __forceinline__ void load_rows(const __nv_bfloat16* from, int rows, int in,
                                          std::uint8_t* to, int stride) {
  constexpr int kBatch = 8;  // loads of a thread under way at once
  const int vectors = in / 8;
  const int whole = expert_units(in) * (kExpertUnit / 8);
  // From one of a thread's vectors to its next, without divisions.
  const int rows_on = kMultiplyingFew / whole, vectors_on = kMultiplyingFew % whole;
  struct At {
    int row, vector;
  };
  const auto advance = [&](At& at) {
    at.row += rows_on;
    at.vector += vectors_on;
    if (at.vector < whole) return;
    at.vector -= whole;
    ++at.row;
  };
  const int thread = static_cast<int>(threadIdx.x);
  At loaded{thread / whole, thread % whole};
  At stored = loaded;
  while (stored.row < rows) {
    uint4 v[kBatch];
#pragma unroll
    for (int k = 0; k < kBatch; ++k) {
      v[k] = {0, 0, 0, 0};
      if (loaded.row < rows && loaded.vector < vectors) {
        v[k] = __ldcg(reinterpret_cast<const uint4*>(from + std::int64_t{loaded.row} * in) +
                      loaded.vector);
      }
      advance(loaded);
    }
#pragma unroll
    for (int k = 0; k < kBatch; ++k) {
      if (stored.row < rows) {
        *reinterpret_cast<uint4*>(to + stored.row * stride + stored.vector * 16) = v[k];
      }
      advance(stored);
    }
  }
}

/// How the threads share rows: each row has as many, whole warps.
struct RowThreads {
  int each;  // threads of a row
  int row, at;

  __device__ __forceinline__ explicit RowThreads(int rows) {
    int shares = 1;
    while (shares < rows) shares *= 2;
    each = kMultiplyingFew / shares;
    row = static_cast<int>(threadIdx.x) / each;
    at = static_cast<int>(threadIdx.x) % each;
  }
  /// Sums of a row's threads, in all of them; `sums` has room for one a warp, and all threads meet
  /// once more before the next sum.
  __device__ __forceinline__ float sum(float x, float* sums) const {
    const int warp = static_cast<int>(threadIdx.x) / kLanes;
    x = warp_sum(x);
    if (threadIdx.x % kLanes == 0) sums[warp] = x;
    meet();
    const int warps = each / kLanes;
    const int first = warp / warps * warps;
    float all = 0;
    for (int w = 0; w < warps; ++w) all += sums[first + w];
    return all;
  }
};

/// A norm's weights of a thread's first vectors, asked for while others are waited for.
struct HeldGains {
  Eight of[kHeldVectors];

  static __device__ __forceinline__ Eight load(const LayerNorm& norm, int vector) {
    Eight gain;
    if (norm.gain != nullptr) {
      gain.unpack(__ldg(reinterpret_cast<const uint4*>(norm.gain) + vector));
    } else {
      gain.load_weight(norm.weight + 8 * vector);
    }
    return gain;
  }
  __device__ __forceinline__ void load(const LayerNorm& norm, int hidden, const RowThreads& mine) {
#pragma unroll
    for (int i = 0; i < kHeldVectors; ++i) {
      const int vector = mine.at + i * mine.each;
      if (vector < hidden / 8) of[i] = load(norm, vector);
    }
  }
};

/// Rows of x, normed, into shared memory. `sums`: room for one number a warp.
__device__ __forceinline__ void norm_into(const LayerNorm& norm, const HeldGains& held,
                                          const Bf16* x, int rows, int hidden,
                                          const RowThreads& mine, std::uint8_t* to, int stride,
                                          float* sums) {
  const int vectors = mine.row < rows ? hidden / 8 : 0;
  const auto* const from = reinterpret_cast<const uint4*>(x + std::int64_t{mine.row} * hidden);
  auto* const row = reinterpret_cast<uint4*>(to + mine.row * stride);
  float squares = 0;
  for (int vector = mine.at; vector < vectors; vector += mine.each) {
    const uint4 v = __ldcg(from + vector);
    row[vector] = v;
    Eight numbers;
    numbers.unpack(v);
    squares += numbers.squares();
  }
  const float factor = rsqrtf(mine.sum(squares, sums) / static_cast<float>(hidden) + norm.eps);
  const auto scale = [&](int vector, const Eight& gain) {
    Eight numbers;
    numbers.unpack(row[vector]);
#pragma unroll
    for (int k = 0; k < 8; ++k) numbers.v[k] *= factor * gain.v[k];
    row[vector] = numbers.pack();
  };
#pragma unroll
  for (int i = 0; i < kHeldVectors; ++i) {
    const int vector = mine.at + i * mine.each;
    if (vector < vectors) scale(vector, held.of[i]);
  }
  for (int vector = mine.at + kHeldVectors * mine.each; vector < vectors; vector += mine.each) {
    scale(vector, HeldGains::load(norm, vector));
  }
  meet();
}

#endif  // BATON_HOPPER

}  // namespace baton::cuda::expert_layers
