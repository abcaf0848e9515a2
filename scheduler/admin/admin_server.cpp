#include "scheduler/admin/admin_server.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace baton {

namespace {

constexpr std::size_t kMaxClients = 32;
constexpr std::size_t kMaxLine = 4096;
/// More commands are executed once the client has read below this.
constexpr std::size_t kEnoughForNow = 1U << 20U;
/// A client that asks and never reads is cut off here.
constexpr std::size_t kMaxOutput = 16U << 20U;

}  // namespace

AdminServer::~AdminServer() {
  if (listener_) ::unlink(path_.c_str());
}

Status AdminServer::listen(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) {
    return invalid("admin socket path is longer than " +
                   std::to_string(sizeof address.sun_path - 1) + " bytes: " + path);
  }
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  const auto failed = [&](const char* what) {
    return Status(ErrorCode::internal,
                  std::string("admin socket ") + path + ": " + what + ": " + std::strerror(errno));
  };
  UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) return failed("socket");
  ::unlink(path.c_str());
  const mode_t old = ::umask(0177);  // 0600 from its first moment on
  const int bound = ::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address);
  ::umask(old);
  if (bound != 0) return failed("bind");
  if (::listen(fd.get(), 16) != 0) return failed("listen");
  listener_ = std::move(fd);
  path_ = path;
  return {};
}

void AdminServer::add_to(Poller& poller) const {
  if (!listener_) return;
  poller.add_fd(listener_.get());
  for (const Client& client : clients_) {
    if (client.closing) continue;  // its end of input stays readable for ever
    poller.add_fd(client.fd.get());
  }
}

void AdminServer::accept_clients() {
  while (listener_) {
    UniqueFd fd(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!fd) return;
    if (clients_.size() >= kMaxClients) continue;  // closed at once
    clients_.emplace_back();
    clients_.back().fd = std::move(fd);
  }
}

bool AdminServer::read(Client& client) {
  char buffer[4096];
  while (!client.closing) {
    const ssize_t n = ::recv(client.fd.get(), buffer, sizeof buffer, MSG_DONTWAIT);
    if (n > 0) {
      client.input.append(buffer, static_cast<std::size_t>(n));
      if (client.input.size() > 16 * kMaxLine) return false;
    } else if (n == 0) {
      client.closing = true;
    } else {
      return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
    }
  }
  return true;
}

void AdminServer::execute(Client& client, TimeNs now) {
  while (true) {
    if (client.pending) {
      const std::optional<std::string> text = client.pending->poll(backend_, now);
      if (!text) return;
      client.pending.reset();
      client.output += *text + "\n";
    }
    if (client.output.size() > kEnoughForNow) return;  // the rest when this has been read
    const std::size_t end = client.input.find('\n');
    if (end == std::string::npos) {
      if (client.input.size() <= kMaxLine) return;
      client.output += "error: the line is too long\n\n";
      client.input.clear();
      return;
    }
    std::string line = client.input.substr(0, end);
    client.input.erase(0, end + 1);
    if (!line.empty() && line.back() == '\r') line.pop_back();
    AdminAnswer answer = run_admin_command(line, backend_, now);
    client.pending = std::move(answer.pending);
    if (!client.pending) client.output += answer.text + "\n";
  }
}

bool AdminServer::write(Client& client) {
  while (!client.output.empty()) {
    const ssize_t n = ::send(client.fd.get(), client.output.data(), client.output.size(),
                             MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n < 0) return (errno == EAGAIN || errno == EINTR) && client.output.size() <= kMaxOutput;
    client.output.erase(0, static_cast<std::size_t>(n));
  }
  if (!client.closing) return true;
  if (client.input.find('\n') != std::string::npos) return true;  // still being worked off
  pollfd both{client.fd.get(), 0, 0};
  const bool hung_up = ::poll(&both, 1, 0) > 0 && (both.revents & (POLLHUP | POLLERR)) != 0;
  return client.pending != nullptr && !hung_up;
}

void AdminServer::serve(TimeNs now) {
  accept_clients();
  for (auto client = clients_.begin(); client != clients_.end();) {
    bool keep = read(*client);
    if (keep) {
      execute(*client, now);
      keep = write(*client);
    }
    client = keep ? std::next(client) : clients_.erase(client);
  }
}

}  // namespace baton
