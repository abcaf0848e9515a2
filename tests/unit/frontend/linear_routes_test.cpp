// What a body costs grows with its bytes, whatever it holds: twice the body, about twice the time,
// on every route and for every tokenizer. Quadratic work (4 times) fails.
#include <algorithm>
#include <ctime>
#include <fstream>
#include <functional>
#include <set>

#include "api_fixture.h"
#include "frontend/chat/chat_template.h"
#include "frontend/chat/tool_parameters.h"
#include "frontend/dialects/registry.h"

namespace baton {
namespace {

using testing::ModelFolder;
using testing::small_context;
using testing::tiny_model;
using Json = nlohmann::json;

constexpr std::size_t kBytes = 64 * 1024;
// Items are tens of bytes each, and what is done for one may be fast: copying, or passing keys.
constexpr std::size_t kBytesOfItems = 4 * kBytes;
constexpr std::size_t kBytesOfBoth = 8 * kBytes;
constexpr double kMostGrowth = 3;
constexpr double kFreeSeconds = 0.004;  // for kBytes

double thread_seconds() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

/// `run(input)` costs less than `most` times as much where `make(bytes)` makes twice as many bytes.
/// What takes less than `free` seconds for kBytes is not measured further: quadratic work on so
/// many bytes takes longer.
void expect_linear(const std::string& what, const std::function<std::string(std::size_t)>& make,
                   const std::function<void(const std::string&)>& run, std::size_t bytes = kBytes,
                   double free = kFreeSeconds, double most = kMostGrowth) {
  free *= static_cast<double>(bytes) / static_cast<double>(kBytes);
  const auto seconds = [&](const std::string& input) {
    const double begin = thread_seconds();
    run(input);
    return thread_seconds() - begin;
  };
  const std::string large = make(bytes);
  double of_large = seconds(large);
  if (of_large < free) return;
  const std::string small = make(bytes / 2);
  double of_small = seconds(small);
  // The least of several runs: others use the processors, too.
  for (int i = 0; i < 12 && (i < 1 || of_large >= most * of_small); ++i) {
    of_large = std::min(of_large, seconds(large));
    of_small = std::min(of_small, seconds(small));
    if (of_large < free) return;
  }
  EXPECT_LT(of_large, most * of_small)
      << what << ": " << large.size() << " bytes take " << of_large << " s, " << small.size()
      << " take " << of_small << " s; they begin with " << large.substr(0, 200);
}

// ------------------------------------------------------------------------------------- the routes

/// Chats with tools and reasoning; or a model for vectors or scores.
const ServedModel& model_for(const std::string& path) {
  static const auto templated = [] {
    const ModelFolder folder;
    folder.write("chat_template.jinja", R"(<think> </think> <tool_call> <function= {{ tools }}
        {% if enable_thinking %}{% endif %} {{ messages }} {{ message.tool_calls }})");
    folder.write("tokenizer_config.json", R"({"bos_token": "<s>", "eos_token": "</s>"})");
    ServedModel made = tiny_model();
    made.chat = nullptr;
    auto loaded = ChatTemplate::load(folder.path(), *made.tokenizer);
    if (!loaded.ok()) throw std::runtime_error(loaded.status().message());
    made.chat_template = std::move(loaded).value();
    return made;
  }();
  static const auto pooling = [](ModelTask task) {
    ServedModel made = tiny_model();
    made.task = task;
    made.vector_size = 4;
    made.no_token = 5;
    made.yes_token = 6;
    return made;
  };
  static const ServedModel embeds = pooling(ModelTask::embed);
  static const ServedModel scores = pooling(ModelTask::rerank);
  if (path.find("embed") != std::string::npos) return embeds;
  if (path.find("rank") != std::string::npos || path.find("score") != std::string::npos)
    return scores;
  return templated;
}

struct Route {
  std::string name;
  std::string path;
  ParseBody parse;

