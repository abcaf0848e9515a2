// What a worker tells a trace (ipc/trace_ring.h): its steps and pulls, each when it is given to its
// thread and when it has ended, so that one that kills the worker is seen, too.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "ipc/messages.h"
#include "ipc/trace_ring.h"
#include "workers/protocol/step_batch.h"

namespace baton {

class WorkerTrace {
 public:
  WorkerTrace(const std::string& run_dir, const std::string& name) : tracer_(run_dir, name) {}

  bool on() const { return tracer_.on(); }
  /// In every round of the loop.
  void look(TimeNs now) {
    if (tracer_.look(now) && allocation_ != 0) tell_pool(now);
  }
  void pool(AllocationId allocation, std::uint32_t blocks, TimeNs now);
  void step_given(Term term, const RunStep& step);
  void step(Term term, const RunStep& step, TimeNs began, TimeNs ended);
  void pull_given(const Pull& pull);
  void pull(PullId id, TimeNs began, TimeNs ended, const std::optional<std::string>& failure);

 private:
  void tell_pool(TimeNs now);

  Tracer tracer_;
  AllocationId allocation_ = 0;
  std::uint32_t blocks_ = 0;
};

}  // namespace baton
