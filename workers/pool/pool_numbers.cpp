#include "workers/pool/pool_numbers.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace baton {

std::optional<std::uint32_t> PoolNumbers::free_number() const {
  for (std::uint32_t number = 1; number < kMostPools; ++number) {
    const bool taken = std::any_of(places_.begin(), places_.end(), [number](const auto& place) {
      return place.second.number == number;
    });
    if (!taken) return number;
  }
  return std::nullopt;
}

Status PoolNumbers::add(AllocationId allocation, const std::byte* begin, std::uint32_t blocks) {
  const std::lock_guard lock(mutex_);
  if (places_.count(allocation) != 0) return {};
  if (const std::uint32_t most = std::max(blocks, places_.at(own_).blocks);
      most > kMostPoolBlocks) {
    return invalid("tables over several pools call blocks up to " +
                   std::to_string(kMostPoolBlocks) + ", not " + std::to_string(most));
  }
  const auto number = free_number();
  if (!number) {
    return Status(ErrorCode::unavailable, "rows read " + std::to_string(kMostPools) +
                                              " pools at most, the own one included");
  }
  places_[allocation] = {*number, begin, blocks};
  return {};
}

void PoolNumbers::remove(AllocationId allocation) {
  const std::lock_guard lock(mutex_);
  if (allocation != own_) places_.erase(allocation);
}

bool PoolNumbers::resolve(const BatchRow& row, std::vector<BlockId>& ids) const {
  const std::lock_guard lock(mutex_);
  std::size_t at = 0;
  for (const TablePart& part : row.before) {
    const auto it = places_.find(part.allocation);
    if (it == places_.end()) return false;
    for (std::uint32_t i = 0; i < part.blocks && at < row.blocks.size(); ++i, ++at) {
      if (row.blocks[at] >= it->second.blocks) return false;
      ids.push_back(it->second.number << kPoolBlockBits | row.blocks[at]);
    }
  }
  ids.insert(ids.end(), row.blocks.begin() + static_cast<std::ptrdiff_t>(at), row.blocks.end());
  return true;
}

std::vector<std::int64_t> PoolNumbers::offsets() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::int64_t> offsets(1, 0);
  const std::byte* const own = places_.at(own_).begin;
  for (const auto& [allocation, place] : places_) {
    offsets.resize(std::max<std::size_t>(offsets.size(), place.number + 1), 0);
    // Two allocations: their difference means something as numbers alone.
    offsets[place.number] =
        reinterpret_cast<std::intptr_t>(place.begin) - reinterpret_cast<std::intptr_t>(own);
  }
  return offsets;
}

const RunStep& ResolvedRows::resolve(const RunStep& step, const PoolNumbers& pools) {
  step_.rows = step.rows;
  tables_.resize(std::max(tables_.size(), step.rows.size()));
  for (std::size_t i = 0; i < step.rows.size(); ++i) {
    tables_[i].clear();
    if (!pools.resolve(step.rows[i], tables_[i])) {
      throw std::logic_error("a row names blocks of a pool that is not mapped");
    }
    step_.rows[i].blocks = tables_[i];
  }
  return step_;
}

}  // namespace baton
