// Prefix caching across requests: what a sequence has computed stays findable by its tokens after
// it, and the next one that begins alike names those blocks. Only full blocks are entered, and only
// once the steps that filled them have ended; nobody writes into them again, so sharing needs no
// copy.
#include "scheduler/prefix/prefix_cache.h"

#include <algorithm>

#include "ipc/fault_points.h"

namespace baton {

namespace {

Token token_at(const Request& request, std::size_t i) {
  return i < request.prompt.size() ? request.prompt[i]
                                   : request.generated[i - request.prompt.size()];
}

/// The next column's blocks, of all groups that have not given theirs back.
PrefixIndex::Node remember_column(Store& store, const Sequence& sequence, std::string_view salt,
                                  std::span<const Token> tokens) {
  const std::uint32_t groups = store.shape.groups.count;
  PrefixIndex::Node node = PrefixIndex::kRoot;
  for (std::uint32_t g = 0; g < groups; ++g) {
    const BlockId block =
        sequence.extents.front().blocks[std::size_t{sequence.remembered} * groups + g];
    if (block == kNoBlock) continue;
    node = store.pool.remember(sequence.prefix_node, salt, tokens, block, g);
  }
  return node != PrefixIndex::kRoot ? node : store.pool.pass(sequence.prefix_node, salt, tokens);
}

}  // namespace

BlockPool::Match cached_prefix(const State& state, const Request& request, const Worker& worker,
                               std::uint32_t most_tokens, Reach reach) {
  // The log probabilities of a prompt come from computing all of it.
  const bool whole = request.sampling.prompt_logprobs >= 0 && request.generated.empty();
  if (!state.settings.prefix_cache || whole) return {};
  const std::uint32_t per_block = worker.store.tokens_per_block();
  const auto match = [&](std::span<const Token> tokens) {
    return worker.store.pool.match(request.cache_salt, tokens, worker.store.shape,
                                   most_tokens / per_block, reach);
  };
  if (request.generated.empty()) return match(request.prompt);
  std::vector<Token> tokens = request.prompt;
  tokens.insert(tokens.end(), request.generated.begin(), request.generated.end());
  return match(tokens);
}

void remember_prefix(State& state, Sequence& sequence) {
  const Request* request = state.request_of(sequence);
  if (!state.settings.prefix_cache || request == nullptr) return;
  // What follows the first extent has its beginning in another pool: no index could find it.
  if (sequence.extents.front().store != sequence.worker) return;
  Worker& w = state.workers[sequence.worker];
  const std::uint32_t per_block = w.store.tokens_per_block();
  const std::uint32_t early = fault(Fault::block_cached_too_early) ? 1 : 0;
  // What follows the prompt differs from beam to beam.
  const std::uint32_t told =
      request->beams ? static_cast<std::uint32_t>(request->prompt.size()) : request->length();
  const std::uint32_t known = std::min(sequence.computed + early, told);
  if ((sequence.remembered + 1) * per_block > known) return;
  std::vector<Token> tokens(per_block);
  const std::size_t columns = sequence.extents.front().blocks.size() / w.store.shape.groups.count;
  for (; (sequence.remembered + 1) * per_block <= known && sequence.remembered < columns;
       ++sequence.remembered) {
    const std::size_t first = std::size_t{sequence.remembered} * per_block;
    for (std::uint32_t i = 0; i < per_block; ++i) tokens[i] = token_at(*request, first + i);
    sequence.prefix_node = remember_column(w.store, sequence, request->cache_salt, tokens);
  }
}

}  // namespace baton
