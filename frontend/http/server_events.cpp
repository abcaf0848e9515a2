#include "frontend/http/server_events.h"

#include <netdb.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <string_view>
#include <utility>

#include "ipc/process.h"

namespace baton {
namespace {

constexpr std::string_view kScheme = "http://";
constexpr TimeNs kPoll = 100 * kMillisecond;

timeval to_timeval(TimeNs time) {
  timeval value{};
  value.tv_sec = time / kSecond;
  value.tv_usec = (time % kSecond) / 1000;
  return value;
}

/// A connected socket whose calls give up after `timeout`; not valid: nobody could be reached.
UniqueFd connect_to(const HttpUrl& url, TimeNs timeout) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(url.host.c_str(), url.port.c_str(), &hints, &found) != 0) return UniqueFd();
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> guard(found, &freeaddrinfo);
  const timeval patience = to_timeval(timeout);
  for (const addrinfo* one = found; one != nullptr; one = one->ai_next) {
    UniqueFd fd(socket(one->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (!fd) continue;
    // Linux bounds connect() by the time-out of sending.
    setsockopt(fd.get(), SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
    setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    if (connect(fd.get(), one->ai_addr, one->ai_addrlen) == 0) return fd;
  }
  return UniqueFd();
}

bool send_all(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (n <= 0) return false;
    bytes.remove_prefix(static_cast<std::size_t>(n));
  }
  return true;
}

/// The reply up to its status, or what came of it.
std::string read_status_line(int fd) {
  std::string line;
  char buffer[64];
  while (line.size() < 16) {
    const ssize_t n = recv(fd, buffer, sizeof buffer, 0);
    if (n <= 0) break;
    line.append(buffer, static_cast<std::size_t>(n));
  }
  return line;
}

}  // namespace

Result<HttpUrl> parse_http_url(const std::string& text) {
  HttpUrl url;
  std::string_view rest = text;
  if (rest.substr(0, kScheme.size()) != kScheme) {
    return invalid("is '" + text + "'; it may be http://HOST:PORT");
  }
  rest.remove_prefix(kScheme.size());
  const std::size_t slash = std::min(rest.find('/'), rest.size());
  std::string_view address = rest.substr(0, slash);
  url.prefix = rest.substr(slash);
  while (!url.prefix.empty() && url.prefix.back() == '/') url.prefix.pop_back();
  const std::size_t colon = address.rfind(':');
  if (colon != std::string_view::npos) {
    url.port = address.substr(colon + 1);
    address = address.substr(0, colon);
  }
  url.host = address;
  const bool digits = !url.port.empty() && url.port.size() <= 5 &&
                      url.port.find_first_not_of("0123456789") == std::string::npos;
  if (url.host.empty() || !digits || text.find_first_of(" \r\n") != std::string::npos) {
    return invalid("is '" + text + "'; it may be http://HOST:PORT");
  }
  return url;
}

Status post_json(const HttpUrl& url, const std::string& path, const std::string& body,
                 TimeNs timeout) {
  const std::string where = "http://" + url.host + ":" + url.port + url.prefix + path;
  const UniqueFd fd = connect_to(url, timeout);
  if (!fd) return Status(ErrorCode::unavailable, where + " cannot be reached");
  const std::string request = "POST " + url.prefix + path + " HTTP/1.1\r\nHost: " + url.host + ":" +
                              url.port +
                              "\r\nContent-Type: application/json\r\nConnection: close\r\n"
                              "Content-Length: " +
                              std::to_string(body.size()) + "\r\n\r\n" + body;
  if (!send_all(fd.get(), request)) return Status(ErrorCode::unavailable, where + " does not read");
  const std::string line = read_status_line(fd.get());
  const bool good = line.rfind("HTTP/1.", 0) == 0 && line.size() > 9 && line[9] == '2';
  if (good) return {};
  return Status(ErrorCode::unavailable,
                where + " answers " + (line.size() > 12 ? line.substr(9, 3) : "nothing"));
}

ServerEvents::ServerEvents(ServerEventOptions options, std::function<State()> state)
    : options_(std::move(options)), state_(std::move(state)), thread_([this] { run(); }) {}

ServerEvents::~ServerEvents() {
  stop_.store(true);
  thread_.join();
}

bool ServerEvents::send(const char* path) {
  const Status status = post_json(options_.client, path, options_.body, options_.timeout);
  if (options_.log) {
    options_.log(status.ok() ? std::string("told the client app: ") + path : status.message());
  }
  return status.ok();
}

void ServerEvents::run() {
  TimeNs not_before = 0;
  bool told = false;
  while (!stop_.load() && state_() != State::stopping) {
    if (!told && state_() == State::serving && now_ns() >= not_before) {
      told = send("/event/server_startup");
      not_before = now_ns() + options_.retry;
    }
    usleep(static_cast<useconds_t>(kPoll / 1000));
  }
  if (told) send("/event/server_shutdown");
}

}  // namespace baton
