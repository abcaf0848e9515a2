#include "frontend/dialects/ollama.h"

#include <array>
#include <memory>
#include <utility>

#include "frontend/chat/chat_template.h"
#include "frontend/chat/message_fields.h"
#include "frontend/dialects/common.h"
#include "frontend/dialects/ollama_reply.h"
#include "frontend/http/sse.h"
#include "frontend/openai/infill.h"
#include "frontend/openai/pooling_api.h"
#include "frontend/openai/translation.h"

namespace baton {
namespace ollama {
namespace {

using Json = nlohmann::json;
using Page = std::variant<Answer, HttpError>;

/// The version of Ollama whose API this is: its clients refuse what is older than they need.
constexpr const char* kApiVersion = "0.12.0";
constexpr const char* kLines = "application/x-ndjson";
constexpr double kDefaultTemperature = 0.8;
constexpr double kDefaultTopP = 0.9;
constexpr int kDefaultTopK = 40;

const FieldNames& field_names() {
  static const FieldNames kNames = [] {
    FieldNames names = {{"max_tokens", "options.num_predict"},
                        {"response_format.json_schema.schema", "format"},
                        {"response_format", "format"},
                        {"reasoning_effort", "think"},
                        {"enable_thinking", "think"}};
    for (const char* option :
         {"temperature", "top_k", "top_p", "min_p", "typical_p", "repeat_penalty", "min_tokens",
          "presence_penalty", "frequency_penalty", "seed", "stop"}) {
      names.emplace_back(option, std::string("options.") + option);
    }
    return names;
  }();
  return kNames;
}

/// A name may have a tag, of which there is one.
std::string model_name(std::string_view name, const ServedModel& model) {
  constexpr std::string_view kTag = ":latest";
  if (name != model.name && name.ends_with(kTag)) name.remove_suffix(kTag.size());
  return std::string(name);
}

void read_model(FieldReader& fields, const ServedModel& model, OrderedJson& out) {
  if (const auto name = required_string(fields, "model")) out["model"] = model_name(*name, model);
}

/// What the original's runner takes and this server has no use for, whatever it is.
void pass_over_runner(FieldReader& options) {
  pass_over(options, {"num_ctx", "num_keep", "num_batch", "num_gpu", "main_gpu", "num_thread",
                      "numa", "low_vram", "f16_kv", "vocab_only", "use_mmap", "use_mlock",
                      "logits_all", "embedding_only", "repeat_last_n", "penalize_newline",
                      "mirostat_tau", "mirostat_eta", "draft_num_predict"});
}

/// What the model's publisher says goes before the original's defaults, as a Modelfile does.
void read_options(FieldReader& fields, const SamplingDefaults& defaults, OrderedJson& out) {
  if (!defaults.temperature) out["temperature"] = kDefaultTemperature;
  if (!defaults.top_k) out["top_k"] = kDefaultTopK;
  if (!defaults.top_p) out["top_p"] = kDefaultTopP;
  const Json* given = take_object(fields, "options");
  if (given == nullptr) return;
  FieldReader options(fields, *given, "options");
  pass_fields(options,
              {"temperature", "top_k", "top_p", "min_p", "typical_p", "repeat_penalty",
               "presence_penalty", "frequency_penalty", "stop", "min_tokens"},
              out);
  const Json* seed = options.take("seed");
  // By its text: a comparison would take 2^64 - 1 for -1, which asks for any seed.
  if (seed != nullptr && seed->dump() != "-1") out["seed"] = *seed;
  if (const auto most = options.integer("num_predict", -2, kMaxCount)) {
    if (*most == 0)
      options.fail("num_predict", "must be above 0, or -1 or -2: what the context leaves");
    out["max_tokens"] = *most < 0 ? kMaxCount : *most;
  }
  refuse_unless(options, "mirostat", 0, "it is another way to draw tokens");
  refuse_unless(options, "tfs_z", 1, "it is another way to draw tokens");
  pass_over_runner(options);
  if (options.finish()) fields.fail(*options.finish());
}

/// "json", or a schema.
void read_format(FieldReader& fields, const OrderedJson& ordered, OrderedJson& out) {
  const Json* format = fields.take("format");
  if (format == nullptr || *format == "") return;
  if (*format == "json") {
    out["response_format"] = {{"type", "json_object"}};
  } else if (format->is_object()) {
    out["response_format"] = schema_format(ordered_member(ordered, "format"));
  } else {
    fields.fail("format", "must be \"json\" or a JSON Schema");
  }
}

/// true, false, or an effort.
void read_think(FieldReader& fields, OrderedJson& out) {
  const Json* think = fields.take("think");
  if (think == nullptr) return;
  if (think->is_boolean()) {
    out["enable_thinking"] = *think;
  } else if (think->is_string()) {
    out["reasoning_effort"] = *think;
  } else {
    fields.fail("think", "must be true, false, \"low\", \"medium\" or \"high\"");
  }
}

void read_common(FieldReader& fields, const OrderedJson& ordered, const ServedModel& model,
                 OrderedJson& out) {
  read_model(fields, model, out);
  out["stream"] = fields.boolean("stream").value_or(true);
  read_options(fields, model.sampling, out);
  read_format(fields, ordered, out);
  pass_over(fields, {"keep_alive"});  // the model stays
  refuse_unless(fields, "logprobs", false, "/v1/chat/completions tells them");
  refuse_unless(fields, "top_logprobs", 0, "/v1/chat/completions tells them");
  // Baton's own, as in the OpenAI API.
  pass_fields(fields, {"timeout_s", "priority", "cache_salt"}, out);
}

constexpr const char* kNoImages = "this model reads only text";

/// [{"id", "function": {"index", "name", "arguments": {...}}}]
void read_calls(FieldReader& message, const OrderedJson& ordered, OrderedJson& out) {
  const Json* calls = take_objects(message, "tool_calls");
  const OrderedJson& all = ordered_member(ordered, "tool_calls");
  for (std::size_t i = 0; calls != nullptr && i < calls->size() && message.ok(); ++i) {
    FieldReader call(message, (*calls)[i], "tool_calls[" + std::to_string(i) + "]");
    const auto id = call.string("id");
    call.take("type");
    if (const Json* given = take_object(call, "function", true)) {
      FieldReader function(call, *given, "function");
      const auto name = required_string(function, "name");
      function.take("index");
      function.take("arguments");
      const OrderedJson& arguments =
          ordered_member(ordered_member(all[i], "function"), "arguments");
      const std::string text = earlier_arguments(
          function, "arguments",
          arguments.is_string() ? arguments.get<std::string>() : arguments.dump());
      if (function.finish()) call.fail(*function.finish());
      if (call.ok()) out["tool_calls"].push_back(function_call(id.value_or(""), *name, text));
    }
    if (call.finish()) message.fail(*call.finish());
  }
}

/// Those of a tool's result are left out by name, so that the conversation goes on.
void read_images(FieldReader& message, OrderedJson& out) {
  if (out["role"] != "tool" || message.strict()) {
    return refuse_unless(message, "images", Json::array(), kNoImages);
  }
  const Json* images = message.take("images");
  if (images == nullptr || images->empty()) return;
  message.note("images");
  std::string text = out["content"];
  for (std::size_t i = 0; images->is_array() && i < images->size(); ++i) {
    text += omitted_part("image");
  }
  out["content"] = std::move(text);
}

OrderedJson read_messages(FieldReader& fields, const Json& messages, const OrderedJson& ordered) {
  OrderedJson out = OrderedJson::array();
  for (std::size_t i = 0; i < messages.size() && fields.ok(); ++i) {
    FieldReader message(fields, messages[i], "messages[" + std::to_string(i) + "]");
    OrderedJson one = {{"role", required_string(message, "role").value_or("")}};
    one["content"] = message.string("content").value_or("");
    if (const auto thinking = message.string("thinking")) one["reasoning_content"] = *thinking;
    read_calls(message, ordered[i], one);
    const auto tool = message.string("tool_name");
    if (tool && one["role"] == "tool") one["name"] = *tool;
    if (const auto id = message.string("tool_call_id")) one["tool_call_id"] = *id;
    read_images(message, one);
    if (message.finish()) fields.fail(*message.finish());
    out.push_back(std::move(one));
  }
  return out;
}

/// Nothing is asked: the original loads or unloads the model and says so.
Answer loaded(const Json& body, bool chat, const RequestContext& context,
              const ServedModel& model) {
  const bool unload = body.contains("keep_alive") && body["keep_alive"] == 0;
  return Answer{
      "{\"model\":" + json_string(model.name) + ",\"created_at\":\"" +
      iso_time(context.unix_seconds * kSecond) + "\"," +
      (chat ? "\"message\":{\"role\":\"assistant\",\"content\":\"\"}" : "\"response\":\"\"") +
      ",\"done\":true,\"done_reason\":\"" + (unload ? "unload" : "load") + "\"}\n"};
}

ParseOutcome run(Translation made, bool chat, const RequestContext& context,
                 const ServedModel& model) {
  made.names.insert(made.names.end(), field_names().begin(), field_names().end());
  made.stream_type = kLines;
  made.other.any_max_tokens = made.body.value("max_tokens", std::int64_t{0}) == kMaxCount;
  const OllamaFacts facts{chat, context.received, context.wall_offset};
  made.other.make_reply = [facts](ReplyGrounds grounds) {
    return ollama_reply(std::move(grounds), facts);
  };
  return parse_translated(std::move(made), context, model);
}

std::string model_of(const OrderedJson& made) { return made["model"].get<std::string>(); }

bool served(const OrderedJson& made, const RequestContext& context, const ServedModel& model) {
  return context.any_model || made["model"] == model.name;
}

ParseOutcome parse_chat(std::string_view body, const RequestContext& context,
                        const ServedModel& model) {
  const auto json = parse_json_object(body);
  if (!json.ok()) return http_error(json.status());
  const OrderedJson ordered = parse_ordered_json(body);
  Translation made;
  made.other.ignored.set_strict(context.strict_fields);
  FieldReader fields(json.value(), {}, &made.other.ignored);
  read_common(fields, ordered, model, made.body);
  read_think(fields, made.body);
  const Json* messages = take_objects(fields, "messages");
  const bool any = messages != nullptr && !messages->empty();
  if (any)
    made.body["messages"] = read_messages(fields, *messages, ordered_member(ordered, "messages"));
  if (fields.take("tools") != nullptr) made.body["tools"] = ordered_member(ordered, "tools");
  if (const auto& error = fields.finish()) return field_error(*error);
  if (!any && !served(made.body, context, model)) return unknown_model(model_of(made.body), model);
  if (!any) return loaded(json.value(), true, context, model);
  return run(std::move(made), true, context, model);
}

struct Asked {
  std::string prompt, suffix, system;
  bool raw = false;
};

/// A prompt that no template is written around.
void be_raw(FieldReader& fields, Asked& asked, Translation& made) {
  made.route = OpenAiRoute::completion;
  if (!asked.system.empty()) {
    fields.fail("system", "is not supported without a chat template: put it into the prompt");
  }
  made.body["prompt"] = std::move(asked.prompt);
  if (!asked.suffix.empty()) made.body["suffix"] = std::move(asked.suffix);
}

ParseOutcome parse_generate(std::string_view body, const RequestContext& context,
                            const ServedModel& model) {
  const auto json = parse_json_object(body);
  if (!json.ok()) return http_error(json.status());
  const OrderedJson ordered = parse_ordered_json(body);
  Translation made;
  made.other.ignored.set_strict(context.strict_fields);
  FieldReader fields(json.value(), {}, &made.other.ignored);
  read_common(fields, ordered, model, made.body);
  Asked asked;
  asked.prompt = fields.string("prompt").value_or("");
  asked.suffix = fields.string("suffix").value_or("");
  asked.system = fields.string("system").value_or("");
  asked.raw = fields.boolean("raw").value_or(false);
  refuse_unless(fields, "images", Json::array(), kNoImages);
  refuse_unless(fields, "template", "", "the model's own template is used");
  refuse_unless(fields, "context", Json::array(), "send the conversation to /api/chat");
  const bool nothing = asked.prompt.empty() && asked.suffix.empty();
  const bool chats = model.chat != nullptr || model.chat_template != nullptr;
  if (asked.raw || !asked.suffix.empty() || !chats) {
    fields.take("think");
    be_raw(fields, asked, made);
  } else {
    read_think(fields, made.body);
    made.names.emplace_back("messages", "prompt");
    OrderedJson messages = OrderedJson::array();
    if (!asked.system.empty()) messages.push_back({{"role", "system"}, {"content", asked.system}});
    messages.push_back({{"role", "user"}, {"content", asked.prompt}});
    made.body["messages"] = std::move(messages);
  }
  if (const auto& error = fields.finish()) return field_error(*error);
  if (nothing && !served(made.body, context, model)) {
    return unknown_model(model_of(made.body), model);
  }
  if (nothing) return loaded(json.value(), false, context, model);
  return run(std::move(made), false, context, model);
}

ParseOutcome embed(std::string_view body, const char* field, VectorShape shape,
                   const RequestContext& context, const ServedModel& model) {
  const auto json = parse_json_object(body);
  if (!json.ok()) return http_error(json.status());
  RequestContext by_any_tag = context;  // Ollama calls a model "name:latest" as well
  const auto name = json.value().find("model");
  if (name != json.value().end() && name->is_string() &&
      model_name(name->get_ref<const std::string&>(), model) == model.name) {
    by_any_tag.any_model = true;
  }
  return embed_texts(json.value(), field, shape, by_any_tag, model);
}

ParseOutcome parse_embed(std::string_view body, const RequestContext& context,
                         const ServedModel& model) {
  return embed(body, "input", VectorShape::ollama, context, model);
}

ParseOutcome parse_embed_one(std::string_view body, const RequestContext& context,
                             const ServedModel& model) {
  return embed(body, "prompt", VectorShape::ollama_legacy, context, model);
}

/// What is not known of a checkpoint is empty, as for models that the original only runs elsewhere.
constexpr const char* kDetails =
    R"({"parent_model":"","format":"","family":"","families":[],"parameter_size":"","quantization_level":""})";

std::string capabilities(const ServedModel& model) {
  if (model.task == ModelTask::embed) return "[\"embedding\"]";
  std::string list = "\"completion\"";
  const ChatTemplate* chat = model.chat_template.get();
  if (chat != nullptr && chat->takes_tools()) list += ",\"tools\"";
  if (chat != nullptr && chat->reply_grammar().reasons()) list += ",\"thinking\"";
  if (infill_marks(*model.tokenizer)) list += ",\"insert\"";
  return "[" + list + "]";
}

ParseOutcome parse_show(std::string_view body, const RequestContext& context,
                        const ServedModel& model) {
  const auto json = parse_json_object(body);
  if (!json.ok()) return http_error(json.status());
  IgnoredFields ignored;
  FieldReader fields(json.value(), {}, context.strict_fields ? nullptr : &ignored);
  const auto older = fields.string("name");
  const auto name = older ? older : required_string(fields, "model");
  pass_over(fields, {"model", "verbose", "system", "template", "options"});
  if (const auto& error = fields.finish()) return field_error(*error);
  if (!context.any_model && model_name(*name, model) != model.name) {
    return unknown_model(*name, model);
  }
  std::string text;
  if (model.chat_template != nullptr) {
    const auto& all = model.chat_template->templates();
    if (const auto found = all.find("default"); found != all.end()) text = found->second;
  }
  const std::string length =
      context.max_context == 0 ? "null" : std::to_string(context.max_context);
  return Answer{"{\"modelfile\":\"\",\"parameters\":\"\",\"template\":" + json_string(text) +
                ",\"details\":" + kDetails +
                ",\"model_info\":{\"general.architecture\":\"baton\",\"general.basename\":" +
                json_string(model.name) + ",\"baton.context_length\":" + length +
                "},\"capabilities\":" + capabilities(model) + "}"};
}

/// The members that lists of models begin with.
std::string model_members(const ServedModel& model) {
  return "{\"name\":" + json_string(model.name) + ",\"model\":" + json_string(model.name) +
         ",\"size\":0,\"digest\":\"" + ollama_digest(model.name) + "\",\"details\":" + kDetails;
}

template <typename Rest>
Page list_page(const PageFacts& facts, const ServedModel& model, Rest rest) {
  std::string list;
  for (const PageModel& one : facts.listed(model)) {
    list += (list.empty() ? "" : ",") + model_members(*one.model) + rest(one) + "}";
  }
  return Answer{"{\"models\":[" + list + "]}"};
}

Page tags_page(const PageFacts& facts, const ServedModel& model) {
  return list_page(facts, model, [&](const PageModel& /*one*/) {
    return ",\"modified_at\":\"" + iso_time(facts.created * kSecond) + "\"";
  });
}

/// The models are in memory, and stay there.
Page running_page(const PageFacts& facts, const ServedModel& model) {
  return list_page(facts, model, [](const PageModel& one) {
    return ",\"expires_at\":\"9999-12-31T23:59:59Z\",\"size_vram\":0,\"context_length\":" +
           std::to_string(one.max_context);
  });
}

Page version_page(const PageFacts& facts, const ServedModel&) {
  return Answer{std::string("{\"version\":\"") + kApiVersion +
                "\",\"baton\":" + json_string(facts.version) + "}"};
}

class Ollama : public Dialect {
 public:
  const char* name() const override { return "ollama"; }
  std::vector<DialectRoute> routes() const override {
    return {{"POST", "/api/chat", &parse_chat, ModelNamed::by_tag},
            {"POST", "/api/generate", &parse_generate, ModelNamed::by_tag},
            {"POST", "/api/show", &parse_show, ModelNamed::by_tag},
            {"POST", "/api/embed", &parse_embed, ModelNamed::by_tag},
            {"POST", "/api/embeddings", &parse_embed_one, ModelNamed::by_tag},
            {"GET", "/api/tags", &tags_page},
            {"GET", "/api/ps", &running_page},
            {"GET", "/api/version", &version_page}};
  }
  HttpError shape(HttpError error) const override {
    error.body = ollama_error(error);
    return error;
  }
};

}  // namespace
}  // namespace ollama

const Dialect& ollama_dialect() {
  static const ollama::Ollama kDialect;
  return kDialect;
}

}  // namespace baton
