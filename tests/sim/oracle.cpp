#include "tests/sim/oracle.h"

#include <algorithm>
#include <numeric>

#include "scheduler/apply/beam_search.h"

namespace baton::sim {

Token sample(std::uint64_t prefix, std::uint32_t n_generated, const SamplingParams& sampling,
             std::uint32_t vocab) {
  std::uint64_t draw = mix(prefix + 0x5A3F1EULL);
  const auto& stops = sampling.stop_ids;
  for (;;) {
    const auto token = static_cast<Token>(draw % vocab);
    const bool masked = n_generated < sampling.min_tokens &&
                        std::find(stops.begin(), stops.end(), token) != stops.end();
    if (!masked) return token;
    draw = mix(draw);
  }
}

Ranking rank(std::uint64_t prefix, std::uint32_t n_generated, const SamplingParams& sampling,
             std::uint32_t vocab) {
  const auto stops = [&](Token token) {
    return std::count(sampling.stop_ids.begin(), sampling.stop_ids.end(), token) != 0;
  };
  // Few different values: equal scores are part of the game.
  std::vector<float> logprobs(vocab);
  for (std::uint32_t t = 0; t < vocab; ++t) {
    logprobs[t] = -0.25F * static_cast<float>(1 + mix(prefix + 0xBEA3ULL * (t + 1)) % 64);
  }
  std::vector<Token> order(vocab);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](Token a, Token b) {
    return logprobs[static_cast<std::size_t>(a)] > logprobs[static_cast<std::size_t>(b)];
  });
  if (n_generated < sampling.min_tokens) std::erase_if(order, stops);
  Ranking ranking;
  std::uint32_t going_on = 0;
  for (std::size_t i = 0; i < order.size() && going_on < sampling.num_beams; ++i) {
    if (stops(order[i]) && i >= sampling.num_beams) continue;
    going_on += stops(order[i]) ? 0 : 1;
    ranking.tokens.push_back(order[i]);
    ranking.logprobs.push_back(logprobs[static_cast<std::size_t>(order[i])]);
  }
  return ranking;
}

