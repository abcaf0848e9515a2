// What is said of a checkpoint with weights that are no numbers. Shared by all backends.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "workers/cpu/packing.h"

namespace baton {

/// Throws ModelError "NAME: element INDEX is nan": `name` is the file and the tensor.
[[noreturn]] void refuse_element(const std::string& name, std::int64_t index, float value);

/// Throws ModelError if an element of `matrix` is not finite, by its `name`.
void check_finite(const cpu::MatrixSource& matrix);

/// The same for what a packing found.
void check_finite(const std::optional<cpu::NotFinite>& found);

}  // namespace baton
