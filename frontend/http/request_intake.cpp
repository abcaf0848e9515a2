#include "frontend/http/request_intake.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <exception>
#include <optional>
#include <span>
#include <utility>

#include "frontend/succession/socket_progress.h"

namespace baton {
namespace {

constexpr std::size_t kMaxBacklog = std::size_t{1} << 20;       // of requests before their turn
constexpr std::size_t kMaxExtraBytes = std::size_t{1} << 20;    // sent beyond that
constexpr std::size_t kReadBytes = 16 * 1024;                    // that find no room in a journal
constexpr std::size_t kMaxLingerBytes = std::size_t{32} << 20;  // sent on after an error

/// Ids are unique among all servers of the process: the loop knows connections by them alone.
std::uint64_t new_connection_id() {
  static std::atomic<std::uint64_t> next{1};
  return next.fetch_add(1, std::memory_order_relaxed);
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

/// The client has sent a request that nobody has begun to read yet.
bool has_unread(const ClientConnection& connection) {
  char byte = 0;
  return connection.request_began.load(std::memory_order_relaxed) == 0 &&
         recv(connection.fd(), &byte, 1, MSG_PEEK | MSG_DONTWAIT) > 0;
}

}  // namespace

/// What reading some bytes led to, acted upon once nothing is locked.
struct RequestIntake::Outcome {
  std::optional<HttpRequest> request;  // whole, at fault, or refused by its head alone
  FramingFault fault;
  bool expects_continue = false;
};

std::size_t RequestIntake::share_of(std::size_t all) const {
  return static_cast<std::size_t>(static_cast<double>(all) * options_.peer_share);
}

// -------------------------------------------------------------------------------- connections

RequestIntake::Connection RequestIntake::admit(UniqueFd fd) {
  const int one = 1;
  setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  // Bounds what the kernel keeps for a client that never reads; it would grow to megabytes by
  // itself.
  const int send_buffer = 256 * 1024;
  setsockopt(fd.get(), SOL_SOCKET, SO_SNDBUF, &send_buffer, sizeof send_buffer);
  const std::uint64_t cookie = options_.journal == nullptr ? 0 : socket_cookie(fd.get());
  return admit(std::move(fd), InputStart{.cookie = cookie});
}

RequestIntake::Connection RequestIntake::admit(UniqueFd fd, const InputStart& start) {
  auto connection = std::make_shared<ClientConnection>(new_connection_id(), std::move(fd),
                                                       options_.framing, now_ns());
  if (options_.journal != nullptr) connection->kept = options_.journal->open(start);
  connection->put = start.written;
  name_peer(*connection);
  connection->local = options_.local;
  connection->resume = [this](const Connection& c) { resume(c); };
  const std::lock_guard lock(mutex_);
  if (stopped_) return nullptr;
  std::shared_ptr<PeerUse>& known = peers_[connection->peer];
  if (known == nullptr) known = std::make_shared<PeerUse>();
  const std::shared_ptr<PeerUse> use = connection->use = known;
  connection->held.enter(held_, use);
  ++use->connections;  // before others of it make room: its record must not be forgotten
  const std::size_t most = std::max<std::size_t>(1, share_of(options_.max_connections));
  const auto full = [&] { return connections_.size() >= options_.max_connections; };
  if (use->connections > most || full()) forget_ended();
  if (use->connections > most) make_room(most / 16 + 1, use.get());
  if (full()) make_room(options_.max_connections / 16 + 1, nullptr);
  if (full() || use->connections > most) {
    forget(*connection);
    return nullptr;
  }
  ++counters_.accepted;
  connections_.emplace(connection->id(), connection);
  return connection;
}

/// Phase closing. Mutex held.
void RequestIntake::forget(ClientConnection& connection) {
  connection.release();
  connections_.erase(connection.id());
  if (--connection.use->connections == 0) peers_.erase(connection.peer);
}

/// Those whose client left while it was owed a reply, and whose reply is over since. Mutex held.
void RequestIntake::forget_ended() {
  std::vector<Connection> gone;
  for (const auto& [id, connection] : connections_) {
    if (connection->phase() != ConnectionPhase::closing) continue;
    const std::lock_guard input(connection->input);
    if (connection->ended) gone.push_back(connection);
  }
  for (const Connection& connection : gone) forget(*connection);
}

/// Closes the connections, `of` one address or of all, that have waited longest without a request
/// under way. Mutex held.
void RequestIntake::make_room(std::size_t wanted, const PeerUse* of) {
  std::vector<std::pair<TimeNs, Connection>> idle;
  for (const auto& [id, connection] : connections_) {
    if (of != nullptr && connection->use.get() != of) continue;
    if (connection->phase() == ConnectionPhase::reading) {
      idle.emplace_back(connection->since(), connection);
    }
  }
  std::sort(idle.begin(), idle.end(),
            [](const auto& a, const auto& b) { return a.first < b.first; });
  for (const auto& [since, connection] : idle) {
    if (wanted == 0) return;
    if (has_unread(*connection)) continue;
    connection->cut_off(now_ns());  // whoever reads it sees the end
    forget(*connection);
    ++counters_.evicted;
    --wanted;
  }
}

void RequestIntake::end(const Connection& connection) {
  bool over = false;
  {
    const std::lock_guard lock(connection->input);
    connection->ended = true;
    const ConnectionPhase phase = connection->phase();
    over = phase == ConnectionPhase::reading || phase == ConnectionPhase::closing;
    if (over) {
      connection->begin_closing(now_ns());
    }
  }
  if (over) connection->release();
  // Who is owed a reply stays among those that are counted; forget_ended() lets it go.
  const std::lock_guard lock(mutex_);
  if (over && connections_.contains(connection->id())) forget(*connection);
}

void RequestIntake::stop() {
  const std::lock_guard lock(mutex_);
  stopped_ = true;
  for (const auto& [id, connection] : connections_) {
    if (connection->phase() == ConnectionPhase::reading) shutdown(connection->fd(), SHUT_RDWR);
  }
}

void RequestIntake::reap(TimeNs now) {
  const std::lock_guard lock(mutex_);
  forget_ended();
  look_for_unowned(now);
  for (const auto& [id, connection] : connections_) {
    const TimeNs quiet = now - connection->since();
    const TimeNs began = connection->request_began.load(std::memory_order_relaxed);
    bool late = false;
    switch (connection->phase()) {
      case ConnectionPhase::reading:
        if (began == 0) {
          late = quiet > options_.keep_alive_timeout;
        } else if (connection->in_body.load(std::memory_order_relaxed)) {
          late = quiet > options_.body_timeout || now - began > 10 * options_.body_timeout;
        } else {
          late = now - began > options_.head_timeout;
        }
        if (late && began != 0) {
          ++counters_.timed_out;
          late = false;
          const std::lock_guard input(connection->input);
          connection->refused = true;
          if (connection->begin_reply(now)) {
            events_.refused(connection, HttpRequest{},
                            {408, "request_timeout", "the request did not come in time"});
          }
        }
        break;
      case ConnectionPhase::closing:
        late = quiet > options_.closing_timeout;
        break;
      default:
        break;
    }
    if (late) {
      // The time of one that is closing goes on: it shows whether it ever ends.
      if (connection->phase() != ConnectionPhase::closing) connection->begin_closing(now);
      shutdown(connection->fd(), SHUT_RDWR);
    }
  }
}

HttpServerCounters RequestIntake::counters() const {
  const std::lock_guard lock(mutex_);
  HttpServerCounters counters = counters_;
  counters.open = connections_.size();
  counters.held_bytes = held_->total();
  return counters;
}

/// Bytes of a connection that should be long gone are nobody's, too. Mutex held.
void RequestIntake::look_for_unowned(TimeNs now) {
  std::vector<const ByteCharge*> owned;
  for (const auto& [id, connection] : connections_) {
    const bool gone = connection->phase() == ConnectionPhase::closing &&
                      now - connection->since() > options_.closing_timeout + kUnownedPatience;
    if (!gone) owned.push_back(&connection->held);
  }
  const std::size_t unowned = held_->unowned(owned);
  if (unowned == 0) {
    unowned_since_ = 0;
  } else if (unowned_since_ == 0) {
    unowned_since_ = now;
    unowned_least_ = unowned;
  }
  unowned_least_ = std::min(unowned_least_, unowned);
  const bool lasts = unowned != 0 && now - unowned_since_ >= kUnownedPatience;
  counters_.unowned_bytes = lasts ? unowned_least_ : 0;
}

// ------------------------------------------------------------------------------------- reading

/// What leaves the threads that call this ends the process: out of memory, say, ends one
/// connection.
template <typename Work>
void RequestIntake::guarded(const Connection& connection, Work work) {
  try {
    work();
  } catch (const std::exception&) {
    connection->cut_off(now_ns());
  }
}

void RequestIntake::take(const Connection& connection, std::string_view bytes) {
  guarded(connection, [&] {
    Outcome outcome;
    {
      const std::lock_guard lock(connection->input);
      take_some(connection, bytes, outcome);
    }
    hand_over(connection, std::move(outcome));
    relieve(*connection);
  });
}

/// `input` held.
void RequestIntake::take_some(const Connection& connection, std::string_view bytes,
                              Outcome& outcome) {
  if (connection->phase() == ConnectionPhase::reading) {
    feed(connection, bytes, outcome);
  } else {
    keep(*connection, bytes);
  }
  connection->recount();
}

bool RequestIntake::read(const Connection& connection) {
  bool open = true;
  guarded(connection, [&] {
    const AtWork at_work(connection->kept);
    Outcome outcome;
    {
      const std::lock_guard lock(connection->input);
      // Bytes that nobody will answer, or that find no room, are read all the same: they must not
      // keep a client from reading its reply.
      char spare[kReadBytes];
      std::span<char> room = connection->kept.room();
      const bool kept = !room.empty();
      if (!kept) room = spare;
      const ssize_t n = recv(connection->fd(), room.data(), room.size(), MSG_DONTWAIT);
      if (n <= 0) {
        open = n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR);
        return;
      }
      const auto size = static_cast<std::size_t>(n);
      if (kept) {
        connection->kept.took(size);
      } else {
        connection->kept.lose();
      }
      take_some(connection, {room.data(), size}, outcome);
    }
    hand_over(connection, std::move(outcome));
    relieve(*connection);
  });
  return open;
}

void RequestIntake::inherit(const Connection& connection, std::string_view bytes, bool lost,
                            bool told_to_go_on) {
  guarded(connection, [&] {
    const AtWork at_work(connection->kept);
    Outcome outcome;
    {
      const std::lock_guard lock(connection->input);
      connection->lost = lost;
      take_some(connection, bytes, outcome);
      // What comes next is behind a gap.
      if (lost && !outcome.request) connection->cut_off(now_ns());
      // Whoever read it first has said so.
      if (told_to_go_on) outcome.expects_continue = false;
    }
    hand_over(connection, std::move(outcome));
  });
}

void RequestIntake::inherit_answering(const Connection& connection, std::string_view bytes,
                                      bool lost) {
  const std::lock_guard lock(connection->input);
  RequestReader reader(options_.framing);
  connection->request_bytes = reader.feed(bytes);
  connection->minor.store(reader.request().minor, std::memory_order_relaxed);
  connection->refused = reader.state() == RequestReader::State::failed;
  connection->lost = lost;
  connection->begin_reply(now_ns());
  connection->backlog = bytes.substr(connection->request_bytes);
  connection->recount();
}

void RequestIntake::resume(const Connection& connection) {
  if (options_.pool == nullptr) return resume_now(connection);
  const auto refuse = [this, connection] { refuse_turn(connection); };
  const auto work = [this, connection] { resume_now(connection); };
  if (!options_.pool->push(connection->peer, 0, work, refuse)) refuse();
}

/// No thread has time to read what came before its turn: the first request of it is told so, and
/// the rest ends with the connection.
void RequestIntake::refuse_turn(const Connection& connection) {
  guarded(connection, [&] {
    HttpRequest known;
    {
      const std::lock_guard lock(connection->input);
      if (!connection->begin_reply(now_ns())) return;
      const std::string bytes = std::exchange(connection->backlog, {});
      connection->reader.feed(bytes);
      known = connection->reader.take();
      free_memory(known.body);
      connection->refused = true;
      discard(*connection, bytes.size());
      connection->recount();
    }
    events_.refused(connection, known,
                    {429, "queue_full", "too many requests wait to be read; try again later"});
  });
}

void RequestIntake::resume_now(const Connection& connection) {
  guarded(connection, [&] {
    const AtWork at_work(connection->kept);
    Outcome outcome;
    {
      const std::lock_guard lock(connection->input);
      if (connection->phase() != ConnectionPhase::resuming) return;
      const std::string bytes = std::exchange(connection->backlog, {});
      feed(connection, bytes, outcome);
      if (!outcome.request && (connection->ended || connection->lost)) {
        connection->cut_off(now_ns());  // the rest of it will never come
      } else if (!outcome.request) {
        connection->await_more(now_ns());
      }
      connection->recount();
    }
    hand_over(connection, std::move(outcome));
  });
}

/// Up to the end of one request; what follows it waits. `input` held, the turn is the caller's.
void RequestIntake::feed(const Connection& connection, std::string_view bytes, Outcome& outcome) {
  using State = RequestReader::State;
  RequestReader& reader = connection->reader;
  const TimeNs now = now_ns();
  const bool began = reader.started();
  const std::size_t taken = reader.feed(bytes);
  bytes.remove_prefix(taken);
  // Empty lines before a request are none: whoever sends nothing else is idle.
  if (!reader.started()) return connection->kept.skip(taken);
  connection->taken += taken;
  if (!began) connection->request_began.store(now, std::memory_order_relaxed);
  connection->touch(now);
  if (reader.state() == State::head) return;
  if (reader.state() == State::body) {
    const bool judged = connection->in_body.exchange(true, std::memory_order_relaxed);
    outcome.expects_continue = reader.take_expectation();
    if (judged || events_.worth_a_body(*connection, reader.request())) return;
    connection->refused = true;
    outcome.expects_continue = false;
  } else if (reader.state() == State::failed) {
    connection->refused = true;
    outcome.fault = reader.fault();
  }
  const TimeNs first_byte = connection->request_began.exchange(0, std::memory_order_relaxed);
  connection->in_body.store(false, std::memory_order_relaxed);
  if (!connection->begin_reply(now)) return;
  connection->first_byte = first_byte != 0 ? first_byte : now;
  outcome.request = reader.take();
  connection->request_bytes = std::exchange(connection->taken, 0);
  connection->minor.store(outcome.request->minor, std::memory_order_relaxed);
  if (connection->refused) {
    free_memory(outcome.request->body);
    discard(*connection, bytes.size());  // nobody knows where a request begins in it
  } else if (connection->lost) {
    connection->backlog = bytes;  // what came before the gap
  } else {
    keep(*connection, bytes);
  }
}

/// Bytes before their turn. `input` held.
void RequestIntake::keep(ClientConnection& connection, std::string_view bytes) {
  const bool waits =
      !connection.refused && !connection.lost && connection.phase() != ConnectionPhase::closing;
  if (waits && connection.backlog.size() + bytes.size() <= kMaxBacklog) {
    connection.backlog.append(bytes);
    return;
  }
  connection.lost = true;
  discard(connection, bytes.size());
}

/// Bytes nobody will read. A client that sends them for ever would hold its thread for ever.
void RequestIntake::discard(ClientConnection& connection, std::size_t size) {
  connection.discarded += size;
  connection.kept.lose();
  // After an error the client may be sending a body for a while before it looks at the reply.
  const bool patient = connection.refused || connection.phase() == ConnectionPhase::closing;
  if (connection.discarded > (patient ? kMaxLingerBytes : kMaxExtraBytes))
    connection.cut_off(now_ns());
}

void RequestIntake::hand_over(const Connection& connection, Outcome outcome) {
  if (!outcome.request) {
    if (outcome.expects_continue) events_.expects_continue(connection);
    return;
  }
  HttpRequest& request = *outcome.request;
  if (outcome.fault.status != 0) {
    events_.refused(connection, request, outcome.fault);
    return;
  }
  const RouteTable::Found found = routes_.find(request.method, request.path());
  if (found.route != nullptr) {
    found.route->handle(connection, std::move(request));
  } else if (!found.known_method) {
    events_.refused(connection, request, {501, "not_implemented", "this method is not known here"});
  } else {
    events_.unrouted(connection, std::move(request), found.allowed);
  }
}

// -------------------------------------------------------------------------------------- memory

/// Ends unfinished requests until all clients, and this one's address, hold no more than they may.
void RequestIntake::relieve(const ClientConnection& connection) {
  const std::size_t most = share_of(options_.max_partial_bytes);
  while (connection.use->bytes.load(std::memory_order_relaxed) > most) {
    if (!evict_one(connection.use.get())) break;
  }
  while (held_->total() > options_.max_partial_bytes) {
    if (!evict_one(nullptr)) break;
  }
}

/// The one that has held most for longest: bytes times seconds. False: there is none.
bool RequestIntake::evict_one(const PeerUse* of) {
  Connection chosen;
  double most = 0;
  {
    const std::lock_guard lock(mutex_);
    const TimeNs now = now_ns();
    for (const auto& [id, connection] : connections_) {
      if (of != nullptr && connection->use.get() != of) continue;
      const TimeNs began = connection->request_began.load(std::memory_order_relaxed);
      const TimeNs age = now - (began == 0 ? connection->since() : began) + kMillisecond;
      const double cost = static_cast<double>(connection->held.bytes()) * static_cast<double>(age);
      if (cost <= most) continue;
      most = cost;
      chosen = connection;
    }
    if (chosen != nullptr) ++counters_.evicted;
  }
  return chosen != nullptr && evict(chosen);
}

bool RequestIntake::evict(const Connection& connection) {
  HttpRequest known;
  bool told = false;
  {
    const std::lock_guard lock(connection->input);
    if (connection->phase() == ConnectionPhase::replying) {
      connection->lost = true;  // earlier requests of it are still answered
    } else if (connection->begin_reply(now_ns())) {
      known = connection->reader.take();
      free_memory(known.body);
      connection->refused = told = true;
      connection->request_began.store(0, std::memory_order_relaxed);
      connection->in_body.store(false, std::memory_order_relaxed);
    }
    connection->reader.reset();
    free_memory(connection->backlog);
    connection->kept.drop();
    connection->recount();
  }
  if (told) {
    events_.refused(
        connection, known,
        {503, "overloaded",
         "too many unfinished requests are held; this one was the largest and slowest"});
  }
  return true;
}

}  // namespace baton
