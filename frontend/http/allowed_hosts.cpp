#include "frontend/http/allowed_hosts.h"

#include <arpa/inet.h>

#include <algorithm>
#include <utility>

namespace baton {

bool is_loopback_host(std::string_view host) {
  if (host.ends_with('.')) host.remove_suffix(1);  // the root of all names
  if (host == "localhost" || host.ends_with(".localhost") || host == "[::1]") return true;
  // An address to the letter: 127.0.0.1.example.com is a name like any other.
  in_addr address{};
  return inet_pton(AF_INET, std::string(host).c_str(), &address) == 1 && host.starts_with("127.");
}

AllowedHosts::AllowedHosts(std::vector<std::string> names, bool keys)
    : names_(std::move(names)), keys_(keys) {}

bool AllowedHosts::allow(std::string_view host, bool local) const {
  if (host.empty() || is_loopback_host(host)) return true;
  if (names_.empty()) return keys_ || !local;
  return std::any_of(names_.begin(), names_.end(),
                     [host](const std::string& name) { return name == "*" || name == host; });
}

}  // namespace baton
