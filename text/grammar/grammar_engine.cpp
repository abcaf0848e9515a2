#include "text/grammar/grammar_engine.h"

#include <xgrammar/xgrammar.h>

#include <algorithm>
#include <exception>
#include <map>
#include <new>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <utility>
#include <variant>

#include "text/schema/schema_matcher.h"
#include "text/schema/tag_nfa.h"

namespace baton {

struct CompiledGrammar::Inside {
  std::optional<xgrammar::CompiledGrammar> grammar;  // what holds no JSON Schema
  std::shared_ptr<schema::CompiledSchema> schema;
  std::vector<schema::Unenforced> unenforced;
  std::vector<Token> eos_ids;
};

struct GrammarEngine::Inside {
  Inside(xgrammar::TokenizerInfo known, std::shared_ptr<const schema::Vocabulary> texts)
      : vocabulary(std::move(known)),
        compiler(vocabulary, /*max_threads=*/1, /*cache_enabled=*/false),
        tries(std::move(texts)) {}
  xgrammar::TokenizerInfo vocabulary;
  xgrammar::GrammarCompiler compiler;
  std::shared_ptr<const schema::Vocabulary> tries;  // for JSON Schemas
};

struct GrammarMatcher::Inside {
  // fill() writes down what it will look for again. One of the two:
  mutable std::optional<xgrammar::GrammarMatcher> matcher;
  mutable std::optional<schema::SchemaMatcher> schema;
  std::vector<Token> ends;
  bool ended = false;
  std::uint32_t vocab_size = 0;
  const schema::Vocabulary& vocabulary() const { return schema->vocabulary(); }
};

namespace {

/// A run of whitespace between the parts of a JSON text may be so long: enough for an indentation,
/// and a model that has nothing to say does not say it for ever.
constexpr int kMaxWhitespace = 32;

constexpr const char* kBesideOthers = "not every keyword of it, in a tag of this kind";

using Json = nlohmann::ordered_json;  // the order of a schema's keys is that of the text

void set_bit(std::span<std::uint32_t> mask, Token id) {
  mask[static_cast<std::size_t>(id) / 32] |= 1U << (static_cast<std::uint32_t>(id) % 32U);
}
void clear_bit(std::span<std::uint32_t> mask, Token id) {
  mask[static_cast<std::size_t>(id) / 32] &= ~(1U << (static_cast<std::uint32_t>(id) % 32U));
}

/// xgrammar's "[12:34:56] /path/file.cc:12: Check failed: (x) is false: what\n" without what is for
/// its own developers.
std::string reason_of(std::string_view text) {
  if (text.starts_with('[')) {
    const std::size_t file = text.find("] ");
    const std::size_t line = file == text.npos ? file : text.find(": ", file);
    if (line != text.npos) text.remove_prefix(line + 2);
  }
  if (text.starts_with("Check failed: ")) {
    const std::size_t end = text.find(" is false: ");
    if (end != text.npos) text.remove_prefix(end + 11);
  }
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.remove_suffix(1);
  constexpr std::size_t kShown = 500;
  std::string reason(text.substr(0, kShown));
  if (text.size() > kShown) reason += "...";
  return reason.empty() ? "no reason given" : reason;
}

/// Strings with a minLength or a maxLength may hold control characters in xgrammar 0.2.8, which
/// JSON forbids: the class of their characters gets the bounds that the one of other strings has.
xgrammar::Grammar without_control_characters(const xgrammar::Grammar& grammar) {
  static constexpr std::string_view kLoose = R"(([^\"\\\r\n]))";
  static constexpr std::string_view kStrict = R"(([^\0-\x1f\"\\]))";
  std::string text = grammar.ToString();
  bool found = false;
  for (std::size_t at = 0; (at = text.find(kLoose, at)) != text.npos; at += kStrict.size()) {
    text.replace(at, kLoose.size(), kStrict);
    found = true;
  }
  return found ? xgrammar::Grammar::FromEBNF(text) : grammar;
}

/// Gives every JSON Schema of a structural tag's `format` the bound of whitespace, where it has
/// none, and takes away what xgrammar does not know.
void prepare(Json& format) {
  if (format.is_object() && format.contains("json_schema") &&
      format.value("type", Json()) == "json_schema") {
    if (!format.contains("max_whitespace_cnt")) format["max_whitespace_cnt"] = kMaxWhitespace;
    for (const char* own : {"objects", "unenforceable", "best_effort", "name"}) format.erase(own);
    return;
  }
  if (!format.is_structured()) return;
  if (format.is_object() && format.contains("type")) format.erase("any_special");
  for (Json& inside : format) prepare(inside);
}

xgrammar::Grammar from_structural_tag(const std::string& text) {
  Json tag = Json::parse(text, nullptr, false);
  if (tag.is_object() && tag.contains("format")) prepare(tag["format"]);
  if (tag.is_object()) tag.erase("held");
  auto made = xgrammar::Grammar::FromStructuralTag(tag.is_discarded() ? text : tag.dump());
  if (const auto* grammar = std::get_if<xgrammar::Grammar>(&made)) return *grammar;
  std::visit([](const auto& error) { throw error; }, std::get<xgrammar::StructuralTagError>(made));
  throw std::logic_error("no error");
}

xgrammar::Grammar parse(GrammarKind kind, const std::string& text) {
  switch (kind) {
    case GrammarKind::regex:
      return xgrammar::Grammar::FromRegex(text);
    case GrammarKind::ebnf:
      return xgrammar::Grammar::FromEBNF(text);
    case GrammarKind::structural_tag:
      return without_control_characters(from_structural_tag(text));
    case GrammarKind::json_schema:  // not by xgrammar
    case GrammarKind::none:
      break;
  }
  throw std::invalid_argument("there is no grammar");
}

}  // namespace

std::size_t CompiledGrammar::bytes() const {
  return inside_->schema ? inside_->schema->bytes() : inside_->grammar->MemorySizeBytes();
}

std::string CompiledGrammar::list(bool refused) const {
  std::string out;
  for (const schema::Unenforced& one : inside_->unenforced) {
    if (refused && !one.refused) continue;
    if (!out.empty()) out += "; ";
    if (!one.name.empty()) out += one.name + ": ";
    out +=
        (one.keyword.empty() ? "schema" : one.keyword) + " at #" + one.path + " (" + one.why + ")";
  }
  return out;
}

GrammarEngine::GrammarEngine(const Tokenizer& tokenizer, std::uint32_t vocab_size) {
  std::vector<std::string> texts;
  const std::size_t pieces = std::min<std::size_t>(tokenizer.piece_count(), vocab_size);
  texts.reserve(pieces);
  // A special token is no text, and one without a text matches nothing.
  for (std::size_t id = 0; id < pieces; ++id) {
    texts.emplace_back(tokenizer.piece_text(static_cast<Token>(id)));
  }
  std::vector<std::int32_t> ends;  // not empty, whatever they are: xgrammar would guess others
  for (const Token id : tokenizer.eos_ids()) {
    if (id >= 0 && static_cast<std::size_t>(id) < pieces) ends.push_back(id);
  }
  xgrammar::TokenizerInfo vocabulary(texts, xgrammar::VocabType::RAW, static_cast<int>(vocab_size),
                                     std::move(ends));
  std::map<std::string, std::uint32_t, std::less<>> specials;
  for (std::uint32_t id = 0; id < pieces; ++id) {
    const auto token = static_cast<Token>(id);
    if (tokenizer.is_special(token) && !tokenizer.token_bytes(token).empty()) {
      specials.emplace(tokenizer.token_bytes(token), id);
    }
  }
  inside_ = std::make_unique<Inside>(std::move(vocabulary),
                                     std::make_shared<const schema::Vocabulary>(
                                         std::move(texts), vocab_size, std::move(specials)));
}

GrammarEngine::~GrammarEngine() = default;

std::uint32_t GrammarEngine::vocab_size() const {
  return static_cast<std::uint32_t>(inside_->vocabulary.GetVocabSize());
}

Result<CompiledGrammar> GrammarEngine::compile(GrammarKind kind, const std::string& text) {
  try {
    CompiledGrammar::Inside made;
    made.eos_ids = inside_->vocabulary.GetStopTokenIds();
    const GrammarModes asked = modes_of(text);
    const schema::SchemaModes modes{.closed = !asked.open, .refuse = asked.refuse};
    Json tag;
    if (kind == GrammarKind::structural_tag) tag = Json::parse(asked.text, nullptr, false);
    const bool own = schema::supports_tag(tag, inside_->tries->special_ids());
    if (kind == GrammarKind::json_schema || own) {
      auto compiled = own ? schema::CompiledSchema::compile_tag(tag, modes, inside_->tries)
                          : schema::CompiledSchema::compile(asked.text, modes, inside_->tries);
      if (!compiled.ok()) return compiled.status();
      made.schema = std::move(compiled).value();
      made.unenforced = made.schema->unenforced();
    } else if (kind == GrammarKind::structural_tag) {
      made.grammar = inside_->compiler.CompileGrammar(parse(kind, std::string(asked.text)));
      for (std::string& path : schema::schemas_of_tag(tag)) {
        made.unenforced.push_back(
            {"json_schema", std::move(path), kBesideOthers, "", modes.refuse});
      }
    } else {
      made.grammar = inside_->compiler.CompileGrammar(parse(kind, text));
    }
    return CompiledGrammar(std::make_shared<const CompiledGrammar::Inside>(std::move(made)));
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& e) {
    return invalid(reason_of(e.what()));
  }
}

GrammarMatcher::GrammarMatcher(const CompiledGrammar& grammar, std::span<const Token> stop_ids) {
  const CompiledGrammar::Inside& of = grammar.inside();
  std::vector<Token> ends;
  const auto add_ends = [&](std::uint32_t size, const auto& has_text) {
    for (const Token id : stop_ids) {
      if (id < 0 || static_cast<std::uint32_t>(id) >= size) continue;
      const bool eos = std::find(of.eos_ids.begin(), of.eos_ids.end(), id) != of.eos_ids.end();
      if (eos || !has_text(static_cast<std::size_t>(id))) ends.push_back(id);
    }
    if (ends.empty()) ends = of.eos_ids;
  };
  if (of.schema) {
    const schema::Vocabulary& known = of.schema->vocabulary();
    add_ends(known.size(),
             [&](std::size_t id) { return !known.text(static_cast<std::uint32_t>(id)).empty(); });
    inside_ = std::make_unique<Inside>(Inside{std::nullopt, schema::SchemaMatcher(of.schema),
                                              std::move(ends), false,
                                              static_cast<std::uint32_t>(known.size())});
    return;
  }
  const xgrammar::TokenizerInfo vocabulary = of.grammar->GetTokenizerInfo();
  const std::vector<std::string>& texts = vocabulary.GetDecodedVocab();
  add_ends(static_cast<std::uint32_t>(vocabulary.GetVocabSize()),
           [&](std::size_t id) { return id < texts.size() && !texts[id].empty(); });
  std::optional<std::vector<int>> stops;
  if (!ends.empty()) stops = ends;
  inside_ = std::make_unique<Inside>(Inside{xgrammar::GrammarMatcher(*of.grammar, std::move(stops)),
                                            std::nullopt, std::move(ends), false,
                                            static_cast<std::uint32_t>(vocabulary.GetVocabSize())});
}

GrammarMatcher::~GrammarMatcher() = default;
GrammarMatcher::GrammarMatcher(GrammarMatcher&&) noexcept = default;
GrammarMatcher& GrammarMatcher::operator=(GrammarMatcher&&) noexcept = default;

bool GrammarMatcher::accept(Token token) {
  const std::vector<Token>& ends = inside_->ends;
  const bool end = std::find(ends.begin(), ends.end(), token) != ends.end();
  if (inside_->ended) return end;
  if (!inside_->schema) {
    if (!inside_->matcher->AcceptToken(token)) return false;
    inside_->ended = end;
    return true;
  }
  if (end) {
    inside_->ended = inside_->schema->may_end();
    return inside_->ended;
  }
  const std::string_view text = inside_->vocabulary().text(static_cast<std::uint32_t>(token));
  if (token < 0) return false;
  return text.empty() ? inside_->schema->accept_special(static_cast<std::uint32_t>(token))
                      : inside_->schema->accept(text);
}

bool GrammarMatcher::fill(std::span<std::uint32_t> mask) const {
  if (inside_->ended) {
    std::fill(mask.begin(), mask.end(), 0U);
    for (const Token id : inside_->ends) set_bit(mask, id);
    return false;
  }
  bool may_end = false;
  if (inside_->schema) {
    inside_->schema->fill(mask);
    for (const Token id : inside_->ends) clear_bit(mask, id);
    may_end = inside_->schema->may_end();
  } else {
    auto words = static_cast<std::int64_t>(mask.size());
    DLTensor tensor{};
    tensor.data = mask.data();
    tensor.device = DLDevice{kDLCPU, 0};
    tensor.ndim = 1;
    tensor.dtype = xgrammar::GetBitmaskDLType();
    tensor.shape = &words;
    inside_->matcher->FillNextTokenBitmask(&tensor);
    may_end = inside_->matcher->IsCompleted();
    // xgrammar sets the last word's bits beyond the vocabulary, too.
    if (const std::uint32_t used = inside_->vocab_size % 32U; used != 0) {
      mask[inside_->vocab_size / 32U] &= (1U << used) - 1U;
    }
  }
  if (!may_end) return true;
  for (const Token id : inside_->ends) clear_bit(mask, id);
  const bool more =
      std::any_of(mask.begin(), mask.end(), [](std::uint32_t word) { return word != 0; });
  for (const Token id : inside_->ends) set_bit(mask, id);
  return more;
}

bool GrammarMatcher::may_end() const {
  if (inside_->ended) return true;
  return inside_->schema ? inside_->schema->may_end() : inside_->matcher->IsCompleted();
}

}  // namespace baton
