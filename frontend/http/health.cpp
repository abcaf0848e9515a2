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

Health judge_model(const ModelSetup& setup, const SchedulerView& view, bool draining, TimeNs now) {
  Health judged = judge_health(view, draining, now);
  if (draining) return judged;
  if (!setup.fault.empty()) return {false, "cannot_load", setup.fault, /*lasting=*/true};
  // Somebody may have started one by hand.
  if (setup.no_workers && judged.status == "loading" && view.epoch != 0) {
    return {false, "no_workers", "no workers are configured", /*lasting=*/true};
  }
  return judged;
}

Health judge_accounting(std::size_t unowned_bytes) {
  if (unowned_bytes == 0) return {true, "ok", ""};
  return {false, "leaking",
          "unfinished requests: " + std::to_string(unowned_bytes) +
              " bytes are counted that no connection holds; restart this front end"};
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

Health join_health(const std::vector<ModelHealth>& models, HealthOf asked) {
  Health joined{true, "ok", ""};
  std::size_t serving = 0;
  const Health* to_blame = nullptr;
  const Health* first = nullptr;
  for (const ModelHealth& one : models) {
    if (one.health.ok) {
      ++serving;
      continue;
    }
    if (first == nullptr) first = &one.health;
    if (to_blame == nullptr && !one.health.lasting) to_blame = &one.health;
    joined.reason += (joined.reason.empty() ? "" : "; ") + one.model + ": " + one.health.reason;
  }
  if (first == nullptr) {
    joined.reason = "all " + std::to_string(models.size()) + " models can serve";
    return joined;
  }
  joined.ok =
      serving > 0 && asked != HealthOf::all && (asked == HealthOf::any || to_blame == nullptr);
  if (joined.ok) return joined;
  const bool able = asked == HealthOf::able && to_blame != nullptr;
  joined.status = able ? to_blame->status : first->status;
  return joined;
}

std::string health_body(const Health& health, const std::vector<std::string>& models,
                        const std::string& version) {
  std::string list;
  for (const std::string& one : models) {
    list += (list.empty() ? "" : ",") + one.substr(0, one.find('\n'));
  }
  return "{\"status\":" + json_string(health.status) + ",\"reason\":" + json_string(health.reason) +
         ",\"version\":" + json_string(version) + ",\"models\":[" + list + "]}\n";
}

}  // namespace baton
