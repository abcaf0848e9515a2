// How a front end goes on with what its predecessor left: sockets, the bytes that clients have sent
// and nobody has answered, and the replies that are owed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "frontend/frontend_loop.h"
#include "frontend/http/http_servers.h"
#include "frontend/succession/inheritance.h"
#include "frontend/succession/input_journal.h"
#include "frontend/succession/journal.h"
#include "frontend/succession/journal_memory.h"
#include "frontend/succession/replay.h"

namespace baton {

/// Which keepsake of a twin is which.
inline constexpr unsigned kReplyKeepsake = 0;
inline constexpr unsigned kInputKeepsake = 1;

/// What became of the connections that were left.
struct TakenOver {
  std::size_t replies = 0;  // that go on
  std::size_t waiting = 0;  // without a reply on its way
  std::size_t lost = 0;     // that cannot go on; each is told why, or cut off
};

class Legacy {
 public:
  /// Reads the journals. One that cannot be read costs the replies that are under way, and the log
  /// says so.
  explicit Legacy(Inheritance inheritance);

  /// incarnation 0: nobody knows.
  const FrontendPlace& place() const { return place_; }
  std::vector<UniqueFd> take_listeners() { return std::exchange(inheritance_.listeners, {}); }

  /// Takes all connections in. Writes to this process's own journals what it goes on with, but to
  /// no client: until its twin has committed, this process may die and all is with the old twin.
  /// Large requests are parsed again, so it may take seconds: calls `alive` before each.
  TakenOver adopt(FrontendLoop& loop, HttpServers& http, Journal& journal,
                  const std::function<ReplaySetup(const HttpServer&)>& setup,
                  const std::function<void()>& alive);
  /// The old twin may go, and requests that the predecessor had read in part, or had not begun to
  /// answer, are read on. Before the servers start.
  void settle();

 private:
  /// A client whose bytes are read on once all is settled.
  struct Unread {
    RequestIntake* intake = nullptr;
    RequestIntake::Connection connection;
    std::string bytes;
    bool lost = false;
    bool told_to_go_on = false;
  };
  struct Parts;
  bool take(UniqueFd fd, Parts& parts);
  void take_reply(const RequestIntake::Connection& connection, HttpServer& server,
                  InheritedInput& input, const JournaledReply& reply, std::uint64_t written,
                  Parts& parts);

  Inheritance inheritance_;
  std::optional<JournalMemory> reply_memory_, input_memory_;
  FrontendPlace place_;
  std::unordered_map<std::uint64_t, JournaledReply> replies_;  // by cookie
  std::unordered_map<std::uint64_t, InheritedInput> inputs_;   // likewise
  std::vector<Unread> unread_;
};

}  // namespace baton
