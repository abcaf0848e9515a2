#include "workers/cpu/packing.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstring>

#include "workers/cpu/finite.h"

namespace baton::cpu {
namespace {

/// IEEE binary16 to binary32, subnormals and specials included.
float half_to_float(std::uint16_t half) {
  const std::uint32_t sign = static_cast<std::uint32_t>(half & 0x8000U) << 16;
  const std::uint32_t exponent = (half >> 10) & 0x1FU;
  const std::uint32_t fraction = half & 0x3FFU;
  if (exponent == 0x1F) return std::bit_cast<float>(sign | 0x7F800000U | (fraction << 13));
  if (exponent != 0) {
    return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (fraction << 13));
  }
  const float magnitude = static_cast<float>(fraction) * 0x1p-24F;
  return sign != 0 ? -magnitude : magnitude;
}

std::uint16_t raw16(const std::byte* data, std::int64_t index) {
  std::uint16_t bits;
  std::memcpy(&bits, data + index * 2, sizeof(bits));
  return bits;
}

/// The rows of one panel; null where the panel is empty.
struct PanelRows {
  std::array<const std::byte*, kPanelColumns> data{};
  std::array<ElementType, kPanelColumns> type{};
};

/// Inputs that are gone through row by row: what they fill of the panel stays in the first-level
/// cache.
constexpr std::int64_t kPackedAtOnce = 64;

/// False if one of the elements is no number.
bool pack_block(const PanelRows& rows, std::int64_t first, std::int64_t end, WeightType type,
                std::byte* panel) {
  bool finite = true;
  for (int c = 0; c < kPanelColumns; ++c) {
    const auto column = static_cast<std::size_t>(c);
    const std::byte* data = rows.data[column];
    const ElementType from = rows.type[column];
    if (data != nullptr) {  // it is about to be read anyway
      const std::int64_t n = end - first;
      finite = first_not_finite(data + first * element_bytes(from), from, n) == n && finite;
    }
    for (std::int64_t i = first; i < end; ++i) {
      const std::int64_t at = i * kPanelColumns + c;
      if (type == WeightType::bf16) {
        const std::uint16_t bits = data == nullptr ? std::uint16_t{0}
                                   : from == ElementType::bf16
                                       ? raw16(data, i)
                                       : round_to_bf16(element(data, from, i));
        std::memcpy(panel + at * 2, &bits, sizeof(bits));
      } else {
        const float value = data == nullptr ? 0.0F : element(data, from, i);
        std::memcpy(panel + at * 4, &value, sizeof(value));
      }
    }
  }
  return finite;
}

bool pack_panel(const PanelRows& rows, std::int64_t columns, WeightType type, std::byte* panel) {
  bool finite = true;
  for (std::int64_t first = 0; first < columns; first += kPackedAtOnce) {
    finite =
        pack_block(rows, first, std::min(columns, first + kPackedAtOnce), type, panel) && finite;
  }
  return finite;
}

const std::byte* row_data(const MatrixSource& source, std::int64_t row) {
  return source.data + row * source.columns * element_bytes(source.type);
}

/// Some element of a matrix that is no number; nothing if all are.
std::optional<NotFinite> find_not_finite(const MatrixSource& source) {
  const std::int64_t count = source.rows * source.columns;
  const std::int64_t at = first_not_finite(source.data, source.type, count);
  if (at == count) return std::nullopt;
  return NotFinite{source.name, at, element(source.data, source.type, at)};
}

}  // namespace

float element(const std::byte* data, ElementType type, std::int64_t index) {
  if (type == ElementType::f32) {
    float value;
    std::memcpy(&value, data + index * 4, sizeof(value));
    return value;
  }
  const std::uint16_t bits = raw16(data, index);
  if (type == ElementType::f16) return half_to_float(bits);
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

WeightType packed_type(std::span<const MatrixSource> parts) {
  const bool all = std::all_of(parts.begin(), parts.end(),
                               [](const MatrixSource& p) { return p.type == ElementType::bf16; });
  return all ? WeightType::bf16 : WeightType::f32;
}

std::uint16_t round_to_bf16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7FFFFFFFU) > 0x7F800000U) return static_cast<std::uint16_t>(bits >> 16 | 0x40U);
  return static_cast<std::uint16_t>((bits + 0x7FFFU + (bits >> 16 & 1U)) >> 16);
}

std::optional<NotFinite> pack_stacked(std::span<const MatrixSource> parts, WeightType type,
                                      ThreadPool& pool, void* panels) {
  std::atomic<bool> finite{true};
  const std::int64_t columns = parts.front().columns;
  std::int64_t total = 0;
  for (const MatrixSource& part : parts) total += part.rows;
  pool.run(static_cast<int>(panels_for(total)), [&](int panel, int) {
    PanelRows rows;
    std::int64_t first = std::int64_t{panel} * kPanelColumns;  // row of the part that is looked at
    std::size_t filled = 0;
    for (const MatrixSource& part : parts) {
      for (; first < part.rows && filled < kPanelColumns; ++first, ++filled) {
        rows.data[filled] = row_data(part, first);
        rows.type[filled] = part.type;
      }
      first -= std::min(first, part.rows);
    }
    auto* to = static_cast<std::byte*>(panels) + panel * panel_bytes(columns, type);
    if (!pack_panel(rows, columns, type, to)) finite = false;
  });
  std::optional<NotFinite> found;
  for (const MatrixSource& part : parts) {
    if (!finite && !found) found = find_not_finite(part);
  }
  return found;
}

std::optional<NotFinite> pack_paired(const MatrixSource& gate, const MatrixSource& up,
                                     WeightType type, ThreadPool& pool, void* panels) {
  std::atomic<bool> finite{true};
  pool.run(2 * static_cast<int>(panels_for(gate.rows)), [&](int panel, int) {
    const MatrixSource& part = panel % 2 == 0 ? gate : up;
    const std::int64_t first = std::int64_t{panel / 2} * kPanelColumns;
    PanelRows rows;
    for (std::int64_t row = first; row < std::min(first + kPanelColumns, part.rows); ++row) {
      rows.data[static_cast<std::size_t>(row - first)] = row_data(part, row);
      rows.type[static_cast<std::size_t>(row - first)] = part.type;
    }
    auto* to = static_cast<std::byte*>(panels) + panel * panel_bytes(part.columns, type);
    if (!pack_panel(rows, part.columns, type, to)) finite = false;
  });
  if (finite) return std::nullopt;
  auto found = find_not_finite(gate);
  return found ? found : find_not_finite(up);
}

}  // namespace baton::cpu
