// What the readers of whole numbers with scales share (grouped_reader.cpp, packed_reader.cpp,
// expert_reader.cpp).
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

#include "workers/cpu/grouped.h"
#include "workers/cpu/thread_pool.h"

namespace baton {

/// Runs f(row) for all rows.
template <class F>
void for_each_row(cpu::ThreadPool& pool, std::int64_t rows, F&& f) {
  constexpr std::int64_t kEach = 16;
  pool.run(static_cast<int>((rows + kEach - 1) / kEach), [&](int chunk, int) {
    for (std::int64_t r = chunk * kEach; r < std::min(rows, (chunk + 1) * kEach); ++r) f(r);
  });
}

/// A matrix of this shape and type, to be filled; `name` is for errors.
inline cpu::GroupedMatrix room_of(std::int64_t out, std::int64_t in, const cpu::GroupedType& type,
                                  const std::string& name) {
  cpu::GroupedMatrix m;
  m.out = out;
  m.in = in;
  m.type = type;
  m.name = name;
  const auto groups = static_cast<std::size_t>(out * (in / type.format.group));
  m.q.resize(static_cast<std::size_t>(out * in));
  m.scale.resize(groups);
  const cpu::Second second = type.format.second;
  if (second == cpu::Second::zero || second == cpu::Second::offset) m.second.resize(groups);
  return m;
}

}  // namespace baton
