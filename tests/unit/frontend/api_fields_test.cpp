// docs/api.md names every field that the API knows, and /tokenize answers with the model's own ids.
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <string>

#include "api_fixture.h"
#include "frontend/openai/openai_api.h"
#include "frontend/openai/render_api.h"
#include "frontend/openai/tokenize_api.h"

namespace baton {
namespace {

using testing::expect_refused;
using testing::Refusal;
using testing::small_context;
using testing::tiny_model;
using Json = nlohmann::json;

/// Rows of the table under "Fields" in docs/api.md: | `field` | completions | chat | meaning |.
std::map<std::string, std::vector<std::string>> documented() {
  std::ifstream file(BATON_API_DOC);
  std::map<std::string, std::vector<std::string>> rows;
  bool fields = false;
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("## ", 0) == 0) fields = line == "## Fields";
    if (!fields || line.rfind("| `", 0) != 0) continue;
    std::istringstream cells(line.substr(2));
    std::string name, cell;
    std::getline(cells, name, '|');
    name = name.substr(1, name.rfind('`') - 1);
    while (std::getline(cells, cell, '|')) {
      const auto begin = cell.find_first_not_of(' ');
      if (begin == cell.npos) continue;
      rows[name].push_back(cell.substr(begin, cell.find_last_not_of(' ') + 1 - begin));
    }
  }
  return rows;
}

void check(OpenAiRoute route, std::size_t column) {
  const auto rows = documented();
  ASSERT_GT(rows.size(), 40U) << BATON_API_DOC;
  std::map<std::string, std::string> neutral;
  for (const NeutralFact& fact : neutral_fields(route)) neutral[fact.name] = fact.accepted;
  std::set<std::string> known;
  for (const std::string& name : openai_fields(route, tiny_model())) {
    known.insert(name);
    const auto row = rows.find(name);
    ASSERT_NE(row, rows.end()) << name << " is not in docs/api.md";
    ASSERT_GE(row->second.size(), 2U) << name;
    const auto harmless = neutral.find(name);
    EXPECT_EQ(row->second[column], harmless == neutral.end() ? "yes" : "only " + harmless->second)
        << name;
  }
  for (const auto& [name, cells] : rows) {
    EXPECT_EQ(known.count(name) != 0, cells[column] != "-") << name;
  }
}

TEST(ApiDoc, CompletionsAreAsTheTableSays) { check(OpenAiRoute::completion, 0); }
TEST(ApiDoc, ChatsAreAsTheTableSays) { check(OpenAiRoute::chat, 1); }

Json answer(const ParseOutcome& outcome) {
  if (const auto* error = std::get_if<HttpError>(&outcome)) ADD_FAILURE() << error->body;
  return Json::parse(std::get<Answer>(outcome).body);
}
ParseOutcome tokenize(const std::string& body) {
  return parse_tokenize(body, small_context(), tiny_model());
}
ParseOutcome detokenize(const std::string& body) {
  return parse_detokenize(body, small_context(), tiny_model());
}

TEST(Tokenize, TextsAndChats) {
  const Tokenizer& t = *tiny_model().tokenizer;
  Json reply = answer(tokenize(R"({"model":"tiny","prompt":"hello 你"})"));
  const auto ids = t.encode("hello 你", true);
  EXPECT_EQ(reply["tokens"], Json(ids));
  EXPECT_EQ(reply["count"], ids.size());
  EXPECT_EQ(reply["max_model_len"], 256);
  EXPECT_TRUE(reply["token_strs"].is_null());
  reply =
      answer(tokenize(R"({"prompt":"hello","add_special_tokens":false,"return_token_strs":true})"));
  EXPECT_EQ(reply["tokens"], Json(t.encode("hello", false)));
  EXPECT_EQ(reply["token_strs"].size(), reply["count"]);
  reply = answer(tokenize(R"({"messages":[{"role":"user","content":"hello"}]})"));
  EXPECT_EQ(reply["tokens"],
            Json(tiny_model().chat->render({{"user", "hello"}}, t, 1000).value().ids));
}

TEST(Tokenize, AndBack) {
  const Tokenizer& t = *tiny_model().tokenizer;
  const Json body = {{"tokens", t.encode("hello 你", true)}};
  EXPECT_EQ(answer(detokenize(body.dump()))["prompt"], t.decode(t.encode("hello 你", true), false));
}

