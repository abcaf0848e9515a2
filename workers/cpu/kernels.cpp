#include "workers/cpu/kernels.h"

namespace baton::cpu {
namespace {

bool has_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
         __builtin_cpu_supports("bmi2");
}

bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

}  // namespace

bool isa_supported(Isa isa) { return isa == Isa::avx512 ? has_avx512() : has_avx2(); }

const Kernels& kernels(Isa isa) {
  if (isa == Isa::best) isa = has_avx512() ? Isa::avx512 : Isa::avx2;
  return isa == Isa::avx512 ? detail::kAvx512Kernels : detail::kAvx2Kernels;
}

}  // namespace baton::cpu
