#include "workers/cpu/finite.h"

#include <cstring>

namespace baton::cpu {
namespace {

/// Elements that are looked at together: a constant, so that compilers make vectors of the loop.
constexpr std::int64_t kBlock = 64;

template <typename Word>
Word word_at(const std::byte* data, std::int64_t index) {
  Word word;
  std::memcpy(&word, data + index * static_cast<std::int64_t>(sizeof(Word)), sizeof(word));
  return word;
}

/// The first of `count` words that has all bits of `mask`: NaN and infinity have the whole
/// exponent.
template <typename Word>
std::int64_t first_full(const std::byte* data, std::int64_t count, Word mask) {
  std::int64_t first = 0;
  for (; first + kBlock <= count; first += kBlock) {
    Word found = 0;
    for (std::int64_t i = 0; i < kBlock; ++i) {
      found = static_cast<Word>(found |
                                static_cast<Word>((word_at<Word>(data, first + i) & mask) == mask));
    }
    if (found != 0) break;
  }
  while (first < count && (word_at<Word>(data, first) & mask) != mask) ++first;
  return first;
}

}  // namespace

std::int64_t first_not_finite(const std::byte* data, ElementType type, std::int64_t count) {
  switch (type) {
    case ElementType::f32:
      return first_full<std::uint32_t>(data, count, 0x7F800000U);
    case ElementType::f16:
      return first_full<std::uint16_t>(data, count, 0x7C00U);
    case ElementType::bf16:
      return first_full<std::uint16_t>(data, count, 0x7F80U);
  }
  return count;
}

}  // namespace baton::cpu
