// Quantised layers on their way to a GPU, on the host: whole numbers with scales in the order in
// which the kernels multiply them (quantized_layout.h), or rows as fp32. What a block of a format
// means is said where CPUs read it (grouped_matrix(), dequantize_rows()). Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "workers/cpu/grouped.h"
#include "workers/cpu/thread_pool.h"
#include "workers/cuda/linear/quantized_load.h"
#include "workers/model/checkpoint_reader.h"
#include "workers/model/cut.h"
#include "workers/model/gpu_format.h"

namespace baton {

/// Some rows and columns of a matrix of whole numbers, and which rows of a fused one they become.
struct WholePart {
  const cpu::GroupedMatrix* from = nullptr;
  Slice rows;
  Slice columns;
  cuda::PartRows at;
};

/// Writes the words and the scales of tiles [tiles.first, tiles.end()) of a matrix with `in` inputs
/// in int4 or int8, every one of them: rows of no part become noughts. Groups of the parts are the
/// format's. Throws ModelError where a number less its zero point is none of eight bits.
void pack_tiles(std::span<const WholePart> parts, const LinearFormat& format, int in,
                const Slice& tiles, std::uint32_t* words, std::uint32_t* scales);

/// Rows of a quantised layer as fp32, some at a time, with the bits that CPUs widen it to.
class WideRows {
 public:
  /// `source` outlives it.
  WideRows(const LinearSource& source, const Quantization& quantization, cpu::ThreadPool& pool);
  /// Rows [first, first + count) to `to`, [count, columns]. Of 4-bit layers both are multiples of
  /// 8.
  void read(std::int64_t first, std::int64_t count, float* to);

 private:
  const LinearSource& source_;
  const Quantization& quantization_;
  cpu::ThreadPool& pool_;
  std::optional<cpu::GroupedMatrix> made_;  // of a format that is read as a whole
};

}  // namespace baton
