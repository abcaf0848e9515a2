// baton-frontend: HTTP in, tokens out. Wiring only.
#include <malloc.h>
#include <spdlog/spdlog.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "configs/config.h"
#include "configs/process_log.h"
#include "frontend/chat/chat_template.h"
#include "frontend/chat/template_pool.h"
#include "frontend/core/live_feed.h"
#include "frontend/core/model_choice.h"
#include "frontend/core/work_pool.h"
#include "frontend/dialects/registry.h"
#include "frontend/frontend_loop.h"
#include "frontend/grammar/grammar_checker.h"
#include "frontend/http/cors.h"
#include "frontend/http/http_servers.h"
#include "frontend/http/jobs.h"
#include "frontend/http/key_meter.h"
#include "frontend/http/routes.h"
#include "frontend/http/server_events.h"
#include "frontend/http/sse.h"
#include "frontend/load_models.h"
#include "frontend/succession/inheritance.h"
#include "frontend/succession/input_journal.h"
#include "frontend/succession/journal.h"
#include "frontend/succession/journal_memory.h"
#include "frontend/succession/twin.h"
#include "frontend/take_over.h"
#include "ipc/joined.h"
#include "ipc/process.h"
#include "ipc/process_record.h"
#include "ipc/spin.h"
#include "ipc/zmq_channel.h"

namespace baton {
namespace {

constexpr TimeNs kCollectorPatience = 10 * kSecond;  // of one POST of spans
constexpr TimeNs kShrinkInterval = 10 * kSecond;     // of the journals' memory
constexpr TimeNs kPredecessorEnds = 8 * kSecond;     // longer, and it is alive after all

std::size_t connection_limit(std::size_t max_streams) {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
  getrlimit(RLIMIT_NOFILE, &limit);
  const std::size_t files = std::min<std::size_t>(limit.rlim_cur, 1'000'000);
  const std::size_t most = files > 256 ? files - 128 : 64;
  return std::min(2 * max_streams + 256, most);
}

/// The pool that a model with a chat template needs.
std::unique_ptr<TemplatePool> start_templates(const ServedModel& model) {
  if (model.chat_template == nullptr) return nullptr;
  TemplateSetup setup;
  setup.templates = model.chat_template->templates();
  return std::make_unique<TemplatePool>(std::move(setup), TemplatePool::Options{});
}

/// What all ports hold together is bounded; each may take its share.
HttpServerOptions server_options(const FrontendConfig& config, const ListenConfig& listen,
                                 WorkPool& pool, InputJournal* journal) {
  HttpServerOptions options;
  options.host = listen.host;
  options.port = listen.port;
  options.threads = static_cast<int>(config.threads);
  options.framing.max_body_bytes = config.max_body_bytes;
  options.max_connections = connection_limit(config.max_streams) / config.listen.size();
  // Whatever their share is, a few bodies of the largest size must fit.
  options.max_partial_bytes =
      std::max<std::size_t>(options.max_partial_bytes, 8 * config.max_body_bytes) /
      config.listen.size();
  options.peer_share = config.peer_share;
  options.pool = &pool;
  options.journal = journal;
  return options;
}

struct Port {
  HttpServerOptions options;
  std::vector<const Dialect*> dialects;

