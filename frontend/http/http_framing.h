// Where one HTTP/1.x request ends and the next begins, decided strictly: pure, no socket. Pistache
// gets only what passed here, because it accepts `Content-Length: 5abc`, loses pipelined requests
// and reads on after an error.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace baton {

struct HttpRequest {
  std::string method;
  std::string target;  // path and query, always beginning with '/'
  int minor = 1;       // HTTP/1.<minor>
  bool keep_alive = true;
  std::string
      host;  // whom the request is for, in lower case, without a port; HTTP/1.0: may be empty
  std::vector<std::pair<std::string, std::string>> headers;  // names in lower case
  std::string body;

  /// nullptr: no such header. `name` in lower case.
  const std::string* header(std::string_view name) const;
  /// The target without its query.
  std::string_view path() const;
};

/// The host of "host[:port]" in lower case, IPv6 in its brackets; empty: `authority` is no such
/// thing.
std::string host_of(std::string_view authority);

/// An assignment would keep the memory for the next text.
inline void free_memory(std::string& text) { std::string().swap(text); }

struct FramingLimits {
  std::size_t max_head_bytes = 32 * 1024;
  std::size_t max_headers = 100;
  std::size_t max_target_bytes = 2048;
  std::size_t max_body_bytes = 4 * 1024 * 1024;
};

/// Why a request cannot be read. The connection must be closed after the reply.
struct FramingFault {
  int status = 0;  // 0: none
  std::string code;
  std::string message;
};

/// Reads one request at a time out of bytes that arrive in any pieces. Chunked bodies are decoded.
/// Memory: at most max_head_bytes + max_body_bytes.
class RequestReader {
 public:
  enum class State : std::uint8_t { head, body, done, failed };

  explicit RequestReader(FramingLimits limits) : limits_(limits) {}

  /// Takes bytes up to the end of one request and returns how many; none in state done or failed.
  std::size_t feed(std::string_view bytes);
  State state() const { return state_; }
  /// True once after a head with `Expect: 100-continue` whose body has not begun to arrive.
  bool take_expectation();
  /// True when some byte of a request has arrived.
  bool started() const { return state_ != State::head || !head_.empty(); }
  /// Bytes held for the request at hand.
  std::size_t held() const { return head_.size() + head_bytes_ + request_.body.size(); }
  /// Starts over, and gives its memory back.
  void reset();

  /// State done: the request; the reader starts over.
  HttpRequest take();
  /// State failed.
  const FramingFault& fault() const { return fault_; }
  /// What of the request is known (method, headers), also after a fault.
  const HttpRequest& request() const { return request_; }

 private:
  enum class Chunk : std::uint8_t { size, data, data_end, trailer };

  std::size_t feed_head(std::string_view bytes);
  std::size_t feed_body(std::string_view bytes);
  std::size_t feed_chunked(std::string_view bytes);
  std::size_t feed_line(std::string_view bytes, bool* complete);
  bool parse_head();
  bool parse_request_line(std::string_view line);
  bool parse_header(std::string_view line);
  bool check_framing();
  bool check_host();
  bool parse_chunk_size();
  void end_chunk_line();
  bool fail(int status, const char* code, std::string message);

  FramingLimits limits_;
  State state_ = State::head;
  HttpRequest request_;
  FramingFault fault_;
  std::string head_;
  std::size_t head_bytes_ = 0;  // of the head that request_ has
  std::size_t remaining_ = 0;  // of the body, or of the chunk
  bool chunked_ = false;
  bool expectation_ = false;
  Chunk chunk_ = Chunk::size;
  std::string line_;
  std::size_t trailer_bytes_ = 0;
};

}  // namespace baton
