// Where a block of a table lies.
#pragma once

#include <cstdint>

#include "workers/pool/pool_ids.h"

namespace baton::cuda {

/// From block 0 of the own pool on, in elements. kPools: the number of the block's pool is in its
/// id; else `pool_offsets` is not looked at.
template <bool kPools>
__device__ __forceinline__ std::int64_t offset_of_block(std::int32_t id, std::int64_t block_stride,
                                                        const std::int64_t* pool_offsets) {
  if constexpr (!kPools) return id * block_stride;
  constexpr std::int32_t kBlock = (std::int32_t{1} << kPoolBlockBits) - 1;
  return pool_offsets[id >> kPoolBlockBits] + (id & kBlock) * block_stride;
}

}  // namespace baton::cuda