namespace {

void draw_beams(const Scenario& scenario, RequestSpec& spec, Random& random) {
  SamplingParams& p = spec.sampling;
  p.num_beams = random.between(2, 5);
  p.num_return_sequences = random.between(1, p.num_beams);
  p.length_penalty = static_cast<float>(random.between(0, 4)) / 2;
  p.early_stopping = static_cast<EarlyStopping>(random.below(3));
  // Where a pool cuts an answer, it cuts a search: what it finds then is not known beforehand.
  p.max_tokens = std::min(p.max_tokens, scenario.load.max_output);
  p.min_tokens = std::min(p.min_tokens, p.max_tokens);
}

/// The search by itself: nothing disturbs it.
void answer_beams(const Scenario& scenario, RequestSpec& spec) {
  std::uint64_t root = spec.root;
  for (const Token token : spec.prompt) root = extend_prefix(root, token);
  std::vector<std::uint64_t> prefixes = {root};
  BeamSearch search(spec.sampling);
  while (!search.done()) {
    std::vector<Ranking> rankings;
    std::vector<BeamSearch::Row> rows;
    for (const std::uint64_t prefix : prefixes) {
      rankings.push_back(rank(prefix, search.length(), spec.sampling, scenario.vocab));
    }
    for (const Ranking& ranking : rankings) rows.push_back({ranking.tokens, ranking.logprobs});
    search.advance(rows);
    std::vector<std::uint64_t> next;
    for (const BeamSearch::Child& child : search.children()) {
      next.push_back(extend_prefix(prefixes[child.parent], child.token));
    }
    prefixes = std::move(next);
  }
  spec.steps = search.length();
  for (const BeamSearch::Hypothesis& found : search.best(spec.sampling.num_return_sequences)) {
    spec.answer.insert(spec.answer.end(), found.tokens.begin(), found.tokens.end());
    spec.lengths.push_back(static_cast<std::uint32_t>(found.tokens.size()));
    if (spec.reason == FinishReason::none) spec.reason = found.reason;
  }
}

void draw_sampling(const Scenario& scenario, RequestSpec& spec, Random& random) {
  SamplingParams& p = spec.sampling;
  p.max_tokens = random.between(1, scenario.load.max_output);
  if (random.permille(scenario.load.endless)) p.max_tokens = scenario.fits() + random.between(0, 9);
  if (random.permille(200)) p.min_tokens = random.between(0, p.max_tokens);
  const std::uint32_t stops = random.pick<std::uint32_t>({0, 1, 1, 4, 12});
  for (std::uint32_t i = 0; i < stops; ++i) p.stop_ids.push_back(static_cast<Token>(i));
  p.temperature = static_cast<float>(random.between(0, 4)) / 4.0F;
}

void answer(const Scenario& scenario, RequestSpec& spec) {
  std::uint64_t prefix = spec.root;
  for (const Token token : spec.prompt) prefix = extend_prefix(prefix, token);
  const auto& stops = spec.sampling.stop_ids;
  while (spec.reason == FinishReason::none) {
    const auto n = static_cast<std::uint32_t>(spec.answer.size());
    const Token token = sample(prefix, n, spec.sampling, scenario.vocab);
    prefix = extend_prefix(prefix, token);
    spec.answer.push_back(token);
    if (std::find(stops.begin(), stops.end(), token) != stops.end()) {
      spec.reason = FinishReason::stop;
    } else if (spec.answer.size() == spec.sampling.max_tokens) {
      spec.reason = FinishReason::length;
    }
  }
}

/// The striker whose grammar, prompt and cache this request has, too; null: it shares with none. Of
/// numbers of its own.
const RequestSpec* shared_strike(const Scenario& scenario, const std::deque<RequestSpec>& earlier) {
  if (!scenario.load.strikers_share) return nullptr;
  Random random(mix(scenario.seed ^ (earlier.size() + 1)) ^ 0x2B07E25ULL);
  const auto last = std::find_if(earlier.rbegin(), earlier.rend(), [](const RequestSpec& spec) {
    return spec.strike != Strike::none;
  });
  if (last == earlier.rend()) return nullptr;
  // The next choice of the same request, or a later try.
  return random.permille(last == earlier.rbegin() ? 600 : 150) ? &*last : nullptr;
}

/// Perhaps this one strikes. Nobody else has what it strikes by, its KV and its grammar, but those
/// that share it.
void draw_striker(const Scenario& scenario, const std::deque<RequestSpec>& earlier,
                  RequestSpec& spec, Random& random) {
  const Load& load = scenario.load;
  const RequestSpec* shared = shared_strike(scenario, earlier);
  if (!random.permille(load.striker) && shared == nullptr) return;
  const bool grammar = spec.sampling.grammar_kind != GrammarKind::none;
  if (load.strike == Strike::compile && spec.sampling.beams()) return;
  spec.strike = load.strike;
  const std::string name = "striker " + std::to_string(spec.sampling.seed);
  spec.strikes_by = shared != nullptr ? shared->strikes_by : name;
  spec.cache_salt = name;
  spec.root = prefix_root(spec.sampling.seed);
  const bool fits = shared != nullptr && scenario.settings.prefix_cache &&
                    shared->prompt.size() + spec.sampling.max_tokens <= scenario.fits();
  if (fits) {
    spec.cache_salt = shared->cache_salt;
    spec.root = shared->root;
    spec.prompt = shared->prompt;
  }
  if (load.strike == Strike::compile) spec.sampling.grammar_kind = GrammarKind::regex;
  if (grammar || load.strike == Strike::compile) spec.sampling.grammar = spec.strikes_by;
  spec.strike_at = random.between(0, spec.sampling.max_tokens - 1);
  spec.strike_every = random.pick<std::uint32_t>({1, 1, 2, 3});
}

/// A tenant, and perhaps the beginning of an earlier conversation, as its next turn has it.
void draw_beginning(const Scenario& scenario, const std::deque<RequestSpec>& earlier,
                    RequestSpec& spec, Random& random) {
  spec.root = prefix_root(spec.sampling.seed);
  if (!scenario.settings.prefix_cache) return;
  const auto tenant = random.below(4) / 3;  // most belong to one
  if (tenant != 0) spec.cache_salt = "other";
  spec.root = prefix_root(tenant);
  if (earlier.empty() || !random.permille(scenario.load.repeat)) return;
  const std::size_t among =
      std::min<std::size_t>(earlier.size(), random.pick<std::size_t>({2, 8, 1000}));
  const RequestSpec& last = earlier[earlier.size() - 1 - random.below(among)];
  spec.prompt = last.prompt;
  spec.prompt.insert(spec.prompt.end(), last.answer.begin(), last.answer.end());
}

}  // namespace

