// How many keys a piece of a row's attention has. Host code without CUDA.
#pragma once

#include <algorithm>
#include <cstdint>

namespace baton::cuda {

/// Keys that a CTA takes at once: its four warps' tiles.
constexpr int kKeysAtOnce = 64;
/// Longer pieces even out too little at the end of the grid; shorter ones lose more by their starts
/// and ends (measured on one H200).
constexpr std::int64_t kLongestPiece = 1024;

constexpr std::int64_t ceil_div(std::int64_t x, std::int64_t by) { return (x + by - 1) / by; }
constexpr std::int64_t round_up(std::int64_t x, std::int64_t to) { return ceil_div(x, to) * to; }

/// How often so many keys fill a GPU's `places` for CTAs: mostly once.
constexpr std::int64_t rounds_of(std::int64_t keys, std::int64_t places) {
  return std::max<std::int64_t>(1, ceil_div(keys, places * kLongestPiece));
}
/// Keys of a piece so that they are filled a whole number of times, though no warp is without a tile.
constexpr std::int64_t even_piece(std::int64_t keys, std::int64_t places) {
  return round_up(ceil_div(keys, places * rounds_of(keys, places)), kKeysAtOnce);
}

}  // namespace baton::cuda
