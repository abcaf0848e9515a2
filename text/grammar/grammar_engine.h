// Grammars for a model's vocabulary: from a text to which tokens may come next. JSON Schemas, and
// structural tags with some, by text/schema/, all others by xgrammar (Dong et al.,
// https://arxiv.org/abs/2411.15100), which only these files know.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ipc/status.h"
#include "ipc/types.h"
#include "text/tokenizer/tokenizer.h"

namespace baton {

/// Stack of a thread that tries a stranger's grammar, and of one that compiles what was tried: it
/// has room for all that the other one had.
inline constexpr std::size_t kTrialStackBytes = 4U << 20U;
inline constexpr std::size_t kCompileStackBytes = 16U << 20U;

/// In front of a JSON Schema or a structural tag, in this order: what cannot be enforced is an
/// error; objects hold any keys that the schema allows, in any order.
inline constexpr std::string_view kRefuseUnenforceable = "all ";
inline constexpr std::string_view kOpenObjects = "open ";

/// How schemas are taken, and the grammar without what is in front of it.
struct GrammarModes {
  bool refuse = false;
  bool open = false;
  std::string_view text;
};
inline GrammarModes modes_of(std::string_view text) {
  GrammarModes modes;
  modes.refuse = text.starts_with(kRefuseUnenforceable);
  if (modes.refuse) text.remove_prefix(kRefuseUnenforceable.size());
  modes.open = text.starts_with(kOpenObjects);
  if (modes.open) text.remove_prefix(kOpenObjects.size());
  modes.text = text;
  return modes;
}
inline std::string with_modes(bool refuse, bool open, std::string_view text) {
  return std::string(refuse ? kRefuseUnenforceable : "").append(open ? kOpenObjects : "") += text;
}

/// A grammar made ready for one vocabulary. The copies of its handle share it; what a JSON Schema
/// derives as sequences follow it is kept within bounds. Thread-safe.
class CompiledGrammar {
 public:
  struct Inside;
  explicit CompiledGrammar(std::shared_ptr<const Inside> inside) : inside_(std::move(inside)) {}
  const Inside& inside() const { return *inside_; }
  /// About so many bytes of memory, now.
  std::size_t bytes() const;
  /// Keywords of JSON Schemas that are not enforced, each with its path; empty: all are.
  std::string unenforced() const { return list(false); }
  /// Of these, the ones that make the grammar an error.
  std::string refused() const { return list(true); }

 private:
  std::string list(bool refused) const;
  std::shared_ptr<const Inside> inside_;
};

/// Compiles grammars for one vocabulary. compile() may be called by one thread at a time.
class GrammarEngine {
 public:
  /// `vocab_size`: entries of a row of logits; ids that the tokenizer has no text for never match.
  /// The tokenizer is needed only here. Takes some tenths of a second for 128 thousand tokens.
  GrammarEngine(const Tokenizer& tokenizer, std::uint32_t vocab_size);
  ~GrammarEngine();
  GrammarEngine(const GrammarEngine&) = delete;
  GrammarEngine& operator=(const GrammarEngine&) = delete;

  /// json_schema: a JSON Schema; unless kOpenObjects is in front of it, an object may hold nothing
  /// that its schema does not name, unless that says so, and its keys come in the schema's order.
  /// regex: matched as a whole. ebnf: GBNF, its first rule named root. structural_tag: xgrammar's
  /// structural tags, as JSON; with JSON Schemas, by text/schema/ where all formats in it are known
  /// there (see tag_formats.cpp), which may then say "objects", "unenforceable", "best_effort" and
  /// "name" (a json_schema), "any_special" (free text) and "held" (the tag). An error (invalid_argument) has the
  /// reason. Neither time nor memory nor stack is bounded here: see grammar_check.h.
  Result<CompiledGrammar> compile(GrammarKind kind, const std::string& text);

  std::uint32_t vocab_size() const;
  /// Words of a mask.
  std::size_t mask_words() const { return (vocab_size() + 31U) / 32U; }

 private:
  struct Inside;
  std::unique_ptr<Inside> inside_;
};

/// Follows one sequence through a grammar. Not thread-safe.
class GrammarMatcher {
 public:
  /// `stop_ids`: of these, the ones without a text and the tokenizer's end-of-sequence ids may come
  /// where the grammar may end, and only there. One with a text is a token like any other. Where
  /// none is left, the tokenizer's end-of-sequence ids take their place.
  GrammarMatcher(const CompiledGrammar& grammar, std::span<const Token> stop_ids);
  ~GrammarMatcher();
  GrammarMatcher(GrammarMatcher&&) noexcept;
  GrammarMatcher& operator=(GrammarMatcher&&) noexcept;

  /// False: the grammar does not allow the token here, and the matcher is as it was.
  bool accept(Token token);
  /// Sets bit (t % 32) of mask[t / 32] for every token t that may come next, and clears all others.
  /// After an end, another end may come. False: nothing but an end may.
  bool fill(std::span<std::uint32_t> mask) const;
  /// The output may end here.
  bool may_end() const;

 private:
  struct Inside;
  std::unique_ptr<Inside> inside_;
};

}  // namespace baton
