// Under which names this server may be asked. A page whose own name its owner lets resolve to
// 127.0.0.1 is of the same origin as a server there, as the browser sees it (DNS rebinding); only
// the Host header tells the two apart. Pure.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace baton {

/// `host` as host_of() gives it: localhost, *.localhost, 127.0.0.0/8 or [::1].
bool is_loopback_host(std::string_view host);

class AllowedHosts {
 public:
  /// `names`: "*", or hosts in lower case (frontend.allowed_hosts). Empty: all, where `keys`
  /// protect the server or the port is open to the network anyway.
  AllowedHosts(std::vector<std::string> names = {}, bool keys = false);

  /// `host` as host_of() gives it; empty (an HTTP/1.0 client's, no browser's) is allowed. `local`:
  /// the port listens on the loopback alone.
  bool allow(std::string_view host, bool local) const;

 private:
  std::vector<std::string> names_;
  bool keys_ = false;
};

}  // namespace baton
