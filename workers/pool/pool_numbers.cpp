#include "workers/pool/pool_numbers.h"

#include <algorithm>
#include <string>

namespace baton {

namespace {

/// Of two allocations: their difference means something as numbers alone.
std::int64_t distance(const std::byte* from, const std::byte* to) {
  return reinterpret_cast<std::intptr_t>(to) - reinterpret_cast<std::intptr_t>(from);
}

}  // namespace

std::optional<std::uint32_t> PoolNumbers::free_number() const {
  for (std::uint32_t number = 1; number < kMostPools; ++number) {
    const bool taken = std::any_of(places_.begin(), places_.end(), [number](const auto& place) {
      return place.second.number() == number;
    });
    if (!taken) return number;
  }
  return std::nullopt;
}

Status PoolNumbers::add(AllocationId allocation, const std::byte* begin, std::uint32_t blocks,
                        PoolHolder holder) {
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
  places_[allocation] = {*number << kPoolBlockBits, begin, blocks, holder};
  return {};
}

void PoolNumbers::remove(AllocationId allocation) {
  const std::lock_guard lock(mutex_);
  if (allocation != own_) places_.erase(allocation);
}

bool PoolNumbers::resolve(const BatchRow& row, std::vector<BlockId>& ids) const {
  const std::lock_guard lock(mutex_);
  return resolve_row(row, places_, ids);
}

std::optional<PoolNumbers::Found> PoolNumbers::find(AllocationId allocation) const {
  const std::lock_guard lock(mutex_);
  const auto it = places_.find(allocation);
  if (it == places_.end()) return std::nullopt;
  const Place& place = it->second;
  return Found{place.number(), distance(places_.at(own_).begin, place.begin), held(place)};
}

std::vector<std::int64_t> PoolNumbers::offsets() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::int64_t> offsets(1, 0);
  const std::byte* const own = places_.at(own_).begin;
  for (const auto& [allocation, place] : places_) {
    offsets.resize(std::max<std::size_t>(offsets.size(), place.number() + 1), 0);
    offsets[place.number()] = distance(own, place.begin);
  }
  return offsets;
}

std::vector<PoolNumbers::Held> PoolNumbers::holders() const {
  const std::lock_guard lock(mutex_);
  std::vector<Held> holders(1);
  for (const auto& [allocation, place] : places_) {
    holders.resize(std::max<std::size_t>(holders.size(), place.number() + 1));
    holders[place.number()] = held(place);
  }
  return holders;
}

PoolNumbers::Held PoolNumbers::held(const Place& place) const {
  if (place.holder.device < 0) return {};
  return {place.holder.device, distance(places_.at(own_).begin, place.holder.begin)};
}

const RunStep& ResolvedRows::resolve(const RunStep& step, const PoolNumbers& pools) {
  resolve_rows(step, pools, tables_);
  step_.rows = step.rows;
  for (std::size_t i = 0; i < step.rows.size(); ++i) step_.rows[i].blocks = tables_[i];
  return step_;
}

}  // namespace baton
