#include "frontend/http/route_table.h"

#include <algorithm>
#include <array>

namespace baton {
namespace {

constexpr std::array<std::string_view, 9> kMethods = {
    "GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT"};

/// Whether a route's path, in which a part that begins with ':' stands for any, is this one.
bool matches(std::string_view route, std::string_view path) {
  while (!route.empty() && !path.empty()) {
    const std::string_view wanted = route.substr(0, route.find('/', 1));
    const std::string_view given = path.substr(0, path.find('/', 1));
    const bool any = wanted.starts_with("/:") && given.size() > 1;
    if (!any && wanted != given) return false;
    route.remove_prefix(wanted.size());
    path.remove_prefix(given.size());
  }
  return route.empty() && path.empty();
}

std::string tidied(std::string_view path) {
  std::string made;
  for (const char c : path) {
    if (c != '/' || made.empty() || made.back() != '/') made.push_back(c);
  }
  if (made.size() > 1 && made.back() == '/') made.pop_back();
  return made;
}

}  // namespace

bool path_fits(std::string_view route, std::string_view path) {
  return matches(route, tidied(path));
}

RouteTable::Found RouteTable::find(std::string_view method, std::string_view path) const {
  Found found;
  found.known_method = std::find(kMethods.begin(), kMethods.end(), method) != kMethods.end();
  const std::string wanted = tidied(path);
  for (const HttpRoute& route : routes_) {
    if (!matches(route.path, wanted)) continue;
    const bool get = route.method == "GET";
    if (method == route.method || (get && method == "HEAD")) {
      found.route = &route;
      return found;
    }
    if (!found.allowed.empty()) found.allowed += ", ";
    found.allowed += get ? "GET, HEAD" : route.method;
  }
  if (!found.allowed.empty()) found.allowed += ", OPTIONS";
  return found;
}

}  // namespace baton
