// How long steps run on a stream, and how long it is idle between them, by the device's clock.
#pragma once

#include <array>
#include <cstddef>

#include "workers/cuda/device.h"

namespace baton::cuda {

/// begin() and end() around each step's operations; take() once for each, in order, after its end
/// has come. Events cost about a microsecond of the stream each.
class StepTimer {
 public:
  void begin(Stream stream) { ring_[begun_++ % kRing].begin.record(stream); }
  void end(Stream stream) { ring_[(begun_ - 1) % kRing].end.record(stream); }

  struct Times {
    float idle_us = 0;  // since the end of the step before; 0 for the first
    float run_us = 0;
  };
  Times take() {
    const std::size_t i = taken_++;
    const Step& step = ring_[i % kRing];
    Times times;
    if (i > 0) times.idle_us = OwnedEvent::microseconds(ring_[(i - 1) % kRing].end, step.begin);
    times.run_us = OwnedEvent::microseconds(step.begin, step.end);
    return times;
  }

 private:
  /// One that ended, two on the device, and one to spare.
  static constexpr std::size_t kRing = 4;
  struct Step {
    OwnedEvent begin{true};
    OwnedEvent end{true};
  };
  std::array<Step, kRing> ring_;
  std::size_t begun_ = 0;
  std::size_t taken_ = 0;
};

}  // namespace baton::cuda
