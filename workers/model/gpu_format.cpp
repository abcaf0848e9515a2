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

LinearFormat gpu_linear_format(const ModelConfig& config, const Checkpoint* checkpoint,
                               std::span<const std::string> parts, int in) {
  return gpu_linear_format(config, checkpoint, parts, in, {0, in});
}

LinearFormat gpu_linear_format(const ModelConfig& config, const Checkpoint* checkpoint,
                               std::span<const std::string> parts, int all_inputs,
                               const Slice& inputs) {
  const auto in = static_cast<int>(inputs.count);
  const Quantization& q = config.quantization;
  if (q.method == QuantMethod::none) return {};
  if (checkpoint != nullptr &&
      !std::all_of(parts.begin(), parts.end(), [&](const std::string& part) {
        return stored_quantized(q, *checkpoint, part);
      })) {
    return {};
  }
  const bool fp8 = q.method == QuantMethod::fp8;
  const int size = fp8 ? q.block_columns : q.group;
  LinearFormat found;
  found.format = fp8 ? WeightFormat::fp8 : WeightFormat::int4;
  // A part that begins within a group and goes beyond it.
  if (size != 0 && inputs.first % size != 0 && inputs.first / size != (inputs.end() - 1) / size) {
    return {};
  }
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
  const std::optional<bool> ordered =
      needs_order(q, *checkpoint, parts, all_inputs, found.group_shift, inputs);
  if (!ordered) return {};
  found.ordered = *ordered;
  return found;
}

}  // namespace baton
