#include "bench/policy_loads.h"

#include <algorithm>
#include <cmath>
#include <random>

namespace baton {

namespace {

/// Random numbers that every standard library draws alike.
class Draws {
 public:
  explicit Draws(std::uint64_t seed) : engine_(seed) {}
  /// Above 0, up to 1.
  double uniform() { return static_cast<double>((engine_() >> 11U) + 1) / 9007199254740992.0; }
  std::uint32_t below(std::uint32_t n) { return static_cast<std::uint32_t>(engine_() % n); }
  /// Around `median`, with the long tail that prompts and answers have.
  std::uint32_t length(double median, double sigma, double least, double most) {
    constexpr double kTwoPi = 6.283185307179586;
    const double radius = std::sqrt(-2 * std::log(uniform()));
    const double normal = radius * std::cos(kTwoPi * uniform());
    return static_cast<std::uint32_t>(std::clamp(median * std::exp(sigma * normal), least, most));
  }

 private:
  std::mt19937_64 engine_;
};

}  // namespace

Requests questions(std::uint64_t seed, std::uint32_t count, double rate) {
  Draws draws(seed);
  Requests requests(count);
  double now = 0;
  for (VirtualRequest& request : requests) {
    now += -std::log(draws.uniform()) / rate;
    request.arrival = static_cast<TimeNs>(now * 1e9);
    request.input = draws.length(300, 0.9, 16, 4000);
    request.output = draws.length(150, 0.7, 4, 1000);
    request.limit = 1024;
  }
  return requests;
}

Requests chats(std::uint64_t seed, std::uint32_t count, double rate) {
  constexpr Token kSaid = 1200;
  Draws draws(seed + 1);
  Requests requests = questions(seed, count, rate);
  for (std::size_t i = 0; i < requests.size(); ++i) {
    const auto chat = static_cast<Token>(draws.below(40));
    const auto own = static_cast<Token>(std::min(requests[i].input, 400U));
    for (Token t = 0; t < kSaid; ++t) requests[i].prompt.push_back(1000 * (1 + chat) + t % 1000);
    for (Token t = 0; t < own; ++t) requests[i].prompt.push_back(100'000 + static_cast<Token>(i));
  }
  return requests;
}

Requests prompts_of(std::uint64_t seed, std::uint32_t count, double rate,
                    const std::vector<PromptKind>& kinds) {
  Draws draws(seed);
  Requests requests(count);
  double now = 0;
  for (VirtualRequest& request : requests) {
    now += -std::log(draws.uniform()) / rate;
    const PromptKind& kind = kinds[draws.below(static_cast<std::uint32_t>(kinds.size()))];
    request.arrival = static_cast<TimeNs>(now * 1e9);
    request.input = draws.length(kind.median, kind.sigma, kind.least, kind.most);
    request.output = draws.length(kind.reply, 0.7, 4, 1000);
    request.limit = 1024;
  }
  return requests;
}

Requests shifting(std::uint64_t seed, std::uint32_t count, double workers) {
  struct Kind {
    double rate, input, output;
  };
  const Kind prompts = {5.5 * workers, 4000, 64};
  const Kind replies = {6.25 * workers, 200, 1500};
  const double phase = 60.0 * count / 2000;
  Draws draws(seed);
  Requests requests;
  double now = 0;
  for (int i = 0; i < 3; ++i) {
    const Kind& kind = i == 1 ? replies : prompts;
    for (;;) {
      now += -std::log(draws.uniform()) / kind.rate;
      if (now >= phase * (i + 1)) break;
      VirtualRequest& request = requests.emplace_back();
      request.arrival = static_cast<TimeNs>(now * 1e9);
      request.input = draws.length(kind.input, 0.3, 16, 12'000);
      request.output = draws.length(kind.output, 0.3, 4, 6000);
      request.limit = 6000;
    }
    now = phase * (i + 1);
  }
  return requests;
}

}  // namespace baton
