// Linear layers whose weights stay whole numbers with a scale for every group of inputs; see
// GroupFormat. Every weight becomes the very fp32 number that widening at load would have given,
// and goes through the same chain of fused multiply-adds: the bits are those of widened weights.
// Included once by each kernels_*.cpp.
#pragma once

#include "workers/cpu/grouped_tiles_impl.h"

namespace {

/// What is widened at a time when there are many rows: 16 KiB, half of a first-level cache.
constexpr int kWideInputs = 128;

template <Second S>
V16 weight_of(V16 q, V16 scale, V16 second) {
  if constexpr (S == Second::none || S == Second::e2m1) return mul(q, scale);
  if constexpr (S == Second::zero) return mul(sub(q, second), scale);
  return add(mul(q, scale), second);  // rounded twice, as the formats' own readers do
}

/// Calls use(j, c, weights) for the eight inputs at `at` and half panels [half, half + C).
template <int Bits, int C, Second S, class Use>
[[gnu::always_inline]] inline void eight_inputs(const std::byte* at, int half,
                                                const GroupScales<C>& g, Use&& use) {
  if constexpr (Bits == 4) {
    W16 words[C];
#pragma GCC unroll 2
    for (int c = 0; c < C; ++c) words[c] = load_words(at + (half + c) * 64);
    const auto input = [&]<int J>() __attribute__((always_inline)) {
#pragma GCC unroll 2
      for (int c = 0; c < C; ++c) {
        const V16 q = S == Second::e2m1 ? e2m1<J>(words[c]) : nibble<J>(words[c]);
        use(J, c, weight_of<S>(q, g.scale[c], g.second[c]));
      }
    };
    input.template operator()<0>();
    input.template operator()<1>();
    input.template operator()<2>();
    input.template operator()<3>();
    input.template operator()<4>();
    input.template operator()<5>();
    input.template operator()<6>();
    input.template operator()<7>();
  } else {
#pragma GCC unroll 8
    for (int j = 0; j < kGroupStep; ++j) {
#pragma GCC unroll 2
      for (int c = 0; c < C; ++c) {
        const V16 q = load_i8(at + j * kPanelColumns + (half + c) * 16);
        use(j, c, weight_of<S>(q, g.scale[c], g.second[c]));
      }
    }
  }
}

/// R rows times half panels [half, half + C) of one panel, straight from the whole numbers.
template <int R, int C, int Bits, Second S>
void grouped_block(const LinearTask& t, const float* x, const std::byte* panel, int half,
                   std::int64_t ahead, float* tile, int tile_stride) {
  V16 sum[R][C];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 2
    for (int c = 0; c < C; ++c) sum[r][c] = zero();
  }
  const std::byte* at = panel;
  for (std::int64_t first = 0; first < t.k; first += t.format.group) {
    const GroupScales<C> g = read_scales<C, S>(at, t.format.half_scales, half);
    for (int i = 0; i < t.format.group; i += kGroupStep) {
      const float* values = x + first + i;
#pragma GCC unroll 4
      for (int line = 0; line < kStepBytes<Bits>; line += 64)
        __builtin_prefetch(at + ahead + line, 0, 2);
      eight_inputs<Bits, C, S>(
          at, half, g, [&](int j, int c, V16 w) __attribute__((always_inline)) {
#pragma GCC unroll 16
            for (int r = 0; r < R; ++r) {
              sum[r][c] = fma(set1(values[r * t.x_stride + j]), w, sum[r][c]);
            }
          });
      at += kStepBytes<Bits>;
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 2
    for (int c = 0; c < C; ++c) store(tile + r * tile_stride + (half + c) * 16, sum[r][c]);
  }
}

template <int Bits, Second S, int R = kMaxRows>
void grouped_rows(int rows, const LinearTask& t, const float* x, const std::byte* panel,
                  std::int64_t ahead, float* tile, int tile_stride) {
  if constexpr (R > 1) {
    if (rows < R) return grouped_rows<Bits, S, R - 1>(rows, t, x, panel, ahead, tile, tile_stride);
  }
  constexpr int kHalves = halves_for(R) >= 2 ? 2 : 1;
  for (int half = 0; half < 2; half += kHalves) {
    grouped_block<R, kHalves, Bits, S>(t, x, panel, half, half == 0 ? ahead : 0, tile, tile_stride);
  }
}

/// Widens one panel from left to right.
template <int Bits, Second S>
class Widener {
 public:
  Widener(const LinearTask& t, const std::byte* panel) : format_(t.format), at_(panel) {}

