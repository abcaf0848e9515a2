// baton-bench-plan: what one step costs the scheduler's thread: the worker's result applied, the
// next step planned, the plan and the front end's tokens encoded. One decode worker with 256
// sequences, two steps in flight, answered at once; then the same with 10,000 more requests
// waiting.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "ipc/codec.h"
#include "ipc/process.h"
#include "scheduler/apply/apply_event.h"
#include "scheduler/plan/plan_step.h"
#include "scheduler/state/audit.h"

namespace {

using namespace baton;
using Clock = std::chrono::steady_clock;

constexpr LinkId kWorkerLink = 1;
constexpr LinkId kFrontendLink = 2;
constexpr std::uint32_t kBlocks = 1U << 17U;

class Bench {
 public:
  Bench(std::uint32_t running, std::uint32_t waiting) {
    state_.epoch = 1000;
    state_.settings.max_running = running;
    state_.settings.token_budget = std::max(512U, running);
    join();
    for (std::uint32_t i = 0; i < running + waiting; ++i) submit(i + 1);
    while (state_.workers[0].compute.decode_set.size() < running) turn();
  }

  /// Nanoseconds of one step.
  std::int64_t step() {
    answer();
    const auto start = Clock::now();
    apply(state_, FromWorker{kWorkerLink, std::move(result_)}, now_, out_);
    plan(state_, now_, out_);
    encode_all();
    const auto end = Clock::now();
    keep_plans();
    return std::chrono::duration_cast<std::chrono::nanoseconds>(end - start).count();
  }

  std::size_t plan_bytes() const { return plan_bytes_; }
  std::size_t event_bytes() const { return event_bytes_; }
  bool sound() const {
    return audit_state(state_).empty() &&
           state_.workers[0].compute.decode_set.size() == state_.settings.max_running;
  }

 private:
  void join() {
    Register identity;
    identity.name = "decode0";
    identity.incarnation = 1;
    identity.role = identity.home = Role::decode;
    apply(state_, FromWorker{kWorkerLink, identity}, now_, out_);
    Hello hello;
    hello.name = identity.name;
    hello.incarnation = 1;
    hello.hello_id = 1;
    hello.allocation = 1;
    hello.tokens_per_block = 16;
    hello.blocks = kBlocks;
    hello.max_context = 1U << 20U;
    apply(state_, FromWorker{kWorkerLink, hello}, now_, out_);
    FrontendHello frontend;
    frontend.name = "frontend0";
    frontend.incarnation = 1;
    apply(state_, FromFrontend{kFrontendLink, frontend}, now_, out_);
    out_.to_workers.clear();
    out_.to_frontends.clear();
  }

  void submit(std::uint64_t counter) {
    Submit m;
    m.epoch = state_.epoch;
    m.request = {1, counter};
    m.arrival = static_cast<TimeNs>(counter);
    m.deadline = 1'000'000 * kSecond;
    m.prompt.assign(24 + counter % 16, 7);  // so that not all need a block in the same step
    m.sampling.max_tokens = 1U << 19U;
    m.sampling.stop_ids = {2};
    apply(state_, FromFrontend{kFrontendLink, m}, now_, out_);
  }

  /// One turn that is not measured.
  void turn() {
    if (!state_.workers[0].compute.steps.empty()) {
      answer();
      apply(state_, FromWorker{kWorkerLink, std::move(result_)}, now_, out_);
    }
    plan(state_, now_, out_);
    encode_all();
    keep_plans();
  }

  /// The result of the oldest step in flight, as its worker would send it.
  void answer() {
    now_ += 500'000;
    const Worker& w = state_.workers[0];
    const InFlightStep& step = w.compute.steps.front();
    result_ = StepResult{};
    result_.term = w.peer.term;
    result_.step = step.step;
    for (const auto& [id, n] : step.rows) {
      const Sequence* sequence = state_.sequences.find(id);
      if (sequence != nullptr && sequence->computed + n == sequence->prefill_length) {
        result_.sequences.push_back(id);
      }
    }
    result_.sequences.insert(result_.sequences.end(), step.decode.begin(), step.decode.end());
    result_.tokens.assign(result_.sequences.size(), 11);
  }

  void encode_all() {
    for (auto& [link, message] : out_.to_workers) {
      std::visit([&](const auto& m) { encode(m, bytes_); }, message);
      plan_bytes_ = bytes_.size();
    }
    for (Events& events : out_.events) {
      if (events.counters.empty()) continue;
      encode(events, bytes_);
      event_bytes_ = bytes_.size();
    }
  }

  /// As the scheduler's loop does: buffers keep their capacity.
  void keep_plans() {
    out_.to_workers.clear();
    for (Events& events : out_.events) Outbox::empty(events);
    out_.log.clear();
  }

  State state_;
  Outbox out_;
  StepResult result_;
  std::string bytes_;
  std::size_t plan_bytes_ = 0;
  std::size_t event_bytes_ = 0;
  TimeNs now_ = kSecond;
};

bool measure(std::uint32_t running, std::uint32_t waiting, int steps) {
  Bench bench(running, waiting);
  for (int i = 0; i < steps / 4; ++i) bench.step();
  std::vector<std::int64_t> times;
  times.reserve(static_cast<std::size_t>(steps));
  for (int i = 0; i < steps; ++i) times.push_back(bench.step());
  std::sort(times.begin(), times.end());
  std::printf(
      "%u decoding, %5u waiting: median %6.2f us, p99 %6.2f us a step  (plan %zu bytes, tokens %zu "
      "bytes)\n",
      running, waiting, static_cast<double>(times[times.size() / 2]) / 1000,
      static_cast<double>(times[times.size() * 99 / 100]) / 1000, bench.plan_bytes(),
      bench.event_bytes());
  if (!bench.sound()) std::printf("the books are wrong\n");
  return bench.sound();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 2 && std::string(argv[1]) == "--version") {
    std::printf("baton-bench-plan %s\n", build_version());
    return 0;
  }
  const int steps = argc == 2 ? std::atoi(argv[1]) : 4000;
  if (argc > 2 || steps < 100 || steps > 6000) {
    std::fprintf(stderr, "usage: baton-bench-plan [STEPS]   (100 to 6000, default 4000)\n");
    return 2;
  }
  const bool sound = measure(256, 0, steps) && measure(256, 10'000, steps);
  return sound ? 0 : 1;
}
