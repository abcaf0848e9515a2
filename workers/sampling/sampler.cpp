#include "workers/sampling/sampler.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <string>

#include "workers/sampling/philox.h"

namespace baton {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
/// Below this temperature differences of logits overflow; the limit is greedy anyway.
constexpr float kGreedyBelow = 1e-5F;

Status check_params(const SamplingParams& p) {
  if (!(p.temperature >= 0.0F) || p.temperature == kInfinity) {
    return invalid("temperature " + std::to_string(p.temperature) + " is not a number >= 0");
  }
  if (!(p.top_p > 0.0F && p.top_p <= 1.0F)) {
    return invalid("top_p " + std::to_string(p.top_p) + " is not in (0, 1]");
  }
  if (p.top_k < 0) return invalid("top_k " + std::to_string(p.top_k) + " is negative");
  if (!(p.min_p >= 0.0F && p.min_p <= 1.0F)) {
    return invalid("min_p " + std::to_string(p.min_p) + " is not in [0, 1]");
  }
  if (!(p.typical_p > 0.0F && p.typical_p <= 1.0F)) {
    return invalid("typical_p " + std::to_string(p.typical_p) + " is not in (0, 1]");
  }
  if (!(p.repetition_penalty > 0.0F) || p.repetition_penalty == kInfinity) {
    return invalid("repetition_penalty " + std::to_string(p.repetition_penalty) +
                   " is not a number > 0");
  }
  return {};
}

}  // namespace

Result<Token> Sampler::sample(std::span<float> logits, const SamplingParams& params, SampleKey key,
                              SampleHistory history) {
  if (Status status = check_params(params); !status.ok()) return status;
  edits_.apply(logits, params, key.n_generated, history.tokens, history.n_prompt);
  Result<Token> token = draw(logits, params, key);
  edits_.restore(logits);
  return token;
}

Result<Token> Sampler::draw(std::span<const float> logits, const SamplingParams& params,
                            SampleKey key) {
  const cpu::RowMax best =
      kernels_.row_max(logits.data(), static_cast<std::int64_t>(logits.size()));
  if (best.bad) {
    return Status(ErrorCode::internal, kNothingToDraw);
  }
  if (params.temperature < kGreedyBelow || params.top_k == 1) return Token{best.index};
  const float factor = 1.0F / params.temperature;
  const double uniform = uniform_draw(params.seed, key.n_generated, 0);
  const auto k = static_cast<std::size_t>(params.top_k);
  if (k != 0 && k < logits.size()) {
    rank_top_k(logits, k);
    weigh_ranked(best.value, factor);
    return draw_from_ranked(params, uniform);
  }
  if (params.top_p < 1.0F) {
    const auto top_p = static_cast<double>(params.top_p);
    rank_nucleus(logits, top_p, exponentials(logits, best.value, factor));
    return draw_from_ranked(params, uniform);
  }
  if (params.min_p > 0.0F || params.typical_p < 1.0F) {
    exponentials(logits, best.value, factor);
    gather_at_least(logits, params.min_p);  // the heaviest weighs 1
    if (params.typical_p < 1.0F) cut_typical(static_cast<double>(params.typical_p));
    std::sort(ranked_.begin(), ranked_.end(), ranks_before);
    return draw_from_kept(uniform);
  }
  return draw_from_all(logits, best.value, factor, uniform);
}

/// Fills weights_ and sums_; returns the sum of all.
double Sampler::exponentials(std::span<const float> logits, float best, float factor) {
  weights_.resize(logits.size());
  sums_.resize((logits.size() + cpu::kExpBlock - 1) / cpu::kExpBlock);
  kernels_.exp_sums(logits.data(), static_cast<std::int64_t>(logits.size()), best, factor,
                    weights_.data(), sums_.data());
  double total = 0;
  for (const float sum : sums_) total += static_cast<double>(sum);
  return total;
}

/// Inverse of the cumulative distribution, in order of id: first the block, then the token in it.
Token Sampler::draw_from_all(std::span<const float> logits, float best, float factor,
                             double uniform) {
  double left = exponentials(logits, best, factor) * uniform;
  std::size_t block = 0;
  // The last block that has any weight, should rounding carry past the end.
  std::size_t last_block = sums_.size() - 1;
  while (sums_[last_block] == 0.0F) --last_block;
  while (block < last_block && left >= static_cast<double>(sums_[block])) {
    left -= static_cast<double>(sums_[block++]);
  }
  const std::size_t begin = block * cpu::kExpBlock;
  const std::size_t end = std::min(begin + cpu::kExpBlock, weights_.size());
  std::size_t chosen = end;
  for (std::size_t i = begin; i < end; ++i) {
    const auto weight = static_cast<double>(weights_[i]);
    if (weight == 0.0) continue;
    chosen = i;
    if (left < weight) break;
    left -= weight;
  }
  return static_cast<Token>(chosen);
}

