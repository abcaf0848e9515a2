#include "frontend/openai/grammar_fields.h"

#include <string>
#include <utility>

#include "frontend/chat/ordered_json.h"
#include "text/grammar/grammar_engine.h"

namespace baton {
namespace {

using Json = nlohmann::json;

constexpr const char* kAnyObject = R"({"type":"object"})";

std::string copy_member(std::string_view json, const std::string& name) {
  return std::move(copy_members(json, {name}, SpecialGuard())[name]);
}

/// A literal of xgrammar's EBNF.
std::string ebnf_literal(std::string_view text) {
  static constexpr std::string_view kDigits = "0123456789abcdef";
  std::string out = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (byte < 0x20 || byte == 0x7F) {
      out += "\\u00";
      out += kDigits[byte >> 4U];
      out += kDigits[byte & 15U];
    } else {
      out += c;
    }
  }
  return out + '"';
}

class GrammarFields {
 public:
  GrammarFields(FieldReader& fields, std::string_view body, SamplingParams& sampling)
      : fields_(fields), body_(body), sampling_(sampling) {}

  /// The field that asked for a grammar; empty: none did.
  const std::string& field() const { return field_; }

  void read_response_format();
  /// One of json, regex, choice, grammar, structural_tag: `value` of the field `name` of `from`,
  /// whose text is `text`.
  void read(const std::string& what, FieldReader& from, std::string_view text,
            const std::string& name);
  void read_structured_outputs();
  void read_typed(const std::string& name);

 private:
  void set(FieldReader& from, const std::string& name, GrammarKind kind, std::string text);
  void read_json_schema(FieldReader& format, std::string_view text);
  void read_json(FieldReader& from, std::string_view text, const std::string& name);
  void read_choice(FieldReader& from, const std::string& name);

  FieldReader& fields_;
  std::string_view body_;
  SamplingParams& sampling_;
  std::string field_;
};

void GrammarFields::set(FieldReader& from, const std::string& name, GrammarKind kind,
                        std::string text) {
  if (!from.ok()) return;
  if (!field_.empty()) {
    from.fail(name, "contradicts '" + field_ + "'; give one of them");
  } else if (text.size() > SamplingParams::kMaxGrammarBytes) {
    from.fail(name, "may be at most " + std::to_string(SamplingParams::kMaxGrammarBytes) +
                        " bytes long, not " + std::to_string(text.size()));
  }
  field_ = from.path_of(name);
  sampling_.grammar_kind = kind;
  sampling_.grammar = std::move(text);
}

void GrammarFields::read_json(FieldReader& from, std::string_view text, const std::string& name) {
  const Json* value = from.take(name);
  if (value == nullptr) return;
  if (value->is_object()) return set(from, name, GrammarKind::json_schema, copy_member(text, name));
  if (value->is_string()) {
    const auto& schema = value->get_ref<const std::string&>();
    if (const auto parsed = parse_json_object(schema); !parsed.ok()) {
      from.fail(name, "must hold a JSON Schema: " + parsed.status().message());
    }
    return set(from, name, GrammarKind::json_schema, schema);
  }
  from.fail(name, std::string("must be a JSON Schema, not ") + kind_of(*value));
}

void GrammarFields::read_choice(FieldReader& from, const std::string& name) {
  const Json* value = from.take(name);
  if (value == nullptr) return;
  if (!value->is_array() || value->empty() || value->size() > kMaxGrammarChoices) {
    from.fail(name, "must be an array of 1 to " + std::to_string(kMaxGrammarChoices) + " strings");
    return;
  }
  std::string grammar = "root ::= ";
  for (std::size_t i = 0; i < value->size(); ++i) {
    const Json& choice = (*value)[i];
    if (!choice.is_string() || choice.get_ref<const std::string&>().empty()) {
      from.fail(name + "[" + std::to_string(i) + "]", "must be a string that is not empty");
      return;
    }
    if (i > 0) grammar += " | ";
    grammar += ebnf_literal(choice.get_ref<const std::string&>());
  }
  set(from, name, GrammarKind::ebnf, std::move(grammar));
}

void GrammarFields::read(const std::string& what, FieldReader& from, std::string_view text,
                         const std::string& name) {
  if (what == "json") return read_json(from, text, name);
  if (what == "choice") return read_choice(from, name);
  const auto value = from.string(name);
  if (!value) return;
  if (value->empty()) from.fail(name, "must not be empty");
  const GrammarKind kind = what == "regex"     ? GrammarKind::regex
                           : what == "grammar" ? GrammarKind::ebnf
                                               : GrammarKind::structural_tag;
  set(from, name, kind, std::string(*value));
}

/// {"name", "description", "schema", "strict"}
void GrammarFields::read_json_schema(FieldReader& format, std::string_view text) {
  const Json* given = format.take("json_schema");
  if (given == nullptr || !given->is_object()) {
    format.fail("json_schema", given == nullptr ? "is missing" : "must be an object");
    return;
  }
  FieldReader inner(*given, format.path_of("json_schema"));
  inner.string("name");
  inner.string("description");
  const bool strict = inner.boolean("strict").value_or(false);
  const Json* schema = inner.take("schema");
  if (schema == nullptr || !schema->is_object()) {
    inner.fail("schema", schema == nullptr ? "is missing" : "must be an object");
  } else {
    set(inner, "schema", GrammarKind::json_schema,
        (strict ? std::string(kRefuseUnenforceable) : "") +
            copy_member(copy_member(text, "json_schema"), "schema"));
  }
  if (inner.finish()) format.fail(*inner.finish());
}

void GrammarFields::read_response_format() {
  const Json* given = fields_.take("response_format");
  if (given == nullptr) return;
  if (!given->is_object()) {
    fields_.fail("response_format", std::string("must be an object, not ") + kind_of(*given));
    return;
  }
  FieldReader format(*given, "response_format");
  const auto type = format.string("type");
  if (type == "json_object") {
    set(format, "type", GrammarKind::json_schema, kAnyObject);
  } else if (type == "json_schema") {
    read_json_schema(format, copy_member(body_, "response_format"));
  } else if (type == "structural_tag") {
    const Json* inside = format.take("format");
    if (inside == nullptr || !inside->is_object()) {
      format.fail("format", inside == nullptr ? "is missing" : "must be an object");
    }
    set(format, "format", GrammarKind::structural_tag, copy_member(body_, "response_format"));
  } else if (type != "text" && format.ok()) {
    format.fail("type", "must be \"text\", \"json_object\", \"json_schema\" or \"structural_tag\"");
  }
  if (format.finish()) fields_.fail(*format.finish());
}

void GrammarFields::read_structured_outputs() {
  const Json* given = fields_.take("structured_outputs");
  if (given == nullptr) return;
  if (!given->is_object()) {
    fields_.fail("structured_outputs", std::string("must be an object, not ") + kind_of(*given));
    return;
  }
  FieldReader inner(*given, "structured_outputs");
  const std::string text = copy_member(body_, "structured_outputs");
  for (const char* what : {"json", "regex", "choice", "grammar", "structural_tag"}) {
    read(what, inner, text, what);
  }
  if (inner.boolean("json_object").value_or(false)) {
    set(inner, "json_object", GrammarKind::json_schema, kAnyObject);
  }
  if (inner.finish()) fields_.fail(*inner.finish());
}

void GrammarFields::read_typed(const std::string& name) {
  const Json* given = fields_.take(name);
  if (given == nullptr) return;
  if (!given->is_object()) {
    fields_.fail(name, std::string("must be an object, not ") + kind_of(*given));
    return;
  }
  FieldReader inner(*given, fields_.path_of(name));
  const auto type = inner.string("type");
  if (type == "json" || type == "regex") {
    read(std::string(*type), inner, copy_member(body_, name), "value");
    if (inner.take("value") == nullptr) inner.fail("value", "is missing");
  } else {
    inner.fail("type", R"(must be "json" or "regex")");
  }
  if (inner.finish()) fields_.fail(*inner.finish());
}

}  // namespace

