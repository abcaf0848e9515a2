// What the kernels of experts on Hopper have in common (experts_few.cu, experts_stream.cu): the
// weights of a few tiles of experts come through a ring in shared memory, filled by a warp of its
// own, and go through 8 or 16 warps that share the inputs. Registers hold nothing that is on its
// way, so the bytes in flight do not depend on what the compiler makes of the loops, and the ring
// runs on over the ends of tiles and experts.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "workers/cuda/hopper.cuh"
#include "workers/cuda/launch.cuh"
#include "workers/cuda/layer/expert_layout.h"
#include "workers/cuda/layer/fp8_numbers.cuh"
#include "workers/cuda/layer/int4_numbers.cuh"
#include "workers/cuda/layer/mxfp4_numbers.cuh"
#include "workers/cuda/linear/quantized_layout.h"
#include "workers/cuda/mma.cuh"
#include "workers/cuda/tensor_map.h"

namespace baton::cuda::expert_ring {

constexpr int kWarps = 16;  // that multiply
constexpr int kMultiplying = kLanes * kWarps;
constexpr int kStageTarget = 32 << 10;  // bytes of a stage at most
constexpr int kMostStages = 12;
constexpr int kRowBytes = 2 * kExpertUnit;  // of x, of a unit
constexpr int kColumns = 8;                 // rows of x to an instruction

/// One matrix of all experts, and how a tile of it is cut into stages.
struct Matrix {
  const std::uint8_t* data;  // of all formats but bf16, which has a tensor map
  int out, in;
  int tiles, units;
  int splits;       // stages of a tile, ...
  int stage_units;  // of so many units, the last one of fewer
};

template <ExpertFormat kFormat>
constexpr int unit_bytes() {
  return expert_unit_bytes(kFormat);
}

template <ExpertFormat kFormat>
Matrix matrix_of(const ExpertWeight& w, int out, int in, int stage_target = kStageTarget,
                 int warps = kWarps) {
  Matrix m{};
  m.data = reinterpret_cast<const std::uint8_t*>(w.data);
  m.out = out;
  m.in = in;
  m.tiles = expert_tiles(out);
  m.units = expert_units(in);
  m.splits = (m.units * unit_bytes<kFormat>() + stage_target - 1) / stage_target;
  m.stage_units = (m.units + m.splits - 1) / m.splits;
  // No round of the warps for few units.
  const int rest = m.stage_units % warps;
  if (m.stage_units > warps && 2 * rest < warps) m.stage_units -= rest;
  m.splits = (m.units + m.stage_units - 1) / m.stage_units;
  return m;
}

template <ExpertFormat kFormat>
constexpr int stage_bytes(const Matrix& m) {
  return m.stage_units * unit_bytes<kFormat>();
}

/// The copy engine's map of a matrix in bf16 as [units][rows of all experts][64]: a stage is a box.
inline CUtensorMap map_of(const ExpertWeight& w, const Matrix& m, int count) {
  const auto row = static_cast<cuuint64_t>(m.in) * 2;
  return encode_map<3>(
      w.data, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
      {kExpertUnit, static_cast<cuuint64_t>(count) * static_cast<cuuint64_t>(m.out),
       static_cast<cuuint64_t>(m.units)},
      {row, kRowBytes}, {kExpertUnit, kExpertTile, static_cast<cuuint32_t>(m.stage_units)},
      CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_128B);
}

/// Bytes from a row of x to the next in shared memory: rows four banks apart, for ldmatrix.
constexpr int x_stride(int in) { return expert_units(in) * kRowBytes + 16; }

// ------------------------------------------------------------------ device

#ifdef BATON_HOPPER

struct Place {
  int stage = 0;
  int parity = 0;
  __device__ __forceinline__ void advance(int stages) {
    if (++stage < stages) return;
    stage = 0;
    parity ^= 1;
  }
};

/// The ring and its barriers, in shared memory.
struct Ring {
  std::uint8_t* memory;
  std::uint64_t* full;
  std::uint64_t* empty;
  int stages;
  int bytes;  // from a stage to the next

