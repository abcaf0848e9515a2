// Random matrices of whole numbers, packed, for the tests of what multiplies with them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
#include <vector>

#include "workers/cpu/grouped.h"
#include "workers/cpu/packing.h"

namespace baton::cpu {

inline ThreadPool& packing_threads() {
  static ThreadPool pool(3);
  return pool;
}

/// Those of this CPU.
inline std::vector<Isa> vector_isas() {
  std::vector<Isa> found = {Isa::avx2};
  if (isa_supported(Isa::avx512)) found.push_back(Isa::avx512);
  return found;
}

/// Scales are f16 numbers where the type says so. With `ends`, every fifth row is of nothing but
/// one end of the range: where sums of few bits would saturate.
inline GroupedMatrix random_matrix(std::int64_t out, std::int64_t in, const GroupedType& type,
                                   std::uint32_t seed, bool ends = false) {
  std::mt19937 random(seed);
  const auto between = [&](int low, int high) {
    return low + static_cast<int>(random() % static_cast<unsigned>(high - low + 1));
  };
  const bool four = type.type == WeightType::int4;
  const int low = four ? 0 : -128;
  const int high = four ? 15 : 127;
  GroupedMatrix m;
  m.out = out;
  m.in = in;
  m.type = type;
  for (std::int64_t i = 0; i < out * in; ++i) {
    const std::int64_t row = i / in;
    const int q = ends && row % 5 == 0 ? (row % 2 == 0 ? low : high) : between(low, high);
    m.q.push_back(static_cast<std::int8_t>(q));
  }
  for (std::int64_t i = 0; i < out * (in / type.format.group); ++i) {
    // 1/8192 of a whole number up to 1,023: a number of f16; with 1/3 more it is none.
    const float scale = static_cast<float>(between(-1023, 1023)) / 8192.0F;
    m.scale.push_back(type.format.half_scales ? scale : scale / 3.0F);
    if (type.format.second == Second::zero)
      m.second.push_back(static_cast<float>(between(low, four ? 16 : 127)));
    if (type.format.second == Second::offset)
      m.second.push_back(static_cast<float>(between(-100, 100)) / 7.0F);
  }
  return m;
}

struct Packed {
  std::vector<std::byte> memory;
  PackedMatrix matrix;

  Packed(std::span<const GroupedMatrix> parts, bool paired, const GroupedType& type) {
    std::int64_t out = 0;
    for (const GroupedMatrix& part : parts) out += part.out;
    if (paired) out = parts.front().out;
    const std::int64_t panels = (paired ? 2 : 1) * panels_for(out);
    const std::int64_t in = parts.front().in;
    memory.resize(static_cast<std::size_t>(panels * panel_bytes(in, type.type, type.format)));
    pack_grouped(parts, paired, type, packing_threads(), memory.data());
    matrix = {memory.data(),
              type.type,
              static_cast<int>(panels),
              static_cast<int>(in),
              static_cast<int>(out),
              paired,
              type.format};
  }
};

}  // namespace baton::cpu
