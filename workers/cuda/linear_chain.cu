// See linear_chain.h. Every CTA has its own features of each link, all of their k, so no sums cross
// CTAs. A link begins when all CTAs have stored what the link before it has (a counter in L2). W
// depends on nothing: the warp that asks for it runs ahead through the links, as far as the ring of
// shared memory lets it (the idea of a persistent kernel over all layers: "Look Ma, No Bubbles!",
// Hazy Research 2025).
//
// W's rows are the 64-row operand of a warpgroup product and x's the narrow one, as in
// linear_few_rows.cu. A CTA mostly has fewer than 64 features of a link: the rows behind them hold
// what lies there in shared memory, and their sums are not stored.
//
// Measured while this was written: sums of a tile that CTAs share cost more than they bring,
// through L2 (a layer of the 8B took 146 us, this takes 107); 256-byte promotion in W's map costs 6
// %; loops that read their bounds from memory, 10 to 40 %.
#include <algorithm>
#include <cstdint>

#include "workers/cuda/current_device.h"
#include "workers/cuda/hopper.cuh"
#include "workers/cuda/launch.cuh"
#include "workers/cuda/linear_chain.h"
#include "workers/cuda/linear_chain_quantized.h"
#include "workers/cuda/linear_chain_store.cuh"
#include "workers/cuda/shared_memory.h"

