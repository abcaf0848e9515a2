// What GPUs keep of quantised checkpoints and what they widen, without one: which matrices, and the
// values of what is packed for the kernels. The layout (quantized_layout.h) says where a number
// lies; the bits it stands for are those that CPUs widen it to.
#include "workers/model/gpu_pack.h"

#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <functional>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "tests/support/gguf_writer.h"
#include "tests/support/temp_dir.h"
#include "workers/model/error.h"
#include "workers/model/gpu_formats.h"
#include "workers/model/gpu_limits.h"
#include "workers/model/rank_fit.h"

namespace baton {
namespace {

using Json = nlohmann::json;
using cuda::WeightFormat;
using test::GgufWriter;

std::size_t at(std::int64_t n) { return static_cast<std::size_t>(n); }

/// A matrix as the kernels read it.
struct Kept {
  LinearFormat format;
  int out, in;
  std::vector<std::uint32_t> words, scales;

  Kept(const std::vector<WholePart>& parts, const LinearFormat& f, int rows, int columns)
      : format(f), out(rows), in(columns) {
    words.assign(cuda::weight_words(f.format, out, in), 0xDEADBEEF);
    scales.assign(cuda::scale_words(out, f.groups), 0xDEADBEEF);
    // Some tiles at a time.
    const std::size_t of_tile = cuda::weight_words(f.format, 16, in);
    for (std::int64_t t = 0; t < cuda::tiles_of(out); t += 2) {
      const Slice some{t, std::min<std::int64_t>(2, cuda::tiles_of(out) - t)};
      pack_tiles(parts, f, in, some, words.data() + at(t) * of_tile,
                 scales.data() + at(t) * cuda::scale_words(16, f.groups));
    }
  }
  /// As stored; also of inputs that only fill a unit up.
  std::uint32_t bits(int row, int input) const {
    const auto place = cuda::place_of(format.format, cuda::units_of(in), row, input);
    return words[place.word] >> place.bit & (format.format == WeightFormat::int4 ? 15U : 255U);
  }
  float value(int row, int input) const {
    const std::uint32_t number_bits = bits(row, input);
    const std::uint32_t scale =
        scales[cuda::scale_at(format.groups, row, input >> format.group_shift)];
    const int number = format.format == WeightFormat::int4
                           ? static_cast<int>(number_bits) - static_cast<int>(scale & 15U)
                           : static_cast<std::int8_t>(number_bits);
    return static_cast<float>(number) * std::bit_cast<float>(scale & ~15U);
  }
};

/// Random whole numbers; scales are of eleven bits, as F16 has.
cpu::GroupedMatrix random_matrix(std::int64_t out, std::int64_t in, const cpu::GroupedType& type,
                                 std::uint32_t seed) {
  std::mt19937 random(seed);
  cpu::GroupedMatrix m;
  m.out = out;
  m.in = in;
  m.type = type;
  m.name = "m.safetensors: tensor l";
  const bool four = type.type == cpu::WeightType::int4;
  for (std::int64_t i = 0; i < out * in; ++i) {
    m.q.push_back(static_cast<std::int8_t>(four ? random() % 16 : random() % 256));
  }
  for (std::int64_t i = 0; i < out * (in / type.format.group); ++i) {
    m.scale.push_back(static_cast<float>(random() % 2000 + 1) / 65536.0F);
    if (type.format.second == cpu::Second::zero) {
      m.second.push_back(static_cast<float>(four ? random() % 16 : 0));
    }
  }
  return m;
}

std::vector<float> widened(const cpu::GroupedMatrix& m) {
  cpu::ThreadPool pool(1);
  std::vector<float> values(at(m.out * m.in));
  cpu::widen(m, pool, values.data());
  return values;
}

constexpr cpu::GroupedType kFour{cpu::WeightType::int4, {32, true, cpu::Second::zero}};
constexpr cpu::GroupedType kEight{cpu::WeightType::int8, {32, true, cpu::Second::none}};

TEST(GpuPack, GateAndUpTakeTurnsByEightRows) {
  for (const bool mixed : {false, true}) {
    const auto gate = random_matrix(40, 96, kFour, 1);
    const auto up = random_matrix(40, 96, mixed ? kEight : kFour, 2);
    const LinearFormat format{mixed ? WeightFormat::int8 : WeightFormat::int4, 3, 5};
    const Kept kept({{&gate, {0, 40}, {0, 96}, {0, true}}, {&up, {0, 40}, {0, 96}, {8, true}}},
                    format, 80, 96);
    const std::vector<float> values[] = {widened(gate), widened(up)};
    for (int row = 0; row < 80; ++row) {
      for (int i = 0; i < 96; ++i) {
        const float want = values[row / 8 % 2][at((row / 16 * 8 + row % 8) * 96 + i)];
        ASSERT_EQ(kept.value(row, i), want) << row << ", " << i;
      }
    }
  }
}

TEST(GpuPack, PartsBeginInsideOfATileAndTheRestIsNought) {
  const auto q = random_matrix(24, 64, kEight, 1);
  const auto k = random_matrix(16, 64, kEight, 2);
  const LinearFormat format{WeightFormat::int8, 2, 5};
  // As a rank has them: the last 8 rows of each.
  const Kept kept({{&q, {16, 8}, {0, 64}, {0, false}}, {&k, {8, 8}, {0, 64}, {8, false}}}, format,
                  24, 64);
  const auto first = widened(q);
  const auto second = widened(k);
  for (int row = 0; row < 32; ++row) {
    for (int i = 0; i < 64; ++i) {
      const float want = row < 8    ? first[at((16 + row) * 64 + i)]
                         : row < 16 ? second[at(row * 64 + i)]
                                    : 0.0F;
      ASSERT_EQ(kept.value(row, i), want) << row << ", " << i;
    }
  }
}

TEST(GpuPack, SomeInputsOfEachRow) {
  for (const cpu::GroupedType& type : {kFour, kEight}) {
    const auto m = random_matrix(16, 192, type, 3);
    const WeightFormat kind =
        type.type == cpu::WeightType::int4 ? WeightFormat::int4 : WeightFormat::int8;
    const auto values = widened(m);
    // Whole groups of 32, a part of one, and from within one on, by sixteens.
    for (const Slice& columns : {Slice{96, 96}, Slice{160, 16}, Slice{176, 16}, Slice{48, 96}}) {
      const bool one = columns.count < 32;
      const bool within = columns.first % 32 != 0;
      const LinearFormat format{kind, one ? 1 : within ? 6 : 3, one ? 31 : within ? 4 : 5};
      const Kept kept({{&m, {0, 16}, columns, {}}}, format, 16, static_cast<int>(columns.count));
      for (int row = 0; row < 16; ++row) {
        for (int i = 0; i < kept.in; ++i) {
          ASSERT_EQ(kept.value(row, i), values[at(row * 192 + columns.first + i)])
              << row << ", " << i;
        }
        for (int i = kept.in; i < 64 * cuda::units_of(kept.in); ++i) {
          ASSERT_EQ(kept.bits(row, i), 0U) << row << ", " << i;
        }
      }
    }
  }
}

TEST(GpuPack, ZeroPointsThatEightBitsDoNotHoldAreRefused) {
  auto m = random_matrix(16, 64, {cpu::WeightType::int8, {32, true, cpu::Second::zero}}, 3);
  const LinearFormat format{WeightFormat::int8, 2, 5};
  EXPECT_NO_THROW(Kept({{&m, {0, 16}, {0, 64}, {}}}, format, 16, 64));
  m.second[3] = 100;
  EXPECT_THROW(Kept({{&m, {0, 16}, {0, 64}, {}}}, format, 16, 64), ModelError);
}

// ------------------------------------------------------------------ from checkpoints

std::string random_text(std::size_t n, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::string bytes(n, 0);
  for (char& c : bytes) c = static_cast<char>(random());
  return bytes;
}

std::string half_scales(std::size_t n) {
  std::string bytes;
  std::mt19937 random(9);
  for (std::size_t i = 0; i < n; ++i) {
    GgufWriter::put(bytes, static_cast<std::uint16_t>(0x2000U | (random() & 0x3FFU)));
  }
  return bytes;
}

/// One layer "l" [48, 64] of a folder.
class Folder {
 public:
  explicit Folder(Json quantization) : quantization_(std::move(quantization)) {}

