// Every dialect there is, by the name that the configuration uses.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "frontend/core/dialect.h"

namespace baton {

/// In the order of configs/dialects.h. The objects live as long as the process.
const std::vector<const Dialect*>& all_dialects();

/// nullptr: there is no such dialect.
const Dialect* dialect_named(std::string_view name);

/// `names` must be known, as load_config sees to.
std::vector<const Dialect*> dialects_named(const std::vector<std::string>& names);

}  // namespace baton
