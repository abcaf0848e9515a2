// Ids of short words that a thread encoded before. Text repeats its words, and a look-up costs a
// tenth of the merges.
#pragma once

#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

#include "ipc/types.h"

namespace baton {

/// Direct-mapped: a new word takes the place of whichever was there. One cache line a word, 1 MiB
/// in all, allocated at the first use. Not for several threads.
class WordCache {
 public:
  static constexpr std::size_t kMaxBytes = 22;
  static constexpr std::size_t kMaxIds = 8;

  /// Forgets everything when `owner` (never 0) is another one than last time.
  void use_for(std::uint64_t owner) {
    if (owner == owner_) return;
    owner_ = owner;
    slots_.assign(kSlots, Slot());
  }

  /// Ids of `word` (1..kMaxBytes bytes); empty when it is not here. Valid until the next put().
  std::span<const Token> find(std::string_view word) {
    last_ = hash(word) % kSlots;
    const Slot& slot = slots_[last_];
    if (slot.size != word.size() || std::memcmp(slot.word, word.data(), word.size()) != 0) {
      return {};
    }
    return {slot.ids, slot.count};
  }

  /// Keeps the ids of the word that find() just missed.
  void put(std::string_view word, std::span<const Token> ids) {
    if (ids.empty() || ids.size() > kMaxIds) return;
    Slot& slot = slots_[last_];
    slot.size = static_cast<std::uint8_t>(word.size());
    slot.count = static_cast<std::uint8_t>(ids.size());
    std::memcpy(slot.word, word.data(), word.size());
    std::memcpy(slot.ids, ids.data(), ids.size_bytes());
  }

 private:
  static constexpr std::size_t kSlots = 16384;
  struct alignas(64) Slot {
    Token ids[kMaxIds] = {};
    std::uint8_t size = 0;
    std::uint8_t count = 0;
    char word[kMaxBytes] = {};
  };

  static std::uint64_t hash(std::string_view word) {
    std::uint64_t parts[3] = {word.size(), 0, 0};
    char padded[24] = {};
    std::memcpy(padded, word.data(), word.size());
    for (int i = 0; i < 3; ++i) {
      std::uint64_t part = 0;
      std::memcpy(&part, padded + 8 * i, 8);
      parts[i] ^= part;
    }
    const std::uint64_t mixed = parts[0] * 0x9E3779B97F4A7C15U ^ parts[1] * 0xC2B2AE3D27D4EB4FU ^
                                parts[2] * 0x165667B19E3779F9U;
    return (mixed ^ mixed >> 29) * 0xBF58476D1CE4E5B9U >> 32;
  }

  std::uint64_t owner_ = 0;
  std::size_t last_ = 0;
  std::vector<Slot> slots_;
};

}  // namespace baton
