#include "frontend/core/work_pool.h"

#include <sys/resource.h>

#include <utility>

namespace baton {
namespace {

// Where there are few processors, small requests and tokens on their way go first.
constexpr int kNice = 5;

}  // namespace

WorkPool::WorkPool(Options options)
    : options_(options), tasks_(options.max_waiting, options.max_bytes) {
  for (std::size_t i = 0; i < options_.threads; ++i) threads_.emplace_back([this] { run(); });
}

bool WorkPool::push(const std::string& owner, std::size_t bytes, std::function<void()> work,
                    std::function<void()> displaced) {
  auto pushed = tasks_.push(owner, {bytes, std::move(work), std::move(displaced)}, bytes);
  for (Task& task : pushed.displaced) {
    if (task.displaced) task.displaced();
  }
  return pushed.taken;
}

void WorkPool::run() {
  setpriority(PRIO_PROCESS, 0, kNice);  // on Linux of this thread alone
  while (auto task = tasks_.pop()) {
    task->work();
    task->work = nullptr;
    task->displaced = nullptr;
    tasks_.finished(task->bytes);
  }
}

void WorkPool::stop() {
  tasks_.close();
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

}  // namespace baton
