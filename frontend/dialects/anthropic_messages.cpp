#include "frontend/dialects/anthropic_messages.h"

#include <array>
#include <optional>
#include <string>
#include <utility>

#include "frontend/chat/message_fields.h"
#include "frontend/dialects/common.h"

namespace baton::anthropic {
namespace {

using Json = nlohmann::json;

/// What else an object says of itself, and what does nothing here.
constexpr std::array kMarkers{"cache_control", "citations", "caller", "toolset_name"};
constexpr std::string_view kBillingHeader = "x-anthropic-billing-header:";

void refuse(FieldReader& block, const std::optional<std::string_view>& type) {
  if (!block.ok()) return;
  block.fail("type", type ? shown(*type) + " is not supported here; this model reads only text"
                          : std::string("is missing"));
}

void close(FieldReader& owner, FieldReader& block) {
  for (const char* marker : kMarkers) block.take(marker);
  if (block.finish()) owner.fail(*block.finish());
}

/// Of a type that this server does nothing with: what it holds is not looked at.
void skip(FieldReader& owner, FieldReader& block, const std::optional<std::string_view>& type) {
  if (!type) refuse(block, type);
  if (block.ok()) leave_out(block, *type, " here: this server runs no tools and reads only text");
  if (!block.ok()) owner.fail(*block.finish());
}

/// A string, or the texts of blocks of text.
std::string texts(FieldReader& owner, const std::string& name, const Json& value) {
  if (value.is_string()) return value.get<std::string>();
  std::string text;
  const Json* blocks = take_objects(owner, name);
  for (std::size_t i = 0; blocks != nullptr && i < blocks->size() && owner.ok(); ++i) {
    FieldReader block(owner, (*blocks)[i], name + "[" + std::to_string(i) + "]");
    const auto type = block.string("type");
    if (type == "text") {
      text += required_string(block, "text").value_or("");
    } else {
      refuse(block, type);
    }
    close(owner, block);
  }
  return text;
}

/// "source" of a document, where it is text.
std::optional<std::string> document_text(const Json& block) {
  const auto source = block.find("source");
  if (source == block.end() || !source->is_object()) return std::nullopt;
  const auto data = source->find("data");
  const bool is_text = source->value("type", Json()) == "text" && data != source->end();
  if (!is_text || !data->is_string()) return std::nullopt;
  return data->get<std::string>();
}

/// Of a tool's result: texts, those of documents, and "[image omitted]" for what is none.
std::string result_text(FieldReader& owner, const Json& value) {
  if (value.is_string()) return value.get<std::string>();
  std::string text;
  const Json* blocks = take_objects(owner, "content");
  for (std::size_t i = 0; blocks != nullptr && i < blocks->size() && owner.ok(); ++i) {
    FieldReader block(owner, (*blocks)[i], "content[" + std::to_string(i) + "]");
    const auto type = block.string("type");
    if (type == "text") {
      text += required_string(block, "text").value_or("");
      close(owner, block);
    } else if (auto document = document_text((*blocks)[i]); type == "document" && document) {
      text += *document;
    } else if (!type || block.strict()) {
      refuse(block, type);
      owner.fail(*block.finish());
    } else {
      block.note(std::string(*type));
      text += omitted_part(*type);
    }
  }
  return text;
}

class Messages {
 public:
  Messages(FieldReader& fields, const OrderedJson& ordered, const MessageOptions& options)
      : fields_(fields), ordered_(ordered_member(ordered, "messages")), options_(options) {}

  OrderedJson read() {
    read_system();
    const Json* messages = take_objects(fields_, "messages");
    if (messages == nullptr || messages->empty()) {
      fields_.fail("messages", messages == nullptr ? "is missing" : "must not be empty");
      return std::move(out_);
    }
    for (at_ = 0; at_ < messages->size() && fields_.ok(); ++at_) read_message((*messages)[at_]);
    return std::move(out_);
  }

 private:
  void read_system() {
    const Json* system = fields_.take("system");
    if (system == nullptr) return;
    std::string text = texts(fields_, "system", *system);
    const bool billed = options_.drop_billing_header && text.starts_with(kBillingHeader);
    if (billed) text.erase(0, billing_bytes(*system));
    if (!billed || !text.empty()) out_.push_back({{"role", "system"}, {"content", text}});
  }

  /// Of the line that Claude Code changes with every request: it is a block of its own.
  static std::size_t billing_bytes(const Json& system) {
    const bool blocks = system.is_array();
    const auto& first = (blocks ? system.front().at("text") : system).get_ref<const std::string&>();
    const std::size_t end = first.find('\n');
    return end == first.npos ? first.size() : end + 1;
  }

