// The fields of the public APIs (OpenAI's reference, vLLM's extra parameters) that Baton accepts
// without acting on them, and the values for which that is honest.
#include <array>
#include <string_view>

#include "frontend/openai/request_fields.h"

namespace baton {
namespace {

using Json = nlohmann::json;

/// Values besides null that ask for nothing.
enum class Neutral : std::uint8_t {
  any,      // says something about the client, not about the reply
  nothing,  // only null
  is_false,
  is_true,
  empty,  // {}, [] or ""
  none_or_auto,
  text_only,          // ["text"]
  medium_or_ignored,  // "medium"; others are ignored where unknown fields are
};

constexpr std::uint8_t kCompletion = static_cast<std::uint8_t>(OpenAiRoute::completion);
constexpr std::uint8_t kChat = static_cast<std::uint8_t>(OpenAiRoute::chat);
constexpr std::uint8_t kBoth = kCompletion | kChat;

struct NeutralField {
  std::string_view name;
  std::uint8_t routes;
  Neutral neutral;
};

constexpr auto kNeutralFields = std::to_array<NeutralField>({
    {"user", kBoth, Neutral::any},
    {"metadata", kBoth, Neutral::any},
    {"store", kBoth, Neutral::any},
    {"service_tier", kBoth, Neutral::any},
    {"safety_identifier", kBoth, Neutral::any},
    {"prompt_cache_key", kBoth, Neutral::any},
    {"prompt_cache_retention", kBoth, Neutral::any},
    {"prompt_cache_options", kBoth, Neutral::any},
    {"request_id", kBoth, Neutral::any},
    {"echo", kChat, Neutral::is_false},
    {"messages", kCompletion, Neutral::nothing},
    {"tools", kCompletion, Neutral::empty},
    {"tool_choice", kCompletion, Neutral::none_or_auto},
    {"prompt", kChat, Neutral::nothing},
    {"suffix", kChat, Neutral::empty},
    {"functions", kBoth, Neutral::empty},
    {"function_call", kBoth, Neutral::none_or_auto},
    {"modalities", kChat, Neutral::text_only},
    {"audio", kChat, Neutral::nothing},
    {"prediction", kChat, Neutral::any},
    {"moderation", kChat, Neutral::nothing},
    {"web_search_options", kChat, Neutral::nothing},
    {"verbosity", kChat, Neutral::medium_or_ignored},
    {"cache_control", kBoth, Neutral::any},
    {"rid", kBoth, Neutral::any},
    {"separate_reasoning", kChat, Neutral::is_true},
    {"stream_reasoning", kChat, Neutral::any},
    {"return_hidden_states", kBoth, Neutral::is_false},
    {"regex", kBoth, Neutral::nothing},
    {"ebnf", kBoth, Neutral::nothing},
    {"grammar", kBoth, Neutral::nothing},
    {"json_schema", kBoth, Neutral::nothing},
    {"structural_tag", kBoth, Neutral::nothing},
    {"lora_path", kBoth, Neutral::nothing},
    {"custom_logit_processor", kBoth, Neutral::nothing},
    {"documents", kChat, Neutral::empty},
    {"spaces_between_special_tokens", kBoth, Neutral::any},
    {"detokenize", kBoth, Neutral::is_true},
    {"add_special_tokens", kChat, Neutral::is_false},
    {"include_reasoning", kChat, Neutral::is_true},
    {"return_token_ids", kBoth, Neutral::is_false},
    {"return_tokens_as_token_ids", kBoth, Neutral::is_false},
    {"guided_decoding_backend", kBoth, Neutral::any},
    {"guided_whitespace_pattern", kBoth, Neutral::nothing},
    {"logits_processors", kBoth, Neutral::empty},
    {"prompt_embeds", kCompletion, Neutral::nothing},
    {"mm_processor_kwargs", kChat, Neutral::empty},
    {"kv_transfer_params", kBoth, Neutral::empty},
    {"vllm_xargs", kBoth, Neutral::empty},
});

bool is_text(const Json& value, std::string_view wanted) {
  return value.is_string() && value.get_ref<const std::string&>() == wanted;
}

bool is_neutral(const Json& value, Neutral neutral) {
  switch (neutral) {
    case Neutral::any:
      return true;
    case Neutral::nothing:
      return false;
    case Neutral::is_false:
      return value == false;
    case Neutral::is_true:
      return value == true;
    case Neutral::empty:
      return (value.is_structured() && value.empty()) || is_text(value, "");
    case Neutral::none_or_auto:
      return is_text(value, "none") || is_text(value, "auto");
    case Neutral::text_only:
      return value.is_array() && value.size() == 1 && is_text(value[0], "text");
    case Neutral::medium_or_ignored:
      return is_text(value, "medium");
  }
  return false;
}

const char* accepted(Neutral neutral) {
  switch (neutral) {
    case Neutral::any:
      return "anything";
    case Neutral::nothing:
      return "null";
    case Neutral::is_false:
      return "false";
    case Neutral::is_true:
      return "true";
    case Neutral::empty:
      return "an empty value";
    case Neutral::none_or_auto:
      return "\"none\" or \"auto\"";
    case Neutral::text_only:
      return "[\"text\"]";
    case Neutral::medium_or_ignored:
      return "\"medium\"";
  }
  return "null";
}

}  // namespace

void ignore_neutral_fields(FieldReader& fields, OpenAiRoute route) {
  for (const NeutralField& field : kNeutralFields) {
    if ((field.routes & static_cast<std::uint8_t>(route)) == 0) continue;
    const std::string name(field.name);
    const Json* value = fields.take(name);
    if (value == nullptr || is_neutral(*value, field.neutral)) continue;
    const std::string message =
        std::string("is not supported; only ") + accepted(field.neutral) + " is accepted";
    if (field.neutral == Neutral::medium_or_ignored) {
      fields.ignore_or_fail(name, message);
    } else {
      fields.fail(name, message);
    }
  }
}

std::vector<NeutralFact> neutral_fields(OpenAiRoute route) {
  std::vector<NeutralFact> facts;
  for (const NeutralField& field : kNeutralFields) {
    if ((field.routes & static_cast<std::uint8_t>(route)) == 0) continue;
    facts.push_back({std::string(field.name), accepted(field.neutral)});
  }
  return facts;
}

}  // namespace baton
