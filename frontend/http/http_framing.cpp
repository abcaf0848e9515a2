#include "frontend/http/http_framing.h"

#include <algorithm>
#include <charconv>

namespace baton {
namespace {

constexpr std::size_t kMaxChunkLine = 256;

bool is_token_char(char c) {
  if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9')) return true;
  return std::string_view("!#$%&'*+-.^_`|~").find(c) != std::string_view::npos;
}

bool is_token(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), is_token_char);
}

char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

std::string lowered(std::string_view text) {
  std::string result(text);
  std::transform(result.begin(), result.end(), result.begin(), lower);
  return result;
}

std::string_view trimmed(std::string_view text) {
  const auto blank = [](char c) { return c == ' ' || c == '\t'; };
  while (!text.empty() && blank(text.front())) text.remove_prefix(1);
  while (!text.empty() && blank(text.back())) text.remove_suffix(1);
  return text;
}

/// A comma-separated list of names holds `name` (lower case).
bool lists(std::string_view value, std::string_view name) {
  while (!value.empty()) {
    const std::size_t comma = std::min(value.find(','), value.size());
    if (lowered(trimmed(value.substr(0, comma))) == name) return true;
    value.remove_prefix(std::min(value.size(), comma + 1));
  }
  return false;
}

/// Tells other protocols and bare line feeds at once, where waiting for the end would last for
/// ever.
bool plausible(std::string_view head, std::size_t from) {
  if (head.front() < 'A' || head.front() > 'Z') return false;
  for (std::size_t i = from; i < head.size(); ++i) {
    if (head[i] == '\0' || (head[i] == '\n' && (i == 0 || head[i - 1] != '\r'))) return false;
  }
  return true;
}

bool has_control(std::string_view text) {
  return std::any_of(text.begin(), text.end(), [](char c) {
    const auto byte = static_cast<unsigned char>(c);
    return (byte < 0x20 && c != '\t') || byte == 0x7F;
  });
}

/// Takes a quoted string off the front of `text`.
bool skip_quoted(std::string_view& text) {
  std::size_t end = 1;
  while (end < text.size() && text[end] != '"') end += text[end] == '\\' ? 2 : 1;
  if (end >= text.size()) return false;
  text.remove_prefix(end + 1);
  return true;
}

/// `*( ";" name [ "=" ( token / quoted string ) ] )`, without a space anywhere: two readers of one
/// request must not be able to disagree about a chunk's size.
bool are_extensions(std::string_view text) {
  const auto skip_token = [&text] {
    const std::size_t size = static_cast<std::size_t>(
        std::find_if_not(text.begin(), text.end(), is_token_char) - text.begin());
    text.remove_prefix(size);
    return size > 0;
  };
  while (!text.empty()) {
    if (text.front() != ';') return false;
    text.remove_prefix(1);
    if (!skip_token()) return false;
    if (text.empty() || text.front() != '=') continue;
    text.remove_prefix(1);
    if (text.empty() || !(text.front() == '"' ? skip_quoted(text) : skip_token())) return false;
  }
  return true;
}

bool is_port(std::string_view text) {
  std::uint16_t port = 0;
  const auto read = std::from_chars(text.data(), text.data() + text.size(), port);
  return text.empty() || (read.ec == std::errc() && read.ptr == text.data() + text.size());
}

bool all_digits(std::string_view text) {
  return !text.empty() &&
         std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

}  // namespace

std::string host_of(std::string_view authority) {
  const bool bracketed = authority.starts_with('[');
  const std::size_t end =
      bracketed ? authority.find(']') : std::min(authority.find(':'), authority.size());
  if (end == std::string_view::npos) return {};
  const std::string_view host = authority.substr(0, bracketed ? end + 1 : end);
  const std::string_view rest = authority.substr(host.size());
  if (!rest.empty() && (rest.front() != ':' || !is_port(rest.substr(1)))) return {};
  const std::string_view letters = bracketed ? host.substr(1, host.size() - 2) : host;
  const std::string_view marks = bracketed ? ":." : "-._~%!$&'()*+,;=";
  const auto allowed = [marks](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           marks.find(c) != std::string_view::npos;
  };
  if (letters.empty() || !std::all_of(letters.begin(), letters.end(), allowed)) return {};
  return lowered(host);
}

