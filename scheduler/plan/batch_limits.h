// How much one worker takes on, and how much of it one step holds. Pure functions of state and
// settings.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "scheduler/state/cluster_state.h"

namespace baton {

/// The batch size in force while `queued` requests wait: the smallest of `sizes` (ascending) that
/// takes them all, else the largest; kNoLimit without sizes. So a short queue keeps batches small
/// and each step fast, and a long one fills the largest. (After llm-serving's multi-valued batch
/// sizes.)
std::uint32_t batch_bucket(const std::vector<std::uint32_t>& sizes, std::size_t queued);

/// Tokens of one step of that worker, prompt and decode together: its role's, but no more than it
/// has room for. It may have been started with other settings.
std::uint32_t step_tokens(const Settings& settings, const Worker& worker);

/// Most prompts with a row in one step (`prefill_batch_size`).
std::uint32_t most_prompt_rows(const State& state);

/// Most sequences that may be placed on `worker`: `max_running`, and where tokens are decoded no
/// more than
/// `decode_batch_size` and the tokens of a step. An empty worker takes any one request all the
/// same.
std::uint32_t most_running(const State& state, const Worker& worker);

/// Most beams of one request: wider ones would never be among others.
std::uint32_t most_beams(const Settings& settings);

}  // namespace baton
