// The kernels on 256-bit vectors: the base that every supported CPU runs (x86-64-v3).
// clang-format off
#include "workers/cpu/vec16_avx2.h"
// clang-format on
#include "workers/cpu/attention_impl.h"
#include "workers/cpu/grouped_impl.h"
#include "workers/cpu/linear_impl.h"
#include "workers/cpu/rowwise_impl.h"

namespace baton::cpu::detail {

const Kernels kAvx2Kernels = {
    "avx2",   linear,     attention,        rms_norm,   rope,     widen_bf16, exp,        row_max,
    exp_sums, collect_ge, rope_interleaved, layer_norm, activate, soft_cap,   add_scaled,
};

}  // namespace baton::cpu::detail
