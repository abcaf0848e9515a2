#include "bench/sse_reader.h"

#include <algorithm>
#include <cstdlib>

namespace baton {
namespace {

constexpr std::size_t kMaxHead = 64 * 1024;
constexpr std::size_t kMaxBody = 64 * 1024;

std::string lowered(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
  return out;
}

std::uint32_t number_after(std::string_view text, std::string_view key) {
  const std::size_t at = text.find(key);
  if (at == std::string_view::npos) return 0;
  return static_cast<std::uint32_t>(std::strtoul(text.data() + at + key.size(), nullptr, 10));
}

constexpr std::string_view kUsage = "\"completion_tokens\":";

}  // namespace

SseReader::News SseReader::feed(std::string_view bytes) {
  News news;
  while (!bytes.empty() && state_ != State::ended && state_ != State::broken) {
    switch (state_) {
      case State::head: {
        const std::size_t before = head_.size();
        head_.append(bytes.substr(0, kMaxHead - before));
        const std::size_t end = head_.find("\r\n\r\n", before < 3 ? 0 : before - 3);
        if (end == std::string::npos) {
          if (head_.size() == kMaxHead) state_ = State::broken;
          bytes = {};
          break;
        }
        bytes.remove_prefix(end + 4 - before);
        head_.resize(end + 2);
        parse_head();
        break;
      }
      case State::data:
      case State::plain: {
        const std::size_t n = std::min(remaining_, bytes.size());
        take_body(bytes.substr(0, n), &news);
        bytes.remove_prefix(n);
        remaining_ -= n;
        if (remaining_ == 0) state_ = state_ == State::data ? State::data_end : State::ended;
        break;
      }
      default:
        bytes.remove_prefix(take_chunk_line(bytes));
    }
  }
  news.ended = state_ == State::ended;
  news.broken = state_ == State::broken;
  if (news.ended && !stream_) completion_tokens_ = number_after(body_, kUsage);
  return news;
}

void SseReader::parse_head() {
  const std::string head = lowered(head_);
  if (head.compare(0, 7, "http/1.") != 0 || head.size() < 12) {
    state_ = State::broken;
    return;
  }
  status_ = std::atoi(head.c_str() + 9);
  if (status_ == 100) {  // interim
    head_.clear();
    return;
  }
  stream_ = head.find("\r\ncontent-type: text/event-stream") != std::string::npos;
  if (head.find("\r\ntransfer-encoding: chunked") != std::string::npos) {
    state_ = State::size;
    return;
  }
  const std::size_t length = head.find("\r\ncontent-length: ");
  if (length == std::string::npos) {
    remaining_ = static_cast<std::size_t>(-1);  // until the connection ends
  } else {
    remaining_ = std::strtoul(head.c_str() + length + 18, nullptr, 10);
  }
  state_ = remaining_ == 0 ? State::ended : State::plain;
}

std::size_t SseReader::take_chunk_line(std::string_view bytes) {
  const std::size_t newline = bytes.find('\n');
  const std::size_t n = newline == std::string_view::npos ? bytes.size() : newline + 1;
  chunk_.append(bytes.substr(0, n));
  if (chunk_.size() > 1024) state_ = State::broken;
  if (newline == std::string_view::npos) return n;
  const bool empty = chunk_.size() <= 2;
  if (state_ == State::size) {
    remaining_ = std::strtoul(chunk_.c_str(), nullptr, 16);
    state_ = remaining_ == 0 ? State::trailer : State::data;
  } else if (state_ == State::data_end) {
    state_ = empty ? State::size : State::broken;
  } else if (empty) {
    state_ = State::ended;
  }
  chunk_.clear();
  return n;
}

void SseReader::take_body(std::string_view bytes, News* news) {
  if (!stream_) {
    body_.append(bytes.substr(0, kMaxBody - std::min(kMaxBody, body_.size())));
    return;
  }
  while (!bytes.empty()) {
    const std::size_t newline = bytes.find('\n');
    if (newline == std::string_view::npos) {
      line_.append(bytes);
      return;
    }
    if (line_.empty()) {
      take_line(bytes.substr(0, newline), news);
    } else {
      line_.append(bytes.substr(0, newline));
      take_line(line_, news);
      line_.clear();
    }
    bytes.remove_prefix(newline + 1);
  }
}

void SseReader::take_line(std::string_view line, News* news) {
  if (line.substr(0, 6) != "data: ") return;
  line.remove_prefix(6);
  if (line.substr(0, 6) == "[DONE]") {
    done_seen_ = true;
    return;
  }
  if (line.find("\"error\"") != std::string_view::npos) body_ = line;
  if (const std::size_t at = line.find(kUsage); at != std::string_view::npos) {
    completion_tokens_ = number_after(line, kUsage);
    return;
  }
  // The event that tells why the stream ended carries no token of its own here.
  if (line.find("\"finish_reason\":\"") != std::string_view::npos) return;
  if (line.find("\"role\":") != std::string_view::npos) return;
  ++news->events;
  ++events_;
}

}  // namespace baton
