#include "frontend/http/http_server.h"

#include <netinet/in.h>
#include <pistache/endpoint.h>
#include <pistache/http.h>
#include <pistache/peer.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <utility>

#include "frontend/http/allowed_hosts.h"

namespace baton {
namespace {

namespace Http = Pistache::Http;
namespace Tcp = Pistache::Tcp;

constexpr const char* kConnectionData = "baton";
constexpr int kBacklog =
    4096;  // Pistache asks for 128, too few when hundreds of clients come at once
constexpr std::size_t kUnusedParserBytes = 1024;
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

/// Pistache keeps its listening socket to itself; this finds it. Port 0: the first one that is none
/// of `known`.
int listening_socket(std::uint16_t port, const std::vector<int>& known = {}) {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  const int end = static_cast<int>(std::min<rlim_t>(limit.rlim_cur, 4096));
  for (int fd = 3; fd < end; ++fd) {
    int listening = 0;
    socklen_t size = sizeof listening;
    if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listening, &size) != 0 || listening == 0)
      continue;
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

/// IPv6 as it stands in a URL.
std::string bracketed(const std::string& host) {
  return host.find(':') == std::string::npos || host.front() == '[' ? host : "[" + host + "]";
}

IntakeOptions intake_options(const HttpServerOptions& options) {
  IntakeOptions made = options;
  made.local = is_loopback_host(bracketed(options.host));
  return made;
}

}  // namespace

class HttpServer::Impl {
 public:
  Impl(HttpServerOptions given, std::vector<HttpRoute> routes, HttpEvents events)
      : options(std::move(given)),
        intake(intake_options(options), std::move(routes), std::move(events)) {}

  const HttpServerOptions options;
  RequestIntake intake;
  std::unique_ptr<Http::Endpoint> endpoint;
  int listen_fd = -1;  // Pistache's; it closes it
  std::uint16_t bound_port = 0;
  bool stopped = false;
};

// ---------------------------------------------------------------------------- Pistache's threads

namespace {

/// Bytes from Pistache's sockets to the intake. Pistache clones one for each of its threads.
/// Neither its parser nor its writer is used: the one takes what is no request, and a client that
/// leaves at the wrong moment makes the other throw on a thread that nobody guards, which ends the
/// process.
class InputHandler : public Http::Handler {
 public:
  HTTP_PROTOTYPE(InputHandler)

  explicit InputHandler(RequestIntake* intake) : intake_(intake) {}

  void onRequest(const Http::Request& /*request*/, Http::ResponseWriter /*response*/) override {
    // Never called: onInput() below does not hand bytes to the base class.
  }

 private:
  using Peer = std::shared_ptr<Tcp::Peer>;

  static std::shared_ptr<ClientConnection> connection_of(const Peer& peer) {
    return std::static_pointer_cast<ClientConnection>(peer->tryGetData(kConnectionData));
  }
  void onConnection(const Peer& peer) override {
    // Pistache's idle check looks for a parser at every peer.
    peer->putData(ParserData, std::make_shared<Http::RequestParser>(kUnusedParserBytes));
    const int fd = descriptor_of(*peer);
    if (auto connection = intake_->admit(fd)) {
      peer->putData(kConnectionData, connection);
    } else {
      shutdown(fd, SHUT_RDWR);
    }
  }
  void onDisconnection(const Peer& peer) override {
    if (const auto connection = connection_of(peer)) intake_->end(connection);
  }
  void onInput(const char* bytes, std::size_t size, const Peer& peer) override {
    if (const auto connection = connection_of(peer)) intake_->take(connection, {bytes, size});
  }

  RequestIntake* const intake_;
};

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
    // Time-outs and sizes are ours to judge: Pistache would answer by itself, through its own
    // writer.
    impl_->endpoint->init(
        Http::Endpoint::options()
            .threads(o.threads)
            .threadsName("http")
            .flags(Tcp::Options::ReuseAddr | Tcp::Options::NoDelay | Tcp::Options::CloseOnExec)
            .backlog(kBacklog)
            .maxRequestSize(o.framing.max_head_bytes)
            .headerTimeout(kNever)
            .bodyTimeout(kNever)
            .keepaliveTimeout(kNever));
    impl_->endpoint->setHandler(std::make_shared<InputHandler>(&impl_->intake));
    const std::vector<int> known = listening_sockets();
    impl_->endpoint->serveThreaded();  // binds
    impl_->listen_fd = listening_socket(o.port, known);
    impl_->bound_port = port_of(impl_->listen_fd);
    if (impl_->listen_fd >= 0) listen(impl_->listen_fd, kBacklog);
  } catch (const std::exception& error) {
    impl_->endpoint.reset();
    return Status(ErrorCode::unavailable,
                  "cannot listen on " + host + ":" + std::to_string(o.port) + ": " + error.what());
  }
  return {};
}

std::uint16_t HttpServer::port() const { return impl_->bound_port; }

void HttpServer::stop() {
  impl_->intake.stop();
  if (!impl_->endpoint || impl_->stopped) return;
  impl_->stopped = true;
  impl_->endpoint->shutdown();
  if (impl_->listen_fd >= 0) shutdown(impl_->listen_fd, SHUT_RDWR);  // later clients are refused
}

void HttpServer::reap(TimeNs now) { impl_->intake.reap(now); }

HttpServerCounters HttpServer::counters() const { return impl_->intake.counters(); }

}  // namespace baton
