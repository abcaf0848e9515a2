#include "frontend/take_over.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "frontend/http/http_reply.h"
#include "frontend/succession/socket_progress.h"

namespace baton {
namespace {

/// Nothing if there is none, or none that can be read.
std::optional<JournalMemory> mapped(std::vector<UniqueFd>& keepsakes, unsigned index) {
  if (index >= keepsakes.size() || !keepsakes[index]) return std::nullopt;
  auto memory = JournalMemory::map(std::move(keepsakes[index]));
  if (!memory.ok()) {
    spdlog::error("what the process before left: {}", memory.status().message());
    return std::nullopt;
  }
  return std::move(memory).value();
}

bool ends_here(const FrontendDeaths& deaths) {
  return deaths.row >= kMostDeathsInARow || deaths.all >= kMostDeathsInAll;
}

/// Bytes that another process had read go where this one's own reading would have put them.
void keep(ClientConnection& connection, std::string_view bytes) {
  while (!bytes.empty()) {
    const std::span<char> room = connection.kept.room();
    if (room.empty()) return connection.kept.lose();
    const std::size_t size = std::min(room.size(), bytes.size());
    std::memcpy(room.data(), bytes.data(), size);
    connection.kept.took(size);
    bytes.remove_prefix(size);
  }
}

/// A death while it lives is counted against the request: who cannot even be read again must not
/// end front ends for ever.
class AtInherited {
 public:
  AtInherited(std::span<std::byte> memory, const InheritedInput& input)
      : memory_(memory), input_(input) {
    mark_at_work(memory_, input_, true);
  }
  ~AtInherited() { mark_at_work(memory_, input_, false); }
  AtInherited(const AtInherited&) = delete;
  AtInherited& operator=(const AtInherited&) = delete;

