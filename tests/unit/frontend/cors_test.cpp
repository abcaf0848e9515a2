// What browsers are told about pages of other origins.
#include "frontend/http/cors.h"

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace baton
