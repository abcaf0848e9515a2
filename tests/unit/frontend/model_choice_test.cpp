// Which of several models a request is for, and what is told of all of them together.
#include <gtest/gtest.h>

#include "frontend/core/metrics_merge.h"
#include "frontend/core/model_choice.h"
#include "frontend/http/health.h"
#include "frontend/http/request_facts.h"

namespace baton {
namespace {

ServedModels three() {
  ServedModels models(3);
  models[0].name = "small";
  models[1].name = "org/big";
  models[2].name = "other:latest";
  return models;
}

/// "0", or the error's status and message.
std::string chosen(std::string_view body, ModelNamed where = ModelNamed::in_body,
                   const std::string& path = "/", bool any_model = false) {
  RequestContext context;
  context.path = path;
  context.any_model = any_model;
  const auto choice = choose_model(three(), where, context, body);
  if (const auto* error = std::get_if<HttpError>(&choice))
    return std::to_string(error->status) + " " + error->message;
  return std::to_string(std::get<std::size_t>(choice));
}

const std::string kMissing =
    "400 'model' is missing; this server has several: small, org/big, other:latest";
const std::string kNone =
    "404 the model 'x' does not exist here; this server has 'small', 'org/big', 'other:latest'";

TEST(ModelChoice, ByTheBodysModel) {
  EXPECT_EQ(chosen(R"({"model":"small"})"), "0");
  EXPECT_EQ(chosen(R"({"messages":[{"model":"x"}],"model":"org/big","a":{"model":"small"}})"), "1");
  EXPECT_EQ(chosen(R"({"\u006dodel":"org\/big"})"), "1") << "as JSON writes it";
  EXPECT_EQ(chosen(R"({"model":"x"})"), kNone);
  EXPECT_EQ(chosen(R"({"model":"SMALL"})").substr(0, 4), "404 ");
}

TEST(ModelChoice, NoNameIsNotTheFirst) {
  EXPECT_EQ(chosen("{}"), kMissing);
  EXPECT_EQ(chosen(R"({"model":null})"), kMissing);
  EXPECT_EQ(chosen(R"({"model":""})"), kMissing);
  EXPECT_EQ(chosen(R"({"prompt":{"model":"small"}})"), kMissing);
}

TEST(ModelChoice, WhatIsNoBodyTheDialectRefuses) {
  for (const char* body : {"", "[", R"({"prompt":)", R"({"model":7})", R"({"model":["small"]})"})
    EXPECT_EQ(chosen(body), "0") << body;
}

TEST(ModelChoice, OneModelIsNotLookedFor) {
  ServedModels one(1);
  one[0].name = "small";
  for (const char* body : {R"({"model":"x"})", "{}", "nonsense"}) {
    const auto choice = choose_model(one, ModelNamed::in_body, {}, body);
    ASSERT_TRUE(std::holds_alternative<std::size_t>(choice)) << body;
  }
  EXPECT_EQ(no_such_model("x", one).message,
            "the model 'x' does not exist here; this server has 'small'");
}

TEST(ModelChoice, ByTag) {
  const auto by_tag = [](std::string_view body) { return chosen(body, ModelNamed::by_tag); };
  EXPECT_EQ(by_tag(R"({"model":"small:latest"})"), "0");
  EXPECT_EQ(by_tag(R"({"model":"other:latest"})"), "2");
  EXPECT_EQ(by_tag(R"({"model":"small","name":"org/big"})"), "1") << "name is the older word";
  EXPECT_EQ(by_tag(R"({"name":"org/big","model":"small"})"), "1");
  EXPECT_EQ(by_tag(R"({"model":"other"})").substr(0, 4), "404 ");
}

TEST(ModelChoice, ByPathOrNotAtAll) {
  EXPECT_EQ(chosen("{}", ModelNamed::in_path, "/mii/small"), "0");
  EXPECT_EQ(chosen("{}", ModelNamed::in_path, "/mii/x"), kNone);
  EXPECT_EQ(chosen("{}", ModelNamed::in_path, "/mii/org%2Fbig"), "1");
  EXPECT_EQ(chosen(R"({"model":"org/big"})", ModelNamed::nowhere), "0");
}

TEST(ModelChoice, WhereAnyNameIsTakenTheFirstStandsForIt) {
  EXPECT_EQ(chosen(R"({"model":"tgi"})", ModelNamed::in_body, "/", true), "0");
  EXPECT_EQ(chosen("{}", ModelNamed::in_body, "/", true), "0");
  EXPECT_EQ(chosen(R"({"model":"org/big"})", ModelNamed::in_body, "/", true), "1");
}

TEST(MergeMetrics, EachMetricHasOnePlace) {
  const std::string a =
      "# HELP m One.\n# TYPE m gauge\nm{model=\"a\"} 1\n# HELP p Two.\n# TYPE p gauge\np 3\n";
  const std::string b =
      "# HELP m One.\n# TYPE m gauge\nm{model=\"b\"} 2\n# HELP n Three.\n# TYPE n gauge\nn 4\n";
  EXPECT_EQ(merge_metrics({a}), a);
  EXPECT_EQ(merge_metrics({a, b}),
            "# HELP m One.\n# TYPE m gauge\nm{model=\"a\"} 1\nm{model=\"b\"} 2\n"
            "# HELP p Two.\n# TYPE p gauge\np 3\n# HELP n Three.\n# TYPE n gauge\nn 4\n");
}

constexpr HealthOf kAble = HealthOf::able;

TEST(JoinedHealth, NamesWhoCannotServe) {
  const Health good{true, "ok", "1 worker is ready"};
  const Health away{false, "no_scheduler", "it does not answer"};
  const Health all = join_health({{"a", good}, {"b", good}}, kAble);
  EXPECT_TRUE(all.ok);
  EXPECT_EQ(all.reason, "all 2 models can serve");
  const Health some = join_health({{"a", good}, {"b", away}, {"c", away}}, kAble);
  EXPECT_FALSE(some.ok);
  EXPECT_EQ(some.status, "no_scheduler");
  EXPECT_EQ(some.reason, "b: it does not answer; c: it does not answer");
  EXPECT_EQ(health_body(some, {"{\"x\":1}\n", "{\"x\":2}\n"}, "v"),
            R"({"status":"no_scheduler","reason":"b: it does not answer; c: it does not answer",)"
            R"("version":"v","models":[{"x":1},{"x":2}]})"
            "\n");
}

TEST(JoinedHealth, AnyOneWillDoWhereItIsAskedSo) {
  const Health good{true, "ok", "1 worker is ready"};
  const Health away{false, "no_scheduler", "it does not answer"};
  const Health any = join_health({{"a", away}, {"b", good}}, HealthOf::any);
  EXPECT_TRUE(any.ok);
  EXPECT_EQ(any.status, "ok");
  EXPECT_EQ(any.reason, "a: it does not answer");
  EXPECT_FALSE(join_health({{"a", away}, {"b", away}}, HealthOf::any).ok);
}

/// What will not serve until somebody mends it holds up nobody who can; unless it is asked for all.
TEST(JoinedHealth, WhatCannotBeLoadedIsNamedAndNotWaitedFor) {
  const Health good{true, "ok", "1 worker is ready"};
  const Health away{false, "no_scheduler", "it does not answer"};
  const Health broken = judge_model({.fault = "no such folder"}, {}, false, kSecond);
  EXPECT_EQ(broken.status, "cannot_load");
  const std::vector<ModelHealth> two{{"a", broken}, {"b", good}};
  const Health able = join_health(two, kAble);
  EXPECT_TRUE(able.ok);
  EXPECT_EQ(able.status, "ok");
  EXPECT_EQ(able.reason, "a: no such folder");
  EXPECT_TRUE(join_health(two, HealthOf::any).ok);
  EXPECT_FALSE(join_health(two, HealthOf::all).ok);
  EXPECT_EQ(join_health(two, HealthOf::all).status, "cannot_load");
  const Health waits = join_health({{"a", broken}, {"b", away}, {"c", good}}, kAble);
  EXPECT_FALSE(waits.ok);
  EXPECT_EQ(waits.status, "no_scheduler") << "it is b that is waited for";
  EXPECT_EQ(waits.reason, "a: no such folder; b: it does not answer");
  const Health none = join_health({{"a", broken}}, kAble);
  EXPECT_FALSE(none.ok);
  EXPECT_EQ(none.status, "cannot_load");
}

TEST(ModelHealth, SaysWhatTheConfigurationLacks) {
  SchedulerView view;
  view.welcomed = true;
  view.epoch = 1;
  view.heard_at = kSecond;
  EXPECT_EQ(judge_model({}, view, false, kSecond).status, "loading");
  const Health none = judge_model({.fault = "", .no_workers = true}, view, false, kSecond);
  EXPECT_EQ(none.status, "no_workers");
  EXPECT_EQ(none.reason, "no workers are configured");
  view.workers_ready = 1;
  EXPECT_TRUE(judge_model({.fault = "", .no_workers = true}, view, false, kSecond).ok)
      << "one was started by hand";
  const Health faulty = judge_model({.fault = "it cannot be loaded: x"}, view, false, kSecond);
  EXPECT_EQ(faulty.status, "cannot_load");
  EXPECT_EQ(faulty.reason, "it cannot be loaded: x");
  EXPECT_EQ(judge_model({.fault = "x"}, view, true, kSecond).status, "draining");
}

TEST(AccountingHealth, FailsForBytesThatNoConnectionHolds) {
  EXPECT_TRUE(judge_accounting(0).ok);
  const Health leaking = judge_accounting(7);
  EXPECT_FALSE(leaking.ok);
  EXPECT_EQ(leaking.status, "leaking");
  EXPECT_NE(leaking.reason.find("7 bytes"), std::string::npos);
}

TEST(Query, IsDecoded) {
  HttpRequest request;
  request.target = "/console/events?a=1&model=org%2Fbig&model=x";
  EXPECT_EQ(query_value(request, "model"), "org/big");
  EXPECT_EQ(query_value(request, "a"), "1");
  EXPECT_EQ(query_value(request, "mod"), std::nullopt);
  request.target = "/console/events";
  EXPECT_EQ(query_value(request, "model"), std::nullopt);
}

}  // namespace
}  // namespace baton