const std::string* HttpRequest::header(std::string_view name) const {
  for (const auto& [key, value] : headers) {
    if (key == name) return &value;
  }
  return nullptr;
}

std::string_view HttpRequest::path() const {
  return std::string_view(target).substr(0, target.find('?'));
}

bool RequestReader::fail(int status, const char* code, std::string message) {
  state_ = State::failed;
  fault_ = {status, code, std::move(message)};
  free_memory(head_);
  free_memory(request_.body);
  return false;
}

std::size_t RequestReader::feed(std::string_view bytes) {
  std::size_t taken = 0;
  while (taken < bytes.size() && (state_ == State::head || state_ == State::body)) {
    const std::string_view rest = bytes.substr(taken);
    taken += state_ == State::head ? feed_head(rest) : feed_body(rest);
  }
  return taken;
}

bool RequestReader::take_expectation() {
  const bool expected = expectation_ && state_ == State::body;
  expectation_ = false;
  return expected;
}

HttpRequest RequestReader::take() {
  HttpRequest request = std::move(request_);
  reset();
  return request;
}

void RequestReader::reset() {
  RequestReader fresh(limits_);
  std::swap(*this, fresh);
}

std::size_t RequestReader::feed_head(std::string_view bytes) {
  // Empty lines before a request are skipped, as the standard advises.
  std::size_t skipped = 0;
  if (head_.empty()) {
    while (skipped < bytes.size() && (bytes[skipped] == '\r' || bytes[skipped] == '\n')) ++skipped;
    if (skipped == bytes.size()) return skipped;
    bytes.remove_prefix(skipped);
  }
  const std::size_t before = head_.size();
  const std::size_t room = limits_.max_head_bytes + 1 - before;
  head_.append(bytes.substr(0, room));
  const std::size_t end = head_.find("\r\n\r\n", before < 3 ? 0 : before - 3);
  if (end == std::string::npos) {
    if (head_.size() > limits_.max_head_bytes) {
      fail(
          431, "headers_too_large",
          "the request's head is larger than " + std::to_string(limits_.max_head_bytes) + " bytes");
    } else if (!plausible(head_, before)) {
      fail(400, "bad_request", "this is not an HTTP/1.1 request");
    }
    return skipped + std::min(room, bytes.size());
  }
  const std::size_t taken = skipped + end + 4 - before;
  head_.resize(end + 2);
  if (parse_head() && check_framing()) {
    state_ = chunked_ || remaining_ > 0 ? State::body : State::done;
    head_bytes_ = head_.size();
  }
  free_memory(head_);
  return taken;
}

bool RequestReader::parse_head() {
  std::string_view rest = head_;
  bool first = true;
  while (!rest.empty()) {
    const std::size_t end = rest.find("\r\n");
    const std::string_view line = rest.substr(0, end);
    rest.remove_prefix(end + 2);
    if (has_control(line)) {
      return fail(400, "bad_request", "a control character in the request's head");
    }
    if (!(first ? parse_request_line(line) : parse_header(line))) return false;
    first = false;
  }
  return true;
}

