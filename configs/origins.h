// The origins of web pages that frontend.allowed_origins may name, and the hosts of
// frontend.allowed_hosts.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "ipc/status.h"

namespace baton {

constexpr std::size_t kMaxOrigins = 64;
constexpr std::size_t kMaxOriginBytes = 256;

/// An origin to the letter as browsers send it, so that a comparison of bytes finds it:
/// scheme://host[:port] in lower case, without the port that the scheme has anyway. "null" is none:
/// any page can give itself that origin.
bool is_origin(std::string_view text);

/// "*" or "a,b" with up to kMaxOrigins origins; "" is none. The error says what the value is and
/// what it may be, without the key.
Result<std::vector<std::string>> parse_origins(std::string_view text);

/// "*" or "a,b" with up to kMaxOrigins names or addresses of hosts in lower case, without a port,
/// IPv6 in brackets; "" is none. The error as of parse_origins().
Result<std::vector<std::string>> parse_hosts(std::string_view text);

}  // namespace baton
