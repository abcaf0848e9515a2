// Model folders whose files do not belong together: what is wrong is named.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#include "bench/random_model.h"
#include "tests/support/temp_dir.h"
#include "workers/model/error.h"
#include "workers/model/fingerprint.h"
#include "workers/model/llama.h"

namespace baton {
namespace {

namespace fs = std::filesystem;

std::string load_error(const std::string& folder) {
  try {
    LlamaModel::load(folder, {});
  } catch (const ModelError& error) {
    return error.what();
  }
  return "";
}

const RandomModelShape kTiny{32, 2, 2, 1, 16, 48, 64, 256, true, true};

TEST(Checkpoint, AFolderWithoutWeightsSaysSo) {
  const TempDir folder;
  EXPECT_NE(load_error(folder.path()).find("config.json"), std::string::npos);
  write_random_model(folder.path(), kTiny, 1);
  EXPECT_EQ(load_error(folder.path()), "");
  fs::remove(folder / "model.safetensors");
  EXPECT_NE(load_error(folder.path()).find("model.safetensors"), std::string::npos);
  folder.write("model.safetensors", "");
  EXPECT_NE(load_error(folder.path()).find("too short"), std::string::npos);
  fs::remove(folder / "model.safetensors");
  fs::create_directory(folder / "model.safetensors");
  EXPECT_NE(load_error(folder.path()).find("regular file"), std::string::npos);
}

TEST(Checkpoint, APipeIsRefusedAtOnce) {
  for (const char* name : {"config.json", "model.safetensors", "model.safetensors.index.json"}) {
    const TempDir folder;
    write_random_model(folder.path(), kTiny, 1);
    if (name != std::string("config.json")) fs::remove(folder / "model.safetensors");
    fs::remove(folder / name);
    ASSERT_EQ(::mkfifo((folder / name).c_str(), 0600), 0);
    EXPECT_EQ(load_error(folder.path()), folder / name + ": not a regular file");
  }
}

TEST(Weights, TensorsThatDoNotFitTheConfigurationAreNamed) {
  const TempDir folder;
  write_random_model(folder.path(), kTiny, 1);
  const std::string config = folder.read("config.json");
  const std::string weights = folder.read("model.safetensors");
  const auto with_config = [&](const std::string& from, const std::string& to) {
    std::string text = config;
    text.replace(text.find(from), from.size(), to);
    folder.write("config.json", text);
    const std::string error = load_error(folder.path());
    folder.write("config.json", config);
    return error;
  };
  EXPECT_NE(
      with_config("\"vocab_size\": 64", "\"vocab_size\": 65").find("model.embed_tokens.weight"),
      std::string::npos);
  EXPECT_NE(
      with_config("\"num_hidden_layers\": 2", "\"num_hidden_layers\": 3").find("model.layers.2."),
      std::string::npos);
  EXPECT_NE(
      with_config("\"num_hidden_layers\": 2", "\"num_hidden_layers\": 1").find("model.layers.1."),
      std::string::npos);
  EXPECT_NE(with_config("\"intermediate_size\": 48", "\"intermediate_size\": 40").find("gate_proj"),
            std::string::npos);
  EXPECT_NE(with_config("\"tie_word_embeddings\": true", "\"tie_word_embeddings\": false")
                .find("lm_head.weight: is missing"),
            std::string::npos);
  std::string other = weights;
  const std::string name = "model.norm.weight\":{\"dtype\":\"BF16\"";
  ASSERT_NE(other.find(name), std::string::npos);
  other.replace(other.find(name), name.size(), "model.norm.weight\":{\"dtype\":\"I16\" ");
  folder.write("model.safetensors", other);
  EXPECT_NE(load_error(folder.path()).find("model.norm.weight: dtype I16"), std::string::npos)
      << load_error(folder.path());
}

TEST(Fingerprint, ChangesWithWeightsAndConfigurationOnly) {
  const TempDir folder;
  const auto fingerprint = [&](const RandomModelShape& shape, std::uint64_t seed) {
    write_random_model(folder.path(), shape, seed);
    return LlamaModel::load(folder.path(), {})->fingerprint();
  };
  const std::uint64_t first = fingerprint(kTiny, 1);
  EXPECT_EQ(fingerprint(kTiny, 1), first);
  EXPECT_NE(fingerprint(kTiny, 2), first);
  RandomModelShape other = kTiny;
  other.bf16 = false;
  EXPECT_NE(fingerprint(other, 1), first);
  other = kTiny;
  other.max_context = 512;  // not part of the mathematics: pools stay compatible
  EXPECT_EQ(fingerprint(other, 1), first);
  write_random_model(folder.path(), kTiny, 1);
  std::string text = folder.read("config.json");
  text.replace(text.find("10000.0"), 7, "10001.0");
  folder.write("config.json", text);
  EXPECT_NE(LlamaModel::load(folder.path(), {})->fingerprint(), first);
}

TEST(Load, ReportsProgress) {
  const TempDir folder;
  write_random_model(folder.path(), kTiny, 1);
  std::atomic<int> progress{-1};
  LlamaModel::load(folder.path(), {}, &progress);
  EXPECT_EQ(progress.load(), 100);
}

}  // namespace
}  // namespace baton
