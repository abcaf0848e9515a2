#include "frontend/http/http_server.h"

#include <netdb.h>
#include <netinet/in.h>
#include <pistache/reactor.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "frontend/http/allowed_hosts.h"

namespace baton {
namespace {

namespace Aio = Pistache::Aio;
namespace Polling = Pistache::Polling;

constexpr int kBacklog = 4096;  // hundreds of clients may come at once
constexpr int kAcceptedAtOnce = 64;
constexpr useconds_t kNoDescriptorsPause = 10'000;

/// IPv6 as it stands in a URL.
std::string bracketed(const std::string& host) {
  return host.find(':') == std::string::npos || host.front() == '[' ? host : "[" + host + "]";
}

IntakeOptions intake_options(const HttpServerOptions& options) {
  IntakeOptions made = options;
  made.local = is_loopback_host(bracketed(options.host));
  return made;
}

/// The first address of `host` that can be listened on; an error says why there is none.
Result<UniqueFd> listen_on(std::string host, std::uint16_t port) {
  if (host.size() > 2 && host.front() == '[') host = host.substr(1, host.size() - 2);
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int failed = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (failed != 0) return Status(ErrorCode::unavailable, gai_strerror(failed));
  int error = EADDRNOTAVAIL;
  UniqueFd listener;
  for (const addrinfo* at = found; at != nullptr && !listener; at = at->ai_next) {
    UniqueFd fd(socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    const int on = 1;
    if (fd) setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (fd && ::bind(fd.get(), at->ai_addr, at->ai_addrlen) == 0 &&
        listen(fd.get(), kBacklog) == 0) {
      listener = std::move(fd);
    } else {
      error = errno;
    }
  }
  freeaddrinfo(found);
  if (!listener) return Status(ErrorCode::unavailable, std::strerror(error));
  return listener;
}

/// One of the threads that read. Pistache copies the first for each of them.
class ReadingThread : public Aio::Handler {
  PROTOTYPE_OF(Aio::Handler, ReadingThread)

 public:
  explicit ReadingThread(RequestIntake* intake) : intake_(intake) {}
  ReadingThread(const ReadingThread& other) : Aio::Handler(), intake_(other.intake_) {}

  /// From now on its bytes are read here. Any thread.
  void add(const RequestIntake::Connection& connection) {
    const int fd = connection->fd();
    {
      const std::lock_guard lock(mutex_);
      connections_[fd] = connection;
    }
    watch(fd);
  }
  /// Calls `accept` whenever somebody waits at the listening socket `fd`.
  void listen_at(int fd, std::function<void()> accept) {
    listener_ = fd;
    accept_ = std::move(accept);
    watch(fd);
  }
  void registerPoller(Polling::Epoll& /*poller*/) override {}
  void unregisterPoller(Polling::Epoll& /*poller*/) {}  // newer Pistaches ask for it

  void onReady(const Aio::FdSet& ready) override {
    for (const auto& entry : ready) {
      const int fd = static_cast<int>(entry.getTag().value());
      if (fd == listener_) {
        accept_();
        continue;
      }
      RequestIntake::Connection connection;
      {
        const std::lock_guard lock(mutex_);
        const auto at = connections_.find(fd);
        if (at == connections_.end()) continue;
        connection = at->second;
      }
      if (!intake_->read(connection)) remove(fd, connection);
    }
  }

 private:
  void watch(int fd) {
    reactor()->registerFd(key(), fd, Polling::NotifyOn::Read,
                          Polling::Tag(static_cast<std::uint64_t>(fd)));
  }
  /// The client sends nothing more.
  void remove(int fd, const RequestIntake::Connection& connection) {
    reactor()->removeFd(key(), fd);
    {
      const std::lock_guard lock(mutex_);
      connections_.erase(fd);
    }
    intake_->end(connection);
  }

  RequestIntake* const intake_;
  int listener_ = -1;
  std::function<void()> accept_;
  std::mutex mutex_;  // guards what follows
  std::unordered_map<int, RequestIntake::Connection> connections_;
};

}  // namespace

class HttpServer::Impl {
 public:
  Impl(HttpServerOptions given, std::vector<HttpRoute> routes, HttpEvents events)
      : options(std::move(given)),
        intake(intake_options(options), std::move(routes), std::move(events)) {}

