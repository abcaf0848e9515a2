#include "workers/model/gpu_format.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <numeric>

#include "workers/model/checkpoint_reader.h"

namespace baton {
namespace {

using cuda::WeightFormat;

constexpr int kNoShift = 31;  // every input is in group 0
constexpr int kUnitShift = std::countr_zero(static_cast<unsigned>(cuda::kExpertUnit));

/// The groups of a part's inputs as stored; empty where they are consecutive by the format. None
/// where the tensor is not what it should be, which the reader will say.
std::optional<std::vector<std::int32_t>> stored_groups(const Quantization& q,
                                                       const Checkpoint& checkpoint,
                                                       const std::string& part, int in) {
  const TensorView* view = checkpoint.find(part + ".g_idx");
  if (q.method != QuantMethod::gptq || (view == nullptr && !q.act_order)) {
    return std::vector<std::int32_t>();
  }
  if (view == nullptr || view->dtype != "I32" ||
      view->bytes != static_cast<std::uint64_t>(in) * 4) {
    return std::nullopt;
  }
  std::vector<std::int32_t> group(static_cast<std::size_t>(in));
  std::memcpy(group.data(), view->data, view->bytes);
  return group;
}

bool consecutive(std::span<const std::int32_t> group, int shift) {
  for (std::size_t i = 0; i < group.size(); ++i) {
    if (group[i] != static_cast<std::int32_t>(i >> shift)) return false;
  }
  return true;
}

/// The size of groups that a part of the inputs is kept in. Where it begins within a group of
/// `size` and goes beyond it, groups are smaller, and several have one scale: the largest power of
/// two at which it begins, or 0 if that is below 32.
int finer(int size, const Slice& inputs) {
  if (size == 0 || inputs.first % size == 0 || inputs.first / size == (inputs.end() - 1) / size) {
    return size;
  }
  if (!std::has_single_bit(static_cast<unsigned>(size))) return 0;
  const int found = 1 << std::countr_zero(static_cast<unsigned>(inputs.first));
  return found >= 32 ? found : 0;
}

/// Whether all parts' groups are of `size` inputs side by side.
bool side_by_side(const Quantization& q, const Checkpoint& checkpoint,
                  std::span<const std::string> parts, int in, int size) {
  return std::all_of(parts.begin(), parts.end(), [&](const std::string& part) {
    const auto group = stored_groups(q, checkpoint, part, in);
    return group &&
           (group->empty() || consecutive(*group, std::countr_zero(static_cast<unsigned>(size))));
  });
}

/// Whether the inputs of a quantised matrix need an order of their own; none: there is none that
/// serves.
std::optional<bool> needs_order(const Quantization& q, const Checkpoint& checkpoint,
                                std::span<const std::string> parts, int in, int shift,
                                const Slice& inputs) {
  std::vector<std::int32_t> first;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    auto group = stored_groups(q, checkpoint, parts[i], in);
    if (!group || (i > 0 && *group != first)) return std::nullopt;
    first = std::move(*group);
  }
  if (first.empty()) return false;
  first = groups_within(first, inputs);
  if (consecutive(first, shift)) return false;
  if (!order_by_group(first, shift)) return std::nullopt;
  return true;
}

/// Formats that become whole numbers with scales on the host (cpu::GroupFormat).
bool becomes_whole(const ModelConfig& c) {
  const Quantization& q = c.quantization;
  return c.gguf || q.method == QuantMethod::packed || q.method == QuantMethod::nvfp4 ||
         (q.method == QuantMethod::gptq && q.bits == 8);
}

std::optional<cpu::GroupedType> whole_type(const ModelConfig& c, const Checkpoint* checkpoint,
                                           const std::string& part, int in) {
  const Quantization& q = c.quantization;
  if (checkpoint != nullptr) return grouped_type(q, *checkpoint, part, in);
  if (c.gguf || q.method == QuantMethod::nvfp4) return std::nullopt;
  const bool four = q.bits == 4;
  const cpu::Second second = four || !q.symmetric ? cpu::Second::zero : cpu::Second::none;
  return cpu::GroupedType{four ? cpu::WeightType::int4 : cpu::WeightType::int8,
                          {q.group == 0 ? in : q.group, false, second}};
}

/// Whether all zero points of a GPTQ layer of eight bits are the middle: then there are none.
bool zeros_in_the_middle(const Quantization& q, const Checkpoint* checkpoint,
                         const std::string& part) {
  if (q.method != QuantMethod::gptq || checkpoint == nullptr) return false;
  const TensorView* zeros = checkpoint->find(part + ".qzeros");
  const auto middle = static_cast<std::byte>(128 - q.zero_offset);
  return zeros != nullptr && std::all_of(zeros->data, zeros->data + zeros->bytes,
                                         [middle](std::byte b) { return b == middle; });
}

/// What a part is kept in on a GPU; bf16: it is not.
WeightFormat kept_as(const ModelConfig& c, const Checkpoint* checkpoint, const std::string& part,
                     const cpu::GroupedType& type) {
  const cpu::Second second = type.format.second;
  if (type.type == cpu::WeightType::int4) {
    return second == cpu::Second::zero ? WeightFormat::int4 : WeightFormat::bf16;
  }
  const bool none =
      second == cpu::Second::none ||
      (second == cpu::Second::zero && zeros_in_the_middle(c.quantization, checkpoint, part));
  return none ? WeightFormat::int8 : WeightFormat::bf16;
}

/// Of parts that become whole numbers with scales.
LinearFormat whole_format(const ModelConfig& c, const Checkpoint* checkpoint,
                          std::span<const std::string> parts, int all_inputs, const Slice& inputs) {
  LinearFormat found;
  found.format = WeightFormat::int4;
  int group = 0;
  for (const std::string& part : parts) {
    const auto type = whole_type(c, checkpoint, part, all_inputs);
    if (!type || (group != 0 && type->format.group != group)) return {};
    group = type->format.group;
    const WeightFormat kept = kept_as(c, checkpoint, part, *type);
    if (kept == WeightFormat::bf16) return {};
    if (kept == WeightFormat::int8) found.format = kept;
  }
  if (inputs.first / group == (inputs.end() - 1) / group) return found;  // one group
  group = finer(group, inputs);
  if (!std::has_single_bit(static_cast<unsigned>(group)) || group < 32) return {};
  found.group_shift = std::countr_zero(static_cast<unsigned>(group));
  found.groups = static_cast<int>((inputs.count + group - 1) / group);
  return found;
}

}  // namespace

