// Looking again instead of sleeping: a thread that sleeps must be woken, and on the way of a
// message through a process that costs more than everything else (ten to two hundred microseconds
// each time where the processor has halted meanwhile, as virtual ones do). While there is work, and
// for a time after it, the threads of a process may look again instead.
#pragma once

#include "ipc/types.h"

namespace baton {

/// For how long the threads of this process look again after the last work; 0, as at the start:
/// they sleep at once. Once, before the threads.
void stay_awake_for(TimeNs after_work);

/// The main loop, in every round in which the process has work or waits for an answer.
void work_goes_on(TimeNs now);

/// One for each thread that waits.
class Spin {
 public:
  /// Whether to look once more before sleeping; gives way to other threads that can run.
  bool again() const;
  /// Something came, perhaps work: looks until the main loop, which may sleep, has seen it.
  void heard();

 private:
  TimeNs until_ = 0;
};

}  // namespace baton
