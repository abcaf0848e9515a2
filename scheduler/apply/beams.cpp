// Beam search among the other requests: its sequences, their blocks, and its steps.
//
// A search begins as one sequence, the prompt; it is prefilled and handed off as any other. From
// then on every step brings a row for each running beam, all of them in one plan, and the next plan
// needs their result. The first continuation of a beam goes on in its parent's sequence; further
// ones are forks: new sequences that share the parent's full blocks by reference, and get a copy of
// the one that is partly filled, since both will write to it. So a block with two references is
// never written. A beam without a continuation is released when the result is in.
#include "scheduler/apply/beams.h"

#include <algorithm>

#include "ipc/fault_points.h"
#include "scheduler/apply/membership.h"
#include "scheduler/apply/requests.h"
#include "scheduler/apply/sequences.h"
#include "scheduler/apply/tables.h"
#include "scheduler/plan/swap.h"

namespace baton {

std::uint32_t beam_blocks(const Worker& worker, const Request& request) {
  const TableShape& shape = worker.store.shape;
  const auto prompt = static_cast<std::uint32_t>(request.prompt.size());
  std::uint32_t blocks = 0;
  for (std::uint32_t g = 0; g < shape.groups.count; ++g) {
    if (request.sampling.max_tokens <= 1) {  // no beam runs on
      blocks += shape.live(g, shape.columns(prompt + 1));
      continue;
    }
    // The last token is never computed; a hand-off reserves one step of growth.
    const std::uint32_t longest = std::max(prompt + request.sampling.max_tokens - 1, prompt + 1);
    const std::uint32_t shared = prompt / shape.per_block;
    blocks += shape.live(g, shared) +
              request.sampling.num_beams * shape.live(g, shape.columns(longest) - shared);
  }
  return blocks;
}

bool can_hold(const Worker& worker, const Request& request, std::uint32_t tokens) {
  return worker.store.holds(tokens) &&
         (!request.beams || (beam_blocks(worker, request) <= worker.store.pool.total() &&
                             request.sampling.num_beams <= worker.step_room()));
}

std::string cannot_hold(const Worker& worker, const Request& request, std::uint32_t tokens) {
  if (!request.beams || !worker.store.holds(tokens)) {
    return std::to_string(tokens) + " tokens do not fit the " +
           std::to_string(worker.store.pool_tokens()) + " of " + worker.name() +
           "'s KV pool and the " + std::to_string(worker.store.offer.max_context) + " of its model";
  }
  if (request.sampling.num_beams > worker.step_room()) {
    return std::to_string(request.sampling.num_beams) + " beams are more than the " +
           std::to_string(worker.step_room()) + " tokens that a step of " + worker.name() +
           " has room for";
  }
  return std::to_string(request.sampling.num_beams) + " beams of up to " +
         std::to_string(request.sampling.max_tokens) + " tokens after a prompt of " +
         std::to_string(request.prompt.size()) + " need up to " +
         std::to_string(beam_blocks(worker, request)) + " blocks of " +
         std::to_string(worker.store.tokens_per_block()) + " tokens; the KV pool of " +
         worker.name() + " has " + std::to_string(worker.store.pool.total());
}

namespace {

SequenceId line_of(const Request& request, std::uint32_t beam) {
  return request.beams->lines.empty() ? request.source : request.beams->lines[beam];
}

/// A second beam that goes on from `parent`.
Sequence& fork(State& state, Worker& w, const Sequence& parent, StepPlan& plan) {
  Sequence& child = state.sequences.create();
  child.request = parent.request;
  child.worker = parent.worker;
  child.order = parent.order;
  child.width = 0;
  child.prefill_length = parent.prefill_length;
  child.scheduled = child.computed = parent.scheduled;
  child.on_worker = true;
  const std::size_t groups = w.store.shape.groups.count;
  const std::size_t full = parent.scheduled / w.store.tokens_per_block() * groups;
  const bool partly = parent.scheduled % w.store.tokens_per_block() != 0;
  const std::vector<BlockId>& theirs = parent.tail().blocks;
  std::vector<BlockId>& blocks = child.extents.emplace_back(Extent{child.worker, 0, {}}).blocks;
  blocks.assign(theirs.begin(), theirs.begin() + static_cast<std::ptrdiff_t>(full));
  const bool written_by_both = partly && fault(Fault::no_copy_on_write);
  for (std::size_t g = 0; written_by_both && g < groups; ++g) blocks.push_back(theirs[full + g]);
  for (const BlockId block : blocks) {
    if (block != kNoBlock) w.store.pool.add_reference(block);
  }
  if (!written_by_both) {
    w.store.pool.allocate(static_cast<std::uint32_t>(groups), blocks, saving_of(state, w));
    for (std::size_t i = full; partly && i < blocks.size(); ++i)
      plan.ops.push_back({theirs[i], blocks[i]});
  }
  child.filled.fill(static_cast<std::uint32_t>(blocks.size() / groups));
  plan.fork.push_back(
      {child.id, parent.id, {blocks.begin() + static_cast<std::ptrdiff_t>(full), blocks.end()}});
  return child;
}

void end_search(State& state, Request& request, Outbox& out) {
  Beams& beams = *request.beams;
  const std::uint32_t wanted = request.sampling.num_return_sequences;
  const std::vector<BeamSearch::Hypothesis> found = beams.search->best(wanted);
  if (found.size() < wanted) {
    end_request(state, request, FinishReason::error, ErrorCode::invalid_argument,
                "what the request allows makes " + std::to_string(found.size()) +
                    " different sequences; " + std::to_string(wanted) + " were asked for",
                out);
    return;
  }
  for (const BeamSearch::Hypothesis& hypothesis : found) {
    beams.lengths.push_back(static_cast<std::uint32_t>(hypothesis.tokens.size()));
    beams.reasons.push_back(static_cast<std::uint32_t>(hypothesis.reason));
    beams.scores.push_back(hypothesis.score);
    request.generated.insert(request.generated.end(), hypothesis.tokens.begin(),
                             hypothesis.tokens.end());
  }
  state.counters.tokens += request.generated.size();
  resend_tokens(request, 0, static_cast<std::uint32_t>(request.generated.size()), out);
  end_request(state, request, found.front().reason, ErrorCode::ok, "", out);
}

/// Beams without a continuation give up their blocks; the request's own sequence stays one that
/// runs.
void release_dead_lines(State& state, Request& request) {
  std::vector<SequenceId>& lines = request.beams->lines;
  std::vector<bool> lives(lines.size(), false);
  for (const BeamSearch::Child& child : request.beams->search->children()) {
    if (!lines.empty()) lives[child.parent] = true;
  }
  for (std::size_t i = 0; i < lines.size(); ++i) {
    if (lives[i]) continue;
    if (lines[i] == request.source) {
      const std::uint32_t heir = request.beams->search->children().front().parent;
      std::swap(state.sequences.find(lines[i])->width, state.sequences.find(lines[heir])->width);
      request.source = lines[heir];
    }
    release_sequence(state, lines[i]);
    lines[i] = 0;
  }
}

void advance(State& state, Request& request, std::span<const BeamSearch::Row> rows, Outbox& out) {
  Beams& beams = *request.beams;
  beams.search->advance(rows);
  if (beams.search->length() > beams.furthest) {
    beams.furthest = beams.search->length();
    request.deaths.got_on(Stage::decode);  // further than any try before
    charge_output(state, request, beams.furthest, request.sampling.num_beams);
  }
  if (beams.search->length() == 1) request.deaths.got_on(Stage::prefill);
  if (beams.search->done()) return end_search(state, request, out);
  release_dead_lines(state, request);
  beams.due = true;
}

}  // namespace

std::uint32_t beam_growth(const State& state, const Request& request) {
  if (!request.beams || !request.beams->due) return 0;
  std::uint32_t blocks = 0;
  std::vector<bool> continued(std::max<std::size_t>(1, request.beams->lines.size()), false);
  for (const BeamSearch::Child& child : request.beams->search->children()) {
    const Sequence& parent = *state.sequences.find(line_of(request, child.parent));
    const Worker& w = state.workers[parent.worker];
    blocks += continued[child.parent] ? w.store.shape.groups.count : growth(w.store, parent);
    continued[child.parent] = true;
  }
  return blocks;
}

std::size_t due_beams(const Request& request) {
  return request.beams->due ? request.beams->search->children().size() : 0;
}

void plan_beams(State& state, Request& request, StepPlan& plan, InFlightStep& step) {
  Beams& beams = *request.beams;
  if (!beams.due) return;
  beams.due = false;
  Worker& w = state.workers[state.sequences.find(request.source)->worker];
  std::vector<bool> continued(std::max<std::size_t>(1, beams.lines.size()), false);
  std::vector<SequenceId> lines;
  for (const BeamSearch::Child& child : beams.search->children()) {
    Sequence* sequence = state.sequences.find(line_of(request, child.parent));
    if (continued[child.parent]) {
      sequence = &fork(state, w, *sequence, plan);
    } else {
      grow_table(state, *sequence, sequence->scheduled + 1, &plan);
    }
    continued[child.parent] = true;
    lines.push_back(sequence->id);
    step.beams.push_back(sequence->id);
    plan.beams.push_back({sequence->id, child.token});
  }
  beams.lines = std::move(lines);
}

void take_candidates(State& state, WorkerIndex worker, const StepResult& result, Outbox& out) {
  std::vector<std::pair<SequenceId, BeamSearch::Row>> rows;
  LogprobReader reader(result.candidates);
  for (std::uint32_t i = 0; i < result.beam_sequences.size(); ++i) {
    LogprobReader::Entry entry;
    reader.take(i, entry);
    rows.push_back({result.beam_sequences[i], {entry.top_tokens, entry.top_logprobs}});
  }
  const auto by_id = [](const auto& a, const auto& b) { return a.first < b.first; };
  std::sort(rows.begin(), rows.end(), by_id);
  // All beams of a request are in the same step; which one is its own sequence changes on the way.
  std::vector<Request*> requests;
  for (const auto& [id, row] : rows) {
    const Sequence* sequence = state.sequences.find(id);
    if (sequence == nullptr || sequence->worker != worker) continue;  // a void row
    Request* request = state.request_of(*sequence);
    if (request != nullptr && request->source == id) requests.push_back(request);
  }
  std::vector<BeamSearch::Row> own;
  for (Request* request : requests) {
    own.clear();
    for (std::uint32_t beam = 0; beam < request->beams->search->running(); ++beam) {
      const auto it = std::lower_bound(
          rows.begin(), rows.end(), std::pair(line_of(*request, beam), BeamSearch::Row{}), by_id);
      if (it != rows.end() && it->first == line_of(*request, beam)) own.push_back(it->second);
    }
    advance(state, *request, own, out);
  }
}

}  // namespace baton