std::vector<std::int32_t> groups_within(std::span<const std::int32_t> all, const Slice& inputs) {
  const auto part =
      all.subspan(static_cast<std::size_t>(inputs.first), static_cast<std::size_t>(inputs.count));
  std::vector<std::int32_t> groups(part.begin(), part.end());
  const std::int32_t least = *std::min_element(groups.begin(), groups.end());
  for (std::int32_t& group : groups) group -= least;
  return groups;
}

std::optional<std::vector<std::int32_t>> order_by_group(std::span<const std::int32_t> group,
                                                        int group_shift) {
  std::vector<std::int32_t> order(group.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) {
    return group[static_cast<std::size_t>(a)] < group[static_cast<std::size_t>(b)];
  });
  for (std::size_t i = 0; i < order.size(); ++i) {
    if (group[static_cast<std::size_t>(order[i])] != static_cast<std::int32_t>(i >> group_shift)) {
      return std::nullopt;
    }
  }
  return order;
}

namespace {

/// What the names of a layer's experts begin with.
std::string experts_of_layer(const TensorNames& names, const Checkpoint& checkpoint, int layer) {
  return decoder_root(names, checkpoint) + "layers." + std::to_string(layer) + "." + names.experts;
}

/// Experts without biases, of sizes that the layout of units takes.
bool has_units(const ModelConfig& config, int layer, const GpuCut& cut) {
  const MlpSpec& expert = config.layer(layer).experts.expert;
  if (expert.bias || !expert.gated) return false;
  const Slice part = features_of(config, cut, expert.intermediate);
  // Units have halves of 32 inputs, as MXFP4's do (expert_layout.h).
  return config.hidden % cuda::kMxfp4Inputs == 0 && part.count % cuda::kMxfp4Inputs == 0;
}

/// How the matrices of all of a layer's experts are kept, if that is int4 and each unit of inputs
/// has one scale.
std::optional<ExpertParts> int4_experts(const ModelConfig& config, const Checkpoint* checkpoint,
                                        int layer, const GpuCut& cut) {
  const TensorNames& n = config.names;
  const bool known =
      config.quantization.bits == 4 && config.quantization.method != QuantMethod::none;
  if (!known || config.gguf || !has_units(config, layer, cut)) return std::nullopt;
  const std::string experts =
      checkpoint == nullptr ? std::string() : experts_of_layer(n, *checkpoint, layer);
  if (!experts_apart(n, checkpoint, experts)) return std::nullopt;
  const ExpertSpec& spec = config.layer(layer).experts;
  const Slice part = features_of(config, cut, spec.expert.intermediate);
  const auto in_units = [](const LinearFormat& f) {
    return f.format == WeightFormat::int4 && !f.ordered && f.group_shift >= kUnitShift;
  };
  std::optional<ExpertParts> found;
  for (int e = 0; e < (checkpoint == nullptr ? 1 : spec.count); ++e) {
    const std::string prefix = experts + std::to_string(e) + ".";
    const std::string up[] = {prefix + n.expert_gate, prefix + n.expert_up};
    const std::string down[] = {prefix + n.expert_down};
    found = {gpu_linear_format(config, checkpoint, up, config.hidden),
             gpu_linear_format(config, checkpoint, down, spec.expert.intermediate, part)};
    if (!in_units(found->gate_up) || !in_units(found->down)) return std::nullopt;
  }
  return found;
}

/// Each unit of inputs must have one scale. Rows have one each.
bool keeps_fp8(const ModelConfig& config, const Checkpoint* checkpoint, int layer,
               const GpuCut& cut) {
  const Quantization& q = config.quantization;
  const TensorNames& names = config.names;
  if (q.method != QuantMethod::fp8 || names.expert_storage == ExpertStorage::interleaved) {
    return false;
  }
  if (!has_units(config, layer, cut)) return false;
  const ExpertSpec& experts = config.layer(layer).experts;
  const Slice part = features_of(config, cut, experts.expert.intermediate);
  const auto fits = [&q](std::int64_t inputs) {
    return q.block_columns == 0 ||
           (q.block_columns % cuda::kExpertUnit == 0 && inputs % cuda::kExpertUnit == 0);
  };
  if (!fits(0) || (!cut.whole() && !fits(part.count))) return false;
  if (checkpoint == nullptr) return true;
  const std::string prefix = experts_of_layer(names, *checkpoint, layer);
  if (!experts_apart(names, checkpoint, prefix)) return stacked_in_fp8(config, *checkpoint, prefix);
  for (int e = 0; e < experts.count; ++e) {
    for (const std::string& name : {names.expert_gate, names.expert_up, names.expert_down}) {
      if (!stored_quantized(q, *checkpoint, prefix + std::to_string(e) + "." + name)) return false;
    }
  }
  return true;
}

}  // namespace

