// What the loop does with what clients ask: requests for the table, and pages that it knows itself.
#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

#include "frontend/core/dialect.h"
#include "frontend/frontend_loop.h"
#include "frontend/http/http_error.h"
#include "frontend/http/index_page.h"

namespace baton {
namespace {

constexpr std::size_t kMaxNamedFields = 256;

}  // namespace

void FrontendLoop::take_jobs() {
  jobs_.take(batch_);
  for (Job& job : batch_) {
    if (!std::holds_alternative<Interim>(job.what)) writer_.open(job.connection, now_);
    std::visit([&](auto& what) { handle(job, what); }, job.what);
  }
  batch_.clear();
}

void FrontendLoop::handle(Job& job, Interim& /*what*/) {
  writer_.send_interim(*job.connection, kContinue, now_);
}

/// Requests that came before their turn, and clients that send nothing more.
void FrontendLoop::take_turns() {
  for (const auto& connection : writer_.take_turns()) connection->resume(connection);
  for (const auto& connection : writer_.take_half_closed()) probe(*connection);
}

/// To a client that shut its sending direction: something that means nothing, because the kernel of
/// one that left for good answers with a reset.
void FrontendLoop::probe(ClientConnection& connection) {
  const auto at = replies_.find(connection.id());
  for (const auto& link : links_) {
    if (link->watchers.probe(connection.id(), now_)) return;
  }
  if (at == replies_.end()) {  // the request is still being worked on
    if (connection.minor.load() > 0) writer_.send_interim(connection, kContinue, now_);
    return;
  }
  const AtWork at_work(connection.kept);
  apply(at->second, ClientProbed{});
  writer_.send(connection.id(), at->second.rendered.take_bytes(), now_);
  at->second.sent = now_;
}

void FrontendLoop::handle(Job& job, HttpReply& reply) {
  const AtWork at_work(job.connection->kept);
  reply_now(job, std::move(reply));
}

void FrontendLoop::handle(Job& job, LiveRequest& request) {
  const AtWork at_work(job.connection->kept);
  HttpReply reply = live_reply(job, request);
  if (request.route == LiveRoute::page && reply.status >= 400) job.frame.keep_alive = false;
  reply_now(job, std::move(reply));
}

void FrontendLoop::handle(Job& job, Watch& what) {
  ModelLink& link = *links_[what.model];
  std::vector<Watchers*> all;
  for (const auto& each : links_) all.push_back(&each->watchers);
  std::string owner = owner_name(job.frame.api_key, job.connection->peer);
  if (link.options.live == nullptr || drain_until_ != 0) {
    refuse(job, Status(ErrorCode::unavailable, "this front end shows no console at the moment"));
  } else if (!make_place(all, owner, now_)) {
    refuse(job, Status(ErrorCode::queue_full, "the console is watched by " +
                                                  std::to_string(Watchers::kMost) +
                                                  " already; close one"));
  } else {
    process_metrics().reply_sent(job.route, 200);
    link.watchers.add(job.connection, std::move(stamped(job.frame)), std::move(owner), now_);
  }
}

void FrontendLoop::reply_now(Job& job, HttpReply reply) {
  if (drain_until_ != 0) job.frame.keep_alive = false;
  const std::string bytes = format_reply(reply, stamped(job.frame));
  keep_whole(*job.connection, job.frame.keep_alive, bytes);
  writer_.finish(job.connection->id(), bytes, job.frame.keep_alive, now_);
  process_metrics().reply_sent(job.route, reply.status);
  if (tracer_.on() && reply.status >= 400) trace_refusal(job, reply.status);
  if (options_.spans != nullptr && reply.status >= 400) tell_refusal(job, reply);
  // Whoever probes does so every few seconds; what requests fail by is worth a line.
  const auto* live = std::get_if<LiveRequest>(&job.what);
  const bool probe =
      live != nullptr && (live->route == LiveRoute::health || live->route == LiveRoute::metrics);
  spdlog::log(probe || reply.status < 400 ? spdlog::level::debug : spdlog::level::info,
              "{} {} {} client={}{}", job.frame.request_id, job.frame.asked, reply.status,
              job.connection->address,
              reply.reason.empty() ? "" : " reason=" + log_text(reply.reason));
}

ReplyFrame& FrontendLoop::stamped(ReplyFrame& frame) const {
  frame.date = wall_ns() / kSecond;
  frame.load = load_text(frame.load_format, load_report());
  return frame;
}

void FrontendLoop::refuse(Job& job, const Status& status, std::uint32_t retry_after_s) {
  refuse(job, http_error(status, {}, retry_after_s));
}

void FrontendLoop::refuse(Job& job, HttpError error) {
  const auto* generation = std::get_if<Generation>(&job.what);
  error.stream = generation != nullptr && generation->request.stream;
  HttpReply reply;
  reply.headers = retry_headers(error);
  reply.reason = error.log;
  error = shaped(std::move(error), job.frame);
  reply.status = error.status;
  reply.body = error.body;
  job.frame.keep_alive = false;
  reply_now(job, std::move(reply));
}

/// Each field once: a client that sends one sends it with every request.
void FrontendLoop::warn_of_ignored(const Job& job, const ParsedRequest& request) {
  for (const std::string& field : request.ignored_fields) {
    if (ignored_fields_.size() >= kMaxNamedFields || !ignored_fields_.insert(field).second)
      continue;
    spdlog::warn(
        "{} {}: '{}' is ignored or replaced, as X-Ignored-Fields of the reply says (logged once)",
        job.frame.request_id, job.route, field);
  }
}

void FrontendLoop::handle(Job& job, Generation& generation) {
  if (drain_until_ != 0) {
    refuse(job, Status(ErrorCode::unavailable, "this front end is shutting down"));
    return;
  }
  ParsedRequest& parsed = generation.request;
  warn_of_ignored(job, parsed);
  generation.facts.seed = parsed.seed_given ? parsed.sampling.seed : seeds_();
  parsed.sampling.seed = generation.facts.seed;
  std::vector<NewRequest> requests = fan_out(parsed, job.received + parsed.timeout);
  ModelLink& link = *links_[generation.model];
  if (requests.size() > std::min(room(), link.table.room())) {
    refuse(job, Status(ErrorCode::queue_full, "this front end already serves " +
                                                  std::to_string(open_count()) +
                                                  " requests; try again later"));
    return;
  }
  if (!link.workers_fault.empty()) {
    refuse(job, Status(ErrorCode::unavailable,
                       "the model '" + link.options.served.name + "': " + link.workers_fault));
    return;
  }
  if (requests.size() > share_left(link)) {
    refuse(job, Status(ErrorCode::queue_full,
                       "the model '" + link.options.served.name + "' cannot serve now, and " +
                           std::to_string(link.table.open_count()) +
                           " requests wait for it already; try again later"));
    return;
  }
  link.rate.count(now_);
  link.table.pass_over(next_counter());
  generation.facts.load = load_text(job.frame.load_format, load_report(&link));
  std::optional<AtWork> at_work(std::in_place, job.connection->kept);
  const std::uint64_t connection = job.connection->id();
  if (job.frame.api_key >= 0 && !admit_key(job, parsed, requests)) return;
  generation.facts.limits = std::exchange(job.frame.limits, {});
  auto span = open_span(job.frame, job.route, *job.connection, &parsed);
  if (span) span->model = link.options.served.name;
  Reply reply{.rendered = RenderedReply(*link.options.served.tokenizer, parsed,
                                        std::move(job.frame), std::move(generation.facts)),
              .route = job.route,
              .model = generation.model,
              .connection = job.connection,
              .sent = now_,
              .counters = {},
              .times = {.received = job.received},
              .marks = {.first_byte = std::min(job.connection->first_byte, job.received),
                        .whole = job.received,
                        .opened = now_},
              .last_end = {},
              .span = std::move(span)};
  // Nobody hears of its requests before the journal has.
  if (options_.journal != nullptr && job.connection->kept) {
    const bool kept = options_.journal->open(
        job.connection->kept.cookie(),
        encode_opening({place_of(*job.connection), reply.rendered.facts(),
                        std::move(generation.chat_text), link.table.next_counter(),
                        link.options.served.fingerprint, link.options.served.entry,
                        link.options.served.identity,
                        link.options.served.entry.empty() ? "" : link.options.served.name}));
    if (!kept) job.connection->kept.reply_unkept();
  }
  const auto each = static_cast<std::uint32_t>(parsed.prompts.size() * parsed.choices /
                                               requests.size());  // choices that a request makes
  for (std::uint32_t i = 0; i < requests.size(); ++i) {
    const Result<RequestId> id = link.table.open(std::move(requests[i]), now_, link.out);
    reply.counters.push_back(id.value().counter);
    choices_[id.value().counter] = {connection, i * each};
  }
  link.metrics.request_accepted(reply.rendered.usage().prompt_tokens);
  spdlog::debug("{} {} request={} choices={} prompt={}", reply.frame().request_id, reply.route,
                reply.counters.front(), reply.counters.size(),
                reply.rendered.usage().prompt_tokens);
  if (tracer_.on()) trace_request(reply);
  replies_.emplace(connection, std::move(reply));
  if (options_.journal != nullptr) note_place();
  at_work.reset();
  act(link);
}

/// Whether the request's key may have it now; if not, it is told why. Its choices are its tenant's.
bool FrontendLoop::admit_key(Job& job, const ParsedRequest& parsed,
                             std::vector<NewRequest>& requests) {
  const auto slot = static_cast<std::size_t>(job.frame.api_key);
  std::uint32_t prompt_tokens = 0;
  for (const auto& prompt : parsed.prompts) {
    prompt_tokens += static_cast<std::uint32_t>(prompt.size());
  }
  const KeyAnswer answer =
      meter_.admit(slot, static_cast<std::uint32_t>(requests.size()), prompt_tokens, now_);
  job.frame.limits = meter_.headers(slot, now_);
  if (!answer.status.ok()) {
    refuse(job, limit_error(answer));
    return false;
  }
  for (NewRequest& request : requests) {
    belongs_to(meter_.key(slot), options_.salt_by_key, request);
  }
  return true;
}

/// What is open goes on; a key that is gone is refused from now on.
void FrontendLoop::reload_keys() {
  if (options_.keys_file.empty()) {
    spdlog::info("SIGHUP: there are no frontend.api_keys to read again");
    return;
  }
  auto loaded = ApiKeys::load(options_.keys_file);
  Status status = loaded.status();
  const std::size_t count = loaded.ok() ? loaded.value().all().size() : 0;
  // Before the line that says so: a client that has read it may ask with a new key at once.
  if (status.ok()) status = options_.keys->replace(std::move(loaded).value());
  if (!status.ok()) {
    spdlog::error("the API keys stay as they were: {}", status.message());
    return;
  }
  spdlog::info("{} API keys were read again from {}", count, options_.keys_file);
}

}  // namespace baton
