#include "frontend/http/health.h"

#include "frontend/http/sse.h"

namespace baton {

bool scheduler_live(const SchedulerView& view, TimeNs now, const HealthLimits& limits) {
  return view.welcomed && now - view.heard_at <= limits.silence;
}

Health judge_health(const SchedulerView& view, bool draining, TimeNs now,
                    const HealthLimits& limits) {
  if (draining) return {false, "draining", "this front end is shutting down"};
  if (view.epoch == 0) return {false, "loading", "no scheduler has answered yet"};
  if (!scheduler_live(view, now, limits)) {
    return {false, "no_scheduler", "the scheduler does not answer; open requests wait for it"};
  }
  if (view.workers_ready == 0) {
    return {false, "loading",
            "no worker is ready: the model is being loaded, or all workers are gone"};
  }
  if (view.running > 0 && now - view.progress_at > limits.stuck) {
    return {false, "stuck",
            "requests are running, but no step has ended for " +
                std::to_string((now - view.progress_at) / kSecond) + " s"};
  }
  return {true, "ok",
          std::to_string(view.workers_ready) +
              (view.workers_ready == 1 ? " worker is ready" : " workers are ready")};
}

std::string health_body(const Health& health, const SchedulerView& view, const std::string& model,
                        const std::string& version) {
  return "{\"status\":" + json_string(health.status) + ",\"reason\":" + json_string(health.reason) +
         ",\"model\":" + json_string(model) + ",\"version\":" + json_string(version) +
         ",\"workers_ready\":" + std::to_string(view.workers_ready) +
         ",\"requests_running\":" + std::to_string(view.running) +
         ",\"requests_waiting\":" + std::to_string(view.waiting) +
         ",\"max_context\":" + std::to_string(view.max_context) +
         ",\"steps\":" + std::to_string(view.progress) + "}\n";
}

}  // namespace baton
