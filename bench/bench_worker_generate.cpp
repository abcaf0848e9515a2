#include <algorithm>
#include <cstddef>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "bench/bench_worker_driver.h"

namespace baton::bench {

namespace {

using Json = nlohmann::json;

Json to_json(const Logprobs& values) {
  Json list = Json::array();
  LogprobReader reader(values);
  for (LogprobReader::Entry entry; !reader.done();) {
    reader.take(reader.item(), entry);
    Json tops = Json::array();
    for (std::size_t i = 0; i < entry.top_tokens.size(); ++i) {
      tops.push_back({entry.top_tokens[i], entry.top_logprobs[i]});
    }
    list.push_back({entry.logprob, std::move(tops)});
  }
  return list;
}

Json answer_of(const Sequence& s) {
  const auto first = s.tokens.begin() + static_cast<std::ptrdiff_t>(s.prompt);
  Json tokens = std::vector<Token>(first, s.tokens.end());
  if (s.sampling.logprobs < 0 && s.sampling.prompt_logprobs < 0) return tokens;
  return {{"tokens", std::move(tokens)},
          {"logprobs", to_json(s.logprobs)},
          {"prompt_logprobs", to_json(s.prompt_logprobs)}};
}

}  // namespace

SamplingParams sampling_of(const Json& fields) {
  SamplingParams p;
  p.temperature = fields.value("temperature", 0.0F);
  p.top_p = fields.value("top_p", p.top_p);
  p.top_k = fields.value("top_k", p.top_k);
  p.min_p = fields.value("min_p", p.min_p);
  p.typical_p = fields.value("typical_p", p.typical_p);
  p.min_tokens = fields.value("min_tokens", p.min_tokens);
  p.stop_ids = fields.value("stop_ids", p.stop_ids);
  p.repetition_penalty = fields.value("repetition_penalty", p.repetition_penalty);
  p.presence_penalty = fields.value("presence_penalty", p.presence_penalty);
  p.frequency_penalty = fields.value("frequency_penalty", p.frequency_penalty);
  for (const auto& [token, value] :
       fields.value("logit_bias", std::vector<std::pair<Token, float>>())) {
    p.bias_tokens.push_back(token);
    p.bias_values.push_back(value);
  }
  p.allowed_tokens = fields.value("allowed_tokens", p.allowed_tokens);
  p.bad_words = fields.value("bad_words", p.bad_words);
  p.logprobs = fields.value("logprobs", p.logprobs);
  p.seed = fields.value("seed", std::uint64_t{7});
  p.prompt_logprobs = fields.value("prompt_logprobs", p.prompt_logprobs);
  const auto regex = fields.value("regex", std::string());
  if (!regex.empty()) {
    p.grammar_kind = GrammarKind::regex;
    p.grammar = regex;
  }
  if (!p.within_bounds()) throw std::runtime_error("sampling fields out of bounds");
  return p;
}

Json generate(Driver& driver, const Json& task, const WhenEnded& when_ended) {
  SamplingParams p = sampling_of(task);
  const auto max_tokens = task.at("max_tokens").get<std::size_t>();
  const auto chunk = task.value("chunk", std::size_t{64});
  const auto stagger = task.value("stagger", std::size_t{1});
  const bool solo = task.value("solo", false) || when_ended;
  driver.reset();
  std::vector<Sequence> all;
  for (const Json& prompt : task.at("prompts")) {
    all.push_back(driver.make(prompt.get<std::vector<Token>>(), p));
    ++p.seed;
  }
  const auto advance = [&](Sequence& s) {
    if (s.tokens.size() - s.prompt >= max_tokens) return false;
    driver.add(s, s.computed < s.prompt ? std::min(chunk, s.prompt - s.computed) : 1);
    return true;
  };
  if (solo) {
    for (Sequence& s : all) {
      while (advance(s)) driver.launch();
      driver.drain();
      if (when_ended) when_ended(s);
    }
  } else {
    bool busy = true;
    for (std::size_t step = 0; busy; ++step) {
      busy = false;
      for (std::size_t i = 0; i < all.size(); ++i) {
        if (step < stagger * i) {
          busy = true;
        } else {
          busy = advance(all[i]) || busy;
        }
      }
      if (busy) driver.launch();
    }
    driver.drain();
  }
  Json answers = Json::array();
  for (const Sequence& s : all) answers.push_back(answer_of(s));
  return answers;
}

}  // namespace baton::bench
