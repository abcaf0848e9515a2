#include "frontend/chat/template_pool.h"

#include <chrono>
#include <utility>

namespace baton {

TemplatePool::TemplatePool(TemplateSetup setup, Options options)
    : setup_(std::move(setup)), options_(options) {
  threads_.emplace_back([this] { keep(); });
  for (std::size_t i = 0; i < options_.threads; ++i) threads_.emplace_back([this] { work(); });
}

void TemplatePool::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  tasks_.close();
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

bool TemplatePool::await_tried(TimeNs at_most) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, std::chrono::nanoseconds(at_most), [this] { return tried_; });
}

Status TemplatePool::await_first(TimeNs at_most) {
  if (!await_tried(at_most)) {
    return Status(ErrorCode::unavailable, "their renderer has not started yet");
  }
  const std::lock_guard lock(mutex_);
  return failure_;
}

std::vector<Status> TemplatePool::await_all(const std::vector<TemplatePool*>& pools, TimeNs at_most,
                                            const std::function<void()>& alive) {
  constexpr TimeNs kTouch = 100 * kMillisecond;
  const TimeNs until = now_ns() + at_most;
  std::vector<Status> started;
  for (TemplatePool* pool : pools) {
    TimeNs left = 0;
    do {
      alive();
      left = std::max<TimeNs>(0, until - now_ns());
    } while (!pool->await_tried(std::min(left, kTouch)) && left > 0);
    started.push_back(pool->await_first(0));
  }
  return started;
}

std::vector<pid_t> TemplatePool::idle_pids() {
  const std::lock_guard lock(mutex_);
  std::vector<pid_t> pids;
  for (const Process& process : idle_) pids.push_back(process->pid());
  return pids;
}

bool TemplatePool::render(std::string request, const std::string& owner,
                          std::function<bool()> wanted, Done done) {
  const auto pushed = tasks_.push(owner, {std::move(request), std::move(wanted), std::move(done)});
  for (const Task& task : pushed.displaced) {
    task.done(Status(ErrorCode::queue_full, kTooManyChats));
  }
  return pushed.taken;
}

// Starts processes until there are enough. They die with the thread that started them, which lives
// as long as the pool.
void TemplatePool::keep() {
  std::unique_lock lock(mutex_);
  const auto enough = [this] { return idle_.size() + lent_ >= options_.threads + options_.spares; };
  for (;;) {
    changed_.wait(lock, [&] { return stopping_ || !enough(); });
    if (stopping_) return;
    lock.unlock();
    auto process = TemplateProcess::start(setup_);
    lock.lock();
    tried_ = true;
    failure_ = process.status();
    if (process.ok()) idle_.push_back(std::move(process).value());
    changed_.notify_all();
    if (failure_.ok()) continue;
    changed_.wait_for(lock, std::chrono::nanoseconds(options_.retry), [this] { return stopping_; });
  }
}

Result<TemplatePool::Process> TemplatePool::take_process() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return stopping_ || !idle_.empty() || !failure_.ok(); });
  if (stopping_) return Status(ErrorCode::unavailable, "this front end is shutting down");
  if (idle_.empty()) return Status(ErrorCode::unavailable, failure_.message());
  Process process = std::move(idle_.back());
  idle_.pop_back();
  ++lent_;
  return process;
}

void TemplatePool::give_back(Process process) {
  if (!process->usable()) process.reset();
  const std::lock_guard lock(mutex_);
  --lent_;
  if (process) idle_.push_back(std::move(process));
  changed_.notify_all();
}

void TemplatePool::work() {
  while (auto task = tasks_.pop()) {
    task->done(task->wanted() ? render_now(task->request)
                              : Status(ErrorCode::cancelled, "nobody waits for it"));
  }
}

Result<std::string> TemplatePool::render_now(const std::string& request) {
  // A process may have been killed while it was idle; one that ends twice does so over the request.
  for (int attempt = 0; attempt < 2; ++attempt) {
    Result<Process> process = take_process();
    if (!process.ok()) return process.status();
    Result<std::string> rendered = process.value()->render(request);
    give_back(std::move(process).value());
    if (rendered.status().code() != ErrorCode::unavailable) return rendered;
  }
  return invalid("the renderer of chat templates ended on these messages");
}

}  // namespace baton
