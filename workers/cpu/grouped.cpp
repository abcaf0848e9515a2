#include "workers/cpu/grouped.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <numeric>

#include "workers/cpu/packing.h"

namespace baton::cpu {
namespace {

/// The binary16 of a number that is one.
std::uint16_t exact_half(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint16_t>(bits >> 16U & 0x8000U);
  const int exponent = static_cast<int>(bits >> 23U & 0xFFU) - 127;
  if (exponent < -14) {  // subnormal there: a multiple of 2^-24
    const float size = std::bit_cast<float>(bits & 0x7FFFFFFFU) * 0x1p24F;
    return static_cast<std::uint16_t>(sign | static_cast<std::uint16_t>(size));
  }
  return static_cast<std::uint16_t>(sign | static_cast<unsigned>(exponent + 15) << 10U |
                                    (bits >> 13U & 0x3FFU));
}

float value_of(Second kind, float q, float scale, float second) {
  static constexpr std::array<float, 8> kSizes = {0.0F, 0.5F, 1.0F, 1.5F, 2.0F, 3.0F, 4.0F, 6.0F};
  if (kind == Second::e2m1) {
    const auto code = static_cast<unsigned>(q);
    return ((code & 8U) != 0 ? -kSizes[code & 7U] : kSizes[code & 7U]) * scale;
  }
  if (kind == Second::zero) return (q - second) * scale;
  const float product = q * scale;  // rounded before an offset is added
  return kind == Second::offset ? product + second : product;
}

/// One column of a panel: a row of a matrix, or none.
struct Column {
  const GroupedMatrix* matrix = nullptr;
  std::int64_t row = 0;

