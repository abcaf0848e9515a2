#include "frontend/http/api_keys.h"

#include <gtest/gtest.h>

namespace baton {
namespace {

constexpr const char* kFile =
    "# keys of this server\n\n"
    "sk-0123456789abcdef name=alice streams=2 tokens_per_minute=600\r\n"
    "  sk-another-key-16letters  \n";

TEST(ApiKeys, ReadsNamesAndLimits) {
  const auto keys = ApiKeys::parse(kFile);
  ASSERT_TRUE(keys.ok()) << keys.status().message();
  ASSERT_EQ(keys.value().all().size(), 2U);
  const ApiKey& alice = keys.value().all()[0];
  EXPECT_EQ(alice.secret, "sk-0123456789abcdef");
  EXPECT_EQ(alice.name, "alice");
  EXPECT_EQ(alice.streams, 2U);
  EXPECT_EQ(alice.tokens_per_minute, 600U);
  EXPECT_EQ(keys.value().all()[1].name, "key 2");
  EXPECT_EQ(keys.value().all()[1].streams, 0U);
}

TEST(ApiKeys, FindsTheKeyOfAHeader) {
  const ApiKeys keys = ApiKeys::parse(kFile).value();
  EXPECT_FALSE(keys.open());
  EXPECT_TRUE(ApiKeys().open());
  EXPECT_EQ(keys.find("Bearer sk-0123456789abcdef"), 0U);
  EXPECT_EQ(keys.find("bearer  sk-another-key-16letters"), 1U);
  EXPECT_EQ(keys.find_secret("sk-another-key-16letters"), 1U);
  EXPECT_FALSE(keys.find_secret("Bearer sk-another-key-16letters").has_value());
  for (const char* wrong :
       {"", "Bearer", "Bearer ", "Bearer sk-0123456789abcdeg", "Bearer sk-0123456789abcde",
        "Bearer sk-0123456789abcdef0", "Basic sk-0123456789abcdef", "sk-0123456789abcdef",
        "Bearer sk-0123456789abcdef name=alice"}) {
    EXPECT_FALSE(keys.find(wrong).has_value()) << wrong;
  }
  const std::string longest(256, 'k');
  const ApiKeys one = ApiKeys::parse(longest).value();
  EXPECT_TRUE(one.find("Bearer " + longest).has_value());
  EXPECT_FALSE(one.find("Bearer " + longest + "k").has_value());
}

TEST(ApiKeys, RefusesAFileThatIsWrong) {
  const std::pair<const char*, const char*> table[] = {
      {"", "there is no key"},
      {"# only words\n", "there is no key"},
      {"short", "line 1: a key must have 16 to 256 letters, not 5"},
      {"\nsk-0123456789abcdef streams=0", "line 2: streams= must be a whole number above 0"},
      {"sk-0123456789abcdef streams=x", "streams= must be"},
      {"sk-0123456789abcdef colour=red", "only name=, streams= and tokens_per_minute="},
      {"sk-0123456789abcdef name=", "name= must be 1 to 64"},
      {"sk-0123456789abcd\xC3\xA9", "printable"},
      {"sk-0123456789abcdef\nsk-0123456789abcdef", "line 2: this key was there before"},
  };
  for (const auto& [text, message] : table) {
    const auto keys = ApiKeys::parse(text);
    ASSERT_FALSE(keys.ok()) << text;
    EXPECT_NE(keys.status().message().find(message), std::string::npos) << keys.status().message();
  }
  EXPECT_NE(ApiKeys::load("/nowhere/keys").status().message().find("cannot be read"),
            std::string::npos);
}

TEST(KeyMeter, StreamsAreBoundedAndGivenBack) {
  KeyMeter meter(ApiKeys::parse(kFile).value().all());
  std::uint32_t retry = 0;
  EXPECT_TRUE(meter.admit(0, 2, 1, 0, &retry).ok());
  EXPECT_EQ(meter.admit(0, 1, 1, 0, &retry).code(), ErrorCode::queue_full);
  EXPECT_EQ(retry, 1U);
  EXPECT_EQ(meter.admit(0, 3, 1, 0, &retry).code(), ErrorCode::invalid_argument);
  EXPECT_TRUE(meter.admit(1, 1000, 1, 0, &retry).ok());
  meter.release(0, 2);
  EXPECT_TRUE(meter.admit(0, 1, 1, 0, &retry).ok());
}

TEST(KeyMeter, TokensAMinute) {
  std::vector<ApiKey> keys = ApiKeys::parse(kFile).value().all();
  keys[0].streams = 0;
  KeyMeter meter(keys);
  std::uint32_t retry = 0;
  const TimeNs begin = 1000 * kSecond;
  EXPECT_TRUE(meter.admit(0, 1, 500, begin, &retry).ok());
  meter.charge(0, 200, begin);  // 100 beyond the limit: 10 s of it
  EXPECT_EQ(meter.admit(0, 1, 1, begin, &retry).code(), ErrorCode::queue_full);
  EXPECT_EQ(retry, 11U);
  EXPECT_FALSE(meter.admit(0, 1, 1, begin + 10 * kSecond, &retry).ok());
  EXPECT_TRUE(meter.admit(0, 1, 1, begin + 11 * kSecond, &retry).ok());
  // A long silence fills the bucket once, not more.
  EXPECT_TRUE(meter.admit(0, 1, 600, begin + 3600 * kSecond, &retry).ok());
  EXPECT_EQ(meter.admit(0, 1, 1, begin + 3600 * kSecond, &retry).code(), ErrorCode::queue_full);
  for (int i = 0; i < 100; ++i) EXPECT_TRUE(meter.admit(1, 1, 1'000'000, begin, &retry).ok());
}

}  // namespace
}  // namespace baton
