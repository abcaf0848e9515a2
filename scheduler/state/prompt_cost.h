// What steps with prompt rows take, as LoongServe models it: T = A + B sum(tokens) + C sum(pairs),
// where a row's pairs are those of its tokens with all tokens that they look at. Fitted to the
// steps that were measured, by least squares; older ones count less and less. Pure.
#pragma once

#include <array>
#include <cstdint>

namespace baton {

/// Pairs of `tokens` tokens at `first` with those that they look at, themselves included.
constexpr double attended_pairs(std::uint32_t first, std::uint32_t tokens) {
  return static_cast<double>(tokens) * first + 0.5 * tokens * (tokens + 1.0);
}

class PromptCost {
 public:
  void take(double us, double tokens, double pairs);
  /// Enough has been measured to predict from.
  bool known() const { return count_ >= 8; }
  double of(double tokens, double pairs) const;

  struct Fit {
    double step_us = 0;   // A
    double token_us = 0;  // B
    double pair_us = 0;   // C
  };
  const Fit& fit() const { return fit_; }

 private:
  void refit();

  // Sums over the steps of products of (1, tokens, pairs in thousands), and of these with the time.
  std::array<std::array<double, 3>, 3> sums_{};
  std::array<double, 3> with_time_{};
  std::uint32_t count_ = 0;
  Fit fit_;
};

}  // namespace baton