/// Text-generation-inference's form: the tokens' texts are the input, cut where `start` and `stop`
/// say.
TEST(Tokenize, InputsGetPlacedTokens) {
  const Tokenizer& t = *tiny_model().tokenizer;
  const Json reply =
      answer(tokenize(R"({"inputs":"hello 你好","parameters":{"max_new_tokens":4}})"));
  const auto ids = t.encode("hello 你好", true);
  ASSERT_EQ(reply.size(), ids.size());
  std::string text;
  std::size_t at = 0;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    EXPECT_EQ(reply[i]["id"], ids[i]);
    EXPECT_EQ(reply[i]["start"], at);
    at = reply[i]["stop"];
    text += reply[i]["text"].get<std::string>();
  }
  EXPECT_EQ(text, "hello 你好");
  EXPECT_EQ(at, 8U) << "characters, not bytes";
}

TEST(Render, TellsTheTokensOfWhatWouldRun) {
  const Tokenizer& t = *tiny_model().tokenizer;
  // Prompts of both kinds, with fields of the request that it would be.
  Json reply = answer(parse_completion_render(
      R"({"model":"tiny","prompt":["hello","你"],"max_tokens":4,"stream":true,"n":2})",
      small_context(), tiny_model()));
  ASSERT_EQ(reply.size(), 2U);
  EXPECT_EQ(reply[0]["token_ids"], Json(t.encode("hello", true)));
  EXPECT_EQ(reply[1]["token_ids"], Json(t.encode("你", true)));
  EXPECT_TRUE(reply[0]["features"].is_null());
  EXPECT_EQ(reply[0]["model"], "tiny");
  reply = answer(parse_completion_render(R"({"prompt":[5,6,7]})", small_context(), tiny_model()));
  EXPECT_EQ(reply[0]["token_ids"], Json({5, 6, 7}));
  reply = answer(parse_chat_render(R"({"messages":[{"role":"user","content":"hello"}]})",
                                   small_context(), tiny_model()));
  EXPECT_EQ(reply["token_ids"],
            Json(tiny_model().chat->render({{"user", "hello"}}, t, 1000).value().ids));
}

TEST(Render, RefusesWhatTheRequestWould) {
  const auto refused = [](const ParseOutcome& outcome) {
    const auto* error = std::get_if<HttpError>(&outcome);
    return error == nullptr ? std::string("served")
                            : std::to_string(error->status) + " " + error->param;
  };
  EXPECT_EQ(refused(parse_completion_render(R"({"prompt":"a","max_tokens":-1})", small_context(),
                                            tiny_model())),
            "400 max_tokens");
  EXPECT_EQ(refused(parse_chat_render(R"({"stream":true})", small_context(), tiny_model())),
            "400 messages");
  EXPECT_EQ(refused(parse_completion_render(R"({"model":"other","prompt":"a"})", small_context(),
                                            tiny_model())),
            "404 model");
}

TEST(Tokenize, UnknownFieldsAreNamedInTheReply) {
  for (const char* body : {R"({"prompt":"a","colour":1})", R"({"inputs":"a","colour":1})",
                           R"({"messages":[{"role":"user","content":"x"}],"colour":1})"}) {
    const auto outcome = parse_tokenize(body, testing::lenient_context(), tiny_model());
    EXPECT_EQ(std::get<Answer>(outcome).headers.at(0).second, "colour") << body;
  }
  const auto back =
      parse_detokenize(R"({"tokens":[],"colour":1})", testing::lenient_context(), tiny_model());
  EXPECT_EQ(std::get<Answer>(back).headers.at(0).second, "colour");
}

TEST(Tokenize, Refuses) {
  const Refusal table[] = {
      {"{}", 400, "prompt", "is missing"},
      {R"({"prompt":5})", 400, "prompt", "must be a string"},
      {R"({"prompt":"a","model":"x"})", 404, "model", "does not exist"},
      {R"({"prompt":"a","colour":1})", 400, "colour", "unknown field"},
      {R"({"messages":[]})", 400, "messages", "must not be empty"},
      {R"({"messages":[{"role":"user","content":"x"}],"prompt":"x"})", 400, "prompt",
       "unknown field"},
      {R"({"prompt":")" + std::string(100'000, '\'') + "\"}", 400, "prompt",
       "more than 512 tokens"},
  };
  for (const Refusal& line : table) expect_refused(line, tokenize);
  const Json many = {{"tokens", std::vector<Token>(257, 5)}};
  const Refusal back[] = {
      {many.dump(), 400, "tokens", "has 257 token ids; the context holds 256"},
      {"{}", 400, "tokens", "must be an array"},
      {R"({"tokens":[1,-1]})", 400, "tokens[1]", "must be a token id"},
      {R"({"tokens":[],"model":"x"})", 404, "model", "does not exist"},
  };
  for (const Refusal& line : back) expect_refused(line, detokenize);
  expect_refused({R"({"inputs":5})", 400, "inputs", "must be a string"}, tokenize);
}

}  // namespace
}  // namespace baton
