#include "frontend/succession/input_journal.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace baton {
namespace {

constexpr std::uint64_t kMagic = 0x31504E494A544142;  // "BATJINP1"
constexpr std::uint32_t kVersion = 1;

struct Head {
  std::uint64_t magic = 0;  // stored last
  std::uint32_t version = 0;
  InputGeometry geometry;
  std::uint64_t unused[5] = {};
};
static_assert(sizeof(Head) == 64);

struct Slot {
  std::uint64_t cookie = 0;  // 0: free. Stored last
  std::uint64_t base = 0;
  std::uint64_t end = 0;
  std::uint64_t written = 0;
  std::uint32_t first = 0;  // extent plus 1; 0: none
  std::uint32_t at_work = 0;
  std::uint32_t deaths_in_a_row = 0;
  std::uint32_t deaths_in_all = 0;
  std::uint32_t lost = 0;
  std::uint32_t unkept = 0;
};
static_assert(sizeof(Slot) == 56);

struct ExtentHead {
  std::uint32_t next = 0;  // extent plus 1; 0: none
  std::uint32_t unused = 0;
  std::uint64_t start = 0;
};
static_assert(sizeof(ExtentHead) == 16);

std::size_t slot_at(std::uint32_t index) { return sizeof(Head) + std::size_t{index} * sizeof(Slot); }
std::size_t extent_at(const InputGeometry& geometry, std::uint32_t index) {
  return slot_at(geometry.slots) + std::size_t{index} * geometry.extent_bytes;
}
std::uint32_t capacity(const InputGeometry& geometry) {
  return geometry.extent_bytes - static_cast<std::uint32_t>(sizeof(ExtentHead));
}

/// All that was stored before is seen by whoever sees this word.
template <typename T>
void store(std::byte* at, T value) {
  std::atomic_ref<T>(*reinterpret_cast<T*>(at)).store(value, std::memory_order_release);
}
template <typename T>
T load(const std::byte* at) {
  return std::atomic_ref<T>(*reinterpret_cast<T*>(const_cast<std::byte*>(at)))
      .load(std::memory_order_acquire);
}
template <typename T>
T copy_of(std::span<const std::byte> memory, std::size_t at) {
  T value;
  std::memcpy(&value, memory.data() + at, sizeof value);
  return value;
}

}  // namespace

std::size_t InputGeometry::bytes() const { return extent_at(*this, extents); }

Status InputGeometry::check() const {
  if (slots == 0 || slots > (1U << 20)) return invalid("input journal: slots out of bounds");
  if (extents == 0 || extents > (1U << 24)) return invalid("input journal: extents out of bounds");
  if (extent_bytes < 64 || extent_bytes > (1U << 24) || extent_bytes % 8 != 0)
    return invalid("input journal: extent_bytes out of bounds");
  return {};
}

// ---------------------------------------------------------------------------------- the journal

InputJournal::InputJournal(std::span<std::byte> memory, const InputGeometry& geometry)
    : memory_(memory.first(geometry.bytes())),
      geometry_(geometry),
      free_extents_(geometry.extents) {
  free_slots_.resize(geometry.slots);
  for (std::uint32_t i = 0; i < geometry.slots; ++i) free_slots_[i] = geometry.slots - 1 - i;
  Head head;
  head.version = kVersion;
  head.geometry = geometry;
  std::memcpy(memory_.data(), &head, sizeof head);
  store(memory_.data(), kMagic);
}

std::byte* InputJournal::slot(std::uint32_t index) const { return memory_.data() + slot_at(index); }

std::byte* InputJournal::extent(std::uint32_t index) const {
  return memory_.data() + extent_at(geometry_, index);
}

std::size_t InputJournal::used() const {
  const std::lock_guard lock(mutex_);
  return geometry_.extents - free_extents_.size();
}

/// Plus 1; 0: there is none.
std::uint32_t InputJournal::take_extent() {
  const std::lock_guard lock(mutex_);
  const auto index = free_extents_.take();
  return index ? *index + 1 : 0;
}

void InputJournal::shrink() {
  std::vector<std::uint32_t> idle;
  {
    const std::lock_guard lock(mutex_);
    idle = free_extents_.take_idle(kKeptExtents, kReleasedExtents);
  }
  release_extents(memory_, extent_at(geometry_, 0), geometry_.extent_bytes, idle);
  const std::lock_guard lock(mutex_);
  free_extents_.put_released(idle);
}

