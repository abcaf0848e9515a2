// Drives an executor as the scheduler and the worker's core would, in one thread.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "configs/config.h"
#include "workers/execute/executor.h"

namespace baton::bench {

/// What the scheduler would know of a sequence. Tokens that the device has not told yet are
/// kNoToken.
struct Sequence {
  SequenceId id = 0;
  std::vector<Token> tokens;
  std::size_t prompt = 0;
  std::size_t computed = 0;
  std::vector<BlockId> blocks;
  SamplingParams sampling;
  Logprobs logprobs;         // of generated tokens; items count them
  Logprobs prompt_logprobs;  // items are positions
  int pending_row = -1;      // >= 0: tokens.back() is what this row of ...
  StepId pending_step = 0;   // ... this step samples
};

class Driver {
 public:
  /// Loads config.model. Throws std::runtime_error, as everything here does.
  Driver(const Config& config, std::uint32_t pool_blocks);

  /// Shows the activations of every later step.
  void dump(ActivationDump dump);

  /// Every block is free again.
  void reset() { next_block_ = 0; }
  Sequence make(std::vector<Token> prompt, const SamplingParams& sampling);

  /// Adds the next n tokens of a sequence to the step; the last known one is sampled from. The
  /// sequence must live until the step was collected.
  void add(Sequence& s, std::size_t n);
  /// Launches what was added. One step less than the device takes stays open behind it, none where
  /// the next must wait for its tokens.
  void launch();
  /// Collects every open step.
  void drain();

  std::uint32_t vocab = 0;
  std::uint32_t tokens_per_block = 16;
  double load_s = 0;
  double start_s = 0;
  std::vector<double> step_ms;  // from end to end, where steps followed each other

 private:
  /// A step and the sequences of its rows.
  struct Open {
    RunStep run;
    std::vector<Sequence*> owners;
    TimeNs launched = 0;
  };

  void collect();
  void take_row(const Open& step, std::size_t i, LogprobReader& logprobs,
                LogprobReader& prompt_logprobs);

  std::unique_ptr<Executor> executor_;
  std::uint32_t blocks_ = 0;
  std::uint32_t groups_ = 1;  // of layers
  std::uint32_t next_block_ = 0;
  SequenceId next_id_ = 0;
  std::atomic<bool> grammar_answered_{false};
  StepId n_steps_ = 0;
  Open next_;
  std::deque<Open> open_;
  StepOutput output_;
  TimeNs last_end_ = 0;
};

/// Fields of SamplingParams by their names; greedy unless a temperature is given. "logit_bias" is
/// [[id, value], ...], "regex" a grammar.
SamplingParams sampling_of(const nlohmann::json& fields);

using WhenEnded = std::function<void(const Sequence&)>;

/// Tokens for prompts of a task: {"prompts": [[ids]], "max_tokens": n, "chunk": c, "stagger": n,
/// "solo": bool} and what sampling_of() takes ("seed" is that of the first prompt, the next one has
/// one more). Prompt i joins the others after `stagger` * i steps. The answer of a prompt is a list
/// of tokens, or with "logprobs" or "prompt_logprobs" an object {"tokens", "logprobs",
/// "prompt_logprobs"}, whose entries are [log probability, [[id, log probability], ...]]; those of
/// the prompt begin with its second token.
/// `when_ended`, if given, is called after each prompt; they then run alone, one after the other.
nlohmann::json generate(Driver& driver, const nlohmann::json& task,
                        const WhenEnded& when_ended = {});

}  // namespace baton::bench
