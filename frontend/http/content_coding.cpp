#include "frontend/http/content_coding.h"

#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <memory>

#include "frontend/http/http_error.h"

namespace baton {
namespace {

constexpr std::size_t kPieceBytes = std::size_t{64} << 10;
/// Memory of a decoder: zstd frames may ask for a window of 2 GiB.
constexpr int kMaxWindowLog = 23;

enum class Outcome : std::uint8_t { whole, too_large, broken };

/// Room for the next piece; false: the text has `most` bytes and more would come.
bool grow(std::string& text, std::size_t used, std::size_t most) {
  if (used < text.size()) return true;
  // One byte beyond the limit, to see whether there is more.
  text.resize(std::min(most + 1, text.size() + kPieceBytes + text.size() / 2));
  return used < text.size();
}

Outcome inflate_all(std::string_view body, std::size_t most, std::string& text) {
  z_stream stream{};
  constexpr int kGzipOnly = 16 + MAX_WBITS;
  if (inflateInit2(&stream, kGzipOnly) != Z_OK) return Outcome::broken;
  const std::unique_ptr<z_stream, int (*)(z_stream*)> owner(&stream, inflateEnd);
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(body.data()));
  stream.avail_in = static_cast<uInt>(body.size());
  std::size_t used = 0;
  while (true) {
    if (!grow(text, used, most)) return Outcome::too_large;
    stream.next_out = reinterpret_cast<Bytef*>(text.data() + used);
    stream.avail_out = static_cast<uInt>(text.size() - used);
    const int result = inflate(&stream, Z_NO_FLUSH);
    used = text.size() - stream.avail_out;
    if (result == Z_STREAM_END) {
      // A file of several members is one text (RFC 1952, 2.2).
      if (stream.avail_in == 0) break;
      if (inflateReset(&stream) != Z_OK) return Outcome::broken;
    } else if (result != Z_OK || (stream.avail_in == 0 && stream.avail_out != 0)) {
      return Outcome::broken;
    }
  }
  text.resize(used);
  return used > most ? Outcome::too_large : Outcome::whole;
}

Outcome unzstd_all(std::string_view body, std::size_t most, std::string& text) {
  const std::unique_ptr<ZSTD_DCtx, std::size_t (*)(ZSTD_DCtx*)> context(ZSTD_createDCtx(),
                                                                        ZSTD_freeDCtx);
  if (context == nullptr || ZSTD_isError(ZSTD_DCtx_setParameter(context.get(), ZSTD_d_windowLogMax,
                                                                kMaxWindowLog)) != 0U) {
    return Outcome::broken;
  }
  ZSTD_inBuffer in{body.data(), body.size(), 0};
  std::size_t used = 0;
  while (true) {
    if (!grow(text, used, most)) return Outcome::too_large;
    ZSTD_outBuffer out{text.data(), text.size(), used};
    const std::size_t left = ZSTD_decompressStream(context.get(), &out, &in);
    if (ZSTD_isError(left) != 0U) return Outcome::broken;
    const bool room = out.pos < out.size;
    used = out.pos;
    if (in.pos < in.size || !room) continue;
    if (left != 0) return Outcome::broken;  // the data ends inside a frame
    break;
  }
  text.resize(used);
  return used > most ? Outcome::too_large : Outcome::whole;
}

}  // namespace

ContentCoding content_coding(const HttpRequest& request) {
  ContentCoding coding = ContentCoding::identity;
  for (const auto& [name, value] : request.headers) {
    if (name != "content-encoding") continue;
    std::string word(value);
    std::transform(word.begin(), word.end(), word.begin(), [](unsigned char c) {
      return static_cast<char>(c >= 'A' && c <= 'Z' ? c + 32 : c);
    });
    if (word.empty() || word == "identity") continue;
    if (coding != ContentCoding::identity) return ContentCoding::unknown;
    coding = word == "gzip" || word == "x-gzip" ? ContentCoding::gzip
             : word == "zstd"                   ? ContentCoding::zstd
                                                : ContentCoding::unknown;
  }
  return coding;
}

std::variant<std::string, HttpError> decoded_body(ContentCoding coding, std::string_view body,
                                                  std::size_t most) {
  if (coding == ContentCoding::identity) return std::string(body);
  if (coding == ContentCoding::unknown) {
    return http_error(415, "the Content-Encoding must be gzip, zstd or identity",
                      "content_encoding", "Content-Encoding");
  }
  std::string text;
  const bool gzip = coding == ContentCoding::gzip;
  switch (gzip ? inflate_all(body, most, text) : unzstd_all(body, most, text)) {
    case Outcome::whole:
      return text;
    case Outcome::too_large:
      return http_error(413,
                        "the body has more than " + std::to_string(most) +
                            " bytes once it is decompressed (frontend.max_body_bytes)",
                        "body_too_large");
    case Outcome::broken:
      break;
  }
  return http_error(400, std::string("the body is no ") + (gzip ? "gzip" : "zstd") + " data",
                    "bad_content_encoding", "Content-Encoding");
}

}  // namespace baton
