// RUN_DIR/NAME.timing: where the time of a front end's last requests went, for baton-ctl. A file of
// slots, written in turns, so that it outlives whoever wrote it: `explain` needs no process. A slot
// that was half written when its writer died, or that another version wrote, counts as empty.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "ipc/process.h"
#include "ipc/status.h"
#include "ipc/timing.h"

namespace baton {

constexpr std::size_t kTimingSlots = 10'000;
constexpr std::size_t kTimingSlotBytes = 1536;  // 15 MB in all, once all are used

class TimingRing {
 public:
  /// Goes on behind what the file holds; makes it (0600) if it is not there. One writer a file.
  static Result<TimingRing> open(const std::string& path, std::size_t slots = kTimingSlots);

  /// Costs one write of the record's size. Of one that is too large, the moments in the middle are
  /// left out. False: the file took it not, or not whole.
  bool add(ExplainedRequest request);

 private:
  TimingRing(UniqueFd fd, std::size_t slots, std::uint64_t next)
      : fd_(std::move(fd)), slots_(slots), next_(next) {}
  UniqueFd fd_;
  std::size_t slots_ = 0;
  std::uint64_t next_ = 1;  // number of the next record
  std::string bytes_;
};

/// Calls `take` for each record of the file, with its number; they come in no order.
Status read_timings(const std::string& path,
                    const std::function<void(std::uint64_t, const ExplainedRequest&)>& take);

}  // namespace baton
