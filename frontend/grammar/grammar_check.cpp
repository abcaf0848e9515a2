#include "frontend/grammar/grammar_check.h"

#include <poll.h>
#include <pthread.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <new>
#include <utility>
#include <vector>

#include "frontend/core/helper_process.h"
#include "ipc/process.h"

namespace baton {
namespace {

constexpr int kPatience = 10;     // wall time a second of processor time, on a busy machine
constexpr int kTriedTokens = 32;  // of each sequence that is tried
constexpr std::size_t kMaxReply = 4096;

std::string milliseconds(TimeNs time) { return std::to_string(time / 1'000'000) + " ms"; }
std::string mebibytes(std::size_t bytes) { return std::to_string(bytes >> 20U) + " MiB"; }

/// Walks along the first, or the last, token that may come: what costs too much shows here or,
/// later, in a worker, which then fails that request alone.
Status try_tokens(const CompiledGrammar& grammar, std::span<const Token> eos_ids, std::size_t words,
                  bool first) {
  GrammarMatcher matcher(grammar, eos_ids);
  std::vector<std::uint32_t> mask(words);
  for (int n = 0; n < kTriedTokens; ++n) {
    matcher.fill(mask);
    Token next = -1;
    for (std::size_t i = 0; i < words && next < 0; ++i) {
      const std::size_t at = first ? i : words - 1 - i;
      if (mask[at] == 0) continue;
      const int bit = first ? std::countr_zero(mask[at]) : 31 - std::countl_zero(mask[at]);
      next = static_cast<Token>(32 * at) + bit;
    }
    if (next < 0) {
      return invalid("no token of this model can " + std::string(n == 0 ? "begin" : "go on with") +
                     " what it allows");
    }
    if (std::find(eos_ids.begin(), eos_ids.end(), next) != eos_ids.end()) return {};
    if (!matcher.accept(next))
      return Status(ErrorCode::internal, "the matcher refuses its own token");
  }
  return {};
}

struct Trial {
  GrammarEngine& engine;
  std::span<const Token> eos_ids;
  GrammarKind kind;
  const std::string& text;
  const GrammarLimits& limits;
  Status result{};
};

void try_grammar(Trial& trial) {
  const std::string& text = trial.text;
  auto compiled = trial.engine.compile(trial.kind, text);
  if (!compiled.ok()) {
    trial.result = compiled.status();
    return;
  }
  const std::size_t bytes = compiled.value().bytes();
  if (bytes > trial.limits.compiled_bytes) {
    trial.result = invalid("it needs " + mebibytes(bytes) + " when compiled; at most " +
                           mebibytes(trial.limits.compiled_bytes) + " are allowed");
    return;
  }
  const std::size_t words = trial.engine.mask_words();
  for (const bool first : {true, false}) {
    trial.result = try_tokens(compiled.value(), trial.eos_ids, words, first);
    if (!trial.result.ok()) return;
  }
  const std::string refused = compiled.value().refused();
  trial.result = refused.empty() ? Status(ErrorCode::ok, compiled.value().unenforced())
                                 : invalid("it is not enforced: " + refused);
}

void* trial_thread(void* argument) {
  Trial& trial = *static_cast<Trial*>(argument);
  try {
    try_grammar(trial);
  } catch (const std::bad_alloc&) {
    trial.result = invalid("it needs more than " + mebibytes(trial.limits.memory_bytes) +
                           " of memory to compile");
  } catch (const std::exception& e) {
    trial.result = invalid(e.what());
  }
  return nullptr;
}

std::size_t address_space() {
  std::size_t pages = 0;
  if (std::FILE* file = std::fopen("/proc/self/statm", "r")) {
    if (std::fscanf(file, "%zu", &pages) != 1) pages = 0;
    std::fclose(file);
  }
  return pages * static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
}

/// What outlasts its processor time is killed by the kernel.
void limit_self(const GrammarLimits& limits) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  const rlimit memory{address_space() + limits.memory_bytes, address_space() + limits.memory_bytes};
  setrlimit(RLIMIT_AS, &memory);
  const rlimit none{0, 0};
  setrlimit(RLIMIT_CORE, &none);
  itimerval timer{};
  timer.it_value.tv_sec = limits.cpu / kSecond;
  timer.it_value.tv_usec = (limits.cpu % kSecond) / 1000;
  signal(SIGPROF, SIG_DFL);
  setitimer(ITIMER_PROF, &timer, nullptr);
}

[[noreturn]] void run_child(Trial& trial, int socket) {
  limit_self(trial.limits);
  pthread_attr_t attributes;
  pthread_t thread{};
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, kTrialStackBytes);
  if (pthread_create(&thread, &attributes, trial_thread, &trial) == 0) {
    pthread_join(thread, nullptr);
  } else {
    trial.result = Status(ErrorCode::internal, "no thread can be started");
  }
  write_frame(socket, status_frame(trial.result));
  _exit(0);
}

