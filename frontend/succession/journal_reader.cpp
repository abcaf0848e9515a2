// The reader of journals: every number in them may be anything.
#include <algorithm>
#include <cstring>
#include <unordered_set>
#include <utility>

#include "frontend/succession/journal.h"
#include "frontend/succession/journal_layout.h"

namespace baton {
namespace {

template <typename T>
T load(std::span<const std::byte> memory, std::size_t at) {
  T value;
  std::memcpy(&value, memory.data() + at, sizeof value);
  return value;
}

/// Follows one reply's extents. `taken`: those that a reply has already.
class RecordWalk {
 public:
  RecordWalk(std::span<const std::byte> memory, const JournalGeometry& geometry,
             std::vector<bool>& taken)
      : memory_(memory), geometry_(geometry), taken_(taken) {}

  /// What is wrong, or nothing.
  std::string walk(std::uint32_t first, std::vector<std::string>& records) {
    std::string record;
    std::uint32_t index = first;
    for (std::uint32_t count = 0;; ++count) {
      if (count == geometry_.max_extents) return "has too many extents";
      if (index >= geometry_.extents) return "names an extent that is none";
      if (taken_[index]) return "names an extent that is taken";
      taken_[index] = true;
      if (!read_extent(index, record, records)) return "has a fragment longer than its extent";
      const auto next = load<std::uint32_t>(memory_, extent_at(geometry_, index));
      if (next == 0) break;
      index = next - 1;
    }
    // The writer died before the last fragment of `record` counted: it never was.
    return records.empty() ? "has no opening" : "";
  }

 private:
  bool read_extent(std::uint32_t index, std::string& record, std::vector<std::string>& records) {
    const std::size_t base = extent_at(geometry_, index);
    std::uint32_t offset = kExtentHead;
    while (offset + kWord <= geometry_.extent_bytes) {
      const auto word = load<std::uint32_t>(memory_, base + offset);
      if (word == 0) return true;
      const std::uint32_t bytes = word & ~kMoreFollows;
      if (bytes == 0 || bytes > geometry_.extent_bytes - offset - kWord) return false;
      record.append(reinterpret_cast<const char*>(memory_.data()) + base + offset + kWord, bytes);
      if ((word & kMoreFollows) == 0) records.push_back(std::exchange(record, {}));
      offset += kWord + padded(bytes);
    }
    return true;
  }

  std::span<const std::byte> memory_;
  const JournalGeometry& geometry_;
  std::vector<bool>& taken_;
};

/// A build for one model has no room for them.
std::vector<SchedulerPlace> read_places(std::span<const std::byte> memory,
                                        const JournalGeometry& geometry) {
  std::vector<SchedulerPlace> places;
  if (geometry.bytes() > memory.size()) return places;
  for (std::size_t i = 0; i < kPlaces; ++i) {
    const auto place =
        load<SchedulerPlace>(memory, places_at(geometry) + i * sizeof(SchedulerPlace));
    if (place.model != 0) places.push_back(place);
  }
  return places;
}

}  // namespace

Result<JournalContents> read_journal(std::span<const std::byte> memory) {
  if (memory.size() < sizeof(JournalHead)) return invalid("journal: too short");
  const auto head = load<JournalHead>(memory, 0);
  if (head.magic != kJournalMagic) return invalid("journal: its writer never finished its head");
  if (head.version != kJournalVersion)
    return invalid("journal: version " + std::to_string(head.version));
  const JournalGeometry geometry = head.geometry;
  if (const Status status = geometry.check(); !status.ok()) return status;
  if (places_at(geometry) > memory.size()) return invalid("journal: shorter than its geometry");
  if (head.build_bytes > head.build.size()) return invalid("journal: the build's name is too long");
  JournalContents contents;
  contents.build.assign(head.build.data(), head.build_bytes);
  const auto words = load<JournalWords>(memory, sizeof(JournalHead));
  contents.place = {words.incarnation, words.epoch,       words.next_counter,
                    words.generation,  words.max_context, read_places(memory, geometry)};
  std::vector<bool> taken(geometry.extents);
  std::unordered_set<std::uint64_t> cookies;
  for (std::uint32_t i = 0; i < geometry.slots; ++i) {
    const auto slot = load<JournalSlot>(memory, slot_at(i));
    if (slot.state == static_cast<std::uint32_t>(SlotState::free)) continue;
    JournaledReply& reply = contents.replies.emplace_back();
    reply.cookie = slot.cookie;
    if (!cookies.insert(slot.cookie).second) {
      reply.fault = "has a second slot";
    } else if (slot.state == static_cast<std::uint32_t>(SlotState::lost)) {
      reply.fault = "was too long for the journal";
    } else if (slot.state != static_cast<std::uint32_t>(SlotState::open)) {
      reply.fault = "has a slot in no known state";
    } else {
      reply.fault = RecordWalk(memory, geometry, taken).walk(slot.first_extent, reply.records);
      if (!reply.fault.empty()) reply.records.clear();
    }
  }
  return contents;
}

}  // namespace baton
