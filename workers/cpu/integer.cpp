#include "workers/cpu/integer.h"

namespace baton::cpu {

const IntegerKernels& integer_kernels(Isa isa) {
  const bool vnni =
      isa != Isa::avx2 && isa_supported(Isa::avx512) && __builtin_cpu_supports("avx512vnni");
  return vnni ? detail::kVnniIntegers : detail::kAvx2Integers;
}

}  // namespace baton::cpu
