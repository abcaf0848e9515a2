// A JSON Schema as an automaton over bytes, or the reason why there is none.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "ipc/status.h"
#include "text/schema/automaton.h"
#include "text/schema/document.h"
#include "text/schema/schema_tables.h"
#include "text/schema/text_sets.h"

namespace baton::schema {

struct Options {
  /// Objects hold no keys that their schema does not name, unless it says so, and keys come in the
  /// schema's order. False: any keys that the standard allows, in any order.
  bool closed = true;
};

/// The derived parts of a schema. Not thread-safe.
class SchemaGrammar {
 public:
  /// invalid_argument: it is no schema, nothing matches it, or it needs more than a limit allows.
  static Result<std::shared_ptr<SchemaGrammar>> compile(std::string_view text, Options options);

  /// Keywords that are not enforced, in the order in which they were found.
  const std::vector<Unenforced>& unenforced() const { return tables_->unenforced(); }
  Automaton& automaton() { return *automaton_; }
  TextSets& text_sets() { return text_sets_; }
  Automaton::State start() const { return start_; }
  std::size_t bytes() const { return automaton_->bytes() + text_bytes_; }

 private:
  SchemaGrammar() = default;

  std::unique_ptr<Document> document_;
  TextSets text_sets_;
  std::unique_ptr<SchemaTables> tables_;
  std::unique_ptr<Automaton> automaton_;
  Automaton::State start_ = Automaton::kDead;
  std::size_t text_bytes_ = 0;
};

}  // namespace baton::schema
