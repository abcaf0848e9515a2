// Halves of surrogate pairs in JSON: what is left of an emoji where a client cut its text in
// UTF-16. Pure.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace baton {

/// The text with "\ufffd" for each escape of a surrogate ("\ud83d") that is no half of a pair, as
/// long as before; nothing where there is none. Linear.
std::optional<std::string> without_lone_surrogates(std::string_view json);

}  // namespace baton
