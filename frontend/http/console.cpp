#include "frontend/http/console.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <random>
#include <utility>

#include "frontend/http/console_page.h"
#include "frontend/http/sse.h"
#include "ipc/explained.h"

namespace baton {
namespace {

constexpr std::string_view kNonceMark = "@NONCE@";

std::string nonce() {
  std::random_device random;
  std::string text;
  for (int i = 0; i < 4; ++i) {
    char part[16];
    std::snprintf(part, sizeof part, "%08x", static_cast<unsigned>(random()));
    text += part;
  }
  return text;
}

std::string chunk(std::string_view text, const ReplyFrame& frame) {
  std::string bytes;
  append_chunk(bytes, text, frame);
  return bytes;
}

}  // namespace

std::optional<HttpError> console_refusal(bool local, bool keys) {
  if (local || keys) return std::nullopt;
  return http_error(
      403,
      "the console is off here: this port is open to the network and there are no API "
      "keys; set frontend.api_keys, or ask on a port of 127.0.0.1",
      "console_off");
}

HttpReply console_page() {
  const std::string word = nonce();
  HttpReply page;
  page.content_type = "text/html; charset=utf-8";
  page.body.reserve(kConsolePage.size() + 128);
  std::string_view rest = kConsolePage;
  for (std::size_t at; (at = rest.find(kNonceMark)) != std::string_view::npos;) {
    page.body.append(rest.substr(0, at)).append(word);
    rest.remove_prefix(at + kNonceMark.size());
  }
  page.body.append(rest);
  page.headers = {{"Content-Security-Policy",
                   "default-src 'none'; script-src 'nonce-" + word + "'; style-src 'nonce-" + word +
                       "'; connect-src 'self'; img-src data:; base-uri 'none'; "
                       "form-action 'none'; frame-ancestors 'none'"},
                  {"X-Content-Type-Options", "nosniff"},
                  {"X-Frame-Options", "DENY"},
                  {"Referrer-Policy", "no-referrer"},
                  {"Cross-Origin-Opener-Policy", "same-origin"},
                  {"Cross-Origin-Resource-Policy", "same-origin"},
                  {"Cache-Control", "no-store"}};
  return page;
}

ParseOutcome ended_request(const std::string& run_dir, std::string_view id) {
  const TimingSearch search =
      run_dir.empty() ? TimingSearch() : find_timing(run_dir, std::string(id));
  if (!search.found) {
    return http_error(404,
                      "no request of this name is among the last ones that have ended; one that "
                      "runs is among the console's events",
                      "request_not_found", "id");
  }
  return Answer{.body = explain_json(*search.found, search.names),
                .headers = {{"X-Content-Type-Options", "nosniff"}, {"Cache-Control", "no-store"}}};
}

void Watchers::add(const std::shared_ptr<ClientConnection>& connection, ReplyFrame frame,
                   std::string owner, TimeNs now) {
  frame.keep_alive = false;
  const HttpHeaders headers = {{"X-Content-Type-Options", "nosniff"}};
  const std::string head = format_stream_head(headers, frame);
  if (frame.head_only) {
    writer_.finish(connection->id(), head, false, now);
    return;
  }
  // A successor cannot go on with it: the page connects anew.
  connection->kept.reply_unkept();
  writer_.send(connection->id(), head + chunk(kSseKeepAlive, frame), now);
  watching_.emplace(connection->id(), Watcher{std::move(frame), std::move(owner)});
}

void Watchers::tell(std::string_view line, TimeNs now) {
  const std::string event = sse_event(line);
  for (const auto& [connection, watcher] : watching_) {
    if (writer_.queued(connection) != 0) continue;
    writer_.send(connection, chunk(event, watcher.frame), now);
  }
}

bool Watchers::probe(std::uint64_t connection, TimeNs now) {
  const auto at = watching_.find(connection);
  if (at == watching_.end()) return false;
  writer_.send(connection, chunk(kSseKeepAlive, at->second.frame), now);
  return true;
}

void Watchers::end_all(TimeNs now) {
  for (const auto& [connection, watcher] : std::exchange(watching_, {})) {
    end(connection, watcher.frame, now);
  }
}

void Watchers::end(std::uint64_t connection, const ReplyFrame& frame, TimeNs now) {
  std::string last;
  append_last_chunk(last, frame);
  writer_.finish(connection, last, false, now);
}

bool make_place(const std::vector<Watchers*>& all, const std::string& owner, TimeNs now) {
  std::size_t watching = 0;
  std::map<std::string, std::size_t> places;
  for (const Watchers* each : all) {
    watching += each->count();
    for (const auto& [connection, watcher] : each->watching_) ++places[watcher.owner];
  }
  if (watching < Watchers::kMost) return true;
  const auto most =
      std::max_element(places.begin(), places.end(),
                       [](const auto& a, const auto& b) { return a.second < b.second; });
  if (most->second <= places[owner] + 1) return false;
  Watchers* of = nullptr;
  std::uint64_t oldest = 0;
  for (Watchers* each : all) {
    for (const auto& [connection, watcher] : each->watching_) {
      if (watcher.owner != most->first || (of != nullptr && connection > oldest)) continue;
      of = each;
      oldest = connection;
    }
  }
  const auto given_up = of->watching_.extract(oldest);
  of->end(oldest, given_up.mapped().frame, now);
  return true;
}

}  // namespace baton
