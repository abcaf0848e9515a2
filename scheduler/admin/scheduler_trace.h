// What the scheduler tells a trace (ipc/trace_ring.h): rounds that had work, plans and pulls as
// they are sent, the parts that requests enter, and whose process has ended. Off, each call is a
// look at one word.
#pragma once

#include <cstdint>
#include <string>

#include "ipc/messages.h"
#include "ipc/trace_ring.h"
#include "scheduler/state/cluster_state.h"

namespace baton {

class SchedulerTrace {
 public:
  /// `state` outlives this, and is told that a log of parts is wanted.
  /// `name`: of the process.
  SchedulerTrace(const std::string& run_dir, const std::string& name, State& state);

  bool on() const { return tracer_.on(); }
  /// At the beginning and at the end of a round.
  void begin_turn(TimeNs now);
  void end_turn(TimeNs began);
  void heard() { ++heard_; }

  void plan(const std::string& worker, const StepPlan& plan, TimeNs sent);
  void pull(const std::string& worker, const Pull& pull, TimeNs sent);
  void lost(const std::string& name, TimeNs now);

 private:
  void part(const PartLog::Entry& entry);
  void parts();

  State& state_;
  PartLog& log_;
  Tracer tracer_;
  std::uint32_t heard_ = 0;
  std::uint32_t told_ = 0;
};

}  // namespace baton
