#include "workers/model/ggml_blocks.h"

#include <array>
#include <cstring>

#include "workers/cpu/packing.h"

namespace baton {
namespace {

constexpr int kSmall = 32;   // numbers of a block of Q4_0 and the like
constexpr int kLarge = 256;  // of Q4_K and the like

float half(const std::byte* at) { return cpu::element(at, cpu::ElementType::f16, 0); }

unsigned byte_at(const std::byte* at, int index) { return std::to_integer<unsigned>(at[index]); }

std::int8_t whole(unsigned value, int less) {
  return static_cast<std::int8_t>(static_cast<int>(value) - less);
}

/// Q4_0, Q4_1, Q5_0, Q5_1: a scale, perhaps an offset, perhaps each number's fifth bit, then the
/// lower bits: those of numbers 0 to 15 in the lower halves of bytes, of 16 to 31 in the upper.
void decode_small(const std::byte* block, bool has_offset, bool fifth_bit, int less, std::int8_t* q,
                  float* scale, float* offset) {
  *scale = half(block);
  block += 2;
  if (has_offset) {
    *offset = half(block);
    block += 2;
  }
  std::uint32_t high = 0;
  if (fifth_bit) {
    std::memcpy(&high, block, sizeof high);
    block += 4;
  }
  for (int i = 0; i < 16; ++i) {
    const unsigned byte = byte_at(block, i);
    q[i] = whole((byte & 15U) | (high >> i & 1U) << 4U, less);
    q[i + 16] = whole(byte >> 4U | (high >> (i + 16) & 1U) << 4U, less);
  }
}

void decode_q8(const std::byte* block, std::int8_t* q, float* scale) {
  *scale = half(block);
  std::memcpy(q, block + 2, kSmall);
}

/// The six-bit scale and offset of group `g` of a block of Q4_K or Q5_K.
std::array<unsigned, 2> six_bits(const std::byte* packed, int g) {
  if (g < 4) return {byte_at(packed, g) & 63U, byte_at(packed, g + 4) & 63U};
  return {(byte_at(packed, g + 4) & 15U) | (byte_at(packed, g - 4) >> 6U) << 4U,
          byte_at(packed, g + 4) >> 4U | (byte_at(packed, g) >> 6U) << 4U};
}

/// Q4_K, and with `high` Q5_K: eight groups of 32 numbers.
void decode_k4(const std::byte* block, bool fifth_bit, std::int8_t* q, float* scale,
               float* offset) {
  const float d = half(block);
  const float least = half(block + 2);
  const std::byte* packed = block + 4;
  const std::byte* high = packed + 12;
  const std::byte* low = fifth_bit ? high + 32 : high;
  for (int g = 0; g < 8; ++g) {
    const auto [s, m] = six_bits(packed, g);
    scale[g] = d * static_cast<float>(s);
    offset[g] = -(least * static_cast<float>(m));
    for (int i = 0; i < 32; ++i) {
      const unsigned bits = byte_at(low, g / 2 * 32 + i) >> (g % 2 * 4) & 15U;
      const unsigned fifth = fifth_bit ? byte_at(high, i) >> g & 1U : 0U;
      q[g * 32 + i] = whole(bits | fifth << 4U, 0);
    }
  }
}

/// Q6_K: sixteen groups of 16 numbers.
void decode_k6(const std::byte* block, std::int8_t* q, float* scale) {
  const std::byte* low = block;
  const std::byte* high = block + 128;
  const std::byte* scales = block + 192;
  const float d = half(block + 208);
  for (int g = 0; g < 16; ++g) {
    scale[g] = d * static_cast<float>(static_cast<std::int8_t>(scales[g]));
  }
  for (int i = 0; i < kLarge; ++i) {
    const int part = i / 128;  // halves of the block: 64 bytes of `low`, 32 of `high` each
    const int quarter = i % 128 / 32;
    const int place = i % 32;
    const unsigned four =
        byte_at(low, part * 64 + quarter % 2 * 32 + place) >> (quarter / 2 * 4) & 15U;
    const unsigned two = byte_at(high, part * 32 + place) >> (quarter * 2) & 3U;
    q[i] = whole(four | two << 4U, 32);
  }
}

}  // namespace

int ggml_group(GgmlType type) { return type == GgmlType::q6_k ? 16 : 32; }

bool ggml_has_offset(GgmlType type) {
  return type == GgmlType::q4_1 || type == GgmlType::q5_1 || type == GgmlType::q4_k ||
         type == GgmlType::q5_k;
}

bool ggml_four_bits(GgmlType type) {
  return type == GgmlType::q4_0 || type == GgmlType::q4_1 || type == GgmlType::q4_k;
}

void decode_ggml(GgmlType type, const std::byte* blocks, std::int64_t numbers, GgmlRow to) {
  const GgmlLayout layout = *ggml_layout(static_cast<std::uint32_t>(type));
  const auto each = static_cast<std::int64_t>(layout.numbers);
  const std::int64_t groups = each / ggml_group(type);
  for (std::int64_t first = 0; first < numbers; first += each) {
    switch (type) {
      case GgmlType::q4_0:
        decode_small(blocks, false, false, 8, to.q, to.scale, nullptr);
        break;
      case GgmlType::q4_1:
        decode_small(blocks, true, false, 0, to.q, to.scale, to.offset);
        break;
      case GgmlType::q5_0:
        decode_small(blocks, false, true, 16, to.q, to.scale, nullptr);
        break;
      case GgmlType::q5_1:
        decode_small(blocks, true, true, 0, to.q, to.scale, to.offset);
        break;
      case GgmlType::q8_0:
        decode_q8(blocks, to.q, to.scale);
        break;
      case GgmlType::q4_k:
      case GgmlType::q5_k:
        decode_k4(blocks, type == GgmlType::q5_k, to.q, to.scale, to.offset);
        break;
      case GgmlType::q6_k:
        decode_k6(blocks, to.q, to.scale);
        break;
      default:
        return;  // not quantised
    }
    blocks += layout.bytes;
    to.q += each;
    to.scale += groups;
    if (to.offset != nullptr) to.offset += groups;
  }
}

}  // namespace baton
