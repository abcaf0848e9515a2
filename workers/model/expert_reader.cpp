// The part of CheckpointReader that reads experts which lie in one tensor for all of them.
#include <array>
#include <cmath>
#include <cstring>
#include <memory>
#include <utility>

#include "workers/model/checkpoint_reader.h"
#include "workers/model/error.h"
#include "workers/model/finite.h"

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

/// The bf16 bits of e2m1 numbers: 0, 0.5, 1, 1.5, 2, 3, 4, 6, and their negatives.
std::uint16_t e2m1_times(unsigned code, int exponent) {
  static constexpr std::array<float, 8> kValues = {0.0F, 0.5F, 1.0F, 1.5F, 2.0F, 3.0F, 4.0F, 6.0F};
  const float size = std::ldexp(kValues[code & 7U], exponent);
  return cpu::round_to_bf16((code & 8U) != 0 ? -size : size);
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

/// The same as MXFP4: `name`_blocks [count, out, in / 32, 16], two numbers a byte, the lower half
/// first, and `name`_scales [count, out, in / 32], powers of two. bf16 holds them exactly.
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
  auto [matrix, to] = room_for(ElementType::bf16, out, in, view.file + ": tensor " + name);
  for (std::int64_t r = 0; r < out; ++r) {
    const std::int64_t row = expert * out + alternating(r, out, alternate);
    for (std::int64_t c = 0; c < in; ++c) {
      const auto byte = static_cast<unsigned>(view.data[(row * in + c) / 2]);
      const auto scale = static_cast<int>(scales.data[row * blocks + c / kBlock]);
      const std::uint16_t bits = e2m1_times(c % 2 == 0 ? byte : byte >> 4U, scale - 127);
      std::memcpy(to + (r * in + c) * 2, &bits, sizeof bits);
    }
  }
  return {matrix, std::nullopt, std::nullopt};
}

FeedForwardSource CheckpointReader::stacked_expert(int layer, int index) {
  const MlpSpec& spec = config_.layer(layer).experts.expert;
  const std::int64_t count = config_.experts().count;
  const std::int64_t hidden = config_.hidden;
  const std::int64_t middle = spec.intermediate;
  const std::string prefix = this->prefix(layer) + config_.names.experts;
  const auto read = [&](const std::string& name, std::int64_t out, std::int64_t in,
                        bool alternate) {
    const bool packed = checkpoint_.find(prefix + name + "_blocks") != nullptr;
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
  expert.gate = read("gate_up_proj", 2 * middle, hidden, true);
  expert.up_bias = bias("gate_up_proj", 2 * middle, true);
  expert.down = read("down_proj", hidden, middle, false);
  expert.down_bias = bias("down_proj", hidden, false);
  return expert;
}

}  // namespace baton
