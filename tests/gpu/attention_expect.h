// What tests of attention expect of it: the fixture's reference, within what bf16 rounds.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>

#include "tests/gpu/attention_fixture.h"

namespace baton::cuda {

/// What a result may be off by. Both kernels round the probabilities to bf16 (2^-9 of each, so of
/// the weighted sum of |v|) and the result (2^-9 of it); their exponentials and sums add little.
/// Twice that is allowed; FlashInfer's FA2 kernel rounds the pieces of a split row once more.
inline double tolerance(const Expected& e, double roundings) {
  return roundings * std::ldexp(e.magnitude, -8) + std::ldexp(std::abs(e.value), -8) + 1e-5;
}

inline void expect_close(const AttentionCase& c, const std::vector<std::uint16_t>& out,
                         double roundings) {
  const HeadShape& s = c.shape;
  double worst = 0;
  for (const AttentionRow& row : c.rows) {
    for (int i = 0; i < row.n_rows; ++i) {
      for (int h = 0; h < s.heads; ++h) {
        const auto expected = c.reference(row, i, h);
        for (int d = 0; d < s.head_dim; ++d) {
          const std::size_t at =
              (static_cast<std::size_t>(row.first_row + i) * s.heads + h) * s.head_dim + d;
          const double error = std::abs(from_bf16(out[at]) - expected[d].value);
          const double part = error / tolerance(expected[d], roundings);
          worst = std::max(worst, std::isnan(part) ? 1e30 : part);
          ASSERT_LE(part, 1.0) << "position " << row.position + i << " head " << h << " element "
                               << d << ": " << from_bf16(out[at]) << " for " << expected[d].value;
        }
      }
    }
  }
  std::printf("    largest error: %.2f of the tolerance\n", worst);
}

/// A sink may be far above a row's scores, or far below; pieces of a row meet before it counts.
inline std::vector<float> some_sinks(int heads) {
  std::vector<float> sinks;
  for (int h = 0; h < heads; ++h) sinks.push_back(static_cast<float>(h % 5) * 4.0F - 8.0F);
  return sinks;
}

}  // namespace baton::cuda
