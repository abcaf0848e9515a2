// Private to DecodeAttention: how rows are dealt out to the runs of the streamed kernel. Plain C++.
#pragma once

#include <span>

#include "workers/cuda/attention/attention.h"

namespace baton::cuda {

/// Cuts the rows' keys (`rows`: one uncut item each, none empty), in their order, into at most
/// `runs` runs of about equal length, at multiples of 16 keys, and fills plan.items and
/// plan.counts. A row that several runs share gets slots of the split workspace: less than twice as
/// many as there are cuts, and there are less than `runs` cuts.
void plan_runs(std::span<const DecodeItem> rows, int runs, DecodePlan& plan);

}  // namespace baton::cuda
