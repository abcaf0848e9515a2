#include "scheduler/admin/explain_ctl.h"

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>
#include <utility>

#include "ipc/timing_ring.h"

namespace baton {
namespace {

using Names = std::vector<std::pair<RequestId, std::string>>;

std::string fixed(double value, int digits) {
  char text[48];
  std::snprintf(text, sizeof text, "%.*f", digits, value);
  return text;
}

double ms(TimeNs time) { return static_cast<double>(time) * 1e-6; }
std::string ms_text(TimeNs time) { return fixed(ms(time), 3); }

std::string padded(std::string text, std::size_t width, bool right = false) {
  if (text.size() >= width) return text;
  const std::string space(width - text.size(), ' ');
  return right ? space + text : text + space;
}

/// As its client calls it; one that is not kept, as `show requests` does.
std::string name_of(const RequestId& id, const Names& others) {
  const auto at = std::find_if(others.begin(), others.end(),
                               [&](const auto& other) { return other.first == id; });
  if (at != others.end()) return at->second;
  return std::to_string(id.frontend) + "-" + std::to_string(id.counter);
}

TimeNs spent(const ExplainedRequest& request, Part part) {
  const auto i = static_cast<std::size_t>(part);
  return i < request.spent.size() ? request.spent[i] : 0;
}

/// From the first byte until the scheduler had it.
TimeNs before_scheduler(const ExplainedRequest& request) {
  return spent(request, Part::read) + spent(request, Part::tokenise) +
         spent(request, Part::unsent) + spent(request, Part::submit);
}

std::string time_text(std::uint64_t unix_ns) {
  const auto seconds = static_cast<std::time_t>(unix_ns / kSecond);
  std::tm parts{};
  gmtime_r(&seconds, &parts);
  char text[64];
  const std::size_t n = std::strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S", &parts);
  char rest[16];
  std::snprintf(rest, sizeof rest, ".%03d UTC", static_cast<int>(unix_ns % kSecond / kMillisecond));
  return std::string(text, n) + rest;
}

std::string queue_note(const RequestTiming& timing, const Names& others) {
  std::string note;
  if (timing.ahead > 0) {
    note = "behind " + std::to_string(timing.ahead) + ", the first one " +
           name_of(timing.behind, others);
  }
  for (const QueueReason& reason : timing.reasons) {
    if (reason.took < kMillisecond / 10) continue;
    note += (note.empty() ? "" : "; ") + reason.why + " (" + ms_text(reason.took) + ")";
  }
  return note;
}

std::string note_of(Part part, const ExplainedRequest& request, const Names& others) {
  const RequestTiming& timing = request.timing;
  switch (part) {
    case Part::unsent:
      return request.attempts > 1 ? "attempts at schedulers: " + std::to_string(request.attempts)
                                  : "no scheduler was there";
    case Part::queue:
      return queue_note(timing, others);
    case Part::requeue:
      return (timing.preemptions > 0 ? "preempted " + std::to_string(timing.preemptions) + " times"
                                     : "workers lost: " + std::to_string(timing.deaths)) +
             (spent(request, Part::queue) < kMillisecond / 10 ? "; " + queue_note(timing, others)
                                                              : "");
    case Part::prefill:
      return std::to_string(timing.computed_tokens) + " tokens computed, " +
             std::to_string(timing.cached_tokens) + " cached, " +
             std::to_string(timing.pulled_tokens) + " pulled";
    case Part::decode:
      return std::to_string(timing.decode_steps) + " steps, median gap " +
             ms_text(timing.median_gap) + " ms";
    default:
      return "";
  }
}

std::string moment_text(const Moment& moment, const RequestTiming& timing, const Names& others) {
  const std::string worker =
      moment.worker < timing.workers.size() ? timing.workers[moment.worker] : "?";
  const std::string took = ms_text(moment.took) + " ms";
  const std::string tokens = std::to_string(moment.tokens);
  const std::string other = name_of(moment.other, others);
  switch (static_cast<MomentKind>(moment.kind)) {
    case MomentKind::chunk:
      return worker + " computed " + tokens + " tokens of its prompt in " + took +
             (moment.count > 1 ? " (" + std::to_string(moment.count) + " chunks)" : "");
    case MomentKind::pull:
      return worker + " pulled " + tokens + " blocks in " + took +
             (moment.count > 1 ? " (" + std::to_string(moment.count) + " pulls)" : "");
    case MomentKind::decodes:
      return worker + " decodes it";
    case MomentKind::died:
      return worker + " was lost under it";
    case MomentKind::preempted:
      return worker + " gave its blocks to others";
    case MomentKind::moved:
      return worker + " gave up its place";
    case MomentKind::gap:
      break;
  }
  const std::string gap = "a gap of " + took + " on " + worker + ": ";
  switch (static_cast<GapCause>(moment.cause)) {
    case GapCause::step:
      return gap + "the step itself took so long";
    case GapCause::prompt:
      return gap + tokens + " tokens of the prompt of " + other + " ran beside it";
    case GapCause::pull:
      return gap + "blocks of " + other + " were pulled";
    case GapCause::suspect:
      return gap + "steps of their own for requests that have killed workers";
    case GapCause::unknown:
      break;
  }
  return gap + "not the step itself: messages or processors were waited for";
}

}  // namespace

std::string explain_text(const ExplainedRequest& request, const Names& others) {
  const RequestTiming& timing = request.timing;
  std::string text = request.request_id + "  " + request.asked + "  " + time_text(request.at) +
                     "  " + request.front_end;
  if (request.generation > 0) text += ", process " + std::to_string(request.generation + 1);
  text += "\n" + std::to_string(request.prompt_tokens) + " prompt tokens, " +
          std::to_string(request.tokens) + " tokens, " + request.end;
  if (request.status != 0) text += ", status " + std::to_string(request.status);
  if (request.choices > 1)
    text += ", " + std::to_string(request.choices) + " choices (this is the way of the last one)";
  if (request.first_token != 0)
    text += ", first token after " + ms_text(request.first_token) + " ms";
  text += "\n\n";
  for (std::size_t i = 0; i < request.spent.size(); ++i) {
    const TimeNs took = request.spent[i];
    if (took < 500) continue;
    const auto part = static_cast<Part>(i);
    const double share =
        100.0 * static_cast<double>(took) / static_cast<double>(std::max<TimeNs>(1, request.total));
    const std::string note = note_of(part, request, others);
    text += "  " + padded(to_string(part), 12) + padded(ms_text(took), 14, true) + " ms" +
            padded(fixed(share, 1), 7, true) + " %" + (note.empty() ? "" : "  " + note) + "\n";
  }
  text += "  " + padded("total", 12) + padded(ms_text(request.total), 14, true) + " ms\n";
  if (!request.told) text += "\nThe scheduler has told nothing of it.\n";
  if (!timing.moments.empty()) text += "\n  ms since the first byte\n";
  const TimeNs before = before_scheduler(request);
  for (const Moment& moment : timing.moments) {
    text += padded(ms_text(before + moment.at), 14, true) + "  " +
            moment_text(moment, timing, others) + "\n";
  }
  return text;
}

std::string explain_json(const ExplainedRequest& request, const Names& others) {
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
                {"worker", moment.worker < timing.workers.size() ? timing.workers[moment.worker]
                                                                 : std::string("?")},
                {"at_ms", ms(before_scheduler(request) + moment.at)},
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
                    {"moments", moments}};
  return all.dump(2, ' ', false, json::error_handler_t::replace) + "\n";
}

