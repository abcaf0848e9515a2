// Quantised weights from a checkpoint's layout to that of the kernels, on the device, at load time.
// All pointers are device memory; every call queues on `stream` and throws CudaError.
#pragma once

#include <cstddef>
#include <cstdint>

#include "workers/cuda/linear/quantized_layout.h"
#include "workers/cuda/types.h"

namespace baton::cuda {

/// The tensors of one quantised linear layer [out, in] as they are stored
/// (workers/model/dequantize.h has the formats).
struct QuantizedPart {
  enum class Layout : std::uint8_t { gptq, awq, fp8 } layout = Layout::gptq;
  enum class ScaleType : std::uint8_t { f32, f16, bf16 } scale_type = ScaleType::f16;
  int out = 0;
  int in = 0;
  const std::byte* weights =
      nullptr;  // gptq [in / 8, out] and awq [in, out / 8] of int32, fp8 [out, in]
  const std::uint32_t* zeros = nullptr;  // int4: [groups, out / 8]
  const std::byte* scales = nullptr;  // int4: [groups, out]; fp8: [out / block_rows, scale_columns]
  const std::int32_t* group = nullptr;  // int4: [in], the group of each input
  int zero_offset = 0;                  // gptq: what stored zero points lack
  int block_rows = 1;                   // fp8
  int block_columns = 1;
  int scale_columns = 1;
};

/// Which rows of a fused matrix a part's are: feature f becomes row `first` + f, or, interleaved,
/// eight rows of `first` + 16 i at a time.
struct PartRows {
  int first = 0;
  bool interleaved = false;
};

/// Writes the part's rows of `words`, `scales` and, where there are, `shared_scales`, which `to`
/// describes (its pointers to const are where they are) and which are zeroed first by the caller.
/// `nan` is set to 1 if there is a NaN among the weights, which the kernels would take for a
/// number.
void pack_part(const QuantizedPart& part, PartRows rows, const QuantizedWeight& to, int* nan,
               Stream stream);

/// Writes the part's rows of a bf16 matrix [.., part.in].
void dequantize_part(const QuantizedPart& part, PartRows rows, Bf16* to, Stream stream);

/// For benchmarks: random bits, of which those of `always` are set, or the same word everywhere.
void fill_random(std::uint32_t* to, std::size_t words, std::uint64_t seed, Stream stream,
                 std::uint32_t always = 0);
/// Of int4: odd numbers alone, so that with a zero point of 8 they are nought on average. If they
/// were not, all rows would become alike behind some layers, and take the same experts.
constexpr std::uint32_t kOddInt4 = 0x11111111;
void fill_words(std::uint32_t* to, std::size_t words, std::uint32_t value, Stream stream);

}  // namespace baton::cuda
