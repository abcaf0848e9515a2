#include "frontend/http/http_server.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pistache/endpoint.h>
#include <pistache/http.h>
#include <pistache/peer.h>
#include <pistache/router.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "frontend/http/allowed_hosts.h"

namespace baton {
namespace {

namespace Http = Pistache::Http;
namespace Rest = Pistache::Rest;
namespace Tcp = Pistache::Tcp;

constexpr const char* kConnectionData = "baton";
constexpr int kBacklog = 4096;  // Pistache asks for 128, too few when hundreds of clients come at once
constexpr std::size_t kMaxExtraBytes = std::size_t{1} << 20;     // sent while a reply is under way
constexpr std::size_t kMaxLingerBytes = std::size_t{32} << 20;   // sent on after an error
constexpr auto kNever = std::chrono::hours(24 * 365 * 10);

/// The descriptor of a peer: Pistache 0.4 may hide it behind an event object.
template <typename Peer>
int descriptor_of(const Peer& peer) {
  if constexpr (requires { peer.actualFd(); }) {
    return peer.actualFd();
  } else {
    return peer.fd();
  }
}

/// Ids are unique among all servers of the process: the loop knows connections by them alone.
std::uint64_t new_connection_id() {
  static std::atomic<std::uint64_t> next{1};
  return next.fetch_add(1, std::memory_order_relaxed);
}

/// Pistache keeps its listening socket to itself; this finds it. Port 0: the first one that is none
/// of `known`.
int listening_socket(std::uint16_t port, const std::vector<int>& known = {}) {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  const int end = static_cast<int>(std::min<rlim_t>(limit.rlim_cur, 4096));
  for (int fd = 3; fd < end; ++fd) {
    int listening = 0;
    socklen_t size = sizeof listening;
    if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listening, &size) != 0 || listening == 0) continue;
    if (std::find(known.begin(), known.end(), fd) != known.end()) continue;
    sockaddr_storage address{};
    size = sizeof address;
    if (getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) continue;
    std::uint16_t found = 0;
    if (address.ss_family == AF_INET) {
      found = ntohs(reinterpret_cast<const sockaddr_in&>(address).sin_port);
    } else if (address.ss_family == AF_INET6) {
      found = ntohs(reinterpret_cast<const sockaddr_in6&>(address).sin6_port);
    }
    if (found != 0 && (port == 0 || found == port)) return fd;
  }
  return -1;
}

/// The sockets that listen already.
std::vector<int> listening_sockets() {
  std::vector<int> found;
  while (true) {
    const int fd = listening_socket(0, found);
    if (fd < 0) return found;
    found.push_back(fd);
  }
}

std::uint16_t port_of(int fd) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  if (fd < 0 || getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) return 0;
  return ntohs(address.ss_family == AF_INET6
                   ? reinterpret_cast<const sockaddr_in6&>(address).sin6_port
                   : reinterpret_cast<const sockaddr_in&>(address).sin_port);
}

}  // namespace

// ------------------------------------------------------------------------------------------ shared

class HttpServer::Impl {
 public:
  Impl(HttpServerOptions given, std::vector<HttpRoute> all_routes, HttpEvents all_events)
      : options(std::move(given)), routes(std::move(all_routes)), events(std::move(all_events)) {}

  std::shared_ptr<ClientConnection> admit(int fd);
  void dismiss(const ClientConnection& connection);
  void make_room(std::size_t wanted);
  void count_partial(ClientConnection& connection);
  std::string allowed_methods(std::string_view path) const;

  const HttpServerOptions options;
  const std::vector<HttpRoute> routes;
  const HttpEvents events;

  std::unique_ptr<Http::Endpoint> endpoint;
  int listen_fd = -1;  // Pistache's; it closes it
  std::uint16_t bound_port = 0;

  mutable std::mutex mutex;
  std::unordered_map<std::uint64_t, std::shared_ptr<ClientConnection>> connections;
  HttpServerCounters counters;
  bool stopped = false;
  std::atomic<std::size_t> partial_bytes{0};
};

