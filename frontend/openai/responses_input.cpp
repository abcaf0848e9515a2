#include "frontend/openai/responses_input.h"

#include <array>
#include <utility>

#include "frontend/chat/message_fields.h"
#include "frontend/core/base64.h"

namespace baton::responses {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kPacked = "baton1:";

class Input {
 public:
  Input(FieldReader& fields, bool templated) : fields_(fields), templated_(templated) {}

  OrderedJson read() {
    if (const auto instructions = fields_.string("instructions")) {
      out_.push_back({{"role", "system"}, {"content", *instructions}});
    }
    const Json* input = fields_.take("input");
    if (input == nullptr) {
      fields_.fail("input", "is missing");
    } else if (input->is_string()) {
      out_.push_back({{"role", "user"}, {"content", *input}});
    } else if (const Json* items = take_objects(fields_, "input")) {
      if (items->empty()) fields_.fail("input", "must not be empty");
      for (std::size_t i = 0; i < items->size() && fields_.ok(); ++i) {
        FieldReader item(fields_, (*items)[i], "input[" + std::to_string(i) + "]");
        const bool read = read_item(item);
        pass_over(item, {"id", "status", "phase"});
        if (!item.ok() || read) {
          if (item.finish()) fields_.fail(*item.finish());
        }
      }
      say_pending();
    }
    return std::move(out_);
  }

 private:
  /// False: it is left out.
  bool read_item(FieldReader& item) {
    const auto type = item.string("type");
    if (!item.ok()) return true;
    if (!type || type == "message") {
      read_message(item);
    } else if (type == "function_call" || type == "function_call_output") {
      if (!templated_) {
        item.fail("type", "is not supported: this model's chat format knows no tools");
      } else {
        type == "function_call" ? read_call(item) : read_output(item);
      }
    } else if (type == "reasoning") {
      read_reasoning(item);
    } else {
      leave_out(item, *type,
                type == "item_reference"
                    ? ": this server keeps no items; send them whole"
                    : "; only message, function_call, function_call_output and reasoning are");
      return false;
    }
    return true;
  }

  void read_message(FieldReader& item) {
    const auto role = item.string("role");
    const Json* content = item.take("content");
    static const Json kEmpty = "";
    if (content == nullptr && item.object().contains("content")) content = &kEmpty;
    if (!role || content == nullptr) {
      item.fail(role ? "content" : "role", "is missing");
      return;
    }
    const std::string text = texts(item, "content", *content, *role == "assistant");
    if (*role == "assistant") {
      if (pending_.contains("content") || pending_.contains("tool_calls")) say_pending();
      pending_["content"] = text;
      return;
    }
    if (*role != "user" && *role != "system" && *role != "developer") {
      item.fail("role", "must be user, assistant, system or developer, not " + shown(*role));
      return;
    }
    say_pending();
    out_.push_back({{"role", *role}, {"content", text}});
  }

  /// A string, or parts of text. `earlier`: what a model or a tool said; other parts of it are left
  /// out by name.
  static std::string texts(FieldReader& owner, const std::string& name, const Json& value,
                           bool earlier, bool placeholder = false) {
    static constexpr std::array kTexts{"input_text", "output_text", "text", "summary_text",
                                       "reasoning_text"};
    if (value.is_string()) return value.get<std::string>();
    std::string text;
    const Json* parts = take_objects(owner, name);
    for (std::size_t i = 0; parts != nullptr && i < parts->size() && owner.ok(); ++i) {
      FieldReader part(owner, (*parts)[i], name + "[" + std::to_string(i) + "]");
      const auto type = part.string("type");
      const bool refusal = type == "refusal";
      bool known = refusal;
      for (const char* one : kTexts) known = known || (type && *type == one);
      if (part.ok() && !known && type && earlier && !part.strict()) {
        part.note(std::string(*type));
        if (placeholder) text += omitted_part(*type);
        continue;
      }
      if (part.ok() && !known) {
        part.fail("type", type ? shown(*type) + " is not supported; this model reads only text"
                               : std::string("is missing"));
      }
      const char* field = refusal ? "refusal" : "text";
      const auto piece = part.string(field);
      if (part.ok() && !piece) part.fail(field, "is missing");
      pass_over(part, {"annotations", "logprobs", "parsed"});  // of replies that are sent back
      if (part.finish()) owner.fail(*part.finish());
      text += piece.value_or("");
    }
    return text;
  }

  /// Calls that follow one another, a message and a reasoning are one turn of the assistant.
  void read_call(FieldReader& item) {
    const auto id = item.string("call_id");
    const auto name = item.string("name");
    const auto arguments = item.string("arguments");
    item.take("parsed_arguments");  // the client's parse() adds it
    for (const auto& [field, value] : {std::pair{"call_id", id}, std::pair{"name", name}}) {
      if (item.ok() && !value) item.fail(field, "is missing");
    }
    if (!item.ok()) return;
    pending_["tool_calls"].push_back(
        function_call(*id, *name, earlier_arguments(item, "arguments", arguments.value_or(""))));
  }

  void read_output(FieldReader& item) {
    const auto id = item.string("call_id");
    const Json* output = item.take("output");
    if (!id) return item.fail("call_id", "is missing");
    say_pending();
    const std::string text =
        output == nullptr ? "" : texts(item, "output", *output, true, /*placeholder=*/true);
    out_.push_back({{"role", "tool"}, {"tool_call_id", *id}, {"content", text}});
  }

  void read_reasoning(FieldReader& item) {
    std::string text;
    for (const char* field : {"content", "summary"}) {
      const Json* given = item.take(field);
      if (given != nullptr && text.empty()) text = texts(item, field, *given, true);
    }
    const auto packed = item.string("encrypted_content");
    if (text.empty() && packed) text = unpacked_reasoning(*packed).value_or("");
    if (pending_.contains("content") || pending_.contains("tool_calls")) say_pending();
    if (text.empty()) return;
    OrderedJson& said = pending_["reasoning_content"];
    if (said.is_string()) {
      said.get_ref<std::string&>() += "\n\n" + text;
    } else {
      said = std::move(text);
    }
  }

  void say_pending() {
    if (pending_.empty()) return;
    OrderedJson message = {{"role", "assistant"}, {"content", nullptr}};
    if (!pending_.contains("tool_calls")) message["content"] = "";
    message.update(pending_);
    out_.push_back(std::move(message));
    pending_ = OrderedJson::object();
  }

  FieldReader& fields_;
  bool templated_ = false;
  OrderedJson out_ = OrderedJson::array();
  OrderedJson pending_ = OrderedJson::object();
};

}  // namespace

OrderedJson read_input(FieldReader& fields, bool templated) {
  return Input(fields, templated).read();
}

std::string packed_reasoning(std::string_view text) {
  return to_base64(std::string(kPacked) + std::string(text));
}

std::optional<std::string> unpacked_reasoning(std::string_view packed) {
  auto bytes = from_base64(packed);
  if (!bytes || !bytes->starts_with(kPacked)) return std::nullopt;
  bytes->erase(0, kPacked.size());
  return bytes;
}

}  // namespace baton::responses
