#include "frontend/core/json_reader.h"

#include <gtest/gtest.h>

#include <random>

#include "frontend/core/surrogates.h"

namespace baton {
namespace {

std::string nested(std::size_t depth) {
  return "{\"a\":" + std::string(depth, '[') + std::string(depth, ']') + "}";
}

TEST(ParseJson, RefusesWithAReason) {
  const struct {
    std::string body;
    const char* reason;
  } cases[] = {
      {"", "the body is empty; a JSON object is expected"},
      {"[]", "the body must be a JSON object, not an array"},
      {"null", "the body must be a JSON object, not null"},
      {"\"x\"", "the body must be a JSON object, not a string"},
      {"{\"a\":1} x", "not valid JSON"},
      {"{\"a\":1,}", "not valid JSON"},
      {"{'a':1}", "not valid JSON"},
      {"{\"a\":NaN}", "not valid JSON"},
      {"{\"a\":Infinity}", "not valid JSON"},
      {"{\"a\":1e999}", "number overflow"},
      {"{\"a\":01}", "not valid JSON"},
      {"{\"a\":\"\xFF\"}", "ill-formed UTF-8"},
      {"{\"a\":\"\xC0\xAF\"}", "ill-formed UTF-8"},
      {"{\"a\":\"\xED\xA0\x80\"}", "ill-formed UTF-8"},
      {"{\"a\":\"\\ud8\"}", "not valid JSON"},
      {"{\"a\":\"line\nbreak\"}", "not valid JSON"},
      {"{\"a\":1,\"a\":2}", "the key 'a' is written twice"},
      {"{\"x\":{\"b\":1,\"c\":2,\"b\":1}}", "the key 'b' is written twice"},
      {nested(256), "nested deeper than 256 levels"},
      {std::string(3'000'000, '['), "nested deeper than 256 levels"},
      {"{\"a\":\"" + std::string(1'000'000, 'x'), "not valid JSON"},
  };
  for (const auto& bad : cases) {
    const auto parsed = parse_json_object(bad.body);
    ASSERT_FALSE(parsed.ok()) << bad.body.substr(0, 40);
    EXPECT_EQ(parsed.status().code(), ErrorCode::invalid_argument);
    EXPECT_NE(parsed.status().message().find(bad.reason), std::string::npos)
        << bad.body.substr(0, 40) << " -> " << parsed.status().message();
    EXPECT_LT(parsed.status().message().size(), 400U);
  }
  EXPECT_TRUE(parse_json_object(nested(255)).ok());
}

TEST(ParseJson, KeepsTheValue) {
  const std::string body =
      R"({"a":[1,-2,3.5,true,null,"x\u00e9",{"b":{}}],"c":18446744073709551615,"d":""})";
  const auto parsed = parse_json_object(body);
  ASSERT_TRUE(parsed.ok());
  EXPECT_EQ(parsed.value(), nlohmann::json::parse(body));
}

TEST(ParseJson, LoneSurrogatesBecomeReplacementCharacters) {
  const struct {
    const char* said;
    const char* read;
  } cases[] = {
      {R"(cut \ud83d)", "cut \uFFFD"},
      {R"(\uDE80\ud83d\ud83d\ude80\uD83D)", "\uFFFD\uFFFD\U0001F680\uFFFD"},
      {R"(\ud83dx\ude80)", "\uFFFDx\uFFFD"},
      {R"(\\ud83d \\\ud83d)", "\\ud83d \\\uFFFD"},
      {R"(\ud83d\n\"\u00e9)", "\uFFFD\n\"\u00E9"},
  };
  for (const auto& one : cases) {
    const std::string body = std::string("{\"") + one.said + "\":[\"" + one.said + "\"],\"b\":1}";
    const nlohmann::json expected = {{one.read, nlohmann::json::array({one.read})}, {"b", 1}};
    const auto parsed = parse_json_object(body);
    ASSERT_TRUE(parsed.ok()) << body << parsed.status().message();
    EXPECT_EQ(parsed.value(), expected) << body;
    EXPECT_EQ(nlohmann::json(parse_ordered_json(body)), expected) << body;
  }
  EXPECT_EQ(without_lone_surrogates(R"(\ud83d\ude80 \\ud83d \u00e9)"), std::nullopt);
}

TEST(FieldReader, NamesTheFieldAndTheFault) {
  const auto json = nlohmann::json::parse(
      R"({"s":1,"i":1.5,"b":"true","n":"1","low":-1,"huge":1e30,"u":18446744073709551615})");
  const auto check = [&](auto read, const std::string& message) {
    FieldReader fields(json, "outer");
    read(fields);
    ASSERT_FALSE(fields.ok());
    EXPECT_EQ(fields.finish()->message, message);
  };
  check([](FieldReader& f) { f.string("s"); }, "'outer.s' must be a string, not an integer");
  check([](FieldReader& f) { f.integer("i", 0, 9); }, "'outer.i' must be an integer, not a number");
  check([](FieldReader& f) { f.boolean("b"); }, "'outer.b' must be true or false, not a string");
  check([](FieldReader& f) { f.number("n", 0, 1); }, "'outer.n' must be a number, not a string");
  check([](FieldReader& f) { f.integer("low", 0, 9); }, "'outer.low' must be between 0 and 9");
  check([](FieldReader& f) { f.integer("huge", 0, 9); }, "'outer.huge' must be between 0 and 9");
  check([](FieldReader& f) { f.integer("u", 0, 9); }, "'outer.u' must be between 0 and 9");
  check([](FieldReader& f) { f.number("low", 0, 2); },
        "'outer.low' must be at least 0 and at most 2");
  check([](FieldReader& f) { f.number("low", 0, 1.5, true); },
        "'outer.low' must be above 0 and at most 1.5");
}

TEST(FieldReader, KeepsTheFirstErrorAndFindsUnknownFields) {
  const auto json = nlohmann::json::parse(R"({"a":null,"b":2,"zzz":3})");
  FieldReader fields(json);
  EXPECT_EQ(fields.take("a"), nullptr);
  EXPECT_EQ(fields.take("missing"), nullptr);
  EXPECT_EQ(fields.integer("b", 0, 5), 2);
  ASSERT_TRUE(fields.finish().has_value());
  EXPECT_EQ(fields.finish()->field, "zzz");
  EXPECT_EQ(fields.finish()->message, "unknown field 'zzz'");

  FieldReader twice(json);
  twice.fail("x", "first");
  twice.fail("y", "second");
  EXPECT_EQ(twice.finish()->message, "'x' first");
}

TEST(ParseJson, RandomDamageNeverGetsThrough) {
  std::mt19937 random(5);
  const std::string good =
      R"({"model":"m","messages":[{"role":"user","content":"hé\u4f60 \n"}],"n":1,"x":[1.5e3,-2]})";
  int accepted = 0;
  for (int i = 0; i < 20000; ++i) {
    std::string body = good;
    for (unsigned k = 0, count = 1 + random() % 4; k < count; ++k) {
      const std::size_t at = random() % body.size();
      switch (random() % 3) {
        case 0:
          body[at] = static_cast<char>(random());
          break;
        case 1:
          body.erase(at, 1 + random() % 5);
          break;
        default:
          body.insert(at, 1, "{}[]\",:\\0e-\xE4"[random() % 13]);
      }
      if (body.empty()) body = " ";
    }
    const auto mine = parse_json_object(body);
    const auto reference = nlohmann::json::parse(body, nullptr, false);
    if (mine.ok()) {
      ++accepted;
      ASSERT_EQ(mine.value(), reference);
    } else {
      ASSERT_FALSE(mine.status().message().empty());
    }
  }
  EXPECT_GT(accepted, 100);
  EXPECT_LT(accepted, 15000);
}

TEST(OrderedJson, KeepsTheOrderOfKeys) {
  const char* text = R"({"b":1,"a":{"z":[{"y":2,"x":3},-4,0.5,true,null,"t"],"c":{}}})";
  EXPECT_EQ(parse_ordered_json(text).dump(), text);
  EXPECT_EQ(parse_ordered_json("[]").dump(), "[]");
  EXPECT_EQ(parse_ordered_json("7"), 7);
}

TEST(OrderedJson, WhatIsNoneOrAmbiguousIsDiscarded) {
  for (const std::string text : {"", "{", "{\"a\":1} x", "{\"a\":1,\"b\":2,\"a\":1}",
                                 "[{\"a\":{\"b\":1,\"b\":1}}]", "\xff"}) {
    EXPECT_TRUE(parse_ordered_json(text).is_discarded()) << text;
  }
  const std::string deep(kMaxBodyDepth + 1, '[');
  EXPECT_TRUE(parse_ordered_json(deep + std::string(deep.size(), ']')).is_discarded());
}

TEST(JsonPlace, IsThatOfTheError) {
  const auto place = [](std::string_view text) {
    const auto parsed = parse_json_object(text);
    return std::string(json_place(parsed.status().message()));
  };
  EXPECT_EQ(place("{\"a\":\n x}"), "line 2, column 2");
  EXPECT_EQ(place("{"), "line 1, column 2");
  EXPECT_EQ(place("{\"at line 1, column 9: a\":1,\"at line 1, column 9: a\":1}"), "");
  EXPECT_EQ(place("[]"), "");
}

}  // namespace
}  // namespace baton
