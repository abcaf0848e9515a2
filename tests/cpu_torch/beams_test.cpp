// Beam search through the scheduler's core, the worker's sequence table and the CPU backend,
// against what
// `transformers` finds (tests/golden/make_beams.py): all requests of a model in one mixed batch
// together with greedy and sampled ones, and each of them alone.
#include <gtest/gtest.h>

#include <unistd.h>

#include <atomic>
#include <cmath>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "scheduler/apply/apply_event.h"
#include "scheduler/plan/plan_step.h"
#include "scheduler/state/audit.h"
#include "tests/cpu_torch/golden_file.h"
#include "tests/cpu_torch/model_fixture.h"
#include "workers/execute/cpu_executor.h"
#include "workers/protocol/sequence_table.h"

namespace baton::test {
namespace {

using Json = nlohmann::json;

struct Found {
  std::vector<Token> tokens;  // of all sequences, one after another
  Terminal terminal;

  bool operator==(const Found& other) const {
    return tokens == other.tokens && terminal.n == other.terminal.n &&
           terminal.reason == other.terminal.reason && terminal.scores == other.terminal.scores;
  }
};

CpuExecutor::Options options_of(const std::string& folder, std::uint32_t tokens_per_block) {
  CpuExecutor::Options options;
  options.model_folder = folder;
  options.tokens_per_block = tokens_per_block;
  return options;
}

/// A cluster of one mixed worker, without processes: what the scheduler plans, the worker runs at
/// once.
class Engine {
 public:
  static constexpr std::uint32_t kBlocks = 2048;
  static constexpr std::uint32_t kTokensPerBlock = 4;

  explicit Engine(const std::string& folder) : executor_(options_of(folder, kTokensPerBlock)) {
    std::atomic<int> percent{0};
    const auto shape = executor_.load(percent);
    if (!shape.ok()) throw std::runtime_error(shape.status().message());
    PoolRequest request;
    request.run_dir = std::filesystem::temp_directory_path().string();
    request.worker = "beams" + std::to_string(getpid());
    request.pid = getpid();
    request.allocation = make_allocation_id(request.worker, 1);
    request.pool_blocks = kBlocks;
    const auto pool = executor_.allocate(request);
    if (!pool.ok()) throw std::runtime_error(pool.status().message());
    const std::uint32_t context = std::min(shape.value().max_context, kBlocks * kTokensPerBlock);
    table_.set_limits({kBlocks, kTokensPerBlock, context, shape.value().vocab_size});
    state_.epoch = 1000;
    FrontendHello frontend;
    frontend.name = "frontend0";
    frontend.incarnation = 1;
    hear_frontend(frontend);
    Register joining;
    joining.name = "mixed0";
    joining.incarnation = 1;
    hear_worker(joining);
    Hello hello;
    hello.name = "mixed0";
    hello.incarnation = hello.hello_id = hello.allocation = hello.model_fingerprint = 1;
    hello.tokens_per_block = kTokensPerBlock;
    hello.blocks = kBlocks;
    hello.max_context = context;
    hello.vocab_size = shape.value().vocab_size;
    hear_worker(hello);
  }

  /// Runs the requests together to their end; keys are their places.
  std::map<std::uint64_t, Found> run(
      const std::vector<std::pair<std::vector<Token>, SamplingParams>>& requests) {
    found_.clear();
    for (std::size_t i = 0; i < requests.size(); ++i) {
      Submit m;
      m.epoch = state_.epoch;
      m.request = {1, i};
      m.attempt = 1;
      m.arrival = static_cast<TimeNs>(i) + 1;
      m.deadline = 1000 * kSecond;
      m.prompt = requests[i].first;
      m.sampling = requests[i].second;
      hear_frontend(std::move(m));
    }
    std::size_t ended = 0;
    while (ended < requests.size()) {
      plan(state_, 1, out_);
      flush();
      ended = 0;
      for (const auto& [i, found] : found_) ended += found.terminal.n.empty() ? 0 : 1;
    }
    for (std::size_t i = 0; i < requests.size(); ++i) hear_frontend(Ack{{1, i}});
    plan(state_, 1, out_);  // the last drops
    flush();
    EXPECT_EQ(table_.size(), 0U);
    const PoolAudit pool = audit_pools(state_).front();
    EXPECT_EQ(pool.free + pool.cached, kBlocks);
    return found_;
  }

  std::uint32_t most_rows = 0;  // of one step
  std::size_t copies = 0;       // of blocks

 private:
  void hear_frontend(FrontendMessage m) {
    apply(state_, FromFrontend{1, std::move(m)}, 1, out_);
    flush();
  }
  void hear_worker(WorkerMessage m) {
    apply(state_, FromWorker{2, std::move(m)}, 1, out_);
    flush();
  }