namespace baton::cuda {
namespace links {
namespace {

#ifdef BATON_HOPPER
// ------------------------------------------------------------------ producers

template <int kN>
__device__ __forceinline__ void produce_w(const Arguments& a, Shared<kN>& shared,
                                          std::uint8_t* ring) {
  const std::uint64_t policy = hopper::policy_evict_first();
  const int ring_places = a.places;
  int place = 0;
  int parity = 1;
  for (int i = 0; i < a.n; ++i) {
    const Link& link = a.links[i];
    const int boxes = link.boxes;
    const int places = link.places;
    const int units = link.units;
    const int features = link.features;
    const int bytes = features * 128 * boxes;
    for (int unit = static_cast<int>(blockIdx.x); unit < units;
         unit += static_cast<int>(gridDim.x)) {
      for (int p = 0; p < places; ++p) {
        hopper::barrier_wait(&shared.empty[place], parity);
        hopper::barrier_expect(&shared.full[place], bytes);
        hopper::copy_box_3d(ring + place * kPlaceBytes, &link.w, unit * features, p * boxes,
                            &shared.full[place], policy);
        next_place(place, parity, ring_places);
      }
    }
  }
  grid_release();
}

template <int kN>
__device__ __forceinline__ void produce_x(const Arguments& a, Shared<kN>& shared,
                                          std::uint8_t* ring) {
  const std::uint64_t policy = hopper::policy_evict_last();
  const int ring_places = a.places;
  int place = 0;
  int parity = 1;
  grid_wait();
  clear_next(a.next);
  for (int i = 0; i < a.n; ++i) {
    const Link& link = a.links[i];
    const int boxes = link.boxes;
    const int places = link.places;
    const int units = link.units;
    const int bytes = kN * 128 * boxes;
    std::uint8_t* to = ring + link.features * 128 * boxes;  // behind W
    await_link(a, shared, i, [](const Link& before) { return before.parts; });
    for (int unit = static_cast<int>(blockIdx.x); unit < units;
         unit += static_cast<int>(gridDim.x)) {
      for (int p = 0; p < places; ++p) {
        hopper::barrier_wait(&shared.empty[place], parity);
        hopper::barrier_expect(&shared.full[place], bytes);
        hopper::copy_box_3d(to + place * kPlaceBytes, &link.x, 0, p * boxes, &shared.full[place],
                            policy);
        next_place(place, parity, ring_places);
      }
    }
  }
}

// ------------------------------------------------------------------ products

/// kBoxes times 64 k; w and x are operands, the next box of W lies `w_box` behind, in their units
/// of 16 bytes.
template <int kN, int kBoxes>
__device__ __forceinline__ void multiply(float (&sums)[kN / 2], std::uint64_t w, std::uint64_t x,
                                         int w_box) {
  constexpr int kSteps = kBlockK / 16;
  hopper::product_begin();
#pragma unroll
  for (int k = 0; k < kBoxes * kSteps; ++k) {
    hopper::Product<kN>::run(sums, w + w_box * (k / kSteps) + 2 * (k % kSteps),
                             x + kN * 8 * (k / kSteps) + 2 * (k % kSteps), 1);
  }
  hopper::product_commit();
}

/// All units of link i. `place` and `parity` go on from link to link.
template <int kN>
__device__ __forceinline__ void run_link(const Arguments& a, Shared<kN>& shared,
                                         const std::uint8_t* ring, int i, int& place, int& parity) {
  const Link& link = a.links[i];
  const int boxes = link.boxes;
  const int places = link.places;
  const int units = link.units;
  const int features = link.features;
  const int ring_places = a.places;
  const int group = __shfl_sync(0xFFFFFFFFU, static_cast<int>(threadIdx.x) / 128, 0);
  const int thread = static_cast<int>(threadIdx.x) % 128;
  const bool leader = threadIdx.x % 32 == 0;
  // Up to 64 features: the groups take places in turns, and add up. More: each has 64 of them.
  const bool by_k = features <= 64;
  const int mine = by_k ? 0 : 64 * group;
  const int w_box = features * 128 >> 4;
  const int x_offset = w_box * boxes - (mine * 128 >> 4);
  float squares = 0;  // of a row of all our units, in the threads that store them
  for (int unit = static_cast<int>(blockIdx.x); unit < units; unit += static_cast<int>(gridDim.x)) {
    const int first = unit * features + mine;
    const int end = min(link.out, (unit + 1) * features);
    Fragment<kN> f;
#pragma unroll
    for (float& sum : f.sums) sum = 0;
#pragma unroll 1
    for (int p = 0; p < places; ++p) {
      // The ring has an even number of places: each is always of the same group, in turns, so that
      // its barrier is never two laps ahead of a group, which its parity would not tell.
      if (!by_k || place % 2 == group) {
        const std::uint64_t w = hopper::operand(ring + place * kPlaceBytes + mine * 128);
        hopper::barrier_wait(&shared.full[place], parity);
        hopper::pin(f.sums);
        if (boxes == 1) {
          multiply<kN, 1>(f.sums, w, w + x_offset, w_box);
        } else if (boxes == 2) {
          multiply<kN, 2>(f.sums, w, w + x_offset, w_box);
        } else {
          multiply<kN, 4>(f.sums, w, w + x_offset, w_box);
        }
        hopper::pin(f.sums);
        // Not one place later: with few rows a product takes no time, and a place is W in flight.
        hopper::product_wait<0>();
        if (leader) hopper::barrier_arrive(&shared.empty[place], by_k ? 2 : 1);
      }
      next_place(place, parity, ring_places);
      // Of three places one was this group's: what the link waits for has been seen.
      if (p == 2) f.load(a, i, first, end);
    }
    hopper::pin(f.sums);
    if (by_k) {
      hopper::sync_threads(3, kMultiplying);  // the sums before are no longer read
      if (group == 1) {
#pragma unroll
        for (int j = 0; j < kN / 8; ++j) {
          const float* s = &f.sums[4 * j];
          shared.half[j][thread] = make_float4(s[0], s[1], s[2], s[3]);
        }
      }
      hopper::sync_threads(3, kMultiplying);
      if (group == 1) continue;
#pragma unroll
      for (int j = 0; j < kN / 8; ++j) {
        const float4 v = shared.half[j][thread];
        f.sums[4 * j] += v.x;
        f.sums[4 * j + 1] += v.y;
        f.sums[4 * j + 2] += v.z;
        f.sums[4 * j + 3] += v.w;
      }
    }
    if (places <= 2) f.load(a, i, first, end);
    store<kN>(a, shared, i, first, end, f, squares);
    stores_before_copies();
    hopper::sync_threads(1 + group, 128);
    if (thread == 0) part_done(&a.state->done[i]);
  }
}
#endif  // BATON_HOPPER

template <int kN>
__global__ void __launch_bounds__(kThreads, 1) chain_kernel(const __grid_constant__ Arguments a) {
#ifdef BATON_HOPPER
  extern __shared__ std::uint8_t dynamic[];
  __shared__ Shared<kN> shared;
  // The swizzle is a function of the address: places start at multiples of 1 KiB.
  const std::uint32_t base = hopper::shared_address(dynamic);
  std::uint8_t* ring = dynamic + ((base + 1023) / 1024 * 1024 - base);
  if (threadIdx.x == 0) {
    for (int i = 0; i < a.places; ++i) {
      hopper::barrier_init(&shared.full[i], 2);  // W and x
      hopper::barrier_init(&shared.empty[i], kMultiplying / 32);
    }
    init_links(a, shared);
    hopper::barrier_init_done();
  }
  __syncthreads();
  const int warp = static_cast<int>(threadIdx.x) / 32;
  if (warp < kMultiplying / 32) {
    int place = 0;
    int parity = 0;
#pragma unroll 1
    for (int i = 0; i < a.n; ++i) run_link<kN>(a, shared, ring, i, place, parity);
  } else if (threadIdx.x == kMultiplying) {
    produce_w<kN>(a, shared, ring);
  } else if (threadIdx.x == kMultiplying + 32) {
    produce_x<kN>(a, shared, ring);
  } else if (warp == kMultiplying / 32 + 2) {
    norm_links<kN>(a, shared, [](const Link& link) { return link.slots; });
  }
#endif
}

// ------------------------------------------------------------------ host

int columns_for(int rows) { return rows <= 8 ? 8 : rows <= 16 ? 16 : 32; }

/// Features of a unit: as few turns times features as can be, and of those the most, since x is
/// read for each.
int features_for(int out, LinearOutput output, int columns) {
  const int step = output == LinearOutput::silu_mul ? 16 : 8;
  int best = step;
  for (int f = step; f <= 128 && (f + columns) * 128 <= kPlaceBytes; f += step) {
    const auto cost = [&](int n) { return ceil_div(ceil_div(out, n), multiprocessors()) * n; };
    if (cost(f) <= cost(best)) best = f;
  }
  return best;
}

/// [rows, columns] in boxes of 64 columns by box_rows, `boxes` of them side by side in one copy. No
/// L2 promotion: reading 256 bytes at a time costs 6 % here.
CUtensorMap chunks_map(const void* data, int rows, int columns, int box_rows, int boxes) {
  const auto row_bytes = static_cast<cuuint64_t>(columns) * sizeof(Bf16);
  return encode_map<3>(
      data, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
      {kBlockK, static_cast<cuuint64_t>(rows), static_cast<cuuint64_t>(columns / kBlockK)},
      {row_bytes, kBlockK * sizeof(Bf16)},
      {kBlockK, static_cast<cuuint32_t>(box_rows), static_cast<cuuint32_t>(boxes)},
      CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_NONE);
}

Link make_link(const ChainLink& from, int rows, int columns) {
  auto link = begin_link<Link>(from);
  link.features = features_for(from.w.out, from.output, columns);
  link.units = ceil_div(from.w.out, link.features);
  const int chunks = from.w.in / kBlockK;
  link.boxes = 1;
  while (link.boxes < 4 && chunks % (2 * link.boxes) == 0 &&
         2 * link.boxes * (link.features + columns) * 128 <= kPlaceBytes) {
    link.boxes *= 2;
  }
  link.places = chunks / link.boxes;
  const int storing = link.features > 64 ? kGroups : 1;
  link.parts = link.units * storing;
  link.slots = std::min(link.units, multiprocessors()) * storing;
  link.w = chunks_map(from.w.data, from.w.out, from.w.in, link.features, link.boxes);
  link.x = chunks_map(from.x, rows, from.w.in, columns, link.boxes);
  return link;
}

template <int kN>
void launch_chain(Arguments& a, Stream stream) {
  constexpr int kMostBytes = (227 << 10) - static_cast<int>(sizeof(Shared<kN>) + 15) / 16 * 16;
  a.places = std::min(kMostPlaces, (kMostBytes - 1024) / kPlaceBytes / 2 * 2);
  // Attention's CTAs find a place beside ours then, so that W_o is under way before they end. With
  // fewer rows one a multiprocessor fits anyway; with more a place holds less of W.
  if (a.rows > 4 && kN < 32) a.places = std::min(a.places, 8);
  take_shared_memory<chain_kernel<kN>>(kMostBytes, "linear_chain");
  int units = 1;
  for (int i = 0; i < a.n; ++i) units = std::max(units, a.links[i].units);
  launch("linear_chain", chain_kernel<kN>, std::min(units, multiprocessors()), kThreads,
         static_cast<std::size_t>(a.places * kPlaceBytes + 1024), stream, a);
}

}  // namespace
}  // namespace links

using namespace links;

int chain_rows(const ChainLink* links, int n) {
  if (!is_hopper() || under_mps() || n < 1 || n > kMostChainLinks) return 0;
  if (links[0].normed) return 0;
  for (int i = 0; i < n; ++i) {
    const LinearWeight& w = links[i].w;
    const bool gated = links[i].output == LinearOutput::silu_mul;
    if (links[i].output == LinearOutput::f32) return 0;
    if (w.in % kBlockK != 0 || w.out % (gated ? 16 : 8) != 0) return 0;
    if (w.is_quantized() != links[0].w.is_quantized()) return 0;
  }
  return links[0].w.is_quantized() ? quantized_chain_rows(links, n) : kMostChainRows;
}

std::size_t chain_state_bytes() {
  const auto slots = static_cast<std::size_t>(ChainSquares::of(nullptr, multiprocessors()).slots);
  return (sizeof(ChainState) + slots * kMostChainLinks * kMostChainRows * sizeof(float) + 255) /
         256 * 256;
}

void linear_chain(const ChainLink* links, int n, int rows, void* state, void* next_state,
                  Stream stream) {
  if (rows == 0) return;
  if (rows > chain_rows(links, n)) throw CudaError("linear_chain: no such chain");
  if (links[0].w.is_quantized()) return quantized_chain(links, n, rows, state, next_state, stream);
  auto a = begin_arguments<Arguments>(n, rows, state, next_state);
  const int columns = columns_for(rows);
  for (int i = 0; i < n; ++i) a.links[i] = make_link(links[i], rows, columns);
  switch (columns) {
    case 8:
      return launch_chain<8>(a, stream);
    case 16:
      return launch_chain<16>(a, stream);
    default:
      return launch_chain<32>(a, stream);
  }
}

}  // namespace baton::cuda
