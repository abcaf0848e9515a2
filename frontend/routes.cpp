#include "frontend/routes.h"

#include <sys/socket.h>

#include <cstdio>
#include <utility>

#include "frontend/http_error.h"
#include "frontend/lab_api.h"
#include "frontend/openai_api.h"

namespace baton {
namespace {

constexpr const char* kNoRoute = "none";

std::string header_or(const HttpRequest& request, std::string_view name, std::string fallback) {
  const std::string* value = request.header(name);
  return value == nullptr ? std::move(fallback) : *value;
}

}  // namespace

Routes::Routes(RouteOptions options, const SharedFacts& facts, JobQueue& jobs)
    : options_(std::move(options)), facts_(facts), jobs_(jobs) {}

std::vector<HttpRoute> Routes::table() {
  std::vector<HttpRoute> routes;
  const auto add_generation = [&](const char* path, Parse parse) {
    routes.push_back({"POST", path, path, [=, this](const Connection& c, HttpRequest request) {
                        generate(c, request, path, parse);
                      }});
  };
  const auto add_live = [&](const char* path, LiveRoute what) {
    routes.push_back({"GET", path, path, [=, this](const Connection& c, HttpRequest request) {
                        live(c, request, path, what);
                      }});
  };
  add_generation("/generate", parse_generate);
  add_generation("/v1/completions", parse_completion);
  add_generation("/v1/chat/completions", parse_chat_completion);
  add_live("/", LiveRoute::index);
  add_live("/health", LiveRoute::health);
  add_live("/metrics", LiveRoute::metrics);
  routes.push_back({"GET", "/v1/models", "/v1/models",
                    [this](const Connection& c, HttpRequest request) { models(c, request); }});
  routes.push_back({"GET", "/v1/models/:id", "/v1/models",
                    [this](const Connection& c, HttpRequest request) { model(c, request); }});
  return routes;
}

HttpEvents Routes::events() {
  HttpEvents events;
  events.unrouted = [this](const Connection& c, HttpRequest request, const std::string& allowed) {
    unrouted(c, request, allowed);
  };
  events.refused = [this](const Connection& c, const HttpRequest& request,
                          const FramingFault& fault) { refused(c, request, fault); };
  events.expects_continue = [this](const Connection& c) {
    Job job;
    job.connection = c;
    job.what = Interim{};
    post(std::move(job));
  };
  return events;
}

std::string Routes::new_request_id() {
  char id[64];
  std::snprintf(id, sizeof id, "%llx-%llx", static_cast<unsigned long long>(options_.incarnation),
                static_cast<unsigned long long>(next_request_.fetch_add(1)));
  return id;
}

/// False: the request's own id is not acceptable, and the reply that says so is on its way.
bool Routes::frame_of(const Connection& connection, const HttpRequest& request, ReplyFrame* frame) {
  frame->keep_alive = request.keep_alive;
  frame->head_only = request.method == "HEAD";
  frame->minor = request.minor;
  const std::string* given = request.header("x-request-id");
  if (given == nullptr) {
    frame->request_id = new_request_id();
    return true;
  }
  if (valid_request_id(*given)) {
    frame->request_id = *given;
    return true;
  }
  frame->request_id = new_request_id();
  fail(connection, *frame, kNoRoute,
       http_error(400, "X-Request-Id must be 1 to 128 characters out of A-Z a-z 0-9 . _ : -",
                  "bad_request_id", "X-Request-Id"));
  return false;
}

void Routes::generate(const Connection& connection, const HttpRequest& request, const char* route,
                      Parse parse) {
  ReplyFrame frame;
  if (!frame_of(connection, request, &frame)) return;
  const TimeNs received = now_ns();
  RequestContext context;
  context.request_id = frame.request_id;
  context.unix_seconds = wall_ns() / kSecond;
  context.max_context = facts_.max_context.load(std::memory_order_relaxed);
  context.default_timeout = options_.default_timeout;
  context.max_timeout = options_.max_timeout;
  // The body is read as JSON whatever its Content-Type says: curl -d calls everything a form.
  ParseOutcome outcome = parse(request.body, context, options_.model);
  if (auto* error = std::get_if<HttpError>(&outcome)) {
    fail(connection, std::move(frame), route, std::move(*error));
    return;
  }
  Job job;
  job.connection = connection;
  job.frame = std::move(frame);
  job.route = route;
  job.received = received;
  job.what = Generation{std::move(std::get<ParsedRequest>(outcome)), context.unix_seconds};
  post(std::move(job));
}

void Routes::live(const Connection& connection, const HttpRequest& request, const char* route,
                  LiveRoute what) {
  ReplyFrame frame;
  if (!frame_of(connection, request, &frame)) return;
  Job job;
  job.connection = connection;
  job.frame = std::move(frame);
  job.route = route;
  job.received = now_ns();
  job.what = LiveRequest{what, header_or(request, "accept", ""), header_or(request, "host", "")};
  post(std::move(job));
}

void Routes::models(const Connection& connection, const HttpRequest& request) {
  ReplyFrame frame;
  if (!frame_of(connection, request, &frame)) return;
  HttpReply whole;
  whole.body = models_body(options_.model, options_.created, facts_.max_context.load());
  reply(connection, std::move(frame), "/v1/models", std::move(whole));
}

void Routes::model(const Connection& connection, const HttpRequest& request) {
  ReplyFrame frame;
  if (!frame_of(connection, request, &frame)) return;
  const std::string_view path = request.path();
  auto outcome = model_body(path.substr(path.rfind('/') + 1), options_.model, options_.created,
                            facts_.max_context.load());
  if (auto* error = std::get_if<HttpError>(&outcome)) {
    fail(connection, std::move(frame), "/v1/models", std::move(*error));
    return;
  }
  HttpReply whole;
  whole.body = std::move(std::get<std::string>(outcome));
  reply(connection, std::move(frame), "/v1/models", std::move(whole));
}

void Routes::unrouted(const Connection& connection, const HttpRequest& request,
                      const std::string& allowed) {
  ReplyFrame frame;
  if (!frame_of(connection, request, &frame)) return;
  const std::string path(request.path().substr(0, 200));
  if (allowed.empty()) {
    fail(connection, std::move(frame), kNoRoute,
         http_error(404, "there is no " + path + " here; GET / lists what there is", "not_found"));
    return;
  }
  const HttpError error = http_error(
      405, request.method + " is not possible on " + path + "; allowed: " + allowed,
      "method_not_allowed");
  HttpReply whole;
  whole.status = error.status;
  whole.body = error.body;
  whole.headers.emplace_back("Allow", allowed);
  frame.keep_alive = false;
  reply(connection, std::move(frame), kNoRoute, std::move(whole));
}

void Routes::refused(const Connection& connection, const HttpRequest& request,
                     const FramingFault& fault) {
  ReplyFrame frame;
  frame.head_only = request.method == "HEAD";
  frame.minor = request.minor;
  const std::string* given = request.header("x-request-id");
  frame.request_id =
      given != nullptr && valid_request_id(*given) ? *given : new_request_id();
  fail(connection, std::move(frame), kNoRoute,
       http_error(fault.status, fault.message, fault.code));
}

/// Every error closes the connection: what follows it on the wire cannot be trusted to be a request.
void Routes::fail(const Connection& connection, ReplyFrame frame, const char* route,
                  HttpError error) {
  HttpReply whole;
  whole.status = error.status;
  whole.body = std::move(error.body);
  if (error.retry_after_s > 0) {
    whole.headers.emplace_back("Retry-After", std::to_string(error.retry_after_s));
  }
  frame.keep_alive = false;
  reply(connection, std::move(frame), route, std::move(whole));
}

void Routes::reply(const Connection& connection, ReplyFrame frame, const char* route,
                   HttpReply whole) {
  Job job;
  job.connection = connection;
  job.frame = std::move(frame);
  job.route = route;
  job.received = now_ns();
  job.what = std::move(whole);
  post(std::move(job));
}

void Routes::post(Job job) {
  const Connection connection = job.connection;
  if (jobs_.push(std::move(job))) return;
  connection->begin_closing(now_ns());
  shutdown(connection->fd(), SHUT_RDWR);
}

}  // namespace baton
