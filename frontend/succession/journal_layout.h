// Where things lie in a journal; shared by its writer and its reader (journal.h).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "frontend/succession/journal.h"

namespace baton {

inline constexpr std::uint64_t kJournalMagic = 0x324C4E524A544142;  // "BATJRNL2"
inline constexpr std::uint32_t kJournalVersion = 1;

struct JournalHead {
  std::uint64_t magic = 0;  // stored last
  std::uint32_t version = 0;
  JournalGeometry geometry;
  std::uint32_t build_bytes = 0;
  std::array<char, 96> build = {};
};
static_assert(sizeof(JournalHead) == 128);

/// Behind the head; each word is stored alone.
struct JournalWords {
  std::uint64_t incarnation = 0;
  std::uint64_t epoch = 0;
  std::uint64_t next_counter = 0;
  std::uint64_t generation = 0;
  std::uint64_t max_context = 0;
};
static_assert(sizeof(JournalWords) == 40);

inline constexpr std::size_t kPlaces = 16;
static_assert(sizeof(SchedulerPlace) == 24);

enum class SlotState : std::uint32_t { free = 0, open = 1, lost = 2 };

struct JournalSlot {
  std::uint32_t state = 0;  // stored last
  std::uint32_t first_extent = 0;
  std::uint64_t cookie = 0;
};
static_assert(sizeof(JournalSlot) == 16);

/// Of an extent: the word that names the next one (plus 1; 0: none). Fragments follow.
inline constexpr std::uint32_t kExtentHead = 4;
inline constexpr std::uint32_t kWord = 4;
inline constexpr std::uint32_t kMoreFollows = std::uint32_t{1} << 31;

inline constexpr std::uint32_t padded(std::uint32_t bytes) {
  return (bytes + kWord - 1) / kWord * kWord;
}
inline std::size_t slot_at(std::uint32_t index) {
  return sizeof(JournalHead) + sizeof(JournalWords) + std::size_t{index} * sizeof(JournalSlot);
}
inline std::size_t extent_at(const JournalGeometry& geometry, std::uint32_t index) {
  return slot_at(geometry.slots) + std::size_t{index} * geometry.extent_bytes;
}

inline std::size_t places_at(const JournalGeometry& geometry) {
  return extent_at(geometry, geometry.extents);
}

}  // namespace baton