namespace {

/// The first tenant asks for most; the last one for nothing in the middle of the run, and comes
/// back. Of numbers of its own, likewise.
TenantShare draw_share(const Scenario& scenario, std::size_t index) {
  TenantShare share;
  if (scenario.tenants == 0) return share;
  Random random(mix(scenario.seed ^ (index + 1)) ^ 0x54A4E5ULL);
  std::uint32_t tenant = random.permille(500) ? 0 : random.between(0, scenario.tenants - 1);
  const std::size_t part = 10 * index / std::max(1U, scenario.load.requests);
  if (tenant + 1 == scenario.tenants && part >= 1 && part < 5) tenant = 0;
  if (scenario.fair && tenant + 1 != scenario.tenants && part >= 7)
    tenant = random.between(0, 1) == 0 ? tenant : scenario.tenants - 1;
  share.tenant = "tenant" + std::to_string(tenant);
  Random fixed(mix(scenario.seed ^ (1000 + tenant)) ^ 0x54A4E5ULL);
  share.weight = fixed.pick({0.5F, 1.0F, 1.0F, 2.0F, 3.0F});
  if (!scenario.fair && fixed.permille(200)) share.priority = -1;
  return share;
}

}  // namespace

std::vector<float> pooled_vector(std::uint64_t prefix) {
  std::vector<float> vector;
  for (std::uint64_t i = 0; i < 1 + prefix % 5; ++i) {
    vector.push_back(static_cast<float>(mix(prefix + i) % 1000) / 8);
  }
  return vector;
}

namespace {

/// In some runs every fifth request wants a vector. Those that strike, fail or stop by a token of
/// theirs want text.
void draw_pooling(const Scenario& scenario, std::size_t index, RequestSpec& spec) {
  const bool plain = !spec.sampling.beams() && spec.sampling.grammar_kind == GrammarKind::none &&
                     spec.strike == Strike::none && spec.bad_row == kNever &&
                     spec.killer_at == kNever && spec.stop_at == kNever;
  if (scenario.fair || scenario.seed % 11 != 0 || index % 5 != 2 || !plain) return;
  spec.sampling.pooling = Pooling::last_hidden;
  spec.sampling.max_tokens = 1;
  spec.sampling.min_tokens = 0;
  spec.sampling.stop_ids.clear();
  std::uint64_t prefix = spec.root;
  for (const Token token : spec.prompt) prefix = extend_prefix(prefix, token);
  spec.vector = pooled_vector(prefix);
  spec.answer = {0};
  spec.reason = FinishReason::length;
}

}  // namespace

RequestSpec draw_request(const Scenario& scenario, const std::deque<RequestSpec>& earlier,
                         Random& random) {
  const Load& load = scenario.load;
  RequestSpec spec;
  spec.sampling.seed = kFirstSeed + earlier.size();
  draw_sampling(scenario, spec, random);
  const bool beams = random.permille(load.beams);
  if (beams) draw_beams(scenario, spec, random);
  // What it allows changes nothing here; that its workers must have compiled it does.
  if (!beams && load.grammar != 0 && earlier.size() % (1000 / load.grammar) == 0) {
    spec.sampling.grammar_kind = GrammarKind::regex;
    spec.sampling.grammar = std::to_string(earlier.size() / 5 % 4);
  }
  std::uint32_t prompt = random.between(1, load.max_prompt);
  if (random.permille(load.too_long)) {
    prompt = scenario.fits() + random.between(0, 8);
  }
  draw_beginning(scenario, earlier, spec, random);
  // The next turn of a chat has all of the last one, as long as every pool can hold it.
  const auto turn = static_cast<std::uint32_t>(spec.prompt.size()) + random.between(1, 4);
  const bool fits = turn + scenario.load.max_output <= scenario.fits();
  if (fits && !beams && random.permille(load.next_turn)) prompt = std::max(prompt, turn);
  if (spec.prompt.size() > prompt) spec.prompt.resize(prompt);
  while (spec.prompt.size() < prompt) {
    spec.prompt.push_back(static_cast<Token>(random.below(scenario.vocab)));
  }
  if (random.permille(load.cancel)) spec.cancel_after = random.time(1, 2 * kSecond);
  if (random.permille(load.stop) && !beams)
    spec.stop_at = random.between(1, spec.sampling.max_tokens);
  if (random.permille(load.deadline)) spec.timeout = random.time(10 * kMillisecond, 4 * kSecond);
  if (random.permille(load.bad_row)) spec.bad_row = random.between(0, spec.sampling.max_tokens - 1);
  if (random.permille(load.killer)) {
    spec.killer_at = random.between(0, spec.sampling.max_tokens - 1);
  }
  if (load.strike != Strike::none) draw_striker(scenario, earlier, spec, random);
  spec.share = draw_share(scenario, earlier.size());
  if (load.priorities) spec.priority = static_cast<std::int32_t>(random.below(3)) - 1;
  draw_pooling(scenario, earlier.size(), spec);
  if (beams) {
    answer_beams(scenario, spec);
  } else if (!spec.sampling.pools()) {
    answer(scenario, spec);
  }
  return spec;
}

}  // namespace baton::sim
