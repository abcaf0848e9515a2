// The layer kernel (linear_chain.h) for quantised weights.
#pragma once

#include "workers/cuda/linear/linear_chain.h"

namespace baton::cuda {

/// As chain_rows(), of GEMMs all of which are quantised: 0 unless they are so in the same way.
int quantized_chain_rows(const ChainGemm* gemms, int n);

/// As linear_chain().
void quantized_chain(const ChainGemm* gemms, int n, int rows, const ChainBuffers& buffers,
                     Stream stream);

}  // namespace baton::cuda
