// What JSON Schemas cost: the time until the first mask, and that of each mask on the way along the
// schema's valid instances. One thread.
//   build/cpu/bin/baton-bench-schemas SAMPLE.jsonl MODEL_FOLDER     the vocabulary of a model
//   build/cpu/bin/baton-bench-schemas SAMPLE.jsonl --synthetic N    one of N made-up words
//   ... --calls    each schema is that of a call's arguments, behind free text, in a structural tag
// A line of the file: {"schema": ..., "tests": [{"valid": true, "data": ...}, ...]}, as MaskBench
// has them. Objects are open, as the standard says; what is not enforced is refused.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "bench/synthetic_tokenizer.h"
#include "ipc/process.h"
#include "text/grammar/grammar_engine.h"
#include "text/tokenizer/tokenizer.h"

namespace baton {
namespace {

using Json = nlohmann::ordered_json;

/// Texts to tokens: always the longest that fits.
class LongestTokens {
 public:
  explicit LongestTokens(const Tokenizer& tokenizer) {
    for (Token id = 0; id < static_cast<Token>(tokenizer.piece_count()); ++id) {
      const std::string_view text = tokenizer.piece_text(id);
      if (text.empty()) continue;
      ids_.emplace(text, id);
      longest_ = std::max(longest_, text.size());
    }
  }

  std::vector<Token> encode(std::string_view text) const {
    std::vector<Token> ids;
    while (!text.empty()) {
      std::size_t length = std::min(longest_, text.size());
      auto found = ids_.find(text.substr(0, length));
      while (found == ids_.end() && length > 1) found = ids_.find(text.substr(0, --length));
      if (found == ids_.end()) return {};
      ids.push_back(found->second);
      text.remove_prefix(length);
    }
    return ids;
  }

 private:
  std::unordered_map<std::string_view, Token> ids_;
  std::size_t longest_ = 1;
};

struct Times {
  const char* name;
  std::vector<TimeNs> all;

  void print() {
    std::sort(all.begin(), all.end());
    const auto at = [&](double share) {
      const auto i = static_cast<std::size_t>(share * static_cast<double>(all.size() - 1));
      return static_cast<double>(all[i]) / 1e3;
    };
    if (all.empty()) return;
    std::printf("%-12s %8zu   p50 %9.1f us   p90 %9.1f   p99 %9.1f   p99.9 %9.1f   max %9.1f\n",
                name, all.size(), at(0.5), at(0.9), at(0.99), at(0.999), at(1));
  }
};

struct Counts {
  Times ready{"ready", {}};  // compiled, and the first mask
  Times mask{"mask", {}};
  Times accept{"accept", {}};
  std::size_t refused = 0;
  std::size_t not_allowed = 0;  // instances
};

/// What stands around the schema's text, and the grammar of both.
struct Setting {
  GrammarKind kind = GrammarKind::json_schema;
  std::string before;
  std::string after;

  static Setting calls() {
    return {GrammarKind::structural_tag,
            "I look it up.\n<tool_call>\n{\"name\": \"f\", \"arguments\": ", "}\n</tool_call>\n"};
  }
  std::string grammar(const Json& schema) const {
    if (kind == GrammarKind::json_schema) return with_modes(true, true, schema.dump());
    const std::string mark = "<tool_call>";
    const Json tag = {{"type", "tag"},
                      {"begin", before.substr(before.find(mark))},
                      {"content", {{"type", "json_schema"}, {"json_schema", schema}}},
                      {"end", after}};
    const Json format = {{"type", "triggered_tags"},
                         {"triggers", Json::array({mark})},
                         {"tags", Json::array({tag})}};
    return with_modes(true, true, Json{{"type", "structural_tag"}, {"format", format}}.dump());
  }
};

void measure(GrammarEngine& engine, const Tokenizer& tokenizer, const LongestTokens& tokens,
             const Setting& setting, const Json& entry, Counts& counts) {
  const std::string grammar = setting.grammar(entry.at("schema"));
  std::vector<std::uint32_t> mask(engine.mask_words());
  TimeNs at = now_ns();
  const auto compiled = engine.compile(setting.kind, grammar);
  if (!compiled.ok() || !compiled.value().refused().empty()) {
    ++counts.refused;
    return;
  }
  GrammarMatcher(compiled.value(), tokenizer.eos_ids()).fill(mask);
  counts.ready.all.push_back(now_ns() - at);
  for (const Json& test : entry.at("tests")) {
    if (!test.at("valid").get<bool>()) continue;
    GrammarMatcher matcher(compiled.value(), tokenizer.eos_ids());
    const std::string text = setting.before + test.at("data").dump(-1, ' ', false) + setting.after;
    bool allowed = true;
    for (const Token id : tokens.encode(text)) {
      at = now_ns();
      matcher.fill(mask);
      const TimeNs filled = now_ns();
      allowed = matcher.accept(id);
      counts.mask.all.push_back(filled - at);
      counts.accept.all.push_back(now_ns() - filled);
      const auto bit = static_cast<std::size_t>(id);
      if (allowed != ((mask[bit / 32] >> (bit % 32) & 1U) != 0)) {
        std::fprintf(stderr, "a mask and the matcher differ: %s\n", text.c_str());
        std::exit(1);
      }
      if (!allowed) break;
    }
    if (!allowed || !matcher.may_end()) ++counts.not_allowed;
  }
}

int run(const char* file, const Tokenizer& tokenizer, const Setting& setting) {
  const TimeNs began = now_ns();
  GrammarEngine engine(tokenizer, tokenizer.vocab_size());
  std::printf("vocabulary of %u: ready in %.0f ms\n", engine.vocab_size(),
              static_cast<double>(now_ns() - began) / 1e6);
  const LongestTokens tokens(tokenizer);
  std::ifstream lines(file);
  if (!lines) {
    std::fprintf(stderr, "%s: cannot be read\n", file);
    return 1;
  }
  Counts counts;
  for (std::string line; std::getline(lines, line);) {
    if (!line.empty()) measure(engine, tokenizer, tokens, setting, Json::parse(line), counts);
  }
  counts.ready.print();
  counts.mask.print();
  counts.accept.print();
  std::printf("refused %zu schemas; not allowed: %zu valid instances\n", counts.refused,
              counts.not_allowed);
  return 0;
}

}  // namespace
}  // namespace baton

int main(int argc, char** argv) {
  using namespace baton;
  Setting setting;
  if (argc > 1 && std::strcmp(argv[argc - 1], "--calls") == 0) {
    setting = Setting::calls();
    --argc;
  }
  if (argc == 4 && std::strcmp(argv[2], "--synthetic") == 0) {
    const auto size = static_cast<std::size_t>(std::atoll(argv[3]));
    return run(argv[1], *SyntheticTokenizer::make(size), setting);
  }
  if (argc != 3) {
    std::fprintf(stderr,
                 "usage: baton-bench-schemas SAMPLE.jsonl MODEL_FOLDER|--synthetic N [--calls]\n");
    return 2;
  }
  auto loaded = Tokenizer::load(argv[2]);
  if (!loaded.ok()) {
    std::fprintf(stderr, "%s\n", loaded.status().message().c_str());
    return 1;
  }
  return run(argv[1], *loaded.value(), setting);
}