bool RequestReader::parse_request_line(std::string_view line) {
  const std::size_t first = line.find(' ');
  const std::size_t last = line.rfind(' ');
  if (first == std::string_view::npos || first == last || line.find(' ', first + 1) != last) {
    return fail(400, "bad_request", "the request line is not 'METHOD TARGET HTTP/1.1'");
  }
  const std::string_view method = line.substr(0, first);
  std::string_view target = line.substr(first + 1, last - first - 1);
  const std::string_view version = line.substr(last + 1);
  if (method.size() > 16 || !is_token(method) || method.front() < 'A' || method.front() > 'Z') {
    return fail(400, "bad_request", "the request's method is not a method");
  }
  request_.method = method;
  if (version != "HTTP/1.1" && version != "HTTP/1.0") {
    return fail(505, "http_version", "only HTTP/1.1 and HTTP/1.0 are spoken here");
  }
  request_.minor = version.back() - '0';
  request_.keep_alive = request_.minor == 1;
  if (target.size() > limits_.max_target_bytes) {
    return fail(414, "target_too_long",
                "the request's target is longer than " + std::to_string(limits_.max_target_bytes) +
                    " bytes");
  }
  std::string made;
  if (lowered(target.substr(0, 7)) == "http://") {  // absolute form, as proxies send it
    target.remove_prefix(7);
    const std::string_view authority = target.substr(0, target.find_first_of("/?#"));
    request_.host = host_of(authority);
    if (request_.host.empty()) {
      return fail(400, "bad_request", "the request's target has no valid host");
    }
    target.remove_prefix(authority.size());
    if (target.empty() || target.front() != '/') {
      made = "/" + std::string(target);
      target = made;
    }
  }
  if (target.front() != '/') {
    return fail(400, "bad_request", "the request's target does not begin with '/'");
  }
  if (target.find('#') != std::string_view::npos) {
    return fail(400, "bad_request", "the request's target has a fragment");
  }
  for (const char c : target) {
    if (static_cast<unsigned char>(c) >= 0x80) {
      return fail(400, "bad_request", "the request's target is not percent-encoded");
    }
  }
  request_.target = target;
  return true;
}

bool RequestReader::parse_header(std::string_view line) {
  const std::size_t colon = line.find(':');
  if (colon == std::string_view::npos || !is_token(line.substr(0, colon))) {
    return fail(400, "bad_request", "a header line is not 'Name: value'");
  }
  if (request_.headers.size() == limits_.max_headers) {
    return fail(431, "headers_too_large",
                "more than " + std::to_string(limits_.max_headers) + " headers");
  }
  std::string name = lowered(line.substr(0, colon));
  const bool single = name == "content-length" || name == "transfer-encoding" || name == "host" ||
                      name == "expect" || name == "x-request-id";
  if (single && request_.header(name) != nullptr) {
    return fail(400, "bad_request", "the header " + name + " is there twice");
  }
  request_.headers.emplace_back(std::move(name), trimmed(line.substr(colon + 1)));
  return true;
}

/// RFC 9112, 3.2. The host of an absolute target counts more than the header, which must be there
/// all the same.
bool RequestReader::check_host() {
  const std::string* given = request_.header("host");
  if (given == nullptr) {
    return request_.minor == 0 || fail(400, "bad_request", "the Host header is missing");
  }
  std::string host = host_of(*given);
  if (host.empty()) return fail(400, "bad_request", "the Host header is not a host and a port");
  if (request_.host.empty()) request_.host = std::move(host);
  return true;
}

bool RequestReader::check_framing() {
  if (!check_host()) return false;
  bool close = false, keep = request_.minor == 1;
  for (const auto& [name, value] : request_.headers) {
    if (name != "connection") continue;
    close = close || lists(value, "close");
    keep = keep || lists(value, "keep-alive");
  }
  request_.keep_alive = keep && !close;
  const std::string* length = request_.header("content-length");
  const std::string* encoding = request_.header("transfer-encoding");
  if (length != nullptr && encoding != nullptr) {
    return fail(400, "bad_request", "both Content-Length and Transfer-Encoding");
  }
  if (encoding != nullptr) {
    if (request_.minor == 0 || lowered(*encoding) != "chunked") {
      return fail(501, "transfer_encoding", "the only Transfer-Encoding known here is chunked");
    }
    chunked_ = true;
  }
  if (length != nullptr) {
    if (!all_digits(*length)) {
      return fail(400, "bad_request", "Content-Length is not a number");
    }
    const auto [end, error] =
        std::from_chars(length->data(), length->data() + length->size(), remaining_);
    if (error != std::errc() || remaining_ > limits_.max_body_bytes) {
      return fail(413, "body_too_large",
                  "the body is larger than " + std::to_string(limits_.max_body_bytes) + " bytes");
    }
  }
  if (const std::string* expect = request_.header("expect")) {
    if (lowered(*expect) != "100-continue") {
      return fail(417, "expectation_failed", "the only expectation known here is 100-continue");
    }
    expectation_ = request_.minor == 1 && (chunked_ || remaining_ > 0);
  }
  return true;
}

