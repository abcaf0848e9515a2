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

namespace {

/// "*" or "a,b"; `wrong` says of what may not stand in it what may.
Result<std::vector<std::string>> parse_list(std::string_view text, bool (*good)(std::string_view),
                                            const char* things, const char* wrong) {
  std::vector<std::string> list;
  if (text.empty()) return list;
  for (bool more = true; more;) {
    const std::size_t comma = std::min(text.find(','), text.size());
    std::string one = without_blanks(text.substr(0, comma));
    more = comma < text.size();
    text.remove_prefix(more ? comma + 1 : comma);
    if (one != "*" && !good(one)) return invalid("is '" + one.substr(0, 64) + "'; " + wrong);
    if (std::find(list.begin(), list.end(), one) != list.end()) {
      return invalid("names " + one + " twice");
    }
    if (list.size() == kMaxOrigins) {
      return invalid("has more than " + std::to_string(kMaxOrigins) + " " + things);
    }
    list.push_back(std::move(one));
  }
  if (list.size() > 1 && std::find(list.begin(), list.end(), "*") != list.end()) {
    return invalid(std::string("names ") + things + " beside *, which means all of them");
  }
  return list;
}

}  // namespace

Result<std::vector<std::string>> parse_origins(std::string_view text) {
  return parse_list(
      text, is_origin, "origins",
      "it may be * or origins as browsers send them: scheme://host or scheme://host:port in lower "
      "case, without a path, and without :80 of http or :443 of https");
}

Result<std::vector<std::string>> parse_hosts(std::string_view text) {
  const auto good = [](std::string_view host) {
    return host.size() <= kMaxOriginBytes && is_host(host);
  };
  return parse_list(text, good, "hosts",
                    "it may be * or names and addresses of hosts in lower case, without a port; "
                    "IPv6 in brackets");
}

}  // namespace baton
