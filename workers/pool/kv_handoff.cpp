#include "workers/pool/kv_handoff.h"

#include <chrono>
#include <utility>

namespace baton {

KvHandoff::KvHandoff(std::unique_ptr<BlockReader> reader, Waker& waker, Options options)
    : reader_(std::move(reader)), waker_(waker), options_(options), thread_([this] { run(); }) {}

KvHandoff::~KvHandoff() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  ready_.notify_one();
  thread_.join();
}

void KvHandoff::pull(Pull pull) {
  {
    const std::lock_guard lock(mutex_);
    jobs_.emplace_back(std::move(pull));
    n_jobs_ = jobs_.size();
  }
  ready_.notify_one();
}

void KvHandoff::close(AllocationId allocation) {
  {
    const std::lock_guard lock(mutex_);
    jobs_.emplace_back(Close{allocation});
    n_jobs_ = jobs_.size();
  }
  ready_.notify_one();
}

void KvHandoff::take(std::vector<HandoffEvent>& events) {
  events.clear();
  const std::lock_guard lock(mutex_);
  events.swap(events_);
}

void KvHandoff::report(HandoffEvent event) {
  {
    const std::lock_guard lock(mutex_);
    events_.push_back(std::move(event));
  }
  waker_.wake();
}

void KvHandoff::run() {
  std::optional<Job> job;
  while (next_job(job)) {
    if (job) std::visit([this](const auto& j) { do_job(j); }, *job);
    if (const TimeNs now = now_ns(); now >= watch_at_) {
      watch_at_ = now + options_.watch_ms * kMillisecond;
      watch();
    }
  }
}

/// Waits for a job, or (then `job` is empty) until it is time to look at the exporters. False:
/// stop.
bool KvHandoff::next_job(std::optional<Job>& job) {
  job.reset();
  while (n_jobs_.load(std::memory_order_acquire) == 0 && !stop_ && spin_.again()) {
    if (now_ns() >= watch_at_) return true;
  }
  std::unique_lock lock(mutex_);
  const auto wanted = [this] { return stop_ || !jobs_.empty(); };
  if (mappings_.empty()) {
    ready_.wait(lock, wanted);
  } else {
    ready_.wait_for(lock, std::chrono::milliseconds(options_.watch_ms), wanted);
  }
  if (stop_) return false;
  if (jobs_.empty()) return true;
  job = std::move(jobs_.front());
  jobs_.pop_front();
  n_jobs_ = jobs_.size();
  return true;
}

void KvHandoff::do_job(const Pull& pull) {
  const TimeNs begin = now_ns();
  auto failure = copy(pull);
  const TimeNs end = now_ns();
  const auto us = static_cast<std::uint32_t>((end - begin) / 1000);
  std::vector<BlockId> wrong;
  if (!failure && !pull.sums.empty()) wrong = damaged(pull);
  if (!wrong.empty()) {
    failure = std::to_string(wrong.size()) + " of " + std::to_string(pull.from.size()) +
              " blocks are not what was computed, block " + std::to_string(wrong[0]) + " first";
  }
  report(handoff_event::PullFinished{pull.pull_id, std::move(failure), us, std::move(wrong), begin,
                                     end});
  spin_.heard();
}

/// Source blocks whose copies are not what their exporter's steps had left there.
std::vector<BlockId> KvHandoff::damaged(const Pull& pull) {
  const auto sums = reader_->sums(pull.to);
  if (!sums.ok()) return pull.from;
  std::vector<BlockId> wrong;
  for (std::size_t i = 0; i < pull.from.size(); ++i) {
    if (pull.sums[i] != 0 && pull.sums[i] != sums.value()[i]) wrong.push_back(pull.from[i]);
  }
  return wrong;
}

std::optional<std::string> KvHandoff::copy(const Pull& pull) {
  auto it = mappings_.find(pull.allocation);
  if (it == mappings_.end()) {
    const bool kept = pull.exporter_pid == 0;
    if (!kept && !process_alive(pull.exporter_pid, pull.exporter_pid_start)) {
      return "the exporter, process " + std::to_string(pull.exporter_pid) + ", is gone";
    }
    if (options_.unmappable) return "fault_unmappable is set";
    auto mapped = reader_->map(pull);
    if (!mapped.ok()) return mapped.status().message();
    Mapping mapping{std::move(mapped).value(), pull.exporter_pid, pull.exporter_pid_start, false};
    it = mappings_.emplace(pull.allocation, std::move(mapping)).first;
  }
  if (pull.in_place) {
    if (const Status status = reader_->place(*it->second.pool, pull); !status.ok())
      return status.message();
  }
  if (pull.from.empty()) return std::nullopt;  // a probe: mapped is all that it asked for
  if (options_.pull_delay_ms > 0) {
    std::this_thread::sleep_for(std::chrono::milliseconds(options_.pull_delay_ms));
  }
  MappedPool& exported = *it->second.pool;
  Status status;
  if (options_.wrong_every > 0 && ++copied_ % options_.wrong_every == 0) {
    Pull wrong = pull;
    wrong.from[0] = (wrong.from[0] + 1) % wrong.exporter_blocks;
    status = reader_->copy(exported, wrong);
  } else {
    status = reader_->copy(exported, pull);
  }
  if (!status.ok()) return status.message();
  return std::nullopt;
}

void KvHandoff::do_job(const Close& close) {
  mappings_.erase(close.allocation);
  report(handoff_event::MappingClosed{close.allocation});
}

void KvHandoff::watch() {
  for (auto& [allocation, mapping] : mappings_) {
    if (mapping.gone || mapping.pid == 0 || process_alive(mapping.pid, mapping.pid_start)) continue;
    mapping.gone = true;
    report(handoff_event::ExporterGone{allocation});
  }
}

}  // namespace baton
