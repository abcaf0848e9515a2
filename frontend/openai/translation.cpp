#include "frontend/openai/translation.h"

#include <cstring>
#include <memory>

#include "frontend/http/http_error.h"
#include "frontend/openai/chat_parts.h"

namespace baton {
namespace {

using Json = nlohmann::json;

class Continued : public PendingChat {
 public:
  Continued(std::unique_ptr<PendingChat> chat, std::function<ParseOutcome(ParseOutcome)> then)
      : chat_(std::move(chat)), then_(std::move(then)) {}

  const std::string& render_request() const override { return chat_->render_request(); }
  ParseOutcome finish(const Result<std::string>& rendered, const ServedModel& model) override {
    return then_(chat_->finish(rendered, model));
  }

 private:
  std::unique_ptr<PendingChat> chat_;
  std::function<ParseOutcome(ParseOutcome)> then_;
};

/// `field` of the OpenAI API as the client calls it.
std::string told_name(const FieldNames& names, const std::string& field) {
  for (const auto& [ours, theirs] : names) {
    if (field.compare(0, ours.size(), ours) != 0) continue;
    const std::string rest = field.substr(ours.size());
    if (rest.empty() || rest.front() == '.' || rest.front() == '[') return theirs + rest;
  }
  return field;
}

/// Fields that the OpenAI API ignored, as the client calls them.
void tell_ignored(const FieldNames& names, ParsedRequest& request) {
  std::string all;
  for (std::string& name : request.ignored_fields) {
    name = told_name(names, name);
    all += (all.empty() ? "" : ", ") + name;
  }
  for (auto& [header, value] : request.headers) {
    if (header == kIgnoredFieldsHeader) value = all;
  }
}

HttpError told_error(const HttpError& error, const FieldNames& names) {
  std::string message = error.message;
  for (const auto& [ours, theirs] : names) {
    const std::string quoted = "'" + ours;
    for (std::size_t at = 0; (at = message.find(quoted, at)) != std::string::npos;) {
      const std::size_t end = at + quoted.size();
      const bool whole = end < message.size() && std::strchr("'.[", message[end]) != nullptr;
      if (whole) message.replace(at, quoted.size(), "'" + theirs);
      at += whole ? theirs.size() + 1 : 1;
    }
  }
  HttpError told = http_error(error.status, message, error.code, told_name(names, error.param));
  told.retry_after_s = error.retry_after_s;
  return told;
}

}  // namespace

ParseOutcome when_parsed(ParseOutcome outcome, std::function<ParseOutcome(ParseOutcome)> then) {
  if (auto* chat = std::get_if<std::unique_ptr<PendingChat>>(&outcome)) {
    return std::make_unique<Continued>(std::move(*chat), std::move(then));
  }
  return then(std::move(outcome));
}

ParseOutcome parse_translated(Translation translation, const RequestContext& context,
                              const ServedModel& model) {
  // Its texts come out of a body whose UTF-8 was checked.
  const std::string body =
      translation.body.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
  ParseOutcome outcome =
      parse_for_other_api(body, translation.route, context, model, std::move(translation.other));
  return when_parsed(std::move(outcome),
                     [names = std::move(translation.names),
                      type = std::move(translation.stream_type)](ParseOutcome made) {
                       if (auto* error = std::get_if<HttpError>(&made)) {
                         return ParseOutcome(told_error(*error, names));
                       }
                       if (auto* request = std::get_if<ParsedRequest>(&made)) {
                         request->grammar_field = told_name(names, request->grammar_field);
                         tell_ignored(names, *request);
                         if (request->stream) request->content_type = type;
                       }
                       return made;
                     });
}

void pass_fields(FieldReader& fields, std::initializer_list<const char*> names, OrderedJson& out) {
  for (const char* name : names) {
    if (const Json* value = fields.take(name)) out[name] = *value;
  }
}

const OrderedJson& ordered_member(const OrderedJson& object, const std::string& name) {
  static const OrderedJson kNone;
  const auto found = object.find(name);
  return found == object.end() ? kNone : *found;
}

void leave_out(FieldReader& object, std::string_view type, const std::string& why) {
  if (object.strict()) return object.fail("type", shown(type) + " is not supported" + why);
  object.note(std::string(type));
}

void pass_over(FieldReader& fields, std::initializer_list<const char*> names) {
  for (const char* name : names) fields.take(name);
}

const Json* take_object(FieldReader& fields, const std::string& name, bool required) {
  const Json* value = fields.take(name);
  if (value != nullptr && value->is_object()) return value;
  if (value != nullptr) {
    fields.fail(name, std::string("must be an object, not ") + kind_of(*value));
  } else if (required) {
    fields.fail(name, "is missing");
  }
  return nullptr;
}

const Json* take_objects(FieldReader& fields, const std::string& name) {
  const Json* value = fields.take(name);
  if (value == nullptr) return nullptr;
  if (!value->is_array()) {
    fields.fail(name, std::string("must be an array, not ") + kind_of(*value));
    return nullptr;
  }
  for (std::size_t i = 0; i < value->size(); ++i) {
    if ((*value)[i].is_object()) continue;
    fields.fail(name + "[" + std::to_string(i) + "]",
                std::string("must be an object, not ") + kind_of((*value)[i]));
    return nullptr;
  }
  return value;
}

OrderedJson function_tool(std::string_view name, const OrderedJson& description,
                          const OrderedJson& parameters, const OrderedJson& strict) {
  OrderedJson function = {{"name", name}};
  if (!description.is_null()) function["description"] = description;
  if (!parameters.is_null()) function["parameters"] = parameters;
  if (!strict.is_null()) function["strict"] = strict;
  return {{"type", "function"}, {"function", std::move(function)}};
}

OrderedJson schema_format(const OrderedJson& schema) {
  return {{"type", "json_schema"}, {"json_schema", {{"name", "reply"}, {"schema", schema}}}};
}

OrderedJson function_call(std::string_view id, std::string_view name, std::string_view arguments) {
  return {
      {"id", id}, {"type", "function"}, {"function", {{"name", name}, {"arguments", arguments}}}};
}

std::vector<ReplyPart> ReplyParts::feed(std::string_view text) {
  if (parser_) return told_parts(one_call_, parser_->feed(text));
  if (text.empty()) return {};
  return {{ReplyPart::Kind::content, std::string(text), {}, 0}};
}

std::vector<ReplyPart> ReplyParts::finish() {
  if (!parser_) return {};
  return told_parts(one_call_, parser_->finish());
}

std::string whole_arguments(const std::string& arguments) {
  return parse_json_object(arguments).ok() ? arguments : "{}";
}

}  // namespace baton
