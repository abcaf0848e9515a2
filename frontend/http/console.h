// The console: a page that shows a chat and the cluster at work, and the stream of events that it
// reads. Nothing on either changes anything.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "frontend/core/served_model.h"
#include "frontend/http/client_connection.h"
#include "frontend/http/http_error.h"
#include "frontend/http/http_reply.h"
#include "frontend/http/stream_writer.h"

namespace baton {

/// Why there is no console on this port: it is open to the network (`local` false), and no API key
/// protects it (`keys` false). Nothing: there is one.
std::optional<HttpError> console_refusal(bool local, bool keys);

/// The page. Its script and style are allowed by a nonce, everything from outside is forbidden.
/// Safe on several threads.
HttpReply console_page();

/// `GET /console/requests/ID`: where the time of a request went that has ended (ipc/explained.h).
/// Reads the files of the run directory. Safe on several threads.
ParseOutcome ended_request(const std::string& run_dir, std::string_view id);

/// Those who read the stream of events. The loop's thread alone.
class Watchers {
 public:
  static constexpr std::size_t kMost = 16;  // of a front end, whatever they watch

  explicit Watchers(StreamWriter& writer) : writer_(writer) {}

  std::size_t count() const { return watching_.size(); }
  bool empty() const { return watching_.empty(); }
  /// Sends the head; the writer knows the connection already. `owner`: as owner_name() says.
  void add(const std::shared_ptr<ClientConnection>& connection, ReplyFrame frame, std::string owner,
           TimeNs now);
  /// `line` is JSON without a line break. A watcher who has not read the last one yet misses it.
  void tell(std::string_view line, TimeNs now);
  /// To one whose client sends nothing more: does it still read? False: it is no watcher.
  bool probe(std::uint64_t connection, TimeNs now);
  /// The client has left. False: it was no watcher.
  bool left(std::uint64_t connection) { return watching_.erase(connection) != 0; }
  /// The streams end.
  void end_all(TimeNs now);

 private:
  friend bool make_place(const std::vector<Watchers*>& all, const std::string& owner, TimeNs now);
  struct Watcher {
    ReplyFrame frame;
    std::string owner;
  };
  void end(std::uint64_t connection, const ReplyFrame& frame, TimeNs now);

  StreamWriter& writer_;
  std::map<std::uint64_t, Watcher> watching_;  // by connection, the oldest first
};

/// A place for a watcher of `owner` among kMost of `all`. Where all are taken, the owner with most
/// of them loses its oldest stream. False: none has more than `owner` would have.
bool make_place(const std::vector<Watchers*>& all, const std::string& owner, TimeNs now);

}  // namespace baton
