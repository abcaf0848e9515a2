// Answers questions about schemas, for tests/published. A line each on standard input: "O" or "C"
// and a schema (open or closed objects), "T" and a text for the schema before, "S" and a seed for a
// text that is drawn at random under its masks.
#include <algorithm>
#include <bit>
#include <cstdint>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "text/schema/schema_grammar.h"
#include "text/schema/schema_matcher.h"

namespace {

using baton::schema::Automaton;
using baton::schema::CompiledSchema;
using baton::schema::SchemaGrammar;
using baton::schema::SchemaMatcher;
using baton::schema::Vocabulary;
using Json = nlohmann::json;

constexpr std::size_t kMaxTokens = 3000;

/// All bytes, JSON's punctuation in runs, and short words.
std::shared_ptr<const Vocabulary> vocabulary() {
  static const auto made = [] {
    std::set<std::string> texts;
    for (int byte = 0; byte < 256; ++byte) texts.insert(std::string(1, static_cast<char>(byte)));
    std::mt19937_64 random(3);
    const std::string marks = "{}[]\",: \n\\";
    const std::string letters = "abcdefnrstux0123456789-.:TZ";
    for (int i = 0; i < 3000; ++i) {
      std::string text;
      const std::string& from = random() % 3 == 0 ? marks : letters;
      for (std::uint64_t n = 1 + random() % 5; n > 0; --n) text += from[random() % from.size()];
      if (random() % 4 == 0) text += marks[random() % marks.size()];
      texts.insert(text);
    }
    for (const char* text : {"é", "ü", "😀", "name", "tags", "true", "false", "null"}) {
      texts.insert(text);
    }
    std::vector<std::string> all(texts.begin(), texts.end());
    const auto size = static_cast<std::uint32_t>(all.size());
    return std::make_shared<const Vocabulary>(std::move(all), size);
  }();
  return made;
}

struct Schema {
  std::string text;
  bool closed = false;
  std::shared_ptr<SchemaGrammar> grammar;
  std::shared_ptr<CompiledSchema> compiled;  // once a text is drawn
};

Json compile(Schema& schema, const std::string& text, bool closed) {
  auto made = SchemaGrammar::compile(text, {closed});
  schema = {text, closed, made.ok() ? made.value() : nullptr, nullptr};
  Json answer = {{"error", made.ok() ? "" : made.status().message()},
                 {"unenforced", Json::array()}};
  if (!schema.grammar) return answer;
  for (const auto& one : schema.grammar->unenforced()) {
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

/// Tokens that close something rather more often than others, so that the text ends.
std::uint32_t pick(const std::vector<std::uint32_t>& mask, std::mt19937_64& random) {
  std::vector<std::uint32_t> tokens;
  std::vector<double> weights;
  for (std::uint32_t i = 0; i < mask.size(); ++i) {
    for (std::uint32_t word = mask[i]; word != 0; word &= word - 1) {
      tokens.push_back(32 * i + static_cast<std::uint32_t>(std::countr_zero(word)));
      const std::string_view text = vocabulary()->text(tokens.back());
      weights.push_back(text.find_first_of("\"}]") != text.npos              ? 20
                        : text.find_first_not_of(" \n\t\r") == text.npos     ? 0.05
                        : text.find_first_of("{[") != std::string_view::npos ? 0.3
                                                                             : 1);
    }
  }
  if (tokens.empty()) return UINT32_MAX;
  return tokens[std::discrete_distribution<std::size_t>(weights.begin(), weights.end())(random)];
}

Json draw(Schema& schema, std::uint64_t seed) {
  Json answer = {{"text", ""}, {"ended", false}, {"stuck", false}};
  if (!schema.compiled) {
    auto made = CompiledSchema::compile(schema.text, {.closed = schema.closed}, vocabulary());
    if (!made.ok()) return answer;
    schema.compiled = std::move(made).value();
  }
  SchemaMatcher matcher(schema.compiled);
  std::mt19937_64 random(seed);
  std::vector<std::uint32_t> mask(vocabulary()->mask_words());
  std::string text;
  for (std::size_t n = 0; n < kMaxTokens; ++n) {
    const bool more = matcher.fill(mask);
    if (matcher.may_end() && (!more || random() % 3 == 0)) {
      answer["ended"] = true;
      break;
    }
    const std::uint32_t token = pick(mask, random);
    if (token == UINT32_MAX || !matcher.accept(vocabulary()->text(token))) {
      answer["stuck"] = true;
      break;
    }
    text += vocabulary()->text(token);
  }
  answer["text"] = text;
  return answer;
}

}  // namespace

int main() {
  Schema schema;
  std::string line;
  while (std::getline(std::cin, line)) {
    if (line.empty()) continue;
    const std::string text = line.substr(1);
    Json answer;
    if (line[0] == 'T') {
      answer = allows(schema.grammar.get(), text);
    } else if (line[0] == 'S') {
      answer = draw(schema, std::stoull(text));
    } else {
      answer = compile(schema, text, line[0] == 'C');
    }
    std::cout << answer.dump(-1, ' ', false, Json::error_handler_t::replace) << std::endl;
  }
  return 0;
}
