// The kernels of experts on Hopper whose weights come through a ring in shared memory, as
// experts.cu calls them. Part of experts.h.
#pragma once

#include "workers/cuda/layer/experts.h"
#include "workers/cuda/layer/experts_route.h"

namespace baton::cuda {

/// Up to eight rows, and not deterministic: two kernels, which choose the experts themselves.
/// `gated` is [rows * active, intermediate].
bool few_experts_fit(const ExpertCall& call);
void few_experts(const ExpertCall& call, Bf16* gated, Stream stream);

/// One product of pieces of at most 16 rows.
struct StreamProduct {
  const ExpertRouting* routing = nullptr;
  ExpertWeight w;
  int out = 0, in = 0;
  const Bf16* x = nullptr;
  bool gathered = false;  // line l's row of x is source[l], else l
  Bf16* y = nullptr;      // [lines, out], of gate and up [lines, out / 2]
  bool gates = false;     // gate and up become one
};
bool stream_experts_fit(const StreamProduct& product);
void stream_experts(const StreamProduct& product, Stream stream);

/// The same of pieces of up to kWideRows rows, from where the tensor cores bound it; x must not be
/// gathered on the way, but lie in lines: gather_lines() does that.
constexpr int kWideRows = 128;
bool wide_experts_fit();
void gather_lines(const ExpertRouting& routing, const Bf16* x, int columns, Bf16* y, Stream stream);
void wide_experts(const StreamProduct& product, Stream stream);

}  // namespace baton::cuda
