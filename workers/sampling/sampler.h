// From one row of logits to one token. Torch-free; knows no batch.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "ipc/messages.h"
#include "ipc/status.h"
#include "ipc/types.h"
#include "workers/cpu/kernels.h"
#include "workers/sampling/logit_edits.h"

namespace baton {

/// What a draw depends on besides the logits and the request's parameters.
struct SampleKey {
  std::uint32_t n_generated = 0;  // index of the token to be drawn, among the generated ones
};

/// The tokens so far, for parameters that look at them (BatchRow::needs_history()).
struct SampleHistory {
  std::span<const Token> tokens;  // prompt and output
  std::uint32_t n_prompt = 0;     // so many of them are the prompt
};

/// Draws tokens. The result follows from (logits, params, key) alone, in the same way on every CPU
/// that gives the same logits. Keeps scratch memory, hence one instance a thread.
///
/// Order: the end of a reasoning whose budget is used, whatever follows; LogitEdits (masks, bias,
/// penalties); temperature; top_k; top_p over what top_k left; min_p, which drops what is lighter
/// than min_p times the heaviest; typical_p over what these left (Meister et al.,
/// https://arxiv.org/abs/2202.00666). It is the order of transformers' logits warpers. Equal logits
/// rank by id, the lowest first: greedy takes it, top_k and top_p keep it.
class Sampler {
 public:
  explicit Sampler(cpu::Isa isa = cpu::Isa::best) : kernels_(cpu::kernels(isa)) {}

  /// `logits` is one row, [vocab]; it is edited and restored. An error
  /// (NaN or +infinity among the logits, nothing left to choose from, parameters out of range)
  /// names its reason; nothing is drawn then.
  Result<Token> sample(std::span<float> logits, const SamplingParams& params, SampleKey key,
                       SampleHistory history = {});

  /// Appends an entry about `token`, and the `n_top` most probable ones, to `out`: natural
  /// logarithms of the softmax of `logits`, untouched by any parameter. A row without a softmax
  /// (NaN) gives kLowestLogprob.
  void log_probabilities(std::span<const float> logits, Token token, std::int32_t n_top,
                         std::uint32_t item, Logprobs& out);

  /// For beam search: appends an entry about the tokens that may follow, best first, to `out`, as
  /// StepResult::candidates has them. As in transformers' beam search the log probabilities are
  /// those of the whole softmax of `logits`; LogitEdits act on them, nothing else does, and they
  /// are not normalised again. `logits` stays as it is. Errors as of sample().
  Status rank(std::span<const float> logits, const SamplingParams& params, SampleKey key,
              SampleHistory history, std::uint32_t item, Logprobs& out);

 private:
  Result<Token> draw(std::span<const float> logits, const SamplingParams& params, SampleKey key);
  Token draw_from_all(std::span<const float> logits, float best, float factor, double uniform);
  Token draw_from_ranked(const SamplingParams& params, double uniform);
  void cut_typical(double typical_p);
  Token draw_from_kept(double uniform);
  void gather_at_least(std::span<const float> logits, float limit);
  void rank_top_k(std::span<const float> logits, std::size_t k);
  void weigh_ranked(float best, float factor);
  void rank_nucleus(std::span<const float> logits, double top_p, double total);
  double exponentials(std::span<const float> logits, float best, float factor);

  struct Candidate {
    float logit;
    Token token;
    double weight;
  };
  static bool ranks_before(const Candidate& a, const Candidate& b) {
    return a.logit != b.logit ? a.logit > b.logit : a.token < b.token;
  }

  const cpu::Kernels& kernels_;
  std::vector<float> edited_;   // log probabilities of beam search
  std::vector<float> weights_;  // exp of every logit
  std::vector<float> sums_;     // of every cpu::kExpBlock weights
  std::vector<std::int32_t> indices_;
  std::vector<Candidate> ranked_;
  std::vector<std::pair<double, std::size_t>> surprise_;  // distance from the entropy, candidate
  std::vector<std::pair<double, std::size_t>> nearest_;   // the same as a heap
  std::vector<Token> top_tokens_;
  std::vector<float> top_logprobs_;
  LogitEdits edits_;
};

}  // namespace baton
