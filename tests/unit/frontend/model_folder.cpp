#include "model_folder.h"

#include <gtest/gtest.h>
#include <sentencepiece_trainer.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <stdexcept>

namespace baton::testing {
namespace {

constexpr const char* kCorpus =
    "Baton serves a language model with separate processes.\n"
    "The prefill worker reads the prompt, the decode worker makes the tokens.\n"
    "The scheduler owns every block; nobody else frees one.\n"
    "A block is pulled through mapped memory and never through the queue.\n"
    "   Lines  may   hold    many     spaces      between       words.   \n"
    "hello world, hello again, hello hello hello the the the a a a in in on on\n"
    "你是谁 我是 你好 谁 你 是 我\n"
    "Zahlen: 0 1 2 3 4 5 6 7 8 9, Klammern ( ) [ ] { } < > | = + - * / \\ \" ' ` ~ ! ? @ # $ % ^ "
    "&\n"
    "user assistant system end tool User: Assistant: System: End of turn\n";

std::string flag(bool value) { return value ? "true" : "false"; }

}  // namespace

ModelFolder::ModelFolder(const ModelOptions& options) {
  std::string name = (std::filesystem::temp_directory_path() / "baton-model-XXXXXX").string();
  if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("mkdtemp failed");
  path_ = name;
  std::string corpus;
  for (int i = 0; i < 20; ++i) corpus += kCorpus;
  write("corpus.txt", corpus);
  const std::string markers = "<|system|>,<|user|>,<|assistant|>,<|end|>" + options.more_markers;
  const std::string symbols = options.control_markers
                                  ? " --control_symbols=" + markers + " --user_defined_symbols=\n"
                                  : " --user_defined_symbols=" + markers + ",\n";
  const auto status = sentencepiece::SentencePieceTrainer::Train(
      "--input=" + path_ + "/corpus.txt --model_prefix=" + path_ + "/tokenizer --model_type=" +
      options.type + " --vocab_size=600 --byte_fallback=true --hard_vocab_limit=false" +
      " --character_coverage=0.99 --normalization_rule_name=identity --minloglevel=2 "
      "--allow_whitespace_only_pieces=true" +
      " --num_threads=1 --split_by_whitespace=" + flag(options.split_by_whitespace) +
      " --add_dummy_prefix=" + flag(options.add_dummy_prefix) +
      " --remove_extra_whitespaces=" + flag(options.remove_extra_whitespaces) + symbols);
  if (!status.ok()) throw std::runtime_error("training: " + status.ToString());
  write("generation_config.json", R"({"eos_token_id": [2]})");
}

ModelFolder::~ModelFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

void ModelFolder::write(const std::string& name, const std::string& text) const {
  std::ofstream(path_ + "/" + name, std::ios::binary) << text;
}

std::unique_ptr<Tokenizer> load_tokenizer(const ModelFolder& folder) {
  auto tokenizer = Tokenizer::load(folder.path());
  if (!tokenizer.ok()) throw std::runtime_error(tokenizer.status().message());
  return std::move(tokenizer).value();
}

const ServedModel& tiny_model() {
  static const ServedModel* model = [] {
    const ModelFolder folder;
    auto* made = new ServedModel;  // lives as long as the process
    made->name = "tiny";
    made->fingerprint = "baton-test";
    made->tokenizer = load_tokenizer(folder);
    made->chat = PrefixChatFormat::parse(
                     R"({"bos": true, "system": ["<|system|>", "<|end|>"],
                         "user": ["<|user|>", "<|end|>"], "assistant": ["<|assistant|>", "<|end|>"],
                         "stop": ["<|end|>", "User:"]})",
                     "test")
                     .value();
    made->default_max_tokens = 64;
    return made;
  }();
  return *model;
}

}  // namespace baton::testing
