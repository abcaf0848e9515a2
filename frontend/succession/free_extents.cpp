#include "frontend/succession/free_extents.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>

namespace baton {

FreeExtents::FreeExtents(std::uint32_t count) : free_(count), fresh_(count) {
  for (std::uint32_t i = 0; i < count; ++i) free_[i] = count - 1 - i;
}

std::optional<std::uint32_t> FreeExtents::take() {
  if (free_.empty()) return std::nullopt;
  const std::uint32_t extent = free_.back();
  free_.pop_back();
  fresh_ = std::min(fresh_, free_.size());
  least_ = std::min(least_, with_memory());
  return extent;
}

void FreeExtents::give_back(std::span<const std::uint32_t> extents) {
  free_.insert(free_.end(), extents.rbegin(), extents.rend());
}

std::vector<std::uint32_t> FreeExtents::take_idle(std::size_t keep, std::size_t at_most) {
  const std::size_t idle = std::min(least_ - std::min(least_, keep), at_most);
  const auto first = free_.begin() + static_cast<std::ptrdiff_t>(fresh_);
  const auto last = first + static_cast<std::ptrdiff_t>(idle);
  std::vector<std::uint32_t> taken(first, last);
  free_.erase(first, last);
  least_ = with_memory();
  return taken;
}

void FreeExtents::put_released(std::span<const std::uint32_t> extents) {
  free_.insert(free_.begin(), extents.begin(), extents.end());
  fresh_ += extents.size();
}

void release_extents(std::span<std::byte> memory, std::size_t first, std::size_t extent_bytes,
                     std::vector<std::uint32_t> extents) {
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  std::sort(extents.begin(), extents.end());
  for (std::size_t i = 0; i < extents.size();) {
    std::size_t end = i + 1;  // of the extents that lie one behind the other
    while (end < extents.size() && extents[end] == extents[end - 1] + 1) ++end;
    const std::size_t from = (first + extents[i] * extent_bytes + page - 1) / page * page;
    const std::size_t to =
        (first + (extents[end - 1] + std::size_t{1}) * extent_bytes) / page * page;
    // What cannot be released stays, as all of it did before.
    if (from < to) madvise(memory.data() + from, to - from, MADV_REMOVE);
    i = end;
  }
}

}  // namespace baton
