#include "frontend/http/routes.h"

#include <spdlog/spdlog.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string_view>
#include <utility>

#include "frontend/http/console.h"
#include "frontend/http/content_coding.h"
#include "frontend/http/http_error.h"
#include "frontend/http/sse.h"
#include "frontend/openai/pooling_api.h"

namespace baton {
namespace {

constexpr std::size_t kLargeBody = 32 * 1024;  // takes about a millisecond to parse and to tokenise

/// Whether the client still waits for its reply.
std::function<bool()> wanted_by(std::shared_ptr<ClientConnection> connection) {
  return [connection = std::move(connection)] {
    return connection->phase() != ConnectionPhase::closing;
  };
}

std::string header_or(const HttpRequest& request, std::string_view name, std::string fallback) {
  const std::string* value = request.header(name);
  return value == nullptr ? std::move(fallback) : *value;
}

/// What of a JSON Schema is not enforced, as a header: a client's text, so what no header may hold
/// is left out.
void note_unenforced(const std::string& what, ParsedRequest& request) {
  if (what.empty()) return;
  constexpr std::size_t kLongest = 1000;
  std::string value = what.substr(0, kLongest);
  for (char& c : value) {
    if (c < 0x20 || c > 0x7E) c = '?';
  }
  request.headers.emplace_back(kUnenforcedHeader, std::move(value));
  spdlog::warn(
      "a JSON Schema is not enforced in full: its reply's X-Baton-Schema-Unenforced says why");
}

}  // namespace

IntakeSettings intake_settings(const RouteOptions& options, bool any_model) {
  return {.max_choices = options.max_streams,
          .default_timeout = options.default_timeout,
          .max_timeout = options.max_timeout,
          .strict_fields = options.strict_fields,
          .drop_billing_header = options.drop_billing_header,
          .any_model = any_model,
          .zero_bytes = options.zero_bytes,
          .schemas = options.schemas};
}

Routes::Routes(RouteOptions options, SharedFacts& facts, JobQueue& jobs, RouteHelpers helpers)
    : options_(std::move(options)), facts_(facts), jobs_(jobs), helpers_(std::move(helpers)) {
  for (std::size_t i = 0; i < options_.models.size(); ++i) {
    const bool helped = i < helpers_.models.size();
    served_.push_back(std::make_shared<const Served>(
        Served{options_.models[i], helped ? helpers_.models[i] : ModelHelpers()}));
  }
}

void Routes::serve(std::size_t model, ServedModel known, ModelHelpers helpers) {
  auto fresh = std::make_shared<const Served>(Served{std::move(known), helpers});
  const std::lock_guard lock(served_mutex_);
  served_[model].swap(fresh);
}

std::shared_ptr<const Routes::Served> Routes::served(const Asker& asker) const {
  const std::lock_guard lock(served_mutex_);
  return served_[asker.model];
}

std::vector<HttpRoute> Routes::table(const std::vector<const Dialect*>& dialects) {
  std::vector<HttpRoute> routes;
  const auto add = [&](const char* method, const char* path, auto handle) {
    routes.push_back({method, path, path, std::move(handle)});
  };
  const auto add_live = [&](const char* path, LiveRoute what) {
    const Place place{dialects.front(), path};
    add("GET", path, [=, this, &dialects](const Connection& c, HttpRequest request) {
      live(c, request, place, LiveRequest{.route = what, .dialects = &dialects});
    });
  };
  add_live("/", LiveRoute::index);
  for (const char* health : {"/health", "/healthz", "/ping"}) add_live(health, LiveRoute::health);
  add_live("/metrics", LiveRoute::metrics);
  for (const char* path : {"/console", "/console/events"}) {
    const Place place{dialects.front(), path};
    const bool events = std::string_view(path) != "/console";
    add("GET", path, [=, this](const Connection& c, HttpRequest request) {
      console(c, request, place, events);
    });
  }
  const Place request_place{dialects.front(), "/console/requests/:id"};
  add("GET", request_place.route, [=, this](const Connection& c, HttpRequest request) {
    console_request(c, request, request_place);
  });
  const Place version_place{dialects.front(), "/version"};
  add("GET", "/version",
      [=, this](const Connection& c, HttpRequest request) { version(c, request, version_place); });
  const bool any_model = takes_any_model(dialects);
  for (const Dialect* dialect : dialects) {
    for (const DialectRoute& route : dialect->routes()) {
      const bool shared = std::any_of(routes.begin(), routes.end(), [&](const HttpRoute& earlier) {
        return std::string_view(earlier.method) == route.method &&
               std::string_view(earlier.path) == route.path;
      });
      if (shared) continue;
      const Place place{dialect, route.path, any_model, route.names_model};
      if (const auto* parse = std::get_if<ParseBody>(&route.answer)) {
        add(route.method, route.path,
            [=, this, parse = *parse](const Connection& c, HttpRequest request) {
              generate(c, std::move(request), place, parse);
            });
      } else {
        const MakePage page = std::get<MakePage>(route.answer);
        add(route.method, route.path, [=, this](const Connection& c, HttpRequest request) {
          LiveRequest what{.route = LiveRoute::page, .page = page};
          what.path = request.path();
          live(c, request, place, std::move(what));
        });
      }
    }
  }
  return routes;
}

HttpEvents Routes::events(const std::vector<const Dialect*>& dialects) {
  const Dialect* first = dialects.front();
  HttpEvents events;
  events.unrouted = [=, this](const Connection& c, HttpRequest request,
                              const std::string& allowed) { unrouted(c, request, allowed, first); };
  events.refused = [=, this](const Connection& c, const HttpRequest& request,
                             const FramingFault& fault) { refused(c, request, fault, first); };
  events.expects_continue = [this](const Connection& c) {
    Job job;
    job.connection = c;
    job.what = Interim{};
    post(std::move(job));
  };
  events.worth_a_body = [this](const ClientConnection& c, const HttpRequest& request) {
    return worth_a_body(c, request);
  };
  return events;
}

/// What frame_of() will refuse by the head alone is refused before its body is here: whoever has no
/// key must not make the server hold megabytes.
bool Routes::worth_a_body(const ClientConnection& connection, const HttpRequest& request) const {
  const std::string* id = request.header("x-request-id");
  if (id != nullptr && !valid_request_id(*id)) return false;
  if (refusal(connection, request)) return false;
  if (options_.keys->keys()->open()) return true;
  return find_key(request, *options_.keys->keys()).has_value();
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
  if (options_.keys->keys()->open()) return true;
  const bool given =
      request.header("authorization") != nullptr || request.header("x-api-key") != nullptr;
  if (const auto key = find_key(request, *options_.keys->keys())) {
    frame->api_key = static_cast<std::int32_t>(*key);
    return true;
  }
  const HttpError error =
      shaped(http_error(401,
                        !given ? "no API key was given; send it as 'Authorization: Bearer <key>'"
                               : "the API key is not one of this server's",
                        "invalid_api_key"),
             *frame);
  HttpReply whole;
  whole.status = error.status;
  whole.body = error.body;
  whole.reason = error.log;
  whole.headers.emplace_back("WWW-Authenticate", "Bearer");
  frame->keep_alive = false;
  reply(connection, *frame, kNoRoute, std::move(whole));
  return false;
}

bool Routes::begin_work(const Connection& connection, ReplyFrame& frame, const char* route) {
  if (frame.api_key < 0) return true;
  const auto slot = static_cast<std::size_t>(frame.api_key);
  KeyMeter& meter = options_.keys->meter();
  const TimeNs now = now_ns();
  const KeyAnswer answer = meter.begin(slot, now);
  frame.limits = meter.headers(slot, now);
  if (answer.status.ok()) return true;
  fail(connection, std::move(frame), route, limit_error(answer));
  return false;
}

std::optional<HttpError> Routes::refusal(const ClientConnection& connection,
                                         const HttpRequest& request) const {
  if (!options_.hosts.allow(request.host, connection.local)) {
    return http_error(403,
                      "this server is not asked as '" + request.host.substr(0, 100) +
                          "': without API keys only names of the loopback (localhost, 127.0.0.1) "
                          "are taken, and those of frontend.allowed_hosts",
                      "host_not_allowed");
  }
  if (options_.cors.refuses(request)) {
    return http_error(403,
                      "a page of another site asks (Sec-Fetch-Site: cross-site); its origin is not "
                      "in frontend.allowed_origins",
                      "origin_not_allowed");
  }
  return std::nullopt;
}

/// False: the request's own id is not acceptable, and the reply that says so is on its way.
bool Routes::frame_of(const Connection& connection, const HttpRequest& request,
                      const Dialect* dialect, ReplyFrame* frame, bool anybody) {
  *frame = reply_frame(request, dialect, options_.cors);
  const std::string* given = request.header("x-request-id");
  const bool own = given != nullptr && valid_request_id(*given);
  frame->request_id = own ? *given : new_request_id();
  if (auto error = refusal(*connection, request)) {
    fail(connection, *frame, kNoRoute, std::move(*error));
    return false;
  }
  if (given == nullptr || own) return anybody || check_key(connection, request, frame);
  fail(connection, *frame, kNoRoute,
       http_error(400, "X-Request-Id must be 1 to 128 characters out of A-Z a-z 0-9 . _ : -",
                  "bad_request_id", "X-Request-Id"));
  return false;
}

void Routes::generate(const Connection& connection, HttpRequest request, const Place& place,
                      ParseBody parse) {
  ReplyFrame frame;
  if (!frame_of(connection, request, place.dialect, &frame)) return;
  if (!begin_work(connection, frame, place.route)) return;
  if (!options_.fault_text.empty() && request.body.find(options_.fault_text) != std::string::npos) {
    std::fprintf(stderr, "fault_text met: abort\n");
    std::abort();
  }
  const TimeNs received = now_ns();
  ReplyFacts facts{
      .request_id = frame.request_id, .received = received, .wall_offset = wall_ns() - received};
  Asker asker{connection, std::move(frame), place.route, std::move(facts), {}};
  RequestContext context =
      request_context(request, asker.facts, intake_settings(options_, place.any_model));
  const ContentCoding coding = content_coding(request);
  // The body is read as JSON whatever its Content-Type says: curl -d calls everything a form.
  const auto read = [this, parse, place, coding, context = std::move(context)](
                        Asker& whose, std::string_view sent) -> ParseOutcome {
    std::variant<std::string, HttpError> plain;
    if (coding != ContentCoding::identity) {
      plain = decoded_body(coding, sent, options_.max_body_bytes);
      if (auto* error = std::get_if<HttpError>(&plain)) return std::move(*error);
    }
    const std::string_view body =
        coding == ContentCoding::identity ? sent : std::get<std::string>(plain);
    auto chosen = choose_model(options_.models, place.names_model, context, body);
    if (auto* error = std::get_if<HttpError>(&chosen)) return std::move(*error);
    whose.model = std::get<std::size_t>(chosen);
    const auto known = served(whose);
    if (const ServedModel& model = known->model; !model.fault.empty()) {
      return http_error(
          Status(ErrorCode::unavailable, "the model '" + model.name + "': " + model.fault));
    }
    RequestContext settled = context;
    settled.max_context = whose.facts.max_context =
        facts_.max_context[whose.model].load(std::memory_order_relaxed);
    return parse(body, settled, known->model);
  };
  const bool small = coding == ContentCoding::identity && request.body.size() < kLargeBody;
  if (helpers_.pool == nullptr || small) {
    ParseOutcome outcome = read(asker, request.body);
    begin(std::move(asker), std::move(outcome));
  } else {
    // What is compressed counts as large as it may become.
    const std::size_t bytes =
        coding == ContentCoding::identity ? request.body.size() : options_.max_body_bytes;
    parse_elsewhere(std::move(asker), std::move(request.body), bytes, read);
  }
}

std::string Routes::owner_of(const Asker& asker) {
  return owner_name(asker.frame.api_key, asker.connection->peer);
}

/// Off the threads that read requests: small ones must not wait for it.
void Routes::parse_elsewhere(Asker asker, std::string body, std::size_t weight, ReadBody read) {
  struct Waiting {
    Asker asker;
    std::string body;
    ReadBody read;
  };
  const std::size_t bytes = std::max(weight, kLargeBody);
  facts_.large_bytes.fetch_add(bytes);
  const auto waiting =
      std::make_shared<Waiting>(Waiting{std::move(asker), std::move(body), std::move(read)});
  announce(waiting->asker);
  facts_.rendering.fetch_add(1);
  const auto refuse = [this, waiting] {
    facts_.rendering.fetch_sub(1);
    fail(waiting->asker.connection, std::move(waiting->asker.frame), waiting->asker.route,
         http_error(Status(ErrorCode::queue_full, "too many large requests wait to be read")));
  };
  const auto work = [this, waiting] {
    const Connection connection = waiting->asker.connection;
    if (wanted_by(connection)()) {
      try {
        const AtWork at_work(connection->kept);
        ParseOutcome outcome = waiting->read(waiting->asker, waiting->body);
        begin(std::move(waiting->asker), std::move(outcome));
      } catch (const std::exception&) {  // out of memory, say
        connection->cut_off(now_ns());
      }
    }
    facts_.rendering.fetch_sub(1);
  };
  if (!helpers_.pool->push(owner_of(waiting->asker), bytes, work, refuse)) refuse();
}

void Routes::begin(Asker asker, ParseOutcome outcome) {
  if (auto* error = std::get_if<HttpError>(&outcome)) {
    fail(asker.connection, std::move(asker.frame), asker.route, std::move(*error));
    return;
  }
  if (auto* answer = std::get_if<Answer>(&outcome)) {
    HttpReply whole;
    whole.body = std::move(answer->body);
    whole.content_type = std::move(answer->content_type);
    whole.headers = std::move(answer->headers);
    reply(asker.connection, std::move(asker.frame), asker.route, std::move(whole));
    return;
  }
  if (auto* chat = std::get_if<std::unique_ptr<PendingChat>>(&outcome)) {
    render(std::move(asker), std::move(*chat));
    return;
  }
  auto& request = std::get<ParsedRequest>(outcome);
  // Whichever of the dialects it came by: an embedding model's next token is no text.
  if (!request.sampling.pools()) {
    if (auto refused = refuse_task(ModelTask::generate, served(asker)->model)) {
      fail(asker.connection, std::move(asker.frame), asker.route, std::move(*refused));
      return;
    }
  }
  if (request.sampling.grammar_kind == GrammarKind::none) {
    post_generation(std::move(asker), std::move(request));
  } else {
    check_grammar(std::move(asker), std::move(request));
  }
}

void Routes::post_generation(Asker asker, ParsedRequest request) {
  Job job;
  job.connection = std::move(asker.connection);
  job.frame = std::move(asker.frame);
  job.route = asker.route;
  job.received = asker.facts.received;
  job.what = Generation{std::move(request), std::move(asker.facts), std::move(asker.chat_text),
                        asker.model};
  post(std::move(job));
}

/// A worker only ever sees a grammar that has been tried within limits.
void Routes::check_grammar(Asker asker, ParsedRequest request) {
  struct Waiting {
    Asker asker;
    ParsedRequest request;
  };
  const auto waiting = std::make_shared<Waiting>(Waiting{std::move(asker), std::move(request)});
  const auto refuse = [this, waiting](const Status& status) {
    fail(waiting->asker.connection, std::move(waiting->asker.frame), waiting->asker.route,
         http_error(status,
                    http_status(status.code()) == 400 ? waiting->request.grammar_field : ""));
  };
  GrammarChecker* grammars = served(waiting->asker)->helpers.grammars;
  if (grammars == nullptr) {
    refuse(Status(ErrorCode::unavailable, "this server does not check grammars"));
    return;
  }
  announce(waiting->asker);
  facts_.rendering.fetch_add(1);
  const SamplingParams& sampling = waiting->request.sampling;
  const bool taken =
      grammars->check(sampling.grammar_kind, sampling.grammar, owner_of(waiting->asker),
                      wanted_by(waiting->asker.connection), [=, this](const Status& status) {
                        if (status.ok()) {
                          note_unenforced(status.message(), waiting->request);
                          post_generation(std::move(waiting->asker), std::move(waiting->request));
                        } else if (status.code() == ErrorCode::invalid_argument) {
                          refuse(invalid("asks for what cannot be served: " + status.message()));
                        } else {
                          refuse(status);
                        }
                        facts_.rendering.fetch_sub(1);
                      });
  if (taken) return;
  facts_.rendering.fetch_sub(1);
  refuse(Status(ErrorCode::queue_full, kTooManyGrammars));
}

void Routes::render(Asker asker, std::unique_ptr<PendingChat> chat) {
  struct Waiting {
    Asker asker;
    std::unique_ptr<PendingChat> chat;
  };
  const auto waiting = std::make_shared<Waiting>(Waiting{std::move(asker), std::move(chat)});
  const std::string& request = waiting->chat->render_request();
  // Somebody's large chats and his small ones take turns, too.
  std::string owner = owner_of(waiting->asker) + (request.size() < kLargeBody ? "" : " large");
  announce(waiting->asker);
  facts_.rendering.fetch_add(1);
  TemplatePool* templates = served(waiting->asker)->helpers.templates;
  const auto refuse = [this, waiting] {
    facts_.rendering.fetch_sub(1);
    fail(waiting->asker.connection, std::move(waiting->asker.frame), waiting->asker.route,
         http_error(Status(ErrorCode::queue_full, kTooManyChats)));
  };
  const auto done = [this, waiting, refuse](const Result<std::string>& rendered) {
    // On a thread that may be at work on the request that displaced this one.
    if (rendered.status().code() == ErrorCode::queue_full) return refuse();
    const Connection connection = waiting->asker.connection;
    const AtWork at_work(connection->kept);
    if (rendered.ok()) waiting->asker.chat_text = rendered.value();
    ParseOutcome outcome = waiting->chat->finish(rendered, served(waiting->asker)->model);
    begin(std::move(waiting->asker), std::move(outcome));
    facts_.rendering.fetch_sub(1);
  };
  if (templates == nullptr ||
      !templates->render(request, owner, wanted_by(waiting->asker.connection), done)) {
    refuse();
  }
}

void Routes::live(const Connection& connection, const HttpRequest& request, const Place& place,
                  LiveRequest what) {
  ReplyFrame frame;
  const bool anybody = what.route == LiveRoute::health;
  if (!frame_of(connection, request, place.dialect, &frame, anybody)) return;
  if (anybody) {
    const auto named = query_value(request, "model");
    const std::size_t model = named ? find_model(*named, options_.models) : 0;
    if (model == options_.models.size()) {
      fail(connection, std::move(frame), place.route, no_such_model(*named, options_.models));
      return;
    }
    if (named) what.model = model;
    if (query_value(request, "any") == "1") what.health = HealthOf::any;
    if (query_value(request, "all") == "1") what.health = HealthOf::all;
  }
  what.accept = header_or(request, "accept", "");
  what.host = header_or(request, "host", "");
  Job job;
  job.connection = connection;
  job.frame = std::move(frame);
  job.route = place.route;
  job.received = now_ns();
  job.what = std::move(what);
  post(std::move(job));
}

/// The page itself tells nothing, and a browser that opens it sends no key: its script does.
void Routes::console(const Connection& connection, const HttpRequest& request, const Place& place,
                     bool events) {
  ReplyFrame frame;
  if (!frame_of(connection, request, place.dialect, &frame, !events)) return;
  if (auto error = console_refusal(connection->local, !options_.keys->keys()->open())) {
    fail(connection, std::move(frame), place.route, std::move(*error));
    return;
  }
  if (!events) {
    reply(connection, std::move(frame), place.route, console_page());
    return;
  }
  const auto named = query_value(request, "model");
  const std::size_t model = named ? find_model(*named, options_.models) : 0;
  if (model == options_.models.size()) {
    fail(connection, std::move(frame), place.route, no_such_model(*named, options_.models));
    return;
  }
  Job job;
  job.connection = connection;
  job.frame = std::move(frame);
  job.route = place.route;
  job.received = now_ns();
  job.what = Watch{model};
  post(std::move(job));
}

/// Off the threads that read requests: it reads whole files.
void Routes::console_request(const Connection& connection, const HttpRequest& request,
                             const Place& place) {
  Asker asker{connection, {}, place.route, {}, {}};
  if (!frame_of(connection, request, place.dialect, &asker.frame)) return;
  if (auto error = console_refusal(connection->local, !options_.keys->keys()->open())) {
    fail(connection, std::move(asker.frame), place.route, std::move(*error));
    return;
  }
  if (!begin_work(connection, asker.frame, place.route)) return;
  const auto look = [this](Asker& /*asker*/, std::string_view id) {
    return ended_request(options_.run_dir, id);
  };
  const std::string_view path = request.path();
  std::string id(path.substr(path.rfind('/') + 1));
  if (helpers_.pool == nullptr) return begin(std::move(asker), ended_request(options_.run_dir, id));
  parse_elsewhere(std::move(asker), std::move(id), 0, look);
}

void Routes::version(const Connection& connection, const HttpRequest& request, const Place& place) {
  ReplyFrame frame;
  if (!frame_of(connection, request, place.dialect, &frame)) return;
  HttpReply whole;
  whole.body = "{\"version\":" + json_string(options_.version) + "}";
  reply(connection, std::move(frame), place.route, std::move(whole));
}

void Routes::unrouted(const Connection& connection, const HttpRequest& request,
                      const std::string& allowed, const Dialect* dialect) {
  ReplyFrame frame;
  const bool options = request.method == "OPTIONS";  // browsers send no key with a preflight
  if (!frame_of(connection, request, dialect, &frame, options)) return;
  const std::string path(request.path().substr(0, 200));
  if (allowed.empty()) {
    fail(connection, std::move(frame), kNoRoute,
         http_error(404, "there is no " + path + " here; GET / lists what there is", "not_found"));
    return;
  }
  if (options) {
    tell_options(connection, request, allowed, std::move(frame));
    return;
  }
  const HttpError error = shaped(
      http_error(405, request.method + " is not possible on " + path + "; allowed: " + allowed,
                 "method_not_allowed"),
      frame);
  HttpReply whole;
  whole.status = error.status;
  whole.body = error.body;
  whole.reason = error.log;
  whole.headers.emplace_back("Allow", allowed);
  frame.keep_alive = false;
  reply(connection, std::move(frame), kNoRoute, std::move(whole));
}

/// What a path knows, and to a browser's preflight also what a page may ask of it.
void Routes::tell_options(const Connection& connection, const HttpRequest& request,
                          const std::string& allowed, ReplyFrame frame) {
  HttpReply whole;
  whole.status = 204;
  whole.headers = options_.cors.preflight_headers(request, allowed);
  whole.headers.emplace_back("Allow", allowed);
  reply(connection, std::move(frame), kNoRoute, std::move(whole));
}

void Routes::refused(const Connection& connection, const HttpRequest& request,
                     const FramingFault& fault, const Dialect* dialect) {
  ReplyFrame frame;
  frame.dialect = dialect;
  frame.head_only = request.method == "HEAD";
  frame.minor = request.minor;
  frame.asked = asked_text(request.method, request.path());
  frame.cors = &options_.cors.reply_headers(request);
  frame.trace = trace_of(request);
  const std::string* given = request.header("x-request-id");
  frame.request_id = given != nullptr && valid_request_id(*given) ? *given : new_request_id();
  fail(connection, std::move(frame), kNoRoute, http_error(fault.status, fault.message, fault.code));
}

/// Every error closes the connection: what follows it on the wire cannot be trusted to be a
/// request.
void Routes::fail(const Connection& connection, ReplyFrame frame, const char* route,
                  HttpError error) {
  HttpReply whole;
  whole.headers = retry_headers(error);
  whole.reason = error.log;
  error = shaped(std::move(error), frame);
  whole.status = error.status;
  whole.body = std::move(error.body);
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
  if (!jobs_.push(std::move(job))) connection->cut_off(now_ns());
}

/// Its reply will take a while: the loop looks whether the client stays.
void Routes::announce(const Asker& asker) {
  Job job;
  job.connection = asker.connection;
  job.what = Pending{};
  post(std::move(job));
}

}  // namespace baton
