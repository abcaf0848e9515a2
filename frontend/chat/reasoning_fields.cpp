#include "frontend/chat/reasoning_fields.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>

#include "frontend/chat/chat_template.h"
#include "frontend/http/sse.h"

namespace baton {
namespace {

using Json = nlohmann::json;

/// The variable that switches a template's reasoning on or off. Without one, what is asked for is
/// so already, or it cannot be had.
void switch_thinking(FieldReader& fields, const std::string& field, bool on,
                     const ServedModel& model, Conversation& conversation) {
  const ChatTemplate* format = model.chat_template.get();
  const bool thinks = format != nullptr && format->reply_grammar().reasons();
  if (format != nullptr && format->thinking_can_end()) {
    conversation.effort = std::string("\"enable_thinking\":") + (on ? "true" : "false");
  } else if (on != thinks) {
    fields.ignore_or_fail(
        field,
        on ? "asks for reasoning, which this model does not do"
           : "cannot be turned off: this model's chat template has no switch for its reasoning");
  }
}

/// -1: there is none.
std::optional<std::int64_t> read_budget(FieldReader& fields, const char* name) {
  return fields.integer(name, -1, std::numeric_limits<std::int32_t>::max());
}

/// The end of the reasoning must be one token, which can be forced.
void set_budget(FieldReader& fields, const std::string& field, std::int64_t budget,
                const ServedModel& model, Conversation& conversation) {
  const ChatTemplate* format = model.chat_template.get();
  if (budget < 0 || format == nullptr || !format->reply_grammar().reasons()) return;
  if (format->reasoning_close() == kNoToken) return fields.note(field);
  conversation.reasoning_budget = static_cast<std::uint32_t>(budget);
}

/// "thinking": a truth value, or {"type": "enabled", "disabled", "adaptive" or "auto",
/// "budget_tokens"}. Nothing: it leaves it to the template.
std::optional<bool> read_thinking(FieldReader& fields, const ServedModel& model,
                                  Conversation& conversation) {
  const Json* value = fields.take("thinking");
  if (value == nullptr) return std::nullopt;
  if (value->is_boolean()) return value->get<bool>();
  if (!value->is_object()) {
    fields.fail("thinking",
                std::string("must be an object, true or false, not ") + kind_of(*value));
    return std::nullopt;
  }
  FieldReader inner(fields, *value, "thinking");
  const auto type = inner.string("type");
  const auto budget = read_budget(inner, "budget_tokens");
  if (budget) set_budget(inner, "budget_tokens", *budget, model, conversation);
  if (type == "enabled" || type == "disabled") {
    if (inner.finish()) fields.fail(*inner.finish());
    return type == "enabled";
  }
  if (inner.ok() && type != "auto" && type != "adaptive") {
    inner.fail("type", "must be \"enabled\", \"disabled\", \"adaptive\" or \"auto\"");
  }
  if (inner.finish()) fields.fail(*inner.finish());
  return std::nullopt;
}

}  // namespace

void read_reasoning(FieldReader& fields, const ServedModel& model, Conversation& conversation) {
  static constexpr std::array kEfforts{"none", "minimal", "low", "medium", "high", "xhigh", "max"};
  const auto effort = fields.string("reasoning_effort");
  const auto enable = fields.boolean("enable_thinking");
  const auto thinking = read_thinking(fields, model, conversation);
  const auto budget = read_budget(fields, "thinking_token_budget");
  if (budget) set_budget(fields, "thinking_token_budget", *budget, model, conversation);
  if (!effort || *effort == "auto") {
    if (enable) return switch_thinking(fields, "enable_thinking", *enable, model, conversation);
    if (thinking) switch_thinking(fields, "thinking", *thinking, model, conversation);
    return;
  }
  const bool none = *effort == "none";
  const ChatTemplate* format = model.chat_template.get();
  if (std::find(kEfforts.begin(), kEfforts.end(), *effort) == kEfforts.end()) {
    fields.fail("reasoning_effort", "must be none, minimal, low, medium, high, xhigh, max or auto");
  } else if (format != nullptr && format->takes_effort()) {
    conversation.effort = "\"reasoning_effort\":" + json_string(*effort);
  } else if (format != nullptr && format->thinking_can_end()) {
    switch_thinking(fields, "reasoning_effort", !none, model, conversation);
  } else if (!none) {
    fields.ignore_or_fail(
        "reasoning_effort",
        "is not supported: this model has no efforts; only \"none\" or \"auto\" is accepted");
  } else if (format != nullptr && format->reply_grammar().reasons()) {
    fields.ignore_or_fail(
        "reasoning_effort",
        "cannot be \"none\": this model's chat template has no switch for its reasoning");
  }
}

}  // namespace baton
