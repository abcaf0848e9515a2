#include "text/schema/schema_grammar.h"

#include <utility>

namespace baton::schema {

Result<std::shared_ptr<SchemaGrammar>> SchemaGrammar::compile(std::string_view text,
                                                              Options options) {
  std::shared_ptr<SchemaGrammar> made(new SchemaGrammar);
  auto document = Document::read(text);
  if (!document.ok()) return document.status();
  made->document_ = std::move(document.value());
  made->text_bytes_ = 4 * text.size();
  try {
    made->tables_ = std::make_unique<SchemaTables>(*made->document_, made->text_sets_);
    made->automaton_ =
        std::make_unique<Automaton>(*made->tables_, made->text_sets_, options.closed);
    made->automaton_->visit_all();
    made->start_ = made->automaton_->start();
  } catch (const WrongSchema& error) {
    return invalid(error.what());
  } catch (const LimitError& error) {
    return invalid(std::string("the schema is too complex: ") + error.what());
  }
  made->tables_->freeze();
  made->text_sets_.give_up_silently();
  if (made->start_ == Automaton::kDead) return invalid("nothing matches the schema");
  return made;
}

}  // namespace baton::schema
