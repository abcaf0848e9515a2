#include "text/text_stream.h"

#include <gtest/gtest.h>
#include <sentencepiece_processor.h>

#include <algorithm>
#include <optional>
#include <random>

#include "frontend/core/text_stream_options.h"
#include "model_folder.h"
#include "utf8_text.h"

namespace baton {
namespace {

using testing::is_utf8;
using testing::load_tokenizer;
using testing::ModelFolder;
using testing::ModelOptions;
using testing::tiny_model;

/// Random ids; runs of byte pieces, spaces and special tokens come often.
std::vector<Token> random_ids(const Tokenizer& tokenizer, std::mt19937& random) {
  std::vector<Token> all, bytes, spaces, specials;
  for (Token id = 0; id < static_cast<Token>(tokenizer.vocab_size()); ++id) {
    all.push_back(id);
    if (tokenizer.kind(id) == PieceKind::bytes) bytes.push_back(id);
    if (tokenizer.kind(id) == PieceKind::special) specials.push_back(id);
    if (tokenizer.begins_with_space(id) && tokenizer.piece_text(id).size() < 3)
      spaces.push_back(id);
  }
  std::vector<Token> ids(random() % 24);
  for (Token& id : ids) {
    const unsigned choice = random() % 8;
    const auto& from = choice < 3 ? bytes : choice == 3 ? specials : choice == 4 ? spaces : all;
    id = from[random() % from.size()];
  }
  // A real character as bytes now and then.
  if (random() % 2 == 0) {
    for (const char byte : std::string("\xF0\x9F\x98\x80\xE4\xBD\xA0")) {
      for (const Token id : bytes) {
        if (tokenizer.piece_text(id)[0] == byte) ids.push_back(id);
      }
    }
  }
  return ids;
}

std::string stream_in_chunks(const Tokenizer& tokenizer, const std::vector<Token>& ids,
                             const TextStreamOptions& options, std::mt19937& random) {
  TextStream stream(tokenizer, options);
  std::string text;
  for (std::size_t i = 0; i < ids.size();) {
    const std::size_t size = std::min<std::size_t>(ids.size() - i, random() % 4);
    const auto output = stream.feed(std::span(ids).subspan(i, size));
    EXPECT_TRUE(is_utf8(output.text));
    text += output.text;
    i += size;
  }
  const auto last = stream.flush();
  EXPECT_TRUE(is_utf8(last.text));
  return text + std::string(last.text);
}

TEST(TextStream, EqualsSentencepieceOnRandomIds) {
  std::mt19937 random(1);
  for (const char* type : {"bpe", "unigram"}) {
    for (int combination = 0; combination < 4; ++combination) {
      const ModelFolder folder({.type = type,
                                .add_dummy_prefix = (combination & 1) != 0,
                                .remove_extra_whitespaces = (combination & 2) != 0});
      const auto tokenizer = load_tokenizer(folder);
      sentencepiece::SentencePieceProcessor reference;
      ASSERT_TRUE(reference.Load(folder.model_path()).ok());
      for (int i = 0; i < 2000; ++i) {
        const auto ids = random_ids(*tokenizer, random);
        // Turn markers are text to the library; here they are as silent as control symbols.
        std::vector<int> quiet = ids;
        for (int& id : quiet) {
          if (tokenizer->is_special(id)) id = reference.bos_id();
        }
        ASSERT_EQ(stream_in_chunks(*tokenizer, ids, {}, random), reference.DecodeIds(quiet))
            << type << " " << combination << " round " << i;
      }
    }
  }
}

TEST(TextStream, ContinuesAPromptAsTheWholeWouldRead) {
  std::mt19937 random(2);
  const Tokenizer& tokenizer = *tiny_model().tokenizer;
  const auto prompt = tokenizer.encode("hello world", true);
  const std::string before = tokenizer.decode(prompt);
  for (int i = 0; i < 2000; ++i) {
    const auto ids = random_ids(tokenizer, random);
    auto whole = prompt;
    whole.insert(whole.end(), ids.begin(), ids.end());
    TextStreamOptions options;
    options.continues_text = true;
    ASSERT_EQ(before + stream_in_chunks(tokenizer, ids, options, random), tokenizer.decode(whole));
  }
}

TEST(TextStream, RoundTripsText) {
  const Tokenizer& tokenizer = *tiny_model().tokenizer;
  for (const std::string text :
       {"hello world", "你是谁", "\xF0\x9F\x98\x80 smiles", " a  b ", "x\ny"}) {
    EXPECT_EQ(tokenizer.decode(tokenizer.encode(text, true)), text);
  }
}

struct Reference {
  std::string text;
  bool stopped = false;
  std::uint32_t n = 0;
};

/// The slow way: decode every prefix, look for every stop string in it.
Reference slow_stop(const Tokenizer& tokenizer, const std::vector<Token>& ids,
                    const TextStreamOptions& options) {
  // A prefix's safe text: what no later token can change.
  std::vector<std::string> texts{""};
  TextStreamOptions without_stops;
  without_stops.continues_text = options.continues_text;
  TextStream plain(tokenizer, without_stops);
  for (const Token id : ids) {
    texts.push_back(texts.back() + std::string(plain.feed({&id, 1}).text));
  }
  for (std::uint32_t n = 1; n <= ids.size(); ++n) {
    for (std::size_t end = texts[n - 1].size() + 1; end <= texts[n].size(); ++end) {
      std::size_t longest = 0;
      for (const std::string& stop : options.stop) {
        if (stop.size() <= end && texts[n].compare(end - stop.size(), stop.size(), stop) == 0) {
          longest = std::max(longest, stop.size());
        }
      }
      if (longest == 0 || n < options.min_tokens) continue;
      return {texts[n].substr(0, options.include_stop_in_output ? end : end - longest), true, n};
    }
  }
  return {texts.back() + std::string(plain.flush().text), false,
          static_cast<std::uint32_t>(ids.size())};
}

TEST(TextStream, StopsLikeTheSlowWay) {
  std::mt19937 random(3);
  const Tokenizer& tokenizer = *tiny_model().tokenizer;
  int stops = 0;
  for (int round = 0; round < 20000; ++round) {
    // Few different ids, so that strings repeat and overlap.
    std::vector<Token> letters;
    for (const char* text : {"a", "h", "hello", " hello", "he", "你", "l", "o", " "}) {
      for (const Token id : tokenizer.encode_plain(text, false)) letters.push_back(id);
    }
    std::vector<Token> ids(random() % 30);
    for (Token& id : ids) id = letters[random() % letters.size()];
    TextStreamOptions options;
    options.continues_text = random() % 2 == 0;
    options.include_stop_in_output = random() % 2 == 0;
    options.min_tokens = random() % 3 == 0 ? random() % 20 : 0;
    const std::string text = tokenizer.decode(ids) + "ahel你lo";
    for (unsigned i = 0, count = 1 + random() % 4; i < count; ++i) {
      std::string stop = text.substr(random() % text.size(), 1 + random() % 6);
      while (!stop.empty() && !is_utf8(stop)) stop.pop_back();
      if (!stop.empty()) options.stop.push_back(stop);
    }
    const Reference wanted = slow_stop(tokenizer, ids, options);

    TextStream stream(tokenizer, options);
    std::string got;
    TextStream::Output output;
    for (std::size_t i = 0; i < ids.size();) {
      const std::size_t size = std::min<std::size_t>(ids.size() - i, random() % 4);
      output = stream.feed(std::span(ids).subspan(i, size));
      ASSERT_TRUE(is_utf8(output.text));
      got += output.text;
      ASSERT_EQ(got, wanted.text.substr(0, got.size())) << "sent what the whole does not hold";
      i += size;
    }
    output = stream.flush();
    got += output.text;
    ASSERT_EQ(got, wanted.text) << "round " << round;
    ASSERT_EQ(output.stopped, wanted.stopped);
    ASSERT_EQ(output.n, wanted.n);
    stops += wanted.stopped ? 1 : 0;
  }
  EXPECT_GT(stops, 2000);
  EXPECT_LT(stops, 19000);
}

TEST(TextStream, HoldsBackNoMoreThanTheLongestStop) {
  const Tokenizer& tokenizer = *tiny_model().tokenizer;
  TextStreamOptions options;
  options.stop = {"hello hello hello!"};
  TextStream stream(tokenizer, options);
  const auto ids = tokenizer.encode_plain("hello hello hello hello hello hello hello", false);
  std::string sent;
  std::string whole;
  TextStream plain(tokenizer, {});
  for (const Token id : ids) {
    sent += stream.feed({&id, 1}).text;
    whole += plain.feed({&id, 1}).text;
    EXPECT_LT(whole.size() - sent.size(), options.stop[0].size());
  }
  EXPECT_EQ(sent + std::string(stream.flush().text), whole);
}

TEST(TextStream, StopStringAcrossTokensAndItsCount) {
  const Tokenizer& tokenizer = *tiny_model().tokenizer;
  const auto ids = tokenizer.encode_plain("the scheduler owns every block; nobody", false);
  TextStreamOptions options;
  options.stop = {"owns every"};
  TextStream stream(tokenizer, options);
  const auto output = stream.feed(ids);
  EXPECT_TRUE(output.stopped);
  EXPECT_EQ(output.text, "the scheduler ");
  EXPECT_LT(output.n, ids.size());
  const auto again = stream.feed(ids);
  EXPECT_TRUE(again.stopped);
  EXPECT_EQ(again.text, "");
  EXPECT_EQ(again.n, output.n);
  EXPECT_EQ(stream.flush().text, "");
}

TEST(TextStream, StopStringsApplyWhereTheyAreTold) {
  const Tokenizer& tokenizer = *tiny_model().tokenizer;
  TextStreamOptions options;
  options.stop = {"hello world"};
  const auto tokens = [&](const char* text) { return tokenizer.encode_plain(text, false); };
  TextStream stream(tokenizer, options);
  stream.set_stops(TextStream::Stops::off);
  EXPECT_EQ(stream.feed(tokens("a hello world, hello")).text, "a hello world, hello");
  // No match reaches over the change.
  stream.set_stops(TextStream::Stops::on);
  EXPECT_EQ(stream.feed(tokens("world and hello")).text, " world and ");
  stream.set_stops(TextStream::Stops::on);
  EXPECT_TRUE(stream.feed(tokens("world")).stopped);
  // What was held back comes out where they do not apply any more.
  TextStream other(tokenizer, options);
  EXPECT_EQ(other.feed(tokens("so hello")).text, "so ");
  other.set_stops(TextStream::Stops::off);
  EXPECT_EQ(other.feed(tokens("world")).text, "hello world");
  EXPECT_EQ(other.matched(), nullptr);
}

TEST(TextStream, StopStringsMayBeginBehindWhitespace) {
  const Tokenizer& tokenizer = *tiny_model().tokenizer;
  TextStreamOptions options;
  options.stop = {" ", "hello"};
  const auto tokens = [&](const char* text) { return tokenizer.encode_plain(text, false); };
  TextStream stream(tokenizer, options);
  stream.set_stops(TextStream::Stops::behind_space);
  EXPECT_FALSE(stream.feed(tokens("  ")).stopped);
  stream.set_stops(TextStream::Stops::behind_space);
  const auto output = stream.feed(tokens("hello"));
  EXPECT_TRUE(output.stopped);
  EXPECT_EQ(*stream.matched(), "hello");
  // Whoever reads the text has not seen what is held back, and may say the same again.
  options.stop = {"hello world"};
  TextStream slow(tokenizer, options);
  for (const Token id : tokens("hello world")) {
    slow.set_stops(TextStream::Stops::behind_space);
    slow.feed({&id, 1});
  }
  EXPECT_NE(slow.matched(), nullptr);
}

/// The tokenizer of tests/golden/tokenizers/mistral, whose byte tokens are 5 to 260.
class ByteRuns : public ::testing::Test {
 protected:
  void SetUp() override {
    auto loaded = Tokenizer::load("tests/golden/tokenizers/mistral");
    ASSERT_TRUE(loaded.ok()) << loaded.status().message();
    tokenizer_ = std::move(loaded).value();
    ASSERT_EQ(tokenizer_->token_bytes(5 + 0xE4), "\xE4");
  }
  static std::vector<Token> bytes(std::string_view text) {
    std::vector<Token> ids;
    for (const char c : text) ids.push_back(5 + static_cast<unsigned char>(c));
    return ids;
  }