namespace {

/// One of `names`: its index; -1: it is not there.
int read_choice_of(FieldReader& fields, const std::string& name, const std::string (&names)[2]) {
  const auto value = fields.string(name);
  if (!value) return -1;
  for (int i = 0; i < 2; ++i) {
    if (*value == names[i]) return i;
  }
  fields.fail(name, "must be \"" + names[0] + "\" or \"" + names[1] + "\"");
  return -1;
}

/// How the grammar's schemas are taken, in front of it. `strict`, and guided_json as far as
/// keywords are refused, go before what the server's options say, and the request's own fields
/// before both.
void set_schema_modes(const SchemaDefaults& defaults, ParsedRequest& request) {
  SamplingParams& sampling = request.sampling;
  if (sampling.grammar_kind != GrammarKind::json_schema &&
      sampling.grammar_kind != GrammarKind::structural_tag) {
    return;
  }
  const GrammarModes modes = modes_of(sampling.grammar);
  const bool strict = modes.refuse;
  const bool refuse = strict || request.grammar_field == "guided_json" || defaults.refuse;
  const bool open = !strict && defaults.open;
  sampling.grammar = with_modes(request.schemas.refuse.value_or(refuse),
                                request.schemas.open.value_or(open), modes.text);
}

void read_schema_modes(FieldReader& fields, ParsedRequest& request) {
  const int open = read_choice_of(fields, "schema_objects", {"closed", "open"});
  const int refuse = read_choice_of(fields, "schema_unenforceable", {"report", "refuse"});
  if (open >= 0) request.schemas.open = open == 1;
  if (refuse >= 0) request.schemas.refuse = refuse == 1;
}

}  // namespace

void read_named_grammars(FieldReader& fields,
                         const std::vector<std::pair<std::string, std::string>>& kinds,
                         std::string_view text, const SchemaDefaults& defaults,
                         ParsedRequest& request) {
  GrammarFields grammar(fields, text, request.sampling);
  for (const auto& [what, name] : kinds) grammar.read(what, fields, text, name);
  request.grammar_field = grammar.field();
  set_schema_modes(defaults, request);
}

void read_typed_grammar(FieldReader& fields, const std::string& name, std::string_view text,
                        const SchemaDefaults& defaults, ParsedRequest& request) {
  GrammarFields grammar(fields, text, request.sampling);
  grammar.read_typed(name);
  request.grammar_field = grammar.field();
  set_schema_modes(defaults, request);
}

void read_grammar(FieldReader& fields, std::string_view body, bool ignore_eos,
                  const SchemaDefaults& defaults, ParsedRequest& request) {
  GrammarFields grammar(fields, body, request.sampling);
  grammar.read_response_format();
  for (const std::string what : {"json", "regex", "choice", "grammar"}) {
    grammar.read(what, fields, body, "guided_" + what);
  }
  grammar.read_structured_outputs();
  request.grammar_field = grammar.field();
  read_schema_modes(fields, request);
  set_schema_modes(defaults, request);
  if (ignore_eos && !grammar.field().empty()) {
    fields.fail("ignore_eos",
                "contradicts '" + grammar.field() + "': what is complete must be able to end");
  }
}

}  // namespace baton
