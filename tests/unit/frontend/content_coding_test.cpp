// Compressed bodies: what comes out, and what never does.
#include "frontend/http/content_coding.h"

#include <gtest/gtest.h>
#include <zlib.h>
#include <zstd.h>

#include <random>

namespace baton {
namespace {

constexpr std::size_t kMost = std::size_t{1} << 20;

std::string gzip(std::string_view text) {
  z_stream stream{};
  deflateInit2(&stream, 6, Z_DEFLATED, 16 + MAX_WBITS, 8, Z_DEFAULT_STRATEGY);
  std::string out(deflateBound(&stream, text.size()) + 64, '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  EXPECT_EQ(deflate(&stream, Z_FINISH), Z_STREAM_END);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

std::string zstd(std::string_view text) {
  std::string out(ZSTD_compressBound(text.size()), '\0');
  out.resize(ZSTD_compress(out.data(), out.size(), text.data(), text.size(), 3));
  return out;
}

std::string compressed(ContentCoding coding, std::string_view text) {
  return coding == ContentCoding::gzip ? gzip(text) : zstd(text);
}

int status_of(const std::variant<std::string, HttpError>& outcome) {
  const auto* error = std::get_if<HttpError>(&outcome);
  return error == nullptr ? 200 : error->status;
}

std::string some_text(std::size_t size) {
  std::minstd_rand random(5);
  std::string text(size, ' ');
  for (char& c : text) c = static_cast<char>('a' + random() % 7);
  return text;
}

class Coding : public ::testing::TestWithParam<ContentCoding> {};

TEST_P(Coding, TheBodyAsItWas) {
  for (const std::size_t size : {0U, 1U, 1000U, 70'000U, 1U << 20U}) {
    const std::string text = some_text(size);
    const auto outcome = decoded_body(GetParam(), compressed(GetParam(), text), kMost);
    ASSERT_EQ(status_of(outcome), 200) << size;
    EXPECT_EQ(std::get<std::string>(outcome), text);
  }
}

TEST_P(Coding, SeveralPartsAreOneText) {
  const std::string parts = compressed(GetParam(), "{\"a\":") + compressed(GetParam(), "1}");
  EXPECT_EQ(std::get<std::string>(decoded_body(GetParam(), parts, kMost)), "{\"a\":1}");
}

TEST_P(Coding, OneByteMoreThanTheLimitIs413) {
  const std::string text = some_text(5000);
  const std::string body = compressed(GetParam(), text);
  EXPECT_EQ(status_of(decoded_body(GetParam(), body, 5000)), 200);
  EXPECT_EQ(status_of(decoded_body(GetParam(), body, 4999)), 413);
}

TEST_P(Coding, ABombIsRefused) {
  const std::string bomb = compressed(GetParam(), std::string(std::size_t{256} << 20, 'x'));
  EXPECT_LT(bomb.size(), std::size_t{1} << 20);
  EXPECT_EQ(status_of(decoded_body(GetParam(), bomb, kMost)), 413);
}

TEST_P(Coding, WhatIsCutOffOrChangedIs400) {
  const std::string body = compressed(GetParam(), some_text(3000));
  for (std::size_t size = 0; size < body.size(); size += 7) {
    EXPECT_EQ(status_of(decoded_body(GetParam(), body.substr(0, size), kMost)), 400) << size;
  }
  EXPECT_EQ(status_of(decoded_body(GetParam(), body + "tail", kMost)), 400);
  EXPECT_EQ(status_of(decoded_body(GetParam(), "{\"prompt\":\"a\"}", kMost)), 400);
}

INSTANTIATE_TEST_SUITE_P(All, Coding, ::testing::Values(ContentCoding::gzip, ContentCoding::zstd),
                         [](const auto& one) {
                           return one.param == ContentCoding::gzip ? "gzip" : "zstd";
                         });

/// A frame whose header asks for a window of 2 GiB.
TEST(ContentCoding, AZstdFrameCannotAskForMuchMemory) {
  const char frame[] = {'\x28', '\xB5', '\x2F', '\xFD', '\x00',
                        '\xA8', '\x09', '\x00', '\x00', 'a'};
  EXPECT_EQ(status_of(decoded_body(ContentCoding::zstd, {frame, sizeof frame}, kMost)), 400);
}

TEST(ContentCoding, TheHeaderSaysWhich) {
  const auto of = [](std::initializer_list<const char*> values) {
    HttpRequest request;
    for (const char* value : values) request.headers.emplace_back("content-encoding", value);
    return content_coding(request);
  };
  EXPECT_EQ(of({}), ContentCoding::identity);
  EXPECT_EQ(of({"identity"}), ContentCoding::identity);
  EXPECT_EQ(of({"GZip"}), ContentCoding::gzip);
  EXPECT_EQ(of({"x-gzip"}), ContentCoding::gzip);
  EXPECT_EQ(of({"zstd"}), ContentCoding::zstd);
  EXPECT_EQ(of({"br"}), ContentCoding::unknown);
  EXPECT_EQ(of({"gzip, gzip"}), ContentCoding::unknown);
  EXPECT_EQ(of({"gzip", "zstd"}), ContentCoding::unknown);
  EXPECT_EQ(status_of(decoded_body(ContentCoding::unknown, "x", kMost)), 415);
}

}  // namespace
}  // namespace baton
