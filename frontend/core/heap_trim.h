// When the heap's free memory goes back to the kernel: behind large requests, which leave holes of
// hundreds of MiB that nothing fills again. Pure.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ipc/types.h"

namespace baton {

class HeapTrim {
 public:
  /// Looked at once a second. `large_bytes`: of large requests since the start; `large_at_work`:
  /// some are being read; `open`: requests that are not over. True: now.
  bool due(std::uint64_t large_bytes, bool large_at_work, std::size_t open, TimeNs now) {
    if (large_bytes != seen_ || large_at_work) {
      seen_ = large_bytes;
      worked_at_ = now;
      after_work_ = at_rest_ = true;
    }
    if (now - worked_at_ < kQuiet) return false;
    // Prompts of open requests are given back when these are over: then once more.
    const bool now_due = after_work_ || (at_rest_ && open == 0);
    after_work_ = false;
    if (open == 0) at_rest_ = false;
    return now_due;
  }

 private:
  static constexpr TimeNs kQuiet = 2 * kSecond;

  std::uint64_t seen_ = 0;
  TimeNs worked_at_ = 0;
  bool after_work_ = false;
  bool at_rest_ = false;
};

}  // namespace baton
