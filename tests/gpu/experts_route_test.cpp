// Which experts rows take on the device, against the CPU backend's choice.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "tests/gpu/device_fixture.h"
#include "tests/gpu/experts_fixture.h"
#include "workers/cpu/experts.h"
#include "workers/cuda/layer/experts.h"
#include "workers/cuda/layer/experts_route.h"
#include "workers/cuda/layer/experts_router.h"

namespace baton::cuda {
namespace {

class ExpertsRouteTest : public ::testing::Test {
 protected:
  void SetUp() override {
    int count = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) GTEST_SKIP() << "no GPU";
  }
};

/// What route() is given and leaves, on the device; whatever it does not write is -1 or a NaN.
struct Routed {
  Routed(const std::vector<float>& of_rows, int rows, int count, int active, bool normalise,
         int piece)
      : lines(rows * active),
        most(most_items(rows, count, active, piece)),
        logits(of_rows),
        weights(at(lines)),
        chosen(at(lines)),
        line(at(lines)),
        source(at(lines)),
        n_items(1),
        items(at(most) + 1) {
    call.rows = rows;
    call.count = count;
    call.active = active;
    call.normalise = normalise;
    call.piece = piece;
    call.logits = logits.get();
    call.chosen = chosen.get();
    call.weights = weights.get();
    call.line = line.get();
    call.source = source.get();
    call.items = items.get();
    call.n_items = n_items.get();
  }
  /// Each row's experts and their weights.
  void expect_choice(const cpu::ExpertPlan& plan) const {
    const auto got = chosen.read();
    const auto got_weights = weights.read();
    for (int row = 0; row < call.rows; ++row) {
      for (int j = 0; j < call.active; ++j) {
        const cpu::ExpertPlan::Choice& want = plan.of_row(row)[at(j)];
        const std::size_t i = size(row, call.active) + at(j);
        ASSERT_EQ(got[i], want.expert) << row << ", " << j;
        EXPECT_NEAR(got_weights[i], want.weight, 1e-5F * want.weight);
      }
    }
  }

