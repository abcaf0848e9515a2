// Which handler a method and a path lead to. Pure, and const: all threads ask at once.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "frontend/http/client_connection.h"
#include "frontend/http/http_framing.h"

namespace baton {

/// One route. In `path` a part such as ":id" stands for any; HEAD follows GET.
struct HttpRoute {
  std::string method;
  std::string path;
  std::string name;  // for metrics
  /// Runs on whichever thread read the request. Must lead to one reply through the loop.
  std::function<void(const std::shared_ptr<ClientConnection>&, HttpRequest)> handle;
};

/// Whether `path` is one that a route stands for: see HttpRoute::path and RouteTable::find().
bool path_fits(std::string_view route, std::string_view path);

class RouteTable {
 public:
  explicit RouteTable(std::vector<HttpRoute> routes) : routes_(std::move(routes)) {}

  struct Found {
    const HttpRoute* route = nullptr;
    bool known_method = true;  // false: this is no method of HTTP's that anybody here has heard of
    std::string allowed;  // without a route: the methods that the path knows; "": an unknown path
  };
  /// `path` without its query; slashes that stand in a row count as one, one at the end as none.
  Found find(std::string_view method, std::string_view path) const;

 private:
  std::vector<HttpRoute> routes_;
};

}  // namespace baton
