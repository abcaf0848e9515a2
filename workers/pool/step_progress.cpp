#include "workers/pool/step_progress.h"

#include <chrono>
#include <new>
#include <thread>

#include "ipc/process.h"

namespace baton {

namespace {

constexpr std::uint64_t kProgressMagic = 0x7373657267726F50;  // "Progress"
constexpr std::size_t kPageBytes = 4096;
static_assert(sizeof(ProgressPage) <= kPageBytes);

/// Between two looks at the writer's process.
constexpr TimeNs kLookAtProcess = 5 * kMillisecond;
/// A layer takes far longer than this: no core is kept from others by whoever waits for one.
constexpr int kSpins = 200;
constexpr TimeNs kYields = kMillisecond / 2;
constexpr auto kNap = std::chrono::microseconds(50);

/// Of processes that ended long ago nobody's rows are waited for.
constexpr std::size_t kMostPages = 64;

}  // namespace

Result<StepProgress> StepProgress::create(const PoolRequest& request) {
  for (const RegionName& left : list_regions(request.run_dir)) {
    const bool older = left.worker == request.worker && left.progress;
    if (older && !process_alive(left.pid, left.pid_start))
      unlink_region(region_name(request.run_dir, left));
  }
  RegionName owner{request.worker, request.pid, request.pid_start, request.allocation};
  owner.progress = true;
  auto region = ShmRegion::create(region_name(request.run_dir, owner), kPageBytes);
  if (!region.ok()) return region.status();
  StepProgress progress(std::move(region).value());
  auto* page = new (progress.region_.writable_data()) ProgressPage;
  page->pid = request.pid;
  page->pid_start = request.pid_start;
  page->magic = kProgressMagic;
  return progress;
}

void StepProgress::begin_term(Term term) {
  if (!region_.mapped()) return;
  const std::lock_guard lock(*lock_);
  page()->term.store(0, std::memory_order_seq_cst);
  if (term == 0) return;
  page()->at.store(0, std::memory_order_release);
  page()->failed.store(0, std::memory_order_release);
  page()->term.store(term, std::memory_order_seq_cst);
}

void StepProgress::written(Term term, StepId step, std::uint32_t layers) {
  if (!region_.mapped()) return;
  const std::lock_guard lock(*lock_);
  if (in_term(term)) page()->at.store(progress_at(step, layers), std::memory_order_release);
}

void StepProgress::failed(Term term, StepId step) {
  if (!region_.mapped()) return;
  const std::lock_guard lock(*lock_);
  if (!in_term(term) || step <= page()->failed.load(std::memory_order_relaxed)) return;
  page()->failed.store(step, std::memory_order_release);
}

LayerState look_at(const ProgressPage& page, Term term, StepId step, std::uint32_t layers) {
  if (page.term.load(std::memory_order_acquire) != term) return LayerState::never;
  const std::uint64_t at = page.at.load(std::memory_order_acquire);
  const std::uint64_t failed = page.failed.load(std::memory_order_acquire);
  if (page.term.load(std::memory_order_acquire) != term) return LayerState::never;
  // A later step that failed says nothing of this one; but this one's word would be overwritten.
  if (failed >= step) return LayerState::never;
  return at >= progress_at(step, layers) ? LayerState::written : LayerState::awaited;
}

Result<const ProgressPage*> PeerProgress::page_of(const std::string& handle) {
  auto known = pages_.find(handle);
  if (known == pages_.end()) {
    auto region = ShmRegion::open_readonly(handle, kPageBytes);
    if (!region.ok()) return region.status();
    if (pages_.size() >= kMostPages) pages_.clear();
    known = pages_.emplace(handle, std::move(region).value()).first;
  }
  const auto* page = reinterpret_cast<const ProgressPage*>(known->second.data());
  if (page->magic != kProgressMagic) return invalid(handle + " is no page of progress");
  return page;
}

std::string PeerProgress::wait(const std::string& handle, Term term, StepId step,
                               std::uint32_t layers) {
  const auto found = page_of(handle);
  if (!found.ok()) return found.status().message();
  const ProgressPage& page = *found.value();
  const auto look = [&] { return look_at(page, term, step, layers); };
  LayerState state = look();
  for (int i = 0; i < kSpins && state == LayerState::awaited; ++i) state = look();
  const TimeNs began = now_ns();
  TimeNs looked = began;
  TimeNs stopped_since = 0;
  TimeNs moved = began;
  std::uint64_t last = page.at.load(std::memory_order_acquire);
  while (state == LayerState::awaited) {
    const TimeNs now = now_ns();
    if (now - began < kYields) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(kNap);
    }
    if (now - looked >= kLookAtProcess) {
      looked = now;
      if (waiting_) waiting_();
      const std::uint64_t at = page.at.load(std::memory_order_acquire);
      if (std::exchange(last, at) != at) moved = now;
      // Its last word may have come just before its end.
      if (!process_alive(page.pid, page.pid_start))
        return look() == LayerState::written ? "" : "its process is gone";
      if (!process_stopped(page.pid))
        stopped_since = 0;
      else if (stopped_since == 0)
        stopped_since = now;
      if (stopped_since != 0 && now - stopped_since >= patience_.stopped)
        return "its process is stopped";
      if (now - moved >= patience_.idle) return "it does not get on";
    }
    state = look();
  }
  return state == LayerState::written ? "" : "its term is over, or it waited in vain itself";
}

}  // namespace baton
