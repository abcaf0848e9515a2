// Quantised weights dequantised to fp32, the formats' arithmetic without rounding but fp32's own.
// Pure: shapes and indices are checked by whoever fills the structures in (quantized_reader.cpp).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "workers/cpu/packing.h"
#include "workers/cpu/thread_pool.h"
#include "workers/model/ggml_blocks.h"

namespace baton {

/// A linear layer [out, in] of 4-bit weights: w[o][i] = (q[o][i] - zero[g][o]) * scale[g][o], g the
/// group of input i. Eight values lie in one little-endian int32; `out` and `in` are multiples
/// of 8.
struct Int4Weight {
  const std::byte* weights = nullptr;  // int32: gptq [in / 8, out], awq [in, out / 8]
  const std::byte* zeros = nullptr;    // int32: [groups, out / 8]
  cpu::MatrixSource scales;            // [groups, out]
  std::vector<std::int32_t> group;     // [in], each in [0, groups)
  std::int64_t out = 0;
  std::int64_t in = 0;
};

/// Rows [first, first + rows) of [out, in] are asked for; `rows` < 0: all. Of 4-bit layers both are
/// multiples of 8 (outputs).
struct RowRange {
  std::int64_t first = 0;
  std::int64_t rows = -1;
};

/// GPTQ (Frantar et al., arXiv:2210.17323) as AutoGPTQ stores it: input 8 k + j of an output is
/// nibble j (from the lowest) of word k; zero points likewise along the outputs. The old format
/// ("gptq") stores a zero point less one, modulo 16 (`zero_offset` 1), "gptq_v2" as it is (0).
/// Writes the rows that are asked for, row-major, to `result`.
void dequantize_gptq(const Int4Weight& weight, int zero_offset, cpu::ThreadPool& pool,
                     float* result, RowRange range = {});

/// AWQ (Lin et al., arXiv:2306.00978) as AutoAWQ's GEMM version stores it: words run along the
/// outputs, and outputs 8 k .. 8 k + 7 lie in nibbles 0, 4, 1, 5, 2, 6, 3, 7 of word k, zero points
/// too. Writes as above.
void dequantize_awq(const Int4Weight& weight, cpu::ThreadPool& pool, float* result,
                    RowRange range = {});

/// FP8 weights [out, in] with one scale for every block of outputs and inputs.
struct Fp8Weight {
  const std::byte* weights = nullptr;  // E4M3 (finite: 0x7F and 0xFF are NaN, the largest is 448)
  cpu::MatrixSource scales;            // [ceil(out / block_rows), ceil(in / block_columns)]
  std::int64_t out = 0;
  std::int64_t in = 0;
  std::int64_t block_rows = 0;
  std::int64_t block_columns = 0;
  std::string name = {};  // for messages: file and tensor
};

/// A matrix [out, in] of a GGUF file's blocks.
struct BlockWeight {
  const std::byte* data = nullptr;
  GgmlType type = GgmlType::q8_0;
  std::int64_t out = 0;
  std::int64_t in = 0;
  int pair_rows = 0;  // TensorView::pair_rows
  std::string name = {};

  /// Where row `r` is stored.
  const std::byte* row(std::int64_t r) const;
};

/// Where row `r` lies among rows of which every `pair_rows` are a head's whose halves alternate.
std::int64_t paired_row(std::int64_t r, int pair_rows);

/// Writes the rows that are asked for, row-major, to `result`.
void dequantize_blocks(const BlockWeight& weight, cpu::ThreadPool& pool, float* result,
                       RowRange range = {});

/// The value of an E4M3 number.
float fp8_number(unsigned bits);

/// w = value * scale (what some checkpoints call scale_inv is this factor, too). Writes the rows
/// that are asked for, row-major, to `result`.
void dequantize_fp8(const Fp8Weight& weight, cpu::ThreadPool& pool, float* result,
                    RowRange range = {});

}  // namespace baton