  std::string names() const { return joined(dialects, &Dialect::name); }
};

std::vector<Port> open_ports(const FrontendConfig& config, WorkPool& pool, InputJournal* journal) {
  std::vector<Port> ports;
  for (const ListenConfig& listen : config.listen) {
    ports.push_back(
        {server_options(config, listen, pool, journal), dialects_named(listen.dialects)});
  }
  return ports;
}

/// The port that speaks the tutorial's dialect, or the first.
std::size_t announced_port(const std::vector<Port>& ports) {
  for (std::size_t i = 0; i < ports.size(); ++i) {
    for (const Dialect* dialect : ports[i].dialects) {
      if (std::string_view(dialect->name()) == "tutorial") return i;
    }
  }
  return 0;
}

RouteOptions route_options(const FrontendConfig& config, const std::string& run_dir,
                           ServedModels models, std::shared_ptr<KeyBook> keys,
                           Incarnation incarnation) {
  RouteOptions options;
  options.models = std::move(models);
  options.default_timeout = seconds_to_ns(config.timeout_s);
  options.max_timeout = seconds_to_ns(config.max_timeout_s);
  options.max_streams = config.max_streams;
  options.cors = Cors(config.allowed_origins);
  options.strict_fields = config.strict_fields;
  options.drop_billing_header = config.drop_billing_header;
  options.zero_bytes = config.distserve_zero_bytes;
  options.schemas = {.open = config.schema_objects == "open",
                     .refuse = config.schema_unenforceable == "refuse"};
  options.hosts = AllowedHosts(config.allowed_hosts, !keys->keys()->open());
  options.keys = std::move(keys);
  options.max_body_bytes = config.max_body_bytes;
  options.version = build_version();
  options.fault_text = config.fault_text;
  options.incarnation = incarnation;
  options.run_dir = run_dir;
  return options;
}

/// What the routes of a port make of a request; a predecessor's requests are read again by it.
ReplaySetup replay_setup(const RouteOptions& options, const ApiKeys& keys, const Port& port,
                         const FrontendPlace& before) {
  std::vector<std::uint64_t> known;
  for (const SchedulerPlace& one : before.several) known.push_back(one.model);
  return {.models = options.models,
          .dialects = port.dialects,
          .cors = options.cors,
          .settings = intake_settings(options, takes_any_model(port.dialects)),
          .framing = port.options.framing,
          .keys = &keys,
          .known = std::move(known)};
}

LoopOptions loop_options(const Config& config, const FrontendPlace& place, bool has_successor) {
  LoopOptions options;
  options.identity.build = build_version();
  options.identity.name = config.frontend.name;
  options.place = place;
  options.identity.incarnation =
      place.incarnation == 0 ? new_incarnation(config.run_dir) : place.incarnation;
  options.identity.generation =
      place.incarnation == 0 ? 0 : static_cast<std::uint32_t>(place.generation) + 1;
  options.identity.has_successor = has_successor;
  options.identity.pid = getpid();
  options.identity.pid_start = pid_start_time(getpid());
  options.table.max_open = config.frontend.max_streams;
  options.writer.buffer_bytes = config.frontend.write_buffer_bytes;
  options.writer.total_bytes =
      std::max<std::size_t>(options.writer.total_bytes, 16 * options.writer.buffer_bytes);
  options.writer.stall_timeout = seconds_to_ns(config.frontend.stall_timeout_s);
  options.sse_keepalive = seconds_to_ns(config.frontend.sse_keepalive_s);
  options.page.version = options.identity.build;
  options.page.created = wall_ns() / kSecond;
  options.page.max_streams = config.frontend.max_streams;
  options.drain = seconds_to_ns(config.frontend.drain_s);
  options.timing_file = config.run_dir + "/" + config.frontend.name + ".timing";
  options.trace_dir = config.run_dir;
  return options;
}

/// All that is one model's: beside what its scheduler is told and asked, who writes its chats down
/// and who tries its grammars.
struct ModelParts {
  explicit ModelParts(const Config& model)
      : config(model), live({.admin_socket = model.scheduler.admin_socket}) {}

  const Config& config;
  std::unique_ptr<TemplatePool> templates;
  std::unique_ptr<GrammarChecker> grammars;
  LiveFeed live;

