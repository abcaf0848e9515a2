#include "frontend/succession/replay.h"

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>

#include "frontend/core/model_choice.h"
#include "frontend/http/content_coding.h"
#include "frontend/http/route_table.h"

namespace baton {
namespace {

struct Place {
  const Dialect* dialect = nullptr;
  ParseBody parse = nullptr;
  const char* route = "";
};

Place place_of(const HttpRequest& request, const std::vector<const Dialect*>& dialects) {
  for (const Dialect* dialect : dialects) {
    for (const DialectRoute& route : dialect->routes()) {
      if (request.method != route.method || !path_fits(route.path, request.path())) continue;
      const auto* parse = std::get_if<ParseBody>(&route.answer);
      return parse == nullptr ? Place{} : Place{dialect, *parse, route.path};
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

std::int32_t key_of(const HttpRequest& request, const ApiKeys* keys) {
  if (keys == nullptr || keys->open()) return -1;
  const auto key = find_key(request, *keys);
  return key ? static_cast<std::int32_t>(*key) : -1;
}

bool contains(const std::vector<std::uint64_t>& all, std::uint64_t one) {
  return std::find(all.begin(), all.end(), one) != all.end();
}

/// The model that is called by another entry's name now, and is the same otherwise. Only where the
/// other entries are what they were: then nothing of that name ran before, so that its scheduler
/// and workers know it as the configuration has it now.
std::optional<std::size_t> renamed(const ReplyOpening& opening, const ReplaySetup& setup) {
  std::optional<std::size_t> fresh;
  std::size_t loaded = 0;
  for (std::size_t i = 0; i < setup.models.size(); ++i) {
    const std::uint64_t identity = setup.models[i].identity;
    if (identity == 0) continue;
    ++loaded;
    if (contains(setup.known, identity)) continue;
    if (fresh) return std::nullopt;
    fresh = i;
  }
  if (!fresh || loaded != setup.known.size() || !contains(setup.known, opening.identity)) {
    return std::nullopt;
  }
  const ServedModel& model = setup.models[*fresh];
  const std::uint64_t before =
      model_identity(opening.entry, model.folder, model.tokenizer->vocab_size());
  return before == opening.identity ? fresh : std::nullopt;
}

/// By what the opening says, not by the request: names and their order may have changed since.
Result<std::size_t> model_of(const ReplyOpening& opening, const ReplaySetup& setup) {
  const ServedModels& models = setup.models;
  for (std::size_t i = 0; i < models.size(); ++i) {
    if (models[i].entry != opening.entry) continue;
    if (!models[i].fault.empty()) {
      return invalid("the model '" + opening.entry + "': " + models[i].fault);
    }
    if (models[i].identity == opening.identity) return i;
    return invalid("the model '" + opening.entry + "' is another one now");
  }
  if (const auto other = renamed(opening, setup)) return *other;
  if (opening.entry.empty()) return invalid("the one model that was served has no entry now");
  return invalid("the model '" + opening.entry + "' is not served any more");
}

/// What a journal's events did to the requests that make a reply.
class RequestsReplayed {
 public:
  explicit RequestsReplayed(ReplayedReply& reply)
      : reply_(reply), ended_(reply.requests.size() * reply.choices_each) {}

  void attempt(const AttemptSent& sent) { reply_.requests[sent.request].attempt = sent.attempt; }
  void event(const ReplyEvent& event, bool stopped) {
    if (const auto* token = std::get_if<TokenCame>(&event)) {
      ReplayedRequest& request = of(token->choice);
      if (request.request.sampling.beams()) return;
      request.generated.push_back(token->token);
      if (stopped) request.stopped_at = static_cast<std::uint32_t>(request.generated.size());
    } else if (const auto* end = std::get_if<ChoiceEnds>(&event)) {
      ended_[end->choice] = true;
      const auto first =
          ended_.begin() + static_cast<std::ptrdiff_t>(end->choice / each() * each());
      of(end->choice).ended = std::find(first, first + static_cast<std::ptrdiff_t>(each()),
                                        false) == first + static_cast<std::ptrdiff_t>(each());
    } else if (std::holds_alternative<ReplyFails>(event)) {
      for (ReplayedRequest& request : reply_.requests) request.ended = true;
    }
  }

 private:
  std::size_t each() const { return reply_.choices_each; }
  ReplayedRequest& of(std::uint32_t choice) { return reply_.requests[choice / each()]; }

  ReplayedReply& reply_;
  std::vector<bool> ended_;  // by choice
};

}  // namespace

Result<ReplayedReply> rebuild_reply(const ReplyOpening& opening, std::string_view text,
                                    const ReplaySetup& setup) {
  const auto request = read_again(text, setup.framing);
  if (!request.ok()) return request.status();
  const Place place = place_of(request.value(), setup.dialects);
  if (place.parse == nullptr) return invalid("the journal's request has a path of no dialect");
  ReplyFrame frame = reply_frame(request.value(), place.dialect, setup.cors);
  frame.request_id = opening.facts.request_id;
  frame.api_key = key_of(request.value(), setup.keys);
  const RequestContext context = request_context(request.value(), opening.facts, setup.settings);
  const auto chosen = model_of(opening, setup);
  if (!chosen.ok()) return chosen.status();
  ServedModel model = setup.models[chosen.value()];
  model.fingerprint = opening.fingerprint;
  if (!opening.model.empty()) model.name = opening.model;
  auto body = decoded_body(content_coding(request.value()), request.value().body,
                           setup.framing.max_body_bytes);
  if (std::holds_alternative<HttpError>(body)) return invalid("the journal's body is refused now");
  ParseOutcome outcome = place.parse(std::get<std::string>(body), context, model);
  if (auto* chat = std::get_if<std::unique_ptr<PendingChat>>(&outcome)) {
    if (!opening.rendered) return invalid("the journal's chat was never rendered");
    ParseOutcome finished = (*chat)->finish(Result<std::string>(*opening.rendered), model);
    outcome = std::move(finished);
  }
  auto* parsed = std::get_if<ParsedRequest>(&outcome);
  if (parsed == nullptr) return invalid("the journal's request is refused now");
  parsed->sampling.seed = opening.facts.seed;
  ReplayedReply made_again;
  made_again.route = place.route;
  made_again.model = chosen.value();
  made_again.first_counter = opening.first_counter;
  for (NewRequest& one : fan_out(*parsed, opening.facts.received + parsed->timeout))
    made_again.requests.push_back({.request = std::move(one)});
  made_again.choices_each = static_cast<std::uint32_t>(parsed->prompts.size() * parsed->choices /
                                                       made_again.requests.size());
  made_again.reply =
      std::make_unique<RenderedReply>(*model.tokenizer, *parsed, std::move(frame), opening.facts);
  return made_again;
}

Result<ReplayedReply> replay(const ReplyOpening& opening, const std::vector<std::string>& records,
                             std::string_view request, std::uint64_t written,
                             const ReplaySetup& setup) {
  if (written < opening.place.begins_at)
    return invalid("the connection was sent less than came before this reply");
  auto made_again = rebuild_reply(opening, request, setup);
  if (!made_again.ok()) return made_again.status();
  ReplayedReply out = std::move(made_again).value();
  const auto requests = static_cast<std::uint32_t>(out.requests.size());
  const EventBounds bounds{requests * out.choices_each, requests,
                           setup.models[out.model].tokenizer->vocab_size()};
  RequestsReplayed states(out);
  std::uint64_t skip = written - opening.place.begins_at;
  DecodedEvent decoded;
  for (std::size_t i = 1; i < records.size(); ++i) {
    const Status status = decoded.decode(records[i], bounds);
    if (!status.ok()) return status;
    if (decoded.attempt) {
      states.attempt(*decoded.attempt);
      continue;
    }
    states.event(decoded.event, out.reply->apply(decoded.event, decoded.time));
    const std::string bytes = out.reply->take_bytes();
    if (made(bytes) != decoded.bytes)
      return invalid("this build, or its configuration, writes another reply");
    const auto skipped = static_cast<std::size_t>(std::min<std::uint64_t>(skip, bytes.size()));
    out.unsent.append(bytes, skipped);
    skip -= skipped;
  }
  if (skip != 0) return invalid("the client has bytes that the journal does not make");
  return out;
}

Result<std::string> unsent_of(const WholeReply& whole, std::uint64_t written) {
  if (written < whole.place.begins_at || written - whole.place.begins_at > whole.bytes.size())
    return invalid("the connection was not sent this reply");
  return whole.bytes.substr(static_cast<std::size_t>(written - whole.place.begins_at));
}

}  // namespace baton