  void run(const std::string& body) const {
    RequestContext context = small_context();
    context.strict_fields = false;
    context.max_context = 1U << 22U;
    context.max_choices = 4096;
    context.path = path;
    const ServedModel& model = model_for(path);
    ParseOutcome outcome = parse(body, context, model);
    auto* chat = std::get_if<std::unique_ptr<PendingChat>>(&outcome);
    if (chat == nullptr) return;
    const std::string rendered = (*chat)->render_request();
    (*chat)->finish(Result<std::string>(rendered), model);
  }
};

std::vector<Route> all_routes() {
  std::vector<Route> routes;
  for (const Dialect* dialect : all_dialects()) {
    for (const DialectRoute& route : dialect->routes()) {
      const auto* parse = std::get_if<ParseBody>(&route.answer);
      if (parse == nullptr) continue;
      const std::string path = route.path == std::string("/mii/:name") ? "/mii/tiny" : route.path;
      routes.push_back({dialect->name() + (" " + path), path, *parse});
    }
  }
  return routes;
}

/// Bodies with every kind of field that may hold much.
const Json& bodies() {
  static const Json kBodies = Json::parse(R"json([
    {"prompt": "hello"},
    {"prompt": "hello", "stop": ["a"], "bad_words": ["b"], "logit_bias": {"5": 1},
     "stop_token_ids": [5], "allowed_token_ids": [5, 6], "metadata": {"a": "b"}},
    {"prompt": "hello", "max_length": 30},
    {"prompt": "hello", "max_tokens": 6, "top_k": 1},
    {"model": "tiny", "prompt": "hello"},
    {"model": "tiny", "prompt": "hello", "generation_config": {"max_new_tokens": 5}},
    {"model": "tiny", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 6},
    {"inputs": "hello", "parameters": {"stop": ["a"]}},
    {"inputs": "hello", "parameters": {"stop_sequences": ["a"], "allowed_token_ids": [5]}},
    {"inputs": "hello", "parameters": {"grammar": {"type": "json", "value": {"type": "object"}}}},
    {"prompt": ["hello", "a"], "guided_choice": ["yes", "no"]},
    {"prompt": "hello", "guided_json": "{\"type\": \"object\"}"},
    {"prompt": [5, 6, 7], "response_format": {"type": "json_schema", "json_schema":
      {"name": "a", "schema": {"type": "object", "properties": {"a": {"type": "string"}}}}}},
    {"model": "tiny", "max_tokens": 4, "system": [{"type": "text", "text": "brief"}],
     "messages": [{"role": "user", "content": [{"type": "text", "text":
         "many blocks of one message become one text, which must not be copied for each"}]},
       {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm", "signature": ""},
         {"type": "tool_use", "id": "1", "name": "f", "input": {"a": "b"}}]},
       {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1",
         "content": [{"type": "text", "text": "it"}]}]}],
     "tools": [{"name": "f", "input_schema": {"type": "object", "properties":
       {"a": {"type": "string"}}}}], "tool_choice": {"type": "tool", "name": "f"},
     "stop_sequences": ["x"]},
    {"model": "tiny", "stream": false, "options": {"stop": ["x"], "temperature": 0},
     "messages": [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "",
       "tool_calls": [{"function": {"name": "f", "arguments": {"a": "b"}}}]},
       {"role": "tool", "content": "it", "tool_name": "f"}],
     "tools": [{"type": "function", "function": {"name": "f", "description": "d", "parameters":
       {"type": "object", "properties": {"a": {"type": "string"}}}}}]},
    {"model": "tiny", "max_tokens": 4, "tool_choice": "required",
     "messages": [{"role": "user", "content": [{"type": "text", "text": "hello"}]},
       {"role": "assistant", "content": "", "reasoning_content": "hm", "tool_calls": [{"id": "1",
        "type": "function", "function": {"name": "f", "arguments": "{\"a\": 1}"}}]},
       {"role": "tool", "content": "it", "tool_call_id": "1"}],
     "tools": [{"type": "function", "function": {"name": "f", "description": "d", "parameters":
       {"type": "object", "properties": {"a": {"type": "string", "enum": ["b"]}}}}}]},
    {"model": "tiny", "prompt": "hello", "system": "s", "stream": false,
     "format": {"type": "object", "properties": {"a": {"type": "string"}}}},
    {"model": "tiny", "instructions": "brief", "input": [{"role": "user", "content":
       [{"type": "input_text", "text": "hello"}]}, {"type": "function_call", "call_id": "1",
       "name": "f", "arguments": "{}"}, {"type": "function_call_output", "call_id": "1",
       "output": "it"}, {"role": "user", "content": "so?"}],
     "tools": [{"type": "function", "name": "f", "parameters": {"type": "object"}}],
     "text": {"format": {"type": "json_schema", "name": "a", "schema": {"type": "object"}}},
     "metadata": {"a": "b"}},
    {"input": ["hello", "a"], "truncate_prompt_tokens": 9},
    {"input": "hello"},
    {"query": "hello", "documents": ["a", {"text": "b"}], "return_documents": true},
    {"query": "hello", "documents": ["a", "b"], "truncate_prompt_tokens": 2000},
    {"text_1": ["hello", "b"], "text_2": ["a", "c"], "truncate_prompt_tokens": 2000},
    {"text": "hello", "parameters": {"add_special_tokens": true}},
    {"tokens": [5, 6, 7]},
    {"prompts": ["hello", "a"], "stop": ["x"]}
  ])json");
  return kBodies;
}

