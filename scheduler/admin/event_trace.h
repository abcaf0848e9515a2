// An optional trace of what was sent and received, one JSON object a line, in the order in which
// the scheduler saw it. Tests prove claims of order from it; nothing reads a clock to compare.
#pragma once

#include <cstdint>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "ipc/process.h"
#include "scheduler/apply/events.h"

namespace baton {

class EventTrace {
 public:
  /// Empty path: off, and every call is a branch. Appends: a restarted scheduler goes on.
  explicit EventTrace(const std::string& path);
  bool on() const { return file_.is_open(); }

  /// `sent`: when it was about to leave. Written down afterwards: nothing waits for the trace.
  void plan(const State& state, const std::string& worker, const StepPlan& plan, TimeNs sent);
  void pull(const State& state, const std::string& worker, const Pull& pull, TimeNs sent);
  void result(const std::string& worker, const StepResult& result);
  void pull_done(const std::string& worker, const PullDone& done);
  void pull_failed(const std::string& worker, const PullFailed& failed);
  void tokens(const Events& events);

 private:
  void line(nlohmann::json object, TimeNs at = now_ns());
  std::ofstream file_;
  std::uint64_t number_ = 0;
};

}  // namespace baton