std::optional<int> explain_command(const std::vector<std::string>& words,
                                   const std::string& run_dir, bool json) {
  if (words.empty() || words[0] != "explain") return std::nullopt;
  json = json || (words.size() == 3 && words[2] == "json");
  if (words.size() < 2 || words.size() > 3 || (words.size() == 3 && words[2] != "json")) {
    std::cerr << "baton-ctl: explain ID [json], where ID is a reply's X-Request-Id\n";
    return 1;
  }
  std::optional<ExplainedRequest> found;
  std::uint64_t latest = 0;
  Names names;
  std::size_t files = 0;
  std::error_code no_folder;
  for (const auto& entry : std::filesystem::directory_iterator(run_dir, no_folder)) {
    if (entry.path().extension() != ".timing") continue;
    const Status read = read_timings(
        entry.path().string(), [&](std::uint64_t /*number*/, const ExplainedRequest& request) {
          names.emplace_back(request.name, request.request_id);
          // A client may call several the same: the last one is meant.
          if (request.request_id != words[1] || request.at < latest) return;
          latest = request.at;
          found = request;
        });
    if (!read.ok()) std::cerr << "baton-ctl: " << read.message() << "\n";
    ++files;
  }
  if (!found) {
    std::cerr << "baton-ctl: "
              << (files == 0 ? run_dir + " has no file of a front end's requests (NAME.timing)"
                             : "no request that is called " + words[1] +
                                   " is among the last ones that have ended in " + run_dir +
                                   " (those that run: show requests)")
              << "\n";
    return 1;
  }
  std::cout << (json ? explain_json(*found, names) : explain_text(*found, names));
  return 0;
}

}  // namespace baton
