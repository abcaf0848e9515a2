#include "frontend/grammar/grammar_checker.h"

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <optional>
#include <utility>

namespace baton {
namespace {

constexpr std::size_t kMaxReply = 8192;
constexpr const char* kName = "baton-grammar";

}  // namespace

std::string GrammarChecker::Options::program_path() {
  std::error_code failed;
  const auto self = std::filesystem::read_symlink("/proc/self/exe", failed);
  if (failed) return kName;
  const auto beside = self.parent_path() / kName;
  if (std::filesystem::exists(beside, failed)) return beside;
  return self.parent_path().parent_path() / "bin" / kName;
}

GrammarChecker::GrammarChecker(Options options) : options_(std::move(options)) {
  const TimeNs quick = std::min(options_.quick_cpu, options_.cpu);
  threads_.emplace_back([this, quick] { work(quick_, quick); });
  for (std::size_t i = 0; i < options_.slow_threads; ++i) {
    threads_.emplace_back([this] { work(slow_, options_.cpu); });
  }
}

void GrammarChecker::stop() {
  quick_.close();
  slow_.close();
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    for (const pid_t pid : processes_) ::kill(pid, SIGKILL);
  }
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

bool GrammarChecker::check(GrammarKind kind, const std::string& text, const std::string& owner,
                           std::function<bool()> wanted, Done done) {
  std::string frame = grammar_frame(kind, text);
  std::optional<Status> found;
  {
    const std::lock_guard lock(mutex_);
    const auto known = index_.find(frame);
    if (known != index_.end()) {
      known_.splice(known_.begin(), known_, known->second);
      found = known->second->status;
    }
  }
  if (!found) return push(quick_, {std::move(frame), owner, std::move(wanted), std::move(done)});
  done(*found);
  return true;
}

bool GrammarChecker::push(Queue& queue, Task task) {
  const std::string owner = task.owner;
  const auto pushed = queue.push(owner, std::move(task));
  for (const Task& one : pushed.displaced) {
    one.done(Status(ErrorCode::queue_full, kTooManyGrammars));
  }
  return pushed.taken;
}

void GrammarChecker::work(Queue& queue, TimeNs cpu) {
  const bool last = cpu >= options_.cpu;
  Process process;  // dies with this thread
  if (&queue == &quick_) {
    const Status started = start(process, cpu);  // else the first request is told why
    if (!started.ok()) end(process);
  }
  while (auto task = queue.pop()) {
    Status status = task->wanted() ? ask(process, *task, cpu)
                                   : Status(ErrorCode::cancelled, "nobody waits for it");
    if (status.code() == ErrorCode::deadline_exceeded) {
      if (!last) {
        const Done done = task->done;
        if (push(slow_, std::move(*task))) continue;
        done(Status(ErrorCode::queue_full,
                    "too many requests wait for grammars that take long to compile"));
        continue;
      }
      status = invalid(status.message());
    }
    if (status.ok() || status.code() == ErrorCode::invalid_argument) remember(task->frame, status);
    task->done(status);
  }
  end(process);
}

/// A process that was gone is replaced once: it does its work in children, so that a grammar does
/// not end it.
Status GrammarChecker::ask(Process& process, const Task& task, TimeNs cpu) {
  for (int attempt = 0; attempt < 2; ++attempt) {
    if (process == nullptr) {
      if (Status status = start(process, cpu); !status.ok()) return status;
    }
    std::string reply;
    const TimeNs bound = 20 * cpu;  // twice what the process takes at the most
    if (process->exchange(task.frame, bound, bound, reply, task.wanted) ==
        HelperProcess::Exchange::done) {
      Status status = status_of(reply);
      if (status.code() != ErrorCode::internal) return status;
      return Status(ErrorCode::unavailable, "grammars cannot be checked: " + status.message());
    }
    end(process);
  }
  return Status(ErrorCode::unavailable, "the process that checks grammars ended twice");
}

Status GrammarChecker::start(Process& process, TimeNs cpu) {
  auto made = HelperProcess::start(
      {options_.program, options_.model_folder, std::to_string(cpu / kMillisecond)}, -1, kMaxReply);
  std::string reply;
  Status status = made.status();
  if (status.ok()) {
    process = std::move(made).value();
    {
      const std::lock_guard lock(mutex_);
      processes_.insert(process->pid());
      if (stopping_) ::kill(process->pid(), SIGKILL);
    }
    const bool told = process->exchange({}, options_.start_time, options_.start_time, reply) ==
                      HelperProcess::Exchange::done;
    status = told ? status_of(reply)
                  : Status(ErrorCode::unavailable, options_.program + " did not start");
  }
  if (status.ok()) return status;
  end(process);
  return Status(ErrorCode::unavailable, "grammars cannot be checked: " + status.message());
}

void GrammarChecker::end(Process& process) {
  if (process == nullptr) return;
  {
    const std::lock_guard lock(mutex_);
    processes_.erase(process->pid());  // before its number can be another's
  }
  process.reset();
}

void GrammarChecker::remember(const std::string& frame, const Status& status) {
  const std::lock_guard lock(mutex_);
  if (index_.contains(frame)) return;
  known_.push_front({frame, status});
  index_.emplace(known_.front().frame, known_.begin());
  known_bytes_ += frame.size();
  while (known_bytes_ > options_.cache_bytes) {
    known_bytes_ -= known_.back().frame.size();
    index_.erase(known_.back().frame);
    known_.pop_back();
  }
}

}  // namespace baton
