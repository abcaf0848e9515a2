// Which tensors a family's layers have, and what is said of a checkpoint that has others.
#include "workers/model/checkpoint_reader.h"

#include <gtest/gtest.h>

#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "tests/cpu_torch/golden_file.h"
#include "tests/cpu_torch/model_fixture.h"
#include "tests/support/temp_dir.h"
#include "workers/cpu/finite.h"
#include "workers/model/error.h"
#include "workers/model/fingerprint.h"

namespace baton::test {
namespace {

std::string folder_of(const std::string& name) { return golden_folder() + "/models/" + name; }

/// Reads a golden model under a changed configuration; what is said against it, else empty.
template <class Change>
std::string refusal(const std::string& name, Change change) {
  ModelConfig config = load_model_config(folder_of(name));
  change(config);
  const Checkpoint checkpoint(folder_of(name));
  CheckpointReader reader(config, checkpoint);
  try {
    reader.embedding();
    for (int i = 0; i < config.layers; ++i) {
      reader.layer(i);
      for (int e = 0; e < config.layer(i).experts.count; ++e) reader.expert(i, e);
    }
    reader.final_norm();
    reader.final_norm_bias();
    reader.lm_head();
    reader.expect_all_taken();
  } catch (const ModelError& error) {
    return error.what();
  }
  return "";
}

TEST(CheckpointReader, TakesEveryTensorOfEveryFamily) {
  for (const std::string& name : all_models()) {
    EXPECT_EQ(refusal(name, [](ModelConfig&) {}), "") << name;
  }
}

TEST(WeightPlan, IsWhatIsTaken) {
  for (const std::string& name : all_models()) {
    for (const WeightChoice choice :
         {WeightChoice::stored, WeightChoice::f32, WeightChoice::bf16}) {
      LoadOptions options;
      options.weights = choice;
      const auto model = LlamaModel::load(folder_of(name), options);
      const Checkpoint checkpoint(folder_of(name));
      const WeightPlan plan = plan_weights(model->config(), checkpoint, choice);
      EXPECT_EQ(plan.bytes, model->weight_bytes()) << name << " " << static_cast<int>(choice);
      const bool quantised = model->config().quantization.method != QuantMethod::none;
      EXPECT_EQ(plan.loading_bytes > 0, quantised) << name;
      EXPECT_EQ(model->fingerprint() == load_golden(name)->fingerprint(),
                !rounds(checkpoint, choice))
          << name;
    }
  }
}

TEST(SealedWeights, GiveTheSameBitsToWhoeverMapsThem) {
  for (const std::string& name : all_models()) {
    const auto own = load_golden(name);
    EXPECT_EQ(own->sealed_weights(), nullptr) << name;
    LoadOptions options;
    options.seal = true;
    const auto packer = LlamaModel::load(folder_of(name), options);
    ASSERT_NE(packer->sealed_weights(), nullptr) << name;
    options = {};
    options.packed = packer->sealed_weights();
    const auto second = LlamaModel::load(folder_of(name), options);
    EXPECT_EQ(second->sealed_weights(), packer->sealed_weights()) << name;
    EXPECT_EQ(second->weight_bytes(), own->weight_bytes()) << name;
    EXPECT_GE(packer->sealed_weights()->size(), own->weight_bytes()) << name;
    EXPECT_LE(packer->sealed_weights()->size(), most_weight_bytes(own->config())) << name;
    const std::vector<Token> tokens = random_tokens(20, 60, 5);
    const Logits expected = logits_of(*own, tokens, 20);
    for (LlamaModel* model : {packer.get(), second.get()}) {
      const Logits found = logits_of(*model, tokens, 20);
      for (std::size_t i = 0; i < expected.size(); ++i)
        EXPECT_TRUE(same_bits(expected[i], found[i])) << name << ", token " << i;
    }
  }
}

TEST(SealedWeights, OfAnotherModelAreNotUsed) {
  LoadOptions options;
  options.seal = true;
  const auto other = LlamaModel::load(folder_of("mixtral"), options);
  options = {};
  options.packed = other->sealed_weights();
  const auto model = LlamaModel::load(folder_of("wide_heads"), options);
  EXPECT_EQ(model->sealed_weights(), nullptr);
  EXPECT_EQ(model->weight_bytes(), load_golden("wide_heads")->weight_bytes());
}

TEST(WeightPlan, WeightsOfAnotherTypeGiveTheSameBitsOrNearThem) {
  const std::vector<Token> tokens = random_tokens(20, 60, 5);
  const auto logits = [&](const char* name, WeightChoice choice) {
    LoadOptions options;
    options.weights = choice;
    return logits_of(*LlamaModel::load(folder_of(name), options), tokens, 20);
  };
  const Logits stored = logits("wide_heads", WeightChoice::stored);  // bf16
  const Logits dequantized = logits("wide_heads", WeightChoice::f32);
  for (std::size_t i = 0; i < stored.size(); ++i) EXPECT_TRUE(same_bits(stored[i], dequantized[i]));
  const Logits exact = logits("mha", WeightChoice::stored);  // f32
  const Logits rounded = logits("mha", WeightChoice::bf16);
  double error = 0, largest = 0;
  for (std::size_t i = 0; i < exact.size(); ++i) {
    for (std::size_t v = 0; v < exact[i].size(); ++v) {
      error = std::max(error, std::abs(double{exact[i][v]} - double{rounded[i][v]}));
      largest = std::max(largest, std::abs(double{exact[i][v]}));
    }
  }
  EXPECT_GT(error, 0);
  EXPECT_LT(error, 0.1 * largest);
}

TEST(CheckpointReader, NamesTensorsThatTheConfigurationDoesNotKnowOrMisses) {
  const auto each = [](auto change) {
    return [change](ModelConfig& c) {
      for (LayerSpec& layer : c.parts) change(layer);
    };
  };
  const auto no_bias = each([](LayerSpec& l) { l.attention.qkv_bias = false; });
  const auto no_norm = each([](LayerSpec& l) { l.attention.qk_norm = QkNorm::none; });
  const auto bias = each([](LayerSpec& l) { l.attention.qkv_bias = true; });
  const auto norm = each([](LayerSpec& l) { l.attention.qk_norm = QkNorm::head; });
  const auto fewer = each([](LayerSpec& l) { l.experts.count = std::min(l.experts.count, 3); });
  const auto all_dense = each([](LayerSpec& l) {
    l.experts = {};
    l.mlp.intermediate = 36;
  });
  EXPECT_NE(refusal("qwen3_moe", fewer).find("mlp.gate.weight: has the shape [8, 32]"),
            std::string::npos);
  EXPECT_NE(refusal("mixtral", all_dense).find("mlp.gate_proj.weight: is missing"),
            std::string::npos);
  EXPECT_NE(refusal("qwen2_bias", no_bias).find("k_proj.bias: no part"), std::string::npos);
  EXPECT_NE(refusal("qwen3_norms", no_norm).find("k_norm.weight: no part"), std::string::npos);
  EXPECT_NE(refusal("mha", bias).find("q_proj.bias: is missing"), std::string::npos);
  EXPECT_NE(refusal("mha", norm).find("q_norm.weight: is missing"), std::string::npos);
}

TEST(CheckpointReader, NamesWhatDoesNotFitTheQuantization) {
  const auto plain = [](ModelConfig& c) { c.quantization = {}; };
  const auto ordered = [](ModelConfig& c) { c.quantization.act_order = true; };
  const auto group = [](ModelConfig& c) { c.quantization.group = 16; };
  const auto gptq = [](ModelConfig& c) { c.quantization.method = QuantMethod::gptq; };
  const auto block = [](ModelConfig& c) { c.quantization.block_rows = 64; };
  EXPECT_NE(refusal("gptq_act_order", plain).find("q_proj.weight: is missing"), std::string::npos);
  EXPECT_NE(refusal("gptq_v2_experts", ordered).find("q_proj.g_idx: is missing"),
            std::string::npos);
  EXPECT_NE(refusal("gptq_act_order", group).find("q_proj.qzeros: has the shape [4, 4], config"),
            std::string::npos);
  EXPECT_NE(refusal("awq", gptq).find("q_proj.qweight: has the shape [32, 4]"), std::string::npos);
  EXPECT_NE(refusal("fp8_block", block).find("o_proj.weight_scale_inv: has the shape [2, 1]"),
            std::string::npos);
  EXPECT_NE(refusal("fp8_channel", plain).find("q_proj.weight: dtype F8_E4M3"), std::string::npos);
}

/// Changes the first bytes of a tensor of a golden model, in a folder of its own; what is said
/// then.
std::string refusal_of_changed(const std::string& tensor, std::vector<unsigned char> bytes,
                               const std::string& model = "gptq_sym") {
  namespace fs = std::filesystem;
  const TempDir folder;
  std::string path;
  for (const auto& entry : fs::directory_iterator(folder_of(model))) {
    const fs::path copy = fs::path(folder.path()) / entry.path().filename();
    fs::copy_file(entry.path(), copy);
    if (copy.extension() != ".safetensors") continue;
    const std::string text = read_file(copy);  // with shards: the one that has it
    const auto* begin = reinterpret_cast<const std::byte*>(text.data());
    if (parse_safetensors(begin, text.size(), copy).contains(tensor)) path = copy;
  }
  std::string text = read_file(path);
  const auto* begin = reinterpret_cast<const std::byte*>(text.data());
  const auto at = parse_safetensors(begin, text.size(), path).at(tensor).data - begin;
  std::memcpy(text.data() + at, bytes.data(), bytes.size());
  std::ofstream(path, std::ios::binary) << text;
  std::string said;
  try {
    load(folder.path());
  } catch (const ModelError& error) {
    said = error.what();
  }
  return said;
}

/// A tensor, as a file of safetensors has it.
struct Stored {
  std::string dtype;
  std::vector<std::int64_t> shape;
  std::string bytes;
};
using StoredTensors = std::map<std::string, Stored>;

/// The widest types first, so that everything is aligned.
void write_tensors(const StoredTensors& tensors, const std::string& path) {
  nlohmann::json header = nlohmann::json::object();
  std::string data;
  for (const char* dtype : {"F32", "BF16", "F8_E4M3"}) {
    for (const auto& [name, tensor] : tensors) {
      if (tensor.dtype != dtype) continue;
      const std::size_t begin = data.size();
      data += tensor.bytes;
      header[name] = {
          {"dtype", dtype}, {"shape", tensor.shape}, {"data_offsets", {begin, data.size()}}};
    }
  }
  std::string head = header.dump();
  head.append((8 - head.size() % 8) % 8, ' ');
  const std::uint64_t size = head.size();
  std::ofstream(path, std::ios::binary)
      << std::string_view(reinterpret_cast<const char*>(&size), 8) << head << data;
}

/// Logits of a golden model whose tensors are changed before; what is said against it instead,
/// else empty.
template <class Change>
std::string changed_logits(const std::string& model, Change change, Logits& logits) {
  const TempDir folder;
  const std::string file = "/model.safetensors";
  std::filesystem::copy(folder_of(model) + "/config.json", folder.path());
  const std::string text = read_file(folder_of(model) + file);
  StoredTensors tensors;
  const auto* begin = reinterpret_cast<const std::byte*>(text.data());
  for (const auto& [name, view] : parse_safetensors(begin, text.size(), model)) {
    tensors[name] = {
        view.dtype, view.shape, {reinterpret_cast<const char*>(view.data), view.bytes}};
  }
  change(tensors);
  write_tensors(tensors, folder.path() + file);
  try {
    const auto loaded = load(folder.path());
    logits = logits_of(*loaded, random_tokens(50, loaded->config().vocab, 3), 50);
  } catch (const ModelError& error) {
    return error.what();
  }
  return "";
}

/// `from` at the end of tensors' names becomes `to`.
void rename(StoredTensors& tensors, const std::string& from, const std::string& to) {
  StoredTensors renamed;
  for (auto& [name, tensor] : tensors) {
    const std::string stem = name.substr(0, name.size() - std::min(name.size(), from.size()));
    renamed[name.ends_with(from) ? stem + to : name] = std::move(tensor);
  }
  tensors = std::move(renamed);
}

TEST(CheckpointReader, KnowsBothWordsForScalesOf8BitFloats) {
  Logits as_published, renamed;
  ASSERT_EQ(changed_logits(
                "ministral3_fp8", [](StoredTensors&) {}, as_published),
            "");
  const auto auto_fp8 = [](StoredTensors& tensors) {
    rename(tensors, ".weight_scale_inv", ".weight_scale");
    rename(tensors, ".activation_scale", ".input_scale");
  };
  ASSERT_EQ(changed_logits("ministral3_fp8", auto_fp8, renamed), "");
  EXPECT_EQ(renamed, as_published);
  const auto none = [](StoredTensors& t) {
    t.erase("model.layers.0.mlp.up_proj.weight_scale_inv");
  };
  EXPECT_NE(
      changed_logits("ministral3_fp8", none, renamed).find("up_proj.weight_scale_inv: is miss"),
      std::string::npos);
}

/// A stored bf16, times a power of two.
std::string bf16_times(std::string number, int power) {
  std::uint16_t bits = 0;
  std::memcpy(&bits, number.data(), sizeof bits);
  bits = static_cast<std::uint16_t>(bits + power * 128);  // the exponent begins at bit 7
  std::memcpy(number.data(), &bits, sizeof bits);
  return number;
}

/// A head of its own beside a configuration that says it is the embedding's.
TEST(CheckpointReader, ATiedHeadThatIsStoredIsTheEmbedding) {
  Logits tied, stored;
  ASSERT_EQ(changed_logits(
                "fp8_block", [](StoredTensors&) {}, tied),
            "");
  const auto copied = [](StoredTensors& t) {
    t["lm_head.weight"] = t["model.embed_tokens.weight"];
  };
  ASSERT_EQ(changed_logits("fp8_block", copied, stored), "");
  EXPECT_EQ(stored, tied);
  const auto other = [&](StoredTensors& t) {
    copied(t);
    t["lm_head.weight"].bytes[0] ^= 1;
  };
  EXPECT_NE(changed_logits("fp8_block", other, stored).find("lm_head.weight: is not model.embed"),
            std::string::npos);
}

TEST(CheckpointReader, ReadsExpertsOfOneTensorInFp8HoweverTheirScalesLie) {
  const std::string scales = "gate_up_proj_scale_inv";
  const auto each = [&scales](StoredTensors& tensors, auto change) {
    for (auto& [name, tensor] : tensors) {
      if (name.ends_with(scales)) change(tensor);
    }
  };
  Logits as_published, other;
  ASSERT_EQ(changed_logits(
                "mistral4_fp8", [](StoredTensors&) {}, as_published),
            "");
  const auto flat = [&](StoredTensors& t) { each(t, [](Stored& s) { s.shape = {8}; }); };
  ASSERT_EQ(changed_logits("mistral4_fp8", flat, other), "");
  EXPECT_EQ(other, as_published);
  // One for gate and one for up: first the same, then up's doubled.
  const auto two_each = [&](int power_of_up) {
    return [&each, power_of_up](StoredTensors& tensors) {
      each(tensors, [power_of_up](Stored& s) {
        std::string both;
        for (std::size_t e = 0; e < 8; ++e) {
          const std::string one = s.bytes.substr(2 * e, 2);
          both += one + bf16_times(one, power_of_up);
        }
        s = {s.dtype, {8, 2, 1}, both};
      });
    };
  };
  ASSERT_EQ(changed_logits("mistral4_fp8", two_each(0), other), "");
  EXPECT_EQ(other, as_published);
  ASSERT_EQ(changed_logits("mistral4_fp8", two_each(1), other), "");
  EXPECT_NE(other, as_published);
  const auto halved_after = [&](StoredTensors& tensors) {  // the same numbers come out
    two_each(1)(tensors);
    for (auto& [name, tensor] : tensors) {
      if (!name.ends_with("experts.down_proj_scale_inv")) continue;
      std::string half;
      for (std::size_t e = 0; e < 8; ++e) half += bf16_times(tensor.bytes.substr(2 * e, 2), -1);
      tensor.bytes = half;
    }
  };
  ASSERT_EQ(changed_logits("mistral4_fp8", halved_after, other), "");
  EXPECT_EQ(other, as_published);

  const auto says = [&](auto change, const std::string& word) {
    const std::string said = changed_logits("mistral4_fp8", change, other);
    EXPECT_NE(said.find(word), std::string::npos) << said;
  };
  const std::string layer = "language_model.model.layers.1.mlp.experts.";
  says([&](StoredTensors& t) { t.erase(layer + scales); }, scales + ": is missing");
  says([&](StoredTensors& t) { each(t, [](Stored& s) {
                                 s.shape = {2, 4, 1};
                               }); },
       scales + ": has the shape [2, 4, 1]");
  says([&](StoredTensors& t) { t[layer + "gate_up_proj"].bytes[0] = 0x7F; },
       "gate_up_proj: element 0 is nan");
  says([&](StoredTensors& t) { t[layer + scales].bytes[1] = t[layer + scales].bytes[0] = '\xFF'; },
       scales);
  const std::string block = "mistral4_fp8_block";
  const std::string said = [&] {
    ModelConfig c = load_model_config(folder_of(block));
    c.quantization.block_rows = 11;  // as many blocks as there are
    const Checkpoint checkpoint(folder_of(block));
    CheckpointReader reader(c, checkpoint);
    try {
      reader.expert(1, 0);
    } catch (const ModelError& error) {
      return std::string(error.what());
    }
    return std::string();
  }();
  EXPECT_NE(said.find("gate_up_proj: blocks of 11 rows reach from gate into up"), std::string::npos)
      << said;
}

TEST(CheckpointReader, ChecksTheContentsOfQuantizedLayers) {
  const std::string layer = "model.layers.1.mlp.down_proj.";
  EXPECT_EQ(refusal_of_changed(layer + "g_idx", {0, 0, 0, 0}), "");
  EXPECT_NE(refusal_of_changed(layer + "g_idx", {1, 0, 0, 0}).find(layer + "g_idx: names a group"),
            std::string::npos);
  EXPECT_NE(refusal_of_changed(layer + "g_idx", {255, 255, 255, 255}).find("g_idx: names a group"),
            std::string::npos);
  // A bias that the family does not have: zeros do nothing, anything else would.
  EXPECT_EQ(refusal_of_changed(layer + "bias", {0, 0}), "");
  EXPECT_NE(refusal_of_changed(layer + "bias", {0, 60}).find(layer + "bias: no part"),
            std::string::npos);
}

TEST(CheckpointReader, RefusesWhatIsNoNumber) {
  const auto expect = [](const std::string& model, const std::string& tensor,
                         std::vector<unsigned char> bytes, const std::string& what) {
    const std::string said = refusal_of_changed(tensor, std::move(bytes), model);
    EXPECT_NE(said.find("safetensors: tensor " + tensor + ": element 0 is " + what),
              std::string::npos)
        << model << " " << tensor << ": " << said;
  };
  const std::string first = "model.layers.0.";
  const std::string layer = "model.layers.1.";
  for (const char* tensor :
       {"model.embed_tokens.weight", "lm_head.weight", "model.norm.weight",
        "model.layers.1.mlp.up_proj.weight", "model.layers.0.self_attn.v_proj.weight",
        "model.layers.0.input_layernorm.weight"}) {
    expect("mha", tensor, {0x00, 0x00, 0xC0, 0x7F}, "nan");
  }
  expect("mqa_linear_f16", layer + "mlp.down_proj.weight", {0x00, 0xFC}, "minus infinite");
  expect("mixtral", first + "block_sparse_moe.experts.3.w2.weight", {0x80, 0x7F}, "infinite");
  expect("mixtral", first + "block_sparse_moe.gate.weight", {0xC0, 0x7F}, "nan");
  expect("gptq_sym", layer + "mlp.down_proj.scales", {0x00, 0x7E}, "nan");
  expect("fp8_block", first + "mlp.down_proj.weight", {0x7F}, "nan");
}

TEST(Finite, TheFirstOneIsFoundWhereverItIs) {
  for (const cpu::ElementType type :
       {cpu::ElementType::f32, cpu::ElementType::f16, cpu::ElementType::bf16}) {
    const auto bytes = static_cast<std::size_t>(cpu::element_bytes(type));
    for (const std::int64_t count : {1, 4095, 4096, 4097, 10'000}) {
      // The largest finite number everywhere: one bit short of being none.
      const std::uint32_t largest = type == cpu::ElementType::f16    ? 0xFBFF
                                    : type == cpu::ElementType::bf16 ? 0xFF7F
                                                                     : 0xFF7FFFFF;
      const std::uint32_t infinite = type == cpu::ElementType::f16    ? 0x7C00
                                     : type == cpu::ElementType::bf16 ? 0x7F80
                                                                      : 0x7F800000;
      std::vector<std::byte> data(static_cast<std::size_t>(count) * bytes);
      const auto set = [&](std::int64_t i, std::uint32_t bits) {
        std::memcpy(data.data() + static_cast<std::size_t>(i) * bytes, &bits, bytes);
      };
      for (std::int64_t i = 0; i < count; ++i) set(i, largest);
      EXPECT_EQ(cpu::first_not_finite(data.data(), type, count), count);
      for (const std::int64_t at : {count - 1, count / 2, std::int64_t{0}}) {
        set(at, infinite);
        EXPECT_EQ(cpu::first_not_finite(data.data(), type, count), at);
      }
    }
  }
}

TEST(CheckpointReader, ALayerHasWhatItsFamilyHas) {
  const auto layer_of = [](const std::string& name) {
    const ModelConfig config = load_model_config(folder_of(name));
    const Checkpoint checkpoint(folder_of(name));
    return CheckpointReader(config, checkpoint).layer(0);
  };
  const LayerSource llama = layer_of("mha");
  EXPECT_TRUE(llama.qkv_bias.empty() && llama.q_norm.empty() && llama.k_norm.empty());

  const LayerSource qwen2 = layer_of("qwen2_bias");  // 6 + 2 * 2 heads of 8
  ASSERT_EQ(qwen2.qkv_bias.size(), 80U);
  const Checkpoint checkpoint(folder_of("qwen2_bias"));
  const auto stored = [&](const char* name, std::int64_t i) {
    const std::string full = std::string("model.layers.0.self_attn.") + name + "_proj.bias";
    return cpu::element(checkpoint.find(full)->data, cpu::ElementType::bf16, i);
  };
  EXPECT_EQ(qwen2.qkv_bias[47], stored("q", 47));
  EXPECT_EQ(qwen2.qkv_bias[48], stored("k", 0));
  EXPECT_EQ(qwen2.qkv_bias[79], stored("v", 15));

  const LayerSource qwen3 = layer_of("qwen3_norms");
  EXPECT_EQ(qwen3.q_norm.size(), 24U);
  EXPECT_EQ(qwen3.k_norm.size(), 24U);
  EXPECT_EQ(qwen3.q.rows(), 96);
}

TEST(Fingerprint, CoversTheSettingsOfFamilies) {
  const ModelConfig config = load_model_config(folder_of("mha"));
  const Checkpoint checkpoint(folder_of("mha"));
  const ContentDigest content = content_digest(checkpoint, {});
  std::vector<ModelConfig> changed(8, config);
  changed[0].parts[1].attention.qkv_bias = true;
  changed[1].parts[0].attention.qk_norm = QkNorm::head;
  changed[2].parts[1].attention.window = 1;
  changed[3].ropes[0].attention_factor = 2;
  changed[4].ropes[0].dims = 10;
  changed[5].norm.eps = 1e-7;
  changed[6].quantization.method = QuantMethod::gptq;
  changed[7].quantization.zero_offset = 1;
  for (const ModelConfig& c : changed) {
    EXPECT_NE(model_fingerprint(c, checkpoint, content),
              model_fingerprint(config, checkpoint, content));
  }
}

}  // namespace
}  // namespace baton::test