/// The k best candidates, best first. One pass with a threshold that rises as better ones are
/// found: candidates are gathered until there are twice as many as needed, then cut back to k.
void Sampler::rank_top_k(std::span<const float> logits, std::size_t k) {
  ranked_.clear();
  const std::size_t capacity = std::max<std::size_t>(2 * k, 256);
  const auto cut = [&] {
    if (ranked_.size() > k) {
      std::nth_element(ranked_.begin(), ranked_.begin() + static_cast<std::ptrdiff_t>(k) - 1,
                       ranked_.end(), ranks_before);
      ranked_.resize(k);
    }
  };
  float limit = std::numeric_limits<float>::lowest();
  indices_.resize(cpu::kExpBlock);
  for (std::size_t begin = 0; begin < logits.size(); begin += cpu::kExpBlock) {
    const std::size_t n = std::min<std::size_t>(cpu::kExpBlock, logits.size() - begin);
    const std::int64_t found =
        kernels_.collect_ge(logits.data() + begin, static_cast<std::int64_t>(n), limit,
                            indices_.data(), cpu::kExpBlock);
    for (std::int64_t i = 0; i < found; ++i) {
      const std::size_t at =
          begin + static_cast<std::size_t>(indices_[static_cast<std::size_t>(i)]);
      ranked_.push_back({logits[at], static_cast<Token>(at), 0.0});
    }
    if (ranked_.size() >= capacity) {
      cut();
      limit = ranked_[k - 1].logit;  // the worst of the k; nth_element put it there
    }
  }
  cut();
  std::sort(ranked_.begin(), ranked_.end(), ranks_before);
}

/// Gives the ranked candidates their weights, with the same exp as everywhere.
void Sampler::weigh_ranked(float best, float factor) {
  weights_.resize(ranked_.size());
  for (std::size_t i = 0; i < ranked_.size(); ++i) {
    weights_[i] = (ranked_[i].logit - best) * factor;
  }
  kernels_.exp(weights_.data(), weights_.data(), static_cast<std::int64_t>(weights_.size()));
  for (std::size_t i = 0; i < ranked_.size(); ++i) {
    ranked_[i].weight = static_cast<double>(weights_[i]);
  }
}

/// Every token of at least that weight, in order of id; masked ones never.
void Sampler::gather_at_least(std::span<const float> logits, float limit) {
  ranked_.clear();
  indices_.resize(logits.size());
  const auto n = static_cast<std::int64_t>(logits.size());
  const std::int64_t found = kernels_.collect_ge(
      weights_.data(), n, std::max(limit, std::numeric_limits<float>::min()), indices_.data(), n);
  for (std::int64_t i = 0; i < found; ++i) {
    const auto at = static_cast<std::size_t>(indices_[static_cast<std::size_t>(i)]);
    ranked_.push_back({logits[at], static_cast<Token>(at), static_cast<double>(weights_[at])});
  }
}

/// All candidates that the nucleus of `top_p` may hold, best first. What is lighter than
/// (1 - top_p) / vocab of the total weighs less than 1 - top_p together, so the nucleus has none of
/// it.
void Sampler::rank_nucleus(std::span<const float> logits, double top_p, double total) {
  const double share = (1.0 - top_p) / static_cast<double>(logits.size());
  // A little lower, for the rounding of the sums.
  gather_at_least(logits, static_cast<float>(share * total * 0.999));
  std::sort(ranked_.begin(), ranked_.end(), ranks_before);
  // draw_from_ranked() measures top_p against the weight of the candidates; the rest is added to
  // the last one, which lies outside of the nucleus unless the nucleus is everything.
  double weight = 0;
  for (const Candidate& c : ranked_) weight += c.weight;
  if (total > weight) ranked_.push_back({-kInfinity, ranked_.back().token, total - weight});
}

/// Keeps the shortest prefix that weighs at least top_p of all candidates (one at least), then what
/// min_p and typical_p leave of it; draws from that.
Token Sampler::draw_from_ranked(const SamplingParams& params, double uniform) {
  const auto top_p = static_cast<double>(params.top_p);
  double total = 0;
  for (const Candidate& c : ranked_) total += c.weight;
  std::size_t kept = 0;
  double weight = 0;
  do {
    weight += ranked_[kept++].weight;
  } while (kept < ranked_.size() && weight < top_p * total);
  ranked_.resize(kept);
  if (params.min_p > 0.0F || params.typical_p < 1.0F) {
    const double lightest = static_cast<double>(params.min_p) * ranked_.front().weight;
    while (ranked_.size() > 1 && ranked_.back().weight < lightest) ranked_.pop_back();
    if (params.typical_p < 1.0F) cut_typical(static_cast<double>(params.typical_p));
  }
  return draw_from_kept(uniform);
}

