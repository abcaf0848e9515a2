// Where a request ends: every input is fed whole, byte by byte and in random pieces.
#include "frontend/http/http_framing.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <tuple>

namespace baton {
namespace {

using State = RequestReader::State;

struct Case {
  const char* name;
  std::string bytes;
  int status;  // 0: a request comes out
};

std::string repeat(const std::string& text, int n) {
  std::string out;
  for (int i = 0; i < n; ++i) out += text;
  return out;
}

FramingLimits small() {
  FramingLimits limits;
  limits.max_head_bytes = 1000;
  limits.max_headers = 10;
  limits.max_target_bytes = 100;
  limits.max_body_bytes = 50;
  return limits;
}

std::vector<Case> bad_requests() {
  const std::string post = "POST /generate HTTP/1.1\r\nHost: x\r\n";
  return {
      {"not http", "\x16\x03\x01\x02", 400},
      {"lower case method", "get / HTTP/1.1\r\nHost: localhost\r\n\r\n", 400},
      {"no host", "GET / HTTP/1.1\r\nA: b\r\n\r\n", 400},
      {"no host beside an absolute target",
       "GET http://a/ HTTP/1.1\r\n" + repeat("A: b\r\n", 1) + "\r\n", 400},
      {"empty host", "GET / HTTP/1.1\r\nHost: \r\n\r\n", 400},
      {"host with a path", "GET / HTTP/1.1\r\nHost: a/b\r\n\r\n", 400},
      {"host with a user", "GET / HTTP/1.1\r\nHost: me@a\r\n\r\n", 400},
      {"two names in one host", "GET / HTTP/1.1\r\nHost: a, b\r\n\r\n", 400},
      {"host with letters as port", "GET / HTTP/1.1\r\nHost: a:b\r\n\r\n", 400},
      {"host with a port too large", "GET / HTTP/1.1\r\nHost: a:65536\r\n\r\n", 400},
      {"host with an open bracket", "GET / HTTP/1.1\r\nHost: [::1\r\n\r\n", 400},
      {"bad host in 1.0", "GET / HTTP/1.0\r\nHost: a b\r\n\r\n", 400},
      {"target without a host", "GET http:///health HTTP/1.1\r\nHost: a\r\n\r\n", 400},
      {"target with a user", "GET http://me@a/ HTTP/1.1\r\nHost: a\r\n\r\n", 400},
      {"fragment", "GET /a#b HTTP/1.1\r\nHost: a\r\n\r\n", 400},
      {"no version", "GET /\r\n\r\n", 400},
      {"two spaces", "GET  / HTTP/1.1\r\nHost: localhost\r\n\r\n", 400},
      {"space in target", "GET /a b HTTP/1.1\r\nHost: localhost\r\n\r\n", 400},
      {"target without slash", "GET a HTTP/1.1\r\nHost: localhost\r\n\r\n", 400},
      {"raw utf-8 in target", "GET /\xc3\xa4 HTTP/1.1\r\nHost: localhost\r\n\r\n", 400},
      {"http 2", "GET / HTTP/2.0\r\n\r\n", 505},
      {"http 0.9", "GET / HTTP/0.9\r\n\r\n", 505},
      {"bare line feeds", "GET / HTTP/1.1\nHost: x\n\n", 400},
      {"carriage return inside", "GET / HTTP/1.1\r\nHost: localhost\r\nA: b\rc\r\n\r\n", 400},
      {"nul", std::string("GET / HTTP/1.1\r\nHost: localhost\r\nA: \0\r\n\r\n", 41), 400},
      {"folded header", "GET / HTTP/1.1\r\nHost: localhost\r\nA: b\r\n c\r\n\r\n", 400},
      {"space before colon", "GET / HTTP/1.1\r\nHost : x\r\n\r\n", 400},
      {"no colon", "GET / HTTP/1.1\r\nHost\r\n\r\n", 400},
      {"two hosts", "GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400},
      {"long target", "GET /" + std::string(200, 'a') + " HTTP/1.1\r\nHost: localhost\r\n\r\n",
       414},
      {"long head",
       "GET / HTTP/1.1\r\nHost: localhost\r\nA: " + std::string(2000, 'a') + "\r\n\r\n", 431},
      {"endless head", "GET / HTTP/1.1\r\nHost: localhost\r\nA: " + std::string(2000, 'a'), 431},
      {"many headers", "GET / HTTP/1.1\r\nHost: localhost\r\n" + repeat("A: b\r\n", 11) + "\r\n",
       431},
      {"length with letters", post + "Content-Length: 5abc\r\n\r\nhello", 400},
      {"negative length", post + "Content-Length: -5\r\n\r\nhello", 400},
      {"plus length", post + "Content-Length: +5\r\n\r\nhello", 400},
      {"empty length", post + "Content-Length:\r\n\r\nhello", 400},
      {"hex length", post + "Content-Length: 0x5\r\n\r\nhello", 400},
      {"list of lengths", post + "Content-Length: 5, 5\r\n\r\nhello", 400},
      {"two lengths", post + "Content-Length: 5\r\nContent-Length: 5\r\n\r\nhello", 400},
      {"body too large", post + "Content-Length: 51\r\n\r\n", 413},
      {"length beyond any integer", post + "Content-Length: 99999999999999999999999\r\n\r\n", 413},
      {"length and chunked",
       post + "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400},
      {"gzip encoding", post + "Transfer-Encoding: gzip, chunked\r\n\r\n", 501},
      {"chunked in 1.0", "POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n", 501},
      {"other expectation", post + "Expect: coffee\r\nContent-Length: 1\r\n\r\n", 417},
      {"chunk size", post + "Transfer-Encoding: chunked\r\n\r\nxyz\r\n", 400},
      {"negative chunk", post + "Transfer-Encoding: chunked\r\n\r\n-5\r\nhello\r\n", 400},
      {"empty chunk size", post + "Transfer-Encoding: chunked\r\n\r\n\r\n", 400},
      {"chunk too large", post + "Transfer-Encoding: chunked\r\n\r\n33\r\n", 413},
      {"huge chunk", post + "Transfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n", 413},
      {"chunks too large in sum",
       post + "Transfer-Encoding: chunked\r\n\r\n" +
           repeat("1e\r\n" + std::string(30, 'a') + "\r\n", 2),
       413},
      {"chunk longer than said", post + "Transfer-Encoding: chunked\r\n\r\n3\r\nhello\r\n", 400},
      {"bare line feed after chunk size", post + "Transfer-Encoding: chunked\r\n\r\n3\nabc\r\n",
       400},
      {"endless chunk line",
       post + "Transfer-Encoding: chunked\r\n\r\n3;" + std::string(500, 'a') + "\r\n", 400},
      {"space before the chunk size", post + "Transfer-Encoding: chunked\r\n\r\n 3\r\nabc\r\n",
       400},
      {"space behind the chunk size", post + "Transfer-Encoding: chunked\r\n\r\n3 \r\nabc\r\n",
       400},
      {"tab behind the chunk size", post + "Transfer-Encoding: chunked\r\n\r\n3\t;a\r\nabc\r\n",
       400},
      {"empty extension", post + "Transfer-Encoding: chunked\r\n\r\n3;\r\nabc\r\n", 400},
      {"extension without a name", post + "Transfer-Encoding: chunked\r\n\r\n3;=b\r\nabc\r\n", 400},
      {"extension without a value", post + "Transfer-Encoding: chunked\r\n\r\n3;a=\r\nabc\r\n",
       400},
      {"open quote", post + "Transfer-Encoding: chunked\r\n\r\n3;a=\"b\r\nabc\r\n", 400},
      {"nul in an extension",
       post + "Transfer-Encoding: chunked\r\n\r\n3;a" + std::string(1, '\0') + "\r\nabc\r\n", 400},
      {"bare carriage return in a size", post + "Transfer-Encoding: chunked\r\n\r\n3\r\r\nabc\r\n",
       400},
      {"trailer that is no field", post + "Transfer-Encoding: chunked\r\n\r\n0\r\nabc\r\n\r\n",
       400},
      {"folded trailer", post + "Transfer-Encoding: chunked\r\n\r\n0\r\nA: b\r\n c: d\r\n\r\n",
       400},
      {"control character in a trailer",
       post + "Transfer-Encoding: chunked\r\n\r\n0\r\nA: \x01\r\n\r\n", 400},
      {"endless trailers",
       post + "Transfer-Encoding: chunked\r\n\r\n0\r\n" + repeat("A: bcdefghijkl\r\n", 100), 431},
  };
}

/// Feeds `bytes` in pieces of the given sizes (cycled); stops when the reader is done or has
/// failed.
std::size_t feed(RequestReader& reader, const std::string& bytes, std::mt19937* random) {
  std::size_t taken = 0;
  while (taken < bytes.size()) {
    const std::size_t most = bytes.size() - taken;
    const std::size_t size = random == nullptr ? 1 : 1 + (*random)() % most;
    const std::size_t n = reader.feed(std::string_view(bytes).substr(taken, size));
    taken += n;
    if (n == 0) break;
  }
  return taken;
}

TEST(HttpFraming, bad_requests_are_refused_however_they_arrive) {
  std::mt19937 random(7);
  for (const Case& c : bad_requests()) {
    for (int way = 0; way < 20; ++way) {
      RequestReader reader(small());
      if (way == 0) {
        reader.feed(c.bytes);
      } else {
        feed(reader, c.bytes, way == 1 ? nullptr : &random);
      }
      ASSERT_EQ(reader.state(), State::failed) << c.name << ", way " << way;
      EXPECT_EQ(reader.fault().status, c.status) << c.name << ": " << reader.fault().message;
      EXPECT_FALSE(reader.fault().message.empty());
      EXPECT_FALSE(reader.fault().code.empty());
      EXPECT_EQ(reader.feed("more"), 0U);
    }
  }
}

TEST(HttpFraming, good_requests_come_out_whole_however_they_arrive) {
  std::mt19937 random(8);
  const std::string bytes =
      "\r\nPOST /v1/completions?x=1 HTTP/1.1\r\nHost: a\r\nX-Request-Id:  abc \r\n"
      "Content-Length: 11\r\n\r\nhello world";
  const std::string next = "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n";
  for (int way = 0; way < 50; ++way) {
    RequestReader reader(small());
    const std::size_t taken = feed(reader, bytes + next, way == 0 ? nullptr : &random);
    ASSERT_EQ(reader.state(), State::done);
    EXPECT_EQ(taken, bytes.size()) << "the next request's bytes were taken too";
    const HttpRequest request = reader.take();
    EXPECT_EQ(request.method, "POST");
    EXPECT_EQ(request.target, "/v1/completions?x=1");
    EXPECT_EQ(request.path(), "/v1/completions");
    EXPECT_EQ(request.body, "hello world");
    ASSERT_NE(request.header("x-request-id"), nullptr);
    EXPECT_EQ(*request.header("x-request-id"), "abc");
    EXPECT_EQ(request.header("x"), nullptr);
    EXPECT_TRUE(request.keep_alive);
    EXPECT_FALSE(reader.started());
    EXPECT_EQ(reader.feed(next), next.size());
    EXPECT_EQ(reader.take().target, "/health");
  }
}

TEST(HttpFraming, chunked_bodies_are_decoded) {
  std::mt19937 random(9);
  const std::string bytes =
      "POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: Chunked\r\n\r\n"
      "5;name=value;a;b=\"c; d\"\r\nhello\r\n6\r\n world\r\n0\r\nTrailer: x\r\n\r\n";
  for (int way = 0; way < 50; ++way) {
    RequestReader reader(small());
    EXPECT_EQ(feed(reader, bytes, way == 0 ? nullptr : &random), bytes.size());
    ASSERT_EQ(reader.state(), State::done) << reader.fault().message;
    EXPECT_EQ(reader.take().body, "hello world");
  }
}

TEST(HttpFraming, connection_and_version_decide_about_keep_alive) {
  const std::pair<const char*, bool> cases[] = {
      {"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", true},
      {"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", false},
      {"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade, Close\r\n\r\n", false},
      {"GET / HTTP/1.0\r\n\r\n", false},
      {"GET / HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n", true},
      {"GET / HTTP/1.1\r\nHost: a\r\nConnection: keep-alive\r\nConnection: close\r\n\r\n", false},
      {"GET http://host:1/x HTTP/1.1\r\nHost: localhost\r\n\r\n", true},
  };
  for (const auto& [bytes, keep] : cases) {
    RequestReader reader(small());
    reader.feed(bytes);
    ASSERT_EQ(reader.state(), State::done) << bytes;
    EXPECT_EQ(reader.take().keep_alive, keep) << bytes;
  }
  RequestReader reader(small());
  reader.feed("GET http://host:1 HTTP/1.1\r\nHost: localhost\r\n\r\n");
  EXPECT_EQ(reader.take().target, "/");
}

TEST(HttpFraming, whom_a_request_is_for) {
  const std::tuple<const char*, const char*, const char*> cases[] = {
      {"GET / HTTP/1.1\r\nHost: LocalHost:8000\r\n\r\n", "localhost", "/"},
      {"GET / HTTP/1.1\r\nHost: [::1]:80\r\n\r\n", "[::1]", "/"},
      {"GET / HTTP/1.1\r\nHost: a:\r\n\r\n", "a", "/"},
      {"GET / HTTP/1.0\r\n\r\n", "", "/"},
      {"GET http://b/x HTTP/1.1\r\nHost: a\r\n\r\n", "b", "/x"},
      {"GET HTTP://b:1/x HTTP/1.1\r\nHost: a\r\n\r\n", "b", "/x"},
      {"GET http://b HTTP/1.1\r\nHost: a\r\n\r\n", "b", "/"},
      {"GET http://b?/v1/models HTTP/1.1\r\nHost: a\r\n\r\n", "b", "/?/v1/models"},
  };
  for (const auto& [bytes, host, target] : cases) {
    RequestReader reader(small());
    reader.feed(bytes);
    ASSERT_EQ(reader.state(), State::done) << bytes << reader.fault().message;
    const HttpRequest request = reader.take();
    EXPECT_EQ(request.host, host) << bytes;
    EXPECT_EQ(request.target, target) << bytes;
  }
}

TEST(HttpFraming, an_expectation_is_told_once_and_only_to_a_waiting_client) {
  const std::string head =
      "POST / HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n";
  RequestReader waits(small());
  waits.feed(head);
  EXPECT_TRUE(waits.take_expectation());
  EXPECT_FALSE(waits.take_expectation());
  waits.feed("hello");
  EXPECT_EQ(waits.take().body, "hello");
  RequestReader sends(small());
  sends.feed(head + "he");
  EXPECT_FALSE(sends.take_expectation());
}

TEST(HttpFraming, random_bytes_never_break_it) {
  std::mt19937 random(10);
  const std::string alphabet = "GETPOS /:.1\r\n\r\n0a;chunkedTransfer-EncodingContent-Length\xff\t";
  for (int round = 0; round < 20000; ++round) {
    RequestReader reader(small());
    std::string bytes =
        round % 2 == 0 ? ""
                       : "POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n";
    const int size = static_cast<int>(random() % 200);
    for (int i = 0; i < size; ++i) bytes += alphabet[random() % alphabet.size()];
    const std::size_t taken = feed(reader, bytes, &random);
    EXPECT_LE(taken, bytes.size());
    EXPECT_LE(reader.held(), 1100U);
  }
}

}  // namespace
}  // namespace baton
