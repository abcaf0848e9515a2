// Weights that are no numbers: one of them makes every answer nonsense.
#pragma once

#include <cstddef>
#include <cstdint>

#include "workers/cpu/packing.h"

namespace baton::cpu {

/// The first of `count` elements that is NaN or infinite; `count` if there is none. At memory's
/// speed.
std::int64_t first_not_finite(const std::byte* data, ElementType type, std::int64_t count);

}  // namespace baton::cpu
