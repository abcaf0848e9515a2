// A schema, or a structural tag with schemas, for a vocabulary, and a sequence of tokens that
// follows it.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ipc/status.h"
#include "text/schema/tag_automaton.h"
#include "text/schema/tag_masks.h"
#include "text/schema/vocabulary.h"

namespace baton::schema {

/// Derives the states of a schema, or of a structural tag with schemas, as matchers visit them,
/// within a bound of memory: what is above it is forgotten, and derived again from the texts.
/// Thread-safe.
class CompiledSchema {
 public:
  static constexpr std::size_t kMaxBytes = 96U << 20U;

  static Result<std::shared_ptr<CompiledSchema>> compile(
      std::string_view text, SchemaModes modes, std::shared_ptr<const Vocabulary> vocabulary,
      std::size_t max_bytes = kMaxBytes);
  /// Of a tag that supports_tag() takes; `modes`: of its schemas, unless these say it.
  static Result<std::shared_ptr<CompiledSchema>> compile_tag(
      const nlohmann::ordered_json& tag, SchemaModes modes,
      std::shared_ptr<const Vocabulary> vocabulary, std::size_t max_bytes = kMaxBytes);

  const std::vector<Unenforced>& unenforced() const { return unenforced_; }
  std::size_t bytes() const;
  const Vocabulary& vocabulary() const { return *vocabulary_; }

 private:
  friend class SchemaMatcher;
  CompiledSchema(std::shared_ptr<const TagNfa> nfa, std::shared_ptr<const Vocabulary> vocabulary,
                 std::size_t max_bytes)
      : nfa_(std::move(nfa)), vocabulary_(std::move(vocabulary)), max_bytes_(max_bytes) {}
  static Result<std::shared_ptr<CompiledSchema>> make(TagNfa nfa,
                                                      std::shared_ptr<const Vocabulary> vocabulary,
                                                      std::size_t max_bytes);
  Status derive();
  std::size_t used() const { return automaton_->bytes() + masks_->bytes(); }

  const std::shared_ptr<const TagNfa> nfa_;
  const std::shared_ptr<const Vocabulary> vocabulary_;
  const std::size_t max_bytes_;
  std::vector<Unenforced> unenforced_;
  mutable std::mutex mutex_;
  std::shared_ptr<TagAutomaton> automaton_;
  std::unique_ptr<TagMasks> masks_;
  std::uint64_t generation_ = 0;
};

/// Copies go on alone. Not thread-safe. LimitError where a text needs more than a limit allows.
class SchemaMatcher {
 public:
  explicit SchemaMatcher(std::shared_ptr<CompiledSchema> schema);

  /// False: the text is not allowed here, and the matcher is as it was.
  bool accept(std::string_view text);
  bool accept_special(std::uint32_t token);
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
  TagAutomaton::State state_ = TagAutomaton::kDead;
  std::string text_;
  std::vector<std::pair<std::size_t, std::uint32_t>> specials_;  // behind so much of the text
};

}  // namespace baton::schema
