// Which bytes of a quantised layer's stored tensors make some of its rows and columns: what a rank
// brings to its GPU. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "workers/model/checkpoint_reader.h"
#include "workers/model/config.h"
#include "workers/model/cut.h"

namespace baton {

/// `count` rows of `bytes` each, `pitch` bytes apart.
struct StoredRows {
  const std::byte* from = nullptr;
  std::size_t bytes = 0;
  std::size_t pitch = 0;
  std::size_t count = 0;
  std::size_t all() const { return bytes * count; }
};

/// A quantised layer of its own: as LinearSource's, in int4 or FP8, with what it needs alone.
struct StoredPart {
  std::int64_t out = 0;
  std::int64_t in = 0;
  StoredRows weights;
  StoredRows zeros;  // int4
  StoredRows scales;
  cpu::ElementType scale_type = cpu::ElementType::f32;
  std::vector<std::int32_t> group;  // int4: of each input
  std::int64_t block_rows = 1;      // FP8
  std::int64_t block_columns = 1;
  std::int64_t scale_columns = 1;
};

/// Throws ModelError where numbers that are stored together, or have a scale together, would have
/// to be parted. The layer must be in int4 or FP8; the bytes are the checkpoint's.
StoredPart stored_part(const LinearSource& layer, QuantMethod method, const Slice& rows,
                       const Slice& columns);

}  // namespace baton
