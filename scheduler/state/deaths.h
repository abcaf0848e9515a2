// What workers' deaths say about a request. Plain values; the rules are in blame.h.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "ipc/fault_points.h"

namespace baton {

/// What a worker does for a request. A death is counted for the kind of work that it interrupted,
/// and only progress in that kind clears it: a prompt that is computed again says nothing about the
/// decode step that killed the worker before.
enum class Stage : std::uint8_t { prefill, decode, pull, compile };
constexpr std::size_t kStages = 4;

inline const char* to_string(Stage stage) {
  switch (stage) {
    case Stage::prefill:
      return "prefill";
    case Stage::decode:
      return "decode";
    case Stage::pull:
      return "pull";
    case Stage::compile:
      return "compile";
  }
  return "unknown";
}

/// Tokens decoded since its last death that clear a request of all of them. Few enough that a long
/// request on a host where workers die of other causes is not ended by their sum, and so many that
/// one who kills a worker at every other token is.
constexpr std::uint32_t kTokensThatClear = 64;

struct Deaths {
  std::array<std::uint32_t, kStages> in{};  // since the stage last got on
  std::uint32_t total = 0;            // since kTokensThatClear tokens were last decoded in peace
  std::uint32_t alone = 0;            // of these, with nobody else at work on the worker
  std::uint32_t peaceful_tokens = 0;  // decoded since the last one
  std::array<std::uint32_t, kStages>
      progress{};  // times that each stage got on; tells a late death's noise

  std::uint32_t of(Stage stage) const { return in[static_cast<std::size_t>(stage)]; }
  std::uint32_t times(Stage stage) const { return progress[static_cast<std::size_t>(stage)]; }
  /// The stage got on: a prompt was computed, a token decoded, a hand-off completed, a grammar
  /// compiled.
  void got_on(Stage stage) {
    if (fault(Fault::any_progress_clears)) in = {};
    in[static_cast<std::size_t>(stage)] = 0;
    ++progress[static_cast<std::size_t>(stage)];
    if (stage == Stage::decode && total != 0 && ++peaceful_tokens >= kTokensThatClear) {
      total = alone = peaceful_tokens = 0;
    }
  }
  /// A worker died in that stage. `most`: counts stop there.
  void add(Stage stage, std::uint32_t most_in_stage, std::uint32_t most) {
    std::uint32_t& count = in[static_cast<std::size_t>(stage)];
    if (count < most_in_stage) ++count;
    if (total < most) ++total;
    peaceful_tokens = 0;
  }
};

/// Of one grammar, whoever has it.
struct GrammarDeaths {
  std::uint32_t count = 0;  // of workers that compiled it, in a row
  std::uint32_t alone = 0;  // of these, with nothing else at work on the worker
  std::int64_t last = 0;    // TimeNs of the last one
};

}  // namespace baton
