// Keywords of JSON Schema, each with texts that it allows and texts that it does not.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "schema_case.h"

namespace baton::schema {
namespace {

using testing::allows;
using testing::grammar;
using testing::unenforced;

struct Case {
  std::string schema;
  std::vector<std::string> good;
  std::vector<std::string> bad;
};

void check(const std::vector<Case>& cases, bool closed = false) {
  for (const Case& one : cases) {
    const auto made = grammar(one.schema, closed);
    EXPECT_TRUE(made->unenforced().empty()) << one.schema;
    for (const std::string& text : one.good) {
      EXPECT_TRUE(allows(*made, text)) << one.schema << "\nrefuses " << text;
    }
    for (const std::string& text : one.bad) {
      EXPECT_FALSE(allows(*made, text)) << one.schema << "\nallows " << text;
    }
  }
}

TEST(Schema, TypesAndValues) {
  check({
      {R"({})",
       {"null", "true", "-0.5e+3", R"("")", "[]", R"({"a": [1, {}]})"},
       {"", "nul", "01", "[1,]", "{,}"}},
      {R"({"type":"integer"})", {"0", "-12", "1.0"}, {"1.5", R"("1")", "1e3", "-"}},
      {R"({"type":["string","null"]})", {"null", R"("x")"}, {"1", "true"}},
      {R"({"enum":[1,"a",null,{"b":[true]}]})",
       {"1", "1.0", R"("a")", "null", R"({"b": [true]})"},
       {"2", R"("b")", R"({"b":[]})", "{}"}},
      {R"({"type":"string","enum":[1,"a"]})", {R"("a")"}, {"1"}},
      {R"({"const":"a\"\n"})", {R"("a\"\n")", R"("\u0061\u0022\u000a")"}, {R"("a")"}},
      {R"({"const":2,"minimum":1})", {"2"}, {"1"}},
      {R"({"not":{"type":"string"}})", {"1", "{}"}, {R"("a")"}},
  });
}

TEST(Schema, Strings) {
  check({
      {R"({"type":"string"})",
       {R"("é\ud83d\ude00\u00e9")"},
       {"\"a\nb\"", R"("\ud800")", R"("\udc00")", R"("\x")", "\"\xff\""}},
      {R"({"type":"string","minLength":2,"maxLength":3})",
       {R"("ab")", R"("\u0061\n😀")"},
       {R"("a")", R"("abcd")"}},
      {R"({"type":"string","pattern":"b"})", {R"("abc")", R"("b")"}, {R"("ac")"}},
      {R"({"type":"string","pattern":"^a|b$"})", {R"("ax")", R"("xb")"}, {R"("xay")"}},
      {R"({"type":"string","pattern":"^(?!foo)[a-z]+$"})",
       {R"("bar")", R"("fo")"},
       {R"("foobar")"}},
      {R"({"type":"string","pattern":"^[^\\d\\s]{2,3}$","minLength":3})",
       {R"("abc")"},
       {R"("ab")", R"("a1c")"}},
      {R"({"type":"string","pattern":"^a*$","not":{"maxLength":2}})",
       {R"("aaa")"},
       {R"("aa")", R"("aab")"}},
      {R"({"type":"string","format":"date"})",
       {R"("2024-02-29")", R"("2000-02-29")"},
       {R"("2023-02-29")", R"("1900-02-29")", R"("2024-04-31")"}},
      {R"({"type":"string","format":"ipv4","pattern":"^10\\."})",
       {R"("10.0.0.255")"},
       {R"("11.0.0.1")", R"("10.0.0.256")"}},
      {R"({"type":"string","format":"a name of ours"})", {R"("x")"}, {}},
      {R"({"minLength":2})", {"1", R"("ab")"}, {R"("a")"}},
  });
}

TEST(Schema, Numbers) {
  check({
      {R"({"minimum":-1.5,"maximum":10})",
       {"-1.5", "-1.50", "0", "-0", "10", "10.0", "9.99"},
       {"-1.51", "10.01", "11", "100", "-2"}},
      {R"({"exclusiveMinimum":0,"exclusiveMaximum":1})",
       {"0.5", "0.001"},
       {"0", "-0.0", "1", "1.0", "0.000"}},
      {R"({"minimum":0,"exclusiveMinimum":true})", {"1"}, {"0", "0.0"}},
      {R"({"type":"integer","multipleOf":7,"minimum":100,"maximum":110})",
       {"105"},
       {"98", "100", "112"}},
      {R"({"multipleOf":0.01})", {"1.25", "3", "0.010"}, {"1.255"}},
      {R"({"type":"number","not":{"multipleOf":2}})", {"1", "2.5"}, {"4", "-2.0"}},
      {R"({"maximum":1e30})",
       {"1000000000000000000000000000000"},
       {"1000000000000000000000000000001"}},
      {R"({"type":"number","enum":[1.5,-2]})", {"1.5", "1.50", "-2", "-2.0"}, {"2", "1.51"}},
  });
}

TEST(Schema, Arrays) {
  check({
      {R"({"type":"array","items":{"type":"integer"},"minItems":1,"maxItems":2})",
       {"[1]", "[1, 2]"},
       {"[]", "[1, 2, 3]", "[true]"}},
      {R"({"type":"array","prefixItems":[{"type":"integer"}],"items":false})",
       {"[]", "[1]"},
       {"[1, 2]", "[null]"}},
      {R"({"items":[{"type":"integer"}],"additionalItems":{"type":"string"}})",
       {R"([1, "a"])"},
       {"[1, 2]"}},
      {R"({"type":"array","contains":{"const":5},"maxItems":2})",
       {"[5]", "[1, 5]", "[5, 5]"},
       {"[]", "[1, 2]"}},
      {R"({"type":"array","contains":{"const":5},"minContains":2,"maxContains":3})",
       {"[5, 1, 5]"},
       {"[5, 1]", "[5, 5, 5, 5]"}},
      {R"({"type":"array","not":{"items":{"type":"integer"}}})", {R"([1, "a"])"}, {"[]", "[1, 2]"}},
      {R"({"prefixItems":[true],"unevaluatedItems":false})", {"[1]"}, {"[1, 2]"}},
  });
}

TEST(Schema, OpenObjects) {
  check({
      {R"({"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"null"}},"required":["a"]})",
       {R"({"a": 1})", R"({"b": null, "a": 1})", R"({"x": {}, "a": 1})", R"({"\u0061": 1})"},
       {"{}", R"({"a": "1"})", R"({"b": null})", R"({"a": 1, "a": 2})"}},
      {R"({"properties":{"a":true},"patternProperties":{"^x":{"type":"integer"}},"additionalProperties":false})",
       {R"({"a": null, "x1": 1})", "{}"},
       {R"({"b": 1})", R"({"x1": "1"})"}},
      {R"({"additionalProperties":{"type":"integer"},"properties":{"a":{"type":"string"}}})",
       {R"({"b": 1, "a": "x"})"},
       {R"({"a": 1})", R"({"b": "x"})"}},
      {R"({"type":"object","propertyNames":{"pattern":"^[a-c]$"},"minProperties":2,"maxProperties":3})",
       {R"({"a": 1, "c": 2})"},
       {R"({"a": 1})", R"({"a": 1, "a": 2})", R"({"d": 1, "a": 1})"}},
      {R"({"dependentRequired":{"a":["b"]}})",
       {R"({"b": 1})", R"({"a": 1, "b": 1})", R"({"b": 1, "a": 1})"},
       {R"({"a": 1})"}},
      {R"({"dependentSchemas":{"a":{"properties":{"b":{"type":"integer"}}}}})",
       {R"({"b": "x"})", R"({"a": 1, "b": 1})"},
       {R"({"a": 1, "b": "x"})", R"({"b": "x", "a": 1})"}},
      {R"({"type":"object","not":{"required":["a"]}})", {R"({"b": 1})"}, {R"({"a": 1})"}},
      {R"({"allOf":[{"properties":{"a":true}}],"properties":{"b":true},"unevaluatedProperties":false})",
       {R"({"a": 1, "b": 2})"},
       {R"({"c": 1})"}},
  });
}

