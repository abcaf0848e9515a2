// Rows of a step on a GPU whose masks are found while its forward pass runs: drawn on the device
// when both are there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "workers/cuda/device.h"
#include "workers/execute/gpu_step.h"
#include "workers/model/gpu_decoder.h"
#include "workers/sampling/row_sampling.h"

namespace baton {

/// Keeps no row: one instance serves all steps. Memory is bounded; many rows go in several rounds.
class GpuLateRows {
 public:
  /// Everything must outlive this.
  GpuLateRows(GpuDecoder& decoder, GpuStepPacker& packer, const cuda::OwnedStream& stream);

  /// Queues the draws of `lines`, of the step that was queued last; its logits are still there.
  /// Waits for the masks, and for the device between two rounds. A row without a mask is a failure
  /// in `output`, and what the device says of it means nothing: its entry of `void_rows` is set.
  void draw(const RunStep& step, std::span<const GpuStepPacker::Line> lines, const MaskOfRow& mask,
            std::vector<bool>& void_rows, StepOutput& output);

 private:
  bool add(const BatchRow& row, const GpuStepPacker::Line& line, const RowMask& mask);
  void queue();

  GpuDecoder& decoder_;
  GpuStepPacker& packer_;
  const cuda::OwnedStream& stream_;
  // Twins: room for kMaxRows samples, then words
  cuda::PinnedMemory host_;
  cuda::DeviceMemory device_;
  std::size_t n_rows_ = 0;
  WordArea area_;
};

}  // namespace baton
