// The part of CheckpointReader that reads formats which become whole numbers with scales on their
// way, whether they stay so in memory or not: GPTQ of eight bits, compressed-tensors' packed
// integers, NVFP4.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <utility>

#include "workers/model/checkpoint_reader.h"
#include "workers/model/error.h"
#include "workers/model/grouped_rows.h"

namespace baton {
namespace {

using cpu::GroupedMatrix;
using cpu::GroupedType;
using cpu::Second;
using cpu::WeightType;

[[noreturn]] void refuse_tensor(const TensorView& view, const std::string& name,
                                const std::string& why) {
  throw ModelError(view.file + ": tensor " + name + ": " + why);
}

/// Number `index` of `bits` bits each in a row of little-endian words.
unsigned number_at(const std::byte* data, std::int64_t index, int bits) {
  if (bits == 8) return std::to_integer<unsigned>(data[index]);
  return std::to_integer<unsigned>(data[index / 2]) >> (index % 2 * 4) & 15U;
}

/// As GroupedMatrix has them: four bits as they are, eight from -128 on.
float told(unsigned number, int bits) {
  return static_cast<float>(static_cast<int>(number) - (bits == 8 ? 128 : 0));
}

}  // namespace

/// Their groups lie side by side, or they are refused.
void CheckpointReader::expect_order(const std::string& name, std::int64_t in, int group) {
  const TensorView* found = checkpoint_.find(name);
  if (found == nullptr) return;
  const TensorView& view = take(name, {in});
  if (view.dtype != "I32")
    refuse_tensor(view, name, "dtype " + view.dtype + " where I32 is expected");
  for (std::int64_t i = 0; i < in; ++i) {
    std::int32_t index;
    std::memcpy(&index, view.data + i * 4, sizeof index);
    if (index != i / group)
      refuse_tensor(view, name, "groups out of order are supported in GPTQ of 4 bits alone");
  }
}

LazyGrouped CheckpointReader::gptq8(const std::string& name, std::int64_t out, std::int64_t in) {
  const GroupedType type = *grouped_type(config_.quantization, checkpoint_, name, in);
  const std::int64_t groups = in / type.format.group;
  if (out % 4 != 0 || in % 4 != 0) {
    throw ModelError(checkpoint_.folder() + ": tensor " + name +
                     ".qweight: 8-bit layers have multiples of 4 inputs and outputs");
  }
  const std::byte* weights = words(name + ".qweight", in / 4, out);
  const std::byte* zeros = words(name + ".qzeros", groups, out / 4);
  const cpu::MatrixSource scales = matrix(name + ".scales", groups, out);
  expect_order(name + ".g_idx", in, type.format.group);
  const int less = config_.quantization.zero_offset;
  return {out, in, scales.name, [=](cpu::ThreadPool& pool) {
            GroupedMatrix m = room_of(out, in, type, scales.name);
            for_each_row(pool, out, [&](std::int64_t r) {
              for (std::int64_t i = 0; i < in; ++i) {
                const auto q = std::to_integer<int>(weights[(i / 4 * out + r) * 4 + i % 4]);
                m.q[static_cast<std::size_t>(r * in + i)] = static_cast<std::int8_t>(q - 128);
              }
              for (std::int64_t g = 0; g < groups; ++g) {
                const auto at = static_cast<std::size_t>(r * groups + g);
                m.scale[at] = cpu::element(scales.data, scales.type, g * out + r);
                m.second[at] = told(
                    (std::to_integer<unsigned>(zeros[g * out + r]) + static_cast<unsigned>(less)) &
                        255U,
                    8);
              }
            });
            return m;
          }};
}

LazyGrouped CheckpointReader::packed_integers(const std::string& name, std::int64_t out,
                                              std::int64_t in) {
  const Quantization& q = config_.quantization;
  const GroupedType type = *grouped_type(q, checkpoint_, name, in);
  const std::int64_t groups = in / type.format.group;
  const int bits = q.bits;
  const std::int64_t each = 32 / bits;
  if (in % each != 0) {
    throw ModelError(checkpoint_.folder() + ": tensor " + name +
                     ".weight_packed: rows that end inside a word are not supported");
  }
  const std::byte* weights = words(name + ".weight_packed", out, in / each);
  const TensorView& shape = take(name + ".weight_shape", {2});
  std::array<std::int64_t, 2> said{};
  if (shape.dtype == "I64") std::memcpy(said.data(), shape.data, sizeof said);
  if (said != std::array<std::int64_t, 2>{out, in}) {
    refuse_tensor(shape, name + ".weight_shape", "is not the shape of the layer in I64");
  }
  const cpu::MatrixSource scales = matrix(name + ".weight_scale", out, groups);
  const std::byte* zeros =
      q.symmetric ? nullptr : words(name + ".weight_zero_point", (out + each - 1) / each, groups);
  expect_order(name + ".weight_g_idx", in, type.format.group);
  return {out, in, scales.name, [=](cpu::ThreadPool& pool) {
            GroupedMatrix m = room_of(out, in, type, scales.name);
            for_each_row(pool, out, [&](std::int64_t r) {
              for (std::int64_t i = 0; i < in; ++i) {
                m.q[static_cast<std::size_t>(r * in + i)] =
                    static_cast<std::int8_t>(told(number_at(weights, r * in + i, bits), bits));
              }
              for (std::int64_t g = 0; g < groups; ++g) {
                const auto at = static_cast<std::size_t>(r * groups + g);
                m.scale[at] = cpu::element(scales.data, scales.type, r * groups + g);
                if (m.second.empty()) continue;
                // Zero points run along the outputs, and are stored as weights are.
                const std::byte* word =
                    zeros == nullptr ? nullptr : zeros + (r / each * groups + g) * 4;
                m.second[at] =
                    word == nullptr ? told(8, bits) : told(number_at(word, r % each, bits), bits);
              }
            });
            return m;
          }};
}

LazyGrouped CheckpointReader::nvfp4(const std::string& name, std::int64_t out, std::int64_t in) {
  constexpr std::int64_t kGroup = 16;
  const Quantization& q = config_.quantization;
  const GroupedType type = *grouped_type(q, checkpoint_, name, in);
  const std::int64_t groups = in / kGroup;
  const std::string packed = name + (q.divides ? ".weight_packed" : ".weight");
  const TensorView& weights = take(packed, {out, in / 2});
  if (weights.dtype != "U8")
    refuse_tensor(weights, packed, "dtype " + weights.dtype + " where U8 is expected");
  const TensorView& scales = take(name + ".weight_scale", {out, groups});
  if (scales.dtype != "F8_E4M3") {
    refuse_tensor(scales, name + ".weight_scale",
                  "dtype " + scales.dtype + " where F8_E4M3 is expected");
  }
  const float whole = one_number(name + (q.divides ? ".weight_global_scale" : ".weight_scale_2"));
  // What activations were quantised with where others serve this: here they are fp32.
  for (const char* unused : {".input_global_scale", ".input_scale"}) {
    if (checkpoint_.find(name + unused) != nullptr) one_number(name + unused);
  }
  const std::byte* from = weights.data;
  const std::byte* steps = scales.data;
  const bool divides = q.divides;
  const std::string what = scales.file + ": tensor " + name + ".weight_scale";
  return {out, in, what, [=](cpu::ThreadPool& pool) {
            GroupedMatrix m = room_of(out, in, type, what);
            for_each_row(pool, out, [&](std::int64_t r) {
              for (std::int64_t i = 0; i < in; ++i) {
                m.q[static_cast<std::size_t>(r * in + i)] =
                    static_cast<std::int8_t>(number_at(from, r * in + i, 4));
              }
              for (std::int64_t g = 0; g < groups; ++g) {
                const float step = fp8_number(std::to_integer<unsigned>(steps[r * groups + g]));
                m.scale[static_cast<std::size_t>(r * groups + g)] =
                    divides ? step / whole : step * whole;
              }
            });
            return m;
          }};
}

/// A tensor of one number, [] or [1].
float CheckpointReader::one_number(const std::string& name) {
  const TensorView* view = checkpoint_.find(name);
  if (view != nullptr && view->shape.empty()) {
    const cpu::MatrixSource one = as_matrix(take(name, {}), name, 1, 1);
    return cpu::element(one.data, one.type, 0);
  }
  return vector(name, 1).front();
}

}  // namespace baton
