#include "ipc/timing.h"

#include <algorithm>

#include "ipc/fault_points.h"

namespace baton {

const char* to_string(Part part) {
  static constexpr std::array<const char*, kParts> kNames = {
      "read",      "tokenise", "unsent",  "submit",      "queue",  "prefix_pull",
      "prefill",   "grammar",  "handoff", "decode_wait", "decode", "requeue",
      "recompute", "away",     "deliver", "write"};
  const auto i = static_cast<std::size_t>(part);
  return i < kParts ? kNames[i] : "unknown";
}

const char* to_string(MomentKind kind) {
  static constexpr std::array<const char*, kMomentKinds> kNames = {
      "chunk", "pull", "decodes", "gap", "died", "preempted", "moved"};
  const auto i = static_cast<std::size_t>(kind);
  return i < kMomentKinds ? kNames[i] : "unknown";
}

const char* to_string(GapCause cause) {
  static constexpr std::array<const char*, kGapCauses> kNames = {"unknown", "step", "prompt",
                                                                 "pull", "suspect"};
  const auto i = static_cast<std::size_t>(cause);
  return i < kGapCauses ? kNames[i] : "unknown";
}

const char* to_string(MoveCause cause) {
  static constexpr std::array<const char*, kMoveCauses> kNames = {
      "handoff", "died", "preempted", "drained", "pull", "grew", "grammar"};
  const auto i = static_cast<std::size_t>(cause);
  return i < kMoveCauses ? kNames[i] : "unknown";
}

namespace {

constexpr std::size_t index(Part part) { return static_cast<std::size_t>(part); }

/// Takes `surplus` away again, from the last of the scheduler's parts on, or from the first.
void take_back(PartTimes& spent, TimeNs surplus, bool from_last) {
  constexpr std::size_t kFirst = index(Part::queue);
  constexpr std::size_t kCount = index(Part::deliver) - kFirst;
  for (std::size_t n = 0; n < kCount && surplus > 0; ++n) {
    TimeNs& part = spent[kFirst + (from_last ? kCount - 1 - n : n)];
    const TimeNs some = std::min(part, surplus);
    part -= some;
    surplus -= some;
  }
}

}  // namespace

PartTimes split_time(const FrontendMarks& marks, const RequestTiming* timing) {
  PartTimes spent{};
  TimeNs at = marks.first_byte;
  const TimeNs end = std::max(marks.written, at);
  const auto until = [&](Part part, TimeNs moment) {
    moment = std::clamp(moment, at, end);
    spent[index(part)] += moment - at;
    at = moment;
  };
  until(Part::read, marks.whole);
  if (marks.opened != 0) until(Part::tokenise, marks.opened);
  if (marks.submitted != 0) until(Part::unsent, marks.submitted);
  const bool good = timing != nullptr && timing->spent.size() == kParts;
  if (!good) {
    until(marks.submitted == 0 ? Part::unsent : Part::queue, marks.ended);
  } else {
    // A predecessor of this process sent it: nobody here knows when.
    until(marks.submitted == 0 ? Part::tokenise : Part::submit, timing->begin);
    TimeNs told = 0;
    for (std::size_t i = index(Part::queue); i < index(Part::deliver); ++i) {
      spent[i] += std::max<TimeNs>(0, timing->spent[i]);
      told += std::max<TimeNs>(0, timing->spent[i]);
    }
    // What the scheduler did before we had sent it, and after it was over for the client (it found
    // the end itself), was nobody's wait.
    const TimeNs early = std::min(told, std::max<TimeNs>(0, at - timing->begin));
    take_back(spent, early, /*from_last=*/false);
    const TimeNs room = std::max<TimeNs>(0, std::clamp(marks.ended, at, end) - at);
    const TimeNs late = std::max<TimeNs>(0, told - early - room);
    take_back(spent, late, /*from_last=*/true);
    at += told - early - late;
    const std::size_t last = timing->part;
    const bool goes_on =
        !timing->ended && last >= index(Part::queue) && last < index(Part::deliver);
    until(goes_on ? static_cast<Part>(last) : Part::deliver, marks.ended);
  }
  until(Part::write, end);
  return spent;
}

}  // namespace baton
