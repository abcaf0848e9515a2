// Reading other workers' pools where a worker has ranks: rank 0 is asked, and all ranks do what
// each must do itself. On GPUs, where each has a pool of its heads, that is everything; on CPUs,
// where all have one pool, rank 0 copies alone, and every rank maps what rows read in place. A
// second thread of each rank does it, beside the steps.
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
  /// Who copies: every rank its heads, or rank 0 whole blocks.
  enum class Copies { by_all, by_rank_0 };

  /// `all` outlives it. `on_lost`: a rank has not come, or is gone; the group is over, and this
  /// process with it.
  RankBlockReader(std::unique_ptr<BlockReader> own, Collective& all, Copies copies,
                  std::function<void(const RankLost&)> on_lost);
  Result<std::unique_ptr<MappedPool>> map(const Pull& pull) override;
  Status copy(MappedPool& exported, const Pull& pull) override;
  /// On return every rank can read it in place, or no step names it.
  Status place(MappedPool& exported, const Pull& pull) override;
  Result<std::vector<std::uint64_t>> sums(const std::vector<BlockId>& blocks) override;

 private:
  class Mapped;
  void unmap(std::uint64_t number);
  Status all_do(const std::string& asked, const std::function<Status()>& own);
  const std::unique_ptr<BlockReader> own_;
  Collective& all_;
  const Copies copies_;
  const std::function<void(const RankLost&)> on_lost_;
  std::uint64_t last_ = 0;  // mapping's number
};

/// The other ranks': does what rank 0 says until the group is over; then throws RankLost.
[[noreturn]] void follow_pulls(BlockReader& own, Collective& all);

}  // namespace baton