  void flush() {
    const std::vector<std::string> faults = audit_state(state_);
    ASSERT_TRUE(faults.empty()) << faults.front();
    for (Events& events : out_.events) {
      std::size_t at = 0;
      for (std::size_t row = 0; row < events.counters.size(); ++row) {
        std::vector<Token>& to = found_[events.counters[row]].tokens;
        for (std::uint32_t n = 0; n < events.counts[row]; ++n) to.push_back(events.tokens[at++]);
      }
      for (const Terminal& terminal : events.terminals)
        found_[terminal.counter].terminal = terminal;
      events = Events{};
    }
    std::vector<StepPlan> plans;
    for (auto& [link, message] : out_.to_workers) {
      if (auto* plan = std::get_if<StepPlan>(&message)) plans.push_back(std::move(*plan));
    }
    out_ = Outbox{};
    for (StepPlan& plan : plans) hear_worker(step(plan));
  }

  StepResult step(StepPlan& plan) {
    OpenStep open;
    const auto problem = table_.begin_step(plan, open);
    EXPECT_FALSE(problem.has_value()) << *problem;
    most_rows = std::max(most_rows, static_cast<std::uint32_t>(open.run.rows.size()));
    copies += open.run.copies.size();
    StepOutput output;
    output.tokens.assign(open.run.rows.size(), kNoToken);
    executor_.launch(open.run);
    executor_.collect(output);
    StepResult result;
    result.term = plan.term;
    result.step = plan.step;
    result.failed = open.refused;
    table_.end_step(open, output, result);
    return result;
  }

  CpuExecutor executor_;
  SequenceTable table_;
  State state_;
  Outbox out_;
  std::map<std::uint64_t, Found> found_;
};

SamplingParams params_of(const Json& json) {
  SamplingParams p;
  p.temperature = 0;
  p.num_beams = json.at("num_beams");
  p.num_return_sequences = json.value("num_return_sequences", 1U);
  p.max_tokens = json.at("max_tokens");
  p.min_tokens = json.value("min_tokens", 0U);
  p.length_penalty = json.value("length_penalty", 1.0F);
  p.early_stopping = static_cast<EarlyStopping>(json.value("early_stopping", 0));
  p.repetition_penalty = json.value("repetition_penalty", 1.0F);
  p.stop_ids = json.at("stop_ids").get<std::vector<Token>>();
  p.bias_tokens = json.value("bias_tokens", std::vector<Token>());
  p.bias_values = json.value("bias_values", std::vector<float>());
  p.bad_words = json.value("bad_words", std::vector<std::vector<Token>>());
  return p;
}

void expect_golden(const Found& found, const Json& wanted) {
  std::vector<Token> tokens;
  ASSERT_EQ(found.terminal.code, ErrorCode::ok) << found.terminal.message;
  ASSERT_EQ(found.terminal.n.size(), wanted.size());
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    const auto own = wanted[i].at("tokens").get<std::vector<Token>>();
    tokens.insert(tokens.end(), own.begin(), own.end());
    EXPECT_EQ(found.terminal.n[i], own.size()) << "sequence " << i;
    const double score = wanted[i].at("score");
    EXPECT_NEAR(found.terminal.scores[i], score, 1e-3 * std::max(1.0, std::abs(score)));
    EXPECT_EQ(to_string(static_cast<FinishReason>(found.terminal.reason[i])),
              wanted[i].at("reason").get<std::string>());
  }
  EXPECT_EQ(found.tokens, tokens);
}

/// The cases of one model, and what runs beside them.
void check_model(const std::string& model, const std::vector<Json>& cases) {
  const std::string root = golden_folder() + "/../..";
  Engine engine(root + "/" + model);
  std::vector<std::pair<std::vector<Token>, SamplingParams>> requests;
  for (const Json& golden : cases) {
    requests.emplace_back(golden.at("prompt").get<std::vector<Token>>(),
                          params_of(golden.at("params")));
  }
  for (std::uint64_t i = 0; i < 6; ++i) {  // greedy and sampled ones
    SamplingParams p;
    p.temperature = i % 2 == 0 ? 0.0F : 1.2F;
    p.seed = i;
    p.max_tokens = 20;
    requests.emplace_back(requests[i].first, p);
  }
  const auto together = engine.run(requests);
  EXPECT_GT(engine.most_rows, requests.size());
  EXPECT_GT(engine.copies, 0U);
  for (std::size_t i = 0; i < requests.size(); ++i) {
    SCOPED_TRACE(model + ", case " + std::to_string(i));
    if (i < cases.size()) expect_golden(together.at(i), cases[i].at("sequences"));
    const auto alone = engine.run({requests[i]});
    EXPECT_TRUE(alone.at(0) == together.at(i)) << "alone it finds something else";
  }
}

TEST(GoldenBeams, MixedAndAloneTheyAreThoseOfTransformers) {
  const Json golden = Json::parse(read_file(golden_folder() + "/beams.json"));
  std::map<std::string, std::vector<Json>> by_model;
  for (const Json& one : golden.at("cases")) {
    by_model[one.at("model").get<std::string>()].push_back(one);
  }
  EXPECT_EQ(by_model.size(), 5U);
  for (const auto& [model, cases] : by_model) check_model(model, cases);
}

}  // namespace
}  // namespace baton::test
