// One step of the forward pass as bytes: what rank 0 gives the others to run with it. Between
// processes of one build and one user, so its numbers are as they lie in memory; lengths are
// checked all the same.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "ipc/status.h"
#include "workers/model/llama.h"
#include "workers/pool/pool_window.h"
#include "workers/protocol/step_batch.h"

namespace baton {

/// Replaces `bytes`. Tables go as the scheduler names them: what lies in other workers' pools has
/// another id in each rank's window.
void encode_rank_step(const RunStep& step, std::string& bytes);

/// The rows look into its buffers, which are reused.
class RankStep {
 public:
  /// The error: the bytes are not those of a step.
  Status decode(const std::string& bytes);
  /// Some row waits for another worker: the ranks meet before each layer's attention.
  bool awaits() const { return awaits_; }
  /// Some row begins with blocks of other pools: rows_in().
  bool reads_in_place() const { return step_.reads_in_place; }
  std::span<const StepRow> rows() const { return rows_; }
  /// The same with tables as the window has them. Throws std::logic_error where a pool is not
  /// there: rank 0 names what all ranks have mapped.
  std::span<const StepRow> rows_in(const PoolWindow& window);

 private:
  bool awaits_ = false;
  RunStep step_;  // its rows' places and tables alone
  std::vector<StepRow> rows_;
  std::vector<std::vector<BlockId>> tables_;  // of rows_in()
};

}  // namespace baton
