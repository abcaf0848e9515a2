#include "frontend/grammar/grammar_checker.h"

#include <csignal>
#include <filesystem>
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
  for (std::size_t i = 0; i < options_.threads; ++i) threads_.emplace_back([this] { work(); });
}

void GrammarChecker::stop() {
  tasks_.close();
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    for (const pid_t pid : processes_) ::kill(pid, SIGKILL);
  }
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

bool GrammarChecker::check(GrammarKind kind, const std::string& text, Done done) {
  std::string frame = grammar_frame(kind, text);
  Status found;
  {
    const std::lock_guard lock(mutex_);
    const auto known = index_.find(frame);
    if (known == index_.end()) return tasks_.push({std::move(frame), std::move(done)});
    known_.splice(known_.begin(), known_, known->second);
    found = known->second->status;
  }
  done(found);
  return true;
}

void GrammarChecker::work() {
  std::unique_ptr<HelperProcess> process;  // dies with this thread
  start(process);
  while (auto task = tasks_.pop()) {
    const Status status = ask(process, task->frame);
    if (status.ok() || status.code() == ErrorCode::invalid_argument) remember(task->frame, status);
    task->done(status);
  }
  end(process);
}

/// A process that was gone is replaced once: it does its work in children, so that a grammar does
/// not end it.
Status GrammarChecker::ask(std::unique_ptr<HelperProcess>& process, const std::string& frame) {
  for (int attempt = 0; attempt < 2; ++attempt) {
    if (process == nullptr) {
      if (Status status = start(process); !status.ok()) return status;
    }
    std::string reply;
    const TimeNs bound = 20 * options_.cpu;  // twice what the process takes at the most
    if (process->exchange(frame, bound, bound, reply) == HelperProcess::Exchange::done) {
      Status status = status_of(reply);
      if (status.code() != ErrorCode::internal) return status;
      return Status(ErrorCode::unavailable, "grammars cannot be checked: " + status.message());
    }
    end(process);
  }
  return Status(ErrorCode::unavailable, "the process that checks grammars ended twice");
}

Status GrammarChecker::start(std::unique_ptr<HelperProcess>& process) {
  auto made = HelperProcess::start(
      {options_.program, options_.model_folder, std::to_string(options_.cpu / kMillisecond)}, -1, kMaxReply);
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

void GrammarChecker::end(std::unique_ptr<HelperProcess>& process) {
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
