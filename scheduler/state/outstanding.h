// What a worker has been asked and has not answered, and when that becomes somebody's fault. Pure:
// time is passed in. Everything that the scheduler knows of a worker's liveness is judged here.
//
// A worker works at four kinds of requests side by side: steps, pulls, closes of mappings, and
// grammars to compile. Within a kind it takes them in the order in which they were sent, one at a
// time (of two steps on the device, the second waits for the first). So of each kind only the
// oldest record can be late, and an answer of one kind says nothing about another: a worker whose
// steps go on may hang in a pull.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>

#include "ipc/types.h"

namespace baton {

enum class Work : std::uint8_t { step, pull, close, compile };
constexpr std::size_t kKindsOfWork = 4;
const char* to_string(Work kind);

constexpr TimeNs kNever = INT64_MAX;

/// How long a worker that answers heartbeats may work on one thing. Far beyond what any takes: a
/// slow one must never end a term, a hung one must not stay for ever.
constexpr TimeNs longest(Work kind) { return kind == Work::pull ? 30 * kSecond : 60 * kSecond; }

struct Outstanding {
  Work kind = Work::step;
  std::uint64_t number =
      0;  // in order of sending, by kind; of steps and pulls: what the heartbeat counts
  std::uint64_t request =
      0;  // whose it is (slab id); 0: nobody's, or several, which the step's rows name
  std::uint64_t key = 0;  // pull, allocation or grammar; of a step its number
  TimeNs sent = 0;
  TimeNs acknowledged =
      0;  // when a heartbeat or an answer first showed that the worker has it; 0: not yet
  TimeNs deadline = kNever;  // for the answer; set when its turn comes
};

/// What is wrong with a worker.
struct Verdict {
  enum class Fault : std::uint8_t {
    none,
    lost,    // a message did not arrive: nobody's fault
    hung,    // the oldest record of a kind is past its deadline: the fault of whoever it belongs to
    silent,  // nothing was heard for `worker_timeout`
  };
  Fault fault = Fault::none;
  Outstanding record;  // with `lost` and `hung`
  std::string why() const;
};

class OutstandingWork {
 public:
  /// Returns the record's number: the next of its kind.
  std::uint64_t add(Work kind, std::uint64_t request, std::uint64_t key, TimeNs now);
  /// The worker says that it has received so many of the kind in this term. If one of them was
  /// lost, the count stays behind what was sent, whatever else is answered.
  void acknowledge(Work kind, std::uint64_t received, TimeNs now);
  /// The answer to a record; the next one's turn begins. Unknown numbers are ignored.
  void answered(Work kind, std::uint64_t number, TimeNs now);
  /// Closes are numbered by nobody: found by their key.
  void answered_key(Work kind, std::uint64_t key, TimeNs now);

  std::size_t open(Work kind) const { return of(kind).size(); }
  bool has(Work kind, std::uint64_t key) const;
  bool any() const;
  /// How many were sent in this term.
  std::uint64_t sent(Work kind) const { return sent_[index(kind)]; }
  /// By number, oldest first.
  const std::map<std::uint64_t, Outstanding>& of(Work kind) const { return open_[index(kind)]; }

  /// A new term: steps, pulls and grammars are forgotten and numbered from 1 again; closes stay,
  /// and have all their time again.
  void begin_term(TimeNs now);
  /// The scheduler itself did not run for so long: nobody is late by that.
  void forgive(TimeNs gap, TimeNs now);

  /// `heard`: last message of the worker. A worker that was not heard lately is not judged by what
  /// it has not answered: its heartbeats may be on the way.
  Verdict judge(TimeNs heard, TimeNs now, TimeNs worker_timeout) const;

 private:
  static constexpr std::size_t index(Work kind) { return static_cast<std::size_t>(kind); }
  void answered(Work kind, std::map<std::uint64_t, Outstanding>::iterator it, TimeNs now);
  void begin_turn(Work kind, TimeNs now);

  std::array<std::map<std::uint64_t, Outstanding>, kKindsOfWork> open_;
  std::array<std::uint64_t, kKindsOfWork> sent_{};
  std::array<std::uint64_t, kKindsOfWork> acknowledged_{};
  std::array<std::deque<TimeNs>, kKindsOfWork>
      sent_times_;  // of numbers acknowledged_ + 1 to sent_
};

}  // namespace baton
