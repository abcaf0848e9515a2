// How far a worker's step is, layer by layer, in a page of shared memory that other workers read:
// a row of theirs that needs keys and values which are still being computed here waits for the
// layer that it is at, not for the step (StepWait).
//
// The writer is one process. Its I/O thread says which term it is in, and which steps lack rows;
// its step thread, what it has written. A reader believes `at` only if `term` was the term that it
// waits for, before and after it looked: the page is cleared between two terms, and what steps of
// the last one say is not told.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "ipc/shm_region.h"
#include "ipc/status.h"
#include "ipc/types.h"
#include "workers/pool/kv_pool.h"

namespace baton {

struct ProgressPage {
  std::uint64_t magic = 0;
  std::int32_t pid = 0;
  std::uint64_t pid_start = 0;
  alignas(64) std::atomic<std::uint64_t> term{0};  // 0: none
  alignas(64) std::atomic<std::uint64_t> at{0};    // progress_at()
  std::atomic<std::uint64_t> failed{0};  // last step of the term that did not write all of its rows
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

constexpr std::uint32_t kProgressLayerBits = 16;
/// Grows from layer to layer and from step to step.
constexpr std::uint64_t progress_at(StepId step, std::uint32_t layers_written) {
  return step << kProgressLayerBits | layers_written;
}

/// This worker's page. Not created: it tells nothing.
class StepProgress {
 public:
  StepProgress() = default;
  /// Removes what killed processes of the same worker have left.
  static Result<StepProgress> create(const PoolRequest& request);

  /// Empty: there is none.
  const std::string& handle() const { return region_.name(); }
  /// 0: out of term. Steps of the term before may still run: what they say is not told any more.
  void begin_term(Term term);
  /// The step's keys and values of layers 0 .. layers-1 are written.
  void written(Term term, StepId step, std::uint32_t layers);
  /// What the step leaves in some row's blocks is not what should be there. Nothing is said of its
  /// later layers. Of one that is yet to run it may be said before an earlier one fails.
  void failed(Term term, StepId step);

 private:
  explicit StepProgress(ShmRegion region)
      : region_(std::move(region)), lock_(std::make_unique<std::mutex>()) {}
  bool in_term(Term term) { return page()->term.load(std::memory_order_relaxed) == term; }
  ProgressPage* page() { return reinterpret_cast<ProgressPage*>(region_.writable_data()); }

  ShmRegion region_;
  /// Between the begin of a term and what a step of the last one says.
  std::unique_ptr<std::mutex> lock_;
};

/// What one look at a page says of a step's layers.
enum class LayerState { awaited, written, never };
LayerState look_at(const ProgressPage& page, Term term, StepId step, std::uint32_t layers);

/// Pages of others. Used by the step thread alone.
class PeerProgress {
 public:
  struct Patience {
    TimeNs idle = 10 * kSecond;    // nothing at all was written meanwhile
    TimeNs stopped = kSecond / 2;  // by a signal
  };
  PeerProgress() : PeerProgress(Patience()) {}
  explicit PeerProgress(Patience patience) : patience_(patience) {}

  /// Called every few milliseconds while wait() waits: so that whoever waits for this process sees
  /// that it lives.
  void while_waiting(std::function<void()> tell) { waiting_ = std::move(tell); }

  /// Waits until that step has written so many layers; empty: it has. Else why it never will: its
  /// term is over, its process is gone or stopped, it waited for somebody in vain itself, or
  /// nothing gets on there.
  std::string wait(const std::string& handle, Term term, StepId step, std::uint32_t layers);

 private:
  Result<const ProgressPage*> page_of(const std::string& handle);

  Patience patience_;
  std::function<void()> waiting_;
  std::map<std::string, ShmRegion> pages_;
};

}  // namespace baton
