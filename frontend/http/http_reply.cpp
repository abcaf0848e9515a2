#include "frontend/http/http_reply.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <ctime>

namespace baton {
namespace {

constexpr int kNoContent = 204;

void append_header(std::string& out, std::string_view name, std::string_view value) {
  out.append(name).append(": ");
  // A value that came from outside must not be able to begin a header of its own.
  for (const char c : value) {
    const auto byte = static_cast<unsigned char>(c);
    out.push_back(byte < 0x20 || byte == 0x7F ? ' ' : c);
  }
  out.append("\r\n");
}

std::string begin_head(int status, std::string_view content_type, const HttpHeaders& headers,
                       const ReplyFrame& frame) {
  std::string out;
  out.reserve(512);
  out.append("HTTP/1.1 ").append(std::to_string(status)).append(" ");
  out.append(reason_phrase(status)).append("\r\n");
  if (status != kNoContent) append_header(out, "Content-Type", content_type);
  if (!frame.request_id.empty()) append_header(out, "X-Request-Id", frame.request_id);
  if (frame.date != 0) append_header(out, "Date", http_date(frame.date));
  if (!frame.load.empty()) append_header(out, kLoadHeader, frame.load);
  out.append(frame.limits);
  append_header(out, "Connection", frame.keep_alive ? "keep-alive" : "close");
  for (const auto& [name, value] : headers) append_header(out, name, value);
  if (frame.cors != nullptr) {
    for (const auto& [name, value] : *frame.cors) append_header(out, name, value);
  }
  return out;
}

}  // namespace

std::string log_text(std::string_view text) {
  constexpr std::size_t kLongest = 300;
  std::string out = "\"";
  for (const char c : text.substr(0, kLongest)) {
    const auto byte = static_cast<unsigned char>(c);
    out.push_back(byte < 0x20 || byte == 0x7F || c == '"' ? ' ' : c);
  }
  return out.append(text.size() > kLongest ? "...\"" : "\"");
}

std::string asked_text(std::string_view method, std::string_view path) {
  constexpr std::size_t kLongest = 200;
  std::string text(method.empty() ? "-" : method);
  text.append(" ").append(path.empty() ? "-" : path.substr(0, kLongest));
  return text.append(path.size() > kLongest ? "..." : "");
}

std::string http_date(std::int64_t unix_seconds) {
  constexpr const char* kDays[] = {"Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"};
  constexpr const char* kMonths[] = {"Jan", "Feb", "Mar", "Apr", "May", "Jun",
                                     "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};
  const std::time_t time = unix_seconds;
  std::tm parts{};
  gmtime_r(&time, &parts);
  char text[64];
  std::snprintf(text, sizeof text, "%s, %02d %s %d %02d:%02d:%02d GMT", kDays[parts.tm_wday],
                parts.tm_mday, kMonths[parts.tm_mon], parts.tm_year + 1900, parts.tm_hour,
                parts.tm_min, parts.tm_sec);
  return text;
}

const char* reason_phrase(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 204:
      return "No Content";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 403:
      return "Forbidden";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 406:
      return "Not Acceptable";
    case 408:
      return "Request Timeout";
    case 411:
      return "Length Required";
    case 413:
      return "Content Too Large";
    case 414:
      return "URI Too Long";
    case 415:
      return "Unsupported Media Type";
    case 417:
      return "Expectation Failed";
    case 422:
      return "Unprocessable Content";
    case 424:
      return "Failed Dependency";
    case 429:
      return "Too Many Requests";
    case 431:
      return "Request Header Fields Too Large";
    case 499:
      return "Client Closed Request";
    case 500:
      return "Internal Server Error";
    case 501:
      return "Not Implemented";
    case 503:
      return "Service Unavailable";
    case 504:
      return "Gateway Timeout";
    case 505:
      return "HTTP Version Not Supported";
    default:
      return status < 400 ? "OK" : "Error";
  }
}

std::string format_reply(const HttpReply& reply, const ReplyFrame& frame) {
  std::string out = begin_head(reply.status, reply.content_type, reply.headers, frame);
  if (reply.status == kNoContent) return out.append("\r\n");
  append_header(out, "Content-Length", std::to_string(reply.body.size()));
  out.append("\r\n");
  if (!frame.head_only) out.append(reply.body);
  return out;
}

std::string format_stream_head(const HttpHeaders& headers, const ReplyFrame& frame,
                               std::string_view content_type) {
  if (content_type.empty()) content_type = "text/event-stream; charset=utf-8";
  std::string out = begin_head(200, content_type, headers, frame);
  append_header(out, "Cache-Control", "no-cache");
  if (frame.minor > 0) append_header(out, "Transfer-Encoding", "chunked");
  out.append("\r\n");
  return out;
}

void append_chunk(std::string& out, std::string_view data, const ReplyFrame& frame) {
  if (data.empty()) return;
  if (frame.minor > 0) {
    char size[20];
    const auto [end, error] = std::to_chars(size, size + sizeof size, data.size(), 16);
    out.append(size, end).append("\r\n");
  }
  out.append(data);
  if (frame.minor > 0) out.append("\r\n");
}

void append_last_chunk(std::string& out, const ReplyFrame& frame) {
  if (frame.minor > 0) out.append("0\r\n\r\n");
}

bool valid_request_id(std::string_view id) {
  const auto allowed = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '_' || c == ':' || c == '-';
  };
  return !id.empty() && id.size() <= 128 && std::all_of(id.begin(), id.end(), allowed);
}

}  // namespace baton
