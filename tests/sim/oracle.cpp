#include "tests/sim/oracle.h"

#include <algorithm>

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

namespace {

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
  std::uint64_t prefix = prefix_root(spec.sampling.seed);
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

}  // namespace

RequestSpec draw_request(const Scenario& scenario, std::uint32_t index, Random& random) {
  const Load& load = scenario.load;
  RequestSpec spec;
  spec.sampling.seed = kFirstSeed + index;
  draw_sampling(scenario, spec, random);
  std::uint32_t prompt = random.between(1, load.max_prompt);
  if (random.permille(load.too_long)) {
    prompt = scenario.fits() + random.between(0, 8);
  }
  for (std::uint32_t i = 0; i < prompt; ++i) {
    spec.prompt.push_back(static_cast<Token>(random.below(scenario.vocab)));
  }
  if (random.permille(load.cancel)) spec.cancel_after = random.time(1, 2 * kSecond);
  if (random.permille(load.stop)) spec.stop_at = random.between(1, spec.sampling.max_tokens);
  if (random.permille(load.deadline)) spec.timeout = random.time(10 * kMillisecond, 4 * kSecond);
  if (random.permille(load.bad_row)) spec.bad_row = random.between(0, spec.sampling.max_tokens - 1);
  if (random.permille(load.killer)) {
    spec.killer_at = random.between(0, spec.sampling.max_tokens - 1);
  }
  answer(scenario, spec);
  return spec;
}

}  // namespace baton::sim
