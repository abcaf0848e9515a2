// Where a request's time went, as its client is told.
#pragma once

#include <cstdint>
#include <string>

#include "ipc/timing.h"

namespace baton {

/// Up to the moment when a reply's last bytes are made: what comes after it no reply can tell.
struct ToldTiming {
  PartTimes spent{};
  std::uint32_t decode_steps = 0;
  TimeNs median_gap = 0;  // between two of them; 0: not known

  TimeNs total() const;
};

/// The value of a Server-Timing header: `read;dur=0.412, ..., total;dur=803.1`, in milliseconds.
/// Parts that took no time are left out.
std::string server_timing(const ToldTiming& timing);

/// {"total_ms":803.1,"read_ms":0.412,...}: all parts, which add up to the total.
std::string timing_object(const ToldTiming& timing);

}  // namespace baton
