// The matrix instruction of kernels whose left operand lies in registers, and how its right one
// gets there.
#pragma once

#include <cstdint>

namespace baton::cuda {

/// c += a b, a [16, 16], b [16, 8], in bf16 with fp32 sums.
__device__ __forceinline__ void mma(float (&c)[4], std::uint32_t a0, std::uint32_t a1,
                                    std::uint32_t a2, std::uint32_t a3, std::uint32_t b0,
                                    std::uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

/// The right operand of two instructions (32 of k) from shared memory: lane l's address is that of
/// row l % 8, k from 8 (l / 8) on.
__device__ __forceinline__ void load_inputs(std::uint32_t at, std::uint32_t* b) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(b[0]), "=r"(b[1]), "=r"(b[2]), "=r"(b[3])
               : "r"(at)
               : "memory");
}

/// Likewise where a row of shared memory is all outputs of one k: lane l's address is that of k =
/// l.
__device__ __forceinline__ void load_turned(std::uint32_t at, std::uint32_t* b) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(b[0]), "=r"(b[1]), "=r"(b[2]), "=r"(b[3])
               : "r"(at)
               : "memory");
}

}  // namespace baton::cuda
