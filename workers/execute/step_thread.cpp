#include "workers/execute/step_thread.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <utility>

namespace baton {

namespace {

Hello to_hello(const ModelShape& model, const PoolExport& pool, bool reads_in_place) {
  Hello h;
  h.allocation = pool.allocation;
  h.leased = static_cast<bool>(pool.lease);
  h.ranks = pool.ranks;
  h.model_fingerprint = pool.geometry.model_fingerprint;
  h.dtype = static_cast<std::uint32_t>(pool.geometry.dtype);
  h.layers = pool.geometry.layers;
  h.kv_heads = pool.geometry.kv_heads;
  h.head_dim = pool.geometry.head_dim;
  h.tokens_per_block = pool.geometry.tokens_per_block;
  h.block_bytes = pool.geometry.block_bytes;
  h.blocks = pool.geometry.blocks;
  const KvGroups& groups = pool.geometry.groups;
  h.reads_in_place = reads_in_place && groups.plain();
  if (!groups.plain()) {
    h.windows.assign(groups.windows.begin(), groups.windows.begin() + groups.count);
    h.layer_groups = model.layer_groups;
  }
  h.max_context = model.max_context;
  h.vocab_size = model.vocab_size;
  h.max_step_tokens = model.max_step_tokens;
  h.progress_handle = pool.progress_handle;
  h.host_handle = pool.host_handle;
  h.host_blocks = pool.host_blocks;
  h.host_block_us = pool.host_block_us;
  h.facts = model.facts;
  return h;
}

/// A request that kills its worker, as a real fault of a device would.
void abort_on(Token fault_token, const RunStep& step) {
  for (const BatchRow& row : step.rows) {
    if (row.decode) continue;
    if (std::find(row.tokens.begin(), row.tokens.end(), fault_token) == row.tokens.end()) continue;
    std::fprintf(stderr, "fault_token %d met: abort\n", fault_token);
    std::abort();
  }
}

}  // namespace

StepThread::StepThread(Executor& executor, Waker& waker, Options options)
    : executor_(executor),
      waker_(waker),
      options_(std::move(options)),
      launched_(static_cast<std::size_t>(executor.steps_at_once())),
      thread_([this] { work(); }) {}

StepThread::~StepThread() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  ready_.notify_one();
  thread_.join();
}

void StepThread::allocate(PoolRequest request) {
  {
    const std::lock_guard lock(mutex_);
    jobs_.emplace_back(std::move(request));
    n_jobs_ = jobs_.size();
  }
  ready_.notify_one();
}

void StepThread::run(const RunStep* step) {
  {
    const std::lock_guard lock(mutex_);
    jobs_.emplace_back(step);
    n_jobs_ = jobs_.size();
  }
  ready_.notify_one();
}

void StepThread::take(std::vector<StepEvent>& events) {
  events.clear();
  const std::lock_guard lock(mutex_);
  events.swap(events_);
}

void StepThread::report(StepEvent event) {
  {
    const std::lock_guard lock(mutex_);
    events_.push_back(std::move(event));
  }
  waker_.wake();
}

void StepThread::work() {
  if (!options_.sample_log.empty()) sample_log_.open(options_.sample_log, std::ios::app);
  if (!options_.step_log.empty()) step_log_.open(options_.step_log, std::ios::app);
  load();
  std::optional<Job> job;
  while (next_job(job)) {
    if (!job) {
      collect();
    } else if (const auto* request = std::get_if<PoolRequest>(&*job)) {
      report(allocate_pool(*request));
    } else {
      launch(std::get<const RunStep*>(*job));
    }
  }
}

/// Waits for what comes first: a job, or the end of the oldest step on the device (then `job` is
/// empty). With steps on the device it looks again and again: a sleep would cost as much as a small
/// step. False: stop.
bool StepThread::next_job(std::optional<Job>& job) {
  job.reset();
  while (n_launched_ > 0 && n_jobs_.load(std::memory_order_acquire) == 0) {
    if (executor_.finished()) return true;
    std::this_thread::yield();
  }
  while (n_jobs_.load(std::memory_order_acquire) == 0 && !stop_ && spin_.again()) {
  }
  std::unique_lock lock(mutex_);
  ready_.wait(lock, [this] { return stop_ || !jobs_.empty(); });
  if (stop_) return false;
  job = std::move(jobs_.front());
  jobs_.pop_front();
  n_jobs_ = jobs_.size();
  return true;
}

