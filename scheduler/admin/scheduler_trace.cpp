#include "scheduler/admin/scheduler_trace.h"

#include <memory>

#include "ipc/process.h"

namespace baton {
namespace {

/// Open requests whose part is told when a trace begins: a quarter of a ring.
constexpr std::size_t kMostOpen = kTraceSlots / 4;

}  // namespace

SchedulerTrace::SchedulerTrace(const std::string& run_dir, const std::string& name, State& state)
    : state_(state),
      log_(*(state.part_log = std::make_shared<PartLog>())),
      tracer_(run_dir, name) {}

void SchedulerTrace::begin_turn(TimeNs now) {
  heard_ = told_ = 0;
  if (tracer_.look(now)) {
    log_.entries.clear();
    std::size_t told = 0;
    state_.requests.each([&](const Request& request) {
      if (request.phase == Phase::ended || ++told > kMostOpen) return;
      part({request.name, request.times.part(), request.times.entered(), false});
    });
  }
  log_.on = tracer_.on();
}

void SchedulerTrace::end_turn(TimeNs began) {
  parts();
  if (!tracer_.on() || (heard_ == 0 && told_ == 0)) return;
  TraceRecord record{.kind = TraceKind::turn, .at = began, .took = now_ns() - began};
  record.args = {heard_, told_};
  tracer_.add(record);
}

void SchedulerTrace::parts() {
  if (log_.entries.empty()) return;
  for (const PartLog::Entry& entry : log_.entries) part(entry);
  log_.entries.clear();
}

void SchedulerTrace::part(const PartLog::Entry& entry) {
  TraceRecord record{.kind = entry.ended ? TraceKind::part_end : TraceKind::part,
                     .part = static_cast<std::uint16_t>(entry.part),
                     .at = entry.at};
  record.args = {entry.request.frontend, entry.request.counter};
  tracer_.add(record);
}

void SchedulerTrace::plan(const std::string& worker, const StepPlan& plan, TimeNs sent) {
  ++told_;
  std::uint64_t tokens = 0;
  for (const PromptRow& row : plan.rows) tokens += row.n_tokens;
  TraceRecord record{.kind = TraceKind::plan, .at = sent, .took = now_ns() - sent};
  record.args = {plan.term, plan.step, plan.rows.size(), tokens};
  tracer_.add(record, worker);
}

void SchedulerTrace::pull(const std::string& worker, const Pull& pull, TimeNs sent) {
  ++told_;
  const OpenPull* open = state_.pulls.find(pull.pull_id);
  const Request* request = open == nullptr ? nullptr : state_.requests.find(open->request);
  const RequestId name = request == nullptr ? RequestId{} : request->name;
  TraceRecord record{.kind = TraceKind::pull_asked, .at = sent, .took = now_ns() - sent};
  record.args = {name.frontend, name.counter, pull.pull_id, pull.from.size()};
  tracer_.add(record, worker);
}

void SchedulerTrace::lost(const std::string& name, TimeNs now) {
  tracer_.add({.kind = TraceKind::lost, .at = now}, name);
}

}  // namespace baton
