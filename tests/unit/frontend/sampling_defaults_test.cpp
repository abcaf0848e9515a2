// What a model's folder says of draws, and how requests take it.
#include "text/sampling_defaults.h"

#include "api_fixture.h"
#include "frontend/openai/openai_api.h"

namespace baton {
namespace {

using testing::bad;
using testing::good;
using testing::ModelFolder;
using testing::small_context;
using testing::tiny_model;

Result<SamplingDefaults> of(const std::string& json) {
  ModelFolder folder;
  folder.write("generation_config.json", json);
  return read_sampling_defaults(folder.path());
}

TEST(SamplingDefaults, TheFiveValuesAreRead) {
  const auto all = of(R"({"eos_token_id": 2, "do_sample": true, "temperature": 0.6, "top_p": 0.95,
                          "top_k": 20, "min_p": 0.05, "repetition_penalty": 1.05})");
  ASSERT_TRUE(all.ok()) << all.status().message();
  EXPECT_EQ(all.value().described(),
            "temperature 0.6, top_p 0.95, top_k 20, min_p 0.05, repetition_penalty 1.05");
  const auto none = of(R"({"eos_token_id": [2, 3], "temperature": null})");
  ASSERT_TRUE(none.ok());
  EXPECT_FALSE(none.value().any());
  EXPECT_EQ(none.value().described(), "");
  EXPECT_EQ(of(R"({"top_k": -1})").value().top_k, 0);
}

TEST(SamplingDefaults, AFolderWithoutTheFileHasNone) {
  ModelFolder folder;
  std::filesystem::remove(folder.path() + "/generation_config.json");
  EXPECT_FALSE(read_sampling_defaults(folder.path()).value().any());
}

TEST(SamplingDefaults, WhatIsOutOfRangeIsNamed) {
  for (const char* json : {R"({"temperature": -0.1})", R"({"temperature": "warm"})",
                           R"({"top_p": 0})", R"({"top_p": 1.5})", R"({"top_k": -2})",
                           R"({"min_p": 2})", R"({"repetition_penalty": 0})"}) {
    const auto read = of(json);
    ASSERT_FALSE(read.ok()) << json;
    const std::string field = std::string(json).substr(2, std::string(json).find('"', 2) - 2);
    EXPECT_NE(read.status().message().find("generation_config.json: " + field), std::string::npos)
        << read.status().message();
  }
  EXPECT_FALSE(of("[1]").ok());
}

ServedModel with_defaults() {
  ServedModel model = tiny_model();
  model.sampling.temperature = 0.5F;
  model.sampling.top_p = 0.75F;
  model.sampling.top_k = 7;
  model.sampling.min_p = 0.125F;
  model.sampling.repetition_penalty = 1.25F;
  return model;
}

ParsedRequest ask(const std::string& fields, const ServedModel& model) {
  return good(parse_completion(R"({"prompt":"hello")" + fields + "}", small_context(), model));
}

TEST(SamplingDefaults, ARequestThatDoesNotSayTakesThem) {
  const SamplingParams s = ask("", with_defaults()).sampling;
  EXPECT_EQ(s.temperature, 0.5F);
  EXPECT_EQ(s.top_p, 0.75F);
  EXPECT_EQ(s.top_k, 7);
  EXPECT_EQ(s.min_p, 0.125F);
  EXPECT_EQ(s.repetition_penalty, 1.25F);
}

TEST(SamplingDefaults, ARequestThatSaysHasItsOwn) {
  const SamplingParams s =
      ask(R"(,"temperature":0,"top_p":1,"top_k":-1,"min_p":0,"repetition_penalty":1)",
          with_defaults())
          .sampling;
  EXPECT_EQ(s.temperature, 0.0F);
  EXPECT_EQ(s.top_p, 1.0F);
  EXPECT_EQ(s.top_k, 0);
  EXPECT_EQ(s.min_p, 0.0F);
  EXPECT_EQ(s.repetition_penalty, 1.0F);
}

TEST(SamplingDefaults, ABeamSearchDrawsNothing) {
  const ServedModel model = with_defaults();
  const SamplingParams s = ask(R"(,"use_beam_search":true,"n":2)", model).sampling;
  EXPECT_EQ(s.temperature, 0.0F);
  EXPECT_EQ(s.top_p, 1.0F);
  EXPECT_EQ(s.top_k, 0);
  EXPECT_EQ(s.min_p, 0.0F);
  // What the client itself asks for is still wrong there.
  const std::string own = R"({"prompt":"hello","use_beam_search":true,"n":2,"top_k":7})";
  EXPECT_EQ(bad(parse_completion(own, small_context(), model), own).param, "top_k");
}

}  // namespace
}  // namespace baton