  void add(const std::string& name, const char* dtype, const std::vector<std::int64_t>& shape,
           const std::string& bytes) {
    header_["l." + name] = {{"dtype", dtype},
                            {"shape", shape},
                            {"data_offsets", {data_.size(), data_.size() + bytes.size()}}};
    data_ += bytes;
  }

  /// Reads the layer, and compares what a GPU is given with what CPUs widen it to, to the bit. What
  /// it is kept in.
  WeightFormat check() {
    Json config = {{"architectures", {"LlamaForCausalLM"}},
                   {"hidden_size", 64},
                   {"num_hidden_layers", 1},
                   {"num_attention_heads", 4},
                   {"intermediate_size", 96},
                   {"vocab_size", 100},
                   {"max_position_embeddings", 2048}};
    if (!quantization_.is_null()) config["quantization_config"] = quantization_;
    std::string head = header_.dump();
    head.append((8 - head.size() % 8) % 8, ' ');
    const std::uint64_t size = head.size();
    const TempDir folder;
    folder.write("model.safetensors",
                 std::string(reinterpret_cast<const char*>(&size), 8) + head + data_);
    const ModelConfig parsed = parse_model_config(config.dump(), "", "config.json");
    EXPECT_NO_THROW(check_gpu_limits(parsed));
    const Checkpoint checkpoint(folder.path());
    return check_layer(parsed, checkpoint, "l", 48, 64);
  }

