// Ids and value types shared by every process. Std only; no logic but questions about own fields.
#pragma once

#include <algorithm>
#include <compare>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace baton {

using Token = std::int32_t;
constexpr Token kNoToken = -1;  // of a row: it asked for none, or it failed
using BlockId = std::uint32_t;
constexpr BlockId kNoBlock = 0xFFFFFFFF;

/// Names a KV pool allocation; never reused, also not by a restarted worker.
using AllocationId = std::uint64_t;
/// One process life of a named worker or front end; grows with every start (wall clock, ns).
using Incarnation = std::uint64_t;
/// One life of the scheduler (wall clock at its start, ns).
using Epoch = std::uint64_t;
/// Fences a worker's link. Starts at the epoch, so that terms of two schedulers never collide.
using Term = std::uint64_t;
/// Numbers the plans of one term: 1, 2, 3, ... without a gap.
using StepId = std::uint64_t;
using PullId = std::uint64_t;
/// Low 32 bits: slot in the scheduler's table; high 32 bits: generation. Never reused in an epoch.
using SequenceId = std::uint64_t;
/// Nanoseconds of CLOCK_MONOTONIC: comparable between the processes of one host.
using TimeNs = std::int64_t;

constexpr TimeNs kMillisecond = 1'000'000;
constexpr TimeNs kSecond = 1'000'000'000;

/// (front-end incarnation, counter): unique without asking anybody.
struct RequestId {
  Incarnation frontend = 0;
  std::uint64_t counter = 0;
  auto operator<=>(const RequestId&) const = default;
};

/// A preference, not a fence: decode workers prefill when no prefill worker lives.
enum class Role : std::uint8_t { prefill = 0, decode = 1, mixed = 2 };

inline const char* to_string(Role role) {
  switch (role) {
    case Role::prefill:
      return "prefill";
    case Role::decode:
      return "decode";
    case Role::mixed:
      return "mixed";
  }
  return "unknown";
}

enum class FinishReason : std::uint8_t { none = 0, stop = 1, length = 2, cancelled = 3, error = 4 };

inline const char* to_string(FinishReason reason) {
  switch (reason) {
    case FinishReason::none:
      return "none";
    case FinishReason::stop:
      return "stop";
    case FinishReason::length:
      return "length";
    case FinishReason::cancelled:
      return "cancelled";
    case FinishReason::error:
      return "error";
  }
  return "unknown";
}

/// Moments of a request's life as the scheduler saw them, each the first time that it came. A long
/// prompt's blocks move while its later chunks run, so that a migration may begin before the prompt
/// has ended.
enum class LifetimeMoment : std::uint8_t {
  context_begin = 0,    // its first prompt chunk was planned
  context_end = 1,      // the step of its last chunk had ended
  migration_begin = 2,  // of its blocks to the worker that decodes; none where it stays
  migration_end = 3,
  decoding_begin = 4,  // the first step that decodes it there was planned
};
constexpr std::size_t kLifetimeMoments = 5;

enum class LogitsWanted : std::uint8_t { none = 0, last = 1, all = 2 };

/// What the text of a grammar is written in.
enum class GrammarKind : std::uint8_t {
  none = 0,
  json_schema = 1,
  regex = 2,
  ebnf = 3,
  structural_tag = 4
};

/// When a beam search that has found num_beams whole sequences ends: when the best running beam is
/// worse than the worst of them at its present length; at once; or when no running beam can become
/// better. (`early_stopping` of transformers: false, true, "never".)
enum class EarlyStopping : std::uint8_t { heuristic = 0, at_once = 1, never = 2 };

/// What a request wants that no token is drawn for: a vector, told beside token 0 in its stead.
enum class Pooling : std::uint8_t {
  none = 0,          // it wants tokens
  last_hidden = 1,   // what the final norm gives for the prompt's last token: [hidden]
  token_logits = 2,  // the logits behind it of `allowed_tokens`, in their order
};

/// How one request's tokens are drawn. Every field is per request, also in a mixed batch. The order
/// in which they act is told in workers/sampling/sampler.h.
struct SamplingParams {
  float temperature = 1.0F;       // 0 = greedy
  float top_p = 1.0F;             // (0, 1]
  std::int32_t top_k = 0;         // 0 = off
  float min_p = 0.0F;             // [0, 1]; 0 = off
  float typical_p = 1.0F;         // (0, 1]; 1 = off
  std::uint64_t seed = 0;         // always set: the front end draws one if the client gave none
  std::uint32_t min_tokens = 0;   // stop ids are masked before this many tokens
  std::uint32_t max_tokens = 16;  // tokens to generate at most
  std::vector<Token> stop_ids;    // end-of-sequence ids included unless the client ignores them

  float repetition_penalty = 1.0F;  // > 0; of prompt and generated tokens; 1 = off
  float presence_penalty = 0.0F;    // of generated tokens
  float frequency_penalty = 0.0F;   // likewise, for each time
  std::vector<Token> bias_tokens;   // bias_values[i] is added to the logit of bias_tokens[i]
  std::vector<float> bias_values;
  std::vector<Token> allowed_tokens;  // nothing else may be drawn; empty = off
  std::vector<std::vector<Token>>
      bad_words;  // the last token of each is masked where the rest stands