TEST(Schema, Combinations) {
  check({
      {R"({"allOf":[{"type":"integer"},{"minimum":5}]})", {"5"}, {"4", R"("5")"}},
      {R"({"minimum":2,"anyOf":[{"type":"integer"},{"type":"string"}]})",
       {"2", R"("a")"},
       {"1", "null"}},
      {R"({"oneOf":[{"multipleOf":2,"type":"integer"},{"multipleOf":3,"type":"integer"}]})",
       {"2", "3", "9"},
       {"6", "1", "12"}},
      {R"({"oneOf":[{"required":["a"]},{"required":["b"]}],"type":"object"})",
       {R"({"a": 1})", R"({"b": 1})"},
       {"{}", R"({"a": 1, "b": 1})"}},
      {R"({"oneOf":[{"properties":{"k":{"const":"x"},"v":{"type":"integer"}},"required":["k"]},
                    {"properties":{"k":{"const":"y"},"v":{"type":"string"}},"required":["k"]}]})",
       {R"({"k": "x", "v": 1})", R"({"v": "s", "k": "y"})"},
       {R"({"k": "x", "v": "s"})", R"({"v": 1, "k": "y"})", R"({"k": "z"})"}},
      {R"({"if":{"properties":{"a":{"const":1}},"required":["a"]},"then":{"required":["b"]},"else":{"required":["c"]}})",
       {R"({"a": 1, "b": 0})", R"({"a": 2, "c": 0})"},
       {R"({"a": 1, "c": 0})", R"({"b": 0})", "{}"}},
      {R"({"not":{"anyOf":[{"type":"string"},{"type":"integer"}]}})",
       {"1.5", "null"},
       {"1", R"("")"}},
  });
}