void InputJournal::give_back(std::span<const std::uint32_t> extents) {
  const std::lock_guard lock(mutex_);
  free_extents_.give_back(extents);
}

InputSlot InputJournal::open(const InputStart& start) {
  InputSlot made;
  if (start.cookie == 0) return made;
  {
    const std::lock_guard lock(mutex_);
    if (free_slots_.empty()) return made;
    made.index_ = free_slots_.back();
    free_slots_.pop_back();
  }
  made.journal_ = this;
  made.cookie_ = start.cookie;
  made.base_ = made.end_ = start.base;
  Slot fresh;
  fresh.base = fresh.end = start.base;
  fresh.written = start.written;
  fresh.deaths_in_a_row = start.deaths.row;
  fresh.deaths_in_all = start.deaths.all;
  std::memcpy(slot(made.index_), &fresh, sizeof fresh);
  store(slot(made.index_) + offsetof(Slot, cookie), start.cookie);
  return made;
}

// --------------------------------------------------------------------------------- one connection

InputSlot::~InputSlot() {
  if (journal_ == nullptr) return;
  store<std::uint64_t>(journal_->slot(index_) + offsetof(Slot, cookie), 0);
  journal_->give_back(extents_);
  const std::lock_guard lock(journal_->mutex_);
  journal_->free_slots_.push_back(index_);
}

void InputSlot::swap(InputSlot& other) noexcept {
  std::swap(journal_, other.journal_);
  std::swap(index_, other.index_);
  std::swap(cookie_, other.cookie_);
  std::swap(base_, other.base_);
  std::swap(end_, other.end_);
  std::swap(extents_, other.extents_);
  std::swap(events_, other.events_);
  std::swap(lost_, other.lost_);
}

bool InputSlot::add_extent() {
  const std::uint32_t taken = journal_->take_extent();
  if (taken == 0) return false;
  const ExtentHead head{0, 0, end_};
  std::memcpy(journal_->extent(taken - 1), &head, sizeof head);
  // Before any byte is read into it.
  if (extents_.empty()) {
    store(journal_->slot(index_) + offsetof(Slot, first), taken);
  } else {
    store(journal_->extent(extents_.back()) + offsetof(ExtentHead, next), taken);
  }
  extents_.push_back(taken - 1);
  return true;
}

std::span<char> InputSlot::room() {
  if (journal_ == nullptr || lost_) return {};
  const std::uint32_t size = capacity(journal_->geometry_);
  std::uint64_t used = 0;
  if (!extents_.empty()) {
    used = end_ - load<std::uint64_t>(journal_->extent(extents_.back()) +
                                      offsetof(ExtentHead, start));
  }
  if (extents_.empty() || used == size) {
    if (!add_extent()) return {};
    used = 0;
  }
  char* at = reinterpret_cast<char*>(journal_->extent(extents_.back())) + sizeof(ExtentHead);
  return {at + used, static_cast<std::size_t>(size - used)};
}

void InputSlot::took(std::size_t bytes) {
  if (journal_ == nullptr) return;
  end_ += bytes;
  store(journal_->slot(index_) + offsetof(Slot, end), end_);
}

void InputSlot::answered(std::size_t bytes, std::uint64_t written) {
  if (journal_ == nullptr) return;
  std::byte* slot = journal_->slot(index_);
  store(slot + offsetof(Slot, written), written);
  skip(bytes);
  store<std::uint32_t>(slot + offsetof(Slot, deaths_in_a_row), 0);
  store<std::uint32_t>(slot + offsetof(Slot, deaths_in_all), 0);
  store<std::uint32_t>(slot + offsetof(Slot, unkept), 0);
  events_ = 0;
}

void InputSlot::skip(std::size_t bytes) {
  if (journal_ == nullptr) return;
  std::byte* slot = journal_->slot(index_);
  base_ = std::min(base_ + bytes, end_);
  store(slot + offsetof(Slot, base), base_);
  const auto done = std::find_if(extents_.begin(), extents_.end(), [this](std::uint32_t index) {
    const auto start = load<std::uint64_t>(journal_->extent(index) + offsetof(ExtentHead, start));
    return start + capacity(journal_->geometry_) > base_ && base_ != end_;
  });
  if (done == extents_.begin()) return;
  store(slot + offsetof(Slot, first), done == extents_.end() ? 0U : *done + 1);
  journal_->give_back({extents_.data(), static_cast<std::size_t>(done - extents_.begin())});
  extents_.erase(extents_.begin(), done);
}

