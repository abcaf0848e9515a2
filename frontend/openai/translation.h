// A body of another API as one of the OpenAI API: what is served is the same request, and its reply
// has a writer of its own. What several such APIs need to translate, and to tell a reply's parts
// apart. Pure.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "frontend/chat/reply_parser.h"
#include "frontend/core/json_reader.h"
#include "frontend/core/served_model.h"
#include "frontend/openai/openai_api.h"

namespace baton {

/// Tools and schemas keep the order of the client's keys.
using OrderedJson = nlohmann::ordered_json;

/// How fields are called in the OpenAI API, and in the client's.
using FieldNames = std::vector<std::pair<std::string, std::string>>;

struct Translation {
  OrderedJson body = OrderedJson::object();
  OpenAiRoute route = OpenAiRoute::chat;
  OtherApi other;
  FieldNames names;
  std::string stream_type;  // of a stream; empty: events
};

/// Errors name the client's fields.
ParseOutcome parse_translated(Translation translation, const RequestContext& context,
                              const ServedModel& model);

/// `then` of the outcome: at once, or when a template has written the chat down.
ParseOutcome when_parsed(ParseOutcome outcome, std::function<ParseOutcome(ParseOutcome)> then);

/// Takes fields that both APIs have, with the same values, over into `out`.
void pass_fields(FieldReader& fields, std::initializer_list<const char*> names, OrderedJson& out);

/// A member of an ordered object, null where it has none. It passes the object's keys: not for a
/// loop over something else of the client's.
const OrderedJson& ordered_member(const OrderedJson& object, const std::string& name);

/// Leaves out an object of a type that this server cannot do anything with: it is named
/// "tools[].TYPE". Of a strict reader, `object` has an error then.
void leave_out(FieldReader& object, std::string_view type, const std::string& why);

/// Takes fields that do nothing, whatever they hold.
void pass_over(FieldReader& fields, std::initializer_list<const char*> names);

/// The object in a field; null: there is none, or something else, which is an error. `required`:
/// its absence is one, too.
const nlohmann::json* take_object(FieldReader& fields, const std::string& name,
                                  bool required = false);
/// The array in a field, likewise. Each of its items must be an object.
const nlohmann::json* take_objects(FieldReader& fields, const std::string& name);

/// {"type": "function", "function": {...}} and {"type": "json_schema", ...} of the OpenAI API.
OrderedJson function_tool(std::string_view name, const OrderedJson& description,
                          const OrderedJson& parameters, const OrderedJson& strict);
OrderedJson schema_format(const OrderedJson& schema);
/// {"id", "type": "function", "function": {"name", "arguments"}}
OrderedJson function_call(std::string_view id, std::string_view name, std::string_view arguments);

/// A reply's text as its parts: reasoning, content, calls.
class ReplyParts {
 public:
  explicit ReplyParts(ReplyGrounds& grounds)
      : parser_(std::move(grounds.parser)), one_call_(grounds.one_call) {}

  std::vector<ReplyPart> feed(std::string_view text);
  /// The end: the rest.
  std::vector<ReplyPart> finish();
  /// Where the text that comes next stands.
  ReplySection section() const { return parser_ ? parser_->section() : ReplySection::answer; }

 private:
  std::optional<ReplyParser> parser_;
  bool one_call_ = false;
};

/// `arguments` where they are a JSON object, "{}" where a reply was cut off in them.
std::string whole_arguments(const std::string& arguments);

}  // namespace baton
