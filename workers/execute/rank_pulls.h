// Reading other workers' pools where each rank has a pool of its own: rank 0 is asked, and all
// ranks do the same, each for its heads. A second thread of each rank does it, beside the steps.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "workers/collective/collective.h"
#include "workers/execute/executor.h"

namespace baton {

/// Rank 0's: its own reader, and everybody else's.
class RankBlockReader final : public BlockReader {
 public:
  /// `all` outlives it. `on_lost`: a rank has not come, or is gone; the group is over, and this
  /// process with it.
  RankBlockReader(std::unique_ptr<BlockReader> own, Collective& all,
                  std::function<void(const RankLost&)> on_lost);
  Result<std::unique_ptr<MappedPool>> map(const Pull& pull) override;
  Status copy(MappedPool& exported, const Pull& pull) override;
  Result<std::vector<std::uint64_t>> sums(const std::vector<BlockId>& blocks) override;

 private:
  class Mapped;
  void unmap(std::uint64_t number);
  Status all_do(const std::string& asked, const std::function<Status()>& own);
  const std::unique_ptr<BlockReader> own_;
  Collective& all_;
  const std::function<void(const RankLost&)> on_lost_;
  std::uint64_t last_ = 0;  // mapping's number
};

/// The other ranks': does what rank 0 says until the group is over; then throws RankLost.
[[noreturn]] void follow_pulls(BlockReader& own, Collective& all);

}  // namespace baton
