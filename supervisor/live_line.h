// What the pair does at the moment, in one line: asked of the scheduler's admin socket.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ipc/process.h"
#include "ipc/types.h"

namespace baton {

/// The counters of an earlier answer, for rates.
struct TokensAt {
  std::uint64_t epoch = 0;  ///< of the scheduler: another one counts from zero
  std::uint64_t tokens = 0;
  double at_s = 0;
};

/// The line for the answers to "show info json", "show workers json" and "show kv json" at `now_s`,
/// such as "12 running, 3 waiting | 340 tokens/s | KV 41 % prefill0, 12 % decode0 | decode1 loading 40 %".
/// `before` is updated. Nothing if an answer is not what it should be.
std::optional<std::string> live_text(const std::array<std::string, 3>& answers, double now_s,
                                     std::optional<TokensAt>& before);

/// Keeps asking, once a second, without ever waiting.
class LiveLine {
 public:
  explicit LiveLine(std::string admin_socket) : socket_(std::move(admin_socket)) {}

  /// Sends the next questions if it is time, reads what has come. Gives the line when there is
  /// a new one; an empty one when the scheduler does not answer.
  std::optional<std::string> look(double now_s);

 private:
  bool ask();
  std::optional<std::string> read(double now_s);
  void forget();

  std::string socket_;
  UniqueFd fd_;
  std::string came_;
  bool asked_ = false;  // and not answered
  double next_s_ = 0;
  std::optional<TokensAt> before_;
};

/// Those of several schedulers, side by side, each behind the name of its model.
class LiveLines {
 public:
  void add(std::string model, std::string admin_socket);
  /// What is wrong with that model, if anything: said before what its scheduler says, and both
  /// behind what goes on elsewhere.
  void note(const std::string& model, std::string what);

  /// As of LiveLine, with what the scheduler said last where another one has news.
  std::optional<std::string> look(double now_s);

 private:
  struct Part {
    std::string model;
    LiveLine line;
    std::optional<std::string> said;
    std::string note = {};
  };
  std::vector<Part> parts_;
  bool noted_ = false;  // something new
};

}  // namespace baton
