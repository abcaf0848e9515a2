// What each URL does: on Pistache's threads, up to the job for the loop. Here requests are parsed and
// tokenised, so that the loop only moves tokens.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "frontend/http_server.h"
#include "frontend/jobs.h"
#include "frontend/served_model.h"
#include "ipc/types.h"

namespace baton {

/// What the loop tells Pistache's threads.
struct SharedFacts {
  std::atomic<std::uint32_t> max_context{0};  // 0: no scheduler has said yet
  std::atomic<bool> draining{false};
};

struct RouteOptions {
  ServedModel model;
  TimeNs default_timeout = 600 * kSecond;
  TimeNs max_timeout = 3600 * kSecond;
  std::int64_t created = 0;      // unix seconds at the start
  std::uint64_t incarnation = 0; // makes request ids unique
};

/// Thread-safe; must outlive the server that calls its routes.
class Routes {
 public:
  Routes(RouteOptions options, const SharedFacts& facts, JobQueue& jobs);

  std::vector<HttpRoute> table();
  HttpEvents events();

 private:
  using Connection = std::shared_ptr<ClientConnection>;
  using Parse = ParseOutcome (*)(std::string_view, const RequestContext&, const ServedModel&);

  void generate(const Connection& connection, const HttpRequest& request, const char* route,
                Parse parse);
  void live(const Connection& connection, const HttpRequest& request, const char* route,
            LiveRoute what);
  void models(const Connection& connection, const HttpRequest& request);
  void model(const Connection& connection, const HttpRequest& request);
  void unrouted(const Connection& connection, const HttpRequest& request,
                const std::string& allowed);
  void refused(const Connection& connection, const HttpRequest& request,
               const FramingFault& fault);

  bool frame_of(const Connection& connection, const HttpRequest& request, ReplyFrame* frame);
  std::string new_request_id();
  void reply(const Connection& connection, ReplyFrame frame, const char* route, HttpReply reply);
  void fail(const Connection& connection, ReplyFrame frame, const char* route, HttpError error);
  void post(Job job);

  const RouteOptions options_;
  const SharedFacts& facts_;
  JobQueue& jobs_;
  std::atomic<std::uint64_t> next_request_{1};
};

}  // namespace baton
