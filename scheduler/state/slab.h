// A table with stable addresses and ids that are never reused: low 32 bits slot, high 32
// generation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace baton {

/// `T` needs a `std::uint64_t id` member; id 0 means "not in use". Looking up an id whose slot was
/// recycled gives nullptr, so a late message about something gone is recognised, not misapplied.
template <typename T>
class Slab {
 public:
  T& create() {
    if (free_.empty()) grow();
    const std::uint32_t slot = free_.back();
    free_.pop_back();
    T& item = at(slot);
    const std::uint64_t generation = ++generations_[slot];
    item = T{};
    item.id = (generation << 32U) | slot;
    ++size_;
    return item;
  }

  T* find(std::uint64_t id) {
    const auto slot = static_cast<std::uint32_t>(id);
    if (slot >= generations_.size()) return nullptr;
    T& item = at(slot);
    return item.id == id && id != 0 ? &item : nullptr;
  }
  const T* find(std::uint64_t id) const { return const_cast<Slab*>(this)->find(id); }

  void erase(std::uint64_t id) {
    T* item = find(id);
    if (item == nullptr) return;
    *item = T{};
    free_.push_back(static_cast<std::uint32_t>(id));
    --size_;
  }

  std::size_t size() const { return size_; }

  /// Calls `visit(T&)` for every item in use, in slot order. `visit` may erase the item it is
  /// given.
  template <typename Visit>
  void each(Visit visit) {
    for (std::uint32_t slot = 0; slot < generations_.size(); ++slot) {
      if (T& item = at(slot); item.id != 0) visit(item);
    }
  }
  template <typename Visit>
  void each(Visit visit) const {
    const_cast<Slab*>(this)->each([&](const T& item) { visit(item); });
  }

 private:
  static constexpr std::uint32_t kChunkBits = 8;
  static constexpr std::uint32_t kChunk = 1U << kChunkBits;

  T& at(std::uint32_t slot) { return chunks_[slot >> kChunkBits][slot & (kChunk - 1)]; }

  void grow() {
    const auto first = static_cast<std::uint32_t>(generations_.size());
    chunks_.push_back(std::make_unique<T[]>(kChunk));
    generations_.resize(first + kChunk, 0);
    for (std::uint32_t i = kChunk; i > 0; --i) free_.push_back(first + i - 1);
  }

  std::vector<std::unique_ptr<T[]>> chunks_;
  std::vector<std::uint32_t> generations_;
  std::vector<std::uint32_t> free_;
  std::size_t size_ = 0;
};

}  // namespace baton
