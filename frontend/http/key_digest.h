// SHA-256 of an API key: what is kept of it in memory, and what a file may have in its place.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

namespace baton {

using KeyDigest = std::array<std::uint8_t, 32>;

KeyDigest digest_of(std::string_view secret);

/// Of 64 hexadecimal digits; nothing for anything else.
std::optional<KeyDigest> parse_digest(std::string_view hex);

}  // namespace baton
