#include "text/grammar/grammar_engine.h"

#include <xgrammar/xgrammar.h>

#include <algorithm>
#include <exception>
#include <new>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <utility>
#include <variant>

namespace baton {

struct CompiledGrammar::Inside {
  xgrammar::CompiledGrammar grammar;
};

struct GrammarEngine::Inside {
  explicit Inside(xgrammar::TokenizerInfo known)
      : vocabulary(std::move(known)),
        compiler(vocabulary, /*max_threads=*/1, /*cache_enabled=*/false) {}
  xgrammar::TokenizerInfo vocabulary;
  xgrammar::GrammarCompiler compiler;
};

struct GrammarMatcher::Inside {
  mutable xgrammar::GrammarMatcher matcher;  // fill() writes down what it will look for again
  std::vector<Token> ends;
  bool ended = false;
};

namespace {

/// A run of whitespace between the parts of a JSON text may be so long: enough for an indentation,
/// and a model that has nothing to say does not say it for ever.
constexpr int kMaxWhitespace = 32;

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
/// none.
void bound_whitespace(Json& format) {
  if (format.is_object() && format.contains("json_schema") &&
      format.value("type", Json()) == "json_schema") {
    if (!format.contains("max_whitespace_cnt")) format["max_whitespace_cnt"] = kMaxWhitespace;
    return;
  }
  if (!format.is_structured()) return;
  for (Json& inside : format) bound_whitespace(inside);
}

xgrammar::Grammar from_structural_tag(const std::string& text) {
  Json tag = Json::parse(text, nullptr, false);
  if (tag.is_object() && tag.contains("format")) bound_whitespace(tag["format"]);
  auto made = xgrammar::Grammar::FromStructuralTag(tag.is_discarded() ? text : tag.dump());
  if (const auto* grammar = std::get_if<xgrammar::Grammar>(&made)) return *grammar;
  std::visit([](const auto& error) { throw error; }, std::get<xgrammar::StructuralTagError>(made));
  throw std::logic_error("no error");
}

xgrammar::Grammar parse(GrammarKind kind, const std::string& text) {
  switch (kind) {
    case GrammarKind::json_schema:
      return without_control_characters(
          xgrammar::Grammar::FromJSONSchema(text, /*any_whitespace=*/true, std::nullopt,
                                            std::nullopt, /*strict_mode=*/true, kMaxWhitespace));
    case GrammarKind::regex:
      return xgrammar::Grammar::FromRegex(text);
    case GrammarKind::ebnf:
      return xgrammar::Grammar::FromEBNF(text);
    case GrammarKind::structural_tag:
      return without_control_characters(from_structural_tag(text));
    case GrammarKind::none:
      break;
  }
  throw std::invalid_argument("there is no grammar");
}

}  // namespace

std::size_t CompiledGrammar::bytes() const { return inside_->grammar.MemorySizeBytes(); }

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
  inside_ = std::make_unique<Inside>(xgrammar::TokenizerInfo(
      texts, xgrammar::VocabType::RAW, static_cast<int>(vocab_size), std::move(ends)));
}

GrammarEngine::~GrammarEngine() = default;

std::uint32_t GrammarEngine::vocab_size() const {
  return static_cast<std::uint32_t>(inside_->vocabulary.GetVocabSize());
}

Result<CompiledGrammar> GrammarEngine::compile(GrammarKind kind, const std::string& text) {
  try {
    return CompiledGrammar(std::make_shared<const CompiledGrammar::Inside>(
        CompiledGrammar::Inside{inside_->compiler.CompileGrammar(parse(kind, text))}));
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& e) {
    return invalid(reason_of(e.what()));
  }
}

GrammarMatcher::GrammarMatcher(const CompiledGrammar& grammar, std::span<const Token> stop_ids) {
  const xgrammar::CompiledGrammar& compiled = grammar.inside().grammar;
  const xgrammar::TokenizerInfo vocabulary = compiled.GetTokenizerInfo();
  const std::vector<std::string>& texts = vocabulary.GetDecodedVocab();
  const std::vector<std::int32_t>& eos_ids = vocabulary.GetStopTokenIds();
  std::vector<Token> ends;
  for (const Token id : stop_ids) {
    if (id < 0 || id >= vocabulary.GetVocabSize()) continue;
    const auto at = static_cast<std::size_t>(id);
    const bool eos = std::find(eos_ids.begin(), eos_ids.end(), id) != eos_ids.end();
    if (eos || at >= texts.size() || texts[at].empty()) ends.push_back(id);
  }
  if (ends.empty()) ends = eos_ids;
  std::optional<std::vector<int>> stops;
  if (!ends.empty()) stops = ends;
  inside_ = std::make_unique<Inside>(
      Inside{xgrammar::GrammarMatcher(compiled, std::move(stops)), std::move(ends), false});
}

GrammarMatcher::~GrammarMatcher() = default;
GrammarMatcher::GrammarMatcher(GrammarMatcher&&) noexcept = default;
GrammarMatcher& GrammarMatcher::operator=(GrammarMatcher&&) noexcept = default;

bool GrammarMatcher::accept(Token token) {
  const std::vector<Token>& ends = inside_->ends;
  const bool end = std::find(ends.begin(), ends.end(), token) != ends.end();
  if (inside_->ended) return end;
  if (!inside_->matcher.AcceptToken(token)) return false;
  inside_->ended = end;
  return true;
}

bool GrammarMatcher::fill(std::span<std::uint32_t> mask) const {
  if (inside_->ended) {
    std::fill(mask.begin(), mask.end(), 0U);
    for (const Token id : inside_->ends) set_bit(mask, id);
    return false;
  }
  auto words = static_cast<std::int64_t>(mask.size());
  DLTensor tensor{};
  tensor.data = mask.data();
  tensor.device = DLDevice{kDLCPU, 0};
  tensor.ndim = 1;
  tensor.dtype = xgrammar::GetBitmaskDLType();
  tensor.shape = &words;
  inside_->matcher.FillNextTokenBitmask(&tensor);
  if (!inside_->matcher.IsCompleted()) return true;
  for (const Token id : inside_->ends) clear_bit(mask, id);
  const bool more =
      std::any_of(mask.begin(), mask.end(), [](std::uint32_t word) { return word != 0; });
  for (const Token id : inside_->ends) set_bit(mask, id);
  return more;
}

bool GrammarMatcher::may_end() const { return inside_->ended || inside_->matcher.IsCompleted(); }

}  // namespace baton
