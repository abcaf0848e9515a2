// The list `models`: what an entry inherits, what it may say, and what its processes are called.
#include <gtest/gtest.h>

#include <sstream>

#include "configs/config.h"

namespace baton {
namespace {

constexpr const char* kTwo =
    "run_dir: /r\n"
    "max_context: 900\n"
    "scheduler: {max_running: 7, prompt_chunk: 64}\n"
    "worker: {threads: 3, pool_mib: 5}\n"
    "workers:\n"
    "- {name: mixed0, role: mixed}\n"
    "models:\n"
    "- name: small\n"
    "  model: a\n"
    "  max_context: 100\n"
    "  scheduler: {max_running: 9}\n"
    "  worker: {threads: 4}\n"
    "  frontend: {default_max_tokens: 11}\n"
    "  workers:\n"
    "  - {name: prefill0, role: prefill}\n"
    "  - {name: decode0, role: decode, threads: 6}\n"
    "- name: big\n"
    "  model: /m/b\n"
    "  model_name: org/Big\n";

Config two() { return parse_config(kTwo, "/etc/baton/t.yaml").value(); }

std::string complaint_of(const std::string& yaml) {
  const auto config = parse_config(yaml, "t.yaml");
  return config.ok() ? "accepted" : config.status().message();
}

/// What stands in the entries behind two names.
std::string with(const std::string& small, const std::string& big = "") {
  return "models:\n- name: small\n  model: /a\n" + small + "- name: big\n  model: /b\n" + big;
}

Loaded load(Program who, std::vector<const char*> arguments, std::string* error = nullptr) {
  const std::string file = ::testing::TempDir() + "models_test.yaml";
  {
    std::ostringstream text;
    FILE* out = std::fopen(file.c_str(), "w");
    std::fputs(kTwo, out);
    std::fclose(out);
  }
  arguments.insert(arguments.begin(), {"program", "--config", file.c_str()});
  std::ostringstream out, err;
  Loaded loaded = load_config(who, static_cast<int>(arguments.size()), arguments.data(), out, err);
  if (error != nullptr) *error = err.str();
  std::remove(file.c_str());
  return loaded;
}

TEST(Models, AnEntryTakesWhatItLeavesOutFromTheTopLevel) {
  const Config config = two();
  ASSERT_EQ(config.models.size(), 2U);
  const Config& small = config.models[0];
  const Config& big = config.models[1];
  EXPECT_EQ(small.model, "/etc/baton/a");
  EXPECT_EQ(small.model_name, "small");
  EXPECT_EQ(big.model_name, "org/Big");
  EXPECT_EQ(small.max_context, 100U);
  EXPECT_EQ(big.max_context, 900U);
  EXPECT_EQ(small.scheduler.max_running, 9U);
  EXPECT_EQ(small.scheduler.prompt_chunk, 64U);
  EXPECT_EQ(big.scheduler.max_running, 7U);
  EXPECT_EQ(small.frontend.default_max_tokens, 11U);
  EXPECT_EQ(big.frontend.default_max_tokens, 0U);
  ASSERT_EQ(small.workers.size(), 2U);
  EXPECT_EQ(small.workers[0].threads, 4U);
  EXPECT_EQ(small.workers[1].threads, 6U);
  EXPECT_EQ(small.workers[1].pool_mib, 5U);
  ASSERT_EQ(big.workers.size(), 1U) << "the list of the top level";
  const std::string none = std::string(kTwo) + "  workers: []\n";
  EXPECT_TRUE(parse_config(none, "t.yaml").value().models[1].workers.empty());
  const std::string left_out = std::string(kTwo) + "  workers:\n";
  EXPECT_EQ(parse_config(left_out, "t.yaml").value().models[1].workers.size(), 1U);
  EXPECT_EQ(big.workers[0].threads, 3U);
}

TEST(Models, ProcessesAndFilesCarryTheName) {
  const Config config = two();
  const Config& small = config.models[0];
  EXPECT_EQ(small.workers[0].name, "small.prefill0");
  EXPECT_EQ(config.models[1].workers[0].name, "big.mixed0");
  EXPECT_EQ(small.scheduler_name(), "small.scheduler");
  EXPECT_EQ(small.scheduler.admin_socket, "/r/small.admin.sock");
  EXPECT_EQ(small.frontends_socket(), "/r/small.frontends.sock");
  EXPECT_EQ(small.workers_socket(), "/r/small.workers.sock");
  EXPECT_EQ(small.memory_socket(), "/r/memory.sock") << "all share it";
  std::vector<std::string> all;
  for (const WorkerConfig& worker : config.workers) all.push_back(worker.name);
  EXPECT_EQ(all, (std::vector<std::string>{"small.prefill0", "small.decode0", "big.mixed0"}));
  EXPECT_EQ(small.neighbours().size(), 3U) << "they share the memory";
}

TEST(Models, WithoutTheListAllIsCalledAsBefore) {
  const Config config =
      parse_config("run_dir: /r\nmodel: /m\nworkers: [{name: w, role: mixed}]", "t.yaml").value();
  EXPECT_EQ(config.scheduler_name(), "scheduler");
  EXPECT_EQ(config.scheduler.admin_socket, "/r/admin.sock");
  EXPECT_EQ(config.frontends_socket(), "/r/frontends.sock");
  EXPECT_EQ(config.workers[0].name, "w");
  EXPECT_EQ(config.neighbours().size(), 1U);
  ASSERT_EQ(config.served().size(), 1U);
  EXPECT_EQ(config.served()[0], &config);
}

TEST(Models, AProcessHasItsOwnEntry) {
  const Loaded worker = load(Program::worker, {"--for", "small", "--name", "decode0"});
  ASSERT_TRUE(worker.config);
  EXPECT_EQ(worker.config->self.name, "small.decode0");
  EXPECT_EQ(worker.config->self.threads, 6U);
  EXPECT_EQ(worker.config->entry, "small");
  EXPECT_EQ(worker.config->neighbours().size(), 3U);
  const Loaded scheduler = load(Program::scheduler, {"--for", "big", "--max_running", "3"});
  ASSERT_TRUE(scheduler.config);
  EXPECT_EQ(scheduler.config->scheduler.max_running, 3U) << "the command line wins";
  EXPECT_EQ(scheduler.config->scheduler_name(), "big.scheduler");
  const Loaded frontend = load(Program::frontend, {"--port", "81"});
  ASSERT_TRUE(frontend.config);
  EXPECT_EQ(frontend.config->models.size(), 2U);
  EXPECT_EQ(frontend.config->frontend.port, 81);
}

TEST(Models, TheCommandLineHoldsForAll) {
  const Loaded all = load(Program::tool, {"--worker.pool_mib", "8", "--max_context", "50"});
  ASSERT_TRUE(all.config);
  for (const Config& model : all.config->models) {
    EXPECT_EQ(model.max_context, 50U);
    for (const WorkerConfig& worker : model.workers) EXPECT_EQ(worker.pool_mib, 8U);
  }
}

TEST(Models, WhichEntryMustBeSaidAndBeThere) {
  std::string error;
  EXPECT_FALSE(load(Program::scheduler, {}, &error).config);
  EXPECT_EQ(error, "command line: --for: is missing; the file has the models small, big\n");
  EXPECT_FALSE(load(Program::scheduler, {"--for", "huge"}, &error).config);
  EXPECT_EQ(error, "command line: --for: there is no model 'huge'; the file has small, big\n");
  EXPECT_FALSE(load(Program::worker, {"--for", "big", "--name", "decode0"}, &error).config);
  EXPECT_NE(error.find("there is no worker 'decode0'; the file has mixed0"), std::string::npos);
  EXPECT_FALSE(load(Program::tool, {"--model", "/x"}, &error).config);
  EXPECT_EQ(error,
            "command line: --model: the configuration has a list of models, each with its own\n");
  std::ostringstream out, err;
  const char* arguments[] = {"program", "--for", "small", "--model", "/m"};
  EXPECT_FALSE(load_config(Program::tool, 5, arguments, out, err).config);
  EXPECT_EQ(err.str(), "command line: --for small: the configuration has no list of models\n");
}

TEST(Models, NamesArePartsOfFileNamesAndDifferent) {
  EXPECT_EQ(complaint_of("models: [{model: /a}]"), "t.yaml:1: models[0].name: is missing");
  EXPECT_NE(complaint_of("models: [{name: a.b, model: /a}]").find("models[0].name: is 'a.b'"),
            std::string::npos);
  EXPECT_EQ(complaint_of("models:\n- {name: a, model: /a}\n- {name: a, model: /b}"),
            "t.yaml:3: models[1].name: 'a' is the name of the model at t.yaml:2");
  EXPECT_EQ(complaint_of(with("  model_name: x\n", "  model_name: x\n")),
            "models: 'small' and 'big' both have model_name x");
  EXPECT_EQ(complaint_of(with("  workers: [{name: '0', role: mixed}]\n")),
            "models: 'small' has a worker '0': with one digit it would be called like a rank");
  EXPECT_EQ(complaint_of(with("  workers: [{name: scheduler, role: mixed}]\n")),
            "t.yaml:4: workers[0].name: 'scheduler' is the name of the scheduler");
}

TEST(Models, EachKeyHasItsLevel) {
  EXPECT_EQ(complaint_of(with("  run_dir: /x\n")),
            "t.yaml:4: models[0].run_dir: belongs at the top level: all processes share it");
  EXPECT_EQ(
      complaint_of(with("  frontend: {port: 1}\n")),
      "t.yaml:4: models[0].frontend.port: belongs at the top level: one front end serves all "
      "models; an entry may say tokenizer, chat_template, default_max_tokens, generation_config, "
      "tool_call_parser, reasoning_parser");
  EXPECT_EQ(
      complaint_of(with("  telemetry: {otlp_url: x}\n")),
      "t.yaml:4: models[0].telemetry.otlp_url: belongs at the top level: one front end serves "
      "all models");
  EXPECT_EQ(complaint_of("scheduler: {event_log: /x}\n" + with("")),
            "t.yaml:1: scheduler.event_log: belongs in an entry of models: each has its own");
  EXPECT_EQ(complaint_of("model_name: x\n" + with("")),
            "t.yaml:1: model_name: belongs in an entry of models: each has its own");
  EXPECT_EQ(complaint_of(with("  scheduler: {kv_events: 'tcp://*:1'}\n",
                              "  scheduler: {kv_events: 'tcp://*:1'}\n")),
            "models: 'small' and 'big' both have scheduler.kv_events tcp://*:1");
  EXPECT_EQ(complaint_of(with("  models: []\n")),
            "t.yaml:4: models[0].models: stands within models");
  EXPECT_EQ(complaint_of(with("  scheduler: {max_runing: 1}\n")),
            "t.yaml:4: models[0].scheduler.max_runing: no such key; did you mean max_running?");
  EXPECT_EQ(complaint_of(with("  frontend: {default_max_tokenz: 1}\n")),
            "t.yaml:4: models[0].frontend.default_max_tokenz: no such key; did you mean "
            "default_max_tokens?");
  EXPECT_EQ(complaint_of("frontend: {name: big}\n" + with("")),
            "t.yaml:5: models[1].name: 'big' is the name of the front end");
  EXPECT_EQ(complaint_of("models:\n- {name: small, model: /a}\n- {name: big}\n"),
            "t.yaml:3: models[1].model: is missing; name the model's folder");
  EXPECT_EQ(complaint_of("models: {}"), "t.yaml:1: models: expected a list of models");
  EXPECT_EQ(complaint_of("models: [x]"), "t.yaml:1: models[0]: expected a map of options");
}

}  // namespace
}  // namespace baton
