// Block ids of a table that leads to several pools on GPUs: the number of the pool stands in the
// upper bits, the block in the lower ones. The own pool is number 0, so that its blocks are called
// as ever. Pure; device code includes it, too.
#pragma once

#include <cstdint>

namespace baton {

constexpr int kPoolBlockBits = 24;
/// Of one pool that others read so.
constexpr std::uint32_t kMostPoolBlocks = std::uint32_t{1} << kPoolBlockBits;
/// Ids stay positive as signed numbers: that is what kernels have.
constexpr std::uint32_t kMostPools = std::uint32_t{1} << (31 - kPoolBlockBits);

}  // namespace baton
