// A step's rows, packed into one buffer for one upload. Pure host code but for the attention plan's
// knowledge of the device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "ipc/kv_layout.h"
#include "workers/model/gpu_decoder.h"
#include "workers/step_batch.h"

namespace baton {

/// Reused from step to step.
class GpuStepPacker {
 public:
  /// `geometry` is the pool's. `single_tokens`: the rows of prompt chunks are planned so, too.
  GpuStepPacker(const cuda::DecodeAttention& attention, const KvGeometry& geometry,
                bool single_tokens);

  struct Packed {
    GpuBatch batch;              // addresses in the device buffer; `chunks` is left to the caller
    std::size_t bytes = 0;       // to upload
    bool too_large = false;      // `capacity` did not hold it; nothing is usable
  };
  /// Packs into `host`, for a device buffer at `device`. With padded_rows > 0 a step of single tokens is
  /// filled up to so many rows, and every address depends on padded_rows alone.
  Packed pack(const RunStep& step, int padded_rows, std::byte* host, std::byte* device,
              std::size_t capacity);
  /// Whether the step consists of single tokens which are all sampled.
  static bool decodes_only(const RunStep& step);
  /// Chunks of the step packed last, for PrefillAttention::plan().
  const std::vector<cuda::AttentionRow>& chunks() const { return chunks_; }

  /// The step of padding alone with which a graph of so many rows is recorded.
  Packed pack_nothing(int padded_rows, std::byte* host, std::byte* device, std::size_t capacity);

 private:
  void order_rows(const RunStep& step);
  bool is_chunk(const BatchRow& row) const { return row.tokens.size() > 1 && !single_tokens_; }

  const cuda::DecodeAttention& attention_;
  const KvGeometry geometry_;
  const bool single_tokens_;
  std::vector<int> order_;      // rows of the step: chunks first, then single tokens
  std::vector<int> first_row_;  // of the step's row i in the packed order
  std::vector<cuda::AttentionRow> chunks_;
  std::vector<cuda::AttentionRow> singles_;
  cuda::DecodePlan plan_;
};

}  // namespace baton
