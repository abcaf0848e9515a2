// What browsers are told about pages of other origins.
#include "frontend/http/cors.h"

#include <gtest/gtest.h>

#include "frontend/http/allowed_hosts.h"

#include <algorithm>

namespace baton {
namespace {

const std::string kPage = "http://localhost:5173";

HttpRequest request(const std::string& method, const std::string& origin, bool preflight = false) {
  HttpRequest request;
  request.method = method;
  if (!origin.empty()) request.headers.emplace_back("origin", origin);
  if (preflight) request.headers.emplace_back("access-control-request-method", "POST");
  return request;
}

std::string value_of(const HttpHeaders& headers, const std::string& name) {
  const auto is = [&](const auto& header) { return header.first == name; };
  EXPECT_LE(std::count_if(headers.begin(), headers.end(), is), 1) << name;
  const auto found = std::find_if(headers.begin(), headers.end(), is);
  return found == headers.end() ? "" : found->second;
}

TEST(Cors, nothing_is_said_unless_origins_are_named) {
  const Cors cors;
  EXPECT_TRUE(cors.reply_headers(request("POST", kPage)).empty());
  EXPECT_TRUE(cors.preflight_headers(request("OPTIONS", kPage, true), "POST").empty());
}

TEST(Cors, a_page_on_the_list) {
  const Cors cors({kPage, "https://chat.example"});
  for (const std::string& origin : {kPage, std::string("https://chat.example")}) {
    const HttpHeaders& headers = cors.reply_headers(request("POST", origin));
    EXPECT_EQ(value_of(headers, "Access-Control-Allow-Origin"), origin);
    EXPECT_EQ(value_of(headers, "Access-Control-Expose-Headers"), "*");
    EXPECT_EQ(value_of(headers, "Vary"), "Origin");
    EXPECT_EQ(value_of(headers, "Access-Control-Allow-Credentials"), "");
    const HttpHeaders preflight =
        cors.preflight_headers(request("OPTIONS", origin, true), "GET, HEAD, OPTIONS");
    EXPECT_EQ(value_of(preflight, "Access-Control-Allow-Methods"), "GET, HEAD, OPTIONS");
    EXPECT_EQ(value_of(preflight, "Access-Control-Max-Age"), "7200");
    const std::string allowed = value_of(preflight, "Access-Control-Allow-Headers");
    EXPECT_EQ(allowed.find("Authorization, Content-Type"), 0U) << "* does not mean Authorization";
    EXPECT_EQ(allowed.substr(allowed.size() - 3), ", *");
  }
}

TEST(Cors, every_other_origin_is_none_of_the_list) {
  const Cors cors({kPage});
  for (const std::string& origin :
       {std::string(), std::string("null"), std::string("*"), kPage + "0", kPage + "/",
        kPage + ".evil.example", std::string("http://localhost"),
        std::string("HTTP://LOCALHOST:5173"), std::string("https://localhost:5173"),
        "http://evil.example#" + kPage, kPage + "," + kPage, kPage + "\r\nX: 1",
        std::string(30'000, 'x')}) {
    const HttpHeaders expected = {{"Vary", "Origin"}};  // another page may ask a cache for the same
    EXPECT_EQ(cors.reply_headers(request("POST", origin)), expected) << origin;
    EXPECT_TRUE(cors.preflight_headers(request("OPTIONS", origin, true), "POST").empty()) << origin;
  }
}

TEST(Cors, a_star_is_the_same_for_everybody) {
  const Cors cors({"*"});
  for (const std::string& origin : {std::string(), std::string("null"), kPage}) {
    const HttpHeaders& headers = cors.reply_headers(request("POST", origin));
    EXPECT_EQ(value_of(headers, "Access-Control-Allow-Origin"), "*");
    EXPECT_EQ(value_of(headers, "Vary"), "");
    EXPECT_EQ(value_of(headers, "Access-Control-Allow-Credentials"), "");
  }
  EXPECT_FALSE(cors.preflight_headers(request("OPTIONS", "null", true), "POST").empty());
}

TEST(Cors, what_is_no_preflight) {
  const Cors cors({"*"});
  EXPECT_TRUE(cors.preflight_headers(request("OPTIONS", ""), "POST").empty());
  EXPECT_TRUE(cors.preflight_headers(request("OPTIONS", "", true), "POST").empty());
  EXPECT_TRUE(cors.preflight_headers(request("OPTIONS", kPage), "POST").empty());
  EXPECT_TRUE(cors.preflight_headers(request("POST", kPage, true), "POST").empty());
}

TEST(Cors, requests_of_other_sites_are_refused_where_replies_may_not_be_read) {
  using Fields = std::vector<std::pair<std::string, std::string>>;
  const auto refused = [](const Cors& cors, const char* method, Fields fields) {
    HttpRequest request;
    request.method = method;
    request.headers = std::move(fields);
    return cors.refuses(request);
  };
  const std::pair<std::string, std::string> cross{"sec-fetch-site", "cross-site"};
  const std::pair<std::string, std::string> link{"sec-fetch-mode", "navigate"};
  const Cors none, every({"*"}), some({"http://a"});
  EXPECT_TRUE(refused(none, "POST", {cross}));
  EXPECT_TRUE(refused(none, "GET", {cross}));
  EXPECT_TRUE(refused(none, "POST", {cross, {"origin", "http://a"}}));
  EXPECT_TRUE(refused(none, "POST", {cross, link})) << "a form of another site";
  EXPECT_TRUE(refused(some, "POST", {cross, {"origin", "http://b"}}));
  EXPECT_FALSE(refused(some, "POST", {cross, {"origin", "http://a"}}));
  EXPECT_FALSE(refused(every, "POST", {cross, {"origin", "http://b"}}));
  EXPECT_FALSE(refused(none, "GET", {cross, link})) << "a link that somebody follows";
  EXPECT_FALSE(refused(none, "OPTIONS", {cross, {"origin", "http://b"}}));
  EXPECT_FALSE(refused(none, "POST", {{"sec-fetch-site", "same-origin"}}));
  EXPECT_FALSE(refused(none, "POST", {{"origin", "http://b"}}));
}

TEST(AllowedHosts, only_the_loopback_s_names_without_keys_on_the_loopback) {
  for (const char* host :
       {"localhost", "localhost.", "a.localhost", "127.0.0.1", "127.9.9.9", "[::1]", ""}) {
    EXPECT_TRUE(AllowedHosts().allow(host, true)) << host;
  }
  for (const char* host : {"example.com", "127.0.0.1.example.com", "localhost.example.com",
                           "10.0.0.1", "127.example", "[::2]", "xlocalhost"}) {
    EXPECT_FALSE(AllowedHosts().allow(host, true)) << host;
    EXPECT_TRUE(AllowedHosts().allow(host, false)) << host << ": the port is open to the network";
    EXPECT_TRUE(AllowedHosts({}, true).allow(host, true)) << host << ": there are keys";
    EXPECT_TRUE(AllowedHosts({"*"}).allow(host, true)) << host;
  }
  const AllowedHosts named({"gpu.example"}, true);
  EXPECT_TRUE(named.allow("gpu.example", false));
  EXPECT_TRUE(named.allow("localhost", false));
  EXPECT_FALSE(named.allow("other.example", false)) << "a list is kept to, keys or not";
}

}  // namespace
}  // namespace baton
