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
  const TensorNames& n = config_.names;
  const TensorView* const found =
      checkpoint_.find(experts + (square ? n.stacked_down : n.stacked_up));
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

bool stacked_in_fp8(const ModelConfig& config, const Checkpoint& checkpoint,
                    const std::string& experts) {
  if (config.quantization.method != QuantMethod::fp8) return false;
  for (const std::string& part : {config.names.stacked_up, config.names.stacked_down}) {
    const TensorView* const view = checkpoint.find(experts + part);
    if (view == nullptr || view->dtype != "F8_E4M3") return false;
  }
  return true;
}

/// Some rows of one expert out of `name` [count, out, in] in 8-bit floats. `name`_scale_inv is
/// [count] or [count, lines, columns]: one scale for each expert, one for each of the two matrices
/// in [gate | up], or those of an expert's blocks.
LinearSource CheckpointReader::fp8_expert(const std::string& name, std::int64_t out,
                                          std::int64_t in, int expert, Slice rows) {
  const Quantization& q = config_.quantization;
  const std::int64_t count = config_.experts().count;
  const auto blocks = [](std::int64_t n, std::int64_t each) {
    return each == 0 ? 1 : (n + each - 1) / each;
  };
  const TensorView& view = take(name, {count, out, in});
  const std::string scale_name = name + q.scale.substr(std::string("weight").size());
  const TensorView* const found = checkpoint_.find(scale_name);
  const std::int64_t columns = blocks(in, q.block_columns);
  std::int64_t lines = blocks(out, q.block_rows);
  std::vector<std::int64_t> shape = {count, lines, columns};
  if (found != nullptr && q.block_rows == 0) {
    const std::vector<std::int64_t> of_both = {count, out / rows.count, columns};
    if (found->shape == of_both) lines = of_both[1];
    if (found->shape == of_both || (columns == 1 && found->shape.size() == 1)) shape = found->shape;
  }
  if (shape.size() == 1) shape = {count};
  MatrixSource scales = as_matrix(take(scale_name, shape), scale_name, lines, columns);
  const std::int64_t block = q.block_rows == 0 ? out / lines : q.block_rows;
  const std::int64_t first = rows.first / block;
  const std::int64_t last = (rows.end() - 1) / block;
  if (rows.first % block != 0 && first != last) {
    throw ModelError(view.file + ": tensor " + name + ": blocks of " + std::to_string(block) +
                     " rows reach from gate into up");
  }
  scales.data += (expert * lines + first) * columns * cpu::element_bytes(scales.type);
  scales.rows = last - first + 1;
  check_finite(scales);
  const std::string inputs = name + "_activation_scale";  // inputs are not quantised here
  if (checkpoint_.find(inputs) != nullptr) taken_.insert(inputs);
  LinearSource source;
  source.fp8 = {view.data + (expert * out + rows.first) * in,
                std::move(scales),
                rows.count,
                in,
                block,
                q.block_columns == 0 ? in : q.block_columns,
                view.file + ": tensor " + name};
  return source;
}

/// As transposed_expert(), stored as MXFP4: `name`_blocks [count, out, in / 32, 16], two numbers a
/// byte, the lower half first, and `name`_scales [count, out, in / 32], powers of two.
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
  const TensorNames& names = config_.names;
  const std::string prefix = this->prefix(layer) + names.experts;
  const bool interleaved = config_.names.expert_storage == ExpertStorage::interleaved;
  const bool in_rows = !interleaved && rows_first(prefix, middle);
  if (in_rows && stacked_in_fp8(config_, checkpoint_, prefix)) {
    FeedForwardSource parts;
    parts.gate = fp8_expert(prefix + names.stacked_up, 2 * middle, hidden, index, {0, middle});
    parts.up = fp8_expert(prefix + names.stacked_up, 2 * middle, hidden, index, {middle, middle});
    parts.down = fp8_expert(prefix + names.stacked_down, hidden, middle, index, {0, hidden});
    return parts;
  }
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
  expert.gate = read(names.stacked_up, 2 * middle, hidden, interleaved);
  expert.down = read(names.stacked_down, hidden, middle, false);
  if (!spec.bias) return expert;
  expert.up_bias = bias(names.stacked_up, 2 * middle, interleaved);
  expert.down_bias = bias(names.stacked_down, hidden, false);
  return expert;
}

}  // namespace baton
