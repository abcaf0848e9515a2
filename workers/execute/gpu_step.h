// A step's rows, packed into one buffer for one upload. Pure host code but for the attention plan's
// knowledge of the device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "ipc/kv_layout.h"
#include "workers/cuda/attention/travel_plan.h"
#include "workers/execute/chunk_choice.h"
#include "workers/model/gpu_decoder.h"
#include "workers/protocol/step_batch.h"
#include "workers/sampling/gpu_edits.h"
#include "workers/sampling/row_sampling.h"

namespace baton {

/// Offsets of pools as kernels count them.
constexpr std::int64_t pool_elements(std::int64_t bytes) {
  return bytes / std::int64_t{sizeof(cuda::Bf16)};
}

/// Where the pools lie that a step's tables name (PoolNumbers), by number.
struct GpuPools {
  std::vector<std::int64_t> offsets;  // from the own pool on, in elements
  /// The same offsets, as the GPU sees them that holds the pool, where it is among `others`.
  std::vector<std::int64_t> held;
  /// Who attends to it: 0 the own device, which reads what lies elsewhere over the link; else one
  /// of `others`, counted from 1.
  std::vector<int> device;
  /// One entry a pool: two pools that lie on one GPU for rank 0 may lie on two for another rank.
  struct Other {
    const cuda::OtherDevice* device = nullptr;
    std::uint32_t pool = 0;
  };
  std::vector<Other> others;
  std::int64_t in_place_keys = 0;  // elsewhere, of a step that reads all of them over the link
};

/// The same with its addresses moved from an upload at `from` to one at `to`.
cuda::TravelPart moved(const cuda::TravelPart& part, const std::byte* from, const std::byte* to);

/// Reused from step to step.
class GpuStepPacker {
 public:
  /// `geometry` is the pool's. The rows of prompt chunks are planned as single tokens where the
  /// decoder has no kernel for chunks.
  GpuStepPacker(const GpuDecoder& decoder, const KvGeometry& geometry);

  /// Partial results of a step that are on their way between devices. No piece crosses from one
  /// pool to another: chunks of 2048 tokens that alternate between two leave room for 16 rows of
  /// 130,000 tokens, chunks of 256 for four. Rows that find none stay in place.
  static constexpr int kTravelSlots = 2048;

  struct Packed {
    GpuBatch batch;  // addresses in the device buffer; `chunks` and `travel` are left to the caller
    /// Without parts where nothing travels. All addresses are in the own device's buffer; workspace
    /// and event are left to the caller.
    cuda::TravelWork travel;
    std::int64_t keys_elsewhere = 0;  // of single tokens, where others could attend to them
    std::size_t bytes = 0;            // to upload
    bool too_large = false;           // `capacity` did not hold it; nothing is usable
  };
  /// Packs into `host`, for a device buffer at `device`. With padded_rows > 0 a step of single
  /// tokens is filled up to so many rows, and every address depends on padded_rows alone. With
  /// `pools` tables name blocks of several: such a step is never filled up, and chunks whose keys
  /// cannot be gathered are planned as single tokens.
  Packed pack(const RunStep& step, int padded_rows, std::byte* host, std::byte* device,
              std::size_t capacity, const GpuPools* pools = nullptr);
  /// Whether the decoder's attention can be cut over devices at all.
  bool may_travel() const;
  /// Whether the host must draw or rank for `row`: the device's sampler cannot.
  static bool needs_host(const BatchRow& row);
  /// A line of logits.
  struct Line {
    int at = 0;  // among the wanted lines of the step
    LogitsLine line;
  };
  /// Those of the step packed last that the host finishes, in order.
  const std::vector<Line>& host_lines() const { return host_lines_; }
  /// Those that are drawn when their grammar's mask is there: none where the step has more lines
  /// than the decoder holds at a time.
  const std::vector<Line>& late_lines() const { return late_lines_; }
  /// What the device is told of a row that it draws for. False if `area` has no room for the row's
  /// lists. `may_stop`: below min_tokens, too.
  bool draw_on_device(const BatchRow& row, const Line& line, WordArea& area,
                      cuda::SampleRow& sample, bool may_stop = false);
  /// By row of the step packed last: whether the host draws or ranks. Also where lists had no room.
  const std::vector<bool>& on_host() const { return on_host_; }
  /// So many lines, from the first on, hold all that the device tells log probabilities of.
  std::size_t told_lines() const { return told_lines_; }
  /// Whether the step consists of single tokens which are all sampled.
  static bool decodes_only(const RunStep& step);
  /// Chunks of the step packed last, for PrefillAttention::plan().
  const std::vector<cuda::AttentionRow>& chunks() const { return chunks_; }

  /// The step of padding alone with which a graph of so many rows is recorded.
  Packed pack_nothing(int padded_rows, std::byte* host, std::byte* device, std::size_t capacity);

 private:
  void order_rows(const RunStep& step);
  /// Parts of the upload, on the host.
  struct RowPlaces {
    std::int32_t* tokens = nullptr;
    std::int32_t* positions = nullptr;
    std::int64_t* slots = nullptr;  // [groups][rows]
    std::size_t rows = 0;
    std::int32_t* table = nullptr;  // [groups][entries]
    std::size_t entries = 0;
    int table_index = 0;  // what the table's begin is called in plans
  };
  void place_rows(const RunStep& step, const RowPlaces& to);
  void place_tokens(const BatchRow& row, std::size_t first, const RowPlaces& to) const;
  std::size_t groups() const { return geometry_.groups.count; }
  cuda::SampleRow sample_of(const Line& line) const;
  std::size_t pack_samples(const RunStep& step, bool keeps_logits, cuda::SampleRow* samples,
                           std::int32_t* wanted, WordArea& area, Packed& packed);
  void find_chunks(const RunStep& step, bool pools);
  void plan_singles(const cuda::DecodeAttention& attention,
                    std::span<const cuda::AttentionRow> rows, int padded_rows,
                    cuda::DecodeItem* items, std::int32_t* n_items, cuda::DecodeWork& work);
  void plan_travel(const GpuPools& pools, const std::int32_t* tables);

  const cuda::DecodeAttention& attention_;
  const cuda::DecodeAttention* near_attention_;  // null: layers have one window
  const KvGeometry geometry_;
  const cuda::PrefillAttention* prefill_;  // null: rows of chunks are single tokens
  const std::int64_t most_gathered_keys_;  // of a step's chunks
  std::vector<ChunkRow> lengths_;          // reused
  std::vector<bool> is_chunk_;             // rows of the step at hand that are planned as chunks
  const std::size_t max_wanted_;
  std::vector<int> order_;      // rows of the step: chunks first, then single tokens
  std::vector<int> first_row_;  // of the step's row i in the packed order
  std::vector<cuda::AttentionRow> chunks_;
  std::vector<cuda::AttentionRow> singles_;
  cuda::DecodePlan plan_;
  cuda::TravelPlan travel_;
  GpuEdits edits_;
  std::vector<Line> host_lines_;
  std::vector<Line> late_lines_;
  std::vector<bool> on_host_;
  std::size_t told_lines_ = 0;
};

}  // namespace baton
