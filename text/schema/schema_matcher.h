// A schema for a vocabulary, and a sequence of tokens that follows it.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ipc/status.h"
#include "text/schema/schema_grammar.h"
#include "text/schema/token_masks.h"
#include "text/schema/vocabulary.h"

namespace baton::schema {

/// Derives a schema's states as matchers visit them, within a bound of memory: what is above it is
/// forgotten, and derived again from the texts. Thread-safe.
class CompiledSchema {
 public:
  static constexpr std::size_t kMaxBytes = 96U << 20U;

  static Result<std::shared_ptr<CompiledSchema>> compile(
      std::string_view text, Options options, std::shared_ptr<const Vocabulary> vocabulary,
      std::size_t max_bytes = kMaxBytes);

  const std::vector<Unenforced>& unenforced() const { return unenforced_; }
  std::size_t bytes() const;
  const Vocabulary& vocabulary() const { return *vocabulary_; }

 private:
  friend class SchemaMatcher;
  CompiledSchema(std::string_view text, Options options,
                 std::shared_ptr<const Vocabulary> vocabulary, std::size_t max_bytes)
      : text_(text), options_(options), vocabulary_(std::move(vocabulary)), max_bytes_(max_bytes) {}
  Status derive();
  std::size_t used() const { return grammar_->bytes() + masks_->bytes(); }

  const std::string text_;
  const Options options_;
  const std::shared_ptr<const Vocabulary> vocabulary_;
  const std::size_t max_bytes_;
  std::vector<Unenforced> unenforced_;
  mutable std::mutex mutex_;
  std::shared_ptr<SchemaGrammar> grammar_;
  std::unique_ptr<TokenMasks> masks_;
  std::uint64_t generation_ = 0;
};

/// Copies go on alone. Not thread-safe. LimitError where a text needs more than a limit allows.
class SchemaMatcher {
 public:
  explicit SchemaMatcher(std::shared_ptr<CompiledSchema> schema);

  /// False: the text is not allowed here, and the matcher is as it was.
  bool accept(std::string_view text);
  /// Bits of the tokens that may come next; all others are cleared. False: there are none.
  bool fill(std::span<std::uint32_t> mask);
  bool may_end();
  const Vocabulary& vocabulary() const { return schema_->vocabulary(); }

 private:
  void catch_up(bool afresh);
  template <typename Work>
  auto tried_twice(Work work);

  std::shared_ptr<CompiledSchema> schema_;
  std::uint64_t generation_ = 0;
  Automaton::State state_ = Automaton::kDead;
  std::string text_;
};

}  // namespace baton::schema
