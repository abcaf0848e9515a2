// The admin socket's commands: a line in, text out. Pure but for the backend's two requests.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "scheduler/admin/traffic.h"
#include "scheduler/apply/events.h"

namespace baton {

class PullWatch;

/// Figures that the shell keeps beside the state.
struct AdminStats {
  TimeNs uptime = 0;
  std::map<std::string, Traffic::Count> traffic;
  std::vector<std::string> errors;  // newest last
  std::uint64_t undecodable = 0;
};

/// What a command may see and do. Implemented by the scheduler's loop.
class AdminBackend {
 public:
  virtual ~AdminBackend() = default;
  virtual const State& state() const = 0;
  virtual AdminStats stats() const = 0;
  /// The pulls of late, which are noted from the first call on; null: they are not.
  virtual const PullWatch* watch_pulls(TimeNs /*now*/) { return nullptr; }
  /// The event is applied in the loop's next turn.
  virtual void inject(Event event) = 0;
  /// Asks every ready worker for its block tables; the answers collect in tables().
  virtual void request_tables() = 0;
  virtual const std::vector<std::pair<WorkerIndex, Tables>>& tables() const = 0;
};

/// A command whose answer may have to wait: `wait`, `audit`. Asked again until it answers.
class PendingAnswer {
 public:
  virtual ~PendingAnswer() = default;
  /// The answer, or nothing yet.
  virtual std::optional<std::string> poll(AdminBackend& backend, TimeNs now) = 0;
};

struct AdminAnswer {
  std::string text;  // complete unless `pending` is set
  std::unique_ptr<PendingAnswer> pending;
};

/// Executes one line. Unknown commands and bad arguments answer "error: ..." with what is known.
AdminAnswer run_admin_command(std::string_view line, AdminBackend& backend, TimeNs now);

}  // namespace baton