std::size_t RequestReader::feed_body(std::string_view bytes) {
  expectation_ = false;  // the client did not wait
  if (chunked_) return feed_chunked(bytes);
  if (request_.body.empty()) request_.body.reserve(std::min<std::size_t>(remaining_, 64 * 1024));
  const std::size_t taken = std::min(remaining_, bytes.size());
  request_.body.append(bytes.substr(0, taken));
  remaining_ -= taken;
  if (remaining_ == 0) state_ = State::done;
  return taken;
}

std::size_t RequestReader::feed_chunked(std::string_view bytes) {
  if (chunk_ == Chunk::data) {
    const std::size_t taken = std::min(remaining_, bytes.size());
    request_.body.append(bytes.substr(0, taken));
    remaining_ -= taken;
    if (remaining_ == 0) chunk_ = Chunk::data_end;
    return taken;
  }
  bool complete = false;
  const std::size_t taken = feed_line(bytes, &complete);
  if (complete && state_ != State::failed) end_chunk_line();
  return taken;
}

/// Collects one line (without its CRLF) in line_.
std::size_t RequestReader::feed_line(std::string_view bytes, bool* complete) {
  const std::size_t newline = bytes.find('\n');
  const std::size_t taken = newline == std::string_view::npos ? bytes.size() : newline + 1;
  if (line_.size() + taken > kMaxChunkLine) {
    fail(400, "bad_request", "a line of the chunked body is too long");
    return taken;
  }
  line_.append(bytes.substr(0, taken));
  if (newline == std::string_view::npos) return taken;
  if (line_.size() < 2 || line_[line_.size() - 2] != '\r') {
    fail(400, "bad_request", "a line of the chunked body does not end in CR LF");
    return taken;
  }
  line_.resize(line_.size() - 2);
  if (has_control(line_)) {
    fail(400, "bad_request", "a control character in a line of the chunked body");
    return taken;
  }
  *complete = true;
  return taken;
}

void RequestReader::end_chunk_line() {
  switch (chunk_) {
    case Chunk::size:
      if (!parse_chunk_size()) return;
      chunk_ = remaining_ == 0 ? Chunk::trailer : Chunk::data;
      break;
    case Chunk::data_end:
      if (!line_.empty()) {
        fail(400, "bad_request", "a chunk is longer than its size says");
        return;
      }
      chunk_ = Chunk::size;
      break;
    case Chunk::trailer:
      trailer_bytes_ += line_.size() + 2;
      if (trailer_bytes_ > limits_.max_head_bytes) {
        fail(431, "headers_too_large", "the trailers are too large");
        return;
      }
      if (line_.empty()) {
        state_ = State::done;
      } else if (!is_token(std::string_view(line_).substr(0, line_.find(':'))) ||
                 line_.find(':') == std::string::npos) {
        fail(400, "bad_request", "a trailer is not 'Name: value'");
        return;
      }
      break;
    case Chunk::data:
      break;
  }
  line_.clear();
}

bool RequestReader::parse_chunk_size() {
  const std::string_view line = line_;
  const std::string_view digits = line.substr(0, line.find(';'));
  std::uint32_t size = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), size, 16);
  if (digits.empty() || error == std::errc::invalid_argument ||
      end != digits.data() + digits.size()) {
    return fail(400, "bad_request", "a chunk's size is not a hexadecimal number");
  }
  if (!are_extensions(line.substr(digits.size()))) {
    return fail(400, "bad_request", "what follows a chunk's size is no chunk extension");
  }
  if (error != std::errc() || size > limits_.max_body_bytes - request_.body.size()) {
    return fail(413, "body_too_large",
                "the body is larger than " + std::to_string(limits_.max_body_bytes) + " bytes");
  }
  remaining_ = size;
  return true;
}

}  // namespace baton
