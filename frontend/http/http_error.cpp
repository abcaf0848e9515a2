#include "frontend/http/http_error.h"

#include <utility>

#include "frontend/core/json_reader.h"
#include "frontend/http/sse.h"

namespace baton {
namespace {

const char* type_of(int status) {
  switch (status) {
    case 429:
      return "rate_limit_error";
    case 499:
      return "cancelled_error";
    case 503:
      return "unavailable_error";
    case 504:
      return "timeout_error";
    default:
      return status < 500 ? "invalid_request_error" : "server_error";
  }
}

std::string code_of(ErrorCode code) {
  return code == ErrorCode::too_long ? "context_length_exceeded" : to_string(code);
}

/// Messages quote what clients wrote; a reply must not grow with that.
std::string bounded(std::string_view text) {
  if (text.size() <= kMaxErrorBytes) return std::string(text);
  std::size_t end = kMaxErrorBytes;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0U) == 0x80U) --end;
  return std::string(text.substr(0, end)) + "...";
}

constexpr std::size_t kMaxLoggedField = 64;  // a client chooses the names of unknown fields

/// Messages about a body quote it, but for those about lengths, which hold numbers.
bool quotes_body(int status, std::string_view code, std::string_view param) {
  if (status != 400 && status != 404) return false;
  if (code == code_of(ErrorCode::too_long)) return false;
  return code == code_of(ErrorCode::invalid_argument) || !param.empty();
}

std::string log_of(int status, std::string_view message, std::string_view code,
                   std::string_view param) {
  if (!quotes_body(status, code, param)) return std::string(message);
  std::string log(code);
  if (const std::string_view place = json_place(message); !place.empty()) {
    log.append(": not valid JSON at ").append(place);
  } else if (!param.empty()) {
    log.append(": ").append(param.substr(0, kMaxLoggedField));
  }
  return log;
}

std::string error_object(std::string_view message, std::string_view type, std::string_view param,
                         std::string_view code) {
  return "{\"error\":{\"message\":" + json_string(message) + ",\"type\":" + json_string(type) +
         ",\"param\":" + (param.empty() ? "null" : json_string(param)) +
         ",\"code\":" + json_string(code) + "}}";
}

}  // namespace

int http_status(ErrorCode code) {
  switch (code) {
    case ErrorCode::ok:
      return 200;
    case ErrorCode::invalid_argument:
    case ErrorCode::too_long:
      return 400;
    case ErrorCode::queue_full:
      return 429;
    case ErrorCode::cancelled:
      return 499;
    case ErrorCode::unavailable:
      return 503;
    case ErrorCode::deadline_exceeded:
      return 504;
    case ErrorCode::worker_crashes:
    case ErrorCode::kv_exhausted:
    case ErrorCode::internal:
      return 500;
  }
  return 500;
}

HttpError http_error(const Status& status, std::string_view param, std::uint32_t retry_after_s) {
  HttpError error;
  error.status = http_status(status.code());
  error.message = bounded(status.message());
  error.param = bounded(param);
  error.code = code_of(status.code());
  error.log = log_of(error.status, error.message, error.code, error.param);
  error.body = error_object(error.message, type_of(error.status), error.param, error.code);
  const bool retry = error.status == 429 || error.status == 503;
  error.retry_after_s = retry && retry_after_s == 0 ? 1 : retry_after_s;
  return error;
}

std::string logged_reason(const Status& status) {
  return log_of(http_status(status.code()), status.message(), code_of(status.code()), {});
}

HttpError http_error(int status, std::string_view message, std::string_view code,
                     std::string_view param) {
  HttpError error;
  error.status = status;
  error.message = bounded(message);
  error.param = bounded(param);
  error.code = code;
  error.log = log_of(status, error.message, error.code, error.param);
  error.body = error_object(error.message, type_of(status), error.param, code);
  if (status == 429 || status == 503) error.retry_after_s = 1;
  return error;
}

HttpHeaders retry_headers(const HttpError& error) {
  HttpHeaders headers;
  if (error.retry_after_s > 0) {
    headers.emplace_back("Retry-After", std::to_string(error.retry_after_s));
  }
  const bool harmful = error.status == 501 ||
                       error.code == to_string(ErrorCode::deadline_exceeded) ||
                       error.code == to_string(ErrorCode::worker_crashes);
  if (harmful) headers.emplace_back("X-Should-Retry", "false");
  return headers;
}

Status ending_status(FinishReason reason, ErrorCode code, std::string message) {
  if (reason == FinishReason::stop || reason == FinishReason::length) return {};
  if (code == ErrorCode::ok) {
    code = reason == FinishReason::cancelled ? ErrorCode::cancelled : ErrorCode::internal;
  }
  if (message.empty()) {
    message = code == ErrorCode::cancelled ? "the request was cancelled"
                                           : std::string("the request failed: ") + to_string(code);
  }
  return Status(code, std::move(message));
}

std::string error_json(const Status& status) {
  return error_object(bounded(status.message()), type_of(http_status(status.code())), {},
                      code_of(status.code()));
}

}  // namespace baton
