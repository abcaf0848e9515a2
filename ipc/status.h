// Error values. std only: every folder may include this.
#pragma once

#include <optional>
#include <string>
#include <utility>

namespace baton {

/// What went wrong, in terms a caller can act on. The HTTP layer maps these to status codes.
enum class ErrorCode : unsigned char {
  ok = 0,
  invalid_argument,   // the caller's fault; repeating it cannot help (HTTP 400)
  too_long,           // prompt + output cannot fit the context (HTTP 400)
  queue_full,         // admission limit reached; retry later (HTTP 429)
  deadline_exceeded,  // the request's own timeout_s passed (HTTP 504)
  cancelled,          // the client left or an operator cancelled
  worker_crashes,     // three workers in a row died while running it (HTTP 500)
  kv_exhausted,       // one sequence alone does not fit into any pool (HTTP 500)
  unavailable,        // nobody can serve it now (HTTP 503)
  internal,           // a bug or a fault of a worker (HTTP 500)
};

/// Stable lower-case name, used in JSON errors, logs and metrics.
inline const char* to_string(ErrorCode code) {
  switch (code) {
    case ErrorCode::ok:
      return "ok";
    case ErrorCode::invalid_argument:
      return "invalid_argument";
    case ErrorCode::too_long:
      return "too_long";
    case ErrorCode::queue_full:
      return "queue_full";
    case ErrorCode::deadline_exceeded:
      return "deadline_exceeded";
    case ErrorCode::cancelled:
      return "cancelled";
    case ErrorCode::worker_crashes:
      return "worker_crashes";
    case ErrorCode::kv_exhausted:
      return "kv_exhausted";
    case ErrorCode::unavailable:
      return "unavailable";
    case ErrorCode::internal:
      return "internal";
  }
  return "unknown";
}

/// Success, or a code with a sentence for a person.
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(ErrorCode code, std::string message) : code_(code), message_(std::move(message)) {}

  bool ok() const { return code_ == ErrorCode::ok; }
  ErrorCode code() const { return code_; }
  const std::string& message() const { return message_; }

 private:
  ErrorCode code_ = ErrorCode::ok;
  std::string message_;
};

inline Status invalid(std::string message) {
  return Status(ErrorCode::invalid_argument, std::move(message));
}

/// A value or the Status that says why there is none. `value()` may be called only when `ok()`.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}          // NOLINT: implicit on purpose
  Result(Status status) : status_(std::move(status)) {}  // NOLINT: implicit on purpose

  bool ok() const { return value_.has_value(); }
  const Status& status() const { return status_; }
  T& value() & { return *value_; }
  const T& value() const& { return *value_; }
  T&& value() && { return std::move(*value_); }

 private:
  std::optional<T> value_;
  Status status_;
};

}  // namespace baton
