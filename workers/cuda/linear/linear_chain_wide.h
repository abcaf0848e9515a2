// The layer kernel (linear_chain.h) for 65 to 128 rows.
#pragma once

#include "workers/cuda/linear/linear_chain.h"

namespace baton::cuda {

/// Whether wide_chain() takes these GEMMs, which the kernel for fewer rows takes.
bool has_wide_chain(const ChainGemm* gemms, int n);

/// Of the chains' workspace, behind ChainSquares.
std::size_t wide_workspace_bytes();

/// As linear_chain().
void wide_chain(const ChainGemm* gemms, int n, int rows, const ChainBuffers& buffers,
                Stream stream);

}  // namespace baton::cuda