/// One place of a body, and what becomes of it.
struct Growth {
  std::string name;
  std::function<void(Json&, std::size_t)> grow;
};

std::string repeated(const std::string& text, std::size_t bytes) {
  std::string out;
  while (out.size() < bytes) out += text;
  return out;
}

void add_keys(Json& object, std::size_t bytes) {
  for (std::size_t i = 0; i * 12 < bytes; ++i) object["key" + std::to_string(i)] = 1;
}

void repeat_items(Json& list, std::size_t bytes) {
  const Json once = list;
  const std::size_t each = std::max<std::size_t>(1, once.dump().size() - 2);
  for (std::size_t size = each; size < bytes; size += each) {
    list.insert(list.end(), once.begin(), once.end());
  }
}

std::vector<Growth> growths(const Json& value) {
  std::vector<Growth> all;
  if (value.is_string()) {
    all.push_back({"words", [](Json& at, std::size_t n) { at = repeated("a b ", n); }});
    all.push_back({"escapes", [](Json& at, std::size_t n) { at = repeated("\xC3\xA9\n", n / 4); }});
    all.push_back({"blanks", [](Json& at, std::size_t n) { at = repeated(" ", n); }});
  } else if (value.is_object()) {
    all.push_back({"keys", add_keys});
  } else if (value.is_array() && !value.empty()) {
    all.push_back({"items", repeat_items});
  }
  return all;
}

/// Calls `visit` with every place of a body that can grow.
void each_place(const Json& value, const Json::json_pointer& at,
                const std::function<void(const Json::json_pointer&, const Growth&)>& visit) {
  for (const Growth& growth : growths(value)) visit(at, growth);
  if (!value.is_structured()) return;
  for (const auto& [key, inner] : value.items()) {
    const auto below = value.is_array() ? at / static_cast<std::size_t>(std::stoul(key)) : at / key;
    each_place(inner, below, visit);
  }
}

/// The fields of the body are known to the route, at least most of them.
bool fits(const Route& route, const Json& body) {
  try {
    RequestContext context = small_context();
    context.strict_fields = false;
    context.max_context = 1U << 22U;
    context.path = route.path;
    return !std::holds_alternative<HttpError>(
        route.parse(body.dump(), context, model_for(route.path)));
  } catch (const std::exception&) {
    return false;
  }
}

TEST(LinearRoutes, EveryPlaceOfABodyMayGrow) {
  std::size_t cases = 0;
  std::set<std::pair<ParseBody, const ServedModel*>> done;  // several paths may be one
  for (const Route& route : all_routes()) {
    if (!done.emplace(route.parse, &model_for(route.path)).second) continue;
    bool tried = false;
    for (const Json& body : bodies()) {
      if (!fits(route, body)) continue;
      tried = true;
      each_place(body, Json::json_pointer(), [&](const auto& at, const Growth& growth) {
        ++cases;
        const auto make = [&](std::size_t bytes) {
          Json grown = body;
          growth.grow(grown[at], bytes);
          return grown.dump(-1, ' ', growth.name == "escapes");
        };
        expect_linear(
            route.name + " " + growth.name + " of " + at.to_string(), make,
            [&](const std::string& text) { route.run(text); },
            growth.name == "items" ? kBytesOfItems : kBytes);
        // Each item must not pass all keys of the body.
        if (growth.name != "items") return;
        const auto both = [&](std::size_t bytes) {
          Json grown = body;
          growth.grow(grown[at], bytes / 2);
          add_keys(grown, bytes / 2);
          return grown.dump();
        };
        expect_linear(
            route.name + " keys and items of " + at.to_string(), both,
            [&](const std::string& text) { route.run(text); }, kBytesOfBoth);
      });
    }
    EXPECT_TRUE(tried) << route.name << " takes none of the bodies";
  }
  EXPECT_GT(cases, 500U);
}

TEST(LinearRoutes, BodiesThatAreNoneOfTheAPIs) {
  const std::map<std::string, std::function<std::string(std::size_t)>> shapes = {
      {"open arrays", [](std::size_t n) { return repeated("[", n); }},
      {"open objects", [](std::size_t n) { return repeated("{\"a\":", n); }},
      {"one key", [](std::size_t n) { return "{" + repeated("\"a\":1,", n) + "\"a\":1}"; }},
      {"one key within",
       [](std::size_t n) { return "{\"b\":{" + repeated("\"a\":1,", n) + "\"a\":1}}"; }},
      {"shallow arrays", [](std::size_t n) { return "{\"a\":[" + repeated("[],", n) + "1]}"; }},
      {"numbers", [](std::size_t n) { return "{\"a\":" + repeated("1", n) + "}"; }},
      {"surrogates",
       [](std::size_t n) { return "{\"a\":\"" + repeated("\\ud83d\\ude00", n) + "\"}"; }},
      {"lone surrogates",
       [](std::size_t n) { return "{\"a\":\"" + repeated("\\ud83dx", n) + "\"}"; }},
      {"long keys",
       [](std::size_t n) {
         std::string text = "{\"a\":0";
         for (std::size_t i = 0; text.size() < n; ++i)
           text += ",\"" + std::string(1000, 'k') + std::to_string(i) + "\":1";
         return text + "}";
       }},
  };
  for (const Route& route : all_routes()) {
    for (const auto& [name, make] : shapes) {
      expect_linear(route.name + " " + name, make,
                    [&](const std::string& text) { route.run(text); });
    }
  }
}

