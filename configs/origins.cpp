#include "configs/origins.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <utility>

namespace baton {
namespace {

constexpr std::string_view kLetters = "abcdefghijklmnopqrstuvwxyz";
constexpr std::string_view kInScheme = "abcdefghijklmnopqrstuvwxyz0123456789+-.";
constexpr std::string_view kInHost = "abcdefghijklmnopqrstuvwxyz0123456789-._";
constexpr std::string_view kInAddress = "abcdef0123456789:.";  // between the brackets of IPv6

bool holds_only(std::string_view text, std::string_view letters) {
  return !text.empty() && text.find_first_not_of(letters) == std::string_view::npos;
}

bool is_host(std::string_view text) {
  if (!text.starts_with('[')) return holds_only(text, kInHost);
  return text.ends_with(']') && holds_only(text.substr(1, text.size() - 2), kInAddress);
}

bool is_port(std::string_view text, std::string_view scheme) {
  std::uint16_t port = 0;
  const auto read = std::from_chars(text.data(), text.data() + text.size(), port);
  const bool number = read.ec == std::errc() && read.ptr == text.data() + text.size();
  const int own = scheme == "http" ? 80 : scheme == "https" ? 443 : 0;
  return number && port != own && text.front() != '0';
}

std::string without_blanks(std::string_view text) {
  while (text.starts_with(' ')) text.remove_prefix(1);
  while (text.ends_with(' ')) text.remove_suffix(1);
  return std::string(text);
}

}  // namespace

bool is_origin(std::string_view text) {
  const std::size_t mark = text.find("://");
  if (mark == std::string_view::npos || text.size() > kMaxOriginBytes) return false;
  const std::string_view scheme = text.substr(0, mark);
  std::string_view host = text.substr(mark + 3);
  const std::size_t colon = host.rfind(':');
  if (colon != std::string_view::npos && !host.ends_with(']')) {
    if (!is_port(host.substr(colon + 1), scheme)) return false;
    host = host.substr(0, colon);
  }
  return holds_only(scheme, kInScheme) && kLetters.find(scheme.front()) != std::string_view::npos &&
         is_host(host);
}

Result<std::vector<std::string>> parse_origins(std::string_view text) {
  std::vector<std::string> origins;
  if (text.empty()) return origins;
  for (bool more = true; more;) {
    const std::size_t comma = std::min(text.find(','), text.size());
    std::string origin = without_blanks(text.substr(0, comma));
    more = comma < text.size();
    text.remove_prefix(more ? comma + 1 : comma);
    if (origin != "*" && !is_origin(origin)) {
      return invalid("is '" + origin.substr(0, 64) +
                     "'; it may be * or origins as browsers send them: scheme://host or "
                     "scheme://host:port in lower case, without a path, and without :80 of http or "
                     ":443 of https");
    }
    if (std::find(origins.begin(), origins.end(), origin) != origins.end()) {
      return invalid("names " + origin + " twice");
    }
    if (origins.size() == kMaxOrigins) {
      return invalid("has more than " + std::to_string(kMaxOrigins) + " origins");
    }
    origins.push_back(std::move(origin));
  }
  if (origins.size() > 1 && std::find(origins.begin(), origins.end(), "*") != origins.end()) {
    return invalid("names origins beside *, which means all of them");
  }
  return origins;
}

}  // namespace baton
