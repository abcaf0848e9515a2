#include "scheduler/event_trace.h"

#include <nlohmann/json.hpp>

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

void EventTrace::line(const std::string& text) {
  file_ << text << '\n';
  file_.flush();
}

void EventTrace::plan(const State& state, const std::string& worker, const StepPlan& plan) {
  nlohmann::json rows = nlohmann::json::array();
  for (const PromptRow& row : plan.rows) {
    rows.push_back({{"request", request_counter(state, row.sequence)}, {"tokens", row.n_tokens}});
  }
  nlohmann::json adds = nlohmann::json::array();
  for (const AddSequence& add : plan.add) {
    adds.push_back({{"request", request_counter(state, add.sequence)}, {"decode", add.decode}});
  }
  const nlohmann::json object = {{"n", ++number_},        {"event", "plan"},
                                 {"worker", worker},      {"step", plan.step},
                                 {"decode", plan.decode}, {"rows", rows},
                                 {"add", adds}};
  line(object.dump());
}

void EventTrace::pull(const State& state, const std::string& worker, const Pull& pull) {
  const Transfer* transfer = state.transfers.find(pull.transfer);
  const Request* request =
      transfer == nullptr ? nullptr : state.requests.find(transfer->request);
  const nlohmann::json object = {{"n", ++number_},
                                 {"event", "pull"},
                                 {"worker", worker},
                                 {"transfer", pull.transfer},
                                 {"request", request == nullptr ? 0 : request->name.counter},
                                 {"blocks", pull.from.size()}};
  line(object.dump());
}

void EventTrace::result(const std::string& worker, const StepResult& result) {
  const nlohmann::json object = {{"n", ++number_},     {"event", "result"},
                                 {"worker", worker},   {"step", result.step},
                                 {"tokens", result.tokens.size()}};
  line(object.dump());
}

void EventTrace::pull_answer(const std::string& worker, TransferId transfer, bool done) {
  const nlohmann::json object = {{"n", ++number_},
                                 {"event", done ? "pull_done" : "pull_failed"},
                                 {"worker", worker},
                                 {"transfer", transfer}};
  line(object.dump());
}

void EventTrace::tokens(const Events& events) {
  for (std::size_t i = 0; i < events.counters.size(); ++i) {
    const nlohmann::json object = {{"n", ++number_},
                                   {"event", "token"},
                                   {"request", events.counters[i]},
                                   {"first_index", events.first_index[i]},
                                   {"count", events.counts[i]}};
    line(object.dump());
  }
  for (const Terminal& terminal : events.terminals) {
    const nlohmann::json object = {
        {"n", ++number_}, {"event", "terminal"}, {"request", terminal.counter}};
    line(object.dump());
  }
}

}  // namespace baton