cuda::ExpertFormat gpu_expert_format(const ModelConfig& config, const Checkpoint* checkpoint,
                                     int layer, const GpuCut& cut) {
  if (keeps_fp8(config, checkpoint, layer, cut)) return cuda::ExpertFormat::fp8;
  if (int4_experts(config, checkpoint, layer, cut)) return cuda::ExpertFormat::int4;
  const TensorNames& names = config.names;
  bool mxfp4 = config.quantization.mxfp4;
  if (names.expert_storage != ExpertStorage::interleaved) return cuda::ExpertFormat::bf16;
  if (checkpoint != nullptr) {
    const std::string experts = experts_of_layer(names, *checkpoint, layer);
    mxfp4 = checkpoint->find(experts + "gate_up_proj_blocks") != nullptr &&
            checkpoint->find(experts + "down_proj_blocks") != nullptr;
  }
  const Slice part = features_of(config, cut, config.layer(layer).experts.expert.intermediate);
  const bool whole =
      config.hidden % cuda::kMxfp4Inputs == 0 && part.count % cuda::kMxfp4Inputs == 0;
  return mxfp4 && whole ? cuda::ExpertFormat::mxfp4 : cuda::ExpertFormat::bf16;
}

ExpertParts gpu_expert_parts(const ModelConfig& config, const Checkpoint* checkpoint, int layer,
                             const GpuCut& cut) {
  return int4_experts(config, checkpoint, layer, cut).value_or(ExpertParts{});
}

LinearFormat gpu_linear_format(const ModelConfig& config, const Checkpoint* checkpoint,
                               std::span<const std::string> parts, int in) {
  return gpu_linear_format(config, checkpoint, parts, in, {0, in});
}

LinearFormat gpu_linear_format(const ModelConfig& config, const Checkpoint* checkpoint,
                               std::span<const std::string> parts, int all_inputs,
                               const Slice& inputs) {
  const auto in = static_cast<int>(inputs.count);
  const Quantization& q = config.quantization;
  if (becomes_whole(config)) return whole_format(config, checkpoint, parts, all_inputs, inputs);
  if (q.method == QuantMethod::none) return {};
  if (checkpoint != nullptr &&
      !std::all_of(parts.begin(), parts.end(), [&](const std::string& part) {
        return stored_quantized(q, *checkpoint, part);
      })) {
    return {};
  }
  const bool fp8 = q.method == QuantMethod::fp8;
  const int stored = fp8 ? q.block_columns : q.group;
  const int size = finer(stored, inputs);
  LinearFormat found;
  found.format = fp8 ? WeightFormat::fp8 : WeightFormat::int4;
  if (size != stored && (fp8 || size == 0 || q.act_order)) return {};
  if (size != 0 && size < in) {
    if (!std::has_single_bit(static_cast<unsigned>(size)) || size < (fp8 ? 64 : 32)) return {};
    if (inputs.first % size != 0) return {};
    found.group_shift = std::countr_zero(static_cast<unsigned>(size));
    found.groups = (in + size - 1) / size;
    found.shared_scales = fp8 && size == cuda::kSharedInputs && q.block_rows % 8 == 0 &&
                          q.block_rows > 0 && config.head_dim % 8 == 0;
  } else {
    found.group_shift = kNoShift;
  }
  if (checkpoint == nullptr) {
    found.ordered = q.act_order && found.groups > 1;
    return found;
  }
  if (size != stored) {
    return side_by_side(q, *checkpoint, parts, all_inputs, stored) ? found : LinearFormat{};
  }
  const std::optional<bool> ordered =
      needs_order(q, *checkpoint, parts, all_inputs, found.group_shift, inputs);
  if (!ordered) return {};
  found.ordered = *ordered;
  return found;
}

}  // namespace baton
