// Several choices in one reply: seeds, texts, log probabilities, ends.
#include "frontend/core/open_reply.h"

#include <map>

#include "api_fixture.h"
#include "frontend/openai/openai_api.h"

namespace baton {
namespace {

using testing::good;
using testing::good_completion;
using testing::small_context;
using testing::tiny_model;
using Json = nlohmann::json;
using Tokens = std::vector<Token>;

const Tokenizer& tokenizer() { return *tiny_model().tokenizer; }

ParsedRequest chat(const std::string& fields) {
  return good(
      parse_chat_completion(R"({"messages":[{"role":"user","content":"hello"}])" + fields + "}",
                            small_context(), tiny_model()));
}

/// Log probabilities for each of some tokens: the token itself has -k/4, 5 and 6 are most probable.
Logprobs logprobs_of(std::size_t count, std::uint32_t first_item = 0) {
  Logprobs all;
  const Token tops[] = {5, 6};
  const float values[] = {-0.125F, -0.5F};
  for (std::size_t k = 0; k < count; ++k) {
    all.push(first_item + static_cast<std::uint32_t>(k), -0.25F * static_cast<float>(k + 1), tops,
             values);
  }
  return all;
}

void give(OpenReply& reply, std::uint32_t choice, const Tokens& tokens,
          const Logprobs* logprobs = nullptr, const Logprobs* prompt = nullptr) {
  reply.begin(choice, prompt);
  const Logprobs none;
  LogprobReader reader(logprobs == nullptr ? none : *logprobs);
  for (std::uint32_t i = 0; i < tokens.size(); ++i) {
    LogprobReader::Entry entry;
    const bool told = reader.take(i, entry);
    reply.take(choice, tokens[i], told ? &entry : nullptr);
  }
}

std::vector<Json> events_of(const std::string& bytes) {
  std::vector<Json> events;
  for (std::size_t at = 0; at < bytes.size();) {
    const std::size_t end = bytes.find("\n\n", at);
    const std::string data = bytes.substr(at + 6, end - at - 6);
    if (data != "[DONE]") events.push_back(Json::parse(data));
    at = end + 2;
  }
  return events;
}

TEST(FanOut, SeedsCountUpFromTheRequests) {
  const auto request = good_completion(R"({"prompt":[[5,6],[7]],"n":2,"seed":41,"max_tokens":9})");
  const auto all = fan_out(request, 77);
  ASSERT_EQ(all.size(), 4U);
  const std::uint64_t seeds[] = {41, 42, 41, 42};
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(all[i].prompt, i < 2 ? (Tokens{5, 6}) : Tokens{7});
    EXPECT_EQ(all[i].sampling.seed, seeds[i]);
    EXPECT_EQ(all[i].sampling.max_tokens, 9U);
    EXPECT_EQ(all[i].deadline, 77);
  }
  const auto last = fan_out(good_completion(R"({"prompt":[5],"n":2,"seed":-1})"), 0);
  EXPECT_EQ(last[1].sampling.seed, 0U);
}

// Without a limit each prompt has its own, as if it were alone.
TEST(FanOut, EveryPromptHasItsOwnRoom) {
  std::string ids = "5";
  for (int i = 0; i < 229; ++i) ids += ",5";
  const auto all = fan_out(good_completion("{\"prompt\":[[7],[" + ids + "]]}"), 0);
  EXPECT_EQ(all[0].sampling.max_tokens, 64U);
  EXPECT_EQ(all[1].sampling.max_tokens, 26U);
}

TEST(OpenReply, ChoicesOfOneBody) {
  auto request = good_completion(R"({"prompt":"hello","n":2})");
  OpenReply reply(tokenizer(), request);
  const Tokens a = tokenizer().encode("world", false);
  const Tokens b = tokenizer().encode("the block", false);
  give(reply, 1, b);
  give(reply, 0, a);
  reply.end(1, FinishReason::length);
  EXPECT_FALSE(reply.all_ended());
  reply.take(0, 2, nullptr);  // the end of a sequence
  reply.end(0, FinishReason::stop);
  EXPECT_TRUE(reply.all_ended());
  const Json body = Json::parse(reply.finish());
  ASSERT_EQ(body["choices"].size(), 2U);
  EXPECT_EQ(body["choices"][0]["text"], " world");
  EXPECT_EQ(body["choices"][0]["finish_reason"], "stop");
  EXPECT_TRUE(body["choices"][0]["stop_reason"].is_null());
  EXPECT_EQ(body["choices"][1]["index"], 1);
  EXPECT_EQ(body["choices"][1]["text"], " the block");
  EXPECT_EQ(body["choices"][1]["finish_reason"], "length");
  EXPECT_EQ(body["usage"]["prompt_tokens"], tokenizer().encode("hello", true).size());
  EXPECT_EQ(body["usage"]["completion_tokens"], a.size() + 1 + b.size());
}

TEST(OpenReply, OfAPromptWhatOneChoiceComputedWasNotCached) {
  auto request = good_completion(R"({"prompt":[[5,6,7],[8,9]],"n":2,"max_tokens":1})");
  OpenReply reply(tokenizer(), request);
  const std::uint32_t cached[] = {0, 2, 1, 1};
  for (std::uint32_t i = 0; i < 4; ++i) {
    reply.begin(i, nullptr, cached[i]);
    reply.take(i, 5, nullptr);
    reply.end(i, FinishReason::length);
  }
  const Json usage = Json::parse(reply.finish())["usage"];
  EXPECT_EQ(usage["prompt_tokens"], 5);
  EXPECT_EQ(usage["prompt_tokens_details"]["cached_tokens"], 1);
}

TEST(OpenReply, StreamsInterleave) {
  auto request = chat(R"(,"n":2,"stream":true)");
  OpenReply reply(tokenizer(), request);
  give(reply, 1, tokenizer().encode("world", false));
  give(reply, 0, tokenizer().encode("hello", false));
  reply.end(0, FinishReason::length);
  reply.end(1, FinishReason::length);
  std::vector<int> order;
  std::map<int, std::string> text;
  for (const Json& event : events_of(reply.finish())) {
    const Json& choice = event["choices"][0];
    const int index = choice["index"];
    order.push_back(index);
    text[index] += choice["delta"].value("content", "");
  }
  EXPECT_EQ(order.front(), 1);
  EXPECT_EQ(text[0], "hello");
  EXPECT_EQ(text[1], "world");
}

TEST(OpenReply, TellsAboutHowMuchItHolds) {
  const Tokens tokens(200, tokenizer().encode("hello", false).front());
  for (const char* fields :
       {R"("logprobs":2)", R"("logprobs":2,"echo":true)", R"("n":3)", R"("echo":true,"n":2)"}) {
    auto request = good_completion(R"({"prompt":"the block of a hello","max_tokens":200,)" +
                                   std::string(fields) + "}");
    const std::size_t choices = request.choices;
    const auto prompt = logprobs_of(request.prompts[0].size() - 1, 1),
               told = logprobs_of(tokens.size());
    const bool logprobs = request.sampling.logprobs >= 0;
    OpenReply reply(tokenizer(), request);
    for (std::uint32_t i = 0; i < choices; ++i) {
      give(reply, i, tokens, logprobs ? &told : nullptr,
           request.sampling.prompt_logprobs >= 0 ? &prompt : nullptr);
      reply.end(i, FinishReason::length);
    }
    const std::size_t held = reply.held();
    const std::size_t size = reply.finish().size();
    EXPECT_GT(3 * held, size) << fields;
    EXPECT_LT(held, 3 * size) << fields;
  }
  auto stream = good_completion(R"({"prompt":"a","max_tokens":200,"stream":true})");
  OpenReply reply(tokenizer(), stream);
  give(reply, 0, tokens);
  EXPECT_GT(reply.held(), 200U);
  reply.take_events();
  EXPECT_EQ(reply.held(), 0U);
}

TEST(OpenReply, StopsTellTheirReason) {
  const Tokens text = tokenizer().encode("hello world again", false);
  auto request = good_completion(R"({"prompt":"x","stop":["zzz"," world"]})");
  OpenReply by_string(tokenizer(), request);
  by_string.begin(0, nullptr);
  std::uint32_t taken = 0;
  while (!by_string.take(0, text[taken++], nullptr)) ASSERT_LT(taken, text.size());
  EXPECT_EQ(by_string.tokens(0), taken);
  EXPECT_FALSE(by_string.take(0, text[0], nullptr));  // what comes later is of no account
  EXPECT_EQ(by_string.tokens(0), taken);
  by_string.end(0, FinishReason::length);  // the scheduler's own end may have crossed it
  Json choice = Json::parse(by_string.finish())["choices"][0];
  EXPECT_EQ(choice["text"], " hello");
  EXPECT_EQ(choice["finish_reason"], "stop");
  EXPECT_EQ(choice["stop_reason"], " world");

  // A token that ends the choice is counted; its text is told only on demand.
  const std::string id = std::to_string(text.back());
  for (const bool include : {false, true}) {
    request = good_completion(R"({"prompt":"x","include_stop_str_in_output":)" +
                              std::string(include ? "true" : "false") + ",\"stop_token_ids\":[" +
                              id + "]}");
    OpenReply by_token(tokenizer(), request);
    give(by_token, 0, text);
    by_token.end(0, FinishReason::stop);
    const Json body = Json::parse(by_token.finish());
    choice = body["choices"][0];
    EXPECT_EQ(choice["stop_reason"], text.back());
    EXPECT_EQ(choice["text"], include ? " hello world again" : " hello world");
    EXPECT_EQ(body["usage"]["completion_tokens"], text.size());
  }
}

TEST(OpenReply, ChatLogprobs) {
  auto request = chat(R"(,"logprobs":true,"top_logprobs":1)");
  OpenReply reply(tokenizer(), request);
  const Tokens text = tokenizer().encode("你 hello", false);
  const Logprobs logprobs = logprobs_of(text.size());
  give(reply, 0, text, &logprobs);
  reply.end(0, FinishReason::length);
  const Json content = Json::parse(reply.finish())["choices"][0]["logprobs"]["content"];
  ASSERT_EQ(content.size(), text.size());
  std::string bytes;
  for (std::size_t i = 0; i < text.size(); ++i) {
    EXPECT_EQ(content[i]["token"], tokenizer().token_text(text[i]));
    EXPECT_EQ(content[i]["logprob"], -0.25 * static_cast<double>(i + 1));
    ASSERT_EQ(content[i]["top_logprobs"].size(), 1U);
    EXPECT_EQ(content[i]["top_logprobs"][0]["token"], tokenizer().token_text(5));
    EXPECT_EQ(content[i]["top_logprobs"][0]["logprob"], -0.125);
    for (const int byte : content[i]["bytes"]) bytes += static_cast<char>(byte);
  }
  EXPECT_EQ(bytes, " 你 hello");
}

TEST(OpenReply, CompletionLogprobsWithEcho) {
  auto request = good_completion(R"({"prompt":"hello","logprobs":2,"echo":true})");
  const Tokens prompt = request.prompts.front();
  OpenReply reply(tokenizer(), request);
  const Tokens text = tokenizer().encode("world", false);
  const Logprobs logprobs = logprobs_of(text.size());
  const Logprobs of_prompt = logprobs_of(prompt.size() - 1, 1);
  give(reply, 0, text, &logprobs, &of_prompt);
  reply.end(0, FinishReason::length);
  const Json choice = Json::parse(reply.finish())["choices"][0];
  EXPECT_EQ(choice["text"], "hello world");
  const Json told = choice["logprobs"];
  const std::size_t n = prompt.size() + text.size();
  for (const char* column : {"tokens", "token_logprobs", "top_logprobs", "text_offset"}) {
    EXPECT_EQ(told[column].size(), n) << column;
  }
  EXPECT_TRUE(told["token_logprobs"][0].is_null());
  EXPECT_TRUE(told["top_logprobs"][0].is_null());
  EXPECT_EQ(told["token_logprobs"][1], -0.25);
  EXPECT_EQ(told["token_logprobs"][prompt.size()], -0.25);  // the first of the reply's own
  EXPECT_EQ(told["text_offset"][0], 0);                     // bos
  EXPECT_EQ(told["text_offset"][1], 0);
  EXPECT_EQ(told["text_offset"][prompt.size()], 5);  // " world" begins
  // The token itself is among the most probable ones, or added to them.
  EXPECT_EQ(told["top_logprobs"][1].size(), prompt[1] == 5 || prompt[1] == 6 ? 2U : 3U);
  EXPECT_EQ(told["top_logprobs"][1][tokenizer().token_text(5)], -0.125);
}

TEST(OpenReply, StreamedLogprobsComeWithTheirTokens) {
  auto request = good_completion(R"({"prompt":"hello","logprobs":0,"stream":true})");
  OpenReply reply(tokenizer(), request);
  const Tokens text = tokenizer().encode("world 谁 again", false);
  const Logprobs logprobs = logprobs_of(text.size());
  give(reply, 0, text, &logprobs);
  reply.end(0, FinishReason::length);
  std::string joined;
  std::size_t told = 0;
  for (const Json& event : events_of(reply.finish())) {
    const Json& choice = event["choices"][0];
    joined += choice["text"].get<std::string>();
    if (!choice["logprobs"].is_null()) told += choice["logprobs"]["tokens"].size();
  }
  EXPECT_EQ(joined, " world 谁 again");
  EXPECT_EQ(told, text.size());
}

TEST(OpenReply, PromptLogprobsOfVllm) {
  auto request = good_completion(R"({"prompt":[5,6,7],"prompt_logprobs":2,"max_tokens":0})");
  OpenReply reply(tokenizer(), request);
  const Logprobs of_prompt = logprobs_of(2, 1);
  reply.begin(0, &of_prompt);
  reply.take(0, 9, nullptr);
  reply.end(0, FinishReason::stop);
  const Json body = Json::parse(reply.finish());
  const Json& choice = body["choices"][0];
  EXPECT_EQ(choice["text"], "");
  EXPECT_EQ(choice["finish_reason"], "length");
  EXPECT_EQ(body["usage"]["completion_tokens"], 0);
  const Json& list = choice["prompt_logprobs"];
  ASSERT_EQ(list.size(), 3U);
  EXPECT_TRUE(list[0].is_null());
  EXPECT_EQ(list[1].size(), 2U);
  EXPECT_EQ(list[1]["6"]["rank"], 2);
  EXPECT_EQ(list[1]["6"]["logprob"], -0.5);
  ASSERT_EQ(list[2].size(), 3U);
  EXPECT_TRUE(list[2]["7"]["rank"].is_null());
  EXPECT_EQ(list[2]["7"]["logprob"], -0.5);
  EXPECT_EQ(list[2]["5"]["decoded_token"], tokenizer().token_text(5));
}

TEST(OpenReply, EchoAloneRepeatsThePromptAsItCame) {
  auto request = good_completion(R"({"prompt":"  hello ","echo":true,"max_tokens":0})");
  OpenReply reply(tokenizer(), request);
  give(reply, 0, {9});
  reply.end(0, FinishReason::length);
  const Json choice = Json::parse(reply.finish())["choices"][0];
  EXPECT_EQ(choice["text"], "  hello ");
  EXPECT_TRUE(choice["logprobs"].is_null());
}

TEST(OpenReply, TheBestOfSeveral) {
  auto request = good_completion(R"({"prompt":"hello","best_of":3,"n":2})");
  OpenReply reply(tokenizer(), request);
  const char* texts[] = {"world", "block", "again"};
  const float means[] = {-0.5F, -2.0F, -0.25F};
  for (std::uint32_t i = 0; i < 3; ++i) {
    const Tokens text = tokenizer().encode(texts[i], false);
    Logprobs logprobs;
    for (std::uint32_t k = 0; k < text.size(); ++k) logprobs.push(k, means[i], {}, {});
    give(reply, i, text, &logprobs);
    reply.end(i, FinishReason::length);
  }
  const Json body = Json::parse(reply.finish());
  ASSERT_EQ(body["choices"].size(), 2U);
  EXPECT_EQ(body["choices"][0]["text"], " again");
  EXPECT_EQ(body["choices"][0]["index"], 0);
  EXPECT_EQ(body["choices"][1]["text"], " world");
  EXPECT_TRUE(body["choices"][0]["logprobs"].is_null());
}

}  // namespace
}  // namespace baton
