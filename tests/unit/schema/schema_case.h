// Whether a schema allows a text, byte by byte.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>

#include "text/schema/schema_grammar.h"

namespace baton::schema::testing {

inline std::shared_ptr<SchemaGrammar> grammar(std::string_view schema, bool closed = false) {
  auto made = SchemaGrammar::compile(schema, {closed});
  if (!made.ok()) throw std::runtime_error(made.status().message());
  return std::move(made).value();
}

inline bool allows(SchemaGrammar& of, std::string_view text) {
  Automaton::State state = of.start();
  for (const char c : text) {
    state = of.automaton().step(state, static_cast<unsigned char>(c));
    if (state == Automaton::kDead) return false;
  }
  return of.automaton().may_end(state);
}

inline bool allows(std::string_view schema, std::string_view text, bool closed = false) {
  return allows(*grammar(schema, closed), text);
}

/// Keyword and path of the first that is not enforced.
inline std::string unenforced(std::string_view schema) {
  const auto made = grammar(schema);
  if (made->unenforced().empty()) return "";
  return made->unenforced()[0].keyword + " " + made->unenforced()[0].path;
}

}  // namespace baton::schema::testing