  std::int32_t logprobs = -1;         // -1 = off; n: of each token and of the n most probable ones
  std::int32_t prompt_logprobs = -1;  // the same for every prompt token but the first

  GrammarKind grammar_kind = GrammarKind::none;  // none: the output is free
  std::string grammar;                           // otherwise what all of the output must match

  std::uint32_t num_beams =
      1;  // above 1: a beam search (scheduler/apply/beam_search.h), nothing is drawn
  std::uint32_t num_return_sequences = 1;  // so many of what it finds are told, the best
  float length_penalty = 1.0F;             // a score is the sum of logs over length to this power
  EarlyStopping early_stopping = EarlyStopping::heuristic;

  Pooling pooling = Pooling::none;  // otherwise nothing is drawn, and max_tokens is 1

  // A reasoning that is not closed after so many tokens is closed by `reasoning_close`, which is
  // drawn whatever the logits say. It begins with the output, or behind `reasoning_open` if the
  // output's first token is that.
  std::uint32_t reasoning_budget = 0;
  Token reasoning_open = kNoToken;   // kNoToken: the prompt has begun the reasoning
  Token reasoning_close = kNoToken;  // kNoToken: there is no budget

  bool operator==(const SamplingParams&) const = default;

  // Bounds of what a request may carry; they bound the messages that carry it.
  static constexpr std::int32_t kMaxLogprobs = 20;
  static constexpr std::size_t kMaxListed =
      16'384;  // each of bias, allowed, tokens of all bad words
  static constexpr std::size_t kMaxGrammarBytes = 64U << 10U;
  static constexpr std::size_t kFewBiases = 256;  // a GPU has room for so many of every row
  static constexpr std::uint32_t kMaxBeams = 64;
  static constexpr float kMaxLengthPenalty = 10.0F;  // either sign
  static constexpr std::size_t kMaxPooled = 16'384;  // values of a vector
  bool within_bounds() const {
    std::size_t bad_word_tokens = 0;
    for (const std::vector<Token>& word : bad_words) bad_word_tokens += 1 + word.size();
    return logprobs <= kMaxLogprobs && prompt_logprobs <= kMaxLogprobs &&
           bias_tokens.size() <= kMaxListed && bias_values.size() == bias_tokens.size() &&
           allowed_tokens.size() <= kMaxListed && bad_word_tokens <= kMaxListed &&
           grammar.size() <= kMaxGrammarBytes && beams_agree() && pooling_agrees();
  }
  bool pools() const { return pooling != Pooling::none; }
  /// Token 0 stands for the vector: nothing may make of it an end of its own, or a draw.
  bool pooling_agrees() const {
    if (!pools()) return true;
    return max_tokens == 1 && stop_ids.empty() && logprobs < 0 && prompt_logprobs < 0 && !beams() &&
           !needs_history() && allowed_tokens.empty() == (pooling == Pooling::last_hidden);
  }
  bool beams() const { return num_beams > 1; }
  /// Log probabilities are told of drawn tokens alone; a grammar is followed by one sequence.
  bool beams_agree() const {
    return num_beams >= 1 && num_beams <= kMaxBeams && num_return_sequences >= 1 &&
           num_return_sequences <= num_beams && length_penalty >= -kMaxLengthPenalty &&
           length_penalty <= kMaxLengthPenalty &&
           (!beams() || (logprobs < 0 && prompt_logprobs < 0 && reasoning_close < 0 &&
                         grammar_kind == GrammarKind::none));
  }

  /// The budget of the reasoning decides about the token of this index in the output.
  bool reasoning_ends_at(std::uint64_t index) const {
    return reasoning_close >= 0 &&
           index == std::uint64_t{reasoning_budget} + (reasoning_open >= 0 ? 1U : 0U);
  }
  /// The token that must be drawn behind `output`; kNoToken: any may be. It follows from the tokens
  /// alone, on any worker and in any attempt.
  Token forced_token(std::span<const Token> output) const {
    if (!reasoning_ends_at(output.size())) return kNoToken;
    if (reasoning_open >= 0 && output.front() != reasoning_open) return kNoToken;
    const bool closed = std::find(output.begin(), output.end(), reasoning_close) != output.end();
    return closed ? kNoToken : reasoning_close;
  }

  /// The draw depends on the tokens before it.
  bool needs_history() const {
    return repetition_penalty != 1.0F || presence_penalty != 0.0F || frequency_penalty != 0.0F ||
           !bad_words.empty() || grammar_kind != GrammarKind::none;
  }
  /// The host must know a token drawn with these before the next step can begin: the next draw
  /// looks at it, or the host may have to draw it (a GPU's kernel lacks typical_p, and the lists of
  /// a step have limited room on the device). A budget of reasoning adds one token of the output:
  /// reasoning_ends_at(). CPUs run one step at a time anyway.
  bool holds_next_step() const {
    return needs_history() || typical_p != 1.0F || !allowed_tokens.empty() ||
           bias_tokens.size() > kFewBiases;
  }
};

}  // namespace baton

template <>
struct std::hash<baton::RequestId> {
  std::size_t operator()(const baton::RequestId& id) const noexcept {
    return static_cast<std::size_t>((id.frontend * 0x9E3779B97F4A7C15ULL) ^ id.counter);
  }
};
