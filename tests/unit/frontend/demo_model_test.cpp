// The demo model's own tokeniser and chat format, as its trainer used them.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "frontend/chat/chat_format.h"
#include "text/tokenizer/tokenizer.h"

namespace baton {
namespace {

// Run in the source folder.
constexpr const char* kFolder = "demo/model";

// The trainer encodes a chat as one string with its markers in it.
TEST(DemoModel, ChatsAreWrittenAsInTraining) {
  const auto tokenizer = Tokenizer::load(kFolder);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  const auto format = load_chat_format(kFolder);
  ASSERT_TRUE(format.ok() && format.value() != nullptr);
  const Tokenizer& t = *tokenizer.value();
  const auto prompt = format.value()->render({{"system", "Answer in English."},
                                              {"user", "What is Baton?\n\n  Tell me more."},
                                              {"assistant", "A server. 你好。"},
                                              {"user", "你是谁"}},
                                             t, Tokenizer::kNoLimit);
  ASSERT_TRUE(prompt.ok()) << prompt.status().message();
  EXPECT_EQ(
      prompt.value().ids,
      t.encode("<|system|>Answer in English.<|end|><|user|>What is Baton?\n\n  Tell me more."
               "<|end|><|assistant|>A server. 你好。<|end|><|user|>你是谁<|end|><|assistant|>",
               true));
  EXPECT_EQ(prompt.value().stop_ids, t.eos_ids());
  EXPECT_TRUE(prompt.value().stop.empty());
  EXPECT_TRUE(t.is_special(t.eos_ids().front()));
}

TEST(DemoModel, PromptsReadBack) {
  const auto tokenizer = Tokenizer::load(kFolder);
  ASSERT_TRUE(tokenizer.ok());
  const Tokenizer& t = *tokenizer.value();
  std::ifstream file("demo/lab_prompts.json");
  const auto prompts = nlohmann::json::parse(file);
  ASSERT_EQ(prompts.size(), 11U);
  for (const auto& prompt : prompts) {
    const auto text = prompt.get<std::string>();
    EXPECT_EQ(t.decode(t.encode(text, true)), text);
    EXPECT_EQ(t.encode_plain(text, true), t.encode(text, false));
  }
}

}  // namespace
}  // namespace baton
