// Packed linear layers on V16; see LinearTask. Included once by each kernels_*.cpp.
#pragma once

#include "workers/cpu/kernels.h"
#include "workers/cpu/rowwise_impl.h"

namespace {

using baton::cpu::Epilogue;
using baton::cpu::kPanelColumns;
using baton::cpu::LinearTask;
using baton::cpu::WeightType;

constexpr int kMaxUnitPanels = 4;
constexpr int kTileFloats = kMaxRows * kMaxUnitPanels * kPanelColumns;

/// R rows times C half panels (16 columns each), all sums in registers. Every sum is its own chain
/// over k, so neither R nor C can change a bit. On the way it asks for the weights `ahead` elements
/// behind those it uses, line by line: asked for in a burst they would stop it.
template <int R, int C, class W>
void dot_block(const float* x, std::int64_t x_stride, std::int64_t k, const W* w,
               std::int64_t ahead, float* tile, int tile_stride) {
  V16 sum[R][C];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 16
    for (int c = 0; c < C; ++c) sum[r][c] = zero();
  }
  for (std::int64_t i = 0; i < k; ++i) {
    V16 column[C];
#pragma GCC unroll 16
    for (int c = 0; c < C; ++c) {
      const W* at = w + ((c / 2) * k + i) * kPanelColumns + (c % 2) * 16;
      column[c] = load(at);
      const bool new_line = c % 2 == 0 || sizeof(W) == 4;  // a line is 32 bf16 or 16 f32
      if (new_line) __builtin_prefetch(at + ahead, 0, 2);
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      const V16 value = set1(x[r * x_stride + i]);
#pragma GCC unroll 16
      for (int c = 0; c < C; ++c) sum[r][c] = fma(value, column[c], sum[r][c]);
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 16
    for (int c = 0; c < C; ++c) store(tile + r * tile_stride + c * 16, sum[r][c]);
  }
}

/// R rows times `panels` panels into tile[R][panels * 32], with as many columns at a time as the
/// registers hold.
template <int R, class W>
void dot_panels(const LinearTask& t, const float* x, const W* w, int panels, std::int64_t ahead,
                float* tile) {
  constexpr int kHalves = halves_for(R);
  const int stride = panels * kPanelColumns;
  int half = 0;
  const auto run = [&]<int C>() {
    for (; half + C <= 2 * panels; half += C) {
      const W* first = w + static_cast<std::int64_t>(half / 2) * t.k * kPanelColumns;
      dot_block<R, C>(x, t.x_stride, t.k, first + (half % 2) * 16, ahead, tile + half * 16, stride);
    }
  };
  run.template operator()<kHalves>();
  if constexpr (kHalves > 4) run.template operator()<4>();
  if constexpr (kHalves > 2) run.template operator()<2>();
}

/// Calls dot_panels<rows>.
template <int R = kMaxRows, class W>
void dot_rows(int rows, const LinearTask& t, const float* x, const W* w, int panels,
              std::int64_t ahead, float* tile) {
  if constexpr (R > 1) {
    if (rows < R) return dot_rows<R - 1>(rows, t, x, w, panels, ahead, tile);
  }
  dot_panels<R>(t, x, w, panels, ahead, tile);
}

/// One panel's 32 results of one row. `values` is padded, y is not.
inline void finish_row(const LinearTask& t, const float* values, float* y, int columns) {
  for (int c = 0; c < columns; c += 16) {
    const int n = columns - c;
    V16 v = load(values + c);
    if (t.epilogue == Epilogue::silu_mul) {
      v = mul(silu16(v), load(values + kPanelColumns + c));
    } else if (t.epilogue == Epilogue::add) {
      v = add(n >= 16 ? load(y + c) : load_n(y + c, n), v);
    }
    if (n >= 16) {
      store(y + c, v);
    } else {
      store_n(y + c, v, n);
    }
  }
}

void finish_tile(const LinearTask& t, const float* tile, int row, int rows, int panel, int panels) {
  const int step = t.epilogue == Epilogue::silu_mul ? 2 : 1;
  for (int r = 0; r < rows; ++r) {
    for (int p = 0; p < panels; p += step) {
      const int column = (panel + p) / step * kPanelColumns;
      const int left = t.columns - column;
      finish_row(t, tile + (r * panels + p) * kPanelColumns, t.y + (row + r) * t.y_stride + column,
                 left < kPanelColumns ? left : kPanelColumns);
    }
  }
}

/// Rows are cut into blocks of nearly the same size, and a group of panels stays in the first-level
/// cache while every block passes over it.
template <class W>
void linear_of(const LinearTask& t) {
  alignas(64) float tile[kTileFloats];
  const int blocks = (t.rows + kMaxRows - 1) / kMaxRows;
  const int pair = t.epilogue == Epilogue::silu_mul ? 2 : 1;
  const int unit = t.rows <= 3 ? kMaxUnitPanels : pair;
  const int end = t.first_panel + t.panel_count;
  for (int panel = t.first_panel; panel < end; panel += unit) {
    const int panels = end - panel < unit ? end - panel : unit;
    const W* w =
        static_cast<const W*>(t.panels) + static_cast<std::int64_t>(panel) * t.k * kPanelColumns;
    for (int block = 0; block < blocks; ++block) {
      const int row = t.rows * block / blocks;
      const int rows = t.rows * (block + 1) / blocks - row;
      // The first block loads these panels and asks for the next ones.
      const std::int64_t ahead = block == 0 ? std::int64_t{panels} * t.k * kPanelColumns : 0;
      dot_rows(rows, t, t.x + row * t.x_stride, w, panels, ahead, tile);
      finish_tile(t, tile, row, rows, panel, panels);
    }
  }
}

}  // namespace