namespace {

/// IPv6 as it stands in a URL.
std::string bracketed(const std::string& host) {
  return host.find(':') == std::string::npos || host.front() == '[' ? host : "[" + host + "]";
}

/// Who the client is.
void name_peer(ClientConnection& connection) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  char text[INET6_ADDRSTRLEN] = "?";
  if (getpeername(connection.fd(), reinterpret_cast<sockaddr*>(&address), &size) != 0) return;
  if (address.ss_family == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(address);
    connection.peer = inet_ntop(AF_INET, &v4.sin_addr, text, sizeof text);
    connection.address = connection.peer + ":" + std::to_string(ntohs(v4.sin_port));
  } else if (address.ss_family == AF_INET6) {
    auto& v6 = reinterpret_cast<sockaddr_in6&>(address);
    const std::string whole = inet_ntop(AF_INET6, &v6.sin6_addr, text, sizeof text);
    const bool mapped = IN6_IS_ADDR_V4MAPPED(&v6.sin6_addr);
    if (!mapped) std::fill(v6.sin6_addr.s6_addr + 8, v6.sin6_addr.s6_addr + 16, std::uint8_t{0});
    connection.peer = inet_ntop(AF_INET6, &v6.sin6_addr, text, sizeof text);
    connection.address = "[" + whole + "]:" + std::to_string(ntohs(v6.sin6_port));
  }
}

}  // namespace

