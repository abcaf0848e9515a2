#include "supervisor/live_line.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <utility>

#include "ipc/admin_client.h"

namespace baton {
namespace {

using nlohmann::json;

constexpr std::string_view kQuestions = "show info json\nshow workers json\nshow kv json\n";
constexpr std::size_t kMostBytes = 1u << 20;
constexpr double kEvery = 1.0;  // seconds

std::string percent(double share) { return std::to_string(std::lround(100 * share)) + " %"; }

// Blocks that requests hold; what is only cached can be given to others.
std::string kv_part(const json& pools) {
  std::string text;
  for (const json& pool : pools) {
    if (pool.at("part") != "pool") continue;
    const double total = pool.at("total").get<double>();
    const double held = total - pool.at("free").get<double>() - pool.at("cached").get<double>();
    text += (text.empty() ? " | KV " : ", ") + percent(total > 0 ? held / total : 0) + " " +
            pool.at("worker").get<std::string>();
  }
  return text;
}

// Workers are named where one is not as it should be.
std::string workers_part(const json& workers) {
  std::string text;
  for (const json& worker : workers) {
    const auto state = worker.at("state").get<std::string>();
    if (state == "ready") continue;
    text += (text.empty() ? " | " : ", ") + worker.at("name").get<std::string>() + " " + state;
    const int loaded = worker.value("loading_percent", 100);
    if (loaded < 100) text += " " + std::to_string(loaded) + " %";
  }
  return text;
}

}  // namespace

std::optional<std::string> live_text(const std::array<std::string, 3>& answers, double now_s,
                                     std::optional<TokensAt>& before) try {
  const json info = json::parse(answers[0]);
  const auto requests = info.at("requests").get<std::uint64_t>();
  const auto waiting = std::min(requests, info.at("waiting").get<std::uint64_t>());
  const TokensAt now{info.at("epoch").get<std::uint64_t>(),
                     info.at("counters").at("tokens").get<std::uint64_t>(), now_s};
  std::string rate = "0";
  if (before && before->epoch == now.epoch && now.at_s > before->at_s &&
      now.tokens >= before->tokens) {
    rate = std::to_string(std::lround(static_cast<double>(now.tokens - before->tokens) /
                                      (now.at_s - before->at_s)));
  }
  before = now;
  return std::to_string(requests - waiting) + " running, " + std::to_string(waiting) +
         " waiting | " + rate + " tokens/s" + kv_part(json::parse(answers[2])) +
         workers_part(json::parse(answers[1]));
} catch (const json::exception&) {
  return std::nullopt;
}

void LiveLine::forget() {
  fd_ = UniqueFd();
  came_.clear();
  asked_ = false;
}

bool LiveLine::ask() {
  if (!fd_) fd_ = connect_admin(socket_, SOCK_NONBLOCK);
  if (!fd_) return false;
  const ssize_t n =
      ::send(fd_.get(), kQuestions.data(), kQuestions.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  return n == static_cast<ssize_t>(kQuestions.size());
}

std::optional<std::string> LiveLine::read(double now_s) {
  char buffer[16384];
  while (true) {
    const ssize_t n = ::recv(fd_.get(), buffer, sizeof buffer, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) break;
    if (n <= 0 || came_.size() > kMostBytes) {
      forget();
      return "";
    }
    came_.append(buffer, static_cast<std::size_t>(n));
  }
  std::array<std::string, 3> answers;
  std::size_t from = 0;
  for (std::string& answer : answers) {
    const auto end = came_.find("\n\n", from);
    if (end == std::string::npos) return std::nullopt;
    answer = came_.substr(from, end - from);
    from = end + 2;
  }
  came_.erase(0, from);
  asked_ = false;
  return live_text(answers, now_s, before_).value_or("");
}

std::optional<std::string> LiveLine::look(double now_s) {
  if (asked_) {
    if (auto text = read(now_s)) return text;
  }
  if (now_s < next_s_) return std::nullopt;
  next_s_ = now_s + kEvery;
  if (asked_) {  // for a second: that scheduler is frozen, or has died
    forget();
    return "";
  }
  asked_ = ask();
  if (asked_) return std::nullopt;
  forget();
  return "";
}

void LiveLines::add(std::string model, std::string admin_socket) {
  parts_.push_back({std::move(model), LiveLine(std::move(admin_socket)), {}});
}

void LiveLines::note(const std::string& model, std::string what) {
  for (Part& part : parts_) {
    if (part.model != model || part.note == what) continue;
    part.note = std::move(what);
    noted_ = true;
  }
}

std::optional<std::string> LiveLines::look(double now_s) {
  bool news = std::exchange(noted_, false);
  std::string text;
  std::string notes;  // last, since a narrow terminal cuts the line: what serves is seen first
  for (Part& part : parts_) {
    if (auto said = part.line.look(now_s)) {
      part.said = said->empty() ? "the scheduler does not answer" : std::move(*said);
      news = true;
    }
    if (!part.said && part.note.empty()) continue;
    std::string& line = part.note.empty() ? text : notes;
    line += (line.empty() ? "" : " || ") + (part.model.empty() ? "" : part.model + ": ") +
            part.note + (part.note.empty() || !part.said ? "" : " | ") + part.said.value_or("");
  }
  if (!notes.empty()) text += (text.empty() ? "" : " || ") + notes;
  return news ? std::optional(text) : std::nullopt;
}

}  // namespace baton
