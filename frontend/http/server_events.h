// Tells the client app of LLM-Inference-Deployment-Tutorial that this server came up, and that it
// goes: POST CLIENT_URL/event/server_startup and /event/server_shutdown. That API names the two
// paths and says no more about them; docs/dialects.md has the body that is sent.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <thread>

#include "ipc/status.h"
#include "ipc/types.h"

namespace baton {

/// "http://HOST[:PORT][/PREFIX]"
struct HttpUrl {
  std::string host;
  std::string port = "80";
  std::string prefix;  // "" or "/..."; no slash at its end
};
Result<HttpUrl> parse_http_url(const std::string& url);

/// One POST of JSON; ok for a status of 2xx. Blocks for at most about three times `timeout`.
Status post_json(const HttpUrl& url, const std::string& path, const std::string& body,
                 TimeNs timeout);

struct ServerEventOptions {
  HttpUrl client;
  std::string body;            // of both events
  TimeNs retry = 2 * kSecond;  // of a startup that did not arrive
  TimeNs timeout = 2 * kSecond;
  std::function<void(const std::string&)> log;
};

/// A thread of its own: `state` is asked ten times a second, and must outlive it.
class ServerEvents {
 public:
  enum class State : std::uint8_t { starting, serving, stopping };

  ServerEvents(ServerEventOptions options, std::function<State()> state);
  /// Says goodbye, where a startup was received and nobody has said it yet.
  ~ServerEvents();
  ServerEvents(const ServerEvents&) = delete;
  ServerEvents& operator=(const ServerEvents&) = delete;

 private:
  void run();
  bool send(const char* path);

  const ServerEventOptions options_;
  const std::function<State()> state_;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace baton
