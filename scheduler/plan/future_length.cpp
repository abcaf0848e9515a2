#include "scheduler/plan/future_length.h"

#include <algorithm>

#include "scheduler/apply/beams.h"
#include "scheduler/apply/membership.h"

namespace baton {

namespace {

/// `sampling`: tokens that steps in flight will bring.
Growth growth_of(const Request& request, std::uint32_t sampling, std::uint32_t context) {
  Growth growth;
  growth.used = request.length() + sampling;
  const auto got = static_cast<std::uint32_t>(request.generated.size()) + sampling;
  const std::uint32_t most = request.sampling.max_tokens;
  // What the smallest pool cuts off (clamp_output) is not to come.
  growth.left = std::min(most - std::min(most, got), context - std::min(context, growth.used));
  return growth;
}

/// Blocks of a request from its start to its end; at least what it is given when it is placed.
std::uint64_t whole(const Worker& worker, const Request& request, std::uint32_t context) {
  if (request.beams) return beam_blocks(worker, request);
  const Growth growth = growth_of(request, 0, context);
  return worker.store.shape.live_blocks(std::max(growth.used + growth.left, request.length() + 1));
}

}  // namespace

std::uint64_t peak_blocks(std::vector<Growth>& sequences, std::uint32_t tokens_per_block) {
  std::sort(sequences.begin(), sequences.end(),
            [](const Growth& a, const Growth& b) { return a.left > b.left; });
  std::uint64_t used = 0;
  std::uint64_t peak = 0;
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    used += sequences[i].used + tokens_per_block - 1;  // the last block may hold one token only
    peak = std::max(peak, used + std::uint64_t{sequences[i].left} * (i + 1));
  }
  return peak / tokens_per_block;
}

bool fits_to_the_end(const State& state, const Worker& worker, const Request& request) {
  const auto index = static_cast<WorkerIndex>(&worker - state.workers.data());
  const std::uint32_t context = largest_context(state);
  std::uint64_t reserved = whole(worker, request, context);
  std::vector<Growth> decoding;
  state.sequences.each([&](const Sequence& sequence) {
    if (sequence.worker != index || sequence.retiring || sequence.width == 0) return;
    const Request& other = *state.requests.find(sequence.request);
    // Windows bound what a sequence holds, whenever it ends.
    if (sequence.decode_slot == kNobody || !worker.store.shape.plain()) {
      reserved += whole(worker, other, context);
    } else {
      decoding.push_back(growth_of(other, sequence.sampling, context));
    }
  });
  return reserved + peak_blocks(decoding, worker.store.tokens_per_block()) <=
         worker.store.pool.total();
}

}  // namespace baton
