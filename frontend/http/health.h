// Is this front end able to serve? Judged by progress, not by a pulse. Pure.
#pragma once

#include <string>

#include "frontend/core/request_table.h"
#include "ipc/types.h"

namespace baton {

struct HealthLimits {
  TimeNs silence = 3 * kSecond;  // the scheduler answers two heartbeats a second
  TimeNs stuck = 15 * kSecond;   // requests are running, and no step has ended for this long
};

struct Health {
  bool ok = false;
  std::string status;  // ok, loading, draining, stuck, no_scheduler
  std::string reason;  // a sentence for a person
};

/// True while the scheduler answers.
bool scheduler_live(const SchedulerView& view, TimeNs now, const HealthLimits& limits = {});
Health judge_health(const SchedulerView& view, bool draining, TimeNs now,
                    const HealthLimits& limits = {});
/// The body of GET /health.
std::string health_body(const Health& health, const SchedulerView& view, const std::string& model,
                        const std::string& version);

}  // namespace baton
