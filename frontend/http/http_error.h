// Errors as HTTP: {"error": {"message", "type", "param", "code"}}, the shape of the OpenAI API, on
// every route.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "frontend/core/generation.h"
#include "frontend/http/http_reply.h"
#include "ipc/status.h"

namespace baton {

/// Bytes of a message, and of a field's name, that an error tells; what is longer is cut off.
inline constexpr std::size_t kMaxErrorBytes = 2048;

/// invalid_argument, too_long 400; queue_full 429; cancelled 499; deadline_exceeded 504;
/// unavailable 503; the rest 500.
int http_status(ErrorCode code);

/// An error of a request. `param` names the field at fault (empty: null). queue_full and
/// unavailable carry a Retry-After of one second unless `retry_after_s` says otherwise.
HttpError http_error(const Status& status, std::string_view param = {},
                     std::uint32_t retry_after_s = 0);

/// HttpError::log of a status: an error of a request's body quotes it, so its code, field and place
/// stand for the message.
std::string logged_reason(const Status& status);

/// An error of HTTP itself: 404 (no such route), 405, 408, 411, 413, 415, 431, ... `code` is a
/// short name such as "not_found".
HttpError http_error(int status, std::string_view message, std::string_view code,
                     std::string_view param = {});

/// Clients that ask again by themselves are told in what the same request needs: Retry-After, or
/// X-Should-Retry "false" (which the openai clients read) where asking again can only do harm: what
/// is not served, what has had its time, what may be the cause of workers' deaths.
HttpHeaders retry_headers(const HttpError& error);

/// Why a request did not end by itself (reason neither stop nor length); ok if it did. A message is
/// made up where there is none.
Status ending_status(FinishReason reason, ErrorCode code, std::string message);

/// The error object alone, for an event of a stream that already began.
std::string error_json(const Status& status);

}  // namespace baton