  static WeightFormat check_layer(const ModelConfig& config, const Checkpoint& checkpoint,
                                  const std::string& name, int out, int in) {
    CheckpointReader reader(config, checkpoint);
    const LinearSource source = reader.linear(name, out, in);
    const cpu::MatrixSource wide = reader.dequantized(source);
    const auto* values = reinterpret_cast<const float*>(wide.data);
    const LinearFormat format = gpu_linear_format(config, &checkpoint, std::vector{name}, in);
    cpu::ThreadPool pool(1);
    if (format.format == WeightFormat::bf16) {
      WideRows rows(source, config.quantization, pool);
      std::vector<float> some(at(16 * in));
      for (int first = 0; first < out; first += 16) {
        rows.read(first, 16, some.data());
        EXPECT_EQ(std::memcmp(some.data(), values + first * in, some.size() * 4), 0) << first;
      }
      return format.format;
    }
    const cpu::GroupedMatrix whole = grouped_matrix(source, config.quantization, pool);
    const Kept kept({{&whole, {0, out}, {0, in}, {}}}, format, out, in);
    for (int row = 0; row < out; ++row) {
      for (int i = 0; i < in; ++i) {
        const float want = values[row * in + i];
        const float got = kept.value(row, i);
        if (got != want) ADD_FAILURE() << name << " " << row << ", " << i << ": " << got;
        if (got != want) return format.format;
      }
    }
    return format.format;
  }

