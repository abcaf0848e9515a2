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

namespace baton {

/// Replaces `bytes`.
void encode_rank_step(std::span<const StepRow> rows, std::string& bytes);

/// The rows look into its buffers, which are reused.
class RankStep {
 public:
  /// The error: the bytes are not those of a step.
  Status decode(const std::string& bytes);
  std::span<const StepRow> rows() const { return rows_; }

 private:
  std::vector<Token> tokens_;
  std::vector<BlockId> blocks_;
  std::vector<StepRow> rows_;
};

}  // namespace baton
