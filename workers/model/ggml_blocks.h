// The blocks of quantised tensors in GGUF files, as whole numbers with scales. Pure.
#pragma once

#include <cstddef>
#include <cstdint>

#include "text/gguf/gguf_file.h"

namespace baton {

/// Numbers of a row that share a scale.
int ggml_group(GgmlType type);
/// Whether w = q * scale + offset; else w = q * scale.
bool ggml_has_offset(GgmlType type);
/// Whether the whole numbers are four bits: [-8, 7], or [0, 15] with an offset. Else they are
/// eight.
bool ggml_four_bits(GgmlType type);

/// Where a row goes: `q` has a place for every number, the others for every group.
struct GgmlRow {
  std::int8_t* q = nullptr;
  float* scale = nullptr;
  float* offset = nullptr;  // of types that have one
};

/// Decodes `numbers` weights, a whole number of blocks, of a quantised type. Scales and offsets are
/// rounded to fp32 once, as gguf's Python package does, whose values come of q * scale (+ offset).
void decode_ggml(GgmlType type, const std::byte* blocks, std::int64_t numbers, GgmlRow to);

}  // namespace baton