  std::unique_ptr<Tokenizer> tokenizer_;
};

TEST_F(ByteRuns, AreHeldBackUntilTheirTextIsSure) {
  TextStream stream(*tokenizer_, {});
  EXPECT_EQ(stream.feed(bytes("\xE4\xBD\xA0\xE4\xBD\xA0")).text, "");
  EXPECT_EQ(stream.feed(tokenizer_->encode("x", false)).text.substr(0, 6),
            "\xE4\xBD\xA0\xE4\xBD\xA0");
  // A broken run is replaced at once, and so is the rest of it.
  EXPECT_EQ(stream.feed(bytes("a\xFF")).text, "\xEF\xBF\xBD\xEF\xBF\xBD");
  EXPECT_EQ(stream.feed(bytes("b")).text, "\xEF\xBF\xBD");
  stream.feed(tokenizer_->encode("x", false));
  EXPECT_EQ(stream.feed(bytes("ab\xE4")).text, "");
  EXPECT_EQ(stream.flush().text, "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD");
}

TEST_F(ByteRuns, HoldNoMoreThanTheirBound) {
  TextStream stream(*tokenizer_, {});
  const std::string held(kMaxHeldRun, 'a');
  EXPECT_EQ(stream.feed(bytes(held)).text, "");
  EXPECT_EQ(stream.feed(bytes("b")).text, held + "b");
  EXPECT_EQ(stream.feed(bytes("c")).text, "c");
  EXPECT_EQ(stream.feed(bytes("\xFF")).text, "\xEF\xBF\xBD");
  EXPECT_EQ(stream.feed(bytes("d")).text, "\xEF\xBF\xBD");
}

TEST_F(ByteRuns, StopAtTheTokenThatCompletesTheStopString) {
  TextStreamOptions options;
  options.stop = {"you"};
  TextStream stream(*tokenizer_, options);
  const auto output = stream.feed(bytes("ayouth\xFF"));
  EXPECT_TRUE(output.stopped);
  EXPECT_EQ(output.text, "a");
  EXPECT_EQ(output.n, 4U);
  // What a broken run takes back was never the beginning of a stop string.
  TextStream broken(*tokenizer_, options);
  broken.feed(bytes("yo\xFFu"));
  broken.feed(bytes("u"));
  EXPECT_FALSE(broken.feed(tokenizer_->encode("x", false)).stopped);
  TextStream before(*tokenizer_, options);
  const auto you = tokenizer_->encode_plain("y", true);
  before.feed(you);
  before.feed(bytes("o\xFF"));
  EXPECT_EQ(before.matched(), nullptr);
}

TEST(TextStream, OptionsFollowThePrompt) {
  const Tokenizer& tokenizer = *tiny_model().tokenizer;
  ParsedRequest request;
  EXPECT_FALSE(text_stream_options(tokenizer, request, {}).continues_text);
  const std::vector<Token> bos = {tokenizer.bos()};
  EXPECT_FALSE(text_stream_options(tokenizer, request, bos).continues_text);
  const std::vector<Token> prompt = tokenizer.encode("hello", true);
  request.stop = {"x"};
  request.sampling.min_tokens = 3;
  const auto options = text_stream_options(tokenizer, request, prompt);
  EXPECT_TRUE(options.continues_text);
  EXPECT_EQ(options.stop, request.stop);
  EXPECT_EQ(options.min_tokens, 3U);
}

}  // namespace
}  // namespace baton
