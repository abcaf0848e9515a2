// The part of CheckpointReader that reads quantised linear layers.
#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>

#include "workers/model/checkpoint_reader.h"
#include "workers/model/dequantize.h"
#include "workers/model/error.h"
#include "workers/model/finite.h"

namespace baton {
namespace {

constexpr std::int64_t kNibbles = 8;

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

[[noreturn]] void refuse(const TensorView& view, const std::string& name, const std::string& why) {
  throw ModelError(view.file + ": tensor " + name + ": " + why);
}

/// A matrix that owns its values, which `fill` writes. The threads that fill it are the first to
/// touch its pages. `name` is that of the stored tensor, for messages.
template <class Fill>
cpu::MatrixSource owned(std::int64_t rows, std::int64_t columns, const std::string& name,
                        Fill fill) {
  std::shared_ptr<float[]> memory(new float[static_cast<std::size_t>(rows * columns)]);
  fill(memory.get());
  const auto* data = reinterpret_cast<const std::byte*>(memory.get());
  return {data, cpu::ElementType::f32, rows, columns, std::move(memory), name};
}

/// Which rows have to be dequantised for these: of 4-bit layers eight share their words, and some
/// formats are read as a whole.
RowRange range_for(const LinearSource& source, Slice rows) {
  if (source.lazy) return {0, source.rows()};
  const std::int64_t step = source.int4 ? kNibbles : 1;
  const std::int64_t first = rows.first / step * step;
  return {first, ceil_div(rows.end(), step) * step - first};
}

}  // namespace

cpu::MatrixSource rows_of(cpu::MatrixSource matrix, Slice rows) {
  matrix.data += rows.first * matrix.columns * cpu::element_bytes(matrix.type);
  matrix.rows = rows.count;
  return matrix;
}

const std::byte* CheckpointReader::words(const std::string& name, std::int64_t rows,
                                         std::int64_t columns) {
  const TensorView& view = take(name, {rows, columns});
  if (view.dtype != "I32") refuse(view, name, "dtype " + view.dtype + " where I32 is expected");
  return view.data;
}

/// The group of each input: g_idx where it is, else consecutive ones.
std::vector<std::int32_t> CheckpointReader::input_groups(const std::string& name, std::int64_t in,
                                                         std::int64_t groups) {
  const Quantization& q = config_.quantization;
  std::vector<std::int32_t> group(static_cast<std::size_t>(in));
  const std::string key = name + ".g_idx";
  if (q.method != QuantMethod::gptq || (!q.act_order && checkpoint_.find(key) == nullptr)) {
    for (std::size_t i = 0; i < group.size(); ++i) {
      group[i] =
          q.group == 0 ? 0 : static_cast<std::int32_t>(i / static_cast<std::size_t>(q.group));
    }
    return group;
  }
  const TensorView& view = take(key, {in});
  if (view.dtype != "I32") refuse(view, key, "dtype " + view.dtype + " where I32 is expected");
  std::memcpy(group.data(), view.data, view.bytes);
  const auto [low, high] = std::minmax_element(group.begin(), group.end());
  if (*low < 0 || *high >= groups) {
    refuse(view, key, "names a group outside of the " + std::to_string(groups) + " there are");
  }
  return group;
}

Int4Weight CheckpointReader::int4(const std::string& name, std::int64_t out, std::int64_t in) {
  const Quantization& q = config_.quantization;
  if (out % kNibbles != 0 || in % kNibbles != 0) {
    throw ModelError(checkpoint_.folder() + ": tensor " + name +
                     ".qweight: 4-bit layers have multiples of 8 inputs and outputs");
  }
  const std::int64_t groups = q.group == 0 ? 1 : ceil_div(in, q.group);
  const bool gptq = q.method == QuantMethod::gptq;
  Int4Weight w;
  w.out = out;
  w.in = in;
  w.weights = gptq ? words(name + ".qweight", in / kNibbles, out)
                   : words(name + ".qweight", in, out / kNibbles);
  w.zeros = words(name + ".qzeros", groups, out / kNibbles);
  w.scales = matrix(name + ".scales", groups, out);
  check_finite(w.scales);
  w.group = input_groups(name, in, groups);
  return w;
}

/// One scale for all is stored as [] or [1], one for each output as [out, 1] or [out].
cpu::MatrixSource CheckpointReader::fp8_scales(const std::string& name, std::int64_t rows,
                                               std::int64_t columns) {
  const TensorView* view = checkpoint_.find(name);
  if (view != nullptr && columns == 1) {
    const bool flat = view->shape == std::vector{rows} || (rows == 1 && view->shape.empty());
    if (flat) return as_matrix(take(name, view->shape), name, rows, columns);
  }
  return matrix(name, rows, columns);
}

Fp8Weight CheckpointReader::fp8(const std::string& name, std::int64_t out, std::int64_t in) {
  const Quantization& q = config_.quantization;
  Fp8Weight w;
  const TensorView& view = take(name + ".weight", {out, in});
  w.name = view.file + ": tensor " + name + ".weight";
  w.weights = view.data;
  w.out = out;
  w.in = in;
  w.block_rows = q.block_rows == 0 ? out : q.block_rows;
  w.block_columns = q.block_columns == 0 ? in : q.block_columns;
  std::string scale = name + "." + q.scale;
  const std::string short_name = name + ".weight_scale";  // AutoFP8's word for the same
  if (checkpoint_.find(scale) == nullptr && checkpoint_.find(short_name) != nullptr) {
    scale = short_name;
  }
  w.scales = fp8_scales(scale, ceil_div(out, w.block_rows), ceil_div(in, w.block_columns));
  check_finite(w.scales);
  // What inputs would be divided by if they were quantised, too.
  for (const char* inputs : {".activation_scale", ".input_scale"}) {
    if (checkpoint_.find(name + inputs) != nullptr) taken_.insert(name + inputs);
  }
  return w;
}

BlockWeight CheckpointReader::block_weight(const TensorView& view, const std::string& name,
                                           std::int64_t out, std::int64_t in) const {
  return {view.data, view.blocks, out, in, view.pair_rows, view.file + ": tensor " + name};
}

LinearSource CheckpointReader::linear(const std::string& name, std::int64_t out, std::int64_t in) {
  LinearSource source;
  source.grouped = grouped_type(config_.quantization, checkpoint_, name, in);
  const QuantMethod method = config_.quantization.method;
  if (!stored_quantized(config_.quantization, checkpoint_, name)) {
    source.plain = matrix(name + ".weight", out, in);
  } else if (const TensorView* view = checkpoint_.find(name + ".weight");
             view != nullptr && view->blocks != GgmlType::f32) {
    source.blocks = block_weight(take(name + ".weight", {out, in}), name + ".weight", out, in);
  } else if (method == QuantMethod::fp8) {
    source.fp8 = fp8(name, out, in);
  } else if (method == QuantMethod::packed || method == QuantMethod::nvfp4 ||
             config_.quantization.bits == 8) {
    if (!source.grouped) {
      throw ModelError(checkpoint_.folder() + ": tensor " + name +
                       ": groups of inputs that are no multiple of 8, or " +
                       "do not divide the inputs, are not supported in this format");
    }
    source.lazy = method == QuantMethod::packed  ? packed_integers(name, out, in)
                  : method == QuantMethod::nvfp4 ? nvfp4(name, out, in)
                                                 : gptq8(name, out, in);
  } else {
    source.int4 = int4(name, out, in);
  }
  return source;
}

cpu::MatrixSource CheckpointReader::dequantized(const LinearSource& source, Slice rows) {
  if (!source.quantized()) {
    bytes_read_ += static_cast<std::uint64_t>(rows.count * source.columns() *
                                              cpu::element_bytes(source.plain.type));
    return rows_of(source.plain, rows);
  }
  const std::string& name = source.lazy     ? source.lazy->name
                            : source.blocks ? source.blocks->name
                            : source.fp8    ? source.fp8->name
                                            : source.int4->scales.name;
  const RowRange range = range_for(source, rows);
  bytes_read_ += stored_bytes(source, range.rows);
  const cpu::MatrixSource all = owned(range.rows, source.columns(), name, [&](float* to) {
    dequantize_rows(source, config_.quantization, range, pool_, to);
  });
  return rows_of(all, {rows.first - range.first, rows.count});
}

void dequantize_rows(const LinearSource& source, const Quantization& q, RowRange range,
                     cpu::ThreadPool& pool, float* to) {
  if (source.lazy) {
    cpu::widen(source.lazy->make(pool), pool, to);
  } else if (source.blocks) {
    dequantize_blocks(*source.blocks, pool, to, range);
  } else if (source.fp8) {
    dequantize_fp8(*source.fp8, pool, to, range);
  } else if (q.method == QuantMethod::gptq) {
    dequantize_gptq(*source.int4, q.zero_offset, pool, to, range);
  } else {
    dequantize_awq(*source.int4, pool, to, range);
  }
}

/// What some rows of a quantised layer take in the checkpoint, in bytes; scales are read whole.
std::uint64_t CheckpointReader::stored_bytes(const LinearSource& source, std::int64_t rows) const {
  const std::int64_t numbers = rows * source.columns();
  if (source.blocks) {
    const GgmlLayout layout = *ggml_layout(static_cast<std::uint32_t>(source.blocks->type));
    return static_cast<std::uint64_t>(numbers) / layout.numbers * layout.bytes;
  }
  if (source.lazy) {
    const bool bytes = source.grouped && source.grouped->type == cpu::WeightType::int8;
    return static_cast<std::uint64_t>(bytes ? numbers : numbers / 2);
  }
  const cpu::MatrixSource& scales = source.fp8 ? source.fp8->scales : source.int4->scales;
  return static_cast<std::uint64_t>((source.fp8 ? numbers : numbers / 2) +
                                    scales.rows * scales.columns * cpu::element_bytes(scales.type));
}

bool stored_quantized(const Quantization& quantization, const Checkpoint& checkpoint,
                      const std::string& name) {
  const TensorView* plain = checkpoint.find(name + ".weight");
  if (plain != nullptr && plain->blocks != GgmlType::f32) return true;
  if (quantization.method == QuantMethod::none) return false;
  if (quantization.method == QuantMethod::packed ||
      (quantization.method == QuantMethod::nvfp4 && quantization.divides)) {
    return checkpoint.find(name + ".weight_packed") != nullptr;
  }
  if (quantization.method == QuantMethod::nvfp4) return plain != nullptr && plain->dtype == "U8";
  if (quantization.method != QuantMethod::fp8) return checkpoint.find(name + ".qweight") != nullptr;
  return plain != nullptr && plain->dtype == "F8_E4M3";
}

/// Quantisers give every layer a bias, all zeros where the model has none.
bool CheckpointReader::idle_bias(const std::string& name, const TensorView& view) const {
  if (!name.ends_with(".bias")) return false;
  const std::string layer = name.substr(0, name.size() - 4);
  return taken_.contains(layer + "qweight") &&
         std::all_of(view.data, view.data + view.bytes,
                     [](std::byte b) { return b == std::byte{}; });
}

}  // namespace baton
