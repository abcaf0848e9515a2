// Schemas that were written to cost much: a bounded time, and an error that says why.
#include <gtest/gtest.h>

#include <chrono>
#include <string>

#include "schema_case.h"

namespace baton::schema {
namespace {

/// It is compiled, or refused, soon.
void check_bounded(const std::string& schema, const std::string& reason = "") {
  const auto began = std::chrono::steady_clock::now();
  const auto made = SchemaGrammar::compile(schema, {});
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
  EXPECT_LT(took.count(), 10.0) << schema.substr(0, 200);
  if (reason.empty()) return;
  ASSERT_FALSE(made.ok()) << schema.substr(0, 200);
  EXPECT_NE(made.status().message().find(reason), std::string::npos) << made.status().message();
}

std::string nested(std::size_t depth) {
  std::string schema;
  for (std::size_t i = 0; i < depth; ++i) schema += R"({"items":)";
  return schema + "true" + std::string(depth, '}');
}

TEST(SchemaLimits, Nesting) {
  check_bounded(nested(100'000), "nested 100000 deep");
  EXPECT_TRUE(SchemaGrammar::compile(nested(150), {}).ok());
}

TEST(SchemaLimits, AChainOfReferences) {
  std::string schema = R"({"$ref":"#/$defs/a0","$defs":{)";
  for (int i = 0; i < 2000; ++i) {
    schema +=
        "\"a" + std::to_string(i) + R"(":{"$ref":"#/$defs/a)" + std::to_string(i + 1) + "\"},";
  }
  schema += R"("a2000":{"type":"null"}}})";
  check_bounded(schema, "need one another");
}

TEST(SchemaLimits, AReferenceToItself) {
  check_bounded(R"({"$ref":"#"})", "refers to itself");
  check_bounded(
      R"({"$defs":{"a":{"allOf":[{"$ref":"#/$defs/b"}]},"b":{"$ref":"#/$defs/a"}},"$ref":"#/$defs/a"})",
      "refers to itself");
}

TEST(SchemaLimits, ManyCombinations) {
  std::string all;
  std::string one;
  for (int i = 0; i < 40; ++i) {
    const std::string name = std::to_string(i);
    all += std::string(i > 0 ? "," : "") + R"({"anyOf":[{"required":["a)" + name +
           R"("]},{"required":["b)" + name + R"("]}]})";
    one += std::string(i > 0 ? "," : "") + R"({"required":["a)" + name + R"("]})";
  }
  check_bounded(R"({"type":"object","allOf":[)" + all + "]}");
  EXPECT_EQ(testing::unenforced(R"({"type":"object","allOf":[)" + all + "]}"), "allOf ");
  check_bounded(R"({"type":"object","oneOf":[)" + one + "]}");
  check_bounded(R"({"type":"object","not":{"allOf":[)" + all + "]}}");
}

TEST(SchemaLimits, Patterns) {
  check_bounded(R"({"type":"string","pattern":"^(a|b){0,99999}(c{0,99999}){0,99999}$"})");
  check_bounded(R"({"type":"string","pattern":"(a|b)*a(a|b){30}","minLength":3})");
  check_bounded(
      R"({"type":"string","allOf":[{"pattern":"^(aaaaaaa)*$"},{"pattern":"^(aaaaaaaaaaa)*$"},
      {"pattern":"^(aaaaaaaaaaaaa)*$"},{"pattern":"^(aaaaaaaaaaaaaaaaa)*$"},{"pattern":"^(aaaaaaaaaaaaaaaaaaa)*$"},
      {"minLength":3}]})");
  check_bounded("{\"pattern\":\"" + std::string(30'000, '(') + "\"}");
}

TEST(SchemaLimits, LargeBounds) {
  check_bounded(R"({"type":"array","minItems":18446744073709551615})");
  check_bounded(R"({"type":"array","minItems":1000000000,"items":{"type":"null"}})");
  check_bounded(R"({"type":"object","minProperties":1000000000})");
  check_bounded(R"({"type":"string","minLength":1000000000000})");
  check_bounded(R"({"type":"number","minimum":1e308,"multipleOf":7})");
}

TEST(SchemaLimits, ManyNames) {
  std::string schema = R"({"type":"object","additionalProperties":false,"properties":{)";
  std::string required;
  for (int i = 0; i < 3000; ++i) {
    schema += std::string(i > 0 ? "," : "") + "\"name" + std::to_string(i) + "\":{}";
    required += std::string(i > 0 ? ",\"name" : "\"name") + std::to_string(i) + "\"";
  }
  check_bounded(schema + "}}");
  check_bounded(schema + "},\"required\":[" + required + "]}");
}

}  // namespace
}  // namespace baton::schema
