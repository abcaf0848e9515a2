// The part of RequestTable that keeps a request from killing one scheduler after another: the rules
// stand above the class.
#include <algorithm>
#include <tuple>

#include "frontend/core/request_table.h"
#include "ipc/fault_points.h"

namespace baton {
namespace {

constexpr std::uint32_t kSuspect = 2;  // schedulers lost without a token: tried after the others
constexpr std::uint32_t kAlone = 4;    // ... tried alone
constexpr std::uint32_t kAloneEver =
    8;  // schedulers lost in all: tried alone, whatever it got between them
constexpr std::uint32_t kLostAlone = 3;  // schedulers lost in lone trials: it ends
/// A trial begins with a scheduler that has said something just now. One that is dead already would
/// be held against whoever is sent to it.
constexpr TimeNs kJustNow = 100 * kMillisecond;

}  // namespace

bool RequestTable::suspected(const Entry& entry) {
  if (fault(Fault::no_trials)) return false;
  return entry.schedulers_lost >= kSuspect || entry.schedulers_lost_ever >= kAloneEver;
}

bool RequestTable::tried_alone(const Entry& entry) {
  return entry.schedulers_lost >= kAlone || entry.schedulers_lost_ever >= kAloneEver;
}

/// A suspect waits for its trial, and everybody for the end of a lone one.
bool RequestTable::must_wait(const Entry& entry) const {
  if (entry.on_trial) return false;
  return trial_.alone || (!entry.sent && suspected(entry));
}

/// The scheduler that had what was sent is dead: who was there when it died?
void RequestTable::scheduler_lost(TimeNs now, TableOutput& out) {
  std::vector<std::uint64_t> over;
  for (auto& [counter, entry] : entries_) {
    if (entry.sent && entry.state == State::open) {
      ++entry.schedulers_lost;
      ++entry.schedulers_lost_ever;
      if (entry.on_trial && trial_.alone && ++entry.lost_alone >= kLostAlone)
        over.push_back(counter);
    }
    entry.sent = false;
    entry.on_trial = false;
  }
  trial_ = {};
  trial_size_ = 1;
  trials_begin_ = now + limits_.trial;
  turn_of_trials_ = Turn::unwanted;
  for (const std::uint64_t counter : over) {
    const auto at = entries_.find(counter);
    const auto n = static_cast<std::uint32_t>(at->second.generated.size());
    const std::string why =
        std::to_string(kLostAlone) + " schedulers died when they were given this request alone";
    out.notices.push_back("request " + std::to_string(counter) + " ends: " + why);
    end(counter, at->second, {counter, FinishReason::error, n, ErrorCode::worker_crashes, why, 0},
        out);
    entries_.erase(at);
  }
}

/// True when the scheduler has outlived it, or every member has ended or shown progress.
bool RequestTable::trial_is_over(TimeNs now) const {
  // The scheduler must have said something after it: it may be dead already.
  if (now >= trial_.until && view_.heard_at >= trial_.until) return true;
  return std::none_of(trial_.members.begin(), trial_.members.end(), [&](std::uint64_t counter) {
    const auto at = entries_.find(counter);
    return at != entries_.end() && at->second.state == State::open && suspected(at->second);
  });
}

void RequestTable::acquit(TimeNs now, TableOutput& out) {
  for (const std::uint64_t counter : trial_.members) {
    const auto at = entries_.find(counter);
    if (at == entries_.end()) continue;
    Entry& entry = at->second;
    entry.on_trial = false;
    // A token alone says little: it may kill the scheduler with the next one.
    if (trial_.alone && now >= trial_.until)
      entry.schedulers_lost = entry.schedulers_lost_ever = entry.lost_alone = 0;
  }
  trial_size_ *= 2;
  turn_of_trials_ = Turn::unwanted;
  // Another front end may have waited for the turn.
  trials_begin_ = now + limits_.heartbeat_interval;
  const bool others_waited = trial_.alone;
  trial_ = {};
  if (!others_waited) return;
  std::vector<std::uint64_t> waiting;
  for (const auto& [counter, entry] : entries_) {
    if (entry.state == State::open && !entry.sent && !must_wait(entry)) waiting.push_back(counter);
  }
  std::sort(waiting.begin(), waiting.end());
  for (const std::uint64_t counter : waiting) submit(counter, entries_.at(counter), now, out);
}

void RequestTable::go_on_with_trials(TimeNs now, TableOutput& out) {
  if (!trial_.members.empty()) {
    if (trial_is_over(now)) acquit(now, out);
    return;
  }
  if (now >= trials_begin_ && now - view_.heard_at <= kJustNow) begin_trial(now, out);
}

void RequestTable::begin_trial(TimeNs now, TableOutput& out) {
  std::vector<std::tuple<bool, std::uint32_t, std::uint64_t>> waiting;  // those last that lost most
  for (const auto& [counter, entry] : entries_) {
    if (entry.state == State::open && !entry.sent && suspected(entry)) {
      waiting.emplace_back(tried_alone(entry), entry.schedulers_lost, counter);
    }
  }
  if (waiting.empty()) {
    turn_of_trials_ = Turn::unwanted;
    return;
  }
  if (turn_of_trials_ != Turn::given) {
    turn_of_trials_ = Turn::wanted;
    return;
  }
  std::sort(waiting.begin(), waiting.end());
  trial_.alone = std::get<0>(waiting.front());
  trial_.until = now + (trial_.alone ? limits_.lone_trial : limits_.trial);
  const std::size_t size = trial_.alone ? 1 : trial_size_;
  for (const auto& [alone, lost, counter] : waiting) {
    if (trial_.members.size() >= size || alone != trial_.alone) break;
    Entry& entry = entries_.at(counter);
    entry.on_trial = true;
    trial_.members.push_back(counter);
    submit(counter, entry, now, out);
  }
}

}  // namespace baton
