#include "frontend/http/sse.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>

#include "ipc/utf8.h"

namespace baton {
namespace {

TEST(JsonString, EscapesWhatMustBe) {
  EXPECT_EQ(json_string("plain"), "\"plain\"");
  EXPECT_EQ(json_string("a\"b\\c\n\r\t\b\f"), R"("a\"b\\c\n\r\t\b\f")");
  EXPECT_EQ(json_string(std::string_view("\0\x1f\x7f", 3)), "\"\\u0000\\u001f\x7f\"");
  EXPECT_EQ(json_string("你好 \xF0\x9F\x98\x80"), "\"你好 \xF0\x9F\x98\x80\"");
}

TEST(JsonString, ReplacesWhatIsNoCharacter) {
  const std::string r(kReplacementCharacter);
  EXPECT_EQ(json_string("\xFF"), "\"" + r + "\"");
  EXPECT_EQ(json_string("\xE4\xBD"), "\"" + r + r + "\"");
  EXPECT_EQ(json_string("\xC0\xAF"), "\"" + r + r + "\"");
  EXPECT_EQ(json_string("\xED\xA0\x80"), "\"" + r + r + r + "\"");
}

TEST(JsonString, ReadsBackForRandomBytes) {
  std::mt19937 random(1);
  for (int i = 0; i < 5000; ++i) {
    std::string bytes(random() % 12, '\0');
    for (char& byte : bytes) {
      byte = static_cast<char>(random() % 3 == 0 ? random() % 128 : random());
    }
    const std::string text = json_string(bytes);
    EXPECT_EQ(text.find('\n'), std::string::npos);
    const auto parsed = nlohmann::json::parse(text, nullptr, false);
    ASSERT_TRUE(parsed.is_string()) << "round " << i;
  }
}

// Every character of Unicode, and the exact borders of what is none.
TEST(Utf8, AcceptsExactlyUnicode) {
  for (std::uint32_t code = 0; code < 0x110000; ++code) {
    std::string bytes;
    if (code < 0x80) {
      bytes = {static_cast<char>(code)};
    } else if (code < 0x800) {
      bytes = {static_cast<char>(0xC0 | code >> 6), static_cast<char>(0x80 | (code & 63))};
    } else if (code < 0x10000) {
      bytes = {static_cast<char>(0xE0 | code >> 12), static_cast<char>(0x80 | (code >> 6 & 63)),
               static_cast<char>(0x80 | (code & 63))};
    } else {
      bytes = {static_cast<char>(0xF0 | code >> 18), static_cast<char>(0x80 | (code >> 12 & 63)),
               static_cast<char>(0x80 | (code >> 6 & 63)), static_cast<char>(0x80 | (code & 63))};
    }
    const bool surrogate = code >= 0xD800 && code < 0xE000;
    const Utf8Scan scan = scan_utf8(bytes);
    ASSERT_EQ(scan.state, surrogate ? Utf8State::invalid : Utf8State::valid) << code;
    ASSERT_EQ(scan.length, surrogate ? 1 : bytes.size());
    if (surrogate) continue;
    for (std::size_t size = 0; size < bytes.size(); ++size) {
      ASSERT_EQ(scan_utf8(bytes.substr(0, size)).state, Utf8State::unfinished) << code;
    }
  }
  for (const char* bad : {"\x80", "\xBF", "\xC0\x80", "\xC1\xBF", "\xE0\x9F\xBF",
                          "\xF0\x8F\xBF\xBF", "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "\xFF"}) {
    EXPECT_EQ(scan_utf8(bad).state, Utf8State::invalid);
    EXPECT_EQ(scan_utf8(bad).length, 1);
  }
  EXPECT_EQ(scan_utf8("\xE4\xBD"
                      "a")
                .length,
            2);
  EXPECT_EQ(scan_utf8("\xF0\x9F\x98\xE4").length, 3);
}

TEST(Sse, Events) {
  EXPECT_EQ(sse_event("{}"), "data: {}\n\n");
  EXPECT_EQ(kSseDone, "data: [DONE]\n\n");
  EXPECT_EQ(kSseKeepAlive.substr(0, 1), ":");
}

}  // namespace
}  // namespace baton
