#include "frontend/dialects/lab.h"

#include <random>

#include "api_fixture.h"

namespace baton {
namespace {

using testing::expect_refused;
using testing::good;
using testing::Refusal;
using testing::small_context;
using testing::tiny_model;
using Json = nlohmann::json;

ParseOutcome generate(const std::string& body) {
  return parse_generate(body, small_context(), tiny_model());
}

TEST(Generate, TheLabsOwnCall) {
  const auto request = good(
      generate(R"({"prompt": "你是谁", "temperature": 0.7, "min_length": 50, "max_length": 200})"));
  const auto& t = *tiny_model().tokenizer;
  const auto prompt = t.encode("你是谁", true);
  EXPECT_EQ(request.prompts.front(), prompt);
  EXPECT_EQ(request.sampling.temperature, 0.7F);
  EXPECT_EQ(request.sampling.max_tokens, 200U - prompt.size());
  EXPECT_EQ(request.sampling.min_tokens, 50U - prompt.size());
  EXPECT_EQ(request.sampling.stop_ids, t.eos_ids());
  EXPECT_FALSE(request.seed_given);
  EXPECT_TRUE(request.headers.empty());
}

TEST(Generate, DefaultsAndTheClampedMaximum) {
  const auto request = good(generate(R"({"prompt":"hello"})"));
  const auto size = request.prompts.front().size();
  EXPECT_EQ(request.sampling.temperature, 1.0F);
  EXPECT_EQ(request.sampling.max_tokens, 256U - size);
  EXPECT_EQ(request.sampling.min_tokens, 10U - size);
  using Headers = std::vector<std::pair<std::string, std::string>>;
  EXPECT_EQ(request.headers, (Headers{{"X-Baton-Max-Length", "clamped from 8192 to 256"}}));
  EXPECT_EQ(good(generate(R"({"prompt":"hello","max_length":999999})")).headers,
            (Headers{{"X-Baton-Max-Length", "clamped from 999999 to 256"}}));
  EXPECT_EQ(
      good(generate(R"({"prompt":"hello","max_length":9223372036854775807})")).sampling.max_tokens,
      256U - size);
  const auto exact = good(generate(R"({"prompt":"hello","max_length":256,"min_length":256})"));
  EXPECT_TRUE(exact.headers.empty());
  EXPECT_EQ(exact.sampling.min_tokens, exact.sampling.max_tokens);
  // A short maximum wins over the default minimum.
  const auto brief =
      good(generate(R"({"prompt":"hello","max_length":)" + std::to_string(size + 1) + "}"));
  EXPECT_EQ(brief.sampling.max_tokens, 1U);
  EXPECT_LE(brief.sampling.min_tokens, 1U);
}

TEST(Generate, ExtraFields) {
  const auto request = good(generate(
      R"({"prompt":"hello","seed":5,"top_p":0.5,"top_k":3,"stop":["x"],"timeout_s":2,"stream":true,
          "temperature":100})"));
  EXPECT_TRUE(request.seed_given);
  EXPECT_EQ(request.sampling.seed, 5U);
  EXPECT_EQ(request.sampling.top_k, 3);
  EXPECT_EQ(request.stop, std::vector<std::string>{"x"});
  EXPECT_EQ(request.timeout, 2 * kSecond);
  EXPECT_TRUE(request.stream);
}

TEST(Generate, Refuses) {
  const Refusal table[] = {
      {"", 400, "", "the body is empty"},
      {"prompt=hello", 400, "", "not valid JSON"},
      {"{}", 400, "prompt", "'prompt' is missing"},
      {R"({"prompt":["a"]})", 400, "prompt", "must be a string, not an array"},
      {R"({"prompt":"a","max_length":0})", 400, "max_length", "between 1 and"},
      {R"({"prompt":"a","max_length":-8})", 400, "max_length", "between 1 and"},
      {R"({"prompt":"a","max_length":1e30})", 400, "max_length", "between 1 and"},
      {R"({"prompt":"a","max_length":"9"})", 400, "max_length", "must be an integer"},
      {R"({"prompt":"a","min_length":-1})", 400, "min_length", "between 0 and"},
      {R"({"prompt":"a","min_length":9,"max_length":8})", 400, "min_length",
       "is 9, above 'max_length', 8"},
      {R"({"prompt":"a","max_length":1})", 400, "prompt", "leaves no room"},
      {R"({"prompt":"a","temperature":-1})", 400, "temperature", "at least 0"},
      {R"({"prompt":"a","temperature":101})", 400, "temperature", "at most 100"},
      {R"({"prompt":"a","max_tokens":5})", 400, "max_tokens", "unknown field 'max_tokens'"},
      {R"({"prompt":")" + std::string(300, '\'') + "\"}", 400, "prompt",
       " tokens; this model's context holds 256"},
      {R"({"prompt":")" + std::string(3'000'000, 'a') + "\"}", 400, "prompt",
       "more than 512 tokens"},
  };
  for (const Refusal& line : table) expect_refused(line, generate);
}

TEST(Generate, RandomBodiesAlwaysGetAnAnswer) {
  std::mt19937 random(3);
  const std::string seed =
      R"({"prompt":"hello","temperature":0.5,"max_length":100,"min_length":5})";
  int accepted = 0;
  for (int i = 0; i < 10000; ++i) {
    std::string body = seed;
    for (unsigned k = random() % 4; k > 0; --k) {
      const std::size_t at = random() % body.size();
      if (random() % 2 == 0) {
        body[at] = static_cast<char>(random() % 2 == 0 ? random() : '0' + random() % 10);
      } else {
        body.insert(at, 1, "{}[]\",:0-.e"[random() % 11]);
      }
    }
    const auto outcome = generate(body);
    if (const auto* error = std::get_if<HttpError>(&outcome)) {
      ASSERT_EQ(error->status, 400) << body;
      continue;
    }
    const auto& request = std::get<ParsedRequest>(outcome);
    ++accepted;
    ASSERT_GE(request.sampling.max_tokens, 1U);
    ASSERT_LE(request.prompts.front().size() + request.sampling.max_tokens, 256U);
    ASSERT_LE(request.sampling.min_tokens, request.sampling.max_tokens) << body;
  }
  EXPECT_GT(accepted, 1000);
}

}  // namespace
}  // namespace baton