/// Copying is so fast that only large bodies tell: blocks that become one text, and members that
/// are looked up behind many others, once for each item.
TEST(LinearRoutes, LargeBodiesWithManyItems) {
  const auto routes = all_routes();
  const auto route = std::find_if(routes.begin(), routes.end(), [](const Route& one) {
    return one.path == "/v1/messages/count_tokens";
  });
  ASSERT_NE(route, routes.end());
  const auto run = [&](const std::string& text) { route->run(text); };
  const std::string block = R"({"type":"text","text":")" + std::string(100, 'a') + R"("})";
  expect_linear(
      "blocks of one message",
      [&](std::size_t bytes) {
        return R"({"model":"tiny","messages":[{"role":"user","content":[)" +
               repeated(block + ",", bytes) + block + "]}]}";
      },
      run, 32 * kBytes, kFreeSeconds, 2.5);
  const std::string tool = R"({"name":"f","input_schema":{}})";
  expect_linear(
      "tools behind many keys",
      [&](std::size_t bytes) {
        std::string text = "{";
        for (std::size_t i = 0; text.size() < bytes / 2; ++i)
          text += "\"k" + std::to_string(i) + "\":1,";
        return text + R"("model":"tiny","messages":[{"role":"user","content":"a"}],"tools":[)" +
               repeated(tool + ",", bytes / 2) + tool + "]}";
      },
      run, 32 * kBytes, kFreeSeconds, 2.5);
}

/// Every parameter refers to one definition with many values.
TEST(LinearRoutes, TypesOfToolsParameters) {
  expect_linear(
      "tool_parameters",
      [](std::size_t bytes) {
        std::string text = R"([{"function":{"name":"f","parameters":{"$defs":{"d":{"enum":[1)" +
                           repeated(",2", bytes / 2) + "]}},\"properties\":{";
        for (std::size_t i = 0; text.size() < bytes; ++i) {
          text += (i == 0 ? "\"p" : ",\"p") + std::to_string(i) + R"(":{"$ref":"#/$defs/d"})";
        }
        return text + "}}}}]";
      },
      [](const std::string& text) { tool_parameters(text); });
}

// --------------------------------------------------------------------------------- the tokenizers

TEST(LinearTokenizers, WhateverTheTextRepeats) {
  const std::vector<std::string> patterns = {"a",         " ",        "\n",
                                             "\r\n",      "1",        "a b ",
                                             "'",         "\xC3\xA9", "\xF0\x9F\x98\x80",
                                             "e\xCC\x81", "\xCC\x81", "...",
                                             " \n",       "\t",       "aA1 ",
                                             "-_",        "(((",      "<|im_end|>",
                                             "<s>",       "<L> ",     "\xE4\xBD\xA0",
                                             "\xFF",      "the ",     "\xE2\x96\x81"};
  std::vector<std::pair<std::string, std::shared_ptr<const Tokenizer>>> tokenizers = {
      {"tiny", tiny_model().tokenizer}};
  for (const char* name : {"gpt2", "llama3", "qwen2", "o200k", "deepseek", "deepseek3", "llama2",
                           "mistral", "metaspace", "odd", "whitespace", "boundary"}) {
    auto loaded = Tokenizer::load(std::string("tests/golden/tokenizers/") + name);
    ASSERT_TRUE(loaded.ok()) << loaded.status().message();
    tokenizers.emplace_back(name, std::move(loaded).value());
  }
  for (const auto& [name, tokenizer] : tokenizers) {
    for (const std::string& pattern : patterns) {
      for (const bool plain : {false, true}) {
        const auto run = [&, tokenizer = tokenizer.get()](const std::string& text) {
          plain ? tokenizer->encode_plain_within(text, false, Tokenizer::kNoLimit)
                : tokenizer->encode_within(text, false, Tokenizer::kNoLimit);
        };
        expect_linear(
            name + " of '" + pattern + "'",
            [&](std::size_t bytes) { return repeated(pattern, bytes); }, run, kBytes, 0.01);
      }
    }
  }
}

}  // namespace
}  // namespace baton
