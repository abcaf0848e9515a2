#include "scheduler/state/prompt_cost.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

namespace baton {

namespace {

constexpr double kPastSteps = 0.98;
constexpr double kPairs = 1e-3;  // so that the columns are of like size

using Matrix = std::array<std::array<double, 3>, 3>;
using Vector = std::array<double, 3>;

/// The least squares with the coefficients of `which` alone, the others 0; nothing if the steps do
/// not tell them apart.
std::optional<Vector> solve(Matrix a, Vector b, unsigned which) {
  for (std::size_t i = 0; i < 3; ++i) {
    if ((which >> i & 1U) != 0) continue;
    for (std::size_t j = 0; j < 3; ++j) a[i][j] = a[j][i] = 0;
    a[i][i] = 1;
    b[i] = 0;
  }
  for (std::size_t column = 0; column < 3; ++column) {
    // What elimination has left of the diagonal, beside what was there: nothing, where a column
    // follows from those before it.
    const double whole = a[column][column];
    for (std::size_t row = 0; row < column; ++row) {
      const double f = a[column][row];
      for (std::size_t j = row; j < 3; ++j) a[column][j] -= f * a[row][j];
      b[column] -= f * b[row];
    }
    const double pivot = a[column][column];
    if (!(pivot > 1e-9 * whole)) return std::nullopt;
    for (std::size_t j = column; j < 3; ++j) a[column][j] /= pivot;
    b[column] /= pivot;
  }
  for (std::size_t row = 2; row-- > 0;) {
    for (std::size_t j = row + 1; j < 3; ++j) b[row] -= a[row][j] * b[j];
  }
  return b;
}

}  // namespace

void PromptCost::take(double us, double tokens, double pairs) {
  if (!(us > 0) || !(tokens > 0)) return;
  const Vector x = {1, tokens, pairs * kPairs};
  // A short step's error counts as much as a long one's: each is weighed by its own length.
  const double weight = 1 / (us * us);
  for (std::size_t i = 0; i < 3; ++i) {
    for (std::size_t j = 0; j < 3; ++j)
      sums_[i][j] = kPastSteps * sums_[i][j] + weight * x[i] * x[j];
    with_time_[i] = kPastSteps * with_time_[i] + weight * x[i] * us;
  }
  count_ = std::min(count_ + 1, 1U << 20U);
  refit();
}

/// No part of a step takes less than nothing: the first set of coefficients of which none is
/// negative, those with more of them first.
void PromptCost::refit() {
  for (const unsigned which : {7U, 6U, 3U, 2U}) {  // bit 0: A, bit 1: B, bit 2: C
    const auto found = solve(sums_, with_time_, which);
    if (!found) continue;
    if (std::any_of(found->begin(), found->end(), [](double c) { return !(c >= 0); })) continue;
    fit_ = {(*found)[0], (*found)[1], (*found)[2] * kPairs};
    return;
  }
}

double PromptCost::of(double tokens, double pairs) const {
  return fit_.step_us + fit_.token_us * tokens + fit_.pair_us * pairs;
}

}  // namespace baton
