#include "workers/cpu/experts.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace baton::cpu {

namespace {

/// The largest that is not taken, of equal ones the first. Comparisons with a NaN are false: such a
/// row still takes as many experts, and its NaN goes on.
std::size_t best_of(std::span<const float> scores, const std::vector<char>& taken) {
  std::size_t best = scores.size();
  for (std::size_t e = 0; e < scores.size(); ++e) {
    if (taken[e] != 0) continue;
    if (best == scores.size() || scores[e] > scores[best]) best = e;
  }
  return best;
}

}  // namespace

/// Marks the experts of all groups but the best as taken.
void ExpertPlan::close_groups(std::span<const float> scores, const RouterRule& rule) {
  const std::size_t size = scores.size() / static_cast<std::size_t>(rule.groups);
  group_scores_.clear();
  for (std::size_t first = 0; first < scores.size(); first += size) {
    float best = -std::numeric_limits<float>::infinity();
    float second = best;
    for (const float score : scores.subspan(first, size)) {
      second = std::max(second, std::min(best, score));
      best = std::max(best, score);
    }
    group_scores_.push_back(rule.group_pairs && size > 1 ? best + second : best);
  }
  open_.assign(group_scores_.size(), 0);
  for (int i = 0; i < rule.active_groups; ++i) open_[best_of(group_scores_, open_)] = 1;
  for (std::size_t e = 0; e < scores.size(); ++e) taken_[e] = open_[e / size] == 0 ? 1 : 0;
}

void ExpertPlan::choose(std::span<const float> weights, const RouterRule& rule,
                        std::span<Choice> chosen) {
  std::fill(taken_.begin(), taken_.end(), char{0});
  std::span<const float> scores = weights;
  if (rule.bias != nullptr) {
    scores_.assign(weights.begin(), weights.end());
    for (std::size_t e = 0; e < scores_.size(); ++e) scores_[e] += rule.bias[e];
    scores = scores_;
  }
  if (rule.groups > 1) close_groups(scores, rule);
  float sum = 0;
  for (Choice& choice : chosen) {
    const std::size_t best = best_of(scores, taken_);
    taken_[best] = 1;
    choice = {static_cast<int>(best), 0, weights[best]};
    sum += choice.weight;
  }
  if (rule.normalise) {
    for (Choice& choice : chosen) choice.weight /= sum;
  }
  if (rule.scale != 1.0F) {
    for (Choice& choice : chosen) choice.weight *= rule.scale;
  }
  std::sort(chosen.begin(), chosen.end(),
            [](const Choice& a, const Choice& b) { return a.expert < b.expert; });
}

void ExpertPlan::make(std::span<const float> weights, const RouterRule& rule) {
  const auto n_experts = static_cast<std::size_t>(rule.experts);
  const auto n_active = static_cast<std::size_t>(rule.active);
  const std::size_t rows = weights.size() / n_experts;
  active_ = rule.active;
  choices_.resize(rows * n_active);
  taken_.resize(n_experts);
  next_line_.assign(n_experts, 0);
  for (std::size_t r = 0; r < rows; ++r) {
    const std::span<Choice> chosen = std::span(choices_).subspan(r * n_active, n_active);
    choose(weights.subspan(r * n_experts, n_experts), rule, chosen);
    for (const Choice& c : chosen) ++next_line_[static_cast<std::size_t>(c.expert)];
  }
  // Counts become first lines.
  groups_.clear();
  int line = 0;
  for (int e = 0; e < rule.experts; ++e) {
    int& next = next_line_[static_cast<std::size_t>(e)];
    if (next > 0) groups_.push_back({e, line, next});
    line += std::exchange(next, line);
  }
  sources_.resize(choices_.size());
  for (std::size_t i = 0; i < choices_.size(); ++i) {
    Choice& c = choices_[i];
    c.line = next_line_[static_cast<std::size_t>(c.expert)]++;
    sources_[static_cast<std::size_t>(c.line)] = static_cast<int>(i / n_active);
  }
}

}  // namespace baton::cpu