  __device__ __forceinline__ void init(int warps = kWarps) const {
    for (int s = 0; s < stages; ++s) {
      hopper::barrier_init(&full[s], 1);
      hopper::barrier_init(&empty[s], warps);
    }
  }
};

/// One thread: asks for a stage as soon as its place is free.
template <ExpertFormat kFormat>
__device__ __forceinline__ void copy_stage(const CUtensorMap* map, const Matrix& m,
                                           const Ring& ring, Place& place, int expert, int tile,
                                           int split, std::uint64_t policy) {
  std::uint8_t* const to = ring.memory + place.stage * ring.bytes;
  std::uint64_t* const full = &ring.full[place.stage];
  hopper::barrier_wait(&ring.empty[place.stage], place.parity ^ 1);
  const int first = split * m.stage_units;
  if constexpr (kFormat == ExpertFormat::bf16) {
    hopper::barrier_expect(full, stage_bytes<kFormat>(m));  // units behind the last count, too
    hopper::copy_box_3d(to, map, expert * m.out + kExpertTile * tile, first, full, policy);
  } else {
    const int bytes = min(m.stage_units, m.units - first) * unit_bytes<kFormat>();
    const std::int64_t unit = (std::int64_t{expert} * m.tiles + tile) * m.units + first;
    hopper::barrier_expect(full, bytes);
    hopper::copy_bytes(to, m.data + unit * unit_bytes<kFormat>(), bytes, full, policy);
  }
  place.advance(ring.stages);
}

/// Where a lane reads its row of x (of each eight the one of its number, mod 8) in shared memory; a
/// row that is not there is 16 bytes of noughts again and again.
template <int kGroups>
struct Inputs {
  std::uint32_t at[kGroups];
  std::uint32_t step[kGroups];  // 1 or 0

  /// `x` is where the row begins; negative: nowhere.
  __device__ __forceinline__ void point(int group, int lane, std::int64_t x, std::uint32_t nought) {
    at[group] = x < 0 ? nought : static_cast<std::uint32_t>(x + lane / 8 * 16);
    step[group] = x < 0 ? 0 : 1;
  }
};

__device__ __forceinline__ uint4 load_shared(std::uint32_t at) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(at)
               : "memory");
  return v;
}
__device__ __forceinline__ std::uint32_t load_shared_word(std::uint32_t at) {
  std::uint32_t v;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(at) : "memory");
  return v;
}

/// Sums of a tile by 8 kGroups rows; two of each, or every instruction would wait for the last.
template <int kGroups>
struct Sums {
  float found[2][kGroups][4];
  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
      for (int n = 0; n < kGroups; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) found[i][n][e] = 0;
  }
  __device__ __forceinline__ float of(int n, int e) const {
    return found[0][n][e] + found[1][n][e];
  }
};

/// Of feature lane / 4 of a unit in FP8; that of the feature eight behind lies 32 bytes on.
__device__ __forceinline__ std::uint32_t fp8_scale_at(std::uint32_t unit, int lane) {
  return unit + static_cast<std::uint32_t>(kFp8WordBytes + lane / 4 * 4);
}

/// The two words of scale of a lane's features of a unit in int4.
__device__ __forceinline__ uint2 int4_scales_at(std::uint32_t unit, int lane) {
  uint2 v;
  asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];"
               : "=r"(v.x), "=r"(v.y)
               : "r"(unit + static_cast<std::uint32_t>(kInt4WordBytes + lane / 4 * 8))
               : "memory");
  return v;
}

/// Adds a unit's products: it lies at `unit` in shared memory, and is unit `k` of the tile.
template <ExpertFormat kFormat, int kGroups>
__device__ __forceinline__ void multiply(std::uint32_t unit, int k, int lane,
                                         const Inputs<kGroups>& x, Sums<kGroups>& sums) {
  uint4 words{};
  std::uint32_t scales = 0;
  // In bf16 rows of 128 bytes, whose eight parts of 16 are swapped by the row's number.
  const auto row = unit + static_cast<std::uint32_t>((lane % 8 + lane / 8 % 2 * 8) * kRowBytes);
  if constexpr (kFormat == ExpertFormat::mxfp4) {
    words = load_shared(unit + static_cast<std::uint32_t>(lane * 16));
    scales = load_shared_word(unit + static_cast<std::uint32_t>(kMxfp4WordBytes + lane / 4 * 4));
  }
  uint2 pair{};
  if constexpr (kFormat == ExpertFormat::int4) {
    words = load_shared(unit + static_cast<std::uint32_t>(lane * 16));
    pair = int4_scales_at(unit, lane);
  }
  // These take their scales when a unit's products are there: one product each for 64.
  constexpr bool kApart = kFormat == ExpertFormat::fp8 || kFormat == ExpertFormat::int4;
  Sums<kGroups> apart;
  if constexpr (kApart) apart.clear();
  Sums<kGroups>& to = kApart ? apart : sums;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    std::uint32_t b[kGroups][4];
#pragma unroll
    for (int n = 0; n < kGroups; ++n) {
      const auto at = static_cast<std::uint32_t>(k * kRowBytes + half * kRowBytes / 2);
      load_inputs(x.at[n] + x.step[n] * at, b[n]);
    }
    std::uint32_t a[2][4];
    if constexpr (kFormat == ExpertFormat::bf16) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int chunk = (half * 4 + i * 2 + lane / 16) ^ (lane % 8);
        load_inputs(row + static_cast<std::uint32_t>(chunk * 16), a[i]);
      }
    } else if constexpr (kFormat == ExpertFormat::fp8) {
      words = load_shared(unit + static_cast<std::uint32_t>(half * kFp8WordBytes / 2 + lane * 16));
      exact_fp8(words.x, words.y, a[0]);
      exact_fp8(words.z, words.w, a[1]);
    } else if constexpr (kFormat == ExpertFormat::int4) {
      exact_int4(half == 0 ? words.x : words.z, pair.x, pair.y, a[0]);
      exact_int4(half == 0 ? words.y : words.w, pair.x, pair.y, a[1]);
    } else {
      const std::uint32_t low = mxfp4_scale(scales, 2 * half);
      const std::uint32_t high = mxfp4_scale(scales, 2 * half + 1);
      dequantize_mxfp4(half == 0 ? words.x : words.z, low, high, a[0]);
      dequantize_mxfp4(half == 0 ? words.y : words.w, low, high, a[1]);
    }
