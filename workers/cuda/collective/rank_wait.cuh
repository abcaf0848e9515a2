// What the kernels of ranks have in common: how they find their peers' memory, what they load and
// store there, and how a wait ends.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "workers/cuda/collective/rank_memory.h"

namespace baton::cuda {

// ------------------------------------------------------------------ peers

/// Peers of a rank are counted 0 .. ranks - 2, in rank order.
__device__ __forceinline__ int rank_of_peer(const RankLink& link, int peer) {
  return peer + (peer >= link.rank ? 1 : 0);
}
/// Which of `receiver`'s peers this rank is.
__device__ __forceinline__ int place_at(const RankLink& link, int receiver) {
  return link.rank - (link.rank > receiver ? 1 : 0);
}
__device__ __forceinline__ RankControl* control_of(const RankLink& link) {
  return reinterpret_cast<RankControl*>(link.buffer[link.rank]);
}
__device__ __forceinline__ int generation_of(const RankLink& link, std::uint32_t number) {
  return link.one_generation ? 0 : static_cast<int>(number % 2);
}

/// Where `owner` receives what its peer in this place sends in this call.
__device__ __forceinline__ RankUnit* region_of(const RankLink& link, int owner, int place,
                                               std::uint32_t call) {
  const int index = generation_of(link, call) * (link.ranks - 1) + place;
  return reinterpret_cast<RankUnit*>(link.buffer[owner] + link.layout.direct) +
         index * link.layout.region_units;
}
__device__ __forceinline__ RankUnit* token_of(const RankLink& link, int owner, int place,
                                              std::uint32_t call) {
  const int index = generation_of(link, call) * (link.ranks - 1) + place;
  return reinterpret_cast<RankUnit*>(link.buffer[owner] + link.layout.tokens) + index;
}
__device__ __forceinline__ std::uint32_t* flag_of(const RankLink& link, int owner, int place,
                                                  int channel) {
  return reinterpret_cast<std::uint32_t*>(link.buffer[owner] + link.layout.flags +
                                          static_cast<std::size_t>(place * kChannels + channel) *
                                              RankLayout::kFlagBytes);
}
__device__ __forceinline__ std::byte* slice_of(const RankLink& link, int owner, int channel,
                                               std::uint32_t post) {
  const int index = generation_of(link, post) * kChannels + channel;
  return link.buffer[owner] + link.layout.staged + index * link.layout.slice_bytes;
}

// ------------------------------------------------------------------ loads and stores

/// Each 64-bit half is one access: whoever sees the number sees the word beside it.
__device__ __forceinline__ void store_unit(RankUnit* to, uint2 data, std::uint32_t call) {
  const std::uint64_t number = std::uint64_t{call} << 32;
  asm volatile("st.relaxed.sys.global.v2.b64 [%0], {%1, %2};" ::"l"(to), "l"(number | data.x),
               "l"(number | data.y)
               : "memory");
}
__device__ __forceinline__ ulonglong2 load_unit(const RankUnit* from) {
  ulonglong2 unit;
  asm volatile("ld.relaxed.sys.global.v2.b64 {%0, %1}, [%2];"
               : "=l"(unit.x), "=l"(unit.y)
               : "l"(from)
               : "memory");
  return unit;
}
__device__ __forceinline__ bool is_of(const ulonglong2& unit, std::uint32_t call) {
  return static_cast<std::uint32_t>(unit.x >> 32) == call &&
         static_cast<std::uint32_t>(unit.y >> 32) == call;
}
__device__ __forceinline__ uint2 data_of(const ulonglong2& unit) {
  return {static_cast<std::uint32_t>(unit.x), static_cast<std::uint32_t>(unit.y)};
}

__device__ __forceinline__ std::uint32_t load_relaxed(const std::uint32_t* from) {
  std::uint32_t word;
  asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(word) : "l"(from) : "memory");
  return word;
}
__device__ __forceinline__ void store_relaxed(std::uint32_t* to, std::uint32_t word) {
  asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(to), "r"(word) : "memory");
}
__device__ __forceinline__ std::uint32_t load_acquire(const std::uint32_t* from) {
  std::uint32_t word;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(word) : "l"(from) : "memory");
  return word;
}
__device__ __forceinline__ void store_release(std::uint32_t* to, std::uint32_t word) {
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(to), "r"(word) : "memory");
}
/// Of a peer's memory, past L1, which would keep what was there before.
__device__ __forceinline__ uint4 load_peer(const uint4* from) {
  uint4 v;
  asm volatile("ld.relaxed.sys.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(from)
               : "memory");
  return v;
}
__device__ __forceinline__ std::uint32_t load_peer(const std::uint32_t* from) {
  return load_relaxed(from);
}

// ------------------------------------------------------------------ waits

/// Whether the host has ended all waits. Its word is across PCIe, so it is looked at seldom
/// (`far`), and who has seen it leaves word for all threads of this and later kernels.
static __device__ __noinline__ bool ended_by_host(const RankLink& link, bool far) {
  RankControl* const control = control_of(link);
  if (load_relaxed(&control->aborted) != 0) return true;
  if (!far || link.abort_word == nullptr || load_relaxed(link.abort_word) == 0) return false;
  store_relaxed(&control->aborted, 1);
  return true;
}

/// How a thread waits: it looks at memory of its own GPU again and again.
class RankWait {
 public:
  /// `over`: nobody waits any longer.
  __device__ __forceinline__ RankWait(const RankLink& link, bool over) : link_(link), over_(over) {}

  /// After a look in vain. False: nobody waits any longer.
  __device__ __forceinline__ bool again() {
    if (++looks_ % kNear == 0) over_ = over_ || ended_by_host(link_, looks_ % kFar == 0);
    return !over_;
  }

 private:
  static constexpr std::uint32_t kNear = 64;   // looks, each about 0.6 us
  static constexpr std::uint32_t kFar = 4096;  // a multiple of it

  const RankLink& link_;
  std::uint32_t looks_ = 0;
  bool over_;
};

/// Tests: up to link.pause clocks, of which each CTA of each call has others.
__device__ __forceinline__ void pause_for_tests(const RankLink& link, std::uint32_t number) {
  if (link.pause == 0) return;
  std::uint32_t hash =
      (number * 8 + static_cast<std::uint32_t>(link.rank)) * 2654435761U + blockIdx.x * 2246822519U;
  hash ^= hash >> 15;
  hash *= 2654435761U;
  hash ^= hash >> 13;
  const long long until = clock64() + hash % link.pause;
  while (clock64() < until) {
  }
}

}  // namespace baton::cuda
