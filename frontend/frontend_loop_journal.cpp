// What the loop leaves for a successor, and how it goes on with what a predecessor left.
#include <spdlog/spdlog.h>

#include <utility>

#include "frontend/frontend_loop.h"
#include "frontend/http/http_error.h"

namespace baton {

// ------------------------------------------------------------------------------- what is written

/// Noted with the bytes that it makes, before any of them leaves.
bool FrontendLoop::apply(Reply& reply, const ReplyEvent& event) {
  RenderedReply& rendered = reply.rendered;
  const std::size_t before = rendered.bytes().size();
  const bool stopped = rendered.apply(event, now_);
  if (options_.journal != nullptr && reply.connection->kept) {
    record_.clear();
    encode_event(event, now_, made(rendered.bytes().substr(before)), record_);
    options_.journal->append(reply.cookie(), record_);
    reply.connection->kept.got_on();
  }
  return stopped;
}

/// The scheduler must not know an attempt of which a successor does not.
void FrontendLoop::note_attempts(const TableOutput& out) {
  for (const FrontendMessage& message : out.messages) {
    const auto* submit = std::get_if<Submit>(&message);
    if (submit == nullptr) continue;
    const auto choice = choices_.find(submit->request.counter);
    if (choice == choices_.end()) continue;
    const Reply& reply = replies_.at(choice->second.connection);
    record_.clear();
    encode_attempt({static_cast<std::uint32_t>(choice->first - reply.counters.front()),
                    submit->attempt},
                   record_);
    options_.journal->append(reply.cookie(), record_);
  }
}

void FrontendLoop::note_place() {
  FrontendPlace place;
  place.incarnation = options_.identity.incarnation;
  place.next_counter = next_counter();
  place.generation = options_.identity.generation;
  for (std::size_t i = 0; i < links_.size(); ++i) {
    const Epoch epoch = links_[i]->table.scheduler().epoch;
    const std::uint64_t model = links_[i]->options.served.identity;
    const SchedulerPlace known{model, epoch != 0 ? epoch : options_.place.of(model).epoch,
                               max_context(i)};
    if (model != 0) {
      place.several.push_back(known);
      continue;
    }
    place.epoch = known.epoch;
    place.max_context = known.max_context;
  }
  options_.journal->note(place);
}

ReplyPlace FrontendLoop::place_of(const ClientConnection& connection) const {
  return {connection.kept.base(), connection.put};
}

void FrontendLoop::keep_whole(ClientConnection& connection, bool keep_alive,
                              std::string_view bytes) {
  if (options_.journal == nullptr || !connection.kept) return;
  const bool kept = options_.journal->open(connection.kept.cookie(),
                                           encode_whole(place_of(connection), keep_alive, bytes));
  if (!kept) connection.kept.reply_unkept();
}

// ----------------------------------------------------------------------------- what was inherited

void FrontendLoop::adopt(const std::shared_ptr<ClientConnection>& connection,
                         ReplayedReply replayed) {
  now_ = now_ns();
  writer_.open(connection, now_);
  const std::uint64_t id = connection->id();
  const TimeNs received = replayed.reply->facts().received;
  Reply reply{.rendered = std::move(*replayed.reply),
              .route = replayed.route,
              .model = replayed.model,
              .connection = connection,
              .sent = now_,
              .counters = {},
              .times = {.received = received},
              .marks = {.first_byte = received, .whole = received},
              .last_end = {}};
  ModelLink& link = link_of(reply);
  for (std::uint32_t i = 0; i < replayed.requests.size(); ++i) {
    ReplayedRequest& one = replayed.requests[i];
    const std::uint64_t counter = replayed.first_counter + i;
    reply.counters.push_back(counter);
    if (one.ended) continue;
    choices_[counter] = {id, i * replayed.choices_each};
    const std::int32_t key = reply.frame().api_key;
    if (key >= 0) {
      belongs_to(meter_.key(static_cast<std::size_t>(key)), options_.salt_by_key, one.request);
    }
    link.table.adopt(
        {counter, one.attempt, received, std::move(one.request), std::move(one.generated)}, now_);
    if (one.stopped_at != 0) link.table.finish(counter, one.stopped_at, now_, link.out);
  }
  if (reply.rendered.over()) {
    adopt(connection, std::move(replayed.unsent), reply.rendered.keep_alive());
    return;
  }
  if (reply.frame().api_key >= 0) {
    meter_.inherit(static_cast<std::size_t>(reply.frame().api_key),
                   static_cast<std::uint32_t>(reply.counters.size()));
  }
  reply.span = open_span(reply.frame(), reply.route, *connection, nullptr);
  if (reply.span) {
    reply.span->generates = true;
    reply.span->model = link.options.served.name;
  }
  replies_.emplace(id, std::move(reply));
  note_place();
  at_start_.push_back(
      [this, id, unsent = std::move(replayed.unsent)] { writer_.send(id, unsent, now_); });
}

void FrontendLoop::adopt(const std::shared_ptr<ClientConnection>& connection, std::string unsent,
                         bool keep_alive) {
  writer_.open(connection, now_ns());
  at_start_.push_back([this, id = connection->id(), unsent = std::move(unsent), keep_alive] {
    writer_.finish(id, unsent, keep_alive, now_);
  });
}

void FrontendLoop::adopt_lost(const std::shared_ptr<ClientConnection>& connection, bool begun,
                              const std::string& why) {
  spdlog::warn("client={}: its reply ends here: {}", connection->address, why);
  if (begun) {
    at_start_.push_back([connection] { connection->cut_off(now_ns()); });
    return;
  }
  writer_.open(connection, now_ns());
  at_start_.push_back([this, connection, why] {
    Job job;
    job.connection = connection;
    job.frame.minor = connection->minor.load();
    job.route = kNoRoute;
    HttpError error = http_error(500, "this request cannot go on: " + why, "frontend_crashes");
    HttpReply reply;
    reply.status = error.status;
    reply.body = std::move(error.body);
    reply.reason = why;
    reply_now(job, std::move(reply));
  });
}

}  // namespace baton
