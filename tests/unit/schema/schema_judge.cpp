// Answers questions about schemas, for tests/published/test_schemas.py. A line each on standard
// input: "O" or "C" and a schema (open or closed objects), "T" and a text for the schema before.
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "text/schema/schema_grammar.h"

namespace {

using baton::schema::Automaton;
using baton::schema::SchemaGrammar;
using Json = nlohmann::json;

Json compile(std::shared_ptr<SchemaGrammar>& grammar, const std::string& text, bool closed) {
  auto made = SchemaGrammar::compile(text, {closed});
  grammar = made.ok() ? made.value() : nullptr;
  Json answer = {{"error", made.ok() ? "" : made.status().message()},
                 {"unenforced", Json::array()}};
  if (!grammar) return answer;
  for (const auto& one : grammar->unenforced()) {
    answer["unenforced"].push_back({one.keyword, one.path, one.why});
  }
  return answer;
}

Json allows(SchemaGrammar* grammar, const std::string& text) {
  if (grammar == nullptr) return {{"allowed", false}};
  Automaton::State state = grammar->start();
  for (const char c : text) state = grammar->automaton().step(state, static_cast<unsigned char>(c));
  return {{"allowed", grammar->automaton().may_end(state)}};
}

}  // namespace

int main() {
  std::shared_ptr<SchemaGrammar> grammar;
  std::string line;
  while (std::getline(std::cin, line)) {
    if (line.empty()) continue;
    const std::string text = line.substr(1);
    const Json answer =
        line[0] == 'T' ? allows(grammar.get(), text) : compile(grammar, text, line[0] == 'C');
    std::cout << answer.dump(-1, ' ', false, Json::error_handler_t::replace) << std::endl;
  }
  return 0;
}