 private:
  Json quantization_;
  Json header_ = Json::object();
  std::string data_;
};

Json packed(int bits, int group, bool symmetric) {
  Json weights = {{"num_bits", bits},
                  {"type", "int"},
                  {"strategy", group == 0 ? "channel" : "group"},
                  {"symmetric", symmetric},
                  {"dynamic", false}};
  if (group > 0) weights["group_size"] = group;
  return {{"quant_method", "compressed-tensors"},
          {"format", "pack-quantized"},
          {"quantization_status", "compressed"},
          {"config_groups", {{"group_0", {{"targets", {"Linear"}}, {"weights", weights}}}}}};
}

TEST(GpuKeeps, PackedIntegers) {
  const auto kept = [](int bits, int group, bool symmetric) {
    Folder f(packed(bits, group, symmetric));
    const int groups = group == 0 ? 1 : 64 / group;
    f.add("weight_packed", "I32", {48, 64 * bits / 32}, random_text(at(48 * 64 * bits / 8), 1));
    f.add("weight_scale", "F16", {48, groups}, half_scales(at(48 * groups)));
    if (!symmetric) {
      f.add("weight_zero_point", "I32", {48 * bits / 32, groups},
            random_text(at(48 * bits / 8 * groups), 2));
    }
    std::string shape;
    for (const std::int64_t n : {48, 64}) GgufWriter::put(shape, n);
    f.add("weight_shape", "I64", {2}, shape);
    return f.check();
  };
  EXPECT_EQ(kept(4, 32, true), WeightFormat::int4);
  EXPECT_EQ(kept(4, 32, false), WeightFormat::int4);
  EXPECT_EQ(kept(4, 0, true), WeightFormat::int4);
  EXPECT_EQ(kept(4, 16, true), WeightFormat::bf16);
  EXPECT_EQ(kept(8, 32, true), WeightFormat::int8);
  EXPECT_EQ(kept(8, 0, true), WeightFormat::int8);
  EXPECT_EQ(kept(8, 32, false), WeightFormat::bf16);
  EXPECT_EQ(kept(8, 16, true), WeightFormat::bf16);
}

TEST(GpuKeeps, GptqOfEightBitsWhoseZerosAreTheMiddle) {
  for (const bool old : {true, false}) {
    for (const bool middle : {true, false}) {
      Folder f({{"quant_method", "gptq"},
                {"bits", 8},
                {"group_size", 32},
                {"checkpoint_format", old ? "gptq" : "gptq_v2"}});
      std::string zeros(96, static_cast<char>(old ? 127 : 128));
      if (!middle) zeros[50] = 3;
      f.add("qweight", "I32", {16, 48}, random_text(48 * 64, 1));
      f.add("qzeros", "I32", {2, 12}, zeros);
      f.add("scales", "F16", {2, 48}, half_scales(96));
      EXPECT_EQ(f.check(), middle ? WeightFormat::int8 : WeightFormat::bf16);
    }
  }
}

TEST(GpuKeeps, Nvfp4IsWidened) {
  Folder f({{"quant_method", "modelopt"}, {"quant_algo", "NVFP4"}});
  std::string scales = random_text(48 * 4, 2);
  for (char& c : scales) c = static_cast<char>(c & 0x77);  // positive, no NaN
  std::string whole;
  GgufWriter::put(whole, 0.0037F);
  f.add("weight", "U8", {48, 32}, random_text(48 * 32, 1));
  f.add("weight_scale", "F8_E4M3", {48, 4}, scales);
  f.add("weight_scale_2", "F32", {}, whole);
  EXPECT_EQ(f.check(), WeightFormat::bf16);
}

// ------------------------------------------------------------------ GGUF

struct BlockType {
  std::uint32_t number;
  int numbers, bytes;
  std::vector<int> halves;  // where F16 lie in a block
};
const BlockType kQ4_0{2, 32, 18, {0}}, kQ4_1{3, 32, 20, {0, 2}}, kQ5_0{6, 32, 22, {0}},
    kQ8_0{8, 32, 34, {0}}, kQ4_K{12, 256, 144, {0, 2}}, kQ6_K{14, 256, 210, {208}};

std::string blocks(const BlockType& type, int out, int in, std::uint32_t seed) {
  std::string bytes = random_text(at(out) * at(in / type.numbers * type.bytes), seed);
  std::mt19937 random(seed);
  for (std::size_t i = 0; i < bytes.size(); i += at(type.bytes)) {
    for (const int half : type.halves) {
      const auto scale = static_cast<std::uint16_t>(0x2000U | (random() & 0x3FFU));
      std::memcpy(bytes.data() + i + at(half), &scale, 2);
    }
  }
  return bytes;
}

std::string ones(int n) {
  std::string bytes;
  for (int i = 0; i < n; ++i) GgufWriter::put(bytes, 1.0F);
  return bytes;
}

constexpr int kHidden = 256;

/// A layer of llama: q and k in pairs of rows. The types of q, k, v, o, gate, up, down.
std::string gguf_model(const std::vector<const BlockType*>& types) {
  GgufWriter w;
  w.text("general.architecture", "llama");
  w.count("llama.embedding_length", kHidden);
  w.count("llama.block_count", 1);
  w.count("llama.feed_forward_length", 256);
  w.count("llama.context_length", 128);
  w.count("llama.attention.head_count", 4);
  w.count("llama.attention.head_count_kv", 2);
  w.real("llama.attention.layer_norm_rms_epsilon", 1e-6F);
  w.text("tokenizer.ggml.model", "gpt2");
  w.text("tokenizer.ggml.pre", "qwen2");
  w.texts("tokenizer.ggml.tokens", {"a", "b"});
  w.counts("tokenizer.ggml.token_type", {1, 1});
  w.texts("tokenizer.ggml.merges", {});
  w.count("tokenizer.ggml.eos_token_id", 1);
  w.tensor("token_embd.weight", {2, kHidden}, kQ8_0.number, blocks(kQ8_0, 2, kHidden, 30));
  w.tensor("output_norm.weight", {kHidden}, 0, ones(kHidden));
  w.tensor("blk.0.attn_norm.weight", {kHidden}, 0, ones(kHidden));
  w.tensor("blk.0.ffn_norm.weight", {kHidden}, 0, ones(kHidden));
  const std::pair<const char*, int> layers[] = {
      {"attn_q", 256},   {"attn_k", 128}, {"attn_v", 128},  {"attn_output", 256},
      {"ffn_gate", 256}, {"ffn_up", 256}, {"ffn_down", 256}};
  for (std::size_t i = 0; i < types.size(); ++i) {
    const int out = layers[i].second;
    w.tensor(std::string("blk.0.") + layers[i].first + ".weight",
             {static_cast<std::uint64_t>(out), kHidden}, types[i]->number,
             blocks(*types[i], out, kHidden, static_cast<std::uint32_t>(i)));
  }
  return w.bytes();
}

/// Opens the file, and hands over its matrices' formats.
void with_gguf(const std::vector<const BlockType*>& types,
               const std::function<void(const ModelConfig&, const Checkpoint&)>& use) {
  const TempDir folder;
  folder.write("m.gguf", gguf_model(types));
  const ModelConfig config = load_model_config(folder / "m.gguf");
  const Checkpoint checkpoint(folder / "m.gguf");
  EXPECT_NO_THROW(check_gpu_limits(config));
  use(config, checkpoint);
}

TEST(GpuKeeps, BlocksOfGgufFiles) {
  for (const auto& [type, kept] : {std::pair(&kQ4_0, WeightFormat::int4),
                                   {&kQ5_0, WeightFormat::int8},
                                   {&kQ8_0, WeightFormat::int8},
                                   {&kQ4_1, WeightFormat::bf16},
                                   {&kQ4_K, WeightFormat::bf16},
                                   {&kQ6_K, WeightFormat::bf16}}) {
    with_gguf(std::vector(7, type), [&, kept = kept](const auto& config, const auto& checkpoint) {
      const std::string layer = "model.layers.0.";
      for (const auto& [name, out] : {std::pair("self_attn.q_proj", 256),
                                      {"self_attn.k_proj", 128},
                                      {"self_attn.v_proj", 128},
                                      {"mlp.down_proj", 256}}) {
        EXPECT_EQ(Folder::check_layer(config, checkpoint, layer + name, out, kHidden), kept)
            << name;
      }
    });
  }
}

TEST(GpuKeeps, MatricesByTheirParts) {
  // Q4_0 beside Q8_0 becomes eight bits; Q6_K (groups of 16) beside Q8_0 bf16.
  with_gguf({&kQ4_0, &kQ8_0, &kQ4_0, &kQ4_0, &kQ6_K, &kQ8_0, &kQ4_K},
            [](const ModelConfig& config, const Checkpoint& checkpoint) {
              const GpuCut whole;
              const GpuFormats formats(config, &checkpoint, whole);
              EXPECT_EQ(formats.qkv(0).format, WeightFormat::int8);
              EXPECT_EQ(formats.qkv(0).groups, 8);
              EXPECT_EQ(formats.o(0).format, WeightFormat::int4);
              EXPECT_EQ(formats.gate_up(0).format, WeightFormat::bf16);
              EXPECT_EQ(formats.down(0).format, WeightFormat::bf16);
              EXPECT_EQ(formats.summary().text(),
                        "kept int4: 1 matrix, kept int8: 1 matrix, widened to bf16: 2 matrices");
              EXPECT_EQ(formats.summary().most(), "bf16");
              // A rank's inputs begin where groups do, or it has less than one.
              const GpuCut half{{1, 2}, false};
              EXPECT_EQ(GpuFormats(config, &checkpoint, half).o(0).groups, 4);
              const GpuCut sixteenth{{3, 16}, false};
              EXPECT_EQ(GpuFormats(config, &checkpoint, sixteenth).o(0).groups, 1);
            });
}

TEST(GpuKeeps, WhatItTakesIsToldBefore) {
  const auto bytes = [](const BlockType& type) {
    std::uint64_t found = 0;
    with_gguf(std::vector(7, &type), [&](const auto& config, const auto& checkpoint) {
      const RankWeights w = rank_weights(config, checkpoint, TensorBytes::on_gpu);
      found = w.of_largest(1) - w.repeated;
    });
    return found;
  };
  constexpr std::uint64_t kWeights = (5 * 256 + 2 * 128) * 256;
  EXPECT_EQ(bytes(kQ4_0), kWeights * 5 / 8);
  EXPECT_EQ(bytes(kQ8_0), kWeights * 9 / 8);
  EXPECT_EQ(bytes(kQ6_K), kWeights * 2);
}

TEST(GpuKeeps, WithoutACheckpointWhatItsConfigurationSays) {
  const auto of = [](const Json& quantization) {
    Json config = {{"architectures", {"LlamaForCausalLM"}},
                   {"hidden_size", 64},
                   {"num_hidden_layers", 2},
                   {"num_attention_heads", 4},
                   {"intermediate_size", 96},
                   {"vocab_size", 100},
                   {"max_position_embeddings", 2048},
                   {"quantization_config", quantization}};
    const ModelConfig parsed = parse_model_config(config.dump(), "", "config.json");
    const GpuCut whole;
    return GpuFormats(parsed, nullptr, whole).summary().text();
  };
  EXPECT_EQ(of(packed(8, 32, true)), "kept int8: 8 matrices");
  EXPECT_EQ(of(packed(4, 32, false)), "kept int4: 8 matrices");
  EXPECT_EQ(of(packed(8, 32, false)), "widened to bf16: 8 matrices");
  EXPECT_EQ(of({{"quant_method", "modelopt"}, {"quant_algo", "NVFP4"}}),
            "widened to bf16: 8 matrices");
  EXPECT_EQ(of({{"quant_method", "gptq"}, {"bits", 8}, {"group_size", 32}}),
            "kept int8: 8 matrices");
}

}  // namespace
}  // namespace baton
