// Embeddings and scores: what requests may say, what replies look like, what a folder is served
// for.
#include "frontend/openai/pooling_api.h"

#include <cmath>
#include <cstring>

#include "api_fixture.h"
#include "frontend/core/open_reply.h"
#include "frontend/core/pooled_vector.h"
#include "frontend/dialects/registry.h"
#include "text/model_task.h"

namespace baton {
namespace {

using testing::bad;
using testing::good;
using testing::small_context;
using testing::tiny_model;
using Json = nlohmann::json;

ServedModel served(ModelTask task) {
  ServedModel model = tiny_model();
  model.task = task;
  model.vector_size = 4;
  model.no_token = 5;
  model.yes_token = 6;
  return model;
}

ParseOutcome embeddings(const std::string& body) {
  return parse_embeddings(body, small_context(), served(ModelTask::embed));
}
/// What is around a pair takes the tiny tokenizer some hundred tokens.
RequestContext wide_context() {
  RequestContext context = small_context();
  context.max_context = 2000;
  return context;
}
ParseOutcome rerank(const std::string& body) {
  return parse_rerank(body, wide_context(), served(ModelTask::rerank));
}
ParseOutcome score(const std::string& body) {
  return parse_score(body, wide_context(), served(ModelTask::rerank));
}

/// The whole reply, where choice i gets vectors[i]; they come in the opposite order.
Json reply_to(ParsedRequest request, const std::vector<std::vector<float>>& vectors) {
  OpenReply reply(*tiny_model().tokenizer, request);
  for (std::size_t i = vectors.size(); i-- > 0;) {
    const auto choice = static_cast<std::uint32_t>(i);
    reply.begin(choice, nullptr);
    LogprobReader::Entry entry;
    entry.vector = vectors[i];
    reply.take(choice, 0, &entry);
    reply.end(choice, FinishReason::length);
  }
  return Json::parse(reply.finish());
}

TEST(Embeddings, InputsOfEachKind) {
  const Tokenizer& tokenizer = *tiny_model().tokenizer;
  const auto hello = tokenizer.encode("hello", tokenizer.add_bos());
  ParsedRequest one = good(embeddings(R"({"input":"hello","model":"tiny","user":"me"})"));
  ASSERT_EQ(one.prompts.size(), 1U);
  EXPECT_EQ(one.prompts[0], hello);
  EXPECT_EQ(one.sampling.pooling, Pooling::last_hidden);
  EXPECT_TRUE(one.sampling.within_bounds());
  EXPECT_EQ(good(embeddings(R"({"input":["hello","a"]})")).prompts.size(), 2U);
  EXPECT_EQ(good(embeddings(R"({"input":[5,6,7]})")).prompts,
            (std::vector<std::vector<Token>>{{5, 6, 7}}));
  EXPECT_EQ(good(embeddings(R"({"input":[[5],[6,7]]})")).prompts,
            (std::vector<std::vector<Token>>{{5}, {6, 7}}));
  EXPECT_EQ(good(embeddings(R"({"input":[5,6,7],"truncate_prompt_tokens":2})")).prompts[0].size(),
            2U);
}

TEST(Embeddings, WhatIsRefused) {
  std::string many = R"({"input":[)";
  for (int i = 0; i < 301; ++i) many += i == 0 ? "\"a\"" : ",\"a\"";
  const std::vector<testing::Refusal> lines = {
      {"{}", 400, "input", "is missing"},
      {R"({"input":{}})", 400, "input", "must be a string or an array of token ids"},
      {R"({"input":[]})", 400, "input", "is empty"},
      {R"({"input":["a",7]})", 400, "input[1]", "must be a string"},
      {R"({"input":[["a"]]})", 400, "input[0][0]", "must be a token id"},
      {R"({"input":[[]]})", 400, "input[0]", "the prompt is empty"},
      {R"({"input":"a","dimensions":5})", 400, "dimensions", "4"},
      {R"({"input":"a","dimensions":0})", 400, "dimensions", "1"},
      {R"({"input":"a","encoding_format":"hex"})", 400, "encoding_format", "base64"},
      {R"({"input":"a","model":"other"})", 404, "model", "does not exist"},
      {R"({"input":")" + std::string(600, 'x') + R"("})", 400, "input", "tokens"},
      {many + "]}", 400, "input", "at most 300 texts, not 301"},
      {R"({"input":"a","colour":1})", 400, "colour", ""}};
  for (const testing::Refusal& line : lines) testing::expect_refused(line, embeddings);
}

TEST(Embeddings, AreScaledToLengthOneAfterTheyAreCut) {
  const Json all =
      reply_to(good(embeddings(R"({"input":["a","b"]})")), {{3, 0, 4, 0}, {0, 0, 0, 2}});
  EXPECT_EQ(all["object"], "list");
  EXPECT_EQ(all["model"], "tiny");
  EXPECT_EQ(all["data"][0]["index"], 0);
  EXPECT_EQ(all["data"][0]["object"], "embedding");
  EXPECT_FLOAT_EQ(all["data"][0]["embedding"][0].get<float>(), 0.6F);
  EXPECT_FLOAT_EQ(all["data"][0]["embedding"][2].get<float>(), 0.8F);
  EXPECT_EQ(all["data"][1]["embedding"], Json::parse("[0,0,0,1]"));
  EXPECT_EQ(all["usage"]["prompt_tokens"], all["usage"]["total_tokens"]);
  const Json cut = reply_to(good(embeddings(R"({"input":"a","dimensions":2})")), {{3, 4, 12, 84}});
  EXPECT_EQ(cut["data"][0]["embedding"].size(), 2U);
  EXPECT_FLOAT_EQ(cut["data"][0]["embedding"][0].get<float>(), 0.6F);
  EXPECT_EQ(embedding_of(std::vector<float>{0, 0}, 0), (std::vector<float>{0, 0}));
}

TEST(Embeddings, AsBytes) {
  const Json all =
      reply_to(good(embeddings(R"({"input":"a","encoding_format":"base64"})")), {{0, 1, 0, 0}});
  EXPECT_EQ(all["data"][0]["embedding"], "AAAAAAAAgD8AAAAAAAAAAA==") << "0, 1, 0, 0";
  EXPECT_EQ(base64_floats(std::vector<float>{1}), "AACAPw==");
  EXPECT_EQ(base64_floats(std::vector<float>{1, -2}), "AACAPwAAAMA=");
  EXPECT_EQ(base64_floats(std::vector<float>{1, -2, 0.5F}), "AACAPwAAAMAAAAA/");
}

TEST(Embeddings, NumbersReadBackAsTheSameFloats) {
  const std::vector<float> values = {0.1F, -1e-30F, 1.0F / 3, 16777217.0F, -0.0F};
  const Json read = Json::parse(json_array(values));
  for (std::size_t i = 0; i < values.size(); ++i) EXPECT_EQ(read[i].get<float>(), values[i]);
}

TEST(Embeddings, AsOllamaTellsThem) {
  const ServedModel model = served(ModelTask::embed);
  const auto ask = [&](const char* path, const std::string& body) {
    for (const DialectRoute& route : dialect_named("ollama")->routes()) {
      if (std::string(route.path) == path)
        return good(std::get<ParseBody>(route.answer)(body, small_context(), model));
    }
    throw std::runtime_error("no such path");
  };
  const Json all = reply_to(ask("/api/embed", R"({"model":"tiny:latest","input":["a","b"]})"),
                            {{1, 0, 0, 0}, {0, 1, 0, 0}});
  EXPECT_EQ(all["embeddings"], Json::parse("[[1,0,0,0],[0,1,0,0]]"));
  EXPECT_GT(all["prompt_eval_count"], 0);
  const Json one =
      reply_to(ask("/api/embeddings", R"({"model":"tiny","prompt":"a"})"), {{0, 0, 1, 0}});
  EXPECT_EQ(one, Json::parse(R"({"embedding":[0,0,1,0]})"));
}

TEST(Rerank, TellsTheBestFirst) {
  ParsedRequest request = good(rerank(
      R"({"query":"q","documents":["a",{"text":"b"},"c"],"top_n":2,"return_documents":true})"));
  EXPECT_EQ(request.sampling.pooling, Pooling::token_logits);
  EXPECT_EQ(request.sampling.allowed_tokens, (std::vector<Token>{5, 6})) << "no, yes";
  EXPECT_TRUE(request.sampling.within_bounds());
  const Json all = reply_to(std::move(request), {{0, -1}, {0, 3}, {0, 3}});
  ASSERT_EQ(all["results"].size(), 2U);
  EXPECT_EQ(all["results"][0]["index"], 1) << "equally good ones in their order";
  EXPECT_EQ(all["results"][1]["index"], 2);
  EXPECT_FLOAT_EQ(all["results"][0]["relevance_score"].get<float>(),
                  static_cast<float>(1 / (1 + std::exp(-3.0))));
  EXPECT_EQ(all["results"][0]["document"]["text"], "b");
  EXPECT_EQ(all["id"], "rerank-42");
  const Json plain = reply_to(good(rerank(R"({"query":"q","documents":["a"]})")), {{1, 1}});
  EXPECT_FALSE(plain["results"][0].contains("document"));
  EXPECT_EQ(plain["results"][0]["relevance_score"], 0.5);
}

TEST(Rerank, ThePromptIsTheModelCards) {
  const ParsedRequest request = good(
      rerank(R"({"query":"two <|end|>","documents":["dogs","cats"],"instruction":"Find pets"})"));
  const Tokenizer& tokenizer = *tiny_model().tokenizer;
  const std::string text = tokenizer.decode(request.prompts[1], false);
  EXPECT_NE(text.find("<Instruct>: Find pets\n<Query>: two <|end|>\n<Document>: cats"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("the answer can only be \"yes\" or \"no\"."), std::string::npos);
  EXPECT_TRUE(text.ends_with("<think>\n\n</think>\n\n")) << text;
  const auto specials = [&](const std::vector<Token>& ids) {
    return std::count_if(ids.begin(), ids.end(),
                         [&](Token id) { return tokenizer.is_special(id); });
  };
  const ParsedRequest plain =
      good(rerank(R"({"query":"two","documents":["dogs"],"instruction":"Find pets"})"));
  EXPECT_EQ(specials(request.prompts[0]), specials(plain.prompts[0]))
      << "what somebody says is text";
}

/// The prompt of a query and a document, so many tokens of which are kept. Without blanks: those of
/// the tiny tokenizer depend on where a text is cut.
std::string truncated(const std::string& query, const std::string& document, std::size_t kept) {
  const Json body = {{"query", query},
                     {"documents", {document, "short"}},
                     {"instruction", "Find"},
                     {"truncate_prompt_tokens", kept}};
  const ParsedRequest request = good(rerank(body.dump()));
  EXPECT_LE(request.prompts[0].size(), kept);
  std::string text = tiny_model().tokenizer->decode(request.prompts[0], false);
  std::erase(text, ' ');
  return text;
}

std::string repeated(const std::string& word, std::size_t times) {
  std::string text;
  for (std::size_t i = 0; i < times; ++i) text += word;
  return text;
}

TEST(Rerank, TruncationKeepsPartOfBoth) {
  const std::string query = repeated("query ", 400);
  const std::string document = repeated("paper ", 400);
  const auto count = [](const std::string& text, const std::string& word) {
    std::size_t found = 0;
    for (std::size_t at = text.find(word); at != text.npos; at = text.find(word, at + 1)) ++found;
    return found;
  };
  const auto holds = [](const std::string& text, const std::string& part) {
    EXPECT_NE(text.find(part), text.npos) << part << " is not in " << text;
  };
  const std::size_t around =
      good(rerank(R"({"query":"q","documents":["d"],"instruction":"Find"})")).prompts[0].size();
  // Both are long: each keeps about half.
  const std::string both = truncated(query, document, around + 400);
  EXPECT_GT(count(both, "query"), 20U) << both;
  EXPECT_GT(count(both, "paper"), 20U) << both;
  holds(both, "\n<Document>:paperpaper");
  EXPECT_TRUE(both.ends_with("<think>\n\n</think>\n\n"));
  // One is short: it is whole, and the other one has what is left.
  holds(truncated(query, "a paper", around + 400), "\n<Document>:apaper<");
  const std::string short_query = truncated("a query", document, around + 400);
  holds(short_query, "<Query>:aquery\n<Document>:paperpaper");
  EXPECT_GT(count(short_query, "paper"), count(both, "paper") + 20);
  // Where both fit, nothing is different.
  std::string whole = tiny_model().tokenizer->decode(
      good(rerank(R"({"query":"a query","documents":["a paper"],"instruction":"Find"})"))
          .prompts[0],
      false);
  std::erase(whole, ' ');
  EXPECT_EQ(truncated("a query", "a paper", 1900), whole);
}

TEST(Rerank, WhatIsRefused) {
  const std::vector<testing::Refusal> lines = {
      {R"({"documents":["a"]})", 400, "query", "is missing"},
      {R"({"query":"q"})", 400, "documents", "is missing"},
      {R"({"query":"q","documents":[]})", 400, "documents", "is empty"},
      {R"({"query":"q","documents":[7]})", 400, "documents[0]", "must be a string"},
      {R"({"query":"q","documents":["a"],"top_n":-1})", 400, "top_n", "0"},
      {R"({"query":"q","documents":["a"],"truncate_prompt_tokens":3})", 400,
       "truncate_prompt_tokens", "what is around a query and a document takes"},
      {R"({"query":"q","documents":["a"],"model":"x"})", 404, "model", "does not exist"}};
  for (const testing::Refusal& line : lines) testing::expect_refused(line, rerank);
  testing::expect_refused({R"({"text_1":["a","b"],"text_2":["c"]})", 400, "text_2", "as many"},
                          score);
}

TEST(Score, OnePairForEachSecondText) {
  const Json all = reply_to(good(score(R"({"text_1":"a","text_2":["b","c"]})")), {{0, 0}, {2, 2}});
  EXPECT_EQ(all["object"], "list");
  ASSERT_EQ(all["data"].size(), 2U);
  EXPECT_EQ(all["data"][1]["index"], 1);
  EXPECT_EQ(all["data"][1]["score"], 0.5);
  EXPECT_EQ(good(score(R"({"text_1":["a","b"],"text_2":["c","d"]})")).prompts.size(), 2U);
}

TEST(Tasks, AModelIsServedForOneOfThem) {
  const auto code = [](const ParseOutcome& outcome) {
    const HttpError error = bad(outcome, "the wrong task");
    EXPECT_EQ(error.status, 400);
    EXPECT_NE(error.message.find("model_task"), std::string::npos) << error.message;
    return testing::error_of(error)["code"].get<std::string>();
  };
  EXPECT_EQ(code(parse_embeddings(R"({"input":"a"})", small_context(), tiny_model())),
            "wrong_task");
  EXPECT_EQ(code(parse_rerank(R"({"query":"q","documents":["a"]})", small_context(),
                              served(ModelTask::embed))),
            "wrong_task");
  EXPECT_TRUE(refuse_task(ModelTask::generate, served(ModelTask::embed)));
  EXPECT_FALSE(refuse_task(ModelTask::generate, tiny_model()));
}

TEST(Tasks, AreFoundInTheFolder) {
  const testing::ModelFolder folder;
  const auto found = [&](const std::string& asked) { return find_task(folder.path(), asked); };
  EXPECT_EQ(found("auto").value(), ModelTask::generate);
  EXPECT_EQ(found("embed").value(), ModelTask::embed) << "asked for, whatever the folder is";
  folder.write("modules.json", R"([{"type":"sentence_transformers.models.Transformer","path":""},
                                   {"type":"sentence_transformers.models.Pooling","path":"."},
                                   {"type":"sentence_transformers.models.Normalize","path":"2"}])");
  folder.write("config.json",
               R"({"pooling_mode_lasttoken":true,"pooling_mode_mean_tokens":false})");
  EXPECT_EQ(found("auto").value(), ModelTask::embed);
  EXPECT_EQ(found("generate").value(), ModelTask::generate);
  EXPECT_EQ(found("rerank").value(), ModelTask::rerank);
  folder.write("config.json", R"({"pooling_mode":"lasttoken"})");
  EXPECT_EQ(found("auto").value(), ModelTask::embed) << "as newer files say it";
  folder.write("config.json", R"({"pooling_mode_mean_tokens":true})");
  EXPECT_NE(found("auto").status().message().find("mean_tokens"), std::string::npos);
  EXPECT_EQ(found("generate").value(), ModelTask::generate);
  folder.write("modules.json", R"([{"type":"sentence_transformers.models.Dense","path":"3"}])");
  EXPECT_NE(found("embed").status().message().find("Dense"), std::string::npos);
  folder.write("config.json", R"({"hidden_size":1024})");
  EXPECT_EQ(vector_size(folder.path()).value(), 1024U);
  folder.write("config.json", R"({"hidden_size":20000})");
  EXPECT_FALSE(vector_size(folder.path()).ok());
}

}  // namespace
}  // namespace baton
