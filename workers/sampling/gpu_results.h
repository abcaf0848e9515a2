// What a GPU and the host found for the rows of one step, put together. Host code.
#pragma once

#include <cstdint>
#include <vector>

#include "workers/cuda/sampling/sampler.h"
#include "workers/protocol/step_batch.h"

namespace baton {

/// `tokens`: what the device drew, by row. `logprobs`: by line of logits, in order of the step.
/// `on_host`: by row, whether the host drew, which `host` tells of. Everything goes to `output`.
void take_results(const RunStep& step, const std::vector<bool>& on_host, const std::int32_t* tokens,
                  const cuda::TokenLogprobs* logprobs, const StepOutput& host, StepOutput& output);

}  // namespace baton
