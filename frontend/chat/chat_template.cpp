#include "frontend/chat/chat_template.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "frontend/chat/ordered_json.h"
#include "frontend/chat/reply_marks.h"
#include "frontend/http/sse.h"
#include "text/gguf/gguf_folder.h"

namespace baton {
namespace {

using Json = nlohmann::json;

constexpr std::size_t kMaxTemplateBytes = 1U << 20U;
constexpr std::size_t kMaxTemplates = 16;
constexpr std::size_t kMaxConfigBytes = 64U << 20U;
constexpr std::array kSpecialTokens{"bos_token", "eos_token", "unk_token", "sep_token",
                                    "pad_token", "cls_token", "mask_token"};
/// What an assistant writes as tokens of its own.
constexpr std::array kAssistantMarks{"<think>",  "</think>",    "[THINK]",
                                     "[/THINK]", "<tool_call>", "</tool_call>"};

/// Empty when there is no such file.
Result<std::string> read_file(const std::string& path, std::size_t most) {
  auto text = read_model_file(path, most);
  if (!text.ok()) return text.status();
  return std::move(text).value().value_or("");
}

Result<Json> read_object(const std::string& path) {
  const auto text = read_model_json(path, kMaxConfigBytes);
  if (!text.ok()) return text.status();
  if (!text.value()) return Json::object();
  Json value = Json::parse(*text.value(), nullptr, false);
  if (!value.is_object()) return invalid(path + ": not a JSON object");
  return value;
}

/// A string, or {"content": string}.
const Json* token_text(const Json& value) {
  if (value.is_string()) return &value;
  if (!value.is_object()) return nullptr;
  const auto content = value.find("content");
  return content != value.end() && content->is_string() ? &*content : nullptr;
}

Status add_template(std::map<std::string, std::string>& templates, const std::string& name,
                    std::string text, const std::string& path) {
  if (text.size() > kMaxTemplateBytes) return invalid(path + ": a chat template above 1 MiB");
  if (templates.size() == kMaxTemplates) return invalid(path + ": more than 16 chat templates");
  if (text.find(kBreak) != text.npos) {
    return invalid(path + ": the chat template '" + name + "' holds U+FDD0, which is reserved");
  }
  templates.insert_or_assign(name, std::move(text));
  return {};
}

Status add_listed(std::map<std::string, std::string>& templates, const Json& list,
                  const std::string& path) {
  for (const Json& item : list) {
    const bool good = item.is_object() && item.contains("name") && item["name"].is_string() &&
                      item.contains("template") && item["template"].is_string();
    if (!good) return invalid(path + ": 'chat_template' must hold objects of name and template");
    Status status = add_template(templates, item["name"].get<std::string>(),
                                 item["template"].get<std::string>(), path);
    if (!status.ok()) return status;
  }
  return {};
}

bool mentioned(const std::map<std::string, std::string>& templates, std::string_view word) {
  return std::any_of(templates.begin(), templates.end(),
                     [&](const auto& entry) { return entry.second.find(word) != word.npos; });
}

void add_member(std::string& object, std::string_view name, std::string_view json) {
  if (object.size() > 1) object += ',';
  object += json_string(name) + ':';
  object += json;
}

/// The token that `text` is; kNoToken: it is several.
Token one_token(const Tokenizer& tokenizer, const std::string& text) {
  if (text.empty()) return kNoToken;
  std::size_t length = 0;
  const Token special = tokenizer.special_at(text, &length);
  if (special >= 0 && length == text.size()) return special;
  const auto ids = tokenizer.encode_plain_within(text, /*after_special=*/true, 1);
  return ids && ids->size() == 1 ? ids->front() : kNoToken;
}

/// Breaks are left out; the character in front of each is not trusted: no special piece holds it.
std::vector<PromptPart> parts_of(std::string_view rendered) {
  std::vector<PromptPart> parts;
  std::size_t from = 0;
  while (from < rendered.size()) {
    const std::size_t at = std::min(rendered.find(kBreak, from), rendered.size());
    std::size_t last = at;  // where the character in front of the break begins
    if (at < rendered.size() && at > from) {
      do {
        --last;
      } while (last > from && (static_cast<unsigned char>(rendered[last]) & 0xC0U) == 0x80U);
    }
    parts.push_back({rendered.substr(from, last - from), true});
    if (last < at) parts.push_back({rendered.substr(last, at - last), false});
    from = std::min(at + kBreak.size(), rendered.size());
  }
  return parts;
}

}  // namespace

Status ChatTemplate::read_templates(const std::string& dir) {
  const std::string path = dir + "/chat_template.jinja";
  auto text = read_file(path, kMaxTemplateBytes);
  if (!text.ok()) return text.status();
  source_ = "chat_template.jinja";
  if (text.value().empty()) {
    source_ = "tokenizer_config.json";
    const std::string config_path = dir + "/tokenizer_config.json";
    const auto config = read_object(config_path);
    if (!config.ok()) return config.status();
    const Json given = config.value().value("chat_template", Json());
    if (given.is_null()) return {};
    if (given.is_array()) return add_listed(templates_, given, config_path);
    if (!given.is_string()) {
      return invalid(config_path + ": 'chat_template' must be a string or a list");
    }
    return add_template(templates_, "default", given.get<std::string>(), config_path);
  }
  Status status = add_template(templates_, "default", std::move(text).value(), path);
  std::error_code none;
  const std::filesystem::path folder = dir + "/additional_chat_templates";
  for (std::filesystem::directory_iterator at(folder, none), end; !none && at != end && status.ok();
       at.increment(none)) {
    if (at->path().extension() != ".jinja") continue;
    auto more = read_file(at->path(), kMaxTemplateBytes);
    if (!more.ok()) return more.status();
    status = add_template(templates_, at->path().stem(), std::move(more).value(), at->path());
  }
  return status;
}

Status ChatTemplate::read_template(const std::string& file) {
  auto text = read_file(file, kMaxTemplateBytes);
  if (!text.ok()) return text.status();
  if (text.value().empty()) return invalid(file + ": is missing or empty");
  source_ = file;
  return add_template(templates_, "default", std::move(text).value(), file);
}

Status ChatTemplate::read_special_tokens(const std::string& dir, const Tokenizer& tokenizer) {
  const auto config = read_object(dir + "/tokenizer_config.json");
  const auto map = read_object(dir + "/special_tokens_map.json");
  for (const auto* file : {&config, &map}) {
    if (!file->ok()) return file->status();
  }
  for (const char* name : kSpecialTokens) {
    for (const auto* file : {&config, &map}) {
      const auto found = file->value().find(name);
      if (found == file->value().end()) continue;
      if (const Json* text = token_text(*found)) special_tokens_.emplace(name, *text);
      if (found->is_null()) special_tokens_.emplace(name, "");
    }
  }
  // Tokenizer classes have a bos and an eos by default; null above means none.
  const auto add_default = [&](const char* name, Token id) {
    if (tokenizer.is_special(id)) special_tokens_.emplace(name, tokenizer.token_bytes(id));
  };
  add_default("bos_token", tokenizer.bos());
  add_default("eos_token", tokenizer.eos_ids().front());
  std::erase_if(special_tokens_, [](const auto& entry) { return entry.second.empty(); });
  if (const auto eos = special_tokens_.find("eos_token"); eos != special_tokens_.end()) {
    std::size_t length = 0;
    const Token id = tokenizer.special_at(eos->second, &length);
    if (id >= 0 && length == eos->second.size()) stop_ids_.push_back(id);
  }
  return {};
}

Result<std::unique_ptr<ChatTemplate>> ChatTemplate::load(const std::string& dir,
                                                         const Tokenizer& tokenizer,
                                                         const std::string& file,
                                                         const ParserNames& parsers) {
  std::unique_ptr<ChatTemplate> made(new ChatTemplate());
  const Status read = file.empty() ? made->read_templates(dir) : made->read_template(file);
  if (!read.ok()) return read;
  if (made->templates_.empty()) return std::unique_ptr<ChatTemplate>();
  if (!made->templates_.contains("default")) {
    return invalid(dir + ": none of its chat templates is called 'default'");
  }
  if (Status status = made->read_special_tokens(dir, tokenizer); !status.ok()) return status;
  std::string all;
  for (const auto& [name, text] : made->templates_) all += text;
  auto grammar = ReplyGrammar::named(all, parsers);
  if (!grammar.ok()) return grammar.status();
  made->grammar_ = std::move(grammar).value();
  // A call hands the turn over. Not every folder counts its end among the model's ends.
  for (const std::string_view mark : {kReturnMark, kCallMark}) {
    std::size_t length = 0;
    const Token id = made->grammar_.channels ? tokenizer.special_at(mark, &length) : -1;
    if (id >= 0 && length == mark.size()) made->stop_ids_.push_back(id);
  }
  made->reasoning_open_ = one_token(tokenizer, made->grammar_.think_open);
  made->reasoning_close_ = one_token(tokenizer, made->grammar_.think_close);
  made->takes_tools_ = mentioned(made->templates_, "tools");
  made->takes_effort_ = mentioned(made->templates_, "reasoning_effort");
  made->thinking_can_end_ = mentioned(made->templates_, "enable_thinking");
  made->knows_developer_ = mentioned(made->templates_, "developer");
  std::vector<std::string> pieces, foreign;
  for (std::uint32_t i = 0; i < tokenizer.vocab_size(); ++i) {
    const auto id = static_cast<Token>(i);
    const std::string piece(tokenizer.token_bytes(id));
    if (!tokenizer.is_special(id) || piece.empty()) continue;
    pieces.push_back(piece);
    const bool own =
        std::find(kAssistantMarks.begin(), kAssistantMarks.end(), piece) != kAssistantMarks.end();
    if (!own) foreign.push_back(piece);
  }
  made->guard_ = SpecialGuard(pieces);
  made->assistant_guard_ = SpecialGuard(foreign);
  return made;
}

std::string ChatTemplate::message_json(const ChatMessage& message) const {
  const bool assistant = message.role == "assistant";
  const SpecialGuard& guard = assistant ? assistant_guard_ : guard_;
  const auto guarded = [&](std::string_view text) { return json_string(guard.guard(text)); };
  std::string out = "{";
  const bool rename = message.role == "developer" && !knows_developer_;
  add_member(out, "role", json_string(rename ? "system" : message.role));
  if (message.has_content || message.tool_calls.empty()) {
    add_member(out, "content", guarded(message.content));
  }
  if (!message.name.empty()) add_member(out, "name", guarded(message.name));
  if (!message.tool_call_id.empty()) {
    add_member(out, "tool_call_id", guarded(message.tool_call_id));
  }
  // gpt-oss's template refuses a call with both.
  const bool instead = grammar_.channels && !message.tool_calls.empty() && !message.content.empty();
  if (!message.reasoning.empty() && !instead) {
    add_member(out, "reasoning_content", guarded(message.reasoning));
  }
  if (!message.tool_calls.empty()) {
    std::string calls = "[";
    for (const ToolCall& call : message.tool_calls) {
      if (calls.size() > 1) calls += ',';
      calls += "{\"id\":" + guarded(call.id) +
               ",\"type\":\"function\",\"function\":{\"name\":" + guarded(call.name) +
               ",\"arguments\":" + copy_json(call.arguments, guard_) + "}}";
    }
    add_member(out, "tool_calls", calls + ']');
  }
  return out + '}';
}

std::string ChatTemplate::render_request(const Conversation& conversation) const {
  const bool for_tools = !conversation.tools.empty() && templates_.contains("tool_use");
  std::string messages = "[";
  for (const ChatMessage& message : conversation.messages) {
    if (messages.size() > 1) messages += ',';
    messages += message_json(message);
  }
  std::string variables = "{";
  for (const auto& [name, text] : special_tokens_) add_member(variables, name, json_string(text));
  if (!conversation.effort.empty()) {
    if (variables.size() > 1) variables += ',';
    variables += conversation.effort;
  }
  // A variable of the client's own comes later and so wins, as in `transformers`.
  if (conversation.variables.size() > 2) {
    if (variables.size() > 1) variables += ',';
    variables.append(conversation.variables, 1, conversation.variables.size() - 2);
  }
  const auto flag = [](bool value) { return value ? "true" : "false"; };
  std::string out = "{";
  add_member(out, "template", json_string(for_tools ? "tool_use" : "default"));
  add_member(out, "messages", messages + ']');
  add_member(out, "tools", conversation.tools.empty() ? "null" : conversation.tools);
  add_member(out, "variables", variables + '}');
  add_member(out, "add_generation_prompt", flag(conversation.add_generation_prompt));
  add_member(out, "continue_final_message", flag(conversation.continue_final_message));
  add_member(out, "retry", "true");
  return out + '}';
}

Result<ChatPrompt> ChatTemplate::tokenise(std::string_view rendered, const Tokenizer& tokenizer,
                                          std::size_t max_tokens) const {
  const std::vector<PromptPart> parts = parts_of(rendered);
  auto ids = tokenizer.encode_parts_within(parts, max_tokens);
  if (!ids) {
    return Status(ErrorCode::too_long,
                  "the chat has more than " + std::to_string(max_tokens) + " tokens");
  }
  ChatPrompt prompt;
  prompt.ids = std::move(*ids);
  prompt.stop_ids = stop_ids_;
  return prompt;
}

std::vector<Token> ChatTemplate::shown_specials(const Tokenizer& tokenizer, bool with_calls) const {
  std::vector<Token> ids;
  for (const std::string& mark : grammar_.marks(with_calls)) {
    std::size_t length = 0;
    const Token id = tokenizer.special_at(mark, &length);
    if (id >= 0 && length == mark.size()) ids.push_back(id);
  }
  return ids;
}

}  // namespace baton
