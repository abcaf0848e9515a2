#include "text/schema/schema_matcher.h"

#include <algorithm>
#include <utility>

namespace baton::schema {

Status CompiledSchema::derive() {
  auto automaton = TagAutomaton::make(nfa_);
  if (!automaton.ok()) return automaton.status();
  masks_.reset();
  automaton_ = std::move(automaton.value());
  masks_ = std::make_unique<TagMasks>(*vocabulary_, *automaton_);
  ++generation_;
  return {};
}

Result<std::shared_ptr<CompiledSchema>> CompiledSchema::make(
    TagNfa nfa, std::shared_ptr<const Vocabulary> vocabulary, std::size_t max_bytes) {
  std::shared_ptr<CompiledSchema> made(new CompiledSchema(
      std::make_shared<const TagNfa>(std::move(nfa)), std::move(vocabulary), max_bytes));
  if (Status status = made->derive(); !status.ok()) return status;
  made->unenforced_ = made->automaton_->unenforced();
  return made;
}

Result<std::shared_ptr<CompiledSchema>> CompiledSchema::compile(
    std::string_view text, SchemaModes modes, std::shared_ptr<const Vocabulary> vocabulary,
    std::size_t max_bytes) {
  TagSchema schema{.text = std::string(text), .modes = modes};
  return make(TagNfa::of_schema(std::move(schema)), std::move(vocabulary), max_bytes);
}

Result<std::shared_ptr<CompiledSchema>> CompiledSchema::compile_tag(
    const nlohmann::ordered_json& tag, SchemaModes modes,
    std::shared_ptr<const Vocabulary> vocabulary, std::size_t max_bytes) {
  auto nfa = TagNfa::build(tag, modes, vocabulary->special_ids());
  if (!nfa.ok()) return nfa.status();
  return make(std::move(nfa).value(), std::move(vocabulary), max_bytes);
}

std::size_t CompiledSchema::bytes() const {
  const std::lock_guard lock(mutex_);
  return used();
}

SchemaMatcher::SchemaMatcher(std::shared_ptr<CompiledSchema> schema) : schema_(std::move(schema)) {
  const std::lock_guard lock(schema_->mutex_);
  generation_ = schema_->generation_;
  state_ = schema_->automaton_->start();
}

/// Called with the lock: finds the state again where it has been forgotten.
void SchemaMatcher::catch_up(bool afresh) {
  if (afresh || schema_->used() > schema_->max_bytes_) {
    if (const Status status = schema_->derive(); !status.ok()) throw LimitError(status.message());
  }
  if (generation_ == schema_->generation_) return;
  TagAutomaton& automaton = *schema_->automaton_;
  state_ = automaton.start();
  auto special = specials_.begin();
  for (std::size_t i = 0; i <= text_.size(); ++i) {
    for (; special != specials_.end() && special->first == i; ++special) {
      state_ = automaton.step_special(state_, special->second);
    }
    if (i < text_.size()) state_ = automaton.step(state_, static_cast<unsigned char>(text_[i]));
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
    TagAutomaton::State state = state_;
    for (const char c : text) {
      state = schema_->automaton_->step(state, static_cast<unsigned char>(c));
      if (state == TagAutomaton::kDead) return false;
    }
    state_ = state;
    text_ += text;
    return true;
  });
}

bool SchemaMatcher::accept_special(std::uint32_t token) {
  if (!vocabulary().is_special(token)) return false;
  return tried_twice([&] {
    const TagAutomaton::State state = schema_->automaton_->step_special(state_, token);
    if (state == TagAutomaton::kDead) return false;
    state_ = state;
    specials_.emplace_back(text_.size(), token);
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
  return tried_twice([&] { return schema_->automaton_->may_end(state_); });
}

}  // namespace baton::schema
