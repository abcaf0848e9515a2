#include "frontend/succession/replay.h"

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>

#include "frontend/http/route_table.h"

namespace baton {
namespace {

struct Place {
  const Dialect* dialect = nullptr;
  ParseBody parse = nullptr;
};

Place place_of(const HttpRequest& request, const std::vector<const Dialect*>& dialects) {
  for (const Dialect* dialect : dialects) {
    for (const DialectRoute& route : dialect->routes()) {
      if (request.method != route.method || !path_fits(route.path, request.path())) continue;
      const auto* parse = std::get_if<ParseBody>(&route.answer);
      return parse == nullptr ? Place{} : Place{dialect, *parse};
    }
  }
  return {};
}

Result<HttpRequest> read_again(std::string_view bytes, const FramingLimits& limits) {
  RequestReader reader(limits);
  while (!bytes.empty() && reader.state() != RequestReader::State::done) {
    const std::size_t taken = reader.feed(bytes);
    if (reader.state() == RequestReader::State::failed) break;
    bytes.remove_prefix(taken);
  }
  if (reader.state() != RequestReader::State::done || !bytes.empty())
    return invalid("the journal's request is not one whole request");
  return reader.take();
}

std::uint32_t choices_of(const ParsedRequest& request) {
  return static_cast<std::uint32_t>(request.prompts.size()) * request.choices;
}

struct Rebuilt {
  std::unique_ptr<RenderedReply> reply;
  EventBounds bounds;
};

Result<Rebuilt> rebuild(const ReplyOpening& opening, const ReplaySetup& setup) {
  const auto request = read_again(opening.request, setup.framing);
  if (!request.ok()) return request.status();
  const Place place = place_of(request.value(), setup.dialects);
  if (place.parse == nullptr) return invalid("the journal's request has a path of no dialect");
  ReplyFrame frame = reply_frame(request.value(), place.dialect, setup.cors);
  frame.request_id = opening.facts.request_id;
  IntakeSettings settings = setup.settings;
  settings.any_model = takes_any_model(setup.dialects);
  ParseOutcome outcome = place.parse(
      request.value().body, request_context(request.value(), opening.facts, settings), setup.model);
  if (auto* chat = std::get_if<std::unique_ptr<PendingChat>>(&outcome)) {
    if (!opening.rendered) return invalid("the journal's chat was never rendered");
    ParseOutcome finished = (*chat)->finish(Result<std::string>(*opening.rendered), setup.model);
    outcome = std::move(finished);
  }
  auto* parsed = std::get_if<ParsedRequest>(&outcome);
  if (parsed == nullptr) return invalid("the journal's request is refused now");
  parsed->sampling.seed = opening.facts.seed;
  const EventBounds bounds{choices_of(*parsed), setup.model.tokenizer->vocab_size()};
  return Rebuilt{std::make_unique<RenderedReply>(*setup.model.tokenizer, *parsed, std::move(frame),
                                                 opening.facts),
                 bounds};
}

}  // namespace

Result<std::unique_ptr<RenderedReply>> rebuild_reply(const ReplyOpening& opening,
                                                     const ReplaySetup& setup) {
  auto made = rebuild(opening, setup);
  if (!made.ok()) return made.status();
  return std::move(made.value().reply);
}

Result<ReplayedReply> replay(const JournaledReply& journaled, std::uint64_t written,
                             const ReplaySetup& setup) {
  if (!journaled.fault.empty()) return invalid("the reply " + journaled.fault);
  const auto opening = decode_opening(journaled.records.front());
  if (!opening.ok()) return opening.status();
  if (written < opening.value().begins_at)
    return invalid("the connection was sent less than came before this reply");
  auto made = rebuild(opening.value(), setup);
  if (!made.ok()) return made.status();
  const EventBounds bounds = made.value().bounds;
  ReplayedReply out{std::move(made.value().reply), {}};
  std::uint64_t skip = written - opening.value().begins_at;
  DecodedEvent decoded;
  for (std::size_t i = 1; i < journaled.records.size(); ++i) {
    const Status status = decoded.decode(journaled.records[i], bounds);
    if (!status.ok()) return status;
    out.reply->apply(decoded.event, decoded.time);
    const std::string bytes = out.reply->take_bytes();
    const auto skipped = static_cast<std::size_t>(std::min<std::uint64_t>(skip, bytes.size()));
    out.unsent.append(bytes, skipped);
    skip -= skipped;
  }
  if (skip != 0) return invalid("the client has bytes that the journal does not make");
  return out;
}

}  // namespace baton
