#include "workers/protocol/pull_table.h"

#include <algorithm>
#include <utility>

namespace baton {

namespace {

std::optional<std::string> shape_problem(const Pull& pull, std::uint32_t own_blocks) {
  if (pull.from.size() != pull.to.size()) {
    return "the pull names " + std::to_string(pull.from.size()) + " source and " +
           std::to_string(pull.to.size()) + " target blocks";
  }
  if (!pull.sums.empty() && pull.sums.size() != pull.from.size()) {
    return "the pull names " + std::to_string(pull.from.size()) + " blocks and " +
           std::to_string(pull.sums.size()) + " checksums";
  }
  for (const BlockId block : pull.from) {
    if (block >= std::uint64_t{pull.exporter_blocks} + pull.exporter_host_blocks) {
      return "source block " + std::to_string(block) + " of a pool of " +
             std::to_string(pull.exporter_blocks) + " and " +
             std::to_string(pull.exporter_host_blocks) + " on the host";
    }
  }
  for (const BlockId block : pull.to) {
    if (block >= own_blocks) {
      return "target block " + std::to_string(block) + " of a pool of " +
             std::to_string(own_blocks);
    }
  }
  return std::nullopt;
}

}  // namespace

std::optional<std::string> PullTable::add(Pull&& pull, std::uint32_t own_blocks,
                                          std::size_t max_open) {
  if (open() >= max_open) return "too many open pulls (" + std::to_string(max_open) + ")";
  if (auto problem = shape_problem(pull, own_blocks)) return problem;
  const auto known = mappings_.find(pull.allocation);
  if (known != mappings_.end() && known->second.want_close) {
    return "the exporter's pool is being closed";
  }
  ++mappings_[pull.allocation].open;
  waiting_.push_back(std::move(pull));
  return std::nullopt;
}

std::optional<Pull> PullTable::next(std::size_t at_once) {
  if (waiting_.empty() || out_.size() >= at_once) return std::nullopt;
  Pull pull = std::move(waiting_.front());
  waiting_.pop_front();
  out_.push_back({pull.pull_id, pull.allocation, pull.in_place ? pull.exporter_blocks : 0});
  return pull;
}

bool PullTable::finished(PullId pull_id, bool good) {
  const auto it =
      std::find_if(out_.begin(), out_.end(), [&](const Out& o) { return o.pull_id == pull_id; });
  if (it == out_.end()) return false;
  release(it->allocation);
  const auto mapping = mappings_.find(it->allocation);
  if (good && it->in_place != 0 && mapping != mappings_.end())
    mapping->second.readable = it->in_place;
  out_.erase(it);
  return true;
}

void PullTable::forget_waiting() {
  for (const Pull& pull : waiting_) release(pull.allocation);
  waiting_.clear();
}

bool PullTable::knows(PullId pull_id) const {
  return std::any_of(out_.begin(), out_.end(),
                     [&](const Out& o) { return o.pull_id == pull_id; }) ||
         std::any_of(waiting_.begin(), waiting_.end(),
                     [&](const Pull& p) { return p.pull_id == pull_id; });
}

std::vector<AllocationId> PullTable::mapped() const {
  std::vector<AllocationId> allocations;
  for (const auto& [allocation, mapping] : mappings_) allocations.push_back(allocation);
  return allocations;
}

void PullTable::want_close(AllocationId allocation) {
  const auto it = mappings_.find(allocation);
  if (it != mappings_.end()) it->second.want_close = true;
}

std::uint32_t PullTable::readable(AllocationId allocation) const {
  const auto it = mappings_.find(allocation);
  return it == mappings_.end() || it->second.want_close ? 0 : it->second.readable;
}

bool PullTable::wants_closes() const {
  return std::any_of(mappings_.begin(), mappings_.end(), [](const auto& entry) {
    return entry.second.want_close && !entry.second.closing;
  });
}

std::vector<AllocationId> PullTable::begin_closes(const std::function<bool(AllocationId)>& reads) {
  std::vector<AllocationId> ready;
  for (auto& [allocation, mapping] : mappings_) {
    if (!mapping.want_close || mapping.closing || mapping.open > 0 || reads(allocation)) continue;
    mapping.closing = true;
    ready.push_back(allocation);
  }
  return ready;
}

void PullTable::release(AllocationId allocation) {
  const auto it = mappings_.find(allocation);
  if (it != mappings_.end() && it->second.open > 0) --it->second.open;
}

}  // namespace baton
