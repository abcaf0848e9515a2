// A client's view of one streamed HTTP/1.1 reply: bytes in, events out. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace baton {

/// Reads head, chunked or plain body, and server-sent events, out of bytes that come in any pieces.
class SseReader {
 public:
  /// What one call of feed() brought.
  struct News {
    std::uint32_t events = 0;  // `data: {` events, without the last ones that carry no token
    bool ended = false;        // the reply is complete
    bool broken = false;       // these bytes are no HTTP reply
  };
  News feed(std::string_view bytes);

  int status() const { return status_; }
  /// From the usage object of the last event or of a whole body; 0 when there was none.
  std::uint32_t completion_tokens() const { return completion_tokens_; }
  std::uint32_t events() const { return events_; }
  /// The beginning of the body of a reply that is not a stream (errors).
  const std::string& body() const { return body_; }
  bool done_seen() const { return done_seen_; }

 private:
  enum class State : std::uint8_t { head, size, data, data_end, trailer, plain, ended, broken };

  void parse_head();
  void take_body(std::string_view bytes, News* news);
  void take_line(std::string_view line, News* news);
  std::size_t take_chunk_line(std::string_view bytes);

  State state_ = State::head;
  std::string head_;
  std::string line_;   // of the event stream
  std::string chunk_;  // line of the chunk framing
  std::string body_;
  std::size_t remaining_ = 0;
  int status_ = 0;
  bool stream_ = false;
  bool done_seen_ = false;
  std::uint32_t events_ = 0;
  std::uint32_t completion_tokens_ = 0;
};

}  // namespace baton
