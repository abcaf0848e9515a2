#include <algorithm>
#include <utility>

#include "scheduler/admin/trace_writer.h"

namespace baton {

// ----------------------------------------------------------------------------- scheduler, workers

void TraceWriter::scheduler(TracedLife& life) {
  for (const TraceRecord* record : life.records) {
    const auto& args = record->args;
    const TimeNs end = record->at + record->took;
    switch (record->kind) {
      case TraceKind::turn:
        slice(life, kLoop, "loop", "turn", record->at, end) = {{"messages_in", args[0]},
                                                               {"plans_and_pulls_out", args[1]}};
        break;
      case TraceKind::plan: {
        const std::string worker(record->words());
        slice(life, kLoop, "loop", "plan", record->at, end) = {{"worker", worker},
                                                               {"step", args[1]},
                                                               {"prompt_rows", args[2]},
                                                               {"prompt_tokens", args[3]}};
        plans_[{worker, args[0], args[1]}] = {&life, record->at};
        break;
      }
      case TraceKind::pull_asked:
        slice(life, kLoop, "loop", "ask for a pull", record->at, end) = {
            {"worker", record->words()},
            {"pull", args[2]},
            {"blocks", args[3]},
            {"request", called(request_of(*record))}};
        asked_[args[2]] = {&life, record->at, request_of(*record)};
        break;
      default:
        break;
    }
  }
}

void TraceWriter::worker(TracedLife& life) {
  steps(life);
  pulls(life);
}

/// A step that was given to the device and whose end nobody told was under way when its worker
/// died, or when the trace ended; others wait behind it.
void TraceWriter::steps(TracedLife& life) {
  std::map<std::pair<std::uint64_t, std::uint64_t>, TimeNs> given;
  TimeNs last = 0;
  for (const TraceRecord* record : life.records) {
    const auto& args = record->args;
    if (record->kind == TraceKind::step_given) given[{args[0], args[1]}] = record->at;
    if (record->kind != TraceKind::step) continue;
    given.erase({args[0], args[1]});
    last = std::max(last, record->at + record->took);
    const std::uint32_t decoding = upper_half(args[3]);
    const std::uint32_t prompts = upper_half(args[2]) - decoding;
    const char* name = prompts == 0 ? "decode" : decoding == 0 ? "prefill" : "prefill + decode";
    slice(life, kSteps, "steps", name, record->at, record->at + record->took) = {
        {"step", args[1]},
        {"rows", upper_half(args[2])},
        {"tokens", lower_half(args[2])},
        {"prompt_rows", prompts},
        {"decode_rows", decoding},
        {"host_copies", lower_half(args[3])}};
    ++counts_.steps;
    const auto plan = plans_.find({life.name, args[0], args[1]});
    if (plan != plans_.end()) {
      arrow("plan", *plan->second.first, kLoop, plan->second.second, life, kSteps, record->at);
    }
  }
  if (given.empty()) return;
  const auto& [step, at] = *given.begin();
  const TimeNs begin = std::min(std::max(at, last), life.end);
  slice(life, kSteps, "steps", "unfinished step", begin, life.end) = {
      {"step", step.second},
      {"unfinished", life.how.empty() ? "the trace ended" : "the process died"},
      {"waiting_behind_it", given.size() - 1}};
  ++counts_.steps;
}

void TraceWriter::pulls(TracedLife& life) {
  std::map<std::uint64_t, TracedPull> open;
  TimeNs last = 0;
  for (const TraceRecord* record : life.records) {
    const auto& args = record->args;
    if (record->kind == TraceKind::pool) pools_[args[0]] = &life;
    if (record->kind == TraceKind::pull_given) {
      open[args[0]] = {&life, args[0], args[1], args[2], record->at, life.end, "", true};
    }
    if (record->kind != TraceKind::pull) continue;
    const auto at = open.find(args[0]);
    TracedPull pull;  // given before the trace began, if nobody has told
    if (at != open.end()) pull = at->second;
    pull.importer = &life;
    pull.id = args[0];
    if (at != open.end()) open.erase(at);
    pull.begin = record->at;
    pull.end = record->at + record->took;
    pull.failure = record->words();
    pull.unfinished = false;
    last = std::max(last, pull.end);
    pulls_.push_back(pull);
  }
  if (open.empty()) return;
  TracedPull pull = open.begin()->second;  // the others wait behind it
  pull.begin = std::min(std::max(pull.begin, last), life.end);
  pulls_.push_back(pull);
}

/// Pulls, on the side that reads and on the one that is read, with arrows from that to this.
void TraceWriter::cross() {
  for (const TracedPull& pull : pulls_) {
    TracedLife& importer = *pull.importer;
    const auto pool = pools_.find(pull.allocation);
    const auto asked = asked_.find(pull.id);
    const std::string of = asked == asked_.end() ? "" : called(std::get<RequestId>(asked->second));
    Json& args = slice(importer, kPulls, "pulls", pull.blocks == 0 ? "map a pool" : "pull",
                       pull.begin, pull.end);
    args = {{"pull", pull.id},
            {"blocks", pull.blocks},
            {"from", pool == pools_.end() ? "a pool that was not traced" : pool->second->name}};
    if (!of.empty()) args["request"] = of;
    if (!pull.failure.empty()) args["failed"] = pull.failure;
    if (pull.unfinished)
      args["unfinished"] = importer.how.empty() ? "the trace ended" : "the process died";
    ++counts_.pulls;
    if (asked != asked_.end()) {
      const auto& [life, at, request] = asked->second;
      arrow("ask", *life, kLoop, at, importer, kPulls, pull.begin);
    }
    if (pool == pools_.end() || pull.blocks == 0) continue;
    TracedLife& exporter = *pool->second;
    const int track = kFirstReader + importer.number;
    slice(exporter, track, ("read by " + importer.name).c_str(), "read", pull.begin, pull.end) = {
        {"pull", pull.id}, {"blocks", pull.blocks}, {"by", importer.name}};
    if (!of.empty()) events_.back()["args"]["request"] = of;
    const TimeNs middle = pull.begin + (pull.end - pull.begin) / 2;
    arrow("pull", exporter, track, pull.begin, importer, kPulls, middle);
  }
}

void TraceWriter::others(TracedLife& life) {
  for (const TraceRecord* record : life.records) {
    const std::string text(record->words());
    const auto& args = record->args;
    switch (record->kind) {
      case TraceKind::life:
        instant(life, "recording", record->at, Json::object());
        break;
      case TraceKind::lease:
        slice(life, kLoop, "loop", "lease", record->at, record->at + record->took) = {
            {"worker", text}, {"blocks", args[0]}, {"kept", args[1] != 0}};
        break;
      case TraceKind::kept:
        instant(life, "keeps the pool of " + text, record->at, {{"process", args[0]}});
        break;
      case TraceKind::started:
        instant(life, "starts " + text, record->at, {{"process", args[0]}});
        break;
      case TraceKind::ended:
        instant(life, "saw an end", record->at, {{"how", text}});
        break;
      case TraceKind::refused:
        instant(life, "refused", record->at + record->took, {{"asked", text}, {"status", args[0]}});
        break;
      default:
        break;
    }
  }
}

}  // namespace baton
