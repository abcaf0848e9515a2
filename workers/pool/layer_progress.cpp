#include "workers/pool/layer_progress.h"

#include <algorithm>

#include "ipc/process.h"

namespace baton {

namespace {

/// More than can be in the steps under way.
constexpr std::size_t kMostSpoiled = 64;

}  // namespace

void Awaited::tell(StepOutput& output) const {
  output.waited_us = waited_us;
  output.failed.insert(output.failed.end(), failed.begin(), failed.end());
}

void LayerProgress::create(const PoolRequest& request) {
  auto page = StepProgress::create(request);
  if (page.ok()) page_ = std::move(page).value();
}

void LayerProgress::begin(const RunStep& step, Awaited& awaited) {
  awaited.waited_us = 0;
  awaited.failed.clear();
  if (spoiled_.empty()) return;
  for (std::uint32_t row = 0; row < step.rows.size(); ++row) {
    if (is_spoiled(step.term, step.rows[row].sequence))
      fail(step, row, "what it goes on with was never computed", awaited);
  }
}

void LayerProgress::await(const RunStep& step, std::uint32_t layers, Awaited& awaited) {
  if (step.waits.empty()) return;
  const TimeNs began = now_ns();
  for (const RowWait& wait : step.waits) {
    const bool failed =
        std::any_of(awaited.failed.begin(), awaited.failed.end(),
                    [&wait](const FailedRow& known) { return known.row == wait.row; });
    if (failed) continue;
    const std::string why = peers_.wait(wait.handle, wait.term, wait.step, layers);
    if (!why.empty())
      fail(step, wait.row, "another worker has not written what it reads: " + why, awaited);
  }
  awaited.waited_us += static_cast<std::uint32_t>((now_ns() - began) / 1000);
}

void LayerProgress::fail(const RunStep& step, std::uint32_t row, std::string reason,
                         Awaited& awaited) {
  page_.failed(step.term, step.step);
  awaited.failed.push_back({row, std::move(reason), true});
  const SequenceId sequence = step.rows[row].sequence;
  if (is_spoiled(step.term, sequence)) return;
  spoiled_.emplace_back(step.term, sequence);
  if (spoiled_.size() > kMostSpoiled) spoiled_.pop_front();
}

bool LayerProgress::is_spoiled(Term term, SequenceId sequence) const {
  return std::find(spoiled_.begin(), spoiled_.end(), std::pair(term, sequence)) != spoiled_.end();
}

}  // namespace baton
