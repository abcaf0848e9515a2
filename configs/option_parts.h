// Options that are several numbers, each with a name: "prefill=2048,decode=512"; in a file also a
// map. One word stands for all of them at once. Private to configs/.
#pragma once

#include <string>
#include <type_traits>

#include "configs/config.h"
#include "ipc/status.h"

namespace baton {

template <typename T>
constexpr bool kHasParts = std::is_same_v<T, TokenBudget> || std::is_same_v<T, LocalPrefill>;

/// "512", the same for every role, or some of "prefill=2048,decode=512,mixed=8192"; the others stay
/// as they were.
Status set_parts(TokenBudget& value, const std::string& text, bool quoted);
/// "never", or some of "tokens=128,cached=0.6,wait_ms=60"; the others stay as they were.
Status set_parts(LocalPrefill& value, const std::string& text, bool quoted);

/// The value as set_parts reads it.
std::string parts_text(const TokenBudget& value);
std::string parts_text(const LocalPrefill& value);

/// What it may be. The value itself is not looked at.
std::string parts_bounds(const TokenBudget& value);
std::string parts_bounds(const LocalPrefill& value);

}  // namespace baton
