#include "workers/sampler.h"

#include <algorithm>
#include <limits>
#include <string>

#include "workers/philox.h"

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
  return {};
}

}  // namespace

Result<Token> Sampler::sample(std::span<float> logits, const SamplingParams& params,
                              SampleKey key) {
  if (Status status = check_params(params); !status.ok()) return status;
  masked_.clear();
  if (key.n_generated < params.min_tokens) {
    for (const Token id : params.stop_ids) {
      if (id < 0 || static_cast<std::size_t>(id) >= logits.size()) continue;
      const auto at = static_cast<std::size_t>(id);
      masked_.emplace_back(at, logits[at]);
      logits[at] = -kInfinity;
    }
  }
  Result<Token> token = draw(logits, params, key);
  // Backwards, so that an id listed twice gets its first value back.
  for (auto it = masked_.rbegin(); it != masked_.rend(); ++it) logits[it->first] = it->second;
  return token;
}

Result<Token> Sampler::draw(std::span<const float> logits, const SamplingParams& params,
                            SampleKey key) {
  const cpu::RowMax best =
      kernels_.row_max(logits.data(), static_cast<std::int64_t>(logits.size()));
  if (best.bad) {
    return Status(ErrorCode::internal,
                  "the logits hold a NaN or an infinity, or every token is masked");
  }
  if (params.temperature < kGreedyBelow || params.top_k == 1) return Token{best.index};
  const float factor = 1.0F / params.temperature;
  const double uniform = uniform_draw(params.seed, key.choice, key.n_generated, 0);
  const auto k = static_cast<std::size_t>(params.top_k);
  if (k != 0 && k < logits.size()) {
    rank_top_k(logits, k);
    weigh_ranked(best.value, factor);
    return draw_from_ranked(static_cast<double>(params.top_p), uniform);
  }
  if (params.top_p < 1.0F) {
    const auto top_p = static_cast<double>(params.top_p);
    rank_nucleus(logits, top_p, exponentials(logits, best.value, factor));
    return draw_from_ranked(top_p, uniform);
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

/// All candidates that the nucleus of `top_p` may hold, best first. What is lighter than
/// (1 - top_p) / vocab of the total weighs less than 1 - top_p together, so the nucleus has none of
/// it.
void Sampler::rank_nucleus(std::span<const float> logits, double top_p, double total) {
  ranked_.clear();
  indices_.resize(logits.size());
  const double share = (1.0 - top_p) / static_cast<double>(logits.size());
  // A little lower, for the rounding of the sums; above zero, so that masked tokens stay out.
  const float limit =
      std::max(static_cast<float>(share * total * 0.999), std::numeric_limits<float>::min());
  const auto n = static_cast<std::int64_t>(logits.size());
  const std::int64_t found = kernels_.collect_ge(weights_.data(), n, limit, indices_.data(), n);
  for (std::int64_t i = 0; i < found; ++i) {
    const auto at = static_cast<std::size_t>(indices_[static_cast<std::size_t>(i)]);
    ranked_.push_back({logits[at], static_cast<Token>(at), static_cast<double>(weights_[at])});
  }
  std::sort(ranked_.begin(), ranked_.end(), ranks_before);
  // draw_from_ranked() measures top_p against the weight of the candidates; the rest is added to
  // the last one, which lies outside of the nucleus unless the nucleus is everything.
  double weight = 0;
  for (const Candidate& c : ranked_) weight += c.weight;
  if (total > weight) ranked_.push_back({-kInfinity, ranked_.back().token, total - weight});
}

/// Keeps the shortest prefix that weighs at least top_p of all candidates (one at least), draws
/// from it.
Token Sampler::draw_from_ranked(double top_p, double uniform) {
  double total = 0;
  for (const Candidate& c : ranked_) total += c.weight;
  std::size_t kept = 0;
  double weight = 0;
  do {
    weight += ranked_[kept++].weight;
  } while (kept < ranked_.size() && weight < top_p * total);
  double left = uniform * weight;
  std::size_t chosen = 0;
  for (std::size_t i = 0; i < kept; ++i) {
    if (ranked_[i].weight == 0.0) continue;
    chosen = i;
    if (left < ranked_[i].weight) break;
    left -= ranked_[i].weight;
  }
  return ranked_[chosen].token;
}

}  // namespace baton
