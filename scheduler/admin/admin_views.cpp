#include "scheduler/admin/admin_views.h"

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>

#include "scheduler/admin/admin_live.h"
#include "scheduler/admin/setup_view.h"
#include "scheduler/apply/blame.h"
#include "scheduler/apply/grammars.h"
#include "scheduler/apply/membership.h"
#include "scheduler/apply/reachability.h"
#include "scheduler/plan/policy.h"
#include "scheduler/state/audit.h"

namespace baton {

namespace {

/// Keys stay in the order in which they are written: the name comes first in every table.
using json = nlohmann::ordered_json;

json info(const State& state, const AdminStats& stats) {
  const Counters& c = state.counters;
  json counters = {{"accepted", c.accepted},
                   {"refused", c.refused},
                   {"finished", c.finished},
                   {"errors", c.errors},
                   {"cancelled", c.cancelled},
                   {"tokens", c.tokens},
                   {"preemptions", c.preemptions},
                   {"handoffs", c.handoffs},
                   {"requeued", c.requeued},
                   {"pull_failures", c.pull_failures},
                   {"damaged_blocks", c.damaged_blocks},
                   {"terms_ended", c.terms_ended},
                   {"local_prefills", c.local_prefills},
                   {"spreads", c.spreads},
                   {"spread_chunks", c.spread_chunks},
                   {"spread_predicted_us", c.spread_predicted_us},
                   {"spread_measured_us", c.spread_measured_us},
                   {"spread_failures", c.spread_failures},
                   {"remote_prefills", c.remote_prefills},
                   {"prefill_tokens", c.prefill_tokens},
                   {"cached_tokens", c.cached_tokens},
                   {"computed_tokens", c.computed_tokens},
                   {"resumed", c.resumed},
                   {"pulled_prefix_tokens", c.pulled_prefix_tokens},
                   {"prefix_pulls", c.prefix_pulls},
                   {"blocks_out", c.blocks_out},
                   {"blocks_in", c.blocks_in},
                   {"pulls_saved", c.pulls_saved},
                   {"role_changes", c.role_changes},
                   {"growths", c.growths},
                   {"gathers", c.gathers},
                   {"gathered_blocks", c.gathered_blocks},
                   {"growth_blocks_moved", c.growth_blocks_moved}};
  const auto frontends = std::count_if(state.frontends.begin(), state.frontends.end(),
                                       [](const Frontend& f) { return f.reachable(); });
  return {{"build", state.build},
          {"protocol", kProtocolVersion},
          {"epoch", state.epoch},
          {"uptime_s", static_cast<double>(stats.uptime) / 1e9},
          {"max_context", max_context(state)},
          {"frontends", frontends},
          {"requests", state.deadlines.size()},
          {"waiting", state.waiting.size()},
          {"counters", counters}};
}

json frontends(const State& state, TimeNs now) {
  std::vector<std::size_t> requests(state.frontends.size());
  state.requests.each([&](const Request& r) { ++requests[r.frontend]; });
  json list = json::array();
  for (FrontendIndex i = 0; i < state.frontends.size(); ++i) {
    const Frontend& f = state.frontends[i];
    if (!f.alive) continue;
    const bool away = f.away != 0;
    list.push_back({{"name", f.identity.name},
                    {"state", away ? "away" : "here"},
                    {"pid", f.identity.pid},
                    {"requests", requests[i]},
                    {"generation", f.identity.generation},
                    {"away_s", away ? static_cast<double>(now - f.away) / 1e9 : 0},
                    {"build", f.identity.build}});
  }
  return list;
}

json unreachable(const State& state, const Worker& importer) {
  json names = json::array();
  for (const Worker& w : state.workers) {
    if (w.ready() && !reaches(w, importer)) names.push_back(w.name());
  }
  return names;
}

/// Who says what role it has.
const char* role_by(const Worker& w) {
  return w.held ? "operator" : w.role() == w.home() ? "configuration" : "auto";
}

json roles(const State& state) {
  const RoleWatch& watch = state.role_watch;
  return {{"roles", state.settings.roles == Roles::fixed ? "fixed" : "auto"},
          {"changes", state.counters.role_changes},
          {"prompts_wait_s", watch.pressure.queue_s},
          {"prompt_load", watch.pressure.prompt_load},
          {"decode_load", watch.pressure.decode_load},
          {"last_change", watch.last}};
}

json workers(const State& state) {
  json list = json::array();
  for (WorkerIndex i = 0; i < state.workers.size(); ++i) {
    const Worker& w = state.workers[i];
    std::uint32_t parked = 0;
    state.sequences.each(
        [&](const Sequence& sequence) { parked += sequence.worker == i && sequence.parked; });
    list.push_back({{"name", w.name()},
                    {"role", to_string(w.role())},
                    {"role_by", role_by(w)},
                    {"state", describe_state(w)},
                    {"pid", w.peer.identity.pid},
                    {"term", w.peer.term},
                    {"steps", w.compute.steps_total},
                    {"sequences", w.compute.sequences},
                    {"waiting_sequences", parked},
                    {"tokens", w.compute.tokens_total},
                    {"device", w.peer.identity.device},
                    {"ranks", w.store.offer.ranks.size()},
                    {"weights", w.store.offer.facts.weights},
                    {"unreachable", unreachable(state, w)},
                    {"build", w.peer.identity.build},
                    {"loading_percent", w.peer.heartbeat.loading_percent}});
  }
  return list;
}

/// "grammar on decode0" while that worker compiles it, "a step of its own" if it runs alone; in the
/// queue, the rule that passed it over last (plan/admission_rules.cpp); else "".
std::string waits_for(const State& state, const Request& request) {
  for (const SequenceId id : {request.source, request.target}) {
    const Sequence* sequence = state.sequences.find(id);
    if (sequence == nullptr) continue;
    const Worker& worker = state.workers[sequence->worker];
    if (!grammar_ready(worker, request)) return "grammar on " + worker.name();
  }
  if (is_suspect(state, request)) return "a step of its own";
  if (request.phase == Phase::waiting && request.passed_over != nullptr) return request.passed_over;
  return "";
}

/// Tokens by worker, in order, of a request that lies in several pools: "w0: 24, w1: 20".
std::string lies_in(const State& state, SequenceId id) {
  const Sequence* sequence = state.sequences.find(id);
  if (sequence == nullptr || !sequence->spans()) return "";
  std::vector<std::pair<StoreIndex, std::uint32_t>> tokens;
  for (std::size_t i = 0; i < sequence->extents.size(); ++i) {
    const Extent& extent = sequence->extents[i];
    const bool tail = i + 1 == sequence->extents.size();
    std::uint32_t end = tail ? sequence->scheduled : sequence->extents[i + 1].first_token;
    end = std::max(extent.first_token, std::min(end, sequence->scheduled));
    auto at = std::find_if(tokens.begin(), tokens.end(),
                           [&](const auto& each) { return each.first == extent.store; });
    if (at == tokens.end()) at = tokens.insert(tokens.end(), {extent.store, 0});
    at->second += end - extent.first_token;
  }
  std::string text;
  for (const auto& [store, n] : tokens)
    text += (text.empty() ? "" : ", ") + state.workers[store].name() + ": " + std::to_string(n);
  if (sequence->gather) text += ", pulled to " + state.workers[sequence->worker].name();
  for (const Extent& extent : sequence->ahead)
    text += ", then " + state.workers[extent.store].name();
  return text;
}

json requests(const State& state, TimeNs now) {
  json list = json::array();
  state.requests.each([&](const Request& r) {
    list.push_back({{"id", request_name(r.name)},
                    {"phase", to_string(r.phase)},
                    {"attempt", r.attempt},
                    {"prompt_tokens", r.prompt.size()},
                    {"tokens", r.generated.size()},
                    {"max_tokens", r.sampling.max_tokens},
                    {"num_beams", r.sampling.num_beams},
                    {"worker", worker_of(state, r.source)},
                    {"target", worker_of(state, r.target)},
                    {"lies_in", lies_in(state, r.source)},
                    {"waits_for", waits_for(state, r)},
                    {"deaths", r.deaths.total},
                    {"age_s", static_cast<double>(now - r.arrival) / 1e9}});
  });
  return list;
}

json kv(const State& state) {
  json list = json::array();
  for (const PoolAudit& pool : audit_pools(state)) {
    list.push_back({{"worker", pool.worker},
                    {"part", pool.host ? "host" : "pool"},
                    {"allocation", pool.allocation},
                    {"total", pool.total},
                    {"free", pool.free},
                    {"owned", pool.owned},
                    {"cached", pool.cached},
                    {"fenced", pool.fenced}});
  }
  return list;
}

json setup(const State& state) {
  json list = json::array();
  for (const SetupLine& line : setup_lines(state)) {
    list.push_back({{"what", line.what}, {"chosen", line.chosen}, {"option", line.option}});
  }
  return list;
}

json queue(const State& state, const AdminStats& stats) {
  json types = json::object();
  std::uint64_t bytes = 0;
  for (const auto& [name, count] : stats.traffic) {
    types[name] = {{"messages", count.messages}, {"bytes", count.bytes}};
    bytes += count.bytes;
  }
  return {{"waiting", state.waiting.size()},  {"handoffs_waiting", state.handoffs.size()},
          {"open_pulls", state.pulls.size()}, {"bytes", bytes},
          {"undecodable", stats.undecodable}, {"by_type", types}};
}

/// What each tenant is due, and has been given since this scheduler began.
json tenants(const State& state) {
  json list = json::array();
  for (const Tenant& tenant : state.tenants.all()) {
    if (tenant.requests == 0) continue;
    list.push_back({{"name", tenant.name.empty() ? "(none)" : tenant.name},
                    {"weight", tenant.weight},
                    {"priority", tenant.priority},
                    {"requests", tenant.requests},
                    {"open", tenant.open},
                    {"waiting", tenant.waiting.size()},
                    {"prompt_tokens", tenant.prompt_tokens},
                    {"output_tokens", tenant.output_tokens},
                    {"counter", static_cast<std::uint64_t>(tenant.counter)}});
  }
  return list;
}

/// Names come from peers: bytes that are no UTF-8 must not throw.
std::string printed(const json& value) {
  return value.dump(-1, ' ', false, json::error_handler_t::replace);
}

std::string cell(const json& value) {
  return value.is_string() ? value.get<std::string>() : printed(value);
}

/// An object as "key: value" lines, an array of objects as a table with a heading.
std::string as_text(const json& value, const std::string& indent = "") {
  std::string text;
  if (value.is_object()) {
    for (const auto& [key, item] : value.items()) {
      if (item.is_object()) {
        text += indent + key + ":\n" + as_text(item, indent + "  ");
      } else {
        text += indent + key + ": " + cell(item) + "\n";
      }
    }
    return text;
  }
  if (value.empty()) return "none\n";
  if (!value.front().is_object()) {
    for (const json& item : value) text += cell(item) + "\n";
    return text;
  }
  std::vector<std::string> keys;
  std::vector<std::size_t> widths;
  for (const auto& [key, item] : value.front().items()) {
    keys.push_back(key);
    std::size_t width = key.size();
    for (const json& row : value) width = std::max(width, cell(row[key]).size());
    widths.push_back(width);
  }
  const auto line = [&](auto&& get) {
    for (std::size_t i = 0; i < keys.size(); ++i) {
      std::string field = get(i);
      field.resize(i + 1 == keys.size() ? field.size() : widths[i] + 2, ' ');
      text += field;
    }
    text += "\n";
  };
  line([&](std::size_t i) { return keys[i]; });
  for (const json& row : value) line([&](std::size_t i) { return cell(row[keys[i]]); });
  return text;
}

}  // namespace

std::optional<std::string> show(const std::string& what, bool as_json, const State& state,
                                const AdminStats& stats, TimeNs now, const PullWatch* pulls) {
  json value;
  if (what == "info") {
    value = info(state, stats);
  } else if (what == "workers") {
    value = workers(state);
  } else if (what == "frontends") {
    value = frontends(state, now);
  } else if (what == "roles") {
    value = roles(state);
  } else if (what == "requests") {
    value = requests(state, now);
  } else if (what == "kv") {
    value = kv(state);
  } else if (what == "setup") {
    value = setup(state);
  } else if (what == "queue") {
    value = queue(state, stats);
  } else if (what == "tenants") {
    value = tenants(state);
  } else if (what == "errors") {
    value = stats.errors;
  } else if (what == "live") {
    value = live(state, stats, pulls, now);
  } else {
    return std::nullopt;
  }
  return as_json ? printed(value) + "\n" : as_text(value);
}

std::string describe_state(const Worker& worker) {
  if (worker.ready() && worker.peer.draining) return "draining";
  return to_string(worker.peer.state);
}

std::string worker_of(const State& state, SequenceId id) {
  const Sequence* sequence = state.sequences.find(id);
  return sequence == nullptr ? "" : state.workers[sequence->worker].name();
}

std::string request_name(const RequestId& id) {
  return std::to_string(id.frontend) + "-" + std::to_string(id.counter);
}

std::optional<RequestId> parse_request_name(const std::string& text) {
  RequestId id;
  const char* end = text.data() + text.size();
  const auto [dash, first] = std::from_chars(text.data(), end, id.frontend);
  if (first != std::errc() || dash == end || *dash != '-') return std::nullopt;
  const auto [rest, second] = std::from_chars(dash + 1, end, id.counter);
  if (second != std::errc() || rest != end) return std::nullopt;
  return id;
}

void compare_tables(const State& state, WorkerIndex index, const Tables& tables,
                    std::vector<std::string>& faults) {
  const Worker& w = state.workers[index];
  if (!w.ready() || tables.term != w.peer.term) return;  // a term that has ended meanwhile
  std::size_t at = 0;
  for (std::size_t i = 0; i < tables.sequences.size() && i < tables.counts.size(); ++i) {
    const std::size_t count = tables.counts[i];
    if (at + count > tables.blocks.size()) {
      faults.push_back(w.name() + ": malformed tables");
      return;
    }
    const Sequence* sequence = state.sequences.find(tables.sequences[i]);
    // One that the books no longer hold is about to be dropped: its blocks are fenced or free
    // again.
    if (sequence != nullptr && sequence->worker == index && !sequence->retiring) {
      std::vector<BlockId> books;
      for (const Extent& extent : sequence->extents)
        books.insert(books.end(), extent.blocks.begin(), extent.blocks.end());
      const bool prefix =
          count <= books.size() &&
          std::equal(tables.blocks.begin() + static_cast<std::ptrdiff_t>(at),
                     tables.blocks.begin() + static_cast<std::ptrdiff_t>(at + count), books.begin(),
                     [](BlockId theirs, BlockId ours) {
                       return theirs == ours || ours == kNoBlock;  // given back, or still to come
                     });
      if (!prefix) faults.push_back(w.name() + ": a block table differs from the books");
    }
    at += count;
  }
}

}  // namespace baton
