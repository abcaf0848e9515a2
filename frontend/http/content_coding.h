// Bodies that a client compressed (Content-Encoding, RFC 9110), within the limit of bodies.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <variant>

#include "frontend/core/generation.h"
#include "frontend/http/http_framing.h"

namespace baton {

enum class ContentCoding : std::uint8_t { identity, gzip, zstd, unknown };

/// What the request's Content-Encoding says; identity where it says nothing. Several codings, one
/// upon the other, are unknown.
ContentCoding content_coding(const HttpRequest& request);

/// The body as it was before it was compressed, or why there is none: 415 for a coding that is not
/// known, 413 for more than `most` bytes, 400 for what is no such data. Never holds more than
/// `most` bytes; linear in what it reads and writes. Pure.
std::variant<std::string, HttpError> decoded_body(ContentCoding coding, std::string_view body,
                                                  std::size_t most);

}  // namespace baton