  void start(const ServedModel& model) {
    if (!model.fault.empty()) return;
    templates = start_templates(model);
    GrammarChecker::Options options;
    options.model_folder = config.model;
    options.cpu = seconds_to_ns(config.frontend.grammar_cpu_s);
    grammars = std::make_unique<GrammarChecker>(std::move(options));
  }
  /// Of one that was loaded later than the others, on a thread that may wait.
  void start_late(const ServedModel& model) {
    start(model);
    if (!templates) return;
    const Status started = templates->await_first(5 * kSecond);
    if (!started.ok())
      spdlog::error("chats with {} are refused: {}", model.name, started.message());
  }
  ModelHelpers helpers() const { return {templates.get(), grammars.get()}; }
  /// Their threads call the routes.
  void stop() {
    if (templates) templates->stop();
    if (grammars) grammars->stop();
  }
};

/// Without Python or Jinja2, or with a template that is wrong, everything but chats is served, and
/// each chat is told why.
void start_all(const std::vector<std::unique_ptr<ModelParts>>& parts, const ServedModels& models,
               AliveFile& alive) {
  std::vector<TemplatePool*> pools;
  std::vector<std::string> names;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    parts[i]->start(models[i]);
    if (!parts[i]->templates) continue;
    pools.push_back(parts[i]->templates.get());
    names.push_back(models[i].name);
  }
  const std::vector<Status> started =
      TemplatePool::await_all(pools, 5 * kSecond, [&alive] { alive.touch(now_ns()); });
  for (std::size_t i = 0; i < started.size(); ++i) {
    if (!started[i].ok()) {
      spdlog::error("chats with {} are refused: {}", names[i], started[i].message());
    }
  }
}

Result<LinkOptions> open_link(ModelParts& parts, const ServedModel& model, Incarnation life) {
  const Config& config = parts.config;
  auto channel =
      connect_client(config.frontends_socket(), make_routing_id(config.frontend.name, life));
  if (!channel.ok()) return channel.status();
  LinkOptions link;
  link.served = model;
  link.name = config.entry;
  link.no_workers = !config.entry.empty() && config.workers.empty();
  if (!config.entry.empty()) {
    std::vector<std::string> names;
    for (const WorkerConfig& worker : config.workers) {
      names.push_back(worker.process_name(0));
    }
    link.workers_refused = [run_dir = config.run_dir, names = std::move(names)] {
      return refused_by_all(run_dir, names);
    };
  }
  link.max_batch = config.scheduler.batching == Batching::static_batch
                       ? config.scheduler.static_batch_size
                       : config.scheduler.max_running;
  link.turn_lock = config.run_dir + "/" + config.named("trials.lock");
  link.live = &parts.live;
  link.channel = std::move(channel).value();
  return link;
}

/// Who tells the client app of the tutorial about this server; null where nobody is to be told.
std::unique_ptr<ServerEvents> start_events(const Config& config, const HttpUrl& client,
                                           const std::string& model, const std::string& address,
                                           const SharedFacts& facts) {
  ServerEventOptions options;
  options.client = client;
  options.body = "{\"url\":" + json_string("http://" + address) +
                 ",\"model_id\":" + json_string(model) + ",\"server_type\":\"" +
                 (config.scheduler.batching == Batching::static_batch ? "sb" : "cb") + "\"}";
  options.log = [](const std::string& what) { spdlog::info("{}", what); };
  return std::make_unique<ServerEvents>(std::move(options), [&facts] {
    if (facts.draining.load()) return ServerEvents::State::stopping;
    // Of several models it is the first one's that this dialect asks.
    return facts.max_context[0].load() == 0 ? ServerEvents::State::starting
                                            : ServerEvents::State::serving;
  });
}

/// Nothing if it cannot be told.
std::string host_name() {
  char name[256] = {};
  return gethostname(name, sizeof name - 1) == 0 ? name : "";
}

/// Who sends spans of requests to a collector; null where none is named.
std::unique_ptr<OtlpExporter> start_spans(const Config& config, const std::string& model,
                                          const FrontendIdentity& identity) {
  const TelemetryConfig& telemetry = config.telemetry;
  if (telemetry.otlp_url.empty()) return nullptr;
  OtlpOptions options;
  options.source = {
      .service = telemetry.service_name,
      .model = model,
      .version = identity.build,
      .front_end = identity.name,
      .instance = identity.name + "-" + std::to_string(new_incarnation(config.run_dir)),
      .host = host_name(),
      .pid = identity.pid};
  options.sample_ratio = telemetry.sample_ratio;
  options.log = [url = telemetry.otlp_url](const std::string& why) {
    spdlog::warn(
        "{} takes no spans: {} (said once a minute; baton_span_requests_lost_total counts what is "
        "lost)",
        url, why);
  };
  return std::make_unique<OtlpExporter>(std::move(options),
                                        curl_post(telemetry.otlp_url, kCollectorPatience));
}

/// What the configuration names by a file or an address; what is not named stays empty.
Status load_named(const FrontendConfig& config, ApiKeys* keys, HttpUrl* client) {
  if (!config.api_keys.empty()) {
    auto loaded = ApiKeys::load(config.api_keys);
    if (!loaded.ok()) return invalid("frontend.api_keys: " + loaded.status().message());
    *keys = std::move(loaded).value();
  }
  if (!config.client_url.empty()) {
    auto url = parse_http_url(config.client_url);
    if (!url.ok()) return invalid("frontend.client_url: " + url.status().message());
    *client = std::move(url).value();
  }
  return {};
}

/// Where clients find `port`: a host that stands for all addresses is no address.
std::string public_address(const HttpServerOptions& options, std::uint16_t port) {
  std::string host = options.host;
  if (host == "0.0.0.0" || host == "::") {
    if (std::string name = host_name(); !name.empty()) host = std::move(name);
  }
  return host + ":" + std::to_string(port);
}

/// Says why this process ends, also to the supervisor; returns the exit status.
int refuse(const Config& config, const Status& status, int code) {
  spdlog::critical("{}", status.message());
  leave_reason(config.run_dir, config.frontend.name, status.message());
  return code;
}

/// What outlives this process, if anything does: its journals, and the twin that holds them and the
/// clients' sockets.
struct Estate {
  std::optional<Twin> twin;
  std::optional<JournalMemory> reply_memory, input_memory;
  std::optional<Journal> replies;
  std::optional<InputJournal> inputs;
};

/// Before there are threads, and before the model is loaded: a twin keeps the memory that this
/// process has now. Without one everything is served, and the log says what does not survive.
void start_twin(const Config& config, Estate& estate) {
  if (!config.frontend.twin) return;
  auto made = Twin::start(config.run_dir, config.frontend.name);
  if (made.ok()) {
    estate.twin.emplace(std::move(made).value());
  } else {
    spdlog::error("no twin, so this front end's streams end with it: {}", made.status().message());
  }
}

Status make_journals(const Config& config, Estate& estate) {
  if (!estate.twin) return {};
  InputGeometry inputs;
  inputs.slots = static_cast<std::uint32_t>(connection_limit(config.frontend.max_streams)) + 64;
  JournalGeometry replies;
  replies.slots = inputs.slots;
  auto reply_memory = JournalMemory::create(replies.bytes());
  if (!reply_memory.ok()) return reply_memory.status();
  auto input_memory = JournalMemory::create(inputs.bytes());
  if (!input_memory.ok()) return input_memory.status();
  estate.reply_memory.emplace(std::move(reply_memory).value());
  estate.input_memory.emplace(std::move(input_memory).value());
  estate.replies.emplace(estate.reply_memory->bytes(), replies, build_version());
  estate.inputs.emplace(estate.input_memory->bytes(), inputs);
  estate.twin->set_keepsake(kReplyKeepsake, estate.reply_memory->fd());
  estate.twin->set_keepsake(kInputKeepsake, estate.input_memory->fd());
  return {};
}

/// What a front end of this name left, if it had a twin.
Result<std::unique_ptr<Legacy>> find_legacy(const Config& config) {
  auto found = Inheritance::fetch(config.run_dir, config.frontend.name, kPredecessorEnds);
  if (!found.ok()) return found.status();
  if (!found.value()) return std::unique_ptr<Legacy>();
  return std::make_unique<Legacy>(std::move(*found.value()));
}

/// The twin is told of, and looked after, for as long as the loop runs.
Status open_estate(Estate& estate, const std::string& run_dir, const std::string& name,
                   Legacy* legacy) {
  if (estate.twin) {
    if (const Status committed = estate.twin->commit(); !committed.ok()) return committed;
    spdlog::debug("{}: the twin, pid {}, stands by in {}", name, estate.twin->pid(), run_dir);
  }
  if (legacy != nullptr) legacy->settle();
  return {};
}

int serve(const Config& config, SignalFd& signals) {
  const Status directory = ensure_private_directory(config.run_dir);
  if (!directory.ok()) return refuse(config, directory, kExitUsage);
  Estate estate;
  start_twin(config, estate);
  AliveFile alive(config.run_dir, config.frontend.name);
  if (!alive.status().ok()) spdlog::warn("{}", alive.status().message());
  auto models = load_models(config, [&alive] { alive.touch(now_ns()); });
  if (!models.ok()) return refuse(config, models.status(), kExitUsage);
  for (const ServedModel& model : models.value()) {
    if (!model.fault.empty()) spdlog::error("{}: {}", model.entry, model.fault);
  }
  const std::string& first_model = models.value().front().name;
  ApiKeys keys;
  HttpUrl client;
  const Status named = load_named(config.frontend, &keys, &client);
  if (!named.ok()) return refuse(config, named, kExitUsage);
  if (keys.open() && Cors(config.frontend.allowed_origins).every_page()) {
    spdlog::warn(
        "frontend.allowed_origins is \"*\" and there are no frontend.api_keys: every web page that "
        "a browser opens may use the model, if the browser reaches this server");
  }
  if (const Status made = make_journals(config, estate); !made.ok()) return refuse(config, made, 1);
  connection_limit(config.frontend.max_streams);  // as many descriptors as may come
  alive.touch(now_ns());
  auto left = find_legacy(config);
  if (!left.ok()) return refuse(config, left.status(), 1);
  const std::unique_ptr<Legacy> legacy = std::move(left).value();
  LoopOptions options =
      loop_options(config, legacy ? legacy->place() : FrontendPlace{}, estate.twin.has_value());
  // Never its predecessor's: ZeroMQ does not listen to a second link of one name.
  const Incarnation life = new_incarnation(config.run_dir);
  std::vector<std::unique_ptr<ModelParts>> parts;
  std::vector<LinkOptions> links;
  for (const Config* one : config.served()) {
    parts.push_back(std::make_unique<ModelParts>(*one));
    auto link = open_link(*parts.back(), models.value()[links.size()], life);
    if (!link.ok()) return refuse(config, link.status(), 1);
    links.push_back(std::move(link).value());
  }
  SharedFacts facts;
  JobQueue jobs(4 * connection_limit(config.frontend.max_streams));
  RouteHelpers helpers;
  start_all(parts, models.value(), alive);
  for (const auto& one : parts) {
    helpers.models.push_back(one->helpers());
  }
  WorkPool pool({.threads = config.frontend.threads});
  helpers.pool = &pool;
  options.keys = std::make_shared<KeyBook>(keys);
  options.keys_file = config.frontend.api_keys;
  options.salt_by_key = config.frontend.cache_salt_by_key;
  const RouteOptions routing =
      route_options(config.frontend, config.run_dir, models.value(), options.keys, life);
  Routes routes(routing, facts, jobs, std::move(helpers));
  const std::vector<Port> ports =
      open_ports(config.frontend, pool, estate.inputs ? &*estate.inputs : nullptr);
  HttpServers http;
  for (const Port& port : ports) {
    http.add(port.options, routes.table(port.dialects), routes.events(port.dialects));
  }
  const Status bound = http.bind(legacy ? legacy->take_listeners() : std::vector<UniqueFd>());
  if (!bound.ok()) return refuse(config, bound, 1);  // whoever has the port may leave it
  options.journal = estate.replies ? &*estate.replies : nullptr;
  options.trim_heap = [&pool] { pool.push("heap", 0, [] { malloc_trim(0); }); };
  options.each_second = [&estate, shrink_at = now_ns()]() mutable {
    if (!estate.twin) return;
    if (now_ns() - shrink_at >= kShrinkInterval) {
      estate.replies->shrink();
      estate.inputs->shrink();
      shrink_at = now_ns();
    }
    const Status status = estate.twin->look_after();
    if (!status.ok()) spdlog::error("no twin: {}", status.message());
  };
  for (std::size_t i = 0; i < ports.size(); ++i) {
    const std::string address = ports[i].options.host + ":" + std::to_string(http.port(i));
    if (i == 0) options.address = address;
    spdlog::info("baton-frontend {} listens on {}, model {}, speaks {}", build_version(), address,
                 names_of(models.value()), ports[i].names());
  }
  const std::unique_ptr<OtlpExporter> spans = start_spans(config, first_model, options.identity);
  options.spans = spans.get();
  LateModels late(
      [&](std::size_t i) {
        auto model = load_model(parts[i]->config);
        if (model.ok()) parts[i]->start_late(model.value());
        return model;
      },
      [&](std::size_t i, const ServedModel& known) {
        routes.serve(i, known, parts[i]->helpers());
      });
  options.late = &late;
  FrontendLoop loop(std::move(options), std::move(links), http, jobs, facts);
  if (legacy && estate.replies) {
    const TakenOver taken = legacy->adopt(
        loop, http, *estate.replies,
        [&](const HttpServer& at) {
          const auto port = std::find_if(ports.begin(), ports.end(), [&](const Port& one) {
            return http.port(static_cast<std::size_t>(&one - ports.data())) == at.port();
          });
          return replay_setup(routing, keys, *port, legacy->place());
        },
        [&alive] { alive.touch(now_ns()); });
    spdlog::info("took over from the process before: {} replies go on, {} clients wait, {} lost",
                 taken.replies, taken.waiting, taken.lost);
    loop.took_over(taken.replies, taken.lost);
  }
  const Status open = open_estate(estate, config.run_dir, config.frontend.name, legacy.get());
  if (!open.ok()) return refuse(config, open, 1);
  const Status started = http.start();
  if (!started.ok()) return refuse(config, started, 1);
  std::unique_ptr<ServerEvents> events;
  if (!client.host.empty()) {
    const std::size_t port = announced_port(ports);
    events = start_events(config, client, first_model,
                          public_address(ports[port].options, http.port(port)), facts);
  }
  mark_up(config.run_dir, config.frontend.name);
  const int exit_code = loop.run(signals, alive);
  if (exit_code == FrontendLoop::kHandedOver) _exit(0);  // closing a socket would close it for all
  if (estate.twin) estate.twin->dismiss();
  late.finish();
  for (const auto& one : parts) one->stop();
  pool.stop();  // its threads call the routes, too
  if (spans) spans->stop();
  return exit_code;
}

}  // namespace
}  // namespace baton

int main(int argc, char** argv) {
  mallopt(M_ARENA_MAX, 2);  // four threads would spread a few MiB over as many arenas
  // Else it grows with what is freed, and the largest blocks of all come to lie in the heap.
  mallopt(M_MMAP_THRESHOLD, 1 << 20);
  const baton::Loaded loaded = baton::load_config(baton::Program::frontend, argc, argv);
  if (!loaded.config) return loaded.exit_code;
  baton::start_process_log(*loaded.config, loaded.config->frontend.name);
  baton::SignalFd signals(/*reloads=*/true);
  baton::stay_awake_for(loaded.config->awake_ms * baton::kMillisecond);
  return baton::serve(*loaded.config, signals);
}
