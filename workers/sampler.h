// From one row of logits to one token. Torch-free; knows no batch.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "ipc/status.h"
#include "ipc/types.h"
#include "workers/cpu/kernels.h"

namespace baton {

/// What a draw depends on besides the logits.
struct SampleKey {
  std::uint32_t choice = 0;
  std::uint32_t n_generated = 0;  // index of the token to be drawn, among the generated ones
};

/// Draws tokens. The result follows from (logits, params, key) alone, in the same way on every CPU
/// that gives the same logits. Keeps scratch memory, hence one instance a thread.
///
/// Order: stop ids are masked while n_generated < min_tokens; temperature; top_k; top_p over what
/// top_k left. Equal logits rank by id, the lowest first: greedy takes it, top_k and top_p keep it.
class Sampler {
 public:
  explicit Sampler(cpu::Isa isa = cpu::Isa::best) : kernels_(cpu::kernels(isa)) {}

  /// `logits` is one row, [vocab]; it is changed where stop ids are masked, and restored. An error
  /// (NaN or +infinity among the logits, nothing left to choose from, parameters out of range)
  /// names its reason; nothing is drawn then.
  Result<Token> sample(std::span<float> logits, const SamplingParams& params, SampleKey key);

 private:
  Result<Token> draw(std::span<const float> logits, const SamplingParams& params, SampleKey key);
  Token draw_from_all(std::span<const float> logits, float best, float factor, double uniform);
  Token draw_from_ranked(double top_p, double uniform);
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
  std::vector<float> weights_;  // exp of every logit
  std::vector<float> sums_;     // of every cpu::kExpBlock weights
  std::vector<std::int32_t> indices_;
  std::vector<Candidate> ranked_;
  std::vector<std::pair<std::size_t, float>> masked_;
};

}  // namespace baton
