// The hand-off of a prompt's blocks: target -> pulls -> source released. The bytes are moved by the
// target worker; here are only block numbers.
//
// Order that must hold: target blocks are reserved whole before the first pull; a block is named in
// a pull only when the step that filled it has ended; the source keeps its references until the
// last pull has been answered; the sequence joins the target's decode set after that.
#include "scheduler/apply/handoff.h"

#include <algorithm>
#include <span>
#include <string>

#include "ipc/fault_points.h"
#include "scheduler/apply/membership.h"
#include "scheduler/apply/reachability.h"
#include "scheduler/apply/requests.h"
#include "scheduler/apply/sequences.h"
#include "scheduler/prefix/prefix_cache.h"
#include "scheduler/prefix/prefix_pull.h"

namespace baton {

namespace {

/// More end the request: its prompt is computed again and again.
constexpr std::uint32_t kMostDamagedPulls = 3;

void pull_final_columns(State& state, const Request& request, const Sequence& source,
                        Sequence& target, std::uint32_t final_columns, TimeNs now, Outbox& out) {
  const Store& store = state.workers[target.worker].store;
  const std::size_t groups = store.shape.groups.count;
  if (fault(Fault::piecemeal_reservation)) {
    const std::uint32_t tokens = final_columns * store.tokens_per_block();
    if (missing_blocks(store, target, tokens) > store.pool.available_blocks()) return;
    grow_table(state, target, tokens, nullptr);
  }
  const std::span<const BlockId> blocks(source.tail().blocks);
  send_pull(state, request, source.worker,
            blocks.subspan(target.pulled * groups, (final_columns - target.pulled) * groups),
            target, now, out);
}

void complete(State& state, Request& request, Sequence& target) {
  release_sequence(state, request.source);
  request.source = request.target;
  request.target = 0;
  request.phase = Phase::decode;
  request.times.enter(Part::decode_wait, state.now);
  target.is_target = false;
  target.scheduled = target.prefill_length;
  target.computed = target.prefill_length;
  remember_prefix(state, target);
  state.workers[target.worker].compute.adds.push_back(
      target.id);  // beams run from the plan that adds it on
  request.deaths.got_on(Stage::pull);
  ++state.counters.handoffs;
}

}  // namespace

void send_pull(State& state, const Request& request, WorkerIndex exporter,
               std::span<const BlockId> columns, Sequence& target, TimeNs now, Outbox& out) {
  const std::size_t groups = state.workers[target.worker].store.shape.groups.count;
  const auto places = std::span<const BlockId>(target.tail().blocks)
                          .subspan(target.pulled * groups, columns.size());
  target.pulled += static_cast<std::uint32_t>(columns.size() / groups);
  // What the target's windows will never look at is not pulled.
  std::vector<BlockId> from;
  std::vector<BlockId> to;
  for (std::size_t i = 0; i < columns.size(); ++i) {
    if (places[i] == kNoBlock) continue;
    from.push_back(columns[i]);
    to.push_back(places[i]);
  }
  if (from.empty()) return;
  const Sequence* source = state.sequences.find(request.source);
  if (target.spans() || (source != nullptr && source->spans()))
    state.counters.growth_blocks_moved += from.size();
  open_pull(state, request, exporter, from, to, target, now, out);
}

void open_pull(State& state, const Request& request, WorkerIndex exporter,
               std::span<const BlockId> from_blocks, std::span<const BlockId> to_blocks,
               Sequence& target, TimeNs now, Outbox& out) {
  Worker& from = state.workers[exporter];
  Worker& to = state.workers[target.worker];
  OpenPull& pull = state.pulls.create();
  pull.request = request.id;
  pull.target = target.id;
  pull.from_worker = exporter;
  pull.from_allocation = from.store.allocation();
  pull.to_worker = target.worker;
  pull.from.assign(from_blocks.begin(), from_blocks.end());
  pull.to.assign(to_blocks.begin(), to_blocks.end());
  if (from.store.offer.tells_sums) {
    for (const BlockId block : pull.from) {
      const auto known = from.store.sums.find(block);
      pull.sums.push_back(known == from.store.sums.end() ? 0 : known->second);
    }
  }
  for (const BlockId block : pull.from) from.store.pool.pin_source(block);
  for (const BlockId block : pull.to) to.store.pool.pin_target(block);
  ++target.open_pulls;
  post_pull(state, pull, now, out);
}

void post_pull(State& state, OpenPull& pull, TimeNs now, Outbox& out) {
  const Worker& from = state.workers[pull.from_worker];
  Worker& to = state.workers[pull.to_worker];
  pull.number = to.peer.work.add(Work::pull, pull.request, pull.id, now);
  to.peer.imports.insert(from.store.allocation());

  Pull message;
  message.term = to.peer.term;
  message.pull_id = pull.id;
  message.allocation = from.store.allocation();
  message.ranks = from.store.offer.ranks;
  if (!from.store.offer.leased) {  // else it may outlive the exporter
    message.exporter_pid = from.peer.identity.pid;
    message.exporter_pid_start = from.peer.identity.pid_start;
  }
  message.exporter_blocks = from.store.offer.blocks;
  message.exporter_host_handle = from.store.offer.host_handle;
  message.exporter_host_blocks = from.store.offer.host_blocks;
  message.from = pull.from;
  message.to = pull.to;
  message.sums = pull.sums;
  message.in_place = pull.is_probe() && may_read_in_place(state, from, to);
  out.to_workers.emplace_back(to.peer.link, std::move(message));
}

bool needs_handoff(const State& state, const Request& request, const Worker& worker) {
  const Sequence* source = state.sequences.find(request.source);
  if (source != nullptr && source->spans()) return false;  // it decodes where its tail is
  if (worker.role() != Role::prefill || request.local || avoids_pulls(state, request)) return false;
  // The prompt's last step samples the only token that is left: nothing to decode.
  if (request.generated.size() + 1 >= request.sampling.max_tokens) return false;
  if (!any_decoder(state)) return state.settings.no_decode == NoDecode::wait;
  return reaches_some_decoder(state, worker);
}

void advance_handoff(State& state, Request& request, TimeNs now, Outbox& out) {
  Sequence* target = state.sequences.find(request.target);
  if (target == nullptr) return;
  const std::uint32_t length = target->prefill_length;
  const std::uint32_t needed = state.workers[target->worker].store.columns_for(length);
  if (Sequence* source = state.sequences.find(request.source)) {
    const std::uint32_t written =
        fault(Fault::block_final_too_early) ? source->scheduled : source->computed;
    const std::uint32_t per_block = state.workers[source->worker].store.tokens_per_block();
    // A partly filled block is final only with the whole prompt.
    const std::uint32_t final_columns = written >= length ? needed : written / per_block;
    if (final_columns > target->pulled && !state.workers[target->worker].may_begin()) {
      const auto& held = state.held_pulls;
      if (std::find(held.begin(), held.end(), request.id) == held.end())
        state.held_pulls.push_back(request.id);
    } else if (final_columns > target->pulled) {
      note(request, LifetimeMoment::migration_begin, now);
      pull_final_columns(state, request, *source, *target, final_columns, now, out);
    }
  }
  if (request.phase == Phase::handoff && target->pulled == needed && target->open_pulls == 0) {
    note(request, LifetimeMoment::migration_end, now);
    complete(state, request, *target);
  }
}

void drop_target(State& state, Request& request) {
  release_sequence(state, request.target);
  request.target = 0;
  if (state.sequences.find(request.source) != nullptr) {
    if (request.phase == Phase::handoff) request.times.enter(Part::decode_wait, state.now);
    state.handoffs.insert({request.place, request.id});
  } else {
    requeue(state, request);  // the source was lost while its last pulls ran
  }
}

SequenceId pulled_into(const State& state, const Request& request) {
  const Sequence* source = state.sequences.find(request.source);
  const bool gathered = source != nullptr && source->gather;
  return request.phase == Phase::pull || gathered ? request.source : request.target;
}

void take_damage(State& state, const OpenPull& pull, std::span<const BlockId> blocks, Outbox& out) {
  state.counters.damaged_blocks += blocks.size();
  const bool alive = pull.from_worker != kNobody;  // its exporter
  if (alive) {
    // Source or copy: nobody can say which one is wrong, so neither is found again.
    BlockPool& pool = state.workers[pull.from_worker].store.pool;
    for (const BlockId block : blocks) {
      if (std::find(pull.from.begin(), pull.from.end(), block) != pull.from.end())
        pool.forget(block);
    }
  }
  Request* request = state.requests.find(pull.request);
  std::string list;
  for (const BlockId block : blocks.first(std::min<std::size_t>(blocks.size(), 8))) {
    list += " " + std::to_string(block);
  }
  out.warn("DAMAGED: copies that " + state.workers[pull.to_worker].name() + " pulled from " +
           (alive ? state.workers[pull.from_worker].name() : "a dead worker") +
           " are not what was computed: " + std::to_string(blocks.size()) + " of " +
           std::to_string(pull.from.size()) + " blocks, source blocks" + list +
           (request == nullptr ? std::string(", of a request that has ended")
                               : ", request " + std::to_string(request->name.frontend) + "-" +
                                     std::to_string(request->name.counter)));
  if (request == nullptr || pull.target == 0) return;
  if (pull.target != pulled_into(state, *request)) return;  // given up before
  if (++request->damaged_pulls >= kMostDamagedPulls) {
    return end_request(
        state, *request, FinishReason::error, ErrorCode::internal,
        "KV blocks were damaged on their way " + std::to_string(request->damaged_pulls) + " times",
        out);
  }
  if (request->phase == Phase::pull) return prefix_pulled(state, *request, /*failed=*/true);
  const Sequence* source = state.sequences.find(request->source);
  request->times.lost_place(MoveCause::pull, source != nullptr ? source->worker : kNobody,
                            state.now);
  requeue(state, *request);
}

bool settle_pull(State& state, PullId id) {
  OpenPull* pull = state.pulls.find(id);
  if (pull == nullptr) return false;
  if (pull->from_worker != kNobody) {
    BlockPool& pool = state.workers[pull->from_worker].store.pool;
    for (const BlockId block : pull->from) pool.unpin_source(block);
  }
  Worker& to = state.workers[pull->to_worker];
  for (const BlockId block : pull->to) to.store.pool.unpin_target(block);
  if (Sequence* target = state.sequences.find(pull->target)) --target->open_pulls;
  state.pulls.erase(id);
  return true;
}

}  // namespace baton
