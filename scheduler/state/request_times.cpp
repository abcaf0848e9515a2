#include "scheduler/state/request_times.h"

#include <algorithm>
#include <bit>
#include <numeric>

#include "ipc/fault_points.h"

namespace baton {

namespace {

constexpr const char* kOthers = "others are ahead of it";
constexpr const char* kNobodyLooked = "no worker has looked at it yet";
constexpr const char* kLostPlace = "it has lost its place";
constexpr std::size_t index(Part part) { return static_cast<std::size_t>(part); }

}  // namespace

std::size_t GapCounts::bucket(TimeNs gap) {
  const auto value = static_cast<std::uint64_t>(std::max<TimeNs>(gap, 0));
  if (value < (std::uint64_t{1} << kFirstOctave)) return 0;
  const int octave = std::bit_width(value) - 1;
  const auto quarter = static_cast<int>((value >> (octave - 2)) & 3U);
  return std::min(static_cast<std::size_t>((octave - kFirstOctave) * 4 + quarter), kBuckets - 1);
}

void GapCounts::add(TimeNs gap) {
  std::uint16_t& count = counts_[bucket(gap)];
  if (++count != UINT16_MAX) return;
  for (std::uint16_t& each : counts_) each = static_cast<std::uint16_t>(each / 2);
}

TimeNs GapCounts::median() const {
  std::uint32_t total = 0;
  for (const std::uint16_t count : counts_) total += count;
  std::uint32_t below = 0;
  for (std::size_t i = 0; i < kBuckets && total > 0; ++i) {
    below += counts_[i];
    if (2 * below < total) continue;
    const auto quarter = TimeNs{1} << (kFirstOctave - 2 + static_cast<int>(i / 4));
    return quarter * static_cast<TimeNs>(4 + i % 4) + quarter / 2;  // the middle of the bucket
  }
  return 0;
}

void RequestTimes::begin(TimeNs now, bool again, std::uint32_t ahead, RequestId behind) {
  begin_ = since_ = now;
  part_ = again ? Part::requeue : Part::queue;
  ahead_ = ahead;
  behind_ = behind;
  reasons_[0].why = ahead > 0 ? kOthers : kNobodyLooked;
  note(now);
}

void RequestTimes::note(TimeNs now) {
  entered_ = now;
  if (log_ != nullptr && log_->on) log_->entries.push_back({name_, part_, now, ended_});
}

void RequestTimes::pass(TimeNs now) {
  const TimeNs took = std::max<TimeNs>(0, now - since_);
  const bool waits = part_ == Part::queue || part_ == Part::requeue;
  if (!fault(Fault::wait_not_told) || part_ != Part::requeue) spent_[index(part_)] += took;
  if (waits) reasons_[reason_].took += took;
  since_ = std::max(now, since_);
}

void RequestTimes::enter(Part part, TimeNs now) {
  if (part == part_ || ended_) return;
  pass(now);
  part_ = part;
  note(now);
  if (part == Part::requeue) waits_for(kLostPlace, now);
  last_token_ = part == Part::decode ? now : 0;
}

TimeNs RequestTimes::untold() const {
  return since_ - begin_ - std::accumulate(spent_.begin(), spent_.end(), TimeNs{0});
}

void RequestTimes::waits_for(const char* why, TimeNs now) {
  if (reasons_[reason_].why == why) return;  // literals: the same one has the same address
  pass(now);
  std::size_t at = 0;
  while (at + 1 < kReasons && reasons_[at].why != nullptr && reasons_[at].why != why) ++at;
  if (reasons_[at].why != why && reasons_[at].why != nullptr) {
    why = "other reasons";
  }
  reasons_[at].why = why;
  reason_ = at;
}

Moment& RequestTimes::add(MomentKind kind, std::uint32_t worker, TimeNs began, TimeNs now) {
  if (moments_.size() >= kMoments) merge_chunks();
  if (moments_.size() >= kMoments) moments_.erase(moments_.begin() + kMoments / 2);
  Moment& moment = moments_.emplace_back();
  moment.kind = static_cast<std::uint32_t>(kind);
  moment.worker = worker;
  moment.at = began - begin_;
  moment.took = now - began;
  moment.count = 1;
  return moment;
}

/// Of two neighbours that are alike, one.
void RequestTimes::merge_chunks() {
  const auto alike = [](const Moment& a, const Moment& b) {
    const bool may = a.kind == static_cast<std::uint32_t>(MomentKind::chunk) ||
                     a.kind == static_cast<std::uint32_t>(MomentKind::pull);
    return may && a.kind == b.kind && a.worker == b.worker;
  };
  std::vector<Moment> fewer;
  fewer.reserve(kMoments);
  for (std::size_t i = 0; i < moments_.size(); ++i) {
    Moment moment = moments_[i];
    if (i + 1 < moments_.size() && alike(moment, moments_[i + 1])) {
      const Moment& next = moments_[++i];
      moment.took = std::max(moment.at + moment.took, next.at + next.took) - moment.at;
      moment.tokens += next.tokens;
      moment.count += next.count;
    }
    fewer.push_back(moment);
  }
  moments_ = std::move(fewer);
}

/// From `began` on: a move, if that is another place than the last one.
void RequestTimes::works_on(std::uint32_t worker, TimeNs began) {
  const bool moved = place_ != kNowhere && (worker != place_ || lost_at_ != 0);
  if (moved) {
    ++all_moves_;
    if (moves_.size() == kMoves) moves_.erase(moves_.begin() + kMoves / 2);
    Move& move = moves_.emplace_back();
    move.cause = static_cast<std::uint32_t>(lost_at_ != 0 ? lost_why_
                                            : grew_       ? MoveCause::grew
                                                          : MoveCause::handoff);
    move.from = place_;
    move.to = worker;
    move.at = began - begin_;
    move.away = lost_at_ != 0 ? std::max<TimeNs>(0, began - lost_at_) : 0;
  }
  place_ = worker;
  lost_at_ = 0;
  grew_ = false;
}

void RequestTimes::chunk(std::uint32_t worker, TimeNs began, TimeNs now, std::uint32_t tokens) {
  works_on(worker, began);
  computed_ += tokens;
  add(MomentKind::chunk, worker, began, now).tokens = tokens;
}

void RequestTimes::pull(std::uint32_t worker, TimeNs began, TimeNs now, std::uint32_t blocks) {
  add(MomentKind::pull, worker, began, now).tokens = blocks;
}

void RequestTimes::decodes_on(std::uint32_t worker, TimeNs now, bool news) {
  enter(Part::decode, now);
  works_on(worker, now);
  add(MomentKind::decodes, worker, now, now);
  news_ = news_ || news;
}

void RequestTimes::lost_place(MoveCause why, std::uint32_t worker, TimeNs now, bool everything) {
  const MomentKind kind = why == MoveCause::died        ? MomentKind::died
                          : why == MoveCause::preempted ? MomentKind::preempted
                                                        : MomentKind::moved;
  add(kind, worker, now, now);
  if ((worker == place_ || everything) && lost_at_ == 0) {
    lost_at_ = now;
    lost_why_ = why;
  }
  if (kind == MomentKind::died) ++deaths_;
  if (kind == MomentKind::preempted) ++preemptions_;
}

bool RequestTimes::token(TimeNs now) {
  if (part_ != Part::decode) return false;
  ++steps_;
  token_before_ = last_token_;
  last_token_ = now;
  const TimeNs gap = now - token_before_;
  gap_counts_.add(gap);
  // Rarely enough that it costs nothing, and often while it still moves.
  if ((steps_ & (steps_ - 1)) == 0 || steps_ % 64 == 0) median_ = gap_counts_.median();
  if (steps_ < 4 || gap < kLeastGap || gap < 3 * median_) return false;
  if (gaps_.size() < kGaps) return true;
  return std::any_of(gaps_.begin(), gaps_.end(), [&](const Moment& g) { return g.took < gap; });
}

void RequestTimes::gap(std::uint32_t worker, TimeNs now, GapCause cause, std::uint32_t tokens,
                       RequestId other) {
  Moment moment;
  moment.kind = static_cast<std::uint32_t>(MomentKind::gap);
  moment.cause = static_cast<std::uint32_t>(cause);
  moment.worker = worker;
  moment.at = token_before_ - begin_;
  moment.took = now - token_before_;
  moment.tokens = tokens;
  moment.count = 1;
  moment.other = other;
  if (gaps_.size() >= kGaps) {
    gaps_.erase(std::min_element(gaps_.begin(), gaps_.end(),
                                 [](const auto& a, const auto& b) { return a.took < b.took; }));
  }
  if (gaps_.empty()) gaps_.reserve(kGaps);
  gaps_.push_back(moment);
}

bool RequestTimes::take_news() {
  const bool news = news_;
  news_ = false;
  return news;
}

void RequestTimes::end(TimeNs now) {
  if (ended_) return;
  pass(now);
  ended_ = true;
  note(now);
}

RequestTiming RequestTimes::told(TimeNs now, bool whole) const {
  RequestTiming told;
  told.begin = begin_;
  told.until = ended_ ? since_ : std::max(now, since_);
  told.part = static_cast<std::uint32_t>(part_);
  told.ended = ended_;
  told.spent.assign(spent_.begin(), spent_.end());
  told.spent[index(part_)] += told.until - since_;
  told.ahead = ahead_;
  told.behind = behind_;
  told.computed_tokens = computed_;
  told.decode_steps = steps_;
  told.median_gap = gap_counts_.median();
  told.preemptions = preemptions_;
  told.deaths = deaths_;
  if (!whole) return told;
  for (const Reason& reason : reasons_) {
    if (reason.why != nullptr && reason.took > 0) told.reasons.push_back({reason.why, reason.took});
  }
  told.moments = moments_;
  told.moves = moves_;
  told.all_moves = all_moves_;
  for (const Moment& gap : gaps_) {
    if (gap.took >= 3 * told.median_gap) told.moments.push_back(gap);
  }
  std::stable_sort(told.moments.begin(), told.moments.end(),
                   [](const Moment& a, const Moment& b) { return a.at < b.at; });
  return told;
}

}  // namespace baton