TEST(Schema, References) {
  check({
      {R"({"$defs":{"a/b":{"type":"integer"},"c~d":{"type":"null"},"e%f":{"type":"boolean"}},
           "anyOf":[{"$ref":"#/$defs/a~1b"},{"$ref":"#/$defs/c~0d"},{"$ref":"#/$defs/e%25f"}]})",
       {"1", "null", "true"},
       {R"("x")"}},
      {R"({"$defs":{"x":{"$anchor":"here","type":"integer"}},"$ref":"#here","minimum":3})",
       {"3"},
       {"2", "null"}},
      {R"({"$id":"http://a/b/c","$defs":{"x":{"$id":"d","type":"integer"}},"$ref":"http://a/b/d"})",
       {"3"},
       {"null"}},
      {R"({"type":"object","properties":{"next":{"$ref":"#"},"v":{"type":"integer"}},"required":["v"],"additionalProperties":false})",
       {R"({"v": 1, "next": {"v": 2}})"},
       {R"({"v": 1, "next": {}})"}},
      {R"({"$schema":"http://json-schema.org/draft-07/schema#","definitions":{"x":{"type":"integer"}},
           "properties":{"a":{"$ref":"#/definitions/x","maximum":1}}})",
       {R"({"a": 2})"},
       {R"({"a": "x"})"}},
  });
  // A value that would never end is none: of the alternatives, the other one is left.
  EXPECT_FALSE(allows(
      R"({"$defs":{"loop":{"type":"object","properties":{"a":{"$ref":"#/$defs/loop"}},"required":["a"]}},
      "anyOf":[{"$ref":"#/$defs/loop"},{"type":"null"}]})",
      "{"));
}

TEST(Schema, ClosedObjectsHoldWhatIsNamedInOrder) {
  check(
      {
          {R"({"type":"object","properties":{"b":{"type":"integer"},"a":{"type":"integer"}},"required":["a"]})",
           {R"({"b": 1, "a": 2})", R"({"a": 2})"},
           {R"({"a": 2, "b": 1})", R"({"a": 1, "c": 1})", R"({"b": 1})"}},
          {R"({"type":"object"})", {R"({"x": 1})", "{}"}, {}},
          {R"({"properties":{"a":true},"additionalProperties":{"type":"integer"}})",
           {R"({"a": 1, "x": 2})", R"({"x": 2})"},
           {R"({"x": "s"})"}},
          {R"({"properties":{"a":true},"required":["c"]})",
           {R"({"a": 1, "c": 2})"},
           {R"({"a": 1})"}},
          {R"({"allOf":[{"properties":{"a":true}},{"properties":{"b":true}}]})",
           {R"({"a": 1, "b": 2})"},
           {R"({"a": 1, "c": 2})"}},
          {R"({"type":"integer"})", {"12"}, {"1.0"}},
      },
      true);
}