void InputSlot::lose() {
  if (journal_ == nullptr || lost_) return;
  lost_ = true;
  store<std::uint32_t>(journal_->slot(index_) + offsetof(Slot, lost), 1);
}

void InputSlot::drop() {
  if (journal_ == nullptr) return;
  lose();
  end_ = base_;
  store(journal_->slot(index_) + offsetof(Slot, end), end_);
  store<std::uint32_t>(journal_->slot(index_) + offsetof(Slot, first), 0);
  journal_->give_back(extents_);
  extents_.clear();
}

void InputSlot::reply_unkept() {
  if (journal_ == nullptr) return;
  store<std::uint32_t>(journal_->slot(index_) + offsetof(Slot, unkept), 1);
}

std::uint64_t InputSlot::base() const {
  return journal_ == nullptr
             ? 0
             : load<std::uint64_t>(journal_->slot(index_) + offsetof(Slot, base));
}

void InputSlot::begin_work() {
  if (journal_ == nullptr) return;
  auto* word = reinterpret_cast<std::uint32_t*>(journal_->slot(index_) + offsetof(Slot, at_work));
  std::atomic_ref<std::uint32_t>(*word).fetch_add(1, std::memory_order_acq_rel);
}

void InputSlot::end_work() {
  if (journal_ == nullptr) return;
  auto* word = reinterpret_cast<std::uint32_t*>(journal_->slot(index_) + offsetof(Slot, at_work));
  std::atomic_ref<std::uint32_t>(*word).fetch_sub(1, std::memory_order_acq_rel);
}

void InputSlot::got_on() {
  if (journal_ == nullptr) return;
  std::byte* slot = journal_->slot(index_);
  if (events_ == 0) store<std::uint32_t>(slot + offsetof(Slot, deaths_in_a_row), 0);
  if (++events_ < kEventsThatAcquit) return;
  events_ = 0;
  store<std::uint32_t>(slot + offsetof(Slot, deaths_in_all), 0);
}

FrontendDeaths InputSlot::deaths() const {
  if (journal_ == nullptr) return {};
  const std::byte* slot = journal_->slot(index_);
  return {load<std::uint32_t>(slot + offsetof(Slot, deaths_in_a_row)),
          load<std::uint32_t>(slot + offsetof(Slot, deaths_in_all))};
}

bool InputSlot::suspected() const {
  const FrontendDeaths counted = deaths();
  return counted.row + 1 >= kMostDeathsInARow || counted.all + 1 >= kMostDeathsInAll;
}

AtWork::AtWork(InputSlot& slot) {
  if (!slot) return;
  slot_ = &slot;
  alone_ = slot.suspected();
  if (alone_) {
    slot.journal_->beside_.lock();
  } else {
    slot.journal_->beside_.lock_shared();
  }
  slot.begin_work();
}

AtWork::~AtWork() {
  if (slot_ == nullptr) return;
  slot_->end_work();
  if (alone_) {
    slot_->journal_->beside_.unlock();
  } else {
    slot_->journal_->beside_.unlock_shared();
  }
}

// ---------------------------------------------------------------------------------- the successor

bool InheritedInput::settle(std::uint64_t consumed) {
  if (lost) {
    bytes.resize(counted);
    return true;
  }
  if (consumed < base + counted || consumed > base + bytes.size()) return false;
  bytes.resize(static_cast<std::size_t>(consumed - base));
  counted = bytes.size();
  return true;
}

namespace {

/// Follows one connection's extents; every number in them may be anything.
class ByteWalk {
 public:
  ByteWalk(std::span<const std::byte> memory, const InputGeometry& geometry,
           std::vector<bool>& taken)
      : memory_(memory), geometry_(geometry), taken_(taken) {}

