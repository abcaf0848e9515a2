// The tokenizers of tests/golden/tokenizers against what Hugging Face's library made of them
// (tests/golden/make_tokenizers.py). With BATON_TOKENIZERS and BATON_TOKENIZER: another folder of
// such folders, and one in it (tests/published).
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>

#include "text/text_stream.h"
#include "text/tokenizer/tokenizer.h"
#include "utf8_text.h"

namespace baton {
namespace {

using Json = nlohmann::json;
using testing::is_utf8;

std::string setting(const char* name, const char* otherwise) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : otherwise;
}

// Run in the source folder.
const std::string kFolder = setting("BATON_TOKENIZERS", "tests/golden/tokenizers/");

std::vector<std::string> families() {
  if (const char* one = std::getenv("BATON_TOKENIZER"); one != nullptr) return {one};
  return {"gpt2",   "llama3",  "qwen2",     "o200k", "deepseek",   "deepseek3",
          "llama2", "mistral", "metaspace", "odd",   "whitespace", "boundary"};
}

Json read_json(const std::string& path) {
  std::ifstream file(path);
  Json value = Json::parse(file, nullptr, false);
  EXPECT_FALSE(value.is_discarded()) << path;
  return value;
}

std::string fingerprint(const std::vector<Token>& ids) {
  std::uint64_t hash = 0xCBF29CE484222325U;
  for (const Token id : ids) {
    for (int shift = 0; shift < 32; shift += 8) {
      hash = (hash ^ (static_cast<std::uint32_t>(id) >> shift & 0xFFU)) * 0x100000001B3U;
    }
  }
  char text[48];
  std::snprintf(text, sizeof(text), "%zu:%x", ids.size(),
                static_cast<unsigned>(hash >> 32 ^ (hash & 0xFFFFFFFFU)));
  return text;
}

class HfGolden : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    auto loaded = Tokenizer::load(kFolder + GetParam());
    ASSERT_TRUE(loaded.ok()) << loaded.status().message();
    tokenizer_ = std::move(loaded).value();
    golden_ = read_json(kFolder + GetParam() + "/golden.json");
    for (const Json& entry : read_json(kFolder + "corpus.json")) {
      std::string text = entry.is_string() ? entry.get<std::string>() : "";
      for (int i = 0; entry.is_array() && i < entry[1].get<int>(); ++i) {
        text += entry[0].get<std::string>();
      }
      corpus_.push_back(text);
    }
    ASSERT_EQ(golden_["lines"].size(), corpus_.size());
  }

  std::unique_ptr<Tokenizer> tokenizer_;
  Json golden_;
  std::vector<std::string> corpus_;
};

TEST_P(HfGolden, TheSameIds) {
  for (std::size_t i = 0; i < corpus_.size(); ++i) {
    if (golden_["lines"][i].is_null()) continue;
    const auto ids = tokenizer_->encode_within(corpus_[i], false, Tokenizer::kNoLimit);
    ASSERT_TRUE(ids.has_value()) << i;
    EXPECT_EQ(fingerprint(*ids), golden_["lines"][i])
        << "line " << i << ": " << corpus_[i].substr(0, 200);
    EXPECT_EQ(tokenizer_->encode_within(corpus_[i], false, ids->size()), ids);
    if (!ids->empty()) {
      EXPECT_FALSE(tokenizer_->encode_within(corpus_[i], false, ids->size() - 1).has_value()) << i;
    }
    const PromptPart trusted{corpus_[i], true};
    EXPECT_EQ(tokenizer_->encode_parts_within({&trusted, 1}, Tokenizer::kNoLimit), ids) << i;
  }
}

TEST_P(HfGolden, TheSameIdsWithSpecialTokensAsLetters) {
  for (std::size_t i = 0; i < corpus_.size(); ++i) {
    const auto ids = tokenizer_->encode_plain(corpus_[i], false);
    const Json& wanted = golden_["plain"][i] == "" ? golden_["lines"][i] : golden_["plain"][i];
    EXPECT_EQ(fingerprint(ids), wanted) << "line " << i << ": " << corpus_[i].substr(0, 200);
    for (const Token id : ids) {
      EXPECT_TRUE(!tokenizer_->is_special(id) || tokenizer_->token_bytes(id) == "<unk>") << i;
    }
    const PromptPart said{corpus_[i], false};
    EXPECT_EQ(tokenizer_->encode_parts_within({&said, 1}, Tokenizer::kNoLimit), ids) << i;
  }
}

TEST_P(HfGolden, TheSameIdsAroundAPrompt) {
  for (std::size_t i = 0; i < golden_["added"].size(); ++i) {
    const auto ids = tokenizer_->encode(corpus_[i], tokenizer_->add_bos());
    EXPECT_EQ(Json(ids), golden_["added"][i]);
  }
}

TEST_P(HfGolden, TheSameTextStreamedInAnyChunks) {
  std::mt19937 random(1);
  for (const Json& entry : golden_["decoded"]) {
    const auto ids = entry[0].get<std::vector<Token>>();
    for (const bool skip : {true, false}) {
      if (entry[skip ? 1 : 2].is_null()) continue;
      TextStreamOptions options;
      options.skip_special_tokens = skip;
      TextStream stream(*tokenizer_, options);
      std::string text;
      for (std::size_t i = 0; i < ids.size();) {
        const std::size_t size = std::min<std::size_t>(ids.size() - i, 1 + random() % 3);
        const auto output = stream.feed(std::span(ids).subspan(i, size));
        EXPECT_TRUE(is_utf8(output.text));
        text += output.text;
        i += size;
      }
      text += stream.flush().text;
      EXPECT_EQ(text, entry[skip ? 1 : 2]) << entry[0];
      EXPECT_EQ(tokenizer_->decode(ids, skip), text);
    }
  }
}

TEST_P(HfGolden, LimitsAreExactWhereverTheyFall) {
  const std::string& text = corpus_[20] + corpus_[22] + "<s> x</s>  <L> <|im_end|>";
  const auto ids = tokenizer_->encode(text, true);
  for (std::size_t limit = 0; limit < ids.size() + 2; ++limit) {
    EXPECT_EQ(tokenizer_->encode_within(text, true, limit).has_value(), limit >= ids.size())
        << limit;
  }
}

INSTANTIATE_TEST_SUITE_P(Families, HfGolden, ::testing::ValuesIn(families()),
                         [](const auto& family) { return family.param; });

}  // namespace
}  // namespace baton
