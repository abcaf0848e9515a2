// The kernels on 512-bit vectors, taken at run time where the CPU has them.
// clang-format off
#include "workers/cpu/vec16_avx512.h"
// clang-format on
#include "workers/cpu/attention_impl.h"
#include "workers/cpu/grouped_impl.h"
#include "workers/cpu/linear_impl.h"
#include "workers/cpu/rowwise_impl.h"

namespace baton::cpu::detail {

const Kernels kAvx512Kernels = {
    "avx512", linear,     attention,        rms_norm,   rope,     widen_bf16, exp,        row_max,
    exp_sums, collect_ge, rope_interleaved, layer_norm, activate, soft_cap,   add_scaled,
};

}  // namespace baton::cpu::detail
