#include "workers/cpu/experts.h"

#include <algorithm>
#include <utility>

namespace baton::cpu {

/// Comparisons with a NaN are false: such a row still takes `active` experts, and its NaN goes on.
void ExpertPlan::choose(std::span<const float> probabilities, bool normalise,
                        std::span<Choice> chosen) {
  std::fill(taken_.begin(), taken_.end(), char{0});
  float sum = 0;
  for (Choice& choice : chosen) {
    std::size_t best = probabilities.size();
    for (std::size_t e = 0; e < probabilities.size(); ++e) {
      if (taken_[e] != 0) continue;
      if (best == probabilities.size() || probabilities[e] > probabilities[best]) best = e;
    }
    taken_[best] = 1;
    choice = {static_cast<int>(best), 0, probabilities[best]};
    sum += choice.weight;
  }
  if (normalise) {
    for (Choice& choice : chosen) choice.weight /= sum;
  }
  std::sort(chosen.begin(), chosen.end(),
            [](const Choice& a, const Choice& b) { return a.expert < b.expert; });
}

void ExpertPlan::make(std::span<const float> probabilities, int experts, int active,
                      bool normalise) {
  const auto n_experts = static_cast<std::size_t>(experts);
  const auto n_active = static_cast<std::size_t>(active);
  const std::size_t rows = probabilities.size() / n_experts;
  active_ = active;
  choices_.resize(rows * n_active);
  taken_.resize(n_experts);
  next_line_.assign(n_experts, 0);
  for (std::size_t r = 0; r < rows; ++r) {
    const std::span<Choice> chosen = std::span(choices_).subspan(r * n_active, n_active);
    choose(probabilities.subspan(r * n_experts, n_experts), normalise, chosen);
    for (const Choice& c : chosen) ++next_line_[static_cast<std::size_t>(c.expert)];
  }
  // Counts become first lines.
  groups_.clear();
  int line = 0;
  for (int e = 0; e < experts; ++e) {
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