#pragma unroll
    for (int n = 0; n < kGroups; ++n) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        mma(to.found[i][n], a[i][0], a[i][1], a[i][2], a[i][3], b[n][2 * i], b[n][2 * i + 1]);
      }
    }
  }
  if constexpr (kApart) {
    float scales[2] = {scale_of(pair.x), scale_of(pair.y)};
    if constexpr (kFormat == ExpertFormat::fp8) {
      scales[0] = __uint_as_float(load_shared_word(fp8_scale_at(unit, lane)));
      scales[1] = __uint_as_float(load_shared_word(fp8_scale_at(unit, lane) + 32));
    }
#pragma unroll
    for (int n = 0; n < kGroups; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        sums.found[0][n][e] = fmaf(scales[e / 2], apart.of(n, e), sums.found[0][n][e]);
      }
    }
  }
}

/// A warp's part of the next tile of the ring, of kBy warps.
template <ExpertFormat kFormat, int kGroups, int kBy = kWarps>
__device__ __forceinline__ void multiply_tile(const Matrix& m, const Ring& ring, Place& place,
                                              int warp, int lane, const Inputs<kGroups>& x,
                                              Sums<kGroups>& sums) {
  for (int split = 0; split < m.splits; ++split) {
    const int first = split * m.stage_units;
    const int n = min(m.stage_units, m.units - first);
    const std::uint32_t stage = hopper::shared_address(ring.memory + place.stage * ring.bytes);
    hopper::barrier_wait(&ring.full[place.stage], place.parity);
    for (int u = warp; u < n; u += kBy) {
      multiply<kFormat, kGroups>(stage + static_cast<std::uint32_t>(u * unit_bytes<kFormat>()),
                                 first + u, lane, x, sums);
    }
    __syncwarp();
    if (lane == 0) hopper::barrier_arrive(&ring.empty[place.stage]);
    place.advance(ring.stages);
  }
}

/// What the warps found of a tile, [warp][eight rows][element][lane]; element e of a lane is
/// feature g + 8 (e / 2), row 2 t + e % 2 of the eight.
template <int kGroups, int kBy = kWarps>
struct Partial {
  static constexpr int kFloats = kBy * kGroups * 4 * kLanes;

  static __device__ __forceinline__ void put(float* to, int warp, int lane, int n, int e, float v) {
    to[((warp * kGroups + n) * 4 + e) * kLanes + lane] = v;
  }
  static __device__ __forceinline__ float total(const float* from, int lane, int n, int e) {
    float sum = 0;
#pragma unroll
    for (int w = 0; w < kBy; ++w) sum += from[((w * kGroups + n) * 4 + e) * kLanes + lane];
    return sum;
  }
};

/// Rows of x in shared memory of which the last unit is not whole: noughts behind them.
__device__ __forceinline__ void clear_behind(std::uint8_t* x, int rows, int stride, int in) {
  const int from = in * 2;
  const int words = (expert_units(in) * kRowBytes - from) / 4;
  for (int i = static_cast<int>(threadIdx.x); i < words * rows; i += static_cast<int>(blockDim.x)) {
    *reinterpret_cast<std::uint32_t*>(x + i / words * stride + from + i % words * 4) = 0;
  }
}

__device__ __forceinline__ std::uint8_t* aligned_kib(std::uint8_t* p) {
  const std::uint32_t base = hopper::shared_address(p);
  return p + ((base + 1023) / 1024 * 1024 - base);
}

/// What was written to shared memory by stores is in order with what the copy engine writes there.
__device__ __forceinline__ void fence_copies() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

#endif  // BATON_HOPPER

}  // namespace baton::cuda::expert_ring