  /// Its whole numbers at inputs first .. first + 7; zeros where there are none.
  const std::int8_t* numbers(std::int64_t first) const {
    static constexpr std::int8_t kNone[kGroupStep] = {};
    return matrix == nullptr ? kNone : matrix->q.data() + row * matrix->in + first;
  }
  /// Of `list`, which has one number for every group of every row, that at input `first`.
  float of_group(const std::vector<float> GroupedMatrix::*list, std::int64_t first) const {
    if (matrix == nullptr || (matrix->*list).empty()) return 0.0F;
    const std::int64_t group = matrix->type.format.group;
    return (matrix->*list)[static_cast<std::size_t>(row * (matrix->in / group) + first / group)];
  }
};
using Columns = std::array<Column, kPanelColumns>;

template <class T>
void put(std::byte*& to, T value) {
  std::memcpy(to, &value, sizeof value);
  to += sizeof value;
}

void pack_head(const Columns& columns, std::int64_t first, const GroupFormat& format,
               std::byte*& to) {
  for (const Column& column : columns) {
    const float scale = column.of_group(&GroupedMatrix::scale, first);
    if (format.half_scales) {
      put(to, exact_half(scale));
    } else {
      put(to, scale);
    }
  }
  if (format.second != Second::zero && format.second != Second::offset) return;
  for (const Column& column : columns) {
    const float second = column.of_group(&GroupedMatrix::second, first);
    if (format.second == Second::zero) {
      put(to, static_cast<std::int8_t>(second));
    } else {
      put(to, second);
    }
  }
}

/// Where the number of input j of eight lies in int8 panels of a format that rounds_inputs.
int place_in_words(int j, int column) { return j % 2 * kPanelColumns * 4 + column * 4 + j / 2; }

/// Eight inputs of 32 columns: bytes input by input, or words of eight nibbles column by column;
/// bytes in words where inputs are rounded.
void pack_step(const Columns& columns, std::int64_t first, const GroupedType& type, std::byte* to) {
  for (int c = 0; c < kPanelColumns; ++c) {
    const std::int8_t* q = columns[static_cast<std::size_t>(c)].numbers(first);
    if (type.type == WeightType::int8 && type.format.rounds_inputs) {
      for (int j = 0; j < kGroupStep; ++j)
        to[place_in_words(j, c)] = static_cast<std::byte>(q[j] + 128);
      continue;
    }
    if (type.type == WeightType::int8) {
      for (int j = 0; j < kGroupStep; ++j) std::memcpy(to + j * kPanelColumns + c, q + j, 1);
      continue;
    }
    std::uint32_t word = 0;
    for (int j = 0; j < kGroupStep; ++j) word |= static_cast<std::uint32_t>(q[j] & 15) << (4 * j);
    std::memcpy(to + c * 4, &word, sizeof word);
  }
}

Columns columns_of(std::span<const GroupedMatrix> parts, bool paired, int panel) {
  Columns columns;
  if (paired) {
    const GroupedMatrix& part = parts[static_cast<std::size_t>(panel % 2)];
    const std::int64_t first = std::int64_t{panel / 2} * kPanelColumns;
    for (std::int64_t row = first; row < std::min(first + kPanelColumns, part.out); ++row) {
      columns[static_cast<std::size_t>(row - first)] = {&part, row};
    }
    return columns;
  }
  std::int64_t row = std::int64_t{panel} * kPanelColumns;
  std::size_t filled = 0;
  for (const GroupedMatrix& part : parts) {
    for (; row < part.out && filled < kPanelColumns; ++row, ++filled)
      columns[filled] = {&part, row};
    row -= std::min(row, part.out);
  }
  return columns;
}

}  // namespace

bool join_types(GroupedType& type, const GroupedType& other) {
  if (type == other) return true;
  GroupFormat& f = type.format;
  const GroupFormat& o = other.format;
  if (f.second != o.second) {
    if (f.second == Second::e2m1 || o.second == Second::e2m1) return false;
    // A zero or an offset of 0 changes nothing; one of each kind has no common form.
    if (f.second != Second::none && o.second != Second::none) return false;
    f.second = f.second == Second::none ? o.second : f.second;
  }
  type.type = type.type == other.type ? type.type : WeightType::int8;
  f.group = std::gcd(f.group, o.group);
  f.half_scales = f.half_scales && o.half_scales;
  return f.group % kGroupStep == 0;
}

void pack_grouped(std::span<const GroupedMatrix> parts, bool paired, const GroupedType& type,
                  ThreadPool& pool, void* panels) {
  const std::int64_t in = parts.front().in;
  std::int64_t rows = 0;
  for (const GroupedMatrix& part : parts) rows += part.out;
  const std::int64_t count = paired ? 2 * panels_for(parts.front().out) : panels_for(rows);
  const std::int64_t bytes = panel_bytes(in, type.type, type.format);
  pool.run(static_cast<int>(count), [&](int panel, int) {
    const Columns columns = columns_of(parts, paired, panel);
    std::byte* to = static_cast<std::byte*>(panels) + panel * bytes;
    for (std::int64_t i = 0; i < in; i += kGroupStep) {
      if (i % type.format.group == 0) pack_head(columns, i, type.format, to);
      pack_step(columns, i, type, to);
      to += kGroupStep * kPanelColumns * (type.type == WeightType::int4 ? 4 : 8) / 8;
    }
  });
}

void widen_row(const PackedMatrix& m, int row, float* result) {
  const GroupFormat& f = m.format;
  const int column = row % kPanelColumns;
  const std::byte* at =
      static_cast<const std::byte*>(m.panels) + row / kPanelColumns * panel_bytes(m.in, m.type, f);
  for (int first = 0; first < m.in; first += f.group) {
    const float scale = element(at, f.half_scales ? ElementType::f16 : ElementType::f32, column);
    at += kPanelColumns * (f.half_scales ? 2 : 4);
    float second = 0;
    if (f.second == Second::zero) {
      second = static_cast<float>(static_cast<std::int8_t>(at[column]));
      at += kPanelColumns;
    } else if (f.second == Second::offset) {
      second = element(at, ElementType::f32, column);
      at += kPanelColumns * 4;
    }
    for (int i = 0; i < f.group; ++i) {
      const int step = i / kGroupStep * kGroupStep * kPanelColumns;
      int q = 0;
      if (m.type == WeightType::int4) {
        const std::byte* word = at + step / 2 + column * 4;
        q = std::to_integer<int>(word[i % kGroupStep / 2]) >> (i % 2 * 4) & 15;
      } else if (f.rounds_inputs) {
        q = std::to_integer<int>(at[step + place_in_words(i % kGroupStep, column)]) - 128;
      } else {
        q = static_cast<std::int8_t>(at[step + i % kGroupStep * kPanelColumns + column]);
      }
      result[first + i] = value_of(f.second, static_cast<float>(q), scale, second);
    }
    at += f.group * kPanelColumns * (m.type == WeightType::int4 ? 4 : 8) / 8;
  }
}

void widen(const GroupedMatrix& m, ThreadPool& pool, float* result) {
  widen_rows(m, 0, m.out, pool, result);
}

void widen_rows(const GroupedMatrix& m, std::int64_t first, std::int64_t rows, ThreadPool& pool,
                float* result) {
  const std::int64_t group = m.type.format.group;
  const std::int64_t groups = m.in / group;
  const std::int64_t each = std::max<std::int64_t>(65'536 / std::max<std::int64_t>(m.in, 1), 1);
  pool.run(static_cast<int>((rows + each - 1) / each), [&](int chunk, int) {
    const std::int64_t end = first + std::min(rows, (chunk + 1) * each);
    for (std::int64_t r = first + chunk * each; r < end; ++r) {
      for (std::int64_t i = 0; i < m.in; ++i) {
        const auto at = static_cast<std::size_t>(r * groups + i / group);
        const auto q = static_cast<float>(m.q[static_cast<std::size_t>(r * m.in + i)]);
        const float second = m.second.empty() ? 0.0F : m.second[at];
        result[(r - first) * m.in + i] = value_of(m.type.format.second, q, m.scale[at], second);
      }
    }
  });
}

}  // namespace baton::cpu
