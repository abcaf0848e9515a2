#include "workers/worker_trace.h"

#include <algorithm>

#include "ipc/process.h"

namespace baton {

void WorkerTrace::pool(AllocationId allocation, std::uint32_t blocks, TimeNs now) {
  allocation_ = allocation;
  blocks_ = blocks;
  if (on()) tell_pool(now);
}

void WorkerTrace::tell_pool(TimeNs now) {
  TraceRecord record{.kind = TraceKind::pool, .at = now};
  record.args = {allocation_, blocks_};
  tracer_.add(record);
}

void WorkerTrace::step_given(Term term, const RunStep& step) {
  TraceRecord record{.kind = TraceKind::step_given, .at = now_ns()};
  record.args = {term, step.step};
  tracer_.add(record);
}

void WorkerTrace::step(Term term, const RunStep& step, TimeNs began, TimeNs ended) {
  const auto decoding = static_cast<std::uint64_t>(std::count_if(
      step.rows.begin(), step.rows.end(), [](const BatchRow& row) { return row.decode; }));
  TraceRecord record{.kind = TraceKind::step, .at = began, .took = ended - began};
  record.args = {term, step.step, std::uint64_t{step.rows.size()} << 32U | step.tokens.size(),
                 decoding << 32U | step.copies.size()};
  tracer_.add(record);
}

void WorkerTrace::pull_given(const Pull& pull) {
  TraceRecord record{.kind = TraceKind::pull_given, .at = now_ns()};
  record.args = {pull.pull_id, pull.allocation, pull.from.size()};
  tracer_.add(record);
}

void WorkerTrace::pull(PullId id, TimeNs began, TimeNs ended,
                       const std::optional<std::string>& failure) {
  TraceRecord record{.kind = TraceKind::pull, .at = began, .took = ended - began};
  record.args = {id};
  tracer_.add(record, failure ? *failure : std::string());
}

}  // namespace baton
