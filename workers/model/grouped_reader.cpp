// The part of CheckpointReader that leaves quantised layers quantised: as whole numbers with
// scales.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "workers/model/checkpoint_reader.h"
#include "workers/model/error.h"
#include "workers/model/finite.h"
#include "workers/model/grouped_rows.h"

namespace baton {
namespace {

using cpu::GroupedMatrix;
using cpu::GroupedType;
using cpu::Second;
using cpu::WeightType;

constexpr std::int64_t kWordNibbles = 8;

GroupedType type_of_blocks(GgmlType blocks) {
  GroupedType type;
  const bool offset = ggml_has_offset(blocks);
  type.type = ggml_four_bits(blocks) ? WeightType::int4 : WeightType::int8;
  type.format.group = ggml_group(blocks);
  type.format.half_scales =
      blocks != GgmlType::q4_k && blocks != GgmlType::q5_k && blocks != GgmlType::q6_k;
  type.format.second = offset                          ? Second::offset
                       : type.type == WeightType::int4 ? Second::zero
                                                       : Second::none;
  return type;
}

/// Scales and offsets are numbers, and so are the weights then.
void check_numbers(const GroupedMatrix& m) {
  for (const std::vector<float>* list : {&m.scale, &m.second}) {
    for (std::size_t i = 0; i < list->size(); ++i) {
      // The largest whole number is 128, less a zero of as much.
      if (!std::isfinite((*list)[i] * 256.0F))
        refuse_element(m.name, static_cast<std::int64_t>(i), (*list)[i]);
    }
  }
}

/// Whether g_idx, where there is one, says no more than the group size.
bool groups_in_order(const Checkpoint& checkpoint, const std::string& name, std::int64_t in,
                     int group) {
  const TensorView* view = checkpoint.find(name + ".g_idx");
  if (view == nullptr) return true;
  if (view->dtype != "I32" || view->bytes != static_cast<std::uint64_t>(in) * 4) return false;
  for (std::int64_t i = 0; i < in; ++i) {
    std::int32_t index;
    std::memcpy(&index, view->data + i * 4, sizeof index);
    if (index != i / group) return false;
  }
  return true;
}

void fill_blocks(const BlockWeight& w, cpu::ThreadPool& pool, GroupedMatrix& m) {
  const std::int64_t groups = m.in / m.type.format.group;
  const bool zero = m.type.format.second == Second::zero;
  for_each_row(pool, m.out, [&](std::int64_t r) {
    std::int8_t* q = m.q.data() + r * m.in;
    decode_ggml(w.type, w.row(r), m.in,
                {q, m.scale.data() + r * groups,
                 ggml_has_offset(w.type) ? m.second.data() + r * groups : nullptr});
    if (!zero) return;
    for (std::int64_t i = 0; i < m.in; ++i) q[i] = static_cast<std::int8_t>(q[i] + 8);
    std::fill_n(m.second.data() + r * groups, groups, 8.0F);
  });
}

std::uint32_t word_of(const std::byte* words, std::int64_t index) {
  std::uint32_t word;
  std::memcpy(&word, words + index * 4, sizeof word);
  return word;
}

/// GPTQ's and AWQ's layouts: dequantize.h.
void fill_int4(const Int4Weight& w, bool gptq, int zero_offset, cpu::ThreadPool& pool,
               GroupedMatrix& m) {
  static constexpr int kAwq[kWordNibbles] = {0, 4, 1, 5, 2, 6, 3, 7};
  const std::int64_t groups = m.in / m.type.format.group;
  const std::int64_t words = m.out / kWordNibbles;
  for_each_row(pool, m.out, [&](std::int64_t r) {
    const int shift = 4 * (gptq ? static_cast<int>(r % kWordNibbles) : kAwq[r % kWordNibbles]);
    for (std::int64_t i = 0; i < m.in; ++i) {
      const std::uint32_t word =
          gptq ? word_of(w.weights, i / kWordNibbles * m.out + r) >> (4 * (i % kWordNibbles))
               : word_of(w.weights, i * words + r / kWordNibbles) >> shift;
      m.q[static_cast<std::size_t>(r * m.in + i)] = static_cast<std::int8_t>(word & 15U);
    }
    for (std::int64_t g = 0; g < groups; ++g) {
      const auto at = static_cast<std::size_t>(r * groups + g);
      const auto zero =
          static_cast<int>(word_of(w.zeros, g * words + r / kWordNibbles) >> shift & 15U);
      m.scale[at] = cpu::element(w.scales.data, w.scales.type, g * m.out + r);
      m.second[at] = static_cast<float>((zero + zero_offset) & 15);
    }
  });
}

/// Of compressed-tensors' integers.
std::optional<GroupedType> packed_type(const Quantization& q, const TensorView* scales,
                                       std::int64_t in) {
  const auto group = q.group == 0 ? static_cast<int>(in) : q.group;
  if (scales == nullptr || group % cpu::kGroupStep != 0 || in % group != 0) return std::nullopt;
  const bool four = q.bits == 4;
  return GroupedType{
      four ? WeightType::int4 : WeightType::int8,
      {group, scales->dtype == "F16", four || !q.symmetric ? Second::zero : Second::none}};
}

}  // namespace

std::optional<GroupedType> grouped_type(const Quantization& q, const Checkpoint& checkpoint,
                                        const std::string& name, std::int64_t in) {
  if (checkpoint.find(name + "_blocks") != nullptr) {  // MXFP4: expert_reader.cpp
    return GroupedType{WeightType::int4, {32, false, Second::e2m1}};
  }
  const TensorView* view = checkpoint.find(name + ".weight");
  if (view != nullptr && view->blocks != GgmlType::f32) return type_of_blocks(view->blocks);
  if (!stored_quantized(q, checkpoint, name)) return std::nullopt;
  if (q.method == QuantMethod::nvfp4) {
    if (in % 16 != 0) return std::nullopt;
    return GroupedType{WeightType::int4, {16, false, Second::e2m1}};
  }
  if (q.method == QuantMethod::packed)
    return packed_type(q, checkpoint.find(name + ".weight_scale"), in);
  if (q.method != QuantMethod::gptq && q.method != QuantMethod::awq) return std::nullopt;
  const TensorView* scales = checkpoint.find(name + ".scales");
  if (checkpoint.find(name + ".qweight") == nullptr || scales == nullptr) return std::nullopt;
  const auto group = q.group == 0 ? static_cast<int>(in) : q.group;
  if (group % cpu::kGroupStep != 0 || in % group != 0) return std::nullopt;
  if (q.method == QuantMethod::gptq && !groups_in_order(checkpoint, name, in, group))
    return std::nullopt;
  return GroupedType{q.bits == 8 ? WeightType::int8 : WeightType::int4,
                     {group, scales->dtype == "F16", Second::zero}};
}

GroupedMatrix grouped_matrix(const LinearSource& source, const Quantization& q,
                             cpu::ThreadPool& pool) {
  if (source.lazy) {
    GroupedMatrix made = source.lazy->make(pool);
    check_numbers(made);
    return made;
  }
  GroupedMatrix m = room_of(source.rows(), source.columns(), *source.grouped,
                            source.blocks ? source.blocks->name : source.int4->scales.name);
  if (source.blocks) {
    fill_blocks(*source.blocks, pool, m);
  } else {
    fill_int4(*source.int4, q.method == QuantMethod::gptq, q.zero_offset, pool, m);
  }
  check_numbers(m);
  return m;
}

GroupedMatrix CheckpointReader::grouped(const LinearSource& source) {
  bytes_read_ += stored_bytes(source, source.rows());
  return grouped_matrix(source, config_.quantization, pool_);
}

}  // namespace baton
