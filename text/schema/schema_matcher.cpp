#include "text/schema/schema_matcher.h"

#include <algorithm>
#include <utility>

namespace baton::schema {

Status CompiledSchema::derive() {
  auto grammar = SchemaGrammar::compile(text_, options_);
  if (!grammar.ok()) return grammar.status();
  masks_.reset();
  grammar_ = std::move(grammar.value());
  masks_ = std::make_unique<TokenMasks>(*vocabulary_, grammar_->automaton(), grammar_->languages());
  ++generation_;
  return {};
}

Result<std::shared_ptr<CompiledSchema>> CompiledSchema::compile(
    std::string_view text, Options options, std::shared_ptr<const Vocabulary> vocabulary,
    std::size_t max_bytes) {
  std::shared_ptr<CompiledSchema> made(
      new CompiledSchema(text, options, std::move(vocabulary), max_bytes));
  if (Status status = made->derive(); !status.ok()) return status;
  made->unenforced_ = made->grammar_->unenforced();
  return made;
}

std::size_t CompiledSchema::bytes() const {
  const std::lock_guard lock(mutex_);
  return used();
}

SchemaMatcher::SchemaMatcher(std::shared_ptr<CompiledSchema> schema) : schema_(std::move(schema)) {
  const std::lock_guard lock(schema_->mutex_);
  generation_ = schema_->generation_;
  state_ = schema_->grammar_->start();
}

/// Called with the lock: finds the state again where it has been forgotten.
void SchemaMatcher::catch_up(bool afresh) {
  if (afresh || schema_->used() > schema_->max_bytes_) {
    if (const Status status = schema_->derive(); !status.ok()) throw LimitError(status.message());
  }
  if (generation_ == schema_->generation_) return;
  state_ = schema_->grammar_->start();
  for (const char c : text_) {
    state_ = schema_->grammar_->automaton().step(state_, static_cast<unsigned char>(c));
  }
  if (schema_->used() > schema_->max_bytes_) {
    throw LimitError("what follows this text needs more than " +
                     std::to_string(schema_->max_bytes_ >> 20U) + " MiB");
  }
  generation_ = schema_->generation_;
}

/// What others' texts have filled is no reason to fail: once, all is derived afresh.
template <typename Work>
auto SchemaMatcher::tried_twice(Work work) {
  const std::lock_guard lock(schema_->mutex_);
  try {
    catch_up(false);
    return work();
  } catch (const LimitError&) {
    catch_up(true);
    return work();
  }
}

bool SchemaMatcher::accept(std::string_view text) {
  return tried_twice([&] {
    Automaton::State state = state_;
    for (const char c : text) {
      state = schema_->grammar_->automaton().step(state, static_cast<unsigned char>(c));
      if (state == Automaton::kDead) return false;
    }
    state_ = state;
    text_ += text;
    return true;
  });
}

bool SchemaMatcher::fill(std::span<std::uint32_t> mask) {
  return tried_twice([&] {
    const Mask& found = schema_->masks_->mask(state_);
    std::copy(found.begin(), found.end(), mask.begin());
    return std::any_of(found.begin(), found.end(), [](std::uint32_t word) { return word != 0; });
  });
}

bool SchemaMatcher::may_end() {
  return tried_twice([&] { return schema_->grammar_->automaton().may_end(state_); });
}

}  // namespace baton::schema