  /// The next `n` inputs, a multiple of eight: [n][32].
  void next(int n, float* wide) {
    for (int i = 0; i < n; i += kGroupStep) {
      if (left_ == 0) {
        scales_ = read_scales<2, S>(at_, format_.half_scales, 0);
        left_ = format_.group;
      }
      eight_inputs<Bits, 2, S>(
          at_, 0, scales_, [&](int j, int c, V16 w) __attribute__((always_inline)) {
            store(wide + (i + j) * kPanelColumns + c * 16, w);
          });
      at_ += kStepBytes<Bits>;
      left_ -= kGroupStep;
    }
  }

 private:
  GroupFormat format_;
  const std::byte* at_;
  int left_ = 0;
  GroupScales<2> scales_{};
};

/// Goes on with R rows' sums of one panel over `n` inputs more.
template <int R, int C>
void go_on(const float* x, std::int64_t x_stride, int n, const float* wide, int half, bool begin,
           float* tile, int tile_stride) {
  V16 sum[R][C];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 2
    for (int c = 0; c < C; ++c) {
      sum[r][c] = begin ? zero() : load(tile + r * tile_stride + (half + c) * 16);
    }
  }
  for (int i = 0; i < n; ++i) {
    V16 column[C];
#pragma GCC unroll 2
    for (int c = 0; c < C; ++c) column[c] = load(wide + i * kPanelColumns + (half + c) * 16);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      const V16 value = set1(x[r * x_stride + i]);
#pragma GCC unroll 2
      for (int c = 0; c < C; ++c) sum[r][c] = fma(value, column[c], sum[r][c]);
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 2
    for (int c = 0; c < C; ++c) store(tile + r * tile_stride + (half + c) * 16, sum[r][c]);
  }
}

template <int R = kMaxRows>
void go_on_rows(int rows, const float* x, std::int64_t x_stride, int n, const float* wide,
                bool begin, float* tile, int tile_stride) {
  if constexpr (R > 1) {
    if (rows < R) return go_on_rows<R - 1>(rows, x, x_stride, n, wide, begin, tile, tile_stride);
  }
  constexpr int kHalves = halves_for(R) >= 2 ? 2 : 1;
  for (int half = 0; half < 2; half += kHalves) {
    go_on<R, kHalves>(x, x_stride, n, wide, half, begin, tile, tile_stride);
  }
}

/// Many rows: each piece of a panel is widened once for all of them.
template <int Bits, Second S>
void widened_panel(const LinearTask& t, const float* x, int rows, const std::byte* panel,
                   float* tile, int tile_stride) {
  alignas(64) float wide[kWideInputs * kPanelColumns];
  Widener<Bits, S> widener(t, panel);
  const int blocks = (rows + kMaxRows - 1) / kMaxRows;
  for (int first = 0; first < t.k; first += kWideInputs) {
    const int n = t.k - first < kWideInputs ? t.k - first : kWideInputs;
    widener.next(n, wide);
    for (int block = 0; block < blocks; ++block) {
      const int row = rows * block / blocks;
      go_on_rows(rows * (block + 1) / blocks - row, x + row * t.x_stride + first, t.x_stride, n,
                 wide, first == 0, tile + row * tile_stride, tile_stride);
    }
  }
}

template <int Bits, Second S>
void grouped_of(const LinearTask& t) {
  each_tile(t, [&](int row, int rows, const std::byte* panel, std::int64_t bytes, float* tile,
                   int tile_stride) {
    const float* x = t.x + row * t.x_stride;
    if (rows > kMaxRows) {
      widened_panel<Bits, S>(t, x, rows, panel, tile, tile_stride);
    } else {
      grouped_rows<Bits, S>(rows, t, x, panel, bytes, tile, tile_stride);
    }
  });
}

void linear_grouped(const LinearTask& t) {
  const bool four = t.type == WeightType::int4;
  switch (t.format.second) {
    case Second::none:
      return four ? grouped_of<4, Second::none>(t) : grouped_of<8, Second::none>(t);
    case Second::zero:
      return four ? grouped_of<4, Second::zero>(t) : grouped_of<8, Second::zero>(t);
    case Second::offset:
      return four ? grouped_of<4, Second::offset>(t) : grouped_of<8, Second::offset>(t);
    case Second::e2m1:
      return grouped_of<4, Second::e2m1>(t);
  }
}

void linear(const LinearTask& task) {
  if (task.rows == 0) return;
  if (task.type == WeightType::bf16) {
    linear_of<std::uint16_t>(task);
  } else if (task.type == WeightType::f32) {
    linear_of<float>(task);
  } else {
    linear_grouped(task);
  }
}

}  // namespace
