// Where the scheduler's part of a request's time went: one clock that always runs for exactly one
// part, and a bounded list of what happened. Pure: times are passed in. Nothing is allocated for a
// token.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "ipc/timing.h"
#include "ipc/types.h"

namespace baton {

/// Gaps between tokens, by size: four counts an octave, from 16 us to 17 s.
class GapCounts {
 public:
  void add(TimeNs gap);
  /// 0: there are none. Right to a tenth.
  TimeNs median() const;

 private:
  static constexpr int kFirstOctave = 14;  // 2^14 ns
  static constexpr std::size_t kBuckets = 80;
  static std::size_t bucket(TimeNs gap);

  std::array<std::uint16_t, kBuckets> counts_{};
};

/// Which parts requests have entered, for a trace. Kept only while somebody wants it, and emptied
/// by whoever does.
struct PartLog {
  struct Entry {
    RequestId request;
    Part part = Part::queue;
    TimeNs at = 0;
    bool ended = false;  // it is in no part any more
  };
  bool on = false;
  std::vector<Entry> entries;
};

class RequestTimes {
 public:
  /// Before begin(): where changes of its part are told from now on (null: nowhere), and under
  /// which name. `log` outlives this.
  void tell(PartLog* log, const RequestId& name) {
    log_ = log;
    name_ = name;
  }
  /// It came, and waits behind `ahead` others. `again`: it had a place before.
  void begin(TimeNs now, bool again, std::uint32_t ahead, RequestId behind);
  void enter(Part part, TimeNs now);
  Part part() const { return part_; }
  /// When it entered that.
  TimeNs entered() const { return entered_; }
  /// Time since it came that is in none of its parts: 0, or this has a fault.
  TimeNs untold() const;
  /// What has it wait in the queue from now on: a literal.
  void waits_for(const char* why, TimeNs now);
  /// `tokens` of its prompt were computed by a step.
  void chunk(std::uint32_t worker, TimeNs began, TimeNs now, std::uint32_t tokens);
  void pull(std::uint32_t worker, TimeNs began, TimeNs now, std::uint32_t blocks);
  /// `news`: in another place than it was prefilled in.
  void decodes_on(std::uint32_t worker, TimeNs now, bool news);
  /// It has no place on `worker` any more, which need not be where it was computed last.
  /// `everything`: nor anywhere else.
  void lost_place(MoveCause why, std::uint32_t worker, TimeNs now, bool everything = false);
  /// It goes on elsewhere, and what was computed stays where it is.
  void grew() { grew_ = true; }
  /// It has decoded a token. True: the gap before it is one that explain() wants the cause of.
  bool token(TimeNs now);
  /// ... which is this.
  void gap(std::uint32_t worker, TimeNs now, GapCause cause, std::uint32_t tokens, RequestId other);
  /// When the token before the last one was there, or decoding began.
  TimeNs token_before() const { return token_before_; }
  /// It has ended: its clock stands.
  void end(TimeNs now);
  /// Once after each change of place: the front end is to be told with its next token.
  bool take_news();

  /// All but the names: those of workers, and counts that the request has itself. Without `whole`
  /// numbers alone.
  RequestTiming told(TimeNs now, bool whole) const;

 private:
  struct Reason {
    const char* why = nullptr;
    TimeNs took = 0;
  };
  static constexpr std::size_t kReasons = 4;   // the last one takes the rest
  static constexpr std::size_t kMoments = 24;  // gaps not among them
  static constexpr std::size_t kGaps = 8;      // the largest
  static constexpr std::size_t kMoves = 8;     // the first and the last ones
  static constexpr std::uint32_t kNowhere = 0xFFFFFFFF;
  static constexpr TimeNs kLeastGap = kMillisecond;

  void works_on(std::uint32_t worker, TimeNs began);
  Moment& add(MomentKind kind, std::uint32_t worker, TimeNs began, TimeNs now);
  void merge_chunks();
  void pass(TimeNs now);
  void note(TimeNs now);

  PartLog* log_ = nullptr;
  RequestId name_;
  TimeNs entered_ = 0;
  TimeNs begin_ = 0;
  TimeNs since_ = 0;  // the part at hand
  Part part_ = Part::queue;
  bool news_ = false;
  bool ended_ = false;
  PartTimes spent_{};
  std::uint32_t ahead_ = 0;
  RequestId behind_;
  std::array<Reason, kReasons> reasons_{};
  std::size_t reason_ = 0;
  std::uint32_t computed_ = 0;
  std::uint32_t preemptions_ = 0;
  std::uint32_t deaths_ = 0;
  std::uint32_t steps_ = 0;
  TimeNs last_token_ = 0;
  TimeNs token_before_ = 0;
  TimeNs median_ = 0;  // as it was when last looked for
  std::uint32_t place_ = kNowhere;  // where it was computed last
  TimeNs lost_at_ = 0;              // it lost that; 0: it has it
  MoveCause lost_why_ = MoveCause::handoff;
  bool grew_ = false;
  std::uint32_t all_moves_ = 0;
  std::vector<Move> moves_;
  std::vector<Moment> moments_;
  std::vector<Moment> gaps_;
  GapCounts gap_counts_;
};

}  // namespace baton
