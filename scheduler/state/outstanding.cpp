#include "scheduler/state/outstanding.h"

#include <algorithm>

#include "ipc/fault_points.h"

namespace baton {

const char* to_string(Work kind) {
  switch (kind) {
    case Work::step:
      return "step";
    case Work::pull:
      return "pull";
    case Work::close:
      return "close";
    case Work::compile:
      return "grammar";
  }
  return "unknown";
}

std::string Verdict::why() const {
  const std::string what =
      std::string(to_string(record.kind)) + " " + std::to_string(record.number);
  switch (fault) {
    case Fault::none:
      return "nothing is wrong";
    case Fault::lost:
      return what + " was lost on its way";
    case Fault::hung:
      return what + " hangs";
    case Fault::silent:
      return "silent";
  }
  return "";
}

std::uint64_t OutstandingWork::add(Work kind, std::uint64_t request, std::uint64_t key,
                                   TimeNs now) {
  Outstanding record;
  record.kind = kind;
  record.number = ++sent_[index(kind)];
  record.request = request;
  record.key = key;
  record.sent = now;
  auto& open = open_[index(kind)];
  open.emplace_hint(open.end(), record.number, record);
  if (kind == Work::step || kind == Work::pull) sent_times_[index(kind)].push_back(now);
  if (open.size() == 1) begin_turn(kind, now);
  return record.number;
}

void OutstandingWork::acknowledge(Work kind, std::uint64_t received, TimeNs now) {
  std::uint64_t& known = acknowledged_[index(kind)];
  std::deque<TimeNs>& times = sent_times_[index(kind)];
  auto& open = open_[index(kind)];
  auto it = open.upper_bound(known);
  while (known < received && !times.empty()) {
    times.pop_front();
    ++known;
    if (it != open.end() && it->first == known) (it++)->second.acknowledged = now;
  }
}

void OutstandingWork::answered(Work kind, std::uint64_t number, TimeNs now) {
  auto& open = open_[index(kind)];
  const auto it = open.find(number);
  if (it != open.end()) answered(kind, it, now);
}

void OutstandingWork::answered_key(Work kind, std::uint64_t key, TimeNs now) {
  auto& open = open_[index(kind)];
  const auto it = std::find_if(open.begin(), open.end(),
                               [&](const auto& entry) { return entry.second.key == key; });
  if (it != open.end()) answered(kind, it, now);
}

void OutstandingWork::answered(Work kind, std::map<std::uint64_t, Outstanding>::iterator it,
                               TimeNs now) {
  const bool oldest = it == open_[index(kind)].begin();
  open_[index(kind)].erase(it);
  // Of two pulls in hand the younger may end first, which says nothing of the other. Grammars that
  // somebody waits for overtake the others, which wait for them.
  if (oldest || kind == Work::compile) begin_turn(kind, now);
  if (fault(Fault::hung_pull_excused)) begin_turn(Work::pull, now);
}

void OutstandingWork::begin_turn(Work kind, TimeNs now) {
  auto& open = open_[index(kind)];
  if (!open.empty()) open.begin()->second.deadline = now + longest(kind);
}

bool OutstandingWork::has(Work kind, std::uint64_t key) const {
  const auto& open = of(kind);
  return std::any_of(open.begin(), open.end(),
                     [&](const auto& entry) { return entry.second.key == key; });
}

bool OutstandingWork::any() const {
  return std::any_of(open_.begin(), open_.end(), [](const auto& open) { return !open.empty(); });
}

void OutstandingWork::begin_term(TimeNs now) {
  for (const Work kind : {Work::step, Work::pull, Work::compile}) {
    open_[index(kind)].clear();
    sent_[index(kind)] = acknowledged_[index(kind)] = 0;
    sent_times_[index(kind)].clear();
  }
  begin_turn(Work::close, now);
}

void OutstandingWork::forgive(TimeNs gap, TimeNs now) {
  if (gap == 0) return;
  for (auto& times : sent_times_) {
    for (TimeNs& sent : times) sent = std::min(now, sent + gap);
  }
  for (auto& open : open_) {
    for (auto& [number, record] : open) {
      record.sent = std::min(now, record.sent + gap);
      if (record.deadline != kNever) record.deadline += gap;
    }
  }
}

Verdict OutstandingWork::judge(TimeNs heard, TimeNs now, TimeNs worker_timeout) const {
  if (now - heard > worker_timeout) return {Verdict::Fault::silent, {}};
  if (now - heard > worker_timeout / 2) return {};
  const auto& pulls = of(Work::pull);
  if (fault(Fault::slow_pull_lost) && !pulls.empty() &&
      now - pulls.begin()->second.sent > worker_timeout) {
    return {Verdict::Fault::lost, pulls.begin()->second};
  }
  for (const Work kind : {Work::step, Work::pull}) {
    const std::deque<TimeNs>& times = sent_times_[index(kind)];
    if (times.empty() || now - times.front() <= worker_timeout) continue;
    Verdict lost{Verdict::Fault::lost, {}};
    lost.record.kind = kind;
    lost.record.number = acknowledged_[index(kind)] + 1;
    return lost;
  }
  for (const auto& open : open_) {
    if (!open.empty() && now > open.begin()->second.deadline) {
      return {Verdict::Fault::hung, open.begin()->second};
    }
  }
  return {};
}

}  // namespace baton
