// What the simulated scheduler is compared with from outside: marks of faults, pools that were
// shared, caches.
#include <algorithm>
#include <optional>
#include <span>

#include "tests/sim/world.h"

namespace baton::sim {

/// Nothing is pulled out of a pool whose process is known to have died of a fault: the pools that
/// the scheduler was told of.
void SimScheduler::check_faulted(std::size_t from) {
  for (std::size_t i = from; i < out_.to_workers.size(); ++i) {
    const auto* pull = std::get_if<Pull>(&out_.to_workers[i].second);
    if (pull != nullptr && faulted_.contains(pull->allocation))
      world_.fail("a pool is pulled from whose process died of a fault");
  }
}

/// As the real shell does: a mark is there before its process has ended.
void SimScheduler::look_for_faults() {
  for (std::size_t i = 0; i < state.workers.size(); ++i) {
    const Worker& w = state.workers[i];
    if (!w.store.offer.leased || w.store.faulted || w.peer.identity.pid == 0) continue;
    const auto* process = dynamic_cast<const SimWorker*>(
        &world_.process(static_cast<std::uint32_t>(w.peer.identity.pid)));
    if (process == nullptr || !process->spoiled) continue;
    if (w.store.offer.incarnation == w.peer.identity.incarnation)
      faulted_.insert(process->allocation());
    apply_now(PoolFaulted{w.peer.link});
  }
}

void SimScheduler::note_pull(const Pull& pull) {
  const OpenPull* open = state.pulls.find(pull.pull_id);
  const Request* request = open == nullptr ? nullptr : state.requests.find(open->request);
  if (request != nullptr) world_.note_pull(pull, request->sampling.seed);
}

/// What workers hold together that read each other's pools: the largest set of them that there was,
/// as long as no operator takes one away.
void SimScheduler::note_shared_pools(bool taken_away) {
  const Scenario& s = world_.scenario();
  if (!s.settings.elastic) return;
  if (taken_away) shared_tokens_ = 0;
  const auto reads = [&](const Worker& a, const Worker& b) {
    return a.peer.readable.contains(b.store.allocation());
  };
  const std::size_t n = state.workers.size();
  for (std::uint32_t set = 1; set < 1U << n; ++set) {
    std::uint32_t tokens = 0;
    std::uint32_t members = 0;
    bool together = true;
    for (std::size_t i = 0; i < n && together; ++i) {
      const Worker& w = state.workers[i];
      if ((set >> i & 1U) == 0) continue;
      ++members;
      tokens += w.store.offer.blocks * s.tokens_per_block;
      together = w.takes_work() && w.role() == Role::mixed;
      for (std::size_t j = 0; j < n && together; ++j) {
        if (j != i && (set >> j & 1U) != 0) together = reads(w, state.workers[j]);
      }
    }
    if (together && members <= s.settings.elastic_degree)
      shared_tokens_ = std::max(shared_tokens_, std::min(tokens, s.max_context));
  }
}

/// What they hold is not too long, whoever of them is away.
void SimScheduler::check_refusals(FrontendIndex frontend, const Events& events) {
  const Scenario& s = world_.scenario();
  const bool turned = s.blows.set_role != 0 || s.settings.roles == Roles::automatic;
  if (!s.settings.elastic || turned || s.blows.set_draining != 0) return;
  for (const Terminal& terminal : events.terminals) {
    const RequestId name{state.frontends[frontend].identity.incarnation, terminal.counter};
    if (terminal.code != ErrorCode::too_long || !refused_.insert({name, terminal.attempt}).second)
      continue;
    const RequestSpec& spec = world_.spec_of(seeds_.at(name));
    const auto tokens = static_cast<std::uint32_t>(spec.prompt.size()) + terminal.n.front() + 1;
    if (!spec.sampling.beams() && tokens <= shared_tokens_)
      world_.fail("request " + std::to_string(spec.sampling.seed - kFirstSeed) + " of " +
                  std::to_string(tokens) + " tokens is too long, where pools have held " +
                  std::to_string(shared_tokens_) + " together");
  }
}

/// Where nothing goes wrong no term ends.
void SimScheduler::check_calm() {
  const Scenario& s = world_.scenario();
  if (s.calm && s.load.strike == Strike::none && state.counters.terms_ended != 0) {
    world_.fail("a term ended, though nothing has gone wrong");
  }
}

/// Whoever replays the events has what the pools have: no more, and no less but for what can never
/// be found.
void SimScheduler::check_caches() {
  told_.resize(state.workers.size());
  for (WorkerIndex i = 0; i < state.workers.size(); ++i) {
    const Store& store = state.workers[i].store;
    if (!store.log) continue;
    for (const CacheEvent& event : store.log->take()) {
      const std::pair key(event.hash, event.host);
      const bool good = event.what == CacheEvent::What::stored    ? told_[i].insert(key).second
                        : event.what == CacheEvent::What::removed ? told_[i].erase(key) == 1
                                                                  : (told_[i].clear(), true);
      if (!good) world_.fail("an event of a cache that fits none before it");
    }
    std::set<std::pair<ContentHash, bool>> held;
    const BlockPool& pool = store.pool;
    for (BlockId block = 0; block < pool.total() + pool.host_total(); ++block) {
      const PrefixIndex::Entry* entry = pool.index().entry(block);
      // Of several groups of layers the first one is told.
      const bool told = entry != nullptr && (entry->block == block || entry->host == block);
      const auto hash = told ? store.log->hash_of(entry->node) : std::nullopt;
      if (hash) held.emplace(*hash, pool.is_host(block));
    }
    if (held != told_[i]) {
      world_.fail("a router knows " + std::to_string(told_[i].size()) +
                  " blocks of a pool that has " + std::to_string(held.size()));
    }
  }
}

/// A sequence's place in its pool's index is that of its own tokens.
void SimScheduler::check_prefix_nodes() {
  state.sequences.each([&](const Sequence& sequence) {
    const Worker& w = state.workers[sequence.worker];
    const Request* request = state.request_of(sequence);
    if (request == nullptr || sequence.remembered == 0 || !(w.ready() || w.store.kept) ||
        sequence.extents.empty() || sequence.extents.front().store != sequence.worker)
      return;
    std::vector<Token> tokens = request->prompt;
    tokens.insert(tokens.end(), request->generated.begin(), request->generated.end());
    const std::size_t per_block = w.store.tokens_per_block();
    const PrefixIndex& index = w.store.pool.index();
    PrefixIndex::Node node = PrefixIndex::kRoot;
    for (std::size_t c = 0; c < sequence.remembered; ++c) {
      const auto* entry = index.find(node, request->cache_salt,
                                     std::span(tokens).subspan(c * per_block, per_block));
      if (entry == nullptr) return;  // forgotten meanwhile
      node = entry->node;
    }
    if (node == sequence.prefix_node) return;
    // Its beginning may have been forgotten, and entered again under another number.
    std::uint64_t content = world_.spec_of(request->sampling.seed).root;
    for (std::size_t i = 0; i < sequence.remembered * per_block; ++i)
      content = extend_prefix(content, tokens[i]);
    const BlockPool& pool = w.store.pool;
    Segment* segment = world_.memory().find(w.store.allocation());
    for (BlockId block = 0; block < pool.total(); ++block) {
      const auto* other = index.entry(block);
      const bool same =
          other != nullptr && other->node == sequence.prefix_node && other->block == block;
      if (same && segment->cell(block, w.store.tokens_per_block() - 1) != cell_of(content, 0))
        world_.fail(w.name() + ": a sequence is entered behind what others hold");
    }
  });
}

}  // namespace baton::sim