std::shared_ptr<ClientConnection> HttpServer::Impl::admit(int fd) {
  UniqueFd own(fcntl(fd, F_DUPFD_CLOEXEC, 0));
  if (!own) return nullptr;
  const int one = 1;
  setsockopt(own.get(), IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  // Bounds what the kernel keeps for a client that never reads; it would grow to megabytes by itself.
  const int send_buffer = 256 * 1024;
  setsockopt(own.get(), SOL_SOCKET, SO_SNDBUF, &send_buffer, sizeof send_buffer);
  const std::lock_guard lock(mutex);
  if (stopped) return nullptr;
  if (connections.size() >= options.max_connections) make_room(options.max_connections / 16 + 1);
  if (connections.size() >= options.max_connections) return nullptr;
  ++counters.accepted;
  auto connection = std::make_shared<ClientConnection>(new_connection_id(), std::move(own),
                                                       options.framing, now_ns());
  name_peer(*connection);
  connection->local = is_loopback_host(bracketed(options.host));
  connections.emplace(connection->id(), connection);
  return connection;
}

void HttpServer::Impl::dismiss(const ClientConnection& connection) {
  partial_bytes.fetch_sub(connection.counted, std::memory_order_relaxed);
  const std::lock_guard lock(mutex);
  connections.erase(connection.id());
}

namespace {

/// The client has sent a request that its thread has not begun to read yet.
bool has_unread(const ClientConnection& connection) {
  char byte = 0;
  return connection.request_began.load(std::memory_order_relaxed) == 0 &&
         recv(connection.fd(), &byte, 1, MSG_PEEK | MSG_DONTWAIT) > 0;
}

}  // namespace

/// Closes the connections that have waited longest without a request under way. Mutex held.
void HttpServer::Impl::make_room(std::size_t wanted) {
  std::vector<std::pair<TimeNs, ClientConnection*>> idle;
  for (const auto& [id, connection] : connections) {
    if (connection->phase() == ConnectionPhase::reading) {
      idle.emplace_back(connection->since(), connection.get());
    }
  }
  std::sort(idle.begin(), idle.end());
  for (const auto& [since, connection] : idle) {
    if (wanted == 0) return;
    if (has_unread(*connection)) continue;
    shutdown(connection->fd(), SHUT_RDWR);  // Pistache's thread sees the end and dismisses it
    connections.erase(connection->id());
    ++counters.evicted;
    --wanted;
  }
}

void HttpServer::Impl::count_partial(ClientConnection& connection) {
  const std::size_t held = connection.reader.held();
  partial_bytes.fetch_add(held - connection.counted, std::memory_order_relaxed);
  connection.counted = held;
}

namespace {

/// Whether a route's path, in which a part that begins with ':' stands for any, is this one.
bool matches(std::string_view route, std::string_view path) {
  while (!route.empty() && !path.empty()) {
    const std::string_view wanted = route.substr(0, route.find('/', 1));
    const std::string_view given = path.substr(0, path.find('/', 1));
    const bool any = wanted.starts_with("/:") && given.size() > 1;
    if (!any && wanted != given) return false;
    route.remove_prefix(wanted.size());
    path.remove_prefix(given.size());
  }
  return route.empty() && path.empty();
}

}  // namespace

/// For a path without a route of the method at hand: the methods it has, "" if it has none.
std::string HttpServer::Impl::allowed_methods(std::string_view path) const {
  while (path.size() > 1 && path.back() == '/') path.remove_suffix(1);
  std::string allowed;
  for (const HttpRoute& route : routes) {
    if (!matches(route.path, path)) continue;
    if (!allowed.empty()) allowed += ", ";
    allowed += route.method == "GET" ? "GET, HEAD" : route.method;
  }
  if (!allowed.empty()) allowed += ", OPTIONS";
  return allowed;
}

// ---------------------------------------------------------------------------- Pistache's threads

namespace {

/// Pistache clones one for each of its threads, so nothing in it is shared but `impl`. Replies never go
/// through Pistache: a client that leaves at the wrong moment makes its writer throw on a thread that
/// nobody guards, which ends the process.
class GuardedHandler : public Http::Handler {
 public:
  HTTP_PROTOTYPE(GuardedHandler)

  GuardedHandler(HttpServer::Impl* impl, HttpServerOptions options)
      : impl_(impl), options_(std::move(options)) {
    add_routes();
  }
  GuardedHandler(const GuardedHandler& other)
      : Http::Handler(other), impl_(other.impl_), options_(other.options_) {
    add_routes();  // Router is not safe for several threads: each clone has its own
  }
  GuardedHandler& operator=(const GuardedHandler&) = delete;

  void onRequest(const Http::Request& /*request*/, Http::ResponseWriter /*response*/) override {
    // Never called: onInput() below does not hand bytes to the base class.
  }

 private:
  void add_routes();
  void onConnection(const std::shared_ptr<Tcp::Peer>& peer) override;
  void onDisconnection(const std::shared_ptr<Tcp::Peer>& peer) override;
  void onInput(const char* bytes, std::size_t size,
               const std::shared_ptr<Tcp::Peer>& peer) override;
  void read(std::string_view bytes, const std::shared_ptr<Tcp::Peer>& peer);
  void discard(std::size_t size);
  void after_feed(const std::shared_ptr<Tcp::Peer>& peer);
  void route(HttpRequest request, const std::shared_ptr<Tcp::Peer>& peer);
  void refuse(const HttpRequest& request, const FramingFault& fault);

  HttpServer::Impl* impl_;
  HttpServerOptions options_;
  Rest::Router router_;
  // The request that is being routed; valid inside route().
  std::shared_ptr<ClientConnection> connection_;
  HttpRequest request_;
};

void GuardedHandler::add_routes() {
  for (const HttpRoute& entry : impl_->routes) {
    const auto handle = [this, &entry](const Rest::Request& /*request*/,
                                       Http::ResponseWriter /*response*/) {
      entry.handle(connection_, std::move(request_));
      return Rest::Route::Result::Ok;
    };
    if (entry.method == "GET") {
      router_.get(entry.path, handle);
      router_.head(entry.path, handle);
    } else {
      router_.post(entry.path, handle);
    }
  }
  // Runs when no route fits, before Pistache would answer 404 or 405 by itself.
  router_.addCustomHandler(
      [this](const Rest::Request& /*request*/, Http::ResponseWriter /*response*/) {
        const std::string allowed = impl_->allowed_methods(request_.path());
        impl_->events.unrouted(connection_, std::move(request_), allowed);
        return Rest::Route::Result::Ok;
      });
}

void GuardedHandler::onConnection(const std::shared_ptr<Tcp::Peer>& peer) {
  // Pistache's idle check looks for a parser at every peer.
  peer->putData(ParserData, std::make_shared<Http::RequestParser>(options_.framing.max_head_bytes));
  const int fd = descriptor_of(*peer);
  if (auto connection = impl_->admit(fd)) {
    peer->putData(kConnectionData, connection);
  } else {
    shutdown(fd, SHUT_RDWR);
  }
}

void GuardedHandler::onDisconnection(const std::shared_ptr<Tcp::Peer>& peer) {
  if (const auto data = peer->tryGetData(kConnectionData)) {
    impl_->dismiss(*std::static_pointer_cast<ClientConnection>(data));
  }
}

void GuardedHandler::onInput(const char* bytes, std::size_t size,
                             const std::shared_ptr<Tcp::Peer>& peer) {
  connection_ = std::static_pointer_cast<ClientConnection>(peer->tryGetData(kConnectionData));
  if (!connection_) return;
  try {
    read(std::string_view(bytes, size), peer);
  } catch (const std::exception& error) {
    // Out of memory, say. What leaves this function ends the process.
    connection_->begin_closing(now_ns());
    shutdown(connection_->fd(), SHUT_RDWR);
  }
  connection_.reset();
}

void GuardedHandler::read(std::string_view bytes, const std::shared_ptr<Tcp::Peer>& peer) {
  while (!bytes.empty()) {
    if (connection_->phase() != ConnectionPhase::reading) {
      if (!connection_->note_extra()) continue;  // the reply has just ended
      discard(bytes.size());
      return;
    }
    const TimeNs now = now_ns();
    RequestReader& reader = connection_->reader;
    const bool began = reader.started();
    bytes.remove_prefix(reader.feed(bytes));
    // Empty lines before a request are none: whoever sends nothing else is idle.
    if (!began && reader.state() == RequestReader::State::head && !reader.started()) continue;
    if (!began) connection_->request_began.store(now, std::memory_order_relaxed);
    connection_->touch(now);
    impl_->count_partial(*connection_);
    after_feed(peer);
  }
}

/// Bytes nobody will read. A client that sends them for ever would hold this thread for ever.
void GuardedHandler::discard(std::size_t size) {
  connection_->discarded += size;
  // After an error the client may be sending a body for a while before it looks at the reply.
  const bool patient = connection_->refused || connection_->phase() == ConnectionPhase::closing;
  if (connection_->discarded > (patient ? kMaxLingerBytes : kMaxExtraBytes)) {
    connection_->begin_closing(now_ns());
    shutdown(connection_->fd(), SHUT_RDWR);
  }
}

void GuardedHandler::after_feed(const std::shared_ptr<Tcp::Peer>& peer) {
  RequestReader& reader = connection_->reader;
  switch (reader.state()) {
    case RequestReader::State::failed:
      refuse(reader.request(), reader.fault());
      return;
    case RequestReader::State::done: {
      HttpRequest request = reader.take();
      impl_->count_partial(*connection_);
      connection_->request_began.store(0, std::memory_order_relaxed);
      connection_->in_body.store(false, std::memory_order_relaxed);
      route(std::move(request), peer);
      return;
    }
    case RequestReader::State::body:
      connection_->in_body.store(true, std::memory_order_relaxed);
      if (impl_->partial_bytes.load(std::memory_order_relaxed) > options_.max_partial_bytes) {
        refuse(reader.request(),
               {503, "overloaded", "too many request bodies are being received; try again later"});
      } else if (reader.take_expectation()) {
        impl_->events.expects_continue(connection_);
      }
      return;
    case RequestReader::State::head:
      if (!reader.started()) connection_->request_began.store(0, std::memory_order_relaxed);
      return;
  }
}

void GuardedHandler::refuse(const HttpRequest& request, const FramingFault& fault) {
  connection_->refused = true;
  if (!connection_->begin_reply(now_ns())) return;
  impl_->events.refused(connection_, request, fault);
}

/// Pistache parses the request line and routes; it sees no header that it might choke on and no body.
void GuardedHandler::route(HttpRequest request, const std::shared_ptr<Tcp::Peer>& peer) {
  if (!connection_->begin_reply(now_ns())) return;
  const std::string head = request.method + " " + request.target + " HTTP/1.1\r\nHost: baton\r\n\r\n";
  request_ = std::move(request);
  const auto parser = getParser(peer);
  try {
    parser->reset();
    if (!parser->feed(head.data(), head.size()) ||
        parser->parse() != Http::Private::State::Done) {
      impl_->events.refused(connection_, request_,
                            {400, "bad_request", "the request line cannot be parsed"});
    } else {
      router_.route(parser->request,
                    Http::ResponseWriter(parser->request.version(), transport(), this, peer));
    }
  } catch (const Http::HttpError& error) {
    impl_->events.refused(connection_, request_,
                          {error.code() == 400 ? 501 : error.code(), "not_implemented", error.reason()});
  }
  parser->reset();
  request_ = HttpRequest{};
}

}  // namespace

// ------------------------------------------------------------------------------------------ public

HttpServer::HttpServer(HttpServerOptions options, std::vector<HttpRoute> routes, HttpEvents events)
    : impl_(std::make_unique<Impl>(std::move(options), std::move(routes), std::move(events))) {}

HttpServer::~HttpServer() {
  stop();
  impl_->endpoint.reset();  // joins Pistache's threads before what they use goes
}

Status HttpServer::start() {
  const HttpServerOptions& o = impl_->options;
  const std::string host = bracketed(o.host);
  try {
    impl_->endpoint =
        std::make_unique<Http::Endpoint>(Pistache::Address(host, Pistache::Port(o.port)));
    // Time-outs and sizes are ours to judge: Pistache would answer by itself, through its own writer.
    impl_->endpoint->init(Http::Endpoint::options()
                              .threads(o.threads)
                              .threadsName("http")
                              .flags(Tcp::Options::ReuseAddr | Tcp::Options::NoDelay |
                                     Tcp::Options::CloseOnExec)
                              .backlog(kBacklog)
                              .maxRequestSize(o.framing.max_head_bytes)
                              .headerTimeout(kNever)
                              .bodyTimeout(kNever)
                              .keepaliveTimeout(kNever));
    impl_->endpoint->setHandler(std::make_shared<GuardedHandler>(impl_.get(), o));
    const std::vector<int> known = listening_sockets();
    impl_->endpoint->serveThreaded();  // binds
    impl_->listen_fd = listening_socket(o.port, known);
    impl_->bound_port = port_of(impl_->listen_fd);
    if (impl_->listen_fd >= 0) listen(impl_->listen_fd, kBacklog);
  } catch (const std::exception& error) {
    impl_->endpoint.reset();
    return Status(ErrorCode::unavailable, "cannot listen on " + host + ":" +
                                              std::to_string(o.port) + ": " + error.what());
  }
  return {};
}

std::uint16_t HttpServer::port() const { return impl_->bound_port; }

void HttpServer::stop() {
  {
    const std::lock_guard lock(impl_->mutex);
    if (impl_->stopped) return;
    impl_->stopped = true;
    for (const auto& [id, connection] : impl_->connections) {
      if (connection->phase() == ConnectionPhase::reading) shutdown(connection->fd(), SHUT_RDWR);
    }
  }
  if (!impl_->endpoint) return;
  impl_->endpoint->shutdown();
  if (impl_->listen_fd >= 0) shutdown(impl_->listen_fd, SHUT_RDWR);  // later clients are refused
}

void HttpServer::reap(TimeNs now) {
  const HttpServerOptions& o = impl_->options;
  const std::lock_guard lock(impl_->mutex);
  for (const auto& [id, connection] : impl_->connections) {
    const TimeNs quiet = now - connection->since();
    const TimeNs began = connection->request_began.load(std::memory_order_relaxed);
    bool late = false;
    switch (connection->phase()) {
      case ConnectionPhase::reading:
        if (began == 0) {
          late = quiet > o.keep_alive_timeout;
        } else if (connection->in_body.load(std::memory_order_relaxed)) {
          late = quiet > o.body_timeout || now - began > 10 * o.body_timeout;
        } else {
          late = now - began > o.head_timeout;
        }
        if (late && began != 0) {
          ++impl_->counters.timed_out;
          late = false;
          if (connection->begin_reply(now)) {
            impl_->events.refused(connection, HttpRequest{},
                                  {408, "request_timeout", "the request did not come in time"});
          }
        }
        break;
      case ConnectionPhase::closing: late = quiet > o.closing_timeout; break;
      default: break;
    }
    if (late) {
      connection->begin_closing(now);
      shutdown(connection->fd(), SHUT_RDWR);
    }
  }
}

HttpServerCounters HttpServer::counters() const {
  const std::lock_guard lock(impl_->mutex);
  HttpServerCounters counters = impl_->counters;
  counters.open = impl_->connections.size();
  return counters;
}

}  // namespace baton