/// Why a child ended without a word.
Status end_of_child(int status, const GrammarLimits& limits, bool timed_out) {
  if (timed_out || (WIFSIGNALED(status) && WTERMSIG(status) == SIGPROF)) {
    return Status(ErrorCode::deadline_exceeded,
                  "it takes more than " + milliseconds(limits.cpu) + " to compile");
  }
  if (WIFSIGNALED(status) && (WTERMSIG(status) == SIGSEGV || WTERMSIG(status) == SIGBUS)) {
    return invalid("it is nested too deeply");
  }
  return invalid("it cannot be compiled within " + milliseconds(limits.cpu) + " and " +
                 mebibytes(limits.memory_bytes));
}

}  // namespace

Status check_grammar(GrammarEngine& engine, std::span<const Token> eos_ids, GrammarKind kind,
                     const std::string& text, const GrammarLimits& limits, int interrupt) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    return Status(ErrorCode::internal, std::strerror(errno));
  }
  const UniqueFd ours(ends[0]);
  UniqueFd theirs(ends[1]);
  const pid_t pid = fork();
  if (pid < 0) return Status(ErrorCode::internal, std::strerror(errno));
  if (pid == 0) {
    Trial trial{engine, eos_ids, kind, text, limits};
    run_child(trial, theirs.get());
  }
  theirs.reset();
  pollfd ready[] = {{ours.get(), POLLIN, 0}, {interrupt, POLLIN, 0}};
  const TimeNs until = now_ns() + kPatience * limits.cpu;
  int found = 0;
  do {
    const TimeNs left = std::max<TimeNs>(until - now_ns(), 0);
    found = poll(ready, 2, static_cast<int>(left / 1'000'000) + 1);
  } while (found < 0 && errno == EINTR);
  std::string reply;
  const bool interrupted = found > 0 && ready[0].revents == 0;
  const bool answered = found > 0 && !interrupted && read_frame(ours.get(), kMaxReply, reply);
  if (found == 0 || interrupted) kill(pid, SIGKILL);
  int status = 0;
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  if (interrupted) return Status(ErrorCode::cancelled, "nobody waits for it");
  return answered ? status_of(reply) : end_of_child(status, limits, found == 0);
}

std::string grammar_frame(GrammarKind kind, std::string_view text) {
  std::string frame(1, static_cast<char>(kind));
  frame += text;
  return frame;
}

GrammarKind grammar_kind_of(std::string_view frame) {
  const auto last = static_cast<char>(GrammarKind::structural_tag);
  return frame.empty() || frame[0] < 0 || frame[0] > last ? GrammarKind::none
                                                          : static_cast<GrammarKind>(frame[0]);
}

std::string status_frame(const Status& status) {
  std::string frame(1, static_cast<char>(status.code()));
  frame += status.message().substr(0, kMaxReply - 1);
  return frame;
}

Status status_of(std::string_view frame) {
  if (frame.empty()) return Status(ErrorCode::internal, "an empty answer");
  return Status(static_cast<ErrorCode>(frame[0]), std::string(frame.substr(1)));
}

}  // namespace baton
