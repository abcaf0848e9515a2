#include "ipc/explained.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "ipc/timing_ring.h"

namespace baton {
namespace {

double ms(TimeNs time) { return static_cast<double>(time) * 1e-6; }

std::string scheduler_name(const RequestId& id) {
  return std::to_string(id.frontend) + "-" + std::to_string(id.counter);
}

}  // namespace

std::string name_of(const RequestId& id, const RequestNames& others) {
  const auto at = std::find_if(others.begin(), others.end(),
                               [&](const auto& other) { return other.first == id; });
  return at != others.end() ? at->second : scheduler_name(id);
}

TimingSearch find_timing(const std::string& run_dir, const std::string& id) {
  TimingSearch search;
  std::uint64_t latest = 0;
  std::error_code no_folder;
  for (const auto& entry : std::filesystem::directory_iterator(run_dir, no_folder)) {
    if (entry.path().extension() != ".timing") continue;
    const Status read = read_timings(
        entry.path().string(), [&](std::uint64_t /*number*/, const ExplainedRequest& request) {
          search.names.emplace_back(request.name, request.request_id);
          if (request.request_id != id && scheduler_name(request.name) != id) return;
          if (request.at < latest) return;
          latest = request.at;
          search.found = request;
        });
    if (!read.ok()) search.complaints.push_back(read.message());
    ++search.files;
  }
  return search;
}

TimeNs time_before_scheduler(const ExplainedRequest& request) {
  TimeNs before = 0;
  for (const Part part : {Part::read, Part::tokenise, Part::unsent, Part::submit}) {
    const auto i = static_cast<std::size_t>(part);
    if (i < request.spent.size()) before += request.spent[i];
  }
  return before;
}

std::string worker_name(const RequestTiming& timing, std::uint32_t worker) {
  return worker < timing.workers.size() ? timing.workers[worker] : "?";
}

std::string explain_json(const ExplainedRequest& request, const RequestNames& others) {
  using json = nlohmann::ordered_json;
  const RequestTiming& timing = request.timing;
  json parts = json::object();
  for (std::size_t i = 0; i < request.spent.size(); ++i)
    parts[to_string(static_cast<Part>(i))] = ms(request.spent[i]);
  json reasons = json::array();
  for (const QueueReason& reason : timing.reasons)
    reasons.push_back({{"why", reason.why}, {"ms", ms(reason.took)}});
  json moments = json::array();
  for (const Moment& moment : timing.moments) {
    json one = {{"what", to_string(static_cast<MomentKind>(moment.kind))},
                {"worker", worker_name(timing, moment.worker)},
                {"at_ms", ms(time_before_scheduler(request) + moment.at)},
                {"ms", ms(moment.took)}};
    if (moment.tokens != 0) {
      const bool blocks = moment.kind == static_cast<std::uint32_t>(MomentKind::pull);
      one[blocks ? "blocks" : "tokens"] = moment.tokens;
    }
    if (moment.count > 1) one["count"] = moment.count;
    if (moment.kind == static_cast<std::uint32_t>(MomentKind::gap))
      one["cause"] = to_string(static_cast<GapCause>(moment.cause));
    if (moment.other.counter != 0) one["of"] = name_of(moment.other, others);
    moments.push_back(std::move(one));
  }
  json moves = json::array();
  for (const Move& move : timing.moves) {
    moves.push_back({{"from", worker_name(timing, move.from)},
                     {"to", worker_name(timing, move.to)},
                     {"why", to_string(static_cast<MoveCause>(move.cause))},
                     {"at_ms", ms(time_before_scheduler(request) + move.at)},
                     {"no_place_ms", ms(move.away)}});
  }
  const json all = {{"id", request.request_id},
                    {"asked", request.asked},
                    {"front_end", request.front_end},
                    {"front_end_process", request.generation + 1},
                    {"at", static_cast<double>(request.at) * 1e-9},
                    {"end", request.end},
                    {"status", request.status},
                    {"choices", request.choices},
                    {"prompt_tokens", request.prompt_tokens},
                    {"tokens", request.tokens},
                    {"attempts", request.attempts},
                    {"total_ms", ms(request.total)},
                    {"first_token_ms", ms(request.first_token)},
                    {"scheduler_told", request.told},
                    {"parts_ms", parts},
                    {"ahead", timing.ahead},
                    {"behind", timing.behind.counter == 0 ? "" : name_of(timing.behind, others)},
                    {"queue_reasons", reasons},
                    {"cached_tokens", timing.cached_tokens},
                    {"pulled_tokens", timing.pulled_tokens},
                    {"computed_tokens", timing.computed_tokens},
                    {"decode_steps", timing.decode_steps},
                    {"median_gap_ms", ms(timing.median_gap)},
                    {"preemptions", timing.preemptions},
                    {"deaths", timing.deaths},
                    {"moments", moments},
                    {"moves", moves},
                    {"all_moves", timing.all_moves}};
  return all.dump(2, ' ', false, json::error_handler_t::replace) + "\n";
}

}  // namespace baton
