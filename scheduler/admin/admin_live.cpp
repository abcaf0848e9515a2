#include "scheduler/admin/admin_live.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "scheduler/admin/admin_views.h"
#include "scheduler/admin/block_map.h"
#include "scheduler/admin/pull_watch.h"
#include "scheduler/plan/queue_order.h"

namespace baton {
namespace {

using json = nlohmann::ordered_json;

/// Milliseconds are fine enough, and short.
double seconds(TimeNs time) { return std::round(static_cast<double>(time) / 1e6) / 1e3; }

/// How a worker's blocks are told.
struct Scale {
  std::uint32_t pool = 1;  // blocks to a cell
  std::uint32_t host = 1;
};

std::vector<Scale> scales(const State& state, const LiveLimits& limits) {
  std::uint32_t parts = 0;
  for (const Worker& w : state.workers) {
    parts += (w.store.pool.total() > 0 ? 1U : 0U) + (w.store.pool.host_total() > 0 ? 1U : 0U);
  }
  const std::uint32_t cells =
      std::max<std::uint32_t>(16, std::min(limits.cells, limits.all_cells / std::max(1U, parts)));
  std::vector<Scale> found;
  for (const Worker& w : state.workers) {
    found.push_back({blocks_per_cell(w.store.pool.total(), cells),
                     blocks_per_cell(w.store.pool.host_total(), cells)});
  }
  return found;
}

/// Rows of the newest step that the worker was sent: sequences that decode, and prompt tokens.
std::pair<std::size_t, std::uint32_t> newest_step(const Worker& w) {
  if (w.compute.steps.empty()) return {0, 0};
  const InFlightStep& step = w.compute.steps.back();
  std::uint32_t prompt_tokens = 0;
  for (const auto& [sequence, tokens] : step.rows) prompt_tokens += tokens;
  return {step.decode.size() + step.rows.size() + step.beams.size(), prompt_tokens};
}

json workers(const State& state, const LiveLimits& limits) {
  json list = json::array();
  for (const Worker& w : state.workers) {
    if (list.size() == limits.workers) break;
    const auto [rows, prompt_tokens] = newest_step(w);
    list.push_back({{"name", w.name()},
                    {"role", to_string(w.role())},
                    {"state", describe_state(w)},
                    {"device", w.peer.identity.device},
                    {"loading_percent", w.peer.heartbeat.loading_percent},
                    {"steps", w.compute.steps_total},
                    {"tokens", w.compute.tokens_total},
                    {"rows", rows},
                    {"prompt_tokens", prompt_tokens},
                    {"decoding", w.compute.decode_set.size() + w.compute.singles.size()},
                    {"prefilling", w.compute.prefills.size()},
                    {"sequences", w.compute.sequences}});
  }
  return list;
}

void add_part(json& list, const Worker& w, bool host, std::uint32_t per_cell) {
  const BlockPool& pool = w.store.pool;
  const std::uint32_t total = host ? pool.host_total() : pool.total();
  if (total == 0) return;
  list.push_back({{"worker", w.name()},
                  {"part", host ? "host" : "pool"},
                  {"total", total},
                  {"free", host ? pool.host_free_blocks() : pool.free_blocks()},
                  {"cached", host ? pool.host_cached_blocks() : pool.cached_blocks()},
                  {"owned", host ? 0 : pool.owned_blocks()},
                  {"fenced", host ? pool.host_fenced_blocks() : pool.fenced_blocks()},
                  {"per_cell", per_cell},
                  {"map", block_map(pool, host, per_cell)}});
}

json pools(const State& state, const std::vector<Scale>& scale) {
  json list = json::array();
  for (WorkerIndex i = 0; i < state.workers.size(); ++i) {
    const Worker& w = state.workers[i];
    add_part(list, w, false, scale[i].pool);
    add_part(list, w, true, scale[i].host);
  }
  return list;
}

json pull_json(const State& state, const std::vector<Scale>& scale, const SeenPull& pull, bool open,
               std::size_t ranges) {
  const BlockPool& from = state.workers[pull.from].store.pool;
  // A source may lie in the host part; then the whole of it does.
  const bool host = !pull.source.empty() && from.is_host(pull.source.front());
  const std::uint32_t per_cell = host ? scale[pull.from].host : scale[pull.from].pool;
  return {{"id", std::to_string(pull.id)},
          {"request", request_name(pull.request)},
          {"from", state.workers[pull.from].name()},
          {"from_part", host ? "host" : "pool"},
          {"to", state.workers[pull.to].name()},
          {"blocks", pull.target.size()},
          {"open", open},
          {"source", cell_ranges(pull.source, host ? from.total() : 0, per_cell, ranges)},
          {"target", cell_ranges(pull.target, 0, scale[pull.to].pool, ranges)}};
}

json pulls(const State& state, const PullWatch* watch, const std::vector<Scale>& scale,
           const LiveLimits& limits) {
  json list = json::array();
  state.pulls.each([&](const OpenPull& pull) {
    if (pull.is_probe() || list.size() == limits.pulls) return;
    const Request* request = state.requests.find(pull.request);
    const SeenPull seen{pull.id,
                        request == nullptr ? RequestId{} : request->name,
                        pull.from_worker,
                        pull.to_worker,
                        pull.from,
                        pull.to,
                        0};
    list.push_back(pull_json(state, scale, seen, true, limits.ranges));
  });
  if (watch == nullptr) return list;
  for (auto at = watch->recent().rbegin(); at != watch->recent().rend(); ++at) {
    if (list.size() == limits.pulls) break;
    list.push_back(pull_json(state, scale, *at, false, limits.ranges));
  }
  return list;
}

/// Where its blocks lie, by worker.
json places(const State& state, const Request& request, const std::vector<Scale>& scale,
            std::size_t ranges) {
  json found = json::object();
  for (const SequenceId id : {request.source, request.target}) {
    const Sequence* sequence = state.sequences.find(id);
    if (sequence == nullptr || sequence->extents.empty()) continue;
    std::map<StoreIndex, std::vector<BlockId>> by_store;
    for (const std::vector<Extent>* extents : {&sequence->extents, &sequence->ahead}) {
      for (const Extent& extent : *extents) {
        std::vector<BlockId>& blocks = by_store[extent.store];
        blocks.insert(blocks.end(), extent.blocks.begin(), extent.blocks.end());
      }
    }
    for (const auto& [store, blocks] : by_store) {
      if (store >= state.workers.size()) continue;
      found[state.workers[store].name()] = cell_ranges(blocks, 0, scale[store].pool, ranges);
    }
  }
  return found;
}

json request_json(const Request& r, TimeNs now) {
  return {{"id", request_name(r.name)},          {"phase", to_string(r.phase)},
          {"prompt_tokens", r.prompt.size()},    {"tokens", r.generated.size()},
          {"max_tokens", r.sampling.max_tokens}, {"age_s", seconds(now - r.arrival)}};
}

json running(const State& state, const std::vector<Scale>& scale, TimeNs now,
             const LiveLimits& limits, std::size_t* total) {
  std::vector<const Request*> all;
  state.requests.each([&](const Request& r) {
    if (r.phase != Phase::waiting && r.phase != Phase::ended) all.push_back(&r);
  });
  *total = all.size();
  const auto end = all.begin() + static_cast<std::ptrdiff_t>(std::min(all.size(), limits.requests));
  std::partial_sort(all.begin(), end, all.end(), [](const Request* a, const Request* b) {
    return a->arrival != b->arrival ? a->arrival < b->arrival : a->id < b->id;
  });
  json list = json::array();
  for (auto at = all.begin(); at != end; ++at) {
    const Request& r = **at;
    json one = request_json(r, now);
    one["worker"] = worker_of(state, r.source);
    one["target"] = worker_of(state, r.target);
    one["cached_tokens"] = r.cached_tokens;
    one["begun_s"] = r.begun == 0 ? json() : json(seconds(now - r.begun));
    one["deaths"] = r.deaths.total;
    one["blocks"] = places(state, r, scale, limits.ranges);
    list.push_back(std::move(one));
  }
  return list;
}

json queue(const State& state, TimeNs now, const LiveLimits& limits) {
  json list = json::array();
  QueueWalk walk(state);
  while (list.size() < limits.waiting) {
    const Request* r = state.requests.find(walk.next());
    if (r == nullptr) break;
    json one = request_json(*r, now);
    one["waits_for"] = r->passed_over == nullptr ? "" : r->passed_over;
    list.push_back(std::move(one));
  }
  return list;
}

}  // namespace

json live(const State& state, const AdminStats& stats, const PullWatch* watch, TimeNs now,
          const LiveLimits& limits) {
  const std::vector<Scale> scale = scales(state, limits);
  const Counters& c = state.counters;
  std::size_t all = 0;
  json list = running(state, scale, now, limits, &all);
  const auto frontends = std::count_if(state.frontends.begin(), state.frontends.end(),
                                       [](const Frontend& f) { return f.reachable(); });
  return {{"at_s", seconds(stats.uptime)},
          {"epoch", std::to_string(state.epoch)},
          {"build", state.build},
          {"frontends", frontends},
          {"running", all},
          {"waiting", state.waiting.size()},
          {"handoffs_waiting", state.handoffs.size()},
          {"open_pulls", state.pulls.size()},
          {"counters",
           {{"finished", c.finished},
            {"errors", c.errors},
            {"cancelled", c.cancelled},
            {"tokens", c.tokens},
            {"computed_tokens", c.computed_tokens},
            {"prefill_tokens", c.prefill_tokens},
            {"cached_tokens", c.cached_tokens},
            {"handoffs", c.handoffs},
            {"preemptions", c.preemptions},
            {"requeued", c.requeued}}},
          {"workers", workers(state, limits)},
          {"pools", pools(state, scale)},
          {"pulls", pulls(state, watch, scale, limits)},
          {"queue", queue(state, now, limits)},
          {"requests", std::move(list)}};
}

}  // namespace baton