/// Draws from the ranked candidates, all of them.
Token Sampler::draw_from_kept(double uniform) {
  double weight = 0;
  for (const Candidate& c : ranked_) weight += c.weight;
  double left = uniform * weight;
  std::size_t chosen = 0;
  for (std::size_t i = 0; i < ranked_.size(); ++i) {
    if (ranked_[i].weight == 0.0) continue;
    chosen = i;
    if (left < ranked_[i].weight) break;
    left -= ranked_[i].weight;
  }
  return ranked_[chosen].token;
}

/// Keeps the candidates whose surprise is nearest to the entropy, until they weigh typical_p; those
/// as near as the last one stay as well.
void Sampler::cut_typical(double typical_p) {
  double total = 0;
  for (const Candidate& c : ranked_) total += c.weight;
  double entropy = 0;
  for (const Candidate& c : ranked_) {
    const double p = c.weight / total;
    if (p > 0) entropy -= p * std::log(p);
  }
  surprise_.clear();
  for (std::size_t i = 0; i < ranked_.size(); ++i) {
    surprise_.emplace_back(std::abs(-std::log(ranked_[i].weight / total) - entropy), i);
  }
  // A heap with the nearest on top: few are taken as a rule, so nothing is sorted.
  nearest_ = surprise_;
  std::make_heap(nearest_.begin(), nearest_.end(), std::greater<>());
  double weight = 0;
  double limit = 0;
  while (!nearest_.empty() && weight < typical_p * total) {
    std::pop_heap(nearest_.begin(), nearest_.end(), std::greater<>());
    weight += ranked_[nearest_.back().second].weight;
    limit = nearest_.back().first;
    nearest_.pop_back();
  }
  std::size_t kept = 0;
  for (const auto& [distance, at] : surprise_) {
    if (distance <= limit) ranked_[kept++] = ranked_[at];
  }
  ranked_.resize(kept);
}

void Sampler::log_probabilities(std::span<const float> logits, Token token, std::int32_t n_top,
                                std::uint32_t item, Logprobs& out) {
  const cpu::RowMax best =
      kernels_.row_max(logits.data(), static_cast<std::int64_t>(logits.size()));
  if (best.bad) {
    out.push(item, kLowestLogprob, {}, {});
    return;
  }
  const double log_total =
      static_cast<double>(best.value) + std::log(exponentials(logits, best.value, 1.0F));
  const auto log_probability = [&](float logit) {
    return std::max(kLowestLogprob, static_cast<float>(static_cast<double>(logit) - log_total));
  };
  top_tokens_.clear();
  top_logprobs_.clear();
  if (n_top > 0) {
    rank_top_k(logits, static_cast<std::size_t>(n_top));
    for (const Candidate& c : ranked_) {
      top_tokens_.push_back(c.token);
      top_logprobs_.push_back(log_probability(c.logit));
    }
  }
  out.push(item, log_probability(logits[static_cast<std::size_t>(token)]), top_tokens_,
           top_logprobs_);
}

Status Sampler::rank(std::span<const float> logits, const SamplingParams& params, SampleKey key,
                     SampleHistory history, std::uint32_t item, Logprobs& out) {
  if (Status status = check_params(params); !status.ok()) return status;
  const cpu::RowMax best =
      kernels_.row_max(logits.data(), static_cast<std::int64_t>(logits.size()));
  if (best.bad) return Status(ErrorCode::internal, "the logits hold a NaN or an infinity");
  const double log_total =
      static_cast<double>(best.value) + std::log(exponentials(logits, best.value, 1.0F));
  edited_.resize(logits.size());
  for (std::size_t i = 0; i < logits.size(); ++i) {
    edited_[i] = static_cast<float>(static_cast<double>(logits[i]) - log_total);
  }
  edits_.apply(edited_, params, key.n_generated, history.tokens, history.n_prompt);
  rank_top_k(edited_, params.num_beams + params.stop_ids.size());
  top_tokens_.clear();
  top_logprobs_.clear();
  std::size_t going_on = 0;
  for (std::size_t place = 0; place < ranked_.size() && going_on < params.num_beams; ++place) {
    const Candidate& c = ranked_[place];
    const bool stops =
        std::find(params.stop_ids.begin(), params.stop_ids.end(), c.token) != params.stop_ids.end();
    if (stops && place >= params.num_beams) continue;
    going_on += stops ? 0 : 1;
    top_tokens_.push_back(c.token);
    top_logprobs_.push_back(c.logit);
  }
  if (top_tokens_.empty()) return Status(ErrorCode::internal, "every token is masked");
  out.push(item, top_logprobs_.front(), top_tokens_, top_logprobs_);
  return {};
}

}  // namespace baton
