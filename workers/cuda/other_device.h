// A GPU beside the worker's own, whose kernels this process launches, too: since keys of its rows
// lie there, in a pool of another worker (attention/travel.h). Makes a context of this process on
// it, which takes some hundred megabytes there.
#pragma once

#include <cstddef>
#include <memory>

#include "workers/cuda/device.h"

namespace baton::cuda {

/// Made by the pull thread, used by the step thread, and never given back: what it takes, it takes
/// once. Whatever is called, the calling thread's GPU stays the same one.
class OtherDevice {
 public:
  /// Kernels of `ordinal` are to reach the memory of `own`; the same twice is another stream of it.
  /// Throws CudaError.
  OtherDevice(int ordinal, int own, std::size_t input_bytes);
  ~OtherDevice();
  OtherDevice(const OtherDevice&) = delete;
  OtherDevice& operator=(const OtherDevice&) = delete;

  int ordinal() const { return ordinal_; }
  /// Where a step's upload lies here, as it lies on the own device.
  std::byte* inputs() const { return inputs_.data(); }
  /// Queues the upload of page-locked memory. What was queued before still finds the one before.
  void upload(const std::byte* inputs, std::size_t bytes) const;

  /// Throws CudaError if the device has failed.
  void look() const;
  /// What `queue(stream)` queues here comes behind `behind`, and wait_for() waits for it.
  template <typename Queue>
  void run(const OwnedEvent& behind, Queue&& queue) const {
    const OnDevice on(ordinal_);
    behind.hold(stream_->get());
    queue(stream_->get());
    ended_->record(stream_->get());
  }
  /// `stream` of the own device waits for what was queued last.
  void wait_for(Stream stream) const { ended_->hold(stream); }

 private:
  int ordinal_;
  // Made and destroyed while the device is the thread's.
  std::unique_ptr<OwnedStream> stream_;
  std::unique_ptr<OwnedEvent> ended_;
  DeviceMemory inputs_;
};

}  // namespace baton::cuda
