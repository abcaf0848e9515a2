#include "frontend/succession/journal.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "frontend/succession/journal_layout.h"

namespace baton {
namespace {

/// All that was stored before is seen by whoever sees this word.
void publish(std::byte* at, std::uint32_t word) {
  std::atomic_ref<std::uint32_t>(*reinterpret_cast<std::uint32_t*>(at))
      .store(word, std::memory_order_release);
}

void store(std::byte* at, std::uint64_t word) {
  std::atomic_ref<std::uint64_t>(*reinterpret_cast<std::uint64_t*>(at))
      .store(word, std::memory_order_release);
}

}  // namespace

std::size_t JournalGeometry::bytes() const {
  return places_at(*this) + kPlaces * sizeof(SchedulerPlace);
}

Status JournalGeometry::check() const {
  if (slots == 0 || slots > (1U << 20)) return invalid("journal: slots out of bounds");
  if (extents == 0 || extents > (1U << 24)) return invalid("journal: extents out of bounds");
  if (extent_bytes < 64 || extent_bytes > (1U << 24) || extent_bytes % 8 != 0)
    return invalid("journal: extent_bytes out of bounds");
  if (max_extents == 0 || max_extents > extents)
    return invalid("journal: max_extents out of bounds");
  return {};
}

Journal::Journal(std::span<std::byte> memory, const JournalGeometry& geometry,
                 std::string_view build)
    : memory_(memory.first(geometry.bytes())),
      geometry_(geometry),
      free_extents_(geometry.extents) {
  free_slots_.resize(geometry.slots);
  for (std::uint32_t i = 0; i < geometry.slots; ++i) free_slots_[i] = geometry.slots - 1 - i;
  JournalHead head;
  head.version = kJournalVersion;
  head.geometry = geometry;
  head.build_bytes = static_cast<std::uint32_t>(std::min(build.size(), head.build.size()));
  std::copy_n(build.begin(), head.build_bytes, head.build.begin());
  std::memcpy(memory_.data(), &head, sizeof head);
  store(memory_.data(), kJournalMagic);
}

void Journal::note(const FrontendPlace& place) {
  std::byte* words = memory_.data() + sizeof(JournalHead);
  store(words + offsetof(JournalWords, incarnation), place.incarnation);
  store(words + offsetof(JournalWords, epoch), place.epoch);
  store(words + offsetof(JournalWords, next_counter), place.next_counter);
  store(words + offsetof(JournalWords, generation), place.generation);
  store(words + offsetof(JournalWords, max_context), place.max_context);
  std::byte* several = memory_.data() + places_at(geometry_);
  for (std::size_t i = 0; i < std::min(place.several.size(), kPlaces); ++i) {
    std::byte* at = several + i * sizeof(SchedulerPlace);
    store(at + offsetof(SchedulerPlace, epoch), place.several[i].epoch);
    store(at + offsetof(SchedulerPlace, max_context), place.several[i].max_context);
    store(at + offsetof(SchedulerPlace, model), place.several[i].model);
  }
}

std::byte* Journal::extent(std::uint32_t index) const {
  return memory_.data() + extent_at(geometry_, index);
}

std::byte* Journal::slot(std::uint32_t index) const { return memory_.data() + slot_at(index); }

bool Journal::open(std::uint64_t cookie, std::string_view opening) {
  if (open_.contains(cookie)) return false;
  if (free_slots_.empty()) {
    ++lost_;
    return false;
  }
  Open open{.slot = free_slots_.back(), .extents = {}};
  if (!add_extent(open) || !write(open, opening)) {
    give_back(open);
    ++lost_;
    return false;
  }
  free_slots_.pop_back();
  const JournalSlot made{0, open.extents.front(), cookie};
  std::memcpy(slot(open.slot), &made, sizeof made);
  publish(slot(open.slot), static_cast<std::uint32_t>(SlotState::open));
  open_.emplace(cookie, std::move(open));
  return true;
}

void Journal::append(std::uint64_t cookie, std::string_view record) {
  const auto at = open_.find(cookie);
  if (at == open_.end() || at->second.extents.empty() || record.empty()) return;
  if (!write(at->second, record)) lose(at->second);
}

void Journal::close(std::uint64_t cookie) {
  const auto at = open_.find(cookie);
  if (at == open_.end()) return;
  // Before its extents can be written again.
  publish(slot(at->second.slot), static_cast<std::uint32_t>(SlotState::free));
  give_back(at->second);
  free_slots_.push_back(at->second.slot);
  open_.erase(at);
}

/// Its slot stays, so that a successor knows that this connection is owed what nobody can make.
void Journal::lose(Open& open) {
  publish(slot(open.slot), static_cast<std::uint32_t>(SlotState::lost));
  give_back(open);
  ++lost_;
}

void Journal::give_back(Open& open) {
  free_extents_.give_back(open.extents);
  open.extents.clear();
}

void Journal::shrink() {
  const std::vector<std::uint32_t> idle = free_extents_.take_idle(kKeptExtents, kReleasedExtents);
  release_extents(memory_, extent_at(geometry_, 0), geometry_.extent_bytes, idle);
  free_extents_.put_released(idle);
}

/// Links an empty extent behind the last one.
bool Journal::add_extent(Open& open) {
  if (open.extents.size() == geometry_.max_extents) return false;
  const auto taken = free_extents_.take();
  if (!taken) return false;
  const std::uint32_t index = *taken;
  // What an earlier reply left there must not be taken for a fragment.
  std::memset(extent(index), 0, kExtentHead + kWord);
  if (!open.extents.empty()) publish(extent(open.extents.back()), index + 1);
  open.extents.push_back(index);
  open.offset = kExtentHead;
  return true;
}

bool Journal::write(Open& open, std::string_view record) {
  while (!record.empty()) {
    // At least one word of bytes behind the word that says how many.
    if (open.offset + 2 * kWord > geometry_.extent_bytes && !add_extent(open)) return false;
    const std::uint32_t room = geometry_.extent_bytes - open.offset - kWord;
    const auto bytes = static_cast<std::uint32_t>(std::min<std::size_t>(room, record.size()));
    std::byte* at = extent(open.extents.back()) + open.offset;
    std::memcpy(at + kWord, record.data(), bytes);
    const std::uint32_t next = open.offset + kWord + padded(bytes);
    // The end of the list moves before the fragment counts.
    if (next + kWord <= geometry_.extent_bytes)
      std::memset(extent(open.extents.back()) + next, 0, kWord);
    record.remove_prefix(bytes);
    publish(at, bytes | (record.empty() ? 0 : kMoreFollows));
    open.offset = next;
  }
  return true;
}

}  // namespace baton
