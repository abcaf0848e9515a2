// What each URL does: on Pistache's threads, up to the job for the loop. Here requests are parsed
// and tokenised, so that the loop only moves tokens. A chat that a template must write down first
// goes on from there on a thread of the template pool.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "configs/config.h"
#include "frontend/chat/template_pool.h"
#include "frontend/core/dialect.h"
#include "frontend/core/reply_facts.h"
#include "frontend/core/served_model.h"
#include "frontend/core/work_pool.h"
#include "frontend/grammar/grammar_checker.h"
#include "frontend/http/allowed_hosts.h"
#include "frontend/http/cors.h"
#include "frontend/http/http_server.h"
#include "frontend/http/jobs.h"
#include "frontend/http/key_meter.h"
#include "frontend/http/request_facts.h"
#include "ipc/types.h"

namespace baton {

/// What the loop tells Pistache's threads.
struct SharedFacts {
  /// Of each model; 0: its scheduler has not said yet.
  std::array<std::atomic<std::uint32_t>, kMaxModels> max_context{};
  std::atomic<bool> draining{false};
  std::atomic<std::uint32_t> rendering{
      0};  // requests that a renderer, or a checker of grammars, has
  std::atomic<std::uint64_t> large_bytes{0};  // of large requests, since the start
};

struct RouteOptions {
  ServedModels models;
  TimeNs default_timeout = 600 * kSecond;
  TimeNs max_timeout = 3600 * kSecond;
  std::uint32_t max_streams = 4096;  // choices that the loop takes at once
  /// open(): everybody is served, which never changes. The keys may.
  std::shared_ptr<KeyBook> keys = std::make_shared<KeyBook>();
  AllowedHosts hosts;          // under which names clients may ask
  Cors cors;                   // what pages of other origins may read
  bool strict_fields = false;  // likewise zero_bytes and drop_billing_header: as in RequestContext
  bool drop_billing_header = true;
  bool zero_bytes = false;
  SchemaDefaults schemas;
  std::size_t max_body_bytes = 4U << 20U;  // of a body once it is decompressed
  std::string version;                     // of this build
  std::string run_dir;            // where front ends keep their requests' times; empty: nowhere
  std::string fault_text;         // for tests: a body that holds it ends the process; empty: none
  std::uint64_t incarnation = 0;  // makes request ids unique
};

/// What a dialect gets to know of them, on a port whose requests may name any model or not: the
/// same when a request comes and when a successor reads it again.
IntakeSettings intake_settings(const RouteOptions& options, bool any_model);

/// Where requests go on that would hold up whoever read them; null: there is none. All must be
/// stopped before the routes go.
struct ModelHelpers {
  TemplatePool* templates = nullptr;   // chats that its template writes down
  GrammarChecker* grammars = nullptr;  // null: requests with a grammar are refused
};
struct RouteHelpers {
  std::vector<ModelHelpers> models = {};  // of each model; those that are not there have none
  WorkPool* pool = nullptr;  // large bodies; null: the thread that read them parses them
};

/// Thread-safe; must outlive the server that calls its routes.
class Routes {
 public:
  Routes(RouteOptions options, SharedFacts& facts, JobQueue& jobs, RouteHelpers helpers = {});

  /// What one port answers: the paths of its dialects, and those that every port has. `dialects`
  /// must outlive the server and not be empty; no two of them own the same path.
  std::vector<HttpRoute> table(const std::vector<const Dialect*>& dialects);
  /// What is known by now of a model that could not be loaded, and who helps its requests. Of those
  /// that are read already some go on with what was known before.
  void serve(std::size_t model, ServedModel known, ModelHelpers helpers);
  /// Errors that belong to no path have the shape of the port's first dialect.
  HttpEvents events(const std::vector<const Dialect*>& dialects);

 private:
  using Connection = std::shared_ptr<ClientConnection>;

  /// One path of a dialect, and how the metrics call it.
  struct Place {
    const Dialect* dialect = nullptr;
    const char* route = "";
    bool any_model = false;  // as in RequestContext
    ModelNamed names_model = ModelNamed::nowhere;
  };
  void generate(const Connection& connection, HttpRequest request, const Place& place,
                ParseBody parse);
  /// Where the reply to a generation goes, and when it was asked for.
  struct Asker {
    Connection connection;
    ReplyFrame frame;
    const char* route = "";
    ReplyFacts facts;
    std::optional<std::string> chat_text;  // as in Generation
    std::size_t model = 0;                 // likewise
  };
  /// Looks which model a body is for, and at the body as its dialect does.
  using ReadBody = std::function<ParseOutcome(Asker& asker, std::string_view body)>;
  /// Whose turn it is where several wait: the key's, or the address's.
  static std::string owner_of(const Asker& asker);
  /// `weight`: bytes that it counts as among the large requests that wait.
  void parse_elsewhere(Asker asker, std::string body, std::size_t weight, ReadBody read);
  struct Served {
    ServedModel model;
    ModelHelpers helpers;
  };
  std::shared_ptr<const Served> served(const Asker& asker) const;
  void begin(Asker asker, ParseOutcome outcome);
  void post_generation(Asker asker, ParsedRequest request);
  void check_grammar(Asker asker, ParsedRequest request);
  void render(Asker asker, std::unique_ptr<PendingChat> chat);
  void live(const Connection& connection, const HttpRequest& request, const Place& place,
            LiveRequest what);
  void unrouted(const Connection& connection, const HttpRequest& request,
                const std::string& allowed, const Dialect* dialect);
  void tell_options(const Connection& connection, const HttpRequest& request,
                    const std::string& allowed, ReplyFrame frame);
  bool worth_a_body(const ClientConnection& connection, const HttpRequest& request) const;
  void refused(const Connection& connection, const HttpRequest& request, const FramingFault& fault,
               const Dialect* dialect);
  void console(const Connection& connection, const HttpRequest& request, const Place& place,
               bool events);
  void console_request(const Connection& connection, const HttpRequest& request,
                       const Place& place);
  void version(const Connection& connection, const HttpRequest& request, const Place& place);

  /// `anybody`: no API key is wanted.
  bool frame_of(const Connection& connection, const HttpRequest& request, const Dialect* dialect,
                ReplyFrame* frame, bool anybody = false);
  /// Why nothing is done for whoever asks, key or not; nothing: all is well.
  std::optional<HttpError> refusal(const ClientConnection& connection,
                                   const HttpRequest& request) const;
  /// What costs work counts against the limits a minute of its key. False: it is beyond them, and
  /// the reply that says so is on its way.
  bool begin_work(const Connection& connection, ReplyFrame& frame, const char* route);
  bool check_key(const Connection& connection, const HttpRequest& request, ReplyFrame* frame);
  std::string new_request_id();
  void reply(const Connection& connection, ReplyFrame frame, const char* route, HttpReply reply);
  void fail(const Connection& connection, ReplyFrame frame, const char* route, HttpError error);
  void post(Job job);
  void announce(const Asker& asker);

  const RouteOptions options_;
  SharedFacts& facts_;
  JobQueue& jobs_;
  const RouteHelpers helpers_;
  mutable std::mutex served_mutex_;
  std::vector<std::shared_ptr<const Served>> served_;  // by model
  std::atomic<std::uint64_t> next_request_{1};
};

}  // namespace baton
