// frontend.allowed_origins: what is an origin, and what is said about what is none.
#include "configs/origins.h"

#include <gtest/gtest.h>

#include <sstream>

#include "configs/config.h"

namespace baton {
namespace {

using OriginList = std::vector<std::string>;

std::string origins_error_of(const std::string& text) {
  const auto origins = parse_origins(text);
  return origins.ok() ? "accepted" : origins.status().message();
}

TEST(Origins, AsBrowsersSendThem) {
  for (const char* good :
       {"http://localhost", "http://localhost:5173", "https://chat.example.com",
        "http://127.0.0.1:1", "http://[::1]", "http://[::1]:65535", "http://a_b-c.d",
        "https://localhost:80", "http://localhost:443", "chrome-extension://abcdefgh",
        "tauri://localhost", "https://xn--bcher-kva.example"}) {
    EXPECT_TRUE(is_origin(good)) << good;
  }
  for (const char* bad : {"",
                          "*",
                          "null",
                          "localhost",
                          "localhost:3000",
                          "//localhost",
                          "://localhost",
                          "http://",
                          "http:localhost",
                          "http:///",
                          "http://localhost/",
                          "http://localhost/page",
                          "http://localhost?x",
                          "http://localhost#x",
                          "http://u@localhost",
                          "http://Localhost",
                          "HTTP://localhost",
                          "http://local host",
                          "http://localhost:",
                          "http://localhost:x",
                          "http://localhost:0",
                          "http://localhost:080",
                          "http://localhost:+1",
                          "http://localhost:65536",
                          "http://localhost:80",
                          "https://localhost:443",
                          "http://*.example",
                          "http://localhost:*",
                          "http://::1",
                          "http://[::1",
                          "http://[]",
                          "http://[::1]x",
                          "http://[::G]",
                          "1http://a",
                          "http://b\xc3\xbc"
                          "cher.example",
                          "http://a\r\nX: 1"}) {
    EXPECT_FALSE(is_origin(bad)) << bad;
  }
  EXPECT_TRUE(is_origin("http://" + std::string(kMaxOriginBytes - 7, 'a')));
  EXPECT_FALSE(is_origin("http://" + std::string(kMaxOriginBytes - 6, 'a')));
}

TEST(Origins, ListsAndWhatIsWrongWithThem) {
  EXPECT_EQ(parse_origins("").value(), OriginList());
  EXPECT_EQ(parse_origins("*").value(), OriginList{"*"});
  EXPECT_EQ(parse_origins("http://a, https://b").value(), (OriginList{"http://a", "https://b"}));
  EXPECT_EQ(
      origins_error_of("http://a/"),
      "is 'http://a/'; it may be * or origins as browsers send them: scheme://host or "
      "scheme://host:port in lower case, without a path, and without :80 of http or :443 of https");
  EXPECT_EQ(origins_error_of("http://a,").substr(0, 16), "is ''; it may be");
  EXPECT_EQ(origins_error_of("null").substr(0, 10), "is 'null';");
  EXPECT_EQ(origins_error_of("http://a,http://a"), "names http://a twice");
  EXPECT_EQ(origins_error_of("http://a,*"), "names origins beside *, which means all of them");
  std::string many = "http://a";
  for (std::size_t i = 1; i < kMaxOrigins; ++i) many += ",http://a" + std::to_string(i);
  EXPECT_EQ(parse_origins(many).value().size(), kMaxOrigins);
  EXPECT_EQ(origins_error_of(many + ",http://b"), "has more than 64 origins");
}

TEST(Origins, InAFileAndOnTheCommandLine) {
  const auto origins = [](const std::string& value) {
    const auto config = parse_config("frontend:\n  allowed_origins: " + value + "\n", "t.yaml");
    return config.ok() ? config.value().frontend.allowed_origins
                       : OriginList{config.status().message()};
  };
  EXPECT_EQ(parse_config("", "t.yaml").value().frontend.allowed_origins, OriginList());
  EXPECT_EQ(origins("[]"), OriginList());
  EXPECT_EQ(origins("\"*\""), OriginList{"*"});
  EXPECT_EQ(origins("http://a:1"), OriginList{"http://a:1"});
  EXPECT_EQ(origins("[\"http://a:1\", http://b]"), (OriginList{"http://a:1", "http://b"}));
  EXPECT_EQ(origins("[http://a/]").front().substr(0, 54),
            "t.yaml:2: frontend.allowed_origins: is 'http://a/'; it");
  std::ostringstream out, err;
  const char* words[] = {"baton-frontend", "--model", "/m", "--allowed_origins",
                         "http://a,http://[::1]:2"};
  const Loaded loaded = load_config(Program::frontend, 5, words, out, err);
  ASSERT_TRUE(loaded.config) << err.str();
  EXPECT_EQ(loaded.config->frontend.allowed_origins, (OriginList{"http://a", "http://[::1]:2"}));
}

TEST(Hosts, what_is_one) {
  EXPECT_EQ(parse_hosts("").value(), OriginList());
  EXPECT_EQ(parse_hosts("*").value(), OriginList{"*"});
  EXPECT_EQ(parse_hosts("a.example, [::1]").value(), (OriginList{"a.example", "[::1]"}));
  for (const char* bad : {"a:80", "A", "http://a", "a/b", "a,a", "a,*", "a b", ","}) {
    EXPECT_FALSE(parse_hosts(bad).ok()) << bad;
  }
  const auto config = parse_config("frontend:\n  allowed_hosts: [a.example, b]\n", "t.yaml");
  ASSERT_TRUE(config.ok()) << config.status().message();
  EXPECT_EQ(config.value().frontend.allowed_hosts, (OriginList{"a.example", "b"}));
}

}  // namespace
}  // namespace baton
