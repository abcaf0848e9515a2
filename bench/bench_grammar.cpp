// What grammars cost: the vocabulary's preparation, compiling, and the mask of one token.
//   build/cpu/bin/baton-bench-grammar MODEL_FOLDER      the vocabulary of a model
//   build/cpu/bin/baton-bench-grammar --synthetic N     one of N made-up words, as large tokenizers
//   have them
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "bench/synthetic_tokenizer.h"
#include "ipc/process.h"
#include "text/grammar/grammar_engine.h"
#include "text/tokenizer/tokenizer.h"

namespace baton {
namespace {

struct Case {
  const char* name;
  GrammarKind kind;
  std::string text;
};

std::vector<Case> cases() {
  const std::string person =
      R"({"type":"object","properties":{"name":{"type":"string"},"age":{"type":"integer"},)"
      R"("tags":{"type":"array","items":{"type":"string"}},"address":{"type":"object","properties":)"
      R"({"street":{"type":"string"},"zip":{"type":"string","pattern":"^[0-9]{5}$"}},)"
      R"("required":["street","zip"]}},"required":["name","age","tags","address"]})";
  std::string enumeration = R"({"enum":[)";
  for (int i = 0; i < 500; ++i) {
    enumeration += (i > 0 ? ",\"value " : "\"value ") + std::to_string(i * 7919) + "\"";
  }
  enumeration += "]}";
  return {
      {"json_object", GrammarKind::json_schema, R"({"type":"object"})"},
      {"schema, 6 fields", GrammarKind::json_schema, person},
      {"enum of 500", GrammarKind::json_schema, enumeration},
      {"regex, a date", GrammarKind::regex, "[0-9]{4}-(0[1-9]|1[0-2])-[0-3][0-9]"},
      {"regex, text of 400", GrammarKind::regex, "[a-zA-Z ,.]{1,400}"},
      {"string, maxLength 60", GrammarKind::json_schema, R"({"type":"string","maxLength":60})"},
      {"string, maxLength 200", GrammarKind::json_schema, R"({"type":"string","maxLength":200})"},
      {"string, maxLength 2000", GrammarKind::json_schema, R"({"type":"string","maxLength":2000})"},
      {"choice", GrammarKind::ebnf, R"(root ::= "positive" | "negative" | "neutral")"}};
}

double ms(TimeNs time) { return static_cast<double>(time) / 1e6; }

void measure(GrammarEngine& engine, const Tokenizer& tokenizer, const Case& asked) {
  TimeNs at = now_ns();
  const auto compiled = engine.compile(asked.kind, asked.text);
  const TimeNs compiling = now_ns() - at;
  if (!compiled.ok()) {
    std::printf("%-24s %s\n", asked.name, compiled.status().message().c_str());
    return;
  }
  std::vector<std::uint32_t> mask(engine.mask_words());
  std::vector<TimeNs> times;
  std::mt19937_64 random(11);
  std::size_t accepted = 0;
  TimeNs accepting = 0;
  for (int run = 0; run < 20; ++run) {
    GrammarMatcher matcher(compiled.value(), tokenizer.eos_ids());
    for (int n = 0; n < 100; ++n) {
      at = now_ns();
      matcher.fill(mask);
      times.push_back(now_ns() - at);
      // Any allowed token, the first at or above a random one.
      const std::size_t bits = engine.vocab_size();
      std::size_t id = random() % bits;
      std::size_t tried = 0;
      while (tried < bits && (mask[id / 32] >> (id % 32) & 1U) == 0) id = (id + 1) % bits, ++tried;
      if (tried == bits || (id == 0 && matcher.may_end())) break;
      at = now_ns();
      if (!matcher.accept(static_cast<Token>(id))) std::abort();
      accepting += now_ns() - at;
      ++accepted;
    }
  }
  std::sort(times.begin(), times.end());
  std::printf(
      "%-24s compile %7.1f ms, %6.2f MiB   mask p50 %6.1f us, p99 %7.1f, max %7.1f   accept %5.1f "
      "us\n",
      asked.name, ms(compiling), static_cast<double>(compiled.value().bytes()) / 1048576.0,
      ms(times[times.size() / 2]) * 1e3, ms(times[times.size() * 99 / 100]) * 1e3,
      ms(times.back()) * 1e3,
      accepted > 0 ? ms(accepting) * 1e3 / static_cast<double>(accepted) : 0.0);
}

}  // namespace
}  // namespace baton

int main(int argc, char** argv) {
  using namespace baton;
  std::unique_ptr<Tokenizer> tokenizer;
  if (argc == 3 && std::strcmp(argv[1], "--synthetic") == 0) {
    tokenizer = SyntheticTokenizer::make(static_cast<std::size_t>(std::atoll(argv[2])));
  } else if (argc == 2) {
    auto loaded = Tokenizer::load(argv[1]);
    if (!loaded.ok()) {
      std::fprintf(stderr, "%s\n", loaded.status().message().c_str());
      return 1;
    }
    tokenizer = std::move(loaded).value();
  } else {
    std::fprintf(stderr, "usage: baton-bench-grammar MODEL_FOLDER | --synthetic N\n");
    return 2;
  }
  const TimeNs began = now_ns();
  GrammarEngine engine(*tokenizer, tokenizer->vocab_size());
  std::printf("vocabulary of %u: ready in %.0f ms\n", engine.vocab_size(), ms(now_ns() - began));
  for (const Case& asked : cases()) measure(engine, *tokenizer, asked);
}
