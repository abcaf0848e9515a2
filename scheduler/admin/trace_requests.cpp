#include <algorithm>
#include <utility>

#include "ipc/timing.h"
#include "scheduler/admin/trace_writer.h"

namespace baton {

// -------------------------------------------------------------------------------------- requests

void TraceWriter::gather_requests() {
  for (TracedLife& life : lives_) {
    for (const TraceRecord* record : life.records) {
      if (record->kind == TraceKind::part || record->kind == TraceKind::part_end) {
        requests_[request_of(*record)].parts.emplace_back(&life, record);
        continue;
      }
      if (record->kind != TraceKind::request && record->kind != TraceKind::first_token &&
          record->kind != TraceKind::request_end)
        continue;
      const RequestId id = request_of(*record);
      TracedRequest& request = requests_[id];
      if (request.front_end == nullptr) request.front_end = &life;
      if (record->kind == TraceKind::request_end) {
        request.ended = record;
      } else if (record->kind == TraceKind::first_token) {
        request.first_token = record;
      } else if (request.begun == nullptr) {  // else it was taken over from a dead front end
        request.begun = record;
        const std::uint64_t choices = std::min<std::uint64_t>(upper_half(record->args[2]), 4096);
        for (std::uint64_t i = 1; i < choices; ++i) choices_[{id.frontend, id.counter + i}] = id;
      }
    }
  }
}

std::string TraceWriter::called(const RequestId& id) const {
  if (id.counter == 0) return "";
  const auto choice = choices_.find(id);
  const auto at = requests_.find(choice == choices_.end() ? id : choice->second);
  if (at != requests_.end() && at->second.begun != nullptr)
    return std::string(at->second.begun->words());
  return std::to_string(id.frontend) + "-" + std::to_string(id.counter);
}

void TraceWriter::requests() {
  for (auto& [id, one] : requests_) request(id, one);
}

void TraceWriter::request(const RequestId& id, TracedRequest& request) {
  TimeNs begin = trace_.ended;
  TimeNs end = trace_.ended;
  if (request.begun != nullptr) {
    begin = request.begun->at;
  } else if (request.ended != nullptr) {
    begin = request.ended->at;
  }
  for (const auto& [life, part] : request.parts) {
    if (request.begun == nullptr && request.ended == nullptr) begin = std::min(begin, part->at);
    if (part->kind == TraceKind::part_end && request.front_end == nullptr) end = part->at;
  }
  if (request.ended != nullptr) end = request.ended->at + request.ended->took;
  end = std::max(begin, end);
  const auto choice = choices_.find(id);
  if (choice != choices_.end()) {  // shown beside its request's first choice
    const auto first = requests_.find(choice->second);
    if (first != requests_.end()) request.front_end = first->second.front_end;
  }
  TracedLife* shown = request.front_end;
  if (shown == nullptr && !request.parts.empty())
    shown = const_cast<TracedLife*>(request.parts[0].first);
  if (shown == nullptr) return;
  const std::string name =
      called(id) + (choice == choices_.end()
                        ? ""
                        : ", choice " + std::to_string(id.counter - choice->second.counter + 1));
  Json& args = async("b", id, name, begin, shown->number);
  args["request"] = called(id);
  if (request.begun != nullptr) {
    args["choices"] = upper_half(request.begun->args[2]);
    args["prompt_tokens"] = lower_half(request.begun->args[2]);
  }
  if (request.begun == nullptr) args["begun"] = "before the trace";
  if (choice == choices_.end()) ++counts_.requests;
  if (request.begun != nullptr) {
    const TimeNs whole = std::min(begin + request.begun->took, end);
    const auto opened = static_cast<TimeNs>(request.begun->args[3]);
    const auto part = [&](Part which, TimeNs from, TimeNs to) {
      async("b", id, to_string(which), from, shown->number);
      async("e", id, to_string(which), to, shown->number);
    };
    part(Part::read, begin, whole);
    if (opened > whole) part(Part::tokenise, whole, std::min(opened, end));
    begin = std::clamp(opened, whole, end);
  }
  parts(id, request, begin, end, shown->number);
  Json& last = async("e", id, name, end, shown->number);
  if (request.ended != nullptr) {
    last["end"] = request.ended->words();
    last["tokens"] = request.ended->args[2];
    last["status"] = request.ended->args[3];
  } else if (end == trace_.ended) {
    last["unfinished"] = "the trace ended";
  }
}

/// The scheduler's. Each lasts until the next one, or until its scheduler died, and none goes
/// beyond the request itself: of a stop string, the scheduler hears later.
void TraceWriter::parts(const RequestId& id, TracedRequest& request, TimeNs begin, TimeNs end,
                        int process) {
  std::stable_sort(request.parts.begin(), request.parts.end(),
                   [](const auto& a, const auto& b) { return a.second->at < b.second->at; });
  const TimeNs token =
      request.first_token == nullptr ? 0 : std::clamp(request.first_token->at, begin, end);
  bool told = request.first_token == nullptr;
  const auto tell = [&](TimeNs until) {
    if (told || token > until) return;
    async("n", id, "first token", token, process);
    told = true;
  };
  for (std::size_t i = 0; i < request.parts.size(); ++i) {
    const auto& [life, record] = request.parts[i];
    TimeNs until = std::min(life->end, end);
    if (i + 1 < request.parts.size()) until = std::min(until, request.parts[i + 1].second->at);
    if (record->kind != TraceKind::part) continue;
    const TimeNs from = std::clamp(record->at, begin, end);
    until = std::clamp(until, from, end);
    tell(from);
    const char* name = to_string(static_cast<Part>(record->part));
    async("b", id, name, from, process);
    tell(until);
    async("e", id, name, until, process);
  }
  tell(end);
}

}  // namespace baton
