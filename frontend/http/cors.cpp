#include "frontend/http/cors.h"

namespace baton {
namespace {

constexpr const char* kAll = "*";
// Chrome keeps the answer to a preflight no longer.
constexpr const char* kMaxAgeSeconds = "7200";

HttpHeaders allowing(const std::string& origin) {
  // All of them: dialects have headers of their own.
  return {{"Access-Control-Allow-Origin", origin}, {"Access-Control-Expose-Headers", kAll}};
}

}  // namespace

Cors::Cors(const std::vector<std::string>& allowed_origins) {
  for (const std::string& origin : allowed_origins) {
    if (origin == kAll) {
      all_ = true;
      // Whoever asks gets the same, so that a cache may keep it for everybody.
      others_ = allowing(kAll);
      return;
    }
    // The origin is the list's own, nothing of what the client wrote.
    HttpHeaders& headers = allowed_[origin] = allowing(origin);
    headers.emplace_back("Vary", "Origin");
  }
  if (!allowed_.empty()) others_ = {{"Vary", "Origin"}};
}

const HttpHeaders& Cors::reply_headers(const HttpRequest& request) const {
  const std::string* origin = request.header("origin");
  const auto found = origin == nullptr ? allowed_.end() : allowed_.find(*origin);
  return found == allowed_.end() ? others_ : found->second;
}

bool Cors::refuses(const HttpRequest& request) const {
  const std::string* site = request.header("sec-fetch-site");
  if (all_ || site == nullptr || *site != "cross-site" || request.method == "OPTIONS") return false;
  const std::string* origin = request.header("origin");
  if (origin != nullptr) return !allowed_.contains(*origin);
  const std::string* mode = request.header("sec-fetch-mode");
  const bool follows_link = mode != nullptr && *mode == "navigate";
  return !follows_link || (request.method != "GET" && request.method != "HEAD");
}

HttpHeaders Cors::preflight_headers(const HttpRequest& request, const std::string& methods) const {
  const std::string* origin = request.header("origin");
  const bool preflight = request.method == "OPTIONS" && origin != nullptr &&
                         request.header("access-control-request-method") != nullptr;
  if (!preflight || (!all_ && !allowed_.contains(*origin))) return {};
  // For browsers * is every header but Authorization; those that do not know it (Safari
  // before 15.4) read the names. The openai client alone sends a dozen of its own.
  return {{"Access-Control-Allow-Methods", methods},
          {"Access-Control-Allow-Headers", "Authorization, Content-Type, X-Request-Id, *"},
          {"Access-Control-Max-Age", kMaxAgeSeconds}};
}

}  // namespace baton
