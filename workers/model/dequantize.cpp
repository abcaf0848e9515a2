#include "workers/model/dequantize.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>

namespace baton {
namespace {

constexpr std::int64_t kNibbles = 8;  // in a word
/// The nibble of each of eight consecutive outputs.
constexpr std::array<int, 8> kInOrder = {0, 1, 2, 3, 4, 5, 6, 7};
constexpr std::array<int, 8> kAwqOrder = {0, 4, 1, 5, 2, 6, 3, 7};

std::uint32_t word_at(const std::byte* words, std::int64_t index) {
  std::uint32_t word;
  std::memcpy(&word, words + index * 4, sizeof(word));
  return word;
}

int nibble(std::uint32_t word, int index) { return static_cast<int>(word >> (4 * index)) & 15; }

std::vector<float> as_floats(const cpu::MatrixSource& source) {
  std::vector<float> values(static_cast<std::size_t>(source.rows * source.columns));
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = cpu::element(source.data, source.type, static_cast<std::int64_t>(i));
  }
  return values;
}

/// Zero points as numbers, [groups, out].
std::vector<float> zero_points(const Int4Weight& w, const std::array<int, 8>& order, int offset) {
  std::vector<float> zeros(static_cast<std::size_t>(w.scales.rows * w.out));
  for (std::size_t i = 0; i < zeros.size(); ++i) {
    const std::uint32_t word = word_at(w.zeros, static_cast<std::int64_t>(i) / kNibbles);
    zeros[i] = static_cast<float>((nibble(word, order[i % kNibbles]) + offset) & 15);
  }
  return zeros;
}

float fp8_value(unsigned bits) {
  const float sign = (bits & 0x80U) != 0 ? -1.0F : 1.0F;
  const int exponent = static_cast<int>((bits >> 3U) & 15U);
  const auto fraction = static_cast<float>(bits & 7U);
  if ((bits & 0x7FU) == 0x7FU) return std::numeric_limits<float>::quiet_NaN();
  if (exponent == 0) return sign * std::ldexp(fraction, -9);  // subnormal: 2^-6 / 8
  return sign * std::ldexp(8.0F + fraction, exponent - 10);
}

/// Rows [first, end) of a matrix are one thread's business: about 64 thousand weights.
struct RowChunks {
  RowChunks(std::int64_t out, RowRange range, std::int64_t columns, std::int64_t step)
      : first_(range.rows < 0 ? 0 : range.first),
        rows_(range.rows < 0 ? out : range.rows),
        each_(std::max<std::int64_t>(65'536 / std::max<std::int64_t>(columns, 1), 1)) {
    each_ = (each_ + step - 1) / step * step;
  }
  int count() const { return static_cast<int>((rows_ + each_ - 1) / each_); }
  std::int64_t first(int chunk) const { return first_ + chunk * each_; }
  std::int64_t end(int chunk) const { return first_ + std::min(rows_, (chunk + 1) * each_); }
  /// Where that row of the matrix goes in the result.
  std::int64_t place(std::int64_t row) const { return row - first_; }

 private:
  std::int64_t first_;
  std::int64_t rows_;
  std::int64_t each_;
};

}  // namespace

// Both walk along the inputs with eight outputs at a time: eight rows of the result are written
// from left to right, and the lines of words that they share stay in the second-level cache.

void dequantize_gptq(const Int4Weight& w, int zero_offset, cpu::ThreadPool& pool, float* result,
                     RowRange range) {
  const RowChunks chunks(w.out, range, w.in, kNibbles);
  const std::vector<float> zeros = zero_points(w, kInOrder, zero_offset);
  const std::vector<float> scales = as_floats(w.scales);
  const auto eight_rows = [&](std::int64_t first) {
    for (std::int64_t k = 0; k < w.in / kNibbles; ++k) {
      const std::int32_t* groups = w.group.data() + k * kNibbles;
      for (std::int64_t o = first; o < first + kNibbles; ++o) {
        const std::uint32_t word = word_at(w.weights, k * w.out + o);
        float* to = result + chunks.place(o) * w.in + k * kNibbles;
        for (int j = 0; j < kNibbles; ++j) {
          const auto at = static_cast<std::size_t>(groups[j] * w.out + o);
          to[j] = (static_cast<float>(nibble(word, j)) - zeros[at]) * scales[at];
        }
      }
    }
  };
  pool.run(chunks.count(), [&](int chunk, int) {
    for (std::int64_t o = chunks.first(chunk); o < chunks.end(chunk); o += kNibbles) eight_rows(o);
  });
}

void dequantize_awq(const Int4Weight& w, cpu::ThreadPool& pool, float* result, RowRange range) {
  const RowChunks chunks(w.out, range, w.in, kNibbles);
  const std::vector<float> zeros = zero_points(w, kAwqOrder, 0);
  const std::vector<float> scales = as_floats(w.scales);
  const std::int64_t words = w.out / kNibbles;
  const auto eight_rows = [&](std::int64_t k) {
    for (std::int64_t i = 0; i < w.in; ++i) {
      const std::uint32_t word = word_at(w.weights, i * words + k);
      const std::int64_t group = w.group[static_cast<std::size_t>(i)];
      for (int j = 0; j < kNibbles; ++j) {
        const std::int64_t o = k * kNibbles + j;
        const auto at = static_cast<std::size_t>(group * w.out + o);
        const int value = nibble(word, kAwqOrder[static_cast<std::size_t>(j)]);
        result[chunks.place(o) * w.in + i] = (static_cast<float>(value) - zeros[at]) * scales[at];
      }
    }
  };
  pool.run(chunks.count(), [&](int chunk, int) {
    for (std::int64_t o = chunks.first(chunk); o < chunks.end(chunk); o += kNibbles) {
      eight_rows(o / kNibbles);
    }
  });
}

void dequantize_fp8(const Fp8Weight& w, cpu::ThreadPool& pool, float* result, RowRange range) {
  const RowChunks chunks(w.out, range, w.in, 1);
  std::array<float, 256> values{};
  for (unsigned i = 0; i < values.size(); ++i) values[i] = fp8_value(i);
  const std::vector<float> scales = as_floats(w.scales);
  const auto row = [&](std::int64_t o) {
    const float* scale = scales.data() + o / w.block_rows * w.scales.columns;
    for (std::int64_t first = 0; first < w.in; first += w.block_columns, ++scale) {
      const std::int64_t end = std::min(w.in, first + w.block_columns);
      for (std::int64_t i = first; i < end; ++i) {
        const auto bits = std::to_integer<std::size_t>(w.weights[o * w.in + i]);
        result[chunks.place(o) * w.in + i] = values[bits] * *scale;
      }
    }
  };
  pool.run(chunks.count(), [&](int chunk, int) {
    for (std::int64_t o = chunks.first(chunk); o < chunks.end(chunk); ++o) row(o);
  });
}

float fp8_number(unsigned bits) { return fp8_value(bits); }

std::int64_t paired_row(std::int64_t r, int pair_rows) {
  if (pair_rows == 0) return r;
  const std::int64_t half = pair_rows / 2;
  const std::int64_t in_head = r % pair_rows;
  return r - in_head + 2 * (in_head % half) + in_head / half;
}

const std::byte* BlockWeight::row(std::int64_t r) const {
  const GgmlLayout layout = *ggml_layout(static_cast<std::uint32_t>(type));
  const std::int64_t blocks = in / static_cast<std::int64_t>(layout.numbers);
  return data + paired_row(r, pair_rows) * blocks * static_cast<std::int64_t>(layout.bytes);
}

void dequantize_blocks(const BlockWeight& w, cpu::ThreadPool& pool, float* result, RowRange range) {
  const std::int64_t group = ggml_group(w.type);
  const auto groups = static_cast<std::size_t>(w.in / group);
  const RowChunks chunks(w.out, range, w.in, 1);
  pool.run(chunks.count(), [&](int chunk, int) {
    std::vector<std::int8_t> q(static_cast<std::size_t>(w.in));
    std::vector<float> scale(groups);
    std::vector<float> offset(ggml_has_offset(w.type) ? groups : 0);
    for (std::int64_t r = chunks.first(chunk); r < chunks.end(chunk); ++r) {
      decode_ggml(w.type, w.row(r), w.in,
                  {q.data(), scale.data(), offset.empty() ? nullptr : offset.data()});
      float* to = result + chunks.place(r) * w.in;
      for (std::size_t i = 0; i < q.size(); ++i) {
        const std::size_t g = i / static_cast<std::size_t>(group);
        // Two roundings: a fused multiply-add would give other bits.
        const float product = static_cast<float>(q[i]) * scale[g];
        to[i] = offset.empty() ? product : product + offset[g];
      }
    }
  });
}

}  // namespace baton
