// What replies tell browsers about web pages of other origins (CORS). Pure.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "frontend/http/http_framing.h"
#include "frontend/http/http_reply.h"

namespace baton {

/// Never allows credentials: an API key comes in a header that the page itself sets, and a browser
/// has nothing to add to it.
class Cors {
 public:
  /// No page of another origin may read a reply.
  Cors() = default;
  /// "*", or origins as browsers send them (configs/origins.h).
  explicit Cors(const std::vector<std::string>& allowed_origins);

  /// Whether pages of all origins may read replies.
  bool every_page() const { return all_; }
  /// What every reply to `request` says, be it an error or a stream. It lives as long as this.
  const HttpHeaders& reply_headers(const HttpRequest& request) const;
  /// Whether a page of another site asks that may not read the reply, by the browser's own word
  /// (Sec-Fetch-Site). A link that somebody follows here is none, and a preflight harms nothing.
  bool refuses(const HttpRequest& request) const;
  /// What the reply to a preflight says besides, about a path with these methods. Empty if
  /// `request` is none, or if the page's origin is not allowed.
  HttpHeaders preflight_headers(const HttpRequest& request, const std::string& methods) const;

 private:
  bool all_ = false;
  std::map<std::string, HttpHeaders> allowed_;  // by origin
  HttpHeaders others_;                          // what pages of every other origin get
};

}  // namespace baton
