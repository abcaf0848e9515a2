// What the kernels of grouped_impl.h and integer_impl.h share: the head of a group of weights, and
// the way over a task's panels and rows. Included by both of them.
#pragma once

#include "workers/cpu/linear_impl.h"

namespace {

using baton::cpu::GroupFormat;
using baton::cpu::kGroupStep;
using baton::cpu::Second;

/// Rows of a task that share a tile.
constexpr int kTileRows = 48;

template <int C>
struct GroupScales {
  V16 scale[C];
  V16 second[C];
};

/// Reads a group's head, of half panels [half, half + C), and steps over it.
template <int C, Second S>
[[gnu::always_inline]] inline GroupScales<C> read_scales(const std::byte*& at, bool half_scales,
                                                         int half) {
  GroupScales<C> g{};
#pragma GCC unroll 2
  for (int c = 0; c < C; ++c) {
    const int column = (half + c) * 16;
    g.scale[c] = half_scales ? load_f16(reinterpret_cast<const std::uint16_t*>(at) + column)
                             : load(reinterpret_cast<const float*>(at) + column);
  }
  at += kPanelColumns * (half_scales ? 2 : 4);
#pragma GCC unroll 2
  for (int c = 0; c < C; ++c) {
    const int column = (half + c) * 16;
    if constexpr (S == Second::zero) g.second[c] = load_i8(at + column);
    if constexpr (S == Second::offset)
      g.second[c] = load(reinterpret_cast<const float*>(at) + column);
  }
  if constexpr (S == Second::zero) at += kPanelColumns;
  if constexpr (S == Second::offset) at += kPanelColumns * 4;
  return g;
}

/// Eight inputs of a panel.
template <int Bits>
constexpr int kStepBytes = kGroupStep* kPanelColumns* Bits / 8;

/// Calls product(row, rows, panel, bytes, tile, tile_stride) for each panel, of so many bytes, and
/// up to kTileRows rows at a time, then ends what stands in the tile.
template <class Product>
[[gnu::always_inline]] inline void each_tile(const LinearTask& t, Product&& product) {
  alignas(64) float tile[kTileRows * 2 * kPanelColumns];
  const int unit = t.epilogue == Epilogue::silu_mul ? 2 : 1;
  const std::int64_t bytes = baton::cpu::panel_bytes(t.k, t.type, t.format);
  const int end = t.first_panel + t.panel_count;
  for (int panel = t.first_panel; panel < end; panel += unit) {
    const int panels = end - panel < unit ? end - panel : unit;
    const int stride = panels * kPanelColumns;
    for (int row = 0; row < t.rows; row += kTileRows) {
      const int rows = t.rows - row < kTileRows ? t.rows - row : kTileRows;
      for (int p = 0; p < panels; ++p) {
        product(row, rows, static_cast<const std::byte*>(t.panels) + (panel + p) * bytes, bytes,
                tile + p * kPanelColumns, stride);
      }
      finish_tile(t, tile, row, rows, panel, panels);
    }
  }
}

}  // namespace
