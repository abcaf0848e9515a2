// A counter-based random generator: the number follows from a key and a counter, there is no state.
#pragma once

#include <array>
#include <cstdint>

namespace baton {

/// Philox4x32-10 of Salmon, Moraes, Dror and Shaw, "Parallel Random Numbers: As Easy as 1, 2, 3"
/// (SC 2011): ten rounds of two 32 x 32 -> 64 multiplications.
constexpr std::array<std::uint32_t, 4> philox4x32(std::array<std::uint32_t, 4> counter,
                                                  std::array<std::uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t a = std::uint64_t{0xD2511F53U} * counter[0];
    const std::uint64_t b = std::uint64_t{0xCD9E8D57U} * counter[2];
    counter = {
        static_cast<std::uint32_t>(b >> 32) ^ counter[1] ^ key[0], static_cast<std::uint32_t>(b),
        static_cast<std::uint32_t>(a >> 32) ^ counter[3] ^ key[1], static_cast<std::uint32_t>(a)};
    key[0] += 0x9E3779B9U;
    key[1] += 0xBB67AE85U;
  }
  return counter;
}

/// A number in [0, 1) with 53 random bits for one draw of one token: it depends on nothing else, so
/// batch-mates, chunks, restarts and hand-offs cannot change it. `position` is the index of the
/// token among the generated ones.
constexpr double uniform_draw(std::uint64_t seed, std::uint64_t position, std::uint32_t draw) {
  const std::array<std::uint32_t, 4> bits = philox4x32(
      {draw, 0, static_cast<std::uint32_t>(position), static_cast<std::uint32_t>(position >> 32)},
      {static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)});
  const std::uint64_t word = (std::uint64_t{bits[0]} << 32) | bits[1];
  return static_cast<double>(word >> 11) * 0x1p-53;
}

}  // namespace baton
