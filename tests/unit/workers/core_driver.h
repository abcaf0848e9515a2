// Drives a WorkerCore by hand: inputs in, actions sorted into what a shell would do with them.
#pragma once

#include <algorithm>
#include <deque>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "workers/protocol/worker_core.h"

namespace baton::test {

constexpr Incarnation kMe = 1000;
constexpr Epoch kEpoch = 7;
constexpr Term kTerm = 71;

inline WorkerIdentity identity() {
  WorkerIdentity id;
  id.name = "w0";
  id.incarnation = kMe;
  id.pid = 42;
  return id;
}

inline Hello pool(std::uint32_t blocks = 100) {
  Hello h;
  h.allocation = 5;
  h.tokens_per_block = 4;
  h.blocks = blocks;
  h.max_context = 64;
  h.vocab_size = 1000;
  return h;
}

class CoreDriver {
 public:
  explicit CoreDriver(WorkerCoreOptions options = {}) : core(identity(), options) {}

  WorkerCore core;
  TimeNs now = kSecond;
  std::vector<WorkerMessage> sent;
  const RunStep* step = nullptr;  // started and not finished
  int steps_started = 0;
  std::vector<StepId> lacking;  // steps that lack rows, none of which had begun
  std::deque<Pull> pulls;  // out
  std::vector<AllocationId> closes;
  std::vector<std::string> grammars;  // to be prepared
  int pools_asked = 0;
  std::optional<worker_action::Exit> exit;
  std::vector<std::string> errors;

  void start() {
    act([&](auto& out) { core.start(now, out); });
  }
  template <typename M>
  void get(M message) {
    act([&](auto& out) { core.message(ToWorker(std::move(message)), now, out); });
  }
  void pool_ready(Hello h = pool()) {
    act([&](auto& out) { core.pool_ready(std::move(h), now, out); });
  }
  void wait(TimeNs time) {
    for (const TimeNs end = now + time; now < end;) {
      now = std::min(end, std::max(now + 1, core.next_tick()));
      act([&](auto& out) { core.tick(now, out); });
    }
  }
  void finish(std::vector<Token> tokens, std::vector<FailedRow> failed = {}) {
    step = nullptr;
    StepOutput output;
    output.tokens = std::move(tokens);
    output.failed = std::move(failed);
    output.duration_us = 11;
    act([&](auto& out) { core.step_finished(output, now, out); });
  }
  void pulled(std::optional<std::string> failure = {}) {
    const PullId pull_id = pulls.front().pull_id;
    pulls.pop_front();
    act([&](auto& out) { core.pull_finished(pull_id, failure, 9, now, out); });
  }
  void grammar_state(std::uint64_t key, bool ready) {
    act([&](auto& out) { core.grammar_state(key, ready, out); });
  }
  void closed(AllocationId a) {
    act([&](auto& out) { core.mapping_closed(a, now, out); });
  }
  void exporter_gone(AllocationId a) {
    act([&](auto& out) { core.exporter_gone(a, now, out); });
  }
  void terminate() {
    act([&](auto& out) { core.terminate(now, out); });
  }
  void send_failed() {
    act([&](auto& out) { core.send_failed(now, out); });
  }

  /// Up to Welcome; what was sent on the way is forgotten.
  void join(Hello h = pool(), Term term = kTerm) {
    start();
    get(Registered{kEpoch, kMe});
    pool_ready(std::move(h));
    get(Welcome{kEpoch, term, last<Hello>().hello_id});
    sent.clear();
  }

  template <typename M>
  int count() const {
    int n = 0;
    for (const auto& m : sent) n += std::holds_alternative<M>(m) ? 1 : 0;
    return n;
  }
  /// The latest message of that type; an empty one if there is none.
  template <typename M>
  M last() const {
    for (auto it = sent.rbegin(); it != sent.rend(); ++it) {
      if (const M* m = std::get_if<M>(&*it)) return *m;
    }
    return M{};
  }

 private:
  template <typename F>
  void act(F&& input) {
    WorkerActions out;
    input(out);
    for (auto& action : out) {
      std::visit([&](auto& a) { carry_out(a); }, action);
    }
  }
  void carry_out(worker_action::Send& a) { sent.push_back(std::move(a.message)); }
  void carry_out(worker_action::AllocatePool&) { ++pools_asked; }
  void carry_out(worker_action::StartStep& a) {
    step = a.step;
    ++steps_started;
  }
  void carry_out(worker_action::LackRows& a) {
    if (step == nullptr || step->step < a.step) lacking.push_back(a.step);
  }
  void carry_out(worker_action::StartPull& a) { pulls.push_back(std::move(a.pull)); }
  void carry_out(worker_action::CloseMapping& a) { closes.push_back(a.allocation); }
  void carry_out(worker_action::PrepareGrammar& a) { grammars.push_back(a.text); }
  void carry_out(worker_action::Exit& a) { exit = a; }
  void carry_out(worker_action::Log& a) {
    if (a.level == worker_action::Log::Level::error) errors.push_back(a.text);
  }
};

inline AddSequence sequence(SequenceId id, std::vector<Token> prompt, std::vector<BlockId> blocks) {
  AddSequence a;
  a.sequence = id;
  a.prompt = std::move(prompt);
  a.blocks = std::move(blocks);
  return a;
}

inline StepPlan plan(StepId step, Term term = kTerm) {
  StepPlan p;
  p.term = term;
  p.step = step;
  return p;
}

inline Pull pull(PullId pull_id, AllocationId allocation, Term term = kTerm) {
  Pull p;
  p.term = term;
  p.pull_id = pull_id;
  p.allocation = allocation;
  p.exporter_blocks = 10;
  p.from = {1, 2};
  p.to = {3, 4};
  return p;
}

}  // namespace baton::test