  int lines, most;
  Device<float> logits, weights;
  Device<std::int32_t> chosen, line, source, n_items;
  Device<ExpertItem> items;
  ExpertRouting call;
};

struct RoutingCase {
  int rows, count, active, piece;
  bool normalise;
};

TEST_F(ExpertsRouteTest, RoutingIsTheCpus) {
  for (const RoutingCase c : {RoutingCase{1, 4, 2, 8, true},
                              {3, 8, 1, 8, false},
                              {64, 128, 8, 8, true},
                              {700, 130, 6, 64, false},
                              {257, 3, 3, 16, true},
                              {2048, 128, 8, 64, true},
                              {5, 1024, 64, 8, true}}) {
    SCOPED_TRACE(std::to_string(c.rows) + " rows, " + std::to_string(c.active) + " of " +
                 std::to_string(c.count));
    std::vector<float> logits = random_logits(c.rows, c.count, 1);
    // A row whose experts are all alike takes the first ones; the last expert of others is never
    // taken.
    std::fill_n(logits.begin(), c.count, 0.5F);
    cpu::ExpertPlan plan;
    plan.make(softmax(logits, c.count),
              {.experts = c.count, .active = c.active, .normalise = c.normalise});

    const Routed routed(logits, c.rows, c.count, c.active, c.normalise, c.piece);
    route(routed.call, nullptr);

    routed.expect_choice(plan);
    const auto got_line = routed.line.read();
    for (int row = 0; row < c.rows; ++row) {
      for (int j = 0; j < c.active; ++j) {
        EXPECT_EQ(got_line[size(row, c.active) + at(j)], plan.of_row(row)[at(j)].line);
      }
    }
    const std::vector<int> sources(plan.sources().begin(), plan.sources().end());
    EXPECT_EQ(routed.source.read(), sources);
    const int n = routed.n_items.read()[0];
    ASSERT_LE(n, routed.most);
    const auto got_items = routed.items.read();
    int next = 0;
    int item = 0;
    for (const cpu::ExpertPlan::Group& group : plan.groups()) {
      const int pieces = (group.rows + c.piece - 1) / c.piece;
      const int begin = item;
      for (int i = 0; i < pieces; ++i, ++item) {
        const ExpertItem& got = got_items[at(item)];
        EXPECT_EQ(got.expert, group.expert);
        EXPECT_EQ(got.first, next);
        EXPECT_EQ(got.rows, std::min(c.piece, group.rows - i * c.piece));
        EXPECT_EQ(got.begin, begin);
        EXPECT_EQ(got.pieces, pieces);
        next += got.rows;
      }
    }
    EXPECT_EQ(n, item);
    EXPECT_EQ(next, routed.lines);
  }
}

/// Sigmoids, biases and groups, against the CPU backend's choice.
TEST_F(ExpertsRouteTest, AnyRoutersChoiceIsTheCpus) {
  struct Case {
    int rows, count, active, groups, active_groups;
    bool sigmoid, router_bias, choice_bias, pairs, normalise;
    float scale;
  };
  for (const Case c : {Case{33, 32, 4, 1, 1, false, true, false, true, true, 1},
                       {70, 64, 6, 8, 3, true, false, true, true, true, 2.5F},
                       {9, 64, 6, 8, 2, false, false, false, false, false, 1},
                       {257, 160, 8, 1, 1, true, false, true, true, true, 1}}) {
    SCOPED_TRACE(std::to_string(c.count) + " experts, " + std::to_string(c.groups) + " groups");
    const std::vector<float> logits = random_logits(c.rows, c.count, 7);
    const std::vector<float> router_bias = random_logits(1, c.count, 8);
    std::vector<float> choice_bias = random_logits(1, c.count, 9);
    for (float& b : choice_bias) b *= 0.05F;
    std::vector<float> biased = logits;
    for (std::size_t i = 0; i < biased.size() && c.router_bias; ++i) {
      biased[i] += router_bias[i % at(c.count)];
    }
    std::vector<float> p = softmax(biased, c.count);
    for (std::size_t i = 0; i < p.size() && c.sigmoid; ++i) p[i] = 1 / (1 + std::exp(-biased[i]));
    cpu::ExpertPlan plan;
    plan.make(
        p, {c.count, c.active, c.normalise, c.scale, c.choice_bias ? choice_bias.data() : nullptr,
            c.groups, c.active_groups, c.pairs});

    const Device<float> device_router(router_bias), device_choice(choice_bias);
    Routed routed(logits, c.rows, c.count, c.active, c.normalise, 8);
    ExpertRule& rule = routed.call.rule;
    rule.sigmoid = c.sigmoid;
    rule.router_bias = c.router_bias ? device_router.get() : nullptr;
    rule.choice_bias = c.choice_bias ? device_choice.get() : nullptr;
    rule.groups = c.groups;
    rule.active_groups = c.active_groups;
    rule.group_pairs = c.pairs;
    rule.scale = c.scale;
    route(routed.call, nullptr);
    routed.expect_choice(plan);
  }
}

/// Against fp64, with the norm and of rows that are normed already.
TEST_F(ExpertsRouteTest, FewRowsAreNormedAndMultipliedAtOnce) {
  for (const auto& [rows, count, hidden] : {std::array{1, 128, 2048},
                                            {8, 128, 2048},
                                            {3, 32, 2880},
                                            {5, 13, 4096},
                                            {2, 5, 16},
                                            {8, 512, 264}}) {
    for (const bool normed : {false, true}) {
      SCOPED_TRACE(std::to_string(rows) + " rows of " + std::to_string(hidden));
      ASSERT_TRUE(router_fits(rows, hidden));
      const auto x = random_bf16(size(rows, hidden), 2, 1);
      const auto gain = random_bf16(at(hidden), 1.5F, 2);
      const auto w = random_bf16(size(count, hidden), 0.1F, 3);
      const Device<Bf16> dx(x), dgain(gain), dw(w), dnormed(x.size());
      const Device<float> logits(size(rows, count));
      RouterCall call{rows, count, hidden, dx.get()};
      if (normed) {
        call.gain = dgain.get();
        call.eps = 1e-6F;
        call.normed = dnormed.get();
      }
      call.w = dw.get();
      call.logits = logits.get();
      run_router(call, nullptr);
      const auto got = logits.read();
      std::vector<Bf16> input = x;
      if (normed) {
        input = dnormed.read();
        for (int r = 0; r < rows; ++r) {
          double squares = 0;
          for (int k = 0; k < hidden; ++k)
            squares += std::pow(value(x[size(r, hidden) + at(k)]), 2);
          const double factor = 1 / std::sqrt(squares / hidden + 1e-6);
          for (int k = 0; k < hidden; ++k) {
            const std::size_t i = size(r, hidden) + at(k);
            const double want =
                static_cast<double>(value(x[i])) * factor * static_cast<double>(value(gain[at(k)]));
            ASSERT_NEAR(value(input[i]), want, std::abs(want) / 256 + 1e-6);
          }
        }
      }
      for (int r = 0; r < rows; ++r) {
        for (int e = 0; e < count; ++e) {
          double want = 0;
          double magnitude = 0;
          for (int k = 0; k < hidden; ++k) {
            const double part = static_cast<double>(value(input[size(r, hidden) + at(k)])) *
                                static_cast<double>(value(w[size(e, hidden) + at(k)]));
            want += part;
            magnitude += std::abs(part);
          }
          ASSERT_NEAR(got[size(r, count) + at(e)], want, 1e-5 * magnitude) << r << ", " << e;
        }
      }
    }
  }
}

}  // namespace
}  // namespace baton::cuda
