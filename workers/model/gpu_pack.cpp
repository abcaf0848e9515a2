#include "workers/model/gpu_pack.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "workers/model/error.h"

namespace baton {
namespace {

using cuda::kLanes;
using cuda::kTileRows;
using cuda::kUnitInputs;
using cuda::WeightFormat;

constexpr int kInstructions = kUnitInputs / 16;

/// Where the numbers of one row of the fused matrix lie; null where it is no part's.
struct StoredRow {
  const std::int8_t* q = nullptr;
  const float* scale = nullptr;
  const float* zero = nullptr;  // null: nought
  const cpu::GroupedMatrix* from = nullptr;
  std::int64_t behind = 0;  // inputs of the first group that are not the part's

  /// Where the scale of an input lies, counted from the part's first one.
  std::int64_t group(std::int64_t input) const {
    return (behind + input) / from->type.format.group;
  }
};

/// Which of the part's features the fused matrix has at `row`; -1: none.
std::int64_t feature_at(const WholePart& part, std::int64_t row) {
  const std::int64_t behind = row - part.at.first;
  if (behind < 0) return -1;
  if (part.at.interleaved && behind % 16 >= 8) return -1;
  const std::int64_t feature = part.at.interleaved ? behind / 16 * 8 + behind % 8 : behind;
  return feature < part.rows.count ? feature : -1;
}

StoredRow row_at(std::span<const WholePart> parts, std::int64_t row) {
  for (const WholePart& part : parts) {
    const std::int64_t feature = feature_at(part, row);
    if (feature < 0) continue;
    const cpu::GroupedMatrix& m = *part.from;
    const std::int64_t r = part.rows.first + feature;
    const std::int64_t group = m.type.format.group;
    const std::int64_t scales = r * (m.in / group) + part.columns.first / group;
    return {m.q.data() + r * m.in + part.columns.first, m.scale.data() + scales,
            m.second.empty() ? nullptr : m.second.data() + scales, &m, part.columns.first % group};
  }
  return {};
}

using Unit = std::array<std::array<std::uint8_t, kUnitInputs>, kTileRows>;

[[noreturn]] void refuse_zero(const StoredRow& row) {
  throw ModelError(row.from->name + ": zero points beside the middle are not kept in eight bits");
}

/// The numbers of a row's inputs from `first` on, as the words hold them.
void fill_row(const StoredRow& row, const LinearFormat& format, int in, int first,
              std::array<std::uint8_t, kUnitInputs>& to) {
  to.fill(0);
  if (row.q == nullptr) return;
  const int count = std::min(kUnitInputs, in - first);
  if (format.format == WeightFormat::int4 || row.zero == nullptr) {
    std::memcpy(to.data(), row.q + first, static_cast<std::size_t>(count));
    return;
  }
  for (int i = 0; i < count; ++i) {
    const int number = row.q[first + i] - static_cast<int>(row.zero[row.group(first + i)]);
    if (number < -128 || number > 127) refuse_zero(row);
    to[static_cast<std::size_t>(i)] = static_cast<std::uint8_t>(number);
  }
}

/// Number `odd` of pair `pair` of instruction `step`, of row g or (high) g + 8: as place_of().
std::uint32_t number(const Unit& unit, int lane, int step, int pair, int high, int odd) {
  const auto row = static_cast<std::size_t>(lane / 4 + 8 * high);
  return unit[row][static_cast<std::size_t>(step * 16 + pair * 8 + lane % 4 * 2 + odd)];
}

void write_int4(const Unit& unit, std::uint32_t* words) {
  for (int lane = 0; lane < kLanes; ++lane) {
    for (int step = 0; step < kInstructions; ++step) {
      std::uint32_t word = 0;
      for (int i = 0; i < 8; ++i) {
        word |= (number(unit, lane, step, i / 2 % 2, i % 2, i / 4) & 15U) << (4 * i);
      }
      words[lane * 4 + step] = word;
    }
  }
}

void write_int8(const Unit& unit, std::uint32_t* words) {
  for (int step = 0; step < kInstructions; ++step) {
    for (int lane = 0; lane < kLanes; ++lane) {
      for (int pair = 0; pair < 2; ++pair) {
        std::uint32_t word = 0;
        for (int i = 0; i < 4; ++i) {
          word |= number(unit, lane, step, pair, i % 2, i / 2) << (8 * i);
        }
        words[(step / 2 * kLanes + lane) * 4 + step % 2 * 2 + pair] = word;
      }
    }
  }
}

/// Of group `group` of the format.
std::uint32_t scale_word(const StoredRow& row, const LinearFormat& format, int group) {
  if (row.q == nullptr) return 0;
  const std::int64_t at =
      row.group(format.groups == 1 ? 0 : std::int64_t{group} << format.group_shift);
  const std::uint32_t scale = std::bit_cast<std::uint32_t>(row.scale[at]) & ~15U;
  const bool zero = format.format == WeightFormat::int4 && row.zero != nullptr;
  return scale | (zero ? static_cast<std::uint32_t>(row.zero[at]) & 15U : 0U);
}

}  // namespace

void pack_tiles(std::span<const WholePart> parts, const LinearFormat& format, int in,
                const Slice& tiles, std::uint32_t* words, std::uint32_t* scales) {
  const std::size_t of_unit = cuda::weight_words(format.format, kTileRows, kUnitInputs);
  for (std::int64_t tile = tiles.first; tile < tiles.end(); ++tile) {
    std::array<StoredRow, kTileRows> rows;
    for (std::size_t r = 0; r < rows.size(); ++r) {
      rows[r] = row_at(parts, tile * kTileRows + static_cast<std::int64_t>(r));
    }
    Unit unit;
    for (int u = 0; u < cuda::units_of(in); ++u, words += of_unit) {
      for (std::size_t r = 0; r < rows.size(); ++r) {
        fill_row(rows[r], format, in, u * kUnitInputs, unit[r]);
      }
      format.format == WeightFormat::int4 ? write_int4(unit, words) : write_int8(unit, words);
    }
    for (int group = 0; group < format.groups; ++group) {
      for (int r = 0; r < kTileRows; ++r) {
        scales[cuda::scale_at(format.groups, r, group)] =
            scale_word(rows[static_cast<std::size_t>(r)], format, group);
      }
    }
    scales += cuda::scale_words(kTileRows, format.groups);
  }
}

WideRows::WideRows(const LinearSource& source, const Quantization& quantization,
                   cpu::ThreadPool& pool)
    : source_(source), quantization_(quantization), pool_(pool) {
  if (source.lazy) made_ = source.lazy->make(pool);
}

void WideRows::read(std::int64_t first, std::int64_t count, float* to) {
  if (made_) return cpu::widen_rows(*made_, first, count, pool_, to);
  dequantize_rows(source_, quantization_, {first, count}, pool_, to);
}

}  // namespace baton
