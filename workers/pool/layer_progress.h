// A worker's part in prompts that several compute at the same time (docs/adr/0027), whatever its
// device is: it tells how far its own steps are, and its rows wait for the layers of others'.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "workers/pool/step_progress.h"
#include "workers/protocol/step_batch.h"

namespace baton {

/// What waiting has come to in one step.
struct Awaited {
  std::uint32_t waited_us = 0;
  std::vector<FailedRow> failed;  // rows that waited in vain; others go on

  bool in_vain() const { return !failed.empty(); }
  void tell(StepOutput& output) const;
};

/// Its page is told the term, and what steps lack, by the I/O thread; all else is the step
/// thread's, but for written().
class LayerProgress {
 public:
  /// On failure nothing is told, and nobody waits for this worker: prompts are computed by one at a
  /// time.
  void create(const PoolRequest& request);
  /// Empty: nothing is told.
  const std::string& handle() const { return page_.handle(); }
  void begin_term(Term term) { page_.begin_term(term); }
  /// A step that is yet to begin does not write all that others may wait for, since its plan has
  /// rows that are void.
  void lacks_rows(Term term, StepId step) { page_.failed(term, step); }
  /// As PeerProgress::while_waiting(). Before the first step.
  void while_waiting(std::function<void()> tell) { peers_.while_waiting(std::move(tell)); }

  /// Before a step's first layer.
  void begin(const RunStep& step, Awaited& awaited);
  /// Until the workers that its rows wait for have written layers 0 .. layers - 1.
  void await(const RunStep& step, std::uint32_t layers, Awaited& awaited);
  /// Layers 0 .. layers - 1 of a step are written. On any thread; not of a step that has waited in
  /// vain for one of them: what that leaves is nothing that others may go on with.
  void written(Term term, StepId step, std::uint32_t layers) { page_.written(term, step, layers); }

 private:
  void fail(const RunStep& step, std::uint32_t row, std::string reason, Awaited& awaited);
  bool is_spoiled(Term term, SequenceId sequence) const;

  StepProgress page_;
  PeerProgress peers_;
  /// Sequences of which a row has waited in vain. A step that was launched before this was told
  /// would go on with what was never computed.
  std::deque<std::pair<Term, SequenceId>> spoiled_;
};

}  // namespace baton
