// Is this front end able to serve? Judged by progress, not by a pulse. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "frontend/core/request_table.h"
#include "ipc/types.h"

namespace baton {

struct HealthLimits {
  TimeNs silence = 3 * kSecond;  // the scheduler answers two heartbeats a second
  TimeNs stuck = 15 * kSecond;   // requests are running, and no step has ended for this long
};

struct Health {
  bool ok = false;
  std::string
      status;  // ok, loading, draining, stuck, no_scheduler, cannot_load, no_workers, leaking
  std::string reason;  // a sentence for a person
  bool lasting = false;  // it cannot serve, and will not until somebody mends something
};

/// True while the scheduler answers.
bool scheduler_live(const SchedulerView& view, TimeNs now, const HealthLimits& limits = {});
Health judge_health(const SchedulerView& view, bool draining, TimeNs now,
                    const HealthLimits& limits = {});
/// What of a model is known before any scheduler says something.
struct ModelSetup {
  std::string fault;        // ServedModel::fault, or why none of its workers can run
  bool no_workers = false;  // the configuration has none for it
};
/// The same, of one of several models.
Health judge_model(const ModelSetup& setup, const SchedulerView& view, bool draining, TimeNs now);
/// Of the process: fails when its accounting of clients' bytes is wrong, since it would refuse
/// requests for bytes that nobody holds. `unowned_bytes`: HttpServerCounters::unowned_bytes.
Health judge_accounting(std::size_t unowned_bytes);
/// The body of GET /health.
std::string health_body(const Health& health, const SchedulerView& view, const std::string& model,
                        const std::string& version);

/// One of several models that a front end serves.
struct ModelHealth {
  std::string model;
  Health health;
};

/// What is asked of several models together.
enum class HealthOf : std::uint8_t {
  able,  // every model that can be served at all can serve now, and there is one
  any,   // any of them can
  all,   // each of them can
};
/// Else the state of the first that is to blame. The sentence names all that cannot serve, whether
/// they are to blame or not.
Health join_health(const std::vector<ModelHealth>& models, HealthOf asked);
/// The body for several models: `models` are the bodies of each.
std::string health_body(const Health& health, const std::vector<std::string>& models,
                        const std::string& version);

}  // namespace baton