void StepThread::load() {
  try {
    model_ = executor_.load(percent_);
    if (model_->ok() && options_.max_context > 0) {
      std::uint32_t& context = model_->value().max_context;
      context = std::min(context, options_.max_context);
    }
  } catch (const std::exception& e) {
    model_ = Status(ErrorCode::internal, e.what());
  }
}

StepEvent StepThread::allocate_pool(const PoolRequest& request) {
  if (!model_->ok()) {
    return step_event::PoolFailed{"the model cannot be loaded: " + model_->status().message(),
                                  model_->status().code() == ErrorCode::invalid_argument};
  }
  const TimeNs give_up = now_ns() + options_.allocate_patience;
  while (true) {
    auto pool = executor_.allocate(request);
    if (pool.ok()) {
      return step_event::PoolReady{
          to_hello(model_->value(), pool.value(), executor_.reads_in_place()),
          std::move(pool.value().lease)};
    }
    // What the configuration asks for cannot be had; memory that others still map may come back.
    const bool hopeless = pool.status().code() == ErrorCode::invalid_argument;
    if (hopeless || now_ns() >= give_up)
      return step_event::PoolFailed{pool.status().message(), hopeless};
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
  }
}

void StepThread::launch(const RunStep* step) {
  if (failed_) return;
  if (options_.fault_token >= 0) abort_on(options_.fault_token, *step);
  Launched& l = launched_[(oldest_ + n_launched_) % launched_.size()];
  l.step = step;
  l.at = now_ns();
  if (options_.step_delay_ms > 0) {  // part of what the step takes, as the scheduler measures it
    std::this_thread::sleep_for(std::chrono::milliseconds(options_.step_delay_ms));
  }
  l.output.failed.clear();
  l.output.logprobs.clear();
  l.output.prompt_logprobs.clear();
  l.output.candidates.clear();
  l.output.sums.clear();
  l.output.tokens.assign(step->rows.size(), kNoToken);
  l.output.waited_us = 0;
  l.output.idle_us = l.output.run_us = -1;
  try {
    executor_.launch(*step);
    ++n_launched_;
  } catch (const std::exception& e) {
    failed_ = true;
    report(step_event::StepFailed{e.what()});
  }
}

void StepThread::collect() {
  Launched& l = launched_[oldest_];
  oldest_ = (oldest_ + 1) % launched_.size();
  --n_launched_;
  if (failed_) return;
  try {
    executor_.collect(l.output);
  } catch (const std::exception& e) {
    failed_ = true;
    report(step_event::StepFailed{e.what()});
    return;
  }
  const TimeNs end = now_ns();
  const std::vector<Token>& tokens = l.output.tokens;
  if (sample_log_.is_open() &&
      std::any_of(tokens.begin(), tokens.end(), [](Token token) { return token != kNoToken; })) {
    sample_log_ << end << '\n' << std::flush;
  }
  // A step waits on the device for the one before it: its own time begins there.
  const TimeNs began = std::max(l.at, last_end_);
  l.output.duration_us = static_cast<std::uint32_t>((end - began) / 1000);
  if (step_log_.is_open()) log_step(l, end);
  last_end_ = end;
  spin_.heard();
  report(step_event::StepFinished{&l.output, l.step, began, end});
}

/// "end rows tokens idle run": ns of CLOCK_MONOTONIC, counts, microseconds. Where the device has no
/// clock of its own, idle and run are seen from here.
void StepThread::log_step(const Launched& launched, TimeNs end) {
  const StepOutput& o = launched.output;
  const TimeNs idle = last_end_ == 0 ? 0 : std::max<TimeNs>(launched.at - last_end_, 0);
  step_log_ << end << ' ' << launched.step->rows.size() << ' ' << launched.step->tokens.size()
            << ' ' << (o.idle_us >= 0 ? o.idle_us : static_cast<float>(idle) * 1e-3F) << ' '
            << (o.run_us >= 0 ? o.run_us : static_cast<float>(o.duration_us)) << '\n'
            << std::flush;
}

}  // namespace baton