  ReadingThread& thread(std::size_t i) {
    return static_cast<ReadingThread&>(*threads[i % threads.size()]);
  }
  void accept_some();

  const HttpServerOptions options;
  RequestIntake intake;
  UniqueFd listener;
  std::uint16_t bound_port = 0;
  std::shared_ptr<Aio::Reactor> reactor;
  std::vector<std::shared_ptr<Aio::Handler>> threads;
  std::size_t next_thread = 0;  // of the thread that accepts
  std::vector<RequestIntake::Connection> adopted;
  bool stopped = false;
};

/// An accepted socket is in the table of descriptors that a twin shares: from then on it survives.
void HttpServer::Impl::accept_some() {
  for (int i = 0; i < kAcceptedAtOnce; ++i) {
    UniqueFd fd(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!fd) {
      // The client waits in the kernel's queue, and epoll would tell of it again at once.
      if (errno == EMFILE || errno == ENFILE) usleep(kNoDescriptorsPause);
      return;
    }
    if (const auto connection = intake.admit(std::move(fd))) thread(next_thread++).add(connection);
  }
}

// ------------------------------------------------------------------------------------------ public

HttpServer::HttpServer(HttpServerOptions options, std::vector<HttpRoute> routes, HttpEvents events)
    : impl_(std::make_unique<Impl>(std::move(options), std::move(routes), std::move(events))) {}

HttpServer::~HttpServer() {
  stop();
  impl_->threads.clear();
  impl_->reactor.reset();  // joins the threads before what they use goes
}

std::uint16_t HttpServer::port_of(int fd) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) return 0;
  if (address.ss_family == AF_INET6)
    return ntohs(reinterpret_cast<const sockaddr_in6&>(address).sin6_port);
  return address.ss_family == AF_INET
             ? ntohs(reinterpret_cast<const sockaddr_in&>(address).sin_port)
             : 0;
}

Status HttpServer::bind() {
  const HttpServerOptions& o = impl_->options;
  auto made = listen_on(o.host, o.port);
  if (!made.ok()) {
    return Status(ErrorCode::unavailable, "cannot listen on " + bracketed(o.host) + ":" +
                                              std::to_string(o.port) + ": " +
                                              made.status().message());
  }
  bind(std::move(made).value());
  return {};
}

void HttpServer::bind(UniqueFd listener) {
  impl_->listener = std::move(listener);
  impl_->bound_port = port_of(impl_->listener.get());
}

RequestIntake::Connection HttpServer::adopt(UniqueFd fd, const InputStart& start) {
  auto connection = impl_->intake.admit(std::move(fd), start);
  if (connection != nullptr) impl_->adopted.push_back(connection);
  return connection;
}

Status HttpServer::start() {
  Impl& impl = *impl_;
  try {
    impl.reactor = Aio::Reactor::create();
    impl.reactor->init(Aio::AsyncContext(static_cast<std::size_t>(impl.options.threads), "http"));
    const auto key = impl.reactor->addHandler(std::make_shared<ReadingThread>(&impl.intake));
    impl.threads = impl.reactor->handlers(key);
    impl.reactor->run();
    for (const auto& connection : impl.adopted) impl.thread(impl.next_thread++).add(connection);
    impl.adopted.clear();
    impl.thread(0).listen_at(impl.listener.get(), [&impl] { impl.accept_some(); });
  } catch (const std::exception& error) {
    return Status(ErrorCode::unavailable,
                  "cannot start the threads that read requests: " + std::string(error.what()));
  }
  return {};
}

RequestIntake& HttpServer::intake() { return impl_->intake; }

std::uint16_t HttpServer::wanted_port() const { return impl_->options.port; }

std::uint16_t HttpServer::port() const { return impl_->bound_port; }

void HttpServer::stop() {
  impl_->intake.stop();
  if (!impl_->reactor || impl_->stopped) return;
  impl_->stopped = true;
  impl_->reactor->shutdown();
  shutdown(impl_->listener.get(), SHUT_RDWR);  // later clients are refused
}

void HttpServer::reap(TimeNs now) { impl_->intake.reap(now); }

HttpServerCounters HttpServer::counters() const { return impl_->intake.counters(); }

}  // namespace baton
