// Which experts rows take, and the rows sorted by expert. Part of experts.h; tests look in here.
#pragma once

#include <cstdint>

#include "workers/cuda/layer/experts.h"
#include "workers/cuda/types.h"

namespace baton::cuda {

/// A piece of an expert's rows: lines [first, first + rows) of the sorted order. An expert's pieces
/// are
/// `begin` .. `begin` + `pieces` - 1.
struct ExpertItem {
  int expert = 0;
  int first = 0;
  int rows = 0;
  int begin = 0;
  int pieces = 0;
};

/// All device memory.
struct ExpertRouting {
  int rows = 0, count = 0, active = 0;
  bool normalise = false;
  int piece = 0;                   // rows of an item at most
  const float* logits = nullptr;   // [rows, count]
  std::int32_t* chosen = nullptr;  // [rows, active], ascending
  float* weights = nullptr;        // [rows, active]
  std::int32_t* line = nullptr;    // [rows, active], where the row's result of that expert is
  std::int32_t* source = nullptr;  // [rows * active], the row of each line
  ExpertItem* items = nullptr;     // [most_items()], by expert
  std::int32_t* n_items = nullptr;
  ExpertRule rule = {};
};

/// Lines of an expert are in order of their rows.
void route(const ExpertRouting& routing, Stream stream);

inline int most_items(int rows, int count, int active, int piece) {
  const int lines = rows * active;
  return (lines < count ? lines : count) + lines / piece;
}

/// x[r] += sum_j weights[r][j] * (y[line[r][j]] + the rule's down_bias of chosen[r][j]), j
/// ascending, fp32 with one rounding.
void combine(const ExpertRouting& routing, const Bf16* y, int hidden, Bf16* x, Stream stream);

}  // namespace baton::cuda
