#include "workers/execute/gpu_progress.h"

#include <algorithm>
#include <utility>

#include "ipc/process.h"
#include "workers/cuda/device.h"

namespace baton {

namespace {

/// A callback holds the stream up for some ten microseconds: small steps tell their last layer
/// alone.
constexpr std::size_t kTokensOfEach = 256;

}  // namespace

void GpuProgress::create(const PoolRequest& request) {
  auto page = StepProgress::create(request);
  if (page.ok()) page_ = std::move(page).value();
}

void GpuProgress::begin_term(Term term) { page_.begin_term(term); }

void GpuProgress::begin(OfStep& of, const RunStep& step, int layers) {
  of.step = &step;
  of.layers = layers;
  of.each = step.tokens.size() >= kTokensOfEach;
  of.in_vain = spoiled_.any_of(step.term, step.rows);
  if (of.in_vain) failed(step);
  of.waited_us = 0;
  of.failed.clear();
  of.tells.clear();
  of.tells.reserve(static_cast<std::size_t>(layers));
}

void GpuProgress::queued(OfStep& of, std::uint32_t layers, cuda::Stream stream) {
  await(of, layers);
  const bool last = layers == static_cast<std::uint32_t>(of.layers);
  if (of.in_vain || !tells() || !(of.each || last)) return;
  of.tells.push_back({this, of.step->term, of.step->step, layers});
  cuda::call_host(
      stream,
      [](void* tell) {
        const auto& told = *static_cast<const Tell*>(tell);
        told.owner->written(told);
      },
      &of.tells.back());
}

void GpuProgress::await(OfStep& of, std::uint32_t layers) {
  if (of.in_vain || of.step->waits.empty()) return;
  const TimeNs began = now_ns();
  for (const RowWait& wait : of.step->waits) {
    const std::string why = peers_.wait(wait.handle, wait.term, wait.step, layers);
    if (why.empty()) continue;
    of.in_vain = true;
    spoiled_.add(of.step->term, of.step->rows[wait.row].sequence);
    of.failed.push_back({wait.row, "another worker has not written what it reads: " + why, true});
  }
  if (of.in_vain) failed(*of.step);
  of.waited_us += static_cast<std::uint32_t>((now_ns() - began) / 1000);
}

void GpuProgress::written(const Tell& tell) { page_.written(tell.term, tell.step, tell.layers); }

void GpuProgress::failed(const RunStep& step) { page_.failed(step.term, step.step); }

}  // namespace baton
