#include "frontend/routes.h"

#include <sys/socket.h>

#include <cstdio>
#include <utility>

#include "frontend/http_error.h"
#include "frontend/lab_api.h"
#include "frontend/openai/openai_api.h"
#include "frontend/openai/tokenize_api.h"
#include "frontend/sse.h"

namespace baton {
namespace {

constexpr const char* kNoRoute = "none";

std::string header_or(const HttpRequest& request, std::string_view name, std::string fallback) {
  const std::string* value = request.header(name);
  return value == nullptr ? std::move(fallback) : *value;
}

}  // namespace

Routes::Routes(RouteOptions options, SharedFacts& facts, JobQueue& jobs, TemplatePool* templates)
    : options_(std::move(options)), facts_(facts), jobs_(jobs), templates_(templates) {}

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
  add_generation("/tokenize", parse_tokenize);
  add_generation("/detokenize", parse_detokenize);
  const auto add_not_served = [&](const char* path, const char* why) {
    routes.push_back({"POST", path, path, [=, this](const Connection& c, HttpRequest request) {
                        not_served(c, request, path, why);
                      }});
  };
  add_not_served("/v1/responses",
                 "this server keeps no conversations; use /v1/chat/completions, which takes the "
                 "same messages and tools");
  add_not_served("/v1/embeddings", "this server's model generates text and has no embeddings");
  routes.push_back({"GET", "/version", "/version",
                    [this](const Connection& c, HttpRequest request) { version(c, request); }});
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

/// False: the key is missing or wrong, and the reply that says so is on its way.
bool Routes::check_key(const Connection& connection, const HttpRequest& request,
                       ReplyFrame* frame) {
  if (options_.keys.open()) return true;
  const std::string* given = request.header("authorization");
  const auto key = options_.keys.find(given == nullptr ? "" : *given);
  if (key) {
    frame->api_key = static_cast<std::int32_t>(*key);
    return true;
  }
  const HttpError error = http_error(
      401,
      given == nullptr ? "no API key was given; send it as 'Authorization: Bearer <key>'"
                       : "the API key is not one of this server's",
      "invalid_api_key");
  HttpReply whole;
  whole.status = error.status;
  whole.body = error.body;
  whole.headers.emplace_back("WWW-Authenticate", "Bearer");
  frame->keep_alive = false;
  reply(connection, *frame, kNoRoute, std::move(whole));
  return false;
}

/// False: the request's own id is not acceptable, and the reply that says so is on its way.
bool Routes::frame_of(const Connection& connection, const HttpRequest& request, ReplyFrame* frame,
                      bool anybody) {
  frame->keep_alive = request.keep_alive;
  frame->head_only = request.method == "HEAD";
  frame->minor = request.minor;
  const std::string* given = request.header("x-request-id");
  if (given == nullptr) {
    frame->request_id = new_request_id();
    return anybody || check_key(connection, request, frame);
  }
  if (valid_request_id(*given)) {
    frame->request_id = *given;
    return anybody || check_key(connection, request, frame);
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
  Asker asker{connection, std::move(frame), route, now_ns(), wall_ns() / kSecond};
  RequestContext context;
  context.request_id = asker.frame.request_id;
  context.unix_seconds = asker.unix_seconds;
  context.max_context = facts_.max_context.load(std::memory_order_relaxed);
  context.max_choices = options_.max_streams;
  context.basic_sampling = facts_.basic_sampling.load(std::memory_order_relaxed);
  context.default_timeout = options_.default_timeout;
  context.max_timeout = options_.max_timeout;
  // The body is read as JSON whatever its Content-Type says: curl -d calls everything a form.
  begin(std::move(asker), parse(request.body, context, options_.model));
}

void Routes::begin(Asker asker, ParseOutcome outcome) {
  if (auto* error = std::get_if<HttpError>(&outcome)) {
    fail(asker.connection, std::move(asker.frame), asker.route, std::move(*error));
    return;
  }
  if (auto* answer = std::get_if<Answer>(&outcome)) {
    HttpReply whole;
    whole.body = std::move(answer->body);
    reply(asker.connection, std::move(asker.frame), asker.route, std::move(whole));
    return;
  }
  if (auto* chat = std::get_if<std::unique_ptr<PendingChat>>(&outcome)) {
    render(std::move(asker), std::move(*chat));
    return;
  }
  Job job;
  job.connection = std::move(asker.connection);
  job.frame = std::move(asker.frame);
  job.route = asker.route;
  job.received = asker.received;
  job.what = Generation{std::move(std::get<ParsedRequest>(outcome)), asker.unix_seconds};
  post(std::move(job));
}

void Routes::render(Asker asker, std::unique_ptr<PendingChat> chat) {
  struct Waiting {
    Asker asker;
    std::unique_ptr<PendingChat> chat;
  };
  const auto waiting = std::make_shared<Waiting>(std::move(asker), std::move(chat));
  facts_.rendering.fetch_add(1);
  const bool taken = templates_ != nullptr &&
                     templates_->render(waiting->chat->render_request(),
                                        [this, waiting](const Result<std::string>& rendered) {
                                          begin(std::move(waiting->asker),
                                                waiting->chat->finish(rendered, options_.model));
                                          facts_.rendering.fetch_sub(1);
                                        });
  if (taken) return;
  facts_.rendering.fetch_sub(1);
  fail(waiting->asker.connection, std::move(waiting->asker.frame), waiting->asker.route,
       http_error(Status(ErrorCode::queue_full,
                         "too many chats wait for the renderer of chat templates")));
}

void Routes::live(const Connection& connection, const HttpRequest& request, const char* route,
                  LiveRoute what) {
  ReplyFrame frame;
  if (!frame_of(connection, request, &frame, what == LiveRoute::health)) return;
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

void Routes::version(const Connection& connection, const HttpRequest& request) {
  ReplyFrame frame;
  if (!frame_of(connection, request, &frame)) return;
  HttpReply whole;
  whole.body = "{\"version\":" + json_string(options_.version) + "}";
  reply(connection, std::move(frame), "/version", std::move(whole));
}

void Routes::not_served(const Connection& connection, const HttpRequest& request,
                        const char* route, const char* why) {
  ReplyFrame frame;
  if (!frame_of(connection, request, &frame)) return;
  fail(connection, std::move(frame), route,
       http_error(501, std::string(route) + " is not served: " + why, "not_served"));
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