  void read_message(const Json& value) {
    FieldReader message(fields_, value, "messages[" + std::to_string(at_) + "]");
    const auto role = message.string("role");
    const Json* content = message.take("content");
    static const Json kEmpty = "";
    if (content == nullptr && value.contains("content")) content = &kEmpty;
    if (message.ok() && (!role || (role != "user" && role != "assistant" && role != "system"))) {
      message.fail("role", role ? "must be user, assistant or system, not " + shown(*role)
                                : std::string("is missing"));
    } else if (message.ok() && content == nullptr) {
      message.fail("content", "is missing");
    }
    if (message.ok()) {
      if (content->is_string() || role == "system") {
        out_.push_back({{"role", *role}, {"content", texts(message, "content", *content)}});
      } else if (const Json* blocks = take_objects(message, "content")) {
        role == "user" ? read_user(message, *blocks) : read_assistant(message, *blocks);
      }
    }
    if (message.finish()) fields_.fail(*message.finish());
  }

  /// Texts between results are messages of their own, so that all of it keeps its order.
  void read_user(FieldReader& message, const Json& blocks) {
    std::optional<std::string> text;
    const auto say = [&] {
      if (text) out_.push_back({{"role", "user"}, {"content", std::move(*text)}});
      text.reset();
    };
    bool result = false;
    for (std::size_t i = 0; i < blocks.size() && message.ok(); ++i) {
      FieldReader block(message, blocks[i], "content[" + std::to_string(i) + "]");
      const auto type = block.string("type");
      const auto document = type == "document" ? document_text(blocks[i]) : std::nullopt;
      if (document) {
        if (!text) text.emplace();
        *text += *document;
        continue;
      }
      if (type && *type != "text" && *type != "tool_result" && *type != "image" &&
          *type != "document") {
        skip(message, block, type);
        continue;
      }
      if (type == "text") {
        if (!text) text.emplace();
        *text += required_string(block, "text").value_or("");
      } else if (type == "tool_result") {
        say();
        result = true;
        read_result(block);
      } else {
        refuse(block, type);
      }
      close(message, block);
    }
    if (!text && !result) text = "";
    say();
  }

  void read_result(FieldReader& block) {
    const auto id = required_string(block, "tool_use_id");
    block.boolean("is_error");  // what went wrong stands in the content
    const Json* content = block.take("content");
    const std::string text = content == nullptr ? "" : result_text(block, *content);
    need_template(block);
    if (!block.ok()) return;
    out_.push_back({{"role", "tool"}, {"tool_call_id", *id}, {"content", text}});
  }

  void need_template(FieldReader& block) const {
    if (!options_.templated && block.ok()) {
      block.fail("type", "is not supported: this model's chat format knows no tools");
    }
  }

  void read_assistant(FieldReader& message, const Json& blocks) {
    std::string text, reasoning;
    OrderedJson calls = OrderedJson::array();
    const OrderedJson& ordered = ordered_member(ordered_[at_], "content");
    for (std::size_t i = 0; i < blocks.size() && message.ok(); ++i) {
      FieldReader block(message, blocks[i], "content[" + std::to_string(i) + "]");
      const auto type = block.string("type");
      if (type == "text") {
        text += required_string(block, "text").value_or("");
      } else if (type == "thinking") {
        reasoning += required_string(block, "thinking").value_or("");
        block.take("signature");
      } else if (type == "redacted_thinking") {
        block.take("data");  // nobody can read it
      } else if (type == "tool_use") {
        read_call(block, ordered_member(ordered[i], "input"), calls);
      } else {
        skip(message, block, type);
        continue;
      }
      close(message, block);
    }
    OrderedJson out = {{"role", "assistant"}, {"content", nullptr}};
    if (!text.empty() || calls.empty()) out["content"] = text;
    if (!reasoning.empty()) out["reasoning_content"] = reasoning;
    if (!calls.empty()) out["tool_calls"] = std::move(calls);
    out_.push_back(std::move(out));
  }

  void read_call(FieldReader& block, const OrderedJson& input, OrderedJson& calls) const {
    const auto id = required_string(block, "id");
    const auto name = required_string(block, "name");
    const Json* given = block.take("input");
    need_template(block);
    if (!block.ok()) return;
    const std::string arguments =
        earlier_arguments(block, "input", given == nullptr ? "" : input.dump());
    calls.push_back(function_call(*id, *name, arguments));
  }

  FieldReader& fields_;
  const OrderedJson& ordered_;  // "messages"
  const MessageOptions options_;
  std::size_t at_ = 0;
  OrderedJson out_ = OrderedJson::array();
};

}  // namespace

OrderedJson read_messages(FieldReader& fields, const OrderedJson& ordered,
                          const MessageOptions& options) {
  return Messages(fields, ordered, options).read();
}

}  // namespace baton::anthropic
