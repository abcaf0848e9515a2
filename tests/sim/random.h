// The simulator's own random numbers: one 64-bit seed, the same run with every library and
// compiler.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ipc/types.h"

namespace baton::sim {

/// splitmix64's finaliser (Steele, Lea, Flood 2014): a good 64-bit mixing function.
constexpr std::uint64_t mix(std::uint64_t x) {
  x += 0x9E3779B97F4A7C15ULL;
  x = (x ^ (x >> 30U)) * 0xBF58476D1CE4E5B9ULL;
  x = (x ^ (x >> 27U)) * 0x94D049BB133111EBULL;
  return x ^ (x >> 31U);
}

class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(mix(seed)) {}

  std::uint64_t next() {
    state_ += 0x9E3779B97F4A7C15ULL;
    return mix(state_);
  }
  /// 0 .. n-1; 0 for n == 0. The bias of a 128-bit product is far below anything seen here.
  std::uint64_t below(std::uint64_t n) {
    return static_cast<std::uint64_t>((static_cast<Wide>(next()) * n) >> 64U);
  }
  /// lo .. hi, both included.
  std::uint32_t between(std::uint32_t lo, std::uint32_t hi) {
    return lo + static_cast<std::uint32_t>(below(std::uint64_t{hi} - lo + 1));
  }
  TimeNs time(TimeNs lo, TimeNs hi) {
    return lo + static_cast<TimeNs>(below(static_cast<std::uint64_t>(hi - lo) + 1));
  }
  bool permille(std::uint32_t p) { return p != 0 && below(1000) < p; }
  template <typename T, std::size_t n>
  T pick(const T (&choices)[n]) {
    return choices[below(n)];
  }

 private:
  __extension__ using Wide = unsigned __int128;
  std::uint64_t state_;
};

}  // namespace baton::sim
