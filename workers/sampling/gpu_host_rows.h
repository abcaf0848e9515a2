// The lines of logits of one step on a GPU that the host finishes: what the device's sampler lacks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "workers/cuda/device.h"
#include "workers/sampling/row_sampling.h"

namespace baton {

/// Of one step at a time. Their logits are copied to page-locked memory in stream order. It holds a
/// bounded number of lines: when it is full, those in it are finished before the next is copied,
/// which waits for the device.
class GpuHostRows {
 public:
  /// `sampling` and `stream` must outlive this; the first may be shared with others on the same
  /// thread.
  GpuHostRows(std::uint32_t vocab, RowSamplingPool& sampling, const cuda::OwnedStream& stream);

  /// A step begins; it stays valid until finish().
  void begin(const RunStep& step);
  /// Queues the copy of the next line, `logits` being [vocab] in device memory. In order of the
  /// step.
  void copy(LogitsLine line, const float* logits);
  /// What the lines gave; `tokens` is empty if there were none. The stream must have passed their
  /// copies.
  const StepOutput& finish();

 private:
  void finish_held();

  const std::size_t vocab_;
  RowSamplingPool& sampling_;
  const cuda::OwnedStream& stream_;
  const std::size_t capacity_;  // lines
  cuda::PinnedMemory memory_;   // [capacity_, vocab]
  const RunStep* step_ = nullptr;
  std::vector<LogitsLine> held_;  // in memory_
  StepOutput done_;               // of lines before those
};

}  // namespace baton
