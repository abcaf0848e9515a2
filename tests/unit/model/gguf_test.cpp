// GGUF files: what is read of them, and that those that lie are refused by name, never read out of
// bounds.
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>

#include "tests/support/gguf_writer.h"
#include "tests/support/temp_dir.h"
#include "text/gguf/gguf_folder.h"
#include "workers/model/checkpoint_reader.h"
#include "workers/model/error.h"
#include "workers/model/ggml_blocks.h"
#include "workers/model/safetensors.h"
#include "workers/model/weights.h"

namespace baton {
namespace {

using test::GgufWriter;
using Json = nlohmann::json;

constexpr std::uint32_t kF32 = 0;
constexpr std::uint32_t kQ8 = 8;

std::string refusal(const std::string& bytes) {
  const auto head = GgufHead::parse(bytes, "m.gguf");
  return head.ok() ? "" : head.status().message();
}

/// A small model of the kind "llama": 2 layers, 32 wide, 2 heads of 16.
GgufWriter small_model(const std::string& architecture = "llama") {
  GgufWriter w;
  const std::string a = architecture + ".";
  w.text("general.architecture", architecture);
  w.count(a + "embedding_length", 32);
  w.count(a + "block_count", 1);
  w.count(a + "feed_forward_length", 64);
  w.count(a + "context_length", 128);
  w.count(a + "attention.head_count", 2);
  w.count(a + "attention.head_count_kv", 1);
  w.real(a + "attention.layer_norm_rms_epsilon", 1e-6F);
  w.real(a + "rope.freq_base", 500000.0F);
  w.text("tokenizer.ggml.model", "gpt2");
  w.text("tokenizer.ggml.pre", "qwen2");
  w.texts("tokenizer.ggml.tokens", {"a", "b", "ab", "<|im_end|>", "<|x|>"});
  w.counts("tokenizer.ggml.token_type", {1, 1, 1, 3, 4});
  w.texts("tokenizer.ggml.merges", {"a b"});
  w.count("tokenizer.ggml.eos_token_id", 2);
  w.text("tokenizer.chat_template", "{{ messages }}");
  return w;
}

std::string floats(std::size_t n, float first = 0) {
  std::string bytes;
  for (std::size_t i = 0; i < n; ++i) GgufWriter::put(bytes, first + static_cast<float>(i));
  return bytes;
}

void add_tensors(GgufWriter& w) {
  const auto add = [&](const std::string& name, const std::vector<std::uint64_t>& shape) {
    std::uint64_t n = 1;
    for (const std::uint64_t size : shape) n *= size;
    w.tensor(name, shape, kF32, floats(n));
  };
  add("token_embd.weight", {5, 32});
  add("output_norm.weight", {32});
  const std::string b = "blk.0.";
  add(b + "attn_norm.weight", {32});
  add(b + "attn_q.weight", {32, 32});
  add(b + "attn_k.weight", {16, 32});
  add(b + "attn_v.weight", {16, 32});
  add(b + "attn_output.weight", {32, 32});
  add(b + "ffn_norm.weight", {32});
  add(b + "ffn_gate.weight", {64, 32});
  add(b + "ffn_up.weight", {64, 32});
  add(b + "ffn_down.weight", {32, 64});
}

TEST(Gguf, ReadsAGoodFile) {
  GgufWriter w = small_model();
  w.tensor("t", {3, 32}, kQ8, std::string(3 * 34, 'q'));
  w.tensor("u", {2}, kF32, floats(2));
  const std::string bytes = w.bytes();
  const auto head = GgufHead::parse(bytes, "m.gguf");
  ASSERT_TRUE(head.ok()) << head.status().message();
  const GgufTensor& t = head.value().tensors().at("t");
  EXPECT_EQ(t.shape, (std::vector<std::int64_t>{3, 32}));
  EXPECT_EQ(t.bytes, 102U);
  EXPECT_EQ(bytes.substr(t.offset, t.bytes), std::string(102, 'q'));
  EXPECT_EQ(head.value().count("llama.block_count"), 1U);
  EXPECT_EQ(head.value().text("tokenizer.ggml.model"), "gpt2");
  EXPECT_EQ(head.value().texts("tokenizer.ggml.tokens")->at(2), "ab");
  EXPECT_EQ(head.value().numbers("tokenizer.ggml.token_type")->at(3), 3.0);
  EXPECT_EQ(head.value().count("tokenizer.ggml.model"), std::nullopt) << "of another kind";
}

TEST(Gguf, EveryShorterFileIsRefused) {
  GgufWriter w = small_model();
  w.tensor("t", {3, 32}, kQ8, std::string(102, 'q'));
  const std::string bytes = w.bytes();
  for (std::size_t n = 0; n < bytes.size(); ++n) {
    // At its very end, so that a sanitizer sees a byte too much.
    const std::vector<char> shorter(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(n));
    const auto head = GgufHead::parse({shorter.data(), shorter.size()}, "m.gguf");
    EXPECT_FALSE(head.ok()) << n;
  }
}

TEST(Gguf, RefusesWhatLies) {
  const auto model_with = [](auto change) {
    GgufWriter w = small_model();
    change(w);
    return refusal(w.bytes());
  };
  const auto says = [](const std::string& text, const char* words) {
    EXPECT_NE(text.find(words), std::string::npos) << "got: " << text;
  };
  says(refusal("GGML" + std::string(100, 0)), "not a GGUF file");
  says(refusal(""), "not a GGUF file");
  says(model_with([](auto& w) { w.version = 1; }), "GGUF version 1 is not supported");
  says(model_with([](auto& w) { w.tensor_count = 1ULL << 60U; }), "more than 1048576 tensors");
  says(model_with([](auto& w) { w.setting_count = 1ULL << 60U; }), "more than 1048576 tensors");
  says(model_with([](auto& w) { w.setting_count += 1; }), "a setting's name is empty");
  says(model_with([](auto& w) { w.text("general.architecture", "x"); }),
       "'general.architecture' is there twice");
  says(model_with([](auto& w) { w.begin("k", 13); }), "'k' has the unknown type 13");
  says(model_with([](auto& w) { w.list("k", 9, 1); }),
       "'k' is a list of the unknown or nested type 9");
  says(model_with([](auto& w) { w.list("k", 4, 1ULL << 62U); }),
       "'k' has more elements than the file");
  says(model_with([](auto& w) { w.list("k", 8, 1ULL << 61U); }),
       "'k' has more elements than the file");
  says(model_with([](auto& w) { w.count("general.alignment", 24); }),
       "general.alignment is no power of two");
  says(model_with([](auto& w) { w.head("t", {}, kF32, 0); }), "'t': has 0 dimensions");
  says(model_with([](auto& w) { w.head("t", {1, 1, 1, 1, 1}, kF32, 0); }), "'t': has 5 dimensions");
  says(model_with([](auto& w) {
         w.head("t", {1ULL << 40U, 1ULL << 40U}, kF32, 0);
       }),
       "'t': the shape is empty or overflows");
  says(model_with([](auto& w) {
         w.head("t", {0, 32}, kF32, 0);
       }),
       "'t': the shape is empty or overflows");
  says(model_with([](auto& w) { w.head("t", {32}, 10, 0); }), "'t': the type 10 is not supported");
  says(model_with([](auto& w) { w.head("t", {33}, kQ8, 0); }),
       "'t': rows of 33 numbers do not divide into blocks of Q8_0");
  says(model_with([](auto& w) { w.head("t", {32}, kF32, 7); }), "'t': the data are not aligned");
  says(model_with([](auto& w) { w.head("t", {32}, kF32, 1ULL << 40U); }),
       "'t': the data reach behind the end");
  says(model_with([](auto& w) {
         w.tensor("t", {32}, kF32, floats(32));
         w.head("u", {8}, kF32, 32);
       }),
       "'u': the data overlap those of another tensor");
  says(model_with([](auto& w) {
         w.tensor("t", {32}, kF32, floats(32));
         w.head("t", {32}, kF32, 0);
       }),
       "'t': is there twice");
}

TEST(Gguf, RandomDamageStaysInside) {
  GgufWriter w = small_model();
  w.tensor("t", {3, 32}, kQ8, std::string(102, 'q'));
  const std::string good = w.bytes();
  std::mt19937 random(22);
  for (int trial = 0; trial < 4000; ++trial) {
    std::string bytes = good;
    for (unsigned i = 0; i < 1 + random() % 3; ++i)
      bytes[random() % bytes.size()] = static_cast<char>(random());
    const auto head = GgufHead::parse(bytes, "m.gguf");
    if (!head.ok()) continue;
    for (const auto& [name, tensor] : head.value().tensors()) {
      ASSERT_LE(tensor.offset + tensor.bytes, bytes.size()) << name;
    }
    // What is made of it is made, or refused.
    static_cast<void>(gguf_config(head.value(), "m.gguf").ok());
    static_cast<void>(gguf_tokenizer_json(head.value(), "m.gguf").ok());
    static_cast<void>(gguf_tokenizer_config(head.value(), "m.gguf").ok());
  }
}

TEST(Gguf, BecomesAFolder) {
  GgufWriter w = small_model();
  add_tensors(w);
  const std::string bytes = w.bytes();
  const auto head = GgufHead::parse(bytes, "m.gguf");
  ASSERT_TRUE(head.ok()) << head.status().message();
  const Json config = Json::parse(gguf_config(head.value(), "m.gguf").value());
  EXPECT_EQ(config["architectures"], Json::array({"LlamaForCausalLM"}));
  EXPECT_EQ(config["rms_norm_eps"], 1e-6) << "as it was written, not as fp32 holds it";
  EXPECT_EQ(config["rope_theta"], 500000.0);
  EXPECT_EQ(config["head_dim"], 16);
  EXPECT_EQ(config["vocab_size"], 5);
  EXPECT_EQ(config["tie_word_embeddings"], true);
  EXPECT_EQ(config["eos_token_id"], (Json{2, 3})) << "the file's, and the well-known end of a turn";
  const Json settings = Json::parse(gguf_tokenizer_config(head.value(), "m.gguf").value());
  EXPECT_EQ(settings["chat_template"], "{{ messages }}");
  EXPECT_EQ(settings["eos_token"], "ab");
  EXPECT_EQ(settings["add_bos_token"], false);
  const Json tokenizer = Json::parse(gguf_tokenizer_json(head.value(), "m.gguf").value());
  EXPECT_EQ(tokenizer["normalizer"]["type"], "NFC");
  ASSERT_EQ(tokenizer["added_tokens"].size(), 2U);
  EXPECT_EQ(tokenizer["added_tokens"][0]["special"], true);
  EXPECT_EQ(tokenizer["added_tokens"][1]["special"], false) << "user-defined";
}

TEST(Gguf, WhatIsNotServedIsRefusedByName) {
  const auto config_of = [](const GgufWriter& w) {
    const std::string bytes = w.bytes();
    const auto config = gguf_config(GgufHead::parse(bytes, "m.gguf").value(), "m.gguf");
    return config.ok() ? "" : config.status().message();
  };
  EXPECT_NE(config_of(small_model("mamba"))
                .find("general.architecture: 'mamba' is not supported, only llama"),
            std::string::npos);
  GgufWriter ropes = small_model();
  ropes.text("llama.rope.scaling.type", "spiral");
  EXPECT_NE(config_of(ropes).find("llama.rope.scaling.type: 'spiral' is not supported"),
            std::string::npos);
  GgufWriter window = small_model();
  window.count("llama.attention.sliding_window", 64);
  EXPECT_NE(config_of(window).find("llama.attention.sliding_window: is not supported"),
            std::string::npos);
  GgufWriter parts = small_model();
  parts.count("split.count", 3);
  EXPECT_NE(config_of(parts).find("split.count"), std::string::npos);
  EXPECT_NE(config_of(small_model()).find("token_embd.weight"), std::string::npos);
  GgufWriter tokens;
  tokens.text("tokenizer.ggml.model", "bert");
  const std::string bytes = tokens.bytes();
  EXPECT_NE(gguf_tokenizer_file(GgufHead::parse(bytes, "m.gguf").value(), "m.gguf")
                .status()
                .message()
                .find("'bert' is not supported"),
            std::string::npos);
}

class GgufModel : public testing::Test {
 protected:
  std::string write(const GgufWriter& w) {
    folder_.write("m.gguf", w.bytes());
    return folder_ / "m.gguf";
  }
  const TempDir folder_;
};

TEST_F(GgufModel, TheRowsOfQAndKAreUnturned) {
  GgufWriter w = small_model();
  add_tensors(w);
  const std::string path = write(w);
  const ModelConfig config = load_model_config(path);
  const Checkpoint checkpoint(path);
  CheckpointReader reader(config, checkpoint);
  const LayerSource layer = reader.layer(0);
  const auto first_of = [](const LinearSource& source, std::int64_t row) {
    return cpu::element(source.plain.data, source.plain.type, row * source.plain.columns);
  };
  // Of a head of 16 rows the file has 0, 8, 1, 9, ...: the folder's row 1 is the file's row 2.
  EXPECT_EQ(first_of(layer.q, 1), 64.0F);
  EXPECT_EQ(first_of(layer.q, 8), 32.0F);
  EXPECT_EQ(first_of(layer.q, 16 + 9), (16 + 3) * 32.0F) << "the second head";
  EXPECT_EQ(first_of(layer.k, 15), 15 * 32.0F);
  EXPECT_EQ(first_of(layer.v, 1), 32.0F) << "only q and k";
}

TEST_F(GgufModel, OtherArchitecturesRowsStay) {
  GgufWriter w = small_model("qwen2");
  add_tensors(w);
  for (const char* name : {"attn_q", "attn_k", "attn_v"}) {
    w.tensor(std::string("blk.0.") + name + ".bias", {name == std::string("attn_q") ? 32U : 16U},
             kF32, floats(32));
  }
  const std::string path = write(w);
  const ModelConfig config = load_model_config(path);
  const Checkpoint checkpoint(path);
  CheckpointReader reader(config, checkpoint);
  const LayerSource layer = reader.layer(0);
  EXPECT_EQ(cpu::element(layer.q.plain.data, layer.q.plain.type, 32), 32.0F);
}

TEST_F(GgufModel, ATensorThatNothingUsesIsRefused) {
  GgufWriter w = small_model();
  add_tensors(w);
  w.tensor("blk.0.attn_sinks.weight", {2}, kF32, floats(2));
  const std::string path = write(w);
  const ModelConfig config = load_model_config(path);
  const Checkpoint checkpoint(path);
  CheckpointReader reader(config, checkpoint);
  reader.embedding();
  reader.layer(0);
  reader.final_norm();
  try {
    reader.expect_all_taken();
    ADD_FAILURE();
  } catch (const ModelError& error) {
    EXPECT_NE(std::string(error.what()).find("blk.0.attn_sinks.weight: no part of"),
              std::string::npos)
        << error.what();
  }
}

TEST_F(GgufModel, FactorsOfAnglesAreATensor) {
  GgufWriter w = small_model();
  add_tensors(w);
  w.tensor("rope_freqs.weight", {8}, kF32, floats(8, 1));
  const ModelConfig config = load_model_config(write(w));
  EXPECT_EQ(config.ropes.front().type, RopeType::longrope);
  EXPECT_EQ(config.ropes.front().stretch, (std::vector<double>{1, 2, 3, 4, 5, 6, 7, 8}));
  EXPECT_EQ(config.ropes.front().attention_factor, 1.0);
  GgufWriter wrong = small_model();
  add_tensors(wrong);
  wrong.tensor("rope_freqs.weight", {7}, kF32, floats(7, 1));
  EXPECT_THROW(load_model_config(write(wrong)), ModelError);
}

/// Blocks of random numbers whose f16 scales are small ones.
std::string random_blocks(GgmlType type, std::uint64_t numbers, std::uint32_t seed) {
  const GgmlLayout layout = *ggml_layout(static_cast<std::uint32_t>(type));
  std::mt19937 random(seed);
  std::string bytes(numbers / layout.numbers * layout.bytes, 0);
  for (char& b : bytes) b = static_cast<char>(random());
  for (std::size_t at = 0; at < bytes.size(); at += layout.bytes) {
    const std::size_t first = type == GgmlType::q6_k ? layout.bytes - 2 : 0;
    for (const std::size_t place :
         {first, first == 0 && ggml_has_offset(type) ? first + 2 : first}) {
      bytes[at + place] = static_cast<char>(random());
      bytes[at + place + 1] = 0x20;  // 2^-7 and some more
    }
  }
  return bytes;
}

TEST_F(GgufModel, MixedTypesStayWholeNumbersAndThePlanKnowsHowMany) {
  GgufWriter w;
  w.text("general.architecture", "qwen2");
  for (const auto& [key, value] : {std::pair("embedding_length", 256U),
                                   {"block_count", 1U},
                                   {"feed_forward_length", 512U},
                                   {"context_length", 128U},
                                   {"attention.head_count", 4U},
                                   {"attention.head_count_kv", 2U}}) {
    w.count(std::string("qwen2.") + key, value);
  }
  w.real("qwen2.attention.layer_norm_rms_epsilon", 1e-6F);
  const auto blocks = [&](const std::string& name, std::uint64_t out, std::uint64_t in,
                          GgmlType type) {
    w.tensor(name, {out, in}, static_cast<std::uint32_t>(type), random_blocks(type, out * in, 7));
  };
  const auto plain = [&](const std::string& name, std::uint64_t n) {
    w.tensor(name, {n}, kF32, floats(n));
  };
  const std::string b = "blk.0.";
  blocks("token_embd.weight", 64, 256, GgmlType::q8_0);
  plain("output_norm.weight", 256);
  plain(b + "attn_norm.weight", 256);
  blocks(b + "attn_q.weight", 256, 256, GgmlType::q4_k);
  blocks(b + "attn_k.weight", 128, 256, GgmlType::q4_k);
  blocks(b + "attn_v.weight", 128, 256, GgmlType::q6_k);
  plain(b + "attn_q.bias", 256);
  plain(b + "attn_k.bias", 128);
  plain(b + "attn_v.bias", 128);
  blocks(b + "attn_output.weight", 256, 256, GgmlType::q4_0);
  plain(b + "ffn_norm.weight", 256);
  blocks(b + "ffn_gate.weight", 512, 256, GgmlType::q5_0);
  blocks(b + "ffn_up.weight", 512, 256, GgmlType::q5_0);
  blocks(b + "ffn_down.weight", 256, 512, GgmlType::q4_k);
  const std::string path = write(w);
  const ModelConfig config = load_model_config(path);
  const Checkpoint checkpoint(path);
  for (const WeightChoice choice : {WeightChoice::stored, WeightChoice::f32, WeightChoice::bf16}) {
    const auto memory = std::make_shared<WeightMemory>();
    const Weights weights = pack_weights(config, checkpoint, choice, 2, nullptr, memory);
    const WeightPlan plan = plan_weights(config, checkpoint, choice);
    EXPECT_EQ(plan.bytes, weights.bytes()) << static_cast<int>(choice);
    if (choice != WeightChoice::stored) continue;
    EXPECT_EQ(plan.dtype, "int8 (stored as Q4_K)") << "q and k take v's type";
    const LayerWeights& layer = weights.layers.front();
    EXPECT_EQ(layer.qkv.format, (cpu::GroupFormat{16, false, cpu::Second::offset}));
    EXPECT_EQ(layer.o.type, cpu::WeightType::int4);
    EXPECT_EQ(layer.dense.gate_up.type, cpu::WeightType::int8);
    EXPECT_TRUE(layer.dense.gate_up.paired);
    EXPECT_EQ(weights.lm_head.format, (cpu::GroupFormat{32, true, cpu::Second::none}));
  }
  const auto memory = std::make_shared<WeightMemory>();
  const Weights rounded = pack_weights(config, checkpoint, WeightChoice::stored, 2, nullptr, memory,
                                       {}, Activations::int8);
  const WeightPlan plan = plan_weights(config, checkpoint, WeightChoice::stored);
  EXPECT_TRUE(plan.whole_numbers);
  EXPECT_EQ(plan.bytes, rounded.bytes()) << "rounded inputs take no more weights";
  EXPECT_TRUE(rounded.layers.front().qkv.format.rounds_inputs);
  EXPECT_TRUE(rounded.lm_head.format.rounds_inputs);
}

TEST(GgmlBlocks, ValuesAreThoseOfThePublishedPackage) {
  const char* source = std::getenv("BATON_SOURCE_DIR");
  std::ifstream in(
      std::string(source != nullptr ? source : ".") + "/tests/golden/ggml_blocks.safetensors",
      std::ios::binary);
  std::stringstream text;
  text << in.rdbuf();
  const std::string bytes = text.str();
  std::vector<std::uint64_t> aligned((bytes.size() + 7) / 8);
  std::memcpy(aligned.data(), bytes.data(), bytes.size());
  const auto tensors =
      parse_safetensors(reinterpret_cast<const std::byte*>(aligned.data()), bytes.size(), "golden");
  cpu::ThreadPool pool(1);
  for (const auto& [name, type] : {std::pair("Q4_0", GgmlType::q4_0),
                                   {"Q4_1", GgmlType::q4_1},
                                   {"Q5_0", GgmlType::q5_0},
                                   {"Q5_1", GgmlType::q5_1},
                                   {"Q8_0", GgmlType::q8_0},
                                   {"Q4_K", GgmlType::q4_k},
                                   {"Q5_K", GgmlType::q5_k},
                                   {"Q6_K", GgmlType::q6_k}}) {
    const TensorView& blocks = tensors.at(std::string(name) + ".blocks");
    const TensorView& values = tensors.at(std::string(name) + ".values");
    const std::int64_t n = values.shape.front();
    std::vector<float> found(static_cast<std::size_t>(n));
    dequantize_blocks({blocks.data, type, 2, n / 2, 0, name}, pool, found.data());
    EXPECT_EQ(std::memcmp(found.data(), values.data, values.bytes), 0) << name;
  }
}

}  // namespace
}  // namespace baton