  /// What is wrong, or nothing.
  std::string walk(const Slot& slot, InheritedInput& input) {
    if (slot.base > slot.end) return "has more answered bytes than bytes";
    input.counted = static_cast<std::size_t>(slot.end - slot.base);
    std::uint64_t next_start = 0;
    bool first = true;
    for (std::uint32_t link = slot.first; link != 0;) {
      const std::uint32_t index = link - 1;
      if (index >= geometry_.extents) return "names an extent that is none";
      if (taken_[index]) return "names an extent that is taken";
      taken_[index] = true;
      const auto head = copy_of<ExtentHead>(memory_, extent_at(geometry_, index));
      if (first ? head.start > slot.base : head.start != next_start)
        return "has a gap between its extents";
      next_start = head.start + capacity(geometry_);
      if (next_start < head.start) return "has an extent at no possible place";
      append(index, head.start, slot.base, input.bytes);
      link = head.next;
      first = false;
    }
    if (input.bytes.size() < input.counted) return "has fewer bytes than it counts";
    return {};
  }

 private:
  void append(std::uint32_t index, std::uint64_t start, std::uint64_t base, std::string& out) {
    const std::uint64_t skip = start < base ? base - start : 0;
    if (skip >= capacity(geometry_)) return;
    const auto* at = reinterpret_cast<const char*>(memory_.data()) + extent_at(geometry_, index) +
                     sizeof(ExtentHead);
    out.append(at + skip, capacity(geometry_) - static_cast<std::size_t>(skip));
  }

  std::span<const std::byte> memory_;
  const InputGeometry& geometry_;
  std::vector<bool>& taken_;
};

}  // namespace

Result<std::vector<InheritedInput>> read_inputs(std::span<const std::byte> memory) {
  if (memory.size() < sizeof(Head)) return invalid("input journal: too short");
  const auto head = copy_of<Head>(memory, 0);
  if (head.magic != kMagic) return invalid("input journal: its writer never finished its head");
  if (head.version != kVersion)
    return invalid("input journal: version " + std::to_string(head.version));
  const InputGeometry geometry = head.geometry;
  if (const Status status = geometry.check(); !status.ok()) return status;
  if (geometry.bytes() > memory.size()) return invalid("input journal: shorter than its geometry");
  std::vector<InheritedInput> inputs;
  std::vector<bool> taken(geometry.extents);
  for (std::uint32_t i = 0; i < geometry.slots; ++i) {
    const auto slot = copy_of<Slot>(memory, slot_at(i));
    if (slot.cookie == 0) continue;
    InheritedInput& input = inputs.emplace_back();
    input.slot = i;
    input.cookie = slot.cookie;
    input.base = slot.base;
    input.written = slot.written;
    input.lost = slot.lost != 0;
    input.unkept = slot.unkept != 0;
    input.at_work = slot.at_work != 0;
    input.deaths = {slot.deaths_in_a_row, slot.deaths_in_all};
    input.fault = ByteWalk(memory, geometry, taken).walk(slot, input);
    if (!input.fault.empty()) input.bytes.clear();
  }
  return inputs;
}

void count_deaths(std::span<std::byte> memory, std::vector<InheritedInput>& inputs) {
  const auto at_work = std::count_if(inputs.begin(), inputs.end(),
                                     [](const InheritedInput& input) { return input.at_work; });
  for (InheritedInput& input : inputs) {
    if (!input.at_work) continue;
    const std::uint32_t spared = at_work > 1 ? 1 : 0;
    const auto counted = [](std::uint32_t before, std::uint32_t most) {
      return std::max(before, std::min(before + 1, most));
    };
    input.deaths.row = counted(input.deaths.row, kMostDeathsInARow - spared);
    input.deaths.all = counted(input.deaths.all, kMostDeathsInAll - spared);
    std::byte* slot = memory.data() + slot_at(input.slot);
    store(slot + offsetof(Slot, deaths_in_a_row), input.deaths.row);
    store(slot + offsetof(Slot, deaths_in_all), input.deaths.all);
    store<std::uint32_t>(slot + offsetof(Slot, at_work), 0);
  }
}

void mark_at_work(std::span<std::byte> memory, const InheritedInput& input, bool at_work) {
  store<std::uint32_t>(memory.data() + slot_at(input.slot) + offsetof(Slot, at_work),
                       at_work ? 1 : 0);
}

}  // namespace baton
