// Fields of the sampler, of choices, and of what is told about tokens.
#include <algorithm>
#include <string>

#include "api_fixture.h"
#include "frontend/openai/choice_fields.h"
#include "frontend/openai/openai_api.h"

namespace baton {
namespace {

using testing::bad;
using testing::completion;
using testing::error_of;
using testing::expect_refused;
using testing::good;
using testing::Refusal;
using testing::small_context;
using testing::tiny_model;

ParsedRequest with(const std::string& fields) {
  return good(completion(R"({"prompt":"hello",)" + fields + "}"));
}
ParseOutcome chat(const std::string& fields) {
  return parse_chat_completion(R"({"messages":[{"role":"user","content":"hello"}],)" + fields + "}",
                               small_context(), tiny_model());
}

TEST(Sampling, EveryFieldOfTheFullSampler) {
  const auto request = with(
      R"("min_p":0.25,"typical_p":0.5,"repetition_penalty":1.5,"presence_penalty":-2,
         "frequency_penalty":2,"logit_bias":{"5":1.5,"17":-100},"allowed_token_ids":[9,5,9],
         "truncate_prompt_tokens":1,"skip_special_tokens":false)");
  const SamplingParams& s = request.sampling;
  EXPECT_EQ(s.min_p, 0.25F);
  EXPECT_EQ(s.typical_p, 0.5F);
  EXPECT_EQ(s.repetition_penalty, 1.5F);
  EXPECT_EQ(s.presence_penalty, -2.0F);
  EXPECT_EQ(s.frequency_penalty, 2.0F);
  ASSERT_EQ(s.bias_tokens.size(), 2U);
  EXPECT_EQ(s.bias_values[s.bias_tokens[0] == 5 ? 0 : 1], 1.5F);
  EXPECT_EQ(s.bias_values[s.bias_tokens[0] == 5 ? 1 : 0], -100.0F);
  EXPECT_EQ(s.allowed_tokens, (std::vector<Token>{5, 9}));
  EXPECT_FALSE(request.skip_special_tokens);
  const auto whole = tiny_model().tokenizer->encode("hello", true);
  EXPECT_EQ(request.prompts.front(), std::vector<Token>{whole.back()});
}

TEST(Sampling, BadWordsWithAndWithoutASpace) {
  const Tokenizer& t = *tiny_model().tokenizer;
  const auto words = with(R"("bad_words":["hello", " world"])").sampling.bad_words;
  for (const char* text : {"hello", " hello", "world", " world"}) {
    EXPECT_EQ(std::count(words.begin(), words.end(), t.encode_plain(text, false)), 1) << text;
  }
  EXPECT_LE(words.size(), 4U);
}

TEST(Sampling, TruncationLeavesRoomForTheReply) {
  std::string ids = "5";
  for (int i = 6; i < 306; ++i) ids += "," + std::to_string(i);
  const auto request =
      good(completion(R"({"truncate_prompt_tokens":-1,"max_tokens":20,"prompt":[)" + ids + "]}"));
  EXPECT_EQ(request.prompts.front().size(), 236U);
  EXPECT_EQ(request.prompts.front().back(), 305);
}

TEST(Choices, PromptsTimesChoices) {
  const auto request = good(completion(R"({"prompt":["hello","hello world"],"n":3})"));
  EXPECT_EQ(request.prompts.size(), 2U);
  EXPECT_EQ(request.choices, 3U);
  EXPECT_EQ(request.sampling.logprobs, -1);
  const auto ids = good(completion(R"({"prompt":[[5,6],[7]]})"));
  EXPECT_EQ(ids.prompts, (std::vector<std::vector<Token>>{{5, 6}, {7}}));
  const auto best = with(R"("best_of":4)");
  EXPECT_EQ(best.choices, 4U);
  EXPECT_EQ(best.sampling.logprobs, 0);
  EXPECT_EQ(good(chat(R"("n":2)")).choices, 2U);
}

TEST(Choices, LogprobsOfBothApis) {
  EXPECT_EQ(with(R"("logprobs":0)").sampling.logprobs, 0);
  EXPECT_EQ(with(R"("logprobs":false)").sampling.logprobs, -1);
  EXPECT_EQ(with(R"("logprobs":5)").sampling.prompt_logprobs, -1);
  EXPECT_EQ(with(R"("logprobs":5,"echo":true)").sampling.prompt_logprobs, 5);
  EXPECT_EQ(with(R"("logprobs":5,"echo":true,"prompt_logprobs":7)").sampling.prompt_logprobs, 7);
  EXPECT_EQ(good(chat(R"("logprobs":true)")).sampling.logprobs, 0);
  EXPECT_EQ(good(chat(R"("logprobs":true,"top_logprobs":20)")).sampling.logprobs, 20);
  EXPECT_EQ(good(chat(R"("logprobs":false,"top_logprobs":0)")).sampling.logprobs, -1);
}

TEST(Choices, NoTokensButThoseOfThePrompt) {
  const auto request = with(R"("max_tokens":0,"echo":true)");
  EXPECT_TRUE(request.prompt_only);
  EXPECT_EQ(request.sampling.max_tokens, 1U);
  EXPECT_TRUE(with(R"("max_tokens":0,"prompt_logprobs":1)").prompt_only);
}

TEST(Choices, Refuses) {
  const auto body = [](const std::string& field) { return R"({"prompt":"a",)" + field + "}"; };
  std::string prompts = "\"x\"";
  for (int i = 0; i < 256; ++i) prompts += ",\"x\"";
  const Refusal table[] = {
      {body(R"("min_p":1.1)"), 400, "min_p", "at least 0 and at most 1"},
      {body(R"("typical_p":0)"), 400, "typical_p", "above 0 and at most 1"},
      {body(R"("repetition_penalty":0)"), 400, "repetition_penalty", "above 0 and at most 100"},
      {body(R"("presence_penalty":2.1)"), 400, "presence_penalty", "at least -2 and at most 2"},
      {body(R"("frequency_penalty":"0")"), 400, "frequency_penalty", "must be a number"},
      {body(R"("logit_bias":[1])"), 400, "logit_bias", "must be an object of at most 1024"},
      {body(R"("logit_bias":{"x":1})"), 400, "logit_bias", "the key 'x', which is no token id"},
      {body(R"("logit_bias":{"99999999":1})"), 400, "logit_bias", "no token id between 0 and"},
      {body(R"("logit_bias":{"5":101})"), 400, "logit_bias", "a number between -100 and 100"},
      {body(R"("allowed_token_ids":[])"), 400, "allowed_token_ids", "array of 1 to 16384"},
      {body(R"("allowed_token_ids":[-1])"), 400, "allowed_token_ids[0]", "must be a token id"},
      {body(R"("bad_words":"x")"), 400, "bad_words", "array of at most 128 strings"},
      {body(R"("bad_words":["x"," "])"), 400, "bad_words[1]", "not blank"},
      {body(R"("n":129)"), 400, "n", "between 1 and 128"},
      {body(R"("n":3,"best_of":2)"), 400, "best_of", "is 2, below 'n', which is 3"},
      {body(R"("best_of":2,"stream":true)"), 400, "best_of", "cannot be streamed"},
      {body(R"("logprobs":21)"), 400, "logprobs", "between 0 and 20"},
      {body(R"("logprobs":true)"), 400, "logprobs", "must be an integer"},
      {body(R"("prompt_logprobs":-1)"), 400, "prompt_logprobs", "between 0 and 20"},
      {body(R"("prompt_logprobs":1,"stream":true)"), 400, "prompt_logprobs", "cannot be streamed"},
      {body(R"("max_tokens":0)"), 400, "max_tokens", "between 1 and"},
      {body(R"("truncate_prompt_tokens":-2)"), 400, "truncate_prompt_tokens", "between -1 and"},
      {R"({"prompt":["a",null]})", 400, "prompt[1]", "must be a string or an array of token ids"},
      {R"({"prompt":["a",[5,-1]]})", 400, "prompt[1][1]", "must be a token id"},
      {R"({"prompt":["a",[]]})", 400, "prompt[1]", "the prompt is empty"},
      {"{\"prompt\":[" + prompts + "]}", 400, "prompt", "at most 256 prompts, not 257"},
      {R"({"prompt":["a","b","c"],"n":128})", 400, "n",
       "3 prompts with 128 choices each are more than this server's 300 streams"},
  };
  for (const Refusal& line : table) expect_refused(line, completion);
  const Refusal chats[] = {
      {R"("logprobs":1)", 400, "logprobs", "must be true or false"},
      {R"("top_logprobs":2)", 400, "top_logprobs", "only allowed when 'logprobs' is true"},
      {R"("best_of":2)", 400, "best_of", "is not supported by chats"},
      {R"("max_tokens":0)", 400, "max_tokens", "between 1 and"},
      {R"("echo":true)", 400, "echo", "is not supported"},
  };
  for (const Refusal& line : chats) expect_refused(line, chat);
}

TEST(Choices, ABeamSearchIsOneRequestForAllItsChoices) {
  const ParsedRequest request = with(
      R"("use_beam_search":true,"best_of":4,"n":2,"length_penalty":0.5,"early_stopping":"never")");
  EXPECT_EQ(request.choices, 2U);
  EXPECT_EQ(request.sampling.num_beams, 4U);
  EXPECT_EQ(request.sampling.num_return_sequences, 2U);
  EXPECT_EQ(request.sampling.length_penalty, 0.5F);
  EXPECT_EQ(request.sampling.early_stopping, EarlyStopping::never);
  EXPECT_EQ(request.sampling.logprobs, -1);
  EXPECT_TRUE(request.sampling.within_bounds());
  EXPECT_EQ(with(R"("use_beam_search":true,"n":3,"stream":true)").sampling.num_beams, 3U);
  EXPECT_EQ(good(chat(R"("use_beam_search":true,"best_of":3)")).sampling.num_beams, 3U);
  // One beam is greedy; without the field nothing is searched.
  EXPECT_EQ(with(R"("use_beam_search":true)").sampling.temperature, 0.0F);
  EXPECT_EQ(with(R"("use_beam_search":true)").sampling.num_beams, 1U);
  EXPECT_EQ(with(R"("use_beam_search":false,"n":3,"length_penalty":1)").sampling.num_beams, 1U);
}

TEST(Choices, WhatDoesNotGoWithBeamsIsRefusedByName) {
  const auto body = [](const std::string& fields) {
    return R"({"prompt":"hello","use_beam_search":true,"n":2,)" + fields + "}";
  };
  const Refusal table[] = {
      {body(R"("temperature":0.7)"), 400, "temperature", "0 or 1 with beam search"},
      {body(R"("top_p":0.9)"), 400, "top_p", "draws no tokens"},
      {body(R"("top_k":5)"), 400, "top_k", "draws no tokens"},
      {body(R"("min_p":0.1)"), 400, "min_p", "draws no tokens"},
      {body(R"("typical_p":0.5)"), 400, "typical_p", "draws no tokens"},
      {body(R"("stop":"x")"), 400, "stop", "stop_token_ids"},
      {body(R"("logprobs":1)"), 400, "logprobs", "not supported by beam search"},
      {body(R"("prompt_logprobs":1)"), 400, "prompt_logprobs", "not supported by beam search"},
      {body(R"("best_of":65)"), 400, "best_of", "at most 64"},
      {body(R"("length_penalty":11)"), 400, "length_penalty", "at most 10"},
      {body(R"("early_stopping":"soon")"), 400, "early_stopping", "true, false or"},
      {R"({"prompt":"hello","length_penalty":2})", 400, "length_penalty",
       "'use_beam_search' is true"},
      {R"({"prompt":"hello","early_stopping":true})", 400, "early_stopping",
       "'use_beam_search' is true"},
  };
  for (const Refusal& line : table) expect_refused(line, completion);
}

TEST(StopIds, TheClientsOwnAreToldApart) {
  const auto request = with(R"("stop_token_ids":[9,2,8])");
  EXPECT_EQ(request.sampling.stop_ids, (std::vector<Token>{2, 8, 9}));
  EXPECT_EQ(request.told_stop_ids, (std::vector<Token>{9, 8}));
}

}  // namespace
}  // namespace baton
