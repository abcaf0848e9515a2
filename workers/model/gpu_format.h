// How a model's linear layers are kept on a GPU: as they are quantised, or in bf16. Pure and free
// of CUDA.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "workers/cuda/layer/expert_layout.h"
#include "workers/cuda/linear/quantized_layout.h"
#include "workers/model/config.h"
#include "workers/model/cut.h"
#include "workers/model/gpu_cut.h"
#include "workers/model/safetensors.h"

namespace baton {

/// Of one matrix, fused out of several layers where the kernels want it so (q, k and v; gate and
/// up).
struct LinearFormat {
  cuda::WeightFormat format = cuda::WeightFormat::bf16;
  int groups = 1;  // of inputs that share a scale
  int group_shift = 31;
  /// Inputs are taken in another order than x has them in, so that groups are contiguous (GPTQ's
  /// act-order).
  bool ordered = false;
  /// Eight features from a multiple of 8 on have the same scales (blocks of FP8).
  bool shared_scales = false;
};

/// Of an expert's matrices, each fused as above.
struct ExpertParts {
  LinearFormat gate_up, down;
};

/// How a layer's experts are kept: in MXFP4 if all their matrices are stored so; in FP8 or int4 if
/// they are stored so (GPTQ, AWQ, packed integers) and each unit of 64 inputs has one scale, also
/// of a rank; else in bf16. Without a checkpoint as the configuration says.
cuda::ExpertFormat gpu_expert_format(const ModelConfig& config, const Checkpoint* checkpoint,
                                     int layer, const GpuCut& cut);
/// The formats in which one expert's matrices are brought to a stage: of int4 in int4, else in
/// bf16.
ExpertParts gpu_expert_parts(const ModelConfig& config, const Checkpoint* checkpoint, int layer,
                             const GpuCut& cut);

/// The format of the matrix whose rows are those of the layers `parts` (names without ".weight")
/// and which has `in` inputs. Quantised are matrices of which all parts are stored so, with groups
/// of a power of two inputs, at least 32 (blocks of FP8: at least 64), or one group for all; parts
/// that share their inputs must share their order. Of formats that become whole numbers with scales
/// (GGUF's, packed integers, GPTQ of eight bits) those of four bits with zero points and those of
/// eight bits without; of a matrix whose parts differ in that all become eight bits. Groups of
/// integers that a rank has a part of are kept as smaller ones with the same scale. Everything else
/// is bf16. Without a checkpoint (`load_format: dummy`) every part counts as quantised.
LinearFormat gpu_linear_format(const ModelConfig& config, const Checkpoint* checkpoint,
                               std::span<const std::string> parts, int in);
/// The same of a rank's part, which has some of the inputs.
LinearFormat gpu_linear_format(const ModelConfig& config, const Checkpoint* checkpoint,
                               std::span<const std::string> parts, int in, const Slice& inputs);

/// The groups of some inputs, counted from the least of them.
std::vector<std::int32_t> groups_within(std::span<const std::int32_t> all, const Slice& inputs);

/// The inputs by group, in order within each: order[i] is the input that comes at i. None where
/// input order[i] is not in group i >> group_shift: then groups are not of one size.
std::optional<std::vector<std::int32_t>> order_by_group(std::span<const std::int32_t> group,
                                                        int group_shift);

}  // namespace baton
