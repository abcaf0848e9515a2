#include "scheduler/admin/event_trace.h"

namespace baton {

namespace {

/// The front end's number of the request behind a sequence: what a test can match with its client.
std::uint64_t request_counter(const State& state, SequenceId id) {
  const Sequence* sequence = state.sequences.find(id);
  if (sequence == nullptr) return 0;
  const Request* request = state.requests.find(sequence->request);
  return request == nullptr ? 0 : request->name.counter;
}

}  // namespace

EventTrace::EventTrace(const std::string& path) {
  if (!path.empty()) file_.open(path, std::ios::app);
}

void EventTrace::line(nlohmann::json object, TimeNs at) {
  object["n"] = ++number_;
  object["t"] = at;  // for benchmarks; tests go by `n`
  file_ << object.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) << '\n';
  file_.flush();
}

void EventTrace::plan(const State& state, const std::string& worker, const StepPlan& plan,
                      TimeNs sent) {
  nlohmann::json rows = nlohmann::json::array();
  for (const PromptRow& row : plan.rows) {
    rows.push_back({{"request", request_counter(state, row.sequence)}, {"tokens", row.n_tokens}});
  }
  nlohmann::json adds = nlohmann::json::array();
  for (const AddSequence& add : plan.add) {
    adds.push_back({{"request", request_counter(state, add.sequence)}, {"decode", add.decode}});
  }
  line({{"event", "plan"},
        {"worker", worker},
        {"step", plan.step},
        {"decode", plan.decode},
        {"rows", rows},
        {"add", adds}},
       sent);
}

void EventTrace::pull(const State& state, const std::string& worker, const Pull& pull,
                      TimeNs sent) {
  const OpenPull* open = state.pulls.find(pull.pull_id);
  const Request* request = open == nullptr ? nullptr : state.requests.find(open->request);
  line({{"event", "pull"},
        {"worker", worker},
        {"pull", pull.pull_id},
        {"request", request == nullptr ? 0 : request->name.counter},
        {"blocks", pull.from.size()},
        {"prefix", request != nullptr && request->phase == Phase::pull}},
       sent);
}

void EventTrace::result(const std::string& worker, const StepResult& result) {
  line({{"event", "result"},
        {"worker", worker},
        {"step", result.step},
        {"tokens", result.tokens.size()}});
}

void EventTrace::pull_done(const std::string& worker, const PullDone& done) {
  line({{"event", "pull_done"},
        {"worker", worker},
        {"pull", done.pull_id},
        {"copy_us", done.duration_us}});
}

void EventTrace::pull_failed(const std::string& worker, const PullFailed& failed) {
  line({{"event", "pull_failed"}, {"worker", worker}, {"pull", failed.pull_id}});
}

void EventTrace::tokens(const Events& events) {
  for (std::size_t i = 0; i < events.counters.size(); ++i) {
    line({{"event", "token"},
          {"request", events.counters[i]},
          {"first_index", events.first_index[i]},
          {"count", events.counts[i]}});
  }
  for (const Terminal& terminal : events.terminals) {
    line({{"event", "terminal"}, {"request", terminal.counter}});
  }
}

}  // namespace baton