 private:
  std::span<std::byte> memory_;
  const InheritedInput& input_;
};

}  // namespace

struct Legacy::Parts {
  FrontendLoop& loop;
  HttpServers& http;
  Journal& journal;
  const std::function<ReplaySetup(const HttpServer&)>& setup;
  TakenOver done = {};
};

Legacy::Legacy(Inheritance inheritance) : inheritance_(std::move(inheritance)) {
  reply_memory_ = mapped(inheritance_.keepsakes, kReplyKeepsake);
  input_memory_ = mapped(inheritance_.keepsakes, kInputKeepsake);
  if (!reply_memory_ || !input_memory_) return;
  auto contents = read_journal(reply_memory_->bytes());
  auto inputs = read_inputs(input_memory_->bytes());
  for (const Status& status : {contents.status(), inputs.status()}) {
    if (status.ok()) continue;
    spdlog::error("what the process before left: {}", status.message());
    return;
  }
  count_deaths(input_memory_->bytes(), inputs.value());
  place_ = contents.value().place;
  for (JournaledReply& reply : contents.value().replies)
    replies_.emplace(reply.cookie, std::move(reply));
  for (InheritedInput& input : inputs.value()) inputs_.emplace(input.cookie, std::move(input));
}

TakenOver Legacy::adopt(FrontendLoop& loop, HttpServers& http, Journal& journal,
                        const std::function<ReplaySetup(const HttpServer&)>& setup,
                        const std::function<void()>& alive) {
  Parts parts{loop, http, journal, setup};
  for (UniqueFd& fd : inheritance_.connections) {
    alive();
    if (!take(std::move(fd), parts)) ++parts.done.lost;
  }
  inheritance_.connections.clear();
  return parts.done;
}

/// False: what this client is owed nobody can make; its connection ends.
bool Legacy::take(UniqueFd fd, Parts& parts) {
  HttpServer* server = parts.http.at_port(HttpServer::port_of(fd.get()));
  const auto progress = socket_progress(fd.get());
  // Of no port of ours, or nobody is there any more.
  if (server == nullptr || !progress.ok() || progress.value().gone) return true;
  const std::uint64_t written = progress.value().written;
  const std::uint64_t cookie = socket_cookie(fd.get());
  // One that had just been accepted has no slot yet, and nothing was read of it.
  InheritedInput fresh;
  fresh.cookie = cookie;
  const auto found = inputs_.find(cookie);
  InheritedInput& input = found == inputs_.end() ? fresh : found->second;
  if (!input.fault.empty() || !input.settle(progress.value().consumed)) {
    spdlog::warn("a connection ends here: its journal {}",
                 input.fault.empty() ? "and the kernel disagree" : input.fault);
    return false;
  }
  const auto connection = server->adopt(
      std::move(fd),
      {.cookie = cookie, .base = input.base, .written = input.written, .deaths = input.deaths});
  if (connection == nullptr) return false;
  connection->put = written;
  if (progress.value().fin_sent) {  // it only waits for its client to close, too
    connection->kept.lose();
    connection->begin_closing(now_ns());
    return true;
  }
  keep(*connection, input.bytes);
  if (input.lost) connection->kept.lose();
  const auto reply = replies_.find(cookie);
  if (reply != replies_.end()) {
    take_reply(connection, *server, input, reply->second, written, parts);
    return true;
  }
  // What is sent beside replies is `100 Continue`.
  const bool gap = input.lost && progress.value().consumed != input.base + input.counted;
  const bool known = !gap && written >= input.written &&
                     (written - input.written) % kContinue.size() == 0 &&
                     (!input.unkept || written == input.written);
  if (!known || (!input.bytes.empty() && ends_here(input.deaths))) {
    connection->refuse_rest();
    parts.loop.adopt_lost(connection, !known,
                          known ? "it has ended front ends"
                                : "not all that it sent, or was sent, stands in a journal");
    ++parts.done.lost;
    return true;
  }
  unread_.push_back({&server->intake(), connection, std::move(input.bytes), input.lost,
                     written != input.written});
  ++parts.done.waiting;
  return true;
}

void Legacy::take_reply(const RequestIntake::Connection& connection, HttpServer& server,
                        InheritedInput& input, const JournaledReply& journaled,
                        std::uint64_t written, Parts& parts) {
  const auto lost = [&](bool begun, const std::string& why) {
    connection->refuse_rest();
    parts.loop.adopt_lost(connection, begun, why);
    ++parts.done.lost;
  };
  if (!journaled.fault.empty()) {
    return lost(written != input.written, "the reply " + journaled.fault);
  }
  const auto opening = decode_opening(journaled.records.front());
  if (!opening.ok()) return lost(true, opening.status().message());
  const ReplyPlace place =
      std::visit([](const auto& one) { return one.place; }, opening.value());
  if (place.request_at < input.base) {  // it was out, and its slot was about to be given back
    unread_.push_back({&server.intake(), connection, std::move(input.bytes), input.lost, false});
    ++parts.done.waiting;
    return;
  }
  const bool begun = written > place.begins_at;
  if (ends_here(input.deaths)) return lost(begun, "it has ended front ends");
  const auto go_on = [&](const std::string& first) {
    parts.journal.open(input.cookie, first);
    for (std::size_t i = 1; i < journaled.records.size(); ++i)
      parts.journal.append(input.cookie, journaled.records[i]);
    ++parts.done.replies;
  };
  if (const auto* whole = std::get_if<WholeReply>(&opening.value())) {
    auto unsent = unsent_of(*whole, written);
    if (!unsent.ok()) return lost(begun, unsent.status().message());
    server.intake().inherit_answering(connection, input.bytes, input.lost);
    if (!whole->keep_alive) connection->refuse_rest();
    go_on(journaled.records.front());
    parts.loop.adopt(connection, std::move(unsent).value(), whole->keep_alive);
    return;
  }
  const AtInherited at_work(input_memory_->bytes(), input);
  server.intake().inherit_answering(connection, input.bytes, input.lost);
  const std::string_view request =
      std::string_view(input.bytes).substr(0, connection->request_bytes);
  ReplyOpening begins = std::get<ReplyOpening>(opening.value());
  const ReplaySetup setup = parts.setup(server);
  auto replayed = replay(begins, journaled.records, request, written, setup);
  if (!replayed.ok()) return lost(begun, replayed.status().message());
  const ServedModel& model = setup.models[replayed.value().model];
  const bool renamed = model.entry != begins.entry;  // as the next successor is to find it
  begins.entry = model.entry;
  begins.identity = model.identity;
  go_on(renamed ? encode_opening(begins) : journaled.records.front());
  parts.loop.adopt(connection, std::move(replayed).value());
}

void Legacy::settle() {
  inheritance_.connections.clear();  // of a front end without a twin, which goes on with none
  inheritance_.release();
  for (const Unread& one : std::exchange(unread_, {}))
    one.intake->inherit(one.connection, one.bytes, one.lost, one.told_to_go_on);
}

}  // namespace baton
