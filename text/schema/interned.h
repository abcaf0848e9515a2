// Lists of numbers, each kept once.
#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <unordered_map>
#include <vector>

namespace baton::schema {

class Interned {
 public:
  using List = std::vector<std::uint32_t>;

  std::uint32_t id(List list) {
    std::uint64_t hash = 0xCBF29CE484222325ULL;
    for (const std::uint32_t value : list) {
      hash = (hash ^ value) * 0x9E3779B97F4A7C15ULL;
      hash ^= hash >> 29U;
    }
    const auto [from, to] = index_.equal_range(hash);
    for (auto it = from; it != to; ++it) {
      if (lists_[it->second] == list) return it->second;
    }
    const auto made = static_cast<std::uint32_t>(lists_.size());
    bytes_ += 4 * list.size() + sizeof(List) + 48;
    lists_.push_back(std::move(list));
    index_.emplace(hash, made);
    return made;
  }
  const List& operator[](std::uint32_t id) const { return lists_[id]; }
  std::size_t size() const { return lists_.size(); }
  std::size_t bytes() const { return bytes_; }

 private:
  std::deque<List> lists_;
  std::unordered_multimap<std::uint64_t, std::uint32_t> index_;
  std::size_t bytes_ = 0;
};

}  // namespace baton::schema
