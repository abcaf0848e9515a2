#include "frontend/http/api_keys.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "frontend/http/key_meter.h"

namespace baton {
namespace {

constexpr const char* kFile =
    "# keys of this server\n\n"
    "sk-0123456789abcdef name=alice streams=2 tokens_per_minute=600\r\n"
    "  sk-another-key-16letters  \n";

// printf sk-hashed-key-of-carol | sha256sum
constexpr const char* kYaml =
    "# who may ask\n"
    "keys:\n"
    "  - name: alice\n"
    "    key: sk-0123456789abcdef\n"
    "    weight: 2.5\n"
    "    priority: -3\n"
    "    requests_per_minute: 60\n"
    "  - name: carol\n"
    "    sha256: @\n"
    "    streams: 4\n";

std::string hex_of(const KeyDigest& digest) {
  std::string text;
  for (const std::uint8_t byte : digest) {
    constexpr const char* kDigits = "0123456789abcdef";
    text += {kDigits[byte >> 4U], kDigits[byte & 15U]};
  }
  return text;
}

std::string yaml() {
  std::string text = kYaml;
  return text.replace(text.find('@'), 1, hex_of(digest_of("sk-hashed-key-of-carol")));
}

TEST(KeyDigest, IsSha256) {
  // FIPS 180-2, B.1.
  const std::string abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
  EXPECT_EQ(hex_of(digest_of("abc")), abc);
  EXPECT_EQ(parse_digest(abc), digest_of("abc"));
  std::string upper = abc;
  for (char& c : upper) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  EXPECT_EQ(parse_digest(upper), digest_of("abc"));
  EXPECT_FALSE(parse_digest(abc.substr(1)).has_value());
  EXPECT_FALSE(parse_digest("x" + abc.substr(1)).has_value());
}

TEST(ApiKeys, ReadsNamesAndLimitsALine) {
  const auto keys = ApiKeys::parse(kFile);
  ASSERT_TRUE(keys.ok()) << keys.status().message();
  ASSERT_EQ(keys.value().all().size(), 2U);
  const ApiKey& alice = keys.value().all()[0];
  EXPECT_EQ(alice.name, "alice");
  EXPECT_EQ(alice.streams, 2U);
  EXPECT_EQ(alice.tokens_per_minute, 600U);
  EXPECT_EQ(alice.weight, 1);
  EXPECT_EQ(keys.value().all()[1].name, "key 2");
  EXPECT_EQ(keys.value().all()[1].streams, 0U);
}

TEST(ApiKeys, ReadsYaml) {
  const auto keys = ApiKeys::parse(yaml());
  ASSERT_TRUE(keys.ok()) << keys.status().message();
  ASSERT_EQ(keys.value().all().size(), 2U);
  const ApiKey& alice = keys.value().all()[0];
  EXPECT_EQ(alice.share(), (TenantShare{"alice", 2.5F, -3}));
  EXPECT_EQ(alice.requests_per_minute, 60U);
  EXPECT_EQ(keys.value().all()[1].streams, 4U);
  EXPECT_EQ(keys.value().find("Bearer sk-0123456789abcdef"), 0U);
  EXPECT_EQ(keys.value().find("Bearer sk-hashed-key-of-carol"), 1U);
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
  const std::string digest = "\n    sha256: " + hex_of(digest_of("sk-0123456789abcdef"));
  const std::string a = "keys:\n  - name: a\n    key: sk-0123456789abcdef\n";
  const std::pair<std::string, const char*> table[] = {
      {"", "there is no key"},
      {"# only words\n", "there is no key"},
      {"short", "f:1: a key must have 16 to 256 letters, not 5"},
      {"\nsk-0123456789abcdef streams=0", "f:2: streams must be a whole number above 0"},
      {"sk-0123456789abcdef streams=x", "streams must be"},
      {"sk-0123456789abcdef colour=red", "'colour' is not known"},
      {"sk-0123456789abcdef red", "only fields such as"},
      {"sk-0123456789abcdef name=", "name must be 1 to 64"},
      {"sk-0123456789abcd\xC3\xA9", "printable"},
      {"sk-0123456789abcdef\nsk-0123456789abcdef", "f:2: this key was there before"},
      {"sk-0123456789abcdef name=a\nsk-1123456789abcdef name=a",
       "f:2: name 'a' was there before, at f:1"},
      {"keys:\n", "there is no key"},
      {"keys: [1]\n", "f:1: keys[0]: expected a map"},
      {"keys: 7\n", "f:1: keys: expected a list"},
      {a + "other: 1\n", "f:4: other: not known; the file has 'keys' alone"},
      {a + "    colour: red\n", "f:4: 'colour' is not known"},
      {a + "    name: b\n", "f:4: keys[0].name: stands here for the second time"},
      {a + "    weight: 0\n", "f:4: weight must be a number from 0.001 to 1000"},
      {a + "    weight: nan\n", "weight must be"},
      {a + "    weight: {}\n", "f:4: keys[0].weight: expected one value"},
      {a + "    priority: 101\n", "f:4: priority must be a whole number from -100 to 100"},
      {a + "    requests_per_minute: 0\n", "f:4: requests_per_minute must be a whole number"},
      {a + "    sha256: 12\n", "f:4: an entry has a key or its sha256, not both"},
      {"keys:\n  - name: a\n    sha256: 12\n", "f:3: sha256 must be 64 hexadecimal digits"},
      {"keys:\n  - name: a\n", "f:2: a wants a key or its sha256"},
      {"keys:\n  - key: sk-0123456789abcdef\n", "f:2: an entry wants a name"},
      {a + "  - name: b" + digest + "\n", "f:4: this key was there before"},
      {"keys:\n  - {name: a\n", "not valid YAML"},
  };
  for (const auto& [text, message] : table) {
    const auto keys = ApiKeys::parse(text, "f");
    ASSERT_FALSE(keys.ok()) << text;
    EXPECT_NE(keys.status().message().find(message), std::string::npos) << keys.status().message();
  }
  std::string many = "keys:\n";
  for (std::size_t i = 0; i <= kMaxApiKeys; ++i)
    many += "  - {name: k" + std::to_string(i) + ", key: sk-" +
            std::to_string(1'000'000'000'000 + i) + "}\n";
  EXPECT_NE(ApiKeys::parse(many).status().message().find("1025 entries; at most 1024"),
            std::string::npos);
}

TEST(ApiKeys, AFileThatIsTooLargeOrAwayIsRefused) {
  EXPECT_NE(ApiKeys::load("/nowhere/keys").status().message().find("cannot be read"),
            std::string::npos);
  const std::string path = testing::TempDir() + "/large_keys";
  std::ofstream(path) << std::string((1U << 20U) + 1, '#');
  EXPECT_NE(ApiKeys::load(path).status().message().find("larger than 1 MiB"), std::string::npos);
  std::filesystem::remove(path);
}

TEST(ApiKeys, AFileThatEverybodyMayWriteIsRefused) {
  const std::string path = testing::TempDir() + "/shared_keys";
  std::ofstream(path) << "sk-0123456789abcdef\n";
  using std::filesystem::perms;
  for (const perms mode : {perms(0600), perms(0640), perms(0644)}) {
    std::filesystem::permissions(path, mode);
    EXPECT_TRUE(ApiKeys::load(path).ok());
  }
  for (const perms mode : {perms(0666), perms(0602), perms(0777)}) {
    std::filesystem::permissions(path, mode);
    const auto keys = ApiKeys::load(path);
    ASSERT_FALSE(keys.ok());
    EXPECT_EQ(keys.status().message(), path + ": every user may write it; run chmod o-w on it");
  }
  std::filesystem::remove(path);
  EXPECT_NE(ApiKeys::load(testing::TempDir()).status().message().find("is no file"),
            std::string::npos);
}

// ---------------------------------------------------------------- limits

std::vector<ApiKey> keys_of(const std::string& text) { return ApiKeys::parse(text).value().all(); }

TEST(KeyMeter, StreamsAreBoundedAndGivenBack) {
  KeyMeter meter(keys_of(kFile));
  EXPECT_TRUE(meter.admit(0, 2, 1, 0).status.ok());
  const KeyAnswer later = meter.admit(0, 1, 1, 0);
  EXPECT_EQ(later.status.code(), ErrorCode::queue_full);
  EXPECT_EQ(later.limit, KeyLimit::streams);
  EXPECT_EQ(later.retry_after_s, 1U);
  EXPECT_EQ(meter.admit(0, 3, 1, 0).status.code(), ErrorCode::invalid_argument);
  EXPECT_TRUE(meter.admit(1, 1000, 1, 0).status.ok());
  meter.release(0, 2);
  EXPECT_TRUE(meter.admit(0, 1, 1, 0).status.ok());
  EXPECT_EQ(meter.totals(0).refused[static_cast<std::size_t>(KeyLimit::streams)], 2U);
}

TEST(KeyMeter, TokensAMinute) {
  std::vector<ApiKey> keys = keys_of(kFile);
  keys[0].streams = 0;
  KeyMeter meter(keys);
  const TimeNs begin = 1000 * kSecond;
  EXPECT_TRUE(meter.admit(0, 1, 500, begin).status.ok());
  meter.charge(0, 200, begin);  // 100 beyond the limit: 10 s of it
  const KeyAnswer answer = meter.admit(0, 1, 1, begin);
  EXPECT_EQ(answer.status.code(), ErrorCode::queue_full);
  EXPECT_EQ(answer.limit, KeyLimit::tokens_per_minute);
  EXPECT_NE(answer.status.message().find("600 tokens_per_minute"), std::string::npos);
  EXPECT_EQ(answer.retry_after_s, 11U);
  EXPECT_FALSE(meter.admit(0, 1, 1, begin + 10 * kSecond).status.ok());
  EXPECT_TRUE(meter.admit(0, 1, 1, begin + 11 * kSecond).status.ok());
  // A long silence fills the bucket once, not more.
  EXPECT_TRUE(meter.admit(0, 1, 600, begin + 3600 * kSecond).status.ok());
  EXPECT_EQ(meter.admit(0, 1, 1, begin + 3600 * kSecond).status.code(), ErrorCode::queue_full);
  for (int i = 0; i < 100; ++i) EXPECT_TRUE(meter.admit(1, 1, 1'000'000, begin).status.ok());
  // What generates nothing takes no tokens, and is refused as well while there are none.
  EXPECT_EQ(meter.begin(0, begin + 3600 * kSecond).limit, KeyLimit::tokens_per_minute);
  for (int i = 0; i < 1000; ++i) EXPECT_TRUE(meter.begin(0, begin + 3601 * kSecond).status.ok());
  EXPECT_TRUE(meter.admit(0, 1, 1, begin + 3601 * kSecond).status.ok());
}

TEST(KeyMeter, RequestsAMinute) {
  KeyMeter meter(keys_of("sk-0123456789abcdef requests_per_minute=3 tokens_per_minute=1000"));
  const TimeNs begin = 1000 * kSecond;
  EXPECT_TRUE(meter.begin(0, begin).status.ok()) << "it counts, however it ends";
  for (int i = 0; i < 2; ++i) {
    EXPECT_TRUE(meter.begin(0, begin).status.ok());
    EXPECT_TRUE(meter.admit(0, 1, 10, begin).status.ok());
  }
  const KeyAnswer answer = meter.begin(0, begin);
  EXPECT_EQ(limit_error(answer).param, "requests_per_minute");
  EXPECT_EQ(limit_error(answer).status, 429);
  EXPECT_EQ(limit_error(answer).retry_after_s, 20U);
  EXPECT_EQ(meter.totals(0).requests, 3U);
  EXPECT_EQ(answer.limit, KeyLimit::requests_per_minute);
  EXPECT_EQ(answer.retry_after_s, 20U);
  EXPECT_EQ(meter.totals(0).prompt_tokens, 20U);
  EXPECT_EQ(meter.headers(0, begin),
            "x-ratelimit-limit-requests: 3\r\nx-ratelimit-remaining-requests: 0\r\n"
            "x-ratelimit-reset-requests: 60000ms\r\n"
            "x-ratelimit-limit-tokens: 1000\r\nx-ratelimit-remaining-tokens: 980\r\n"
            "x-ratelimit-reset-tokens: 1200ms\r\n");
  EXPECT_TRUE(meter.begin(0, begin + 20 * kSecond).status.ok());
  EXPECT_EQ(KeyMeter(keys_of("sk-0123456789abcdef")).headers(0, begin), "");
}

TEST(KeyMeter, AFileThatIsReadAgainKeepsWhatIsOpenAndUsed) {
  KeyMeter meter(
      keys_of("sk-0123456789abcdef name=a streams=2 requests_per_minute=2\n"
              "sk-1123456789abcdef name=b\n"));
  EXPECT_TRUE(meter.begin(0, 0).status.ok());
  EXPECT_TRUE(meter.admit(0, 1, 1, 0).status.ok());
  EXPECT_TRUE(meter.admit(1, 1, 1, 0).status.ok());
  // b is gone, c is new, a has another secret, another weight and fewer streams.
  ApiKeys fresh = ApiKeys::parse(
                      "sk-2123456789abcdef name=c\n"
                      "sk-3123456789abcdef name=a streams=1 requests_per_minute=2 "
                      "weight=7\n")
                      .value();
  ASSERT_TRUE(meter.replace(fresh).ok());
  EXPECT_EQ(fresh.find("Bearer sk-3123456789abcdef"), 0U) << "a keeps its slot";
  EXPECT_EQ(fresh.find("Bearer sk-2123456789abcdef"), 2U) << "b's is not given to c";
  EXPECT_FALSE(fresh.find("Bearer sk-0123456789abcdef").has_value());
  EXPECT_EQ(meter.slots(), (std::vector<std::size_t>{2, 0}));
  EXPECT_EQ(meter.key(0).weight, 7);
  EXPECT_EQ(meter.admit(0, 1, 1, 0).limit, KeyLimit::streams);
  meter.release(0, 1);
  meter.release(1, 1);
  EXPECT_TRUE(meter.admit(0, 1, 1, 0).status.ok());
  EXPECT_TRUE(meter.begin(0, 0).status.ok());
  EXPECT_EQ(meter.begin(0, 0).limit, KeyLimit::requests_per_minute)
      << "the bucket did not begin anew";
}

TEST(KeyMeter, NamesSinceTheStartAreBounded) {
  KeyMeter meter(keys_of("sk-0123456789abcdef name=a"));
  std::size_t names = 1;
  Status status;
  for (int file = 0; status.ok(); ++file) {
    std::string text;
    for (std::size_t i = 0; i < kMaxApiKeys; ++i) {
      const std::string name = std::to_string(file) + "_" + std::to_string(i);
      text += "sk-" + std::string(16, 'k') + name + " name=" + name + "\n";
    }
    ApiKeys fresh = ApiKeys::parse(text).value();
    status = meter.replace(fresh);
    if (status.ok()) names += kMaxApiKeys;
  }
  EXPECT_LE(names, kMaxKeySlots);
  EXPECT_NE(status.message().find("start it again"), std::string::npos);
  EXPECT_EQ(meter.slots().size(), kMaxApiKeys) << "the file before stays in force";
}

TEST(KeyMeter, ARequestIsItsTenants) {
  NewRequest request;
  request.priority = -99;
  ApiKey key;
  key.name = "alice";
  key.weight = 3;
  key.priority = -5;
  request.cache_salt = "mine";
  belongs_to(key, false, request);
  EXPECT_EQ(request.share, (TenantShare{"alice", 3, -5}));
  EXPECT_EQ(request.priority, -kMaxPriority);
  EXPECT_EQ(request.cache_salt, "mine");
}

TEST(KeyMeter, SaltsKeepKeysApart) {
  const auto salt_of = [](const std::string& secret, const std::string& name,
                          const std::string& salt) {
    ApiKey key;
    key.digest = digest_of(secret);
    key.name = name;
    NewRequest request;
    request.cache_salt = salt;
    belongs_to(key, true, request);
    return request.cache_salt;
  };
  const std::string alices = salt_of("sk-alice-0123456789", "alice", "");
  EXPECT_EQ(alices, salt_of("sk-alice-0123456789", "key 1", "")) << "whatever it is called";
  EXPECT_NE(alices, salt_of("sk-bob-0123456789ab", "alice", ""));
  EXPECT_NE(alices, salt_of("sk-alice-0123456789", "alice", "mine")) << "the request's own, too";
  EXPECT_NE(salt_of("sk-bob-0123456789ab", "bob", "mine"),
            salt_of("sk-alice-0123456789", "alice", "mine"));
  EXPECT_NE(salt_of("sk-bob-0123456789ab", "bob", alices), alices) << "nobody can name another's";
}

}  // namespace
}  // namespace baton
