// The layer kernel (linear_chain.h) for quantised weights.
#pragma once

#include "workers/cuda/linear_chain.h"

namespace baton::cuda {

/// As chain_rows(): at most so many rows. All links have the same format and as many scales a block.
int quantized_chain_rows(const ChainLink* links, int n);

/// As linear_chain().
void quantized_chain(const ChainLink* links, int n, int rows, void* state, void* next_state,
                     Stream stream);

}  // namespace baton::cuda
