// Base64 with padding (RFC 4648, section 4).
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace baton {

std::string to_base64(std::string_view bytes);
/// Nothing where `text` is no base64.
std::optional<std::string> from_base64(std::string_view text);

}  // namespace baton
