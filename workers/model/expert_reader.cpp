// The part of CheckpointReader that reads experts which lie in one tensor for all of them.
#include <cmath>
#include <cstring>
#include <memory>
#include <utility>

#include "workers/model/checkpoint_reader.h"
#include "workers/model/error.h"
#include "workers/model/finite.h"
#include "workers/model/grouped_rows.h"

namespace baton {
namespace {

using cpu::ElementType;
using cpu::MatrixSource;

constexpr std::int64_t kBlock = 32;  // MXFP4: numbers that share a scale

/// Room for a matrix that owns its elements.
std::pair<MatrixSource, std::byte*> room_for(ElementType type, std::int64_t rows,
                                             std::int64_t columns, const std::string& name) {
  const auto bytes = static_cast<std::size_t>(rows * columns * cpu::element_bytes(type));
  std::shared_ptr<std::byte[]> memory(new std::byte[bytes]);
  std::byte* to = memory.get();
  return {MatrixSource{to, type, rows, columns, std::move(memory), name}, to};
}

/// Where row `r` of [gate | up] lies among rows or columns that alternate between the two.
std::int64_t alternating(std::int64_t r, std::int64_t rows, bool alternate) {
  if (!alternate) return r;
  return r < rows / 2 ? 2 * r : 2 * (r - rows / 2) + 1;
}

}  // namespace

/// The matrix [out, in] of one expert out of `name` [count, in, out].
LinearSource CheckpointReader::transposed_expert(const std::string& name, std::int64_t out,
                                                 std::int64_t in, int expert, bool alternate) {
  const std::int64_t count = config_.experts().count;
  const TensorView& view = take(name, {count, in, out});
  const MatrixSource all = as_matrix(view, name, count * in, out);
  const std::int64_t each = cpu::element_bytes(all.type);
  auto [matrix, to] = room_for(all.type, out, in, all.name);
  const std::byte* from = all.data + expert * in * out * each;
  for (std::int64_t r = 0; r < out; ++r) {
    const std::byte* column = from + alternating(r, out, alternate) * each;
    for (std::int64_t c = 0; c < in; ++c) {
      std::memcpy(to + (r * in + c) * each, column + c * out * each,
                  static_cast<std::size_t>(each));
    }
  }
  return {matrix, std::nullopt, std::nullopt};
}

/// Whether experts in one tensor are stored as [count, out, in], not [count, in, out]. Of a layer's
/// two tensors at least one is not square.
bool CheckpointReader::rows_first(const std::string& experts, std::int64_t middle) const {
  const std::int64_t count = config_.experts().count;
  const std::int64_t hidden = config_.hidden;
  const bool square = 2 * middle == hidden;
  const TensorView* const found =
      checkpoint_.find(experts + (square ? "down_proj" : "gate_up_proj"));
  return found != nullptr &&
         found->shape == (square ? std::vector<std::int64_t>{count, hidden, middle}
                                 : std::vector<std::int64_t>{count, 2 * middle, hidden});
}

/// The matrix [out, in] of one expert out of `name` [count, out, in].
LinearSource CheckpointReader::expert_in_rows(const std::string& name, std::int64_t out,
                                              std::int64_t in, int expert) {
  const std::int64_t count = config_.experts().count;
  MatrixSource matrix = as_matrix(take(name, {count, out, in}), name, count * out, in);
  matrix.data += expert * out * in * cpu::element_bytes(matrix.type);
  matrix.rows = out;
  return {matrix, std::nullopt, std::nullopt};
}

/// The same as MXFP4: `name`_blocks [count, out, in / 32, 16], two numbers a byte, the lower half
/// first, and `name`_scales [count, out, in / 32], powers of two.
LinearSource CheckpointReader::mxfp4_expert(const std::string& name, std::int64_t out,
                                            std::int64_t in, int expert, bool alternate) {
  const std::int64_t count = config_.experts().count;
  if (in % kBlock != 0) {
    throw ModelError(checkpoint_.folder() + ": tensor " + name +
                     "_blocks: MXFP4 layers have multiples of 32 inputs");
  }
  const std::int64_t blocks = in / kBlock;
  const TensorView& view = take(name + "_blocks", {count, out, blocks, kBlock / 2});
  const TensorView& scales = take(name + "_scales", {count, out, blocks});
  for (const TensorView* v : {&view, &scales}) {
    if (v->dtype != "U8") {
      throw ModelError(v->file + ": tensor " + name + ": dtype " + v->dtype +
                       " where U8 is expected");
    }
  }
  LinearSource source;
  source.grouped = grouped_type(config_.quantization, checkpoint_, name, in);
  const std::byte* codes = view.data + expert * out * in / 2;
  const std::byte* exponents = scales.data + expert * out * blocks;
  const std::string what = view.file + ": tensor " + name + "_scales";
  source.mxfp4 = {codes, exponents, alternate, what};
  source.lazy = {out, in, what, [=, type = *source.grouped](cpu::ThreadPool& pool) {
                   cpu::GroupedMatrix m = room_of(out, in, type, what);
                   for_each_row(pool, out, [&](std::int64_t r) {
                     const std::int64_t row = alternating(r, out, alternate);
                     for (std::int64_t c = 0; c < in; ++c) {
                       const auto byte = std::to_integer<unsigned>(codes[(row * in + c) / 2]);
                       m.q[static_cast<std::size_t>(r * in + c)] =
                           static_cast<std::int8_t>(c % 2 == 0 ? byte & 15U : byte >> 4U);
                     }
                     for (std::int64_t b = 0; b < blocks; ++b) {
                       const auto exponent = std::to_integer<int>(exponents[row * blocks + b]);
                       m.scale[static_cast<std::size_t>(r * blocks + b)] =
                           std::ldexp(1.0F, exponent - 127);
                     }
                   });
                   return m;
                 }};
  return source;
}

FeedForwardSource CheckpointReader::stacked_expert(int layer, int index) {
  const MlpSpec& spec = config_.layer(layer).experts.expert;
  const std::int64_t count = config_.experts().count;
  const std::int64_t hidden = config_.hidden;
  const std::int64_t middle = spec.intermediate;
  const std::string prefix = this->prefix(layer) + config_.names.experts;
  const bool interleaved = config_.names.expert_storage == ExpertStorage::interleaved;
  const bool in_rows = !interleaved && rows_first(prefix, middle);
  const auto read = [&](const std::string& name, std::int64_t out, std::int64_t in,
                        bool alternate) {
    if (in_rows) return expert_in_rows(prefix + name, out, in, index);
    const bool packed = interleaved && checkpoint_.find(prefix + name + "_blocks") != nullptr;
    return packed ? mxfp4_expert(prefix + name, out, in, index, alternate)
                  : transposed_expert(prefix + name, out, in, index, alternate);
  };
  const auto bias = [&](const std::string& name, std::int64_t out, bool alternate) {
    const std::string full = prefix + name + "_bias";
    const MatrixSource all = as_matrix(take(full, {count, out}), full, count, out);
    std::vector<float> values;
    for (std::int64_t r = 0; r < out; ++r) {
      const std::int64_t at = index * out + alternating(r, out, alternate);
      values.push_back(cpu::element(all.data, all.type, at));
      if (!std::isfinite(values.back())) refuse_element(all.name, at, values.back());
    }
    return values;
  };
  FeedForwardSource expert;
  expert.gate = read("gate_up_proj", 2 * middle, hidden, interleaved);
  expert.down = read("down_proj", hidden, middle, false);
  if (!spec.bias) return expert;
  expert.up_bias = bias("gate_up_proj", 2 * middle, true);
  expert.down_bias = bias("down_proj", hidden, false);
  return expert;
}

}  // namespace baton
