// Numbers below a bound in the order of their last use; every operation is O(1) and nothing is
// allocated.
#pragma once

#include <cstdint>
#include <vector>

namespace baton {

class LruList {
 public:
  explicit LruList(std::uint32_t bound = 0) { reset(bound); }

  void reset(std::uint32_t bound) {
    next_.assign(std::size_t{bound} + 1, kNone);
    prev_.assign(std::size_t{bound} + 1, kNone);
    next_[bound] = prev_[bound] = bound;  // the ring's own place
    size_ = 0;
  }
  std::uint32_t size() const { return size_; }
  bool holds(std::uint32_t item) const { return next_[item] != kNone; }
  std::uint32_t oldest() const { return next_.back(); }
  /// The one used next after `item`; ends with bound().
  std::uint32_t after(std::uint32_t item) const { return next_[item]; }
  std::uint32_t bound() const { return static_cast<std::uint32_t>(next_.size() - 1); }
  void push_newest(std::uint32_t item) {
    const std::uint32_t ring = bound();
    prev_[item] = prev_[ring];
    next_[item] = ring;
    next_[prev_[ring]] = item;
    prev_[ring] = item;
    ++size_;
  }
  /// It is the next one that oldest() names.
  void push_oldest(std::uint32_t item) {
    const std::uint32_t ring = bound();
    next_[item] = next_[ring];
    prev_[item] = ring;
    prev_[next_[ring]] = item;
    next_[ring] = item;
    ++size_;
  }
  void erase(std::uint32_t item) {
    next_[prev_[item]] = next_[item];
    prev_[next_[item]] = prev_[item];
    next_[item] = prev_[item] = kNone;
    --size_;
  }

 private:
  static constexpr std::uint32_t kNone = 0xFFFFFFFF;
  std::vector<std::uint32_t> next_;
  std::vector<std::uint32_t> prev_;
  std::uint32_t size_ = 0;
};

}  // namespace baton