TEST(Schema, WhatIsNotEnforcedIsNamed) {
  EXPECT_EQ(unenforced(R"({"properties":{"a":{"type":"array","uniqueItems":true}}})"),
            "uniqueItems /properties/a");
  EXPECT_EQ(unenforced(R"({"$ref":"http://elsewhere/x"})"), "$ref ");
  EXPECT_EQ(unenforced(R"({"items":{"pattern":"(a)\\1"}})"), "pattern /items");
  EXPECT_EQ(unenforced(R"({"properties":{"a/b":{"pattern":"\\bx"}}})"), "pattern /properties/a~1b");
  EXPECT_EQ(unenforced(R"({"format":"regex"})"), "format ");
  EXPECT_EQ(unenforced(R"({"multipleOf":0.1234567891})"), "multipleOf ");
  // What is not enforced must not be denied either.
  const std::string denied = R"({"not":{"pattern":"(a)\\1"}})";
  EXPECT_EQ(unenforced(denied), "pattern /not");
  EXPECT_TRUE(allows(denied, R"("b")"));
}

TEST(Schema, WhatNothingMatchesIsRefused) {
  for (const char* schema : {"false", R"({"type":"integer","enum":["a"]})",
                             R"({"minimum":2,"maximum":1,"type":"number"})",
                             R"({"type":"object","properties":{"a":false},"required":["a"]})",
                             R"({"type":"string","pattern":"^a$","minLength":2})",
                             R"({"allOf":[{"const":1},{"const":2}]})"}) {
    const auto made = SchemaGrammar::compile(schema, {});
    ASSERT_FALSE(made.ok()) << schema;
    EXPECT_EQ(made.status().message(), "nothing matches the schema");
  }
}

TEST(Schema, NothingFitsWhereNoPropertyMayCome) {
  const std::string none = R"("type":"object","not":{"additionalProperties":false})";
  EXPECT_FALSE(SchemaGrammar::compile("{" + none + R"(,"maxProperties":0})", {false}).ok());
  EXPECT_TRUE(SchemaGrammar::compile("{" + none + R"(,"maxProperties":1})", {false}).ok());
  // Of what must come, one name is forbidden and the other has another value.
  EXPECT_FALSE(SchemaGrammar::compile(R"({"type":"object","properties":{"a":{"const":1}},
      "additionalProperties":false,"not":{"patternProperties":{"^a":{"const":1}}}})",
                                      {false})
                   .ok());
  // An item that is there cannot be what must not.
  EXPECT_FALSE(SchemaGrammar::compile(R"({"type":"array","prefixItems":[{"type":"null"}],
      "minItems":1,"not":{"contains":{"type":"null"}}})",
                                      {false})
                   .ok());
  // A value that cannot come does not begin.
  EXPECT_FALSE(allows(R"({"properties":{"a":{)" + none + R"(,"maxProperties":0}}})", "{\"a\":{}}"));
}

TEST(Schema, AWrongTypeIsRefused) {
  const auto made = SchemaGrammar::compile(R"({"properties":{"a":{"type":"colour"}}})", {});
  ASSERT_FALSE(made.ok());
  EXPECT_EQ(made.status().message(), "type at #/properties/a: 'colour' is no type of JSON Schema");
}

TEST(Schema, WhitespaceIsBounded) {
  const auto made = grammar(R"({"type":"array"})");
  EXPECT_TRUE(allows(*made, "[" + std::string(32, ' ') + "1\n,\t2 ]"));
  EXPECT_FALSE(allows(*made, "[" + std::string(33, ' ') + "]"));
  EXPECT_FALSE(allows(*made, " []"));
}

}  // namespace
}  // namespace baton::schema
