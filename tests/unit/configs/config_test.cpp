#include "configs/config.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "configs/options.h"

namespace baton {
namespace {

std::string source_dir() {
  const char* folder = std::getenv("BATON_SOURCE_DIR");
  return folder != nullptr ? folder : std::filesystem::current_path().string();
}

/// What parse_config says about `yaml` in a file called /etc/baton/t.yaml.
std::string error_of(const std::string& yaml) {
  auto config = parse_config(yaml, "/etc/baton/t.yaml");
  return config.ok() ? "accepted" : config.status().message();
}

// ------------------------------------------------------------------------------- what is read

TEST(ConfigRead, EveryKindOfValue) {
  auto config = parse_config(
      "run_dir: /run/b\n"
      "model: ../m/llama\n"
      "log_level: warn\n"
      "scheduler: {batching: static, static_interval_s: 0.5, max_waiting: 7, no_decode: wait}\n"
      "frontend: {name: f-1, host: 0.0.0.0, port: 65535, max_body_bytes: 268435456}\n"
      "worker: {fake: true, fault_token: -1, pool_mib: 12}\n"
      "workers:\n"
      "  - {name: p_0, role: prefill, host_pool_mib: 14}\n"
      "  - {name: d0, role: decode, pool_mib: 13, host_pool_blocks: 15, fault_token: 2147483647}\n",
      "/etc/baton/t.yaml");
  ASSERT_TRUE(config.ok()) << config.status().message();
  const Config& c = config.value();
  EXPECT_EQ(c.run_dir, "/run/b");
  EXPECT_EQ(c.frontends_socket(), "/run/b/frontends.sock");
  EXPECT_EQ(c.workers_socket(), "/run/b/workers.sock");
  EXPECT_EQ(c.scheduler_lock(), "/run/b/scheduler.lock");
  EXPECT_EQ(c.model, "/etc/m/llama") << "relative to the file's folder";
  EXPECT_EQ(c.model_name, "llama") << "the folder's name";
  EXPECT_EQ(c.log_level, "warn");
  EXPECT_EQ(c.scheduler.admin_socket, "/run/b/admin.sock");
  EXPECT_EQ(c.scheduler.batching, Batching::static_batch);
  EXPECT_EQ(c.scheduler.static_interval_s, 0.5);
  EXPECT_EQ(c.scheduler.max_waiting, 7U);
  EXPECT_EQ(c.scheduler.no_decode, NoDecode::wait);
  EXPECT_EQ(c.frontend.name, "f-1");
  EXPECT_EQ(c.frontend.host, "0.0.0.0");
  EXPECT_EQ(c.frontend.port, 65535);
  EXPECT_EQ(c.frontend.max_body_bytes, 268'435'456U);
  ASSERT_EQ(c.workers.size(), 2U);
  EXPECT_EQ(c.workers[0].name, "p_0");
  EXPECT_EQ(c.workers[0].role, Role::prefill);
  EXPECT_EQ(c.workers[0].pool_mib, 12U) << "from `worker`";
  EXPECT_TRUE(c.workers[0].fake);
  EXPECT_EQ(c.workers[0].fault_token, -1);
  EXPECT_EQ(c.workers[1].role, Role::decode);
  EXPECT_EQ(c.workers[0].host_pool_mib, 14U);
  EXPECT_EQ(c.workers[0].host_pool_blocks, 0U) << "none, unless asked for";
  EXPECT_EQ(c.workers[1].pool_mib, 13U) << "its own";
  EXPECT_EQ(c.workers[1].host_pool_blocks, 15U);
  EXPECT_EQ(c.workers[1].fault_token, 2'147'483'647);
}

TEST(ConfigRead, DefaultsOfAnEmptyFile) {
  for (const char* yaml : {"", "# nothing\n", "scheduler:\n", "workers:\n"}) {
    auto config = parse_config(yaml, "t.yaml");
    ASSERT_TRUE(config.ok()) << config.status().message();
    EXPECT_EQ(config.value().run_dir, "/tmp/baton-" + std::to_string(::geteuid()));
    EXPECT_TRUE(config.value().scheduler.token_budget == SchedulerConfig().token_budget);
    EXPECT_TRUE(config.value().workers.empty());
  }
}

/// The scheduler's settings after `key: text`; the defaults (and a failure) if that is refused.
SchedulerConfig scheduler_with(const std::string& key, const std::string& text) {
  auto config = parse_config("scheduler:\n  " + key + ": " + text + "\n", "t.yaml");
  EXPECT_TRUE(config.ok()) << config.status().message();
  return config.ok() ? config.value().scheduler : SchedulerConfig();
}

TEST(ConfigRead, ABudgetForEveryRoleOrOneForEach) {
  const auto budget = [](const std::string& text) {
    const TokenBudget b = scheduler_with("token_budget", text).token_budget;
    return std::vector<std::uint32_t>{b.prefill, b.decode, b.mixed};
  };
  using Of = std::vector<std::uint32_t>;  // prefill, decode, mixed
  EXPECT_EQ(budget("64"), (Of{64, 64, 64}));
  EXPECT_EQ(budget("{prefill: 2048, decode: 128, mixed: 8192}"), (Of{2048, 128, 8192}));
  EXPECT_EQ(budget("{prefill: 2048}"), (Of{2048, 512, 512}));
  EXPECT_EQ(budget("decode=16,prefill=32"), (Of{32, 16, 512}));
  EXPECT_EQ(budget("\"mixed=7\""), (Of{512, 512, 7}));
}

TEST(ConfigRead, WhichPromptsPrefillWhereTheyDecode) {
  const auto local = [](const std::string& text) {
    return scheduler_with("local_prefill", text).local_prefill;
  };
  EXPECT_TRUE(local("never") == LocalPrefill());
  EXPECT_TRUE(local("{wait_ms: 60}") == (LocalPrefill{.tokens = 0, .cached = 0, .wait_ms = 60}));
  EXPECT_TRUE(local("tokens=128,cached=0.6") ==
              (LocalPrefill{.tokens = 128, .cached = 0.6, .wait_ms = 0}));
}

TEST(ConfigError, PartsThatAreNone) {
  const std::string budget =
      "1 to 65536, or some of prefill=1..65536,decode=1..65536,mixed=1..65536";
  const auto at = [](const std::string& key, const std::string& text) {
    return error_of("scheduler:\n  " + key + ": " + text + "\n")
        .substr(std::string("/etc/baton/t.yaml:2: ").size());
  };
  EXPECT_EQ(at("token_budget", "0"), "scheduler.token_budget: is 0; it may be 1 to 65536");
  EXPECT_EQ(at("token_budget", "\"64\""),
            "scheduler.token_budget: is '64'; it may be an integer, 1 to 65536");
  EXPECT_EQ(at("token_budget", "{prefil: 1}"),
            "scheduler.token_budget: is 'prefil=1'; it may be " + budget);
  EXPECT_EQ(at("token_budget", "{prefill: 0}"),
            "scheduler.token_budget: prefill is 0; it may be 1 to 65536");
  EXPECT_EQ(at("token_budget", "{prefill: \"9\"}"),
            "scheduler.token_budget: prefill is ''9''; it may be an integer, 1 to 65536");
  EXPECT_EQ(at("token_budget", "{prefill: [9]}"),
            "scheduler.token_budget.prefill: expected a number");
  EXPECT_EQ(at("token_budget", "prefill=1,prefill=2"),
            "scheduler.token_budget: names prefill twice");
  EXPECT_EQ(at("token_budget", "[1, 2]"),
            "scheduler.token_budget: expected one value, not a map or a list");
  EXPECT_EQ(at("prompt_chunk", "{prefill: 1}"),
            "scheduler.prompt_chunk: expected one value, not a map or a list");
  EXPECT_EQ(at("local_prefill", "{cached: 2}"),
            "scheduler.local_prefill: cached is 2; it may be 0 to 1");
  EXPECT_EQ(at("local_prefill", "always"),
            "scheduler.local_prefill: is 'always'; it may be never, or some of "
            "tokens=0..16777216,cached=0..1,"
            "wait_ms=0..3600000");
  EXPECT_EQ(
      at("local_prefill", "tokens=1,"),
      "scheduler.local_prefill: is ''; it may be never, or some of tokens=0..16777216,cached=0..1,"
      "wait_ms=0..3600000");
}

TEST(ConfigError, KeysThatWentIntoOthers) {
  const std::pair<const char*, const char*> gone[] = {
      {"prefill_token_budget", "token_budget: prefill=TOKENS"},
      {"decode_token_budget", "token_budget: decode=TOKENS"},
      {"local_prefill_threshold", "local_prefill: tokens=TOKENS"},
      {"local_prefill_cached", "local_prefill: cached=SHARE"},
      {"local_prefill_wait_ms", "local_prefill: wait_ms=MS"}};
  for (const auto& [key, now] : gone) {
    EXPECT_EQ(error_of(std::string("scheduler:\n  ") + key + ": 1\n"),
              std::string("/etc/baton/t.yaml:2: scheduler.") + key +
                  ": no such key any more; it is " + now);
  }
  EXPECT_EQ(error_of("frontend:\n  max_tokens: 1\n"),
            "/etc/baton/t.yaml:2: frontend.max_tokens: no such key any more; it is "
            "default_max_tokens: TOKENS");
}

TEST(ConfigRead, AWorkersLargestStepIsThatOfItsRole) {
  SchedulerConfig s;
  s.token_budget = 512;
  s.token_budget.prefill = 2048;  // larger than the one of mixed workers
  s.token_budget.decode = 64;
  s.max_running = 256;
  EXPECT_EQ(largest_step(s, Role::prefill), 2048U);
  EXPECT_EQ(largest_step(s, Role::decode), 256U);  // one beam search may have as many rows
  EXPECT_EQ(largest_step(s, Role::mixed), 512U);
  s.token_budget.prefill = 64;
  EXPECT_EQ(largest_step(s, Role::prefill),
            256U);  // those whom it prefilled, when nobody else decodes any more
  s.roles = Roles::automatic;
  EXPECT_EQ(largest_step(s, Role::decode), 512U) << "it may become any other";
}

TEST(ConfigRead, TheFilesThatShip) {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(source_dir() + "/configs")) {
    if (entry.path().extension() != ".yaml") {
      continue;
    }
    std::ostringstream text;
    text << std::ifstream(entry.path()).rdbuf();
    auto config = parse_config(text.str(), entry.path().string());
    ASSERT_TRUE(config.ok()) << config.status().message();
    EXPECT_EQ(config.value().model,
              std::filesystem::path(source_dir() + "/demo/model").lexically_normal());
    EXPECT_FALSE(config.value().workers.empty());
    ++count;
  }
  EXPECT_GE(count, 4);
}

// ------------------------------------------------------------------------------- errors of a file

TEST(ConfigError, UnknownKeyWithASuggestion) {
  EXPECT_EQ(error_of("scheduler:\n  token_budgt: 1\n"),
            "/etc/baton/t.yaml:2: scheduler.token_budgt: no such key; did you mean token_budget?");
  EXPECT_EQ(error_of("\nmodle: x\n"),
            "/etc/baton/t.yaml:2: modle: no such key; did you mean model?");
  EXPECT_EQ(error_of("frontend: {quux: 1}\n"), "/etc/baton/t.yaml:1: frontend.quux: no such key");
  EXPECT_EQ(error_of("workers:\n  - name: a\n    treads: 2\n"),
            "/etc/baton/t.yaml:3: workers[0].treads: no such key; did you mean threads?");
}

TEST(ConfigError, MisplacedKeySaysWhereItBelongs) {
  EXPECT_EQ(error_of("token_budget: 1\n"),
            "/etc/baton/t.yaml:1: token_budget: belongs in scheduler, not here");
  EXPECT_EQ(error_of("scheduler:\n  port: 1\n"),
            "/etc/baton/t.yaml:2: scheduler.port: belongs in frontend, not here");
  EXPECT_EQ(error_of("scheduler: {threads: 1}\n"),
            "/etc/baton/t.yaml:1: scheduler.threads: belongs in frontend or worker, not here");
  EXPECT_EQ(
      error_of("worker: {name: x}\n"),
      "/etc/baton/t.yaml:1: worker.name: belongs in frontend or an entry of workers, not here");
  EXPECT_EQ(error_of("frontend: {model: x}\n"),
            "/etc/baton/t.yaml:1: frontend.model: belongs in the top level, not here");
}

TEST(ConfigError, DuplicateKeyNamesBothLines) {
  EXPECT_EQ(
      error_of("model: a\nlog_level: info\nmodel: b\n"),
      "/etc/baton/t.yaml:3: model: stands here for the second time; first at /etc/baton/t.yaml:1");
  EXPECT_EQ(error_of("scheduler:\n  drain_s: 1\n  drain_s: 1\n"),
            "/etc/baton/t.yaml:3: scheduler.drain_s: stands here for the second time; first at "
            "/etc/baton/t.yaml:2");
  EXPECT_EQ(
      error_of("worker: {}\nworker: {}\n"),
      "/etc/baton/t.yaml:2: worker: stands here for the second time; first at /etc/baton/t.yaml:1");
}

TEST(ConfigError, OutOfRange) {
  EXPECT_EQ(error_of("frontend:\n  port: 65536\n"),
            "/etc/baton/t.yaml:2: frontend.port: is 65536; it may be 0 to 65535");
  EXPECT_EQ(error_of("frontend:\n  port: 99999999999999999999999\n"),
            "/etc/baton/t.yaml:2: frontend.port: is 99999999999999999999999; it may be 0 to 65535");
  EXPECT_EQ(error_of("worker: {threads: 257}\n"),
            "/etc/baton/t.yaml:1: worker.threads: is 257; it may be 0 to 256");
  EXPECT_EQ(error_of("worker: {fault_token: -2}\n"),
            "/etc/baton/t.yaml:1: worker.fault_token: is -2; it may be -1 to 2147483647");
  EXPECT_EQ(error_of("scheduler: {worker_timeout_s: 0.1}\n"),
            "/etc/baton/t.yaml:1: scheduler.worker_timeout_s: is 0.1; it may be 0.2 to 3600");
  EXPECT_EQ(error_of("scheduler: {drain_s: inf}\n"),
            "/etc/baton/t.yaml:1: scheduler.drain_s: is inf; it may be 0 to 600");
  EXPECT_EQ(error_of("worker: {mps_thread_percentage: 101}\n"),
            "/etc/baton/t.yaml:1: worker.mps_thread_percentage: is 101; it may be 0 to 100");
  EXPECT_EQ(error_of("worker: {mps_priority: high}\n"),
            "/etc/baton/t.yaml:1: worker.mps_priority: is 'high'; it may be auto, normal or low");
}

TEST(ConfigRead, OneNumberOrSeveral) {
  using Sizes = std::vector<std::uint32_t>;
  const auto sizes = [](const std::string& value) {
    const Result<Config> config =
        parse_config("scheduler: {decode_batch_size: " + value + "}\n", "t.yaml");
    EXPECT_TRUE(config.ok()) << config.status().message();
    return config.ok() ? config.value().scheduler.decode_batch_size : Sizes{999};
  };
  EXPECT_EQ(sizes("0"), Sizes());
  EXPECT_EQ(sizes("8"), Sizes{8});
  EXPECT_EQ(sizes("[8]"), Sizes{8});
  EXPECT_EQ(sizes("[1, 8, 4096]"), (Sizes{1, 8, 4096}));
}

TEST(ConfigError, WrongNumbersOfAList) {
  const std::string at = "/etc/baton/t.yaml:1: scheduler.prefill_batch_size: ";
  const auto error = [&](const std::string& value) {
    return error_of("scheduler: {prefill_batch_size: " + value + "}\n");
  };
  EXPECT_EQ(error("[8, 8]"), at + "does not ascend");
  EXPECT_EQ(error("[0, 8]"), at + "is 0; it may be 1 to 4096");
  EXPECT_EQ(error("4097"), at + "is 4097; it may be 1 to 4096");
  EXPECT_EQ(error("[1, two]"), at + "is 'two'; it may be an integer, 1 to 4096");
  EXPECT_EQ(error("[]"), at + "is ''; it may be an integer, 1 to 4096");
  EXPECT_EQ(error("[[1]]"), at + "expected a list of words");
  EXPECT_EQ(error("'8'"), at + "is '8'; it may be an integer, 1 to 4096");
  EXPECT_EQ(error("[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17]"), at + "has more than 16 numbers");
}

TEST(ConfigError, WrongType) {
  EXPECT_EQ(error_of("frontend: {port: http}\n"),
            "/etc/baton/t.yaml:1: frontend.port: is 'http'; it may be an integer, 0 to 65535");
  EXPECT_EQ(error_of("frontend: {port: \"80\"}\n"),
            "/etc/baton/t.yaml:1: frontend.port: is '80'; it may be an integer, 0 to 65535")
      << "quotes make it a text";
  EXPECT_EQ(error_of("frontend: {port: 80.5}\n"),
            "/etc/baton/t.yaml:1: frontend.port: is '80.5'; it may be an integer, 0 to 65535");
  EXPECT_EQ(error_of("frontend: {port: -1}\n"),
            "/etc/baton/t.yaml:1: frontend.port: is '-1'; it may be an integer, 0 to 65535");
  EXPECT_EQ(error_of("scheduler: {drain_s: 4s}\n"),
            "/etc/baton/t.yaml:1: scheduler.drain_s: is '4s'; it may be a number, 0 to 600");
  EXPECT_EQ(error_of("worker: {fake: yes}\n"),
            "/etc/baton/t.yaml:1: worker.fake: is 'yes'; it may be true or false");
  EXPECT_EQ(
      error_of("scheduler: {batching: dynamic}\n"),
      "/etc/baton/t.yaml:1: scheduler.batching: is 'dynamic'; it may be continuous or static");
  EXPECT_EQ(error_of("worker: {device: gpu}\n"),
            "/etc/baton/t.yaml:1: worker.device: is 'gpu'; it may be cpu or cuda");
  EXPECT_EQ(error_of("log_level: loud\n"),
            "/etc/baton/t.yaml:1: log_level: is 'loud'; it may be trace, debug, info, warn, error "
            "or off");
  EXPECT_EQ(error_of("model: [a]\n"),
            "/etc/baton/t.yaml:1: model: no such section; there are scheduler, frontend, "
            "telemetry, worker, "
            "workers and models");
  EXPECT_EQ(error_of("frontend:\n  port: [80]\n"),
            "/etc/baton/t.yaml:2: frontend.port: expected one value, not a map or a list");
  EXPECT_EQ(error_of("frontend:\n  port:\n"), "/etc/baton/t.yaml:2: frontend.port: has no value");
  EXPECT_EQ(error_of("model: ''\n"), "/etc/baton/t.yaml:1: model: is empty");
}

TEST(ConfigError, WrongShape) {
  EXPECT_EQ(error_of("- a\n"), "/etc/baton/t.yaml:1: the file is not a map of options");
  EXPECT_EQ(error_of("scheduler: 5\n"),
            "/etc/baton/t.yaml:1: scheduler: expected a map of options");
  EXPECT_EQ(error_of("\ngateway: {a: 1}\n"),
            "/etc/baton/t.yaml:2: gateway: no such section; there are scheduler, frontend, "
            "telemetry, worker, "
            "workers and models");
  EXPECT_EQ(error_of("workers: {a: 1}\n"),
            "/etc/baton/t.yaml:1: workers: expected a list of workers");
  EXPECT_EQ(error_of("workers:\n  - a\n"),
            "/etc/baton/t.yaml:2: workers[0]: expected a map of options");
  EXPECT_EQ(error_of("a: 1\n---\nb: 2\n"),
            "/etc/baton/t.yaml: holds several documents; one is expected");
  EXPECT_EQ(error_of("model: x\n# \xF0\x9F"), "/etc/baton/t.yaml:2: is not UTF-8");
  EXPECT_EQ(error_of("model: a\n  b: c\n").substr(0, 36), "/etc/baton/t.yaml:2: not valid YAML:");
  EXPECT_EQ(error_of("[a]: 1\n"), "/etc/baton/t.yaml:1: a key must be a plain word");
  EXPECT_EQ(error_of(std::string(100'000, '[')).substr(0, 22), "/etc/baton/t.yaml:1: n")
      << "deep nesting is an error, not a crash";
  EXPECT_EQ(error_of(std::string(kMaxConfigBytes + 1, '#')),
            "/etc/baton/t.yaml: has 1048577 bytes; at most 1048576");
}

TEST(ConfigError, NamesOfWorkers) {
  EXPECT_EQ(
      error_of("workers:\n  - {name: a}\n  - {name: a}\n"),
      "/etc/baton/t.yaml:3: workers[1].name: 'a' is the name of the worker at /etc/baton/t.yaml:2");
  EXPECT_EQ(error_of("workers:\n  - {role: decode}\n"),
            "/etc/baton/t.yaml:2: workers[0].name: is missing");
  EXPECT_EQ(error_of("workers:\n  - {name: Upper}\n"),
            "/etc/baton/t.yaml:2: workers[0].name: is 'Upper'; it may be 1 to 32 of a-z 0-9 _ -");
  EXPECT_EQ(error_of("workers:\n  - {name: ../x}\n"),
            "/etc/baton/t.yaml:2: workers[0].name: is '../x'; it may be 1 to 32 of a-z 0-9 _ -");
  EXPECT_EQ(error_of("workers:\n  - {name: scheduler}\n"),
            "/etc/baton/t.yaml:2: workers[0].name: 'scheduler' is the name of the scheduler");
  EXPECT_EQ(error_of("frontend: {name: w}\nworkers:\n  - {name: w}\n"),
            "/etc/baton/t.yaml:3: workers[0].name: 'w' is the name of the front end");
  std::string many = "workers:\n";
  for (std::size_t i = 0; i <= kMaxWorkers; ++i) {
    many += "  - {name: w" + std::to_string(i) + "}\n";
  }
  EXPECT_EQ(error_of(many), "/etc/baton/t.yaml:1: workers: has 65 entries; at most 64");
}

TEST(WorkerConfig, ActivationsAreRoundedUnlessAskedOtherwise) {
  WorkerConfig worker;
  EXPECT_TRUE(worker.rounds_activations()) << "auto, on CPUs";
  worker.deterministic = true;
  EXPECT_FALSE(worker.rounds_activations());
  worker.activations = "int8";
  EXPECT_TRUE(worker.rounds_activations()) << "named";
  worker.deterministic = false;
  worker.activations = "exact";
  EXPECT_FALSE(worker.rounds_activations());
  worker.activations = "auto";
  worker.device = "cuda";
  EXPECT_FALSE(worker.rounds_activations());
}

TEST(ConfigError, RoundedActivationsAreOfCpus) {
  EXPECT_EQ(error_of("workers:\n  - {name: a, activations: int8}\n"), "accepted");
  EXPECT_EQ(error_of("worker: {activations: int8}\nworkers:\n  - {name: a, device: cuda}\n"),
            "/etc/baton/t.yaml:3: worker a: activations int8 needs device cpu");
  EXPECT_EQ(
      error_of("workers:\n  - {name: a, activations: int4}\n"),
      "/etc/baton/t.yaml:2: workers[0].activations: is 'int4'; it may be auto, exact or int8");
}

TEST(ConfigError, Ranks) {
  EXPECT_EQ(error_of("workers:\n  - {name: a, ranks: 9}\n"),
            "/etc/baton/t.yaml:2: workers[0].ranks: is 9; it may be 1 to 8");
  EXPECT_EQ(error_of("workers:\n  - {name: a, ranks: 2, device: cuda}\n"), "accepted");
  EXPECT_EQ(error_of("workers:\n  - {name: a, ranks: 2, device: cuda, gpu: 0}\n"),
            "/etc/baton/t.yaml:2: worker a: gpu '0' must be auto or name 2 GPUs, one a rank, "
            "separated by commas");
  EXPECT_EQ(error_of("workers:\n  - {name: a, ranks: 2, device: cuda, host_pool_mib: 8}\n"),
            "/etc/baton/t.yaml:2: worker a: host parts are not served by several GPUs yet");
  EXPECT_EQ(error_of("workers:\n  - {name: a, ranks: 2, fake: true}\n"),
            "/etc/baton/t.yaml:2: worker a: ranks above 1 needs fake: false");
  EXPECT_EQ(error_of("workers:\n  - {name: a, ranks: 2, rank: 2}\n"),
            "/etc/baton/t.yaml:2: worker a: rank 2 of 2 ranks, which count from 0");
  const auto config = parse_config(
      "worker: {ranks: 2}\nworkers:\n  - {name: a}\n"
      "  - {name: b, ranks: 1}\n",
      "t.yaml");
  ASSERT_TRUE(config.ok()) << config.status().message();
  EXPECT_EQ(config.value().workers[0].process_name(1), "a.1");
  EXPECT_EQ(config.value().workers[1].process_name(), "b");
}

TEST(ConfigError, Collectors) {
  const auto with = [](const std::string& url) {
    return parse_config("telemetry:\n  otlp_url: '" + url + "'\n  sample_ratio: 0.5\n",
                        "/etc/baton/t.yaml");
  };
  for (const char* good : {"http://127.0.0.1:4318/v1/traces", "https://otlp.example/v1/traces"}) {
    ASSERT_TRUE(with(good).ok()) << with(good).status().message();
    EXPECT_EQ(with(good).value().telemetry.otlp_url, good);
    EXPECT_EQ(with(good).value().telemetry.sample_ratio, 0.5);
    EXPECT_EQ(with(good).value().telemetry.service_name, "baton");
  }
  for (const char* bad : {"127.0.0.1:4318", "http://", "http:///v1/traces", "grpc://host:4317",
                          "http://:80/", "http://a b"}) {
    EXPECT_EQ(error_of("telemetry:\n  otlp_url: '" + std::string(bad) + "'\n"),
              "/etc/baton/t.yaml:2: telemetry.otlp_url: is '" + std::string(bad) +
                  "'; it may be http://HOST[:PORT]/PATH or https://..., as "
                  "http://127.0.0.1:4318/v1/traces");
  }
  EXPECT_EQ(error_of("telemetry: {sample_ratio: 2}\n"),
            "/etc/baton/t.yaml:1: telemetry.sample_ratio: is 2; it may be 0 to 1");
}

TEST(ConfigError, ValuesThatDisagree) {
  EXPECT_EQ(error_of("frontend:\n  timeout_s: 100\n  max_timeout_s: 99\n"),
            "/etc/baton/t.yaml:2: frontend.timeout_s: is larger than frontend.max_timeout_s");
  const std::string deep(100, 'd');
  EXPECT_EQ(error_of("run_dir: /" + deep + "\n"),
            "/etc/baton/t.yaml:1: run_dir: the socket /" + deep +
                "/frontends.sock has 116 bytes; a unix socket takes at most 107");
}

/// The help of `program` has a line for the option, its meaning, its default and its bounds.
template <typename Section>
void expect_listed(const std::string& help, const std::string& prefix,
                   const std::vector<Option<Section>>& options) {
  for (const Option<Section>& option : options) {
    std::string value =
        option.default_note != nullptr ? option.default_note : value_text(option, Section());
    std::string expected = "  --" + prefix + option.name + "\n      " + option.meaning + " (" +
                           (value.empty() ? "no default" : "default " + value);
    const std::string bounds = bounds_text(option);
    expected += (bounds.empty() ? "" : "; " + bounds) + ")\n";
    EXPECT_NE(help.find(expected), std::string::npos) << expected;
  }
}

TEST(Help, ListsEveryKeyWithDefaultAndBounds) {
  for (const Program who :
       {Program::scheduler, Program::frontend, Program::worker, Program::tool}) {
    const std::string help = help_text(who);
    expect_listed(help, "", top_options());
    expect_listed(help, "scheduler.", scheduler_options());
    expect_listed(help, "frontend.", frontend_options());
    expect_listed(help, "telemetry.", telemetry_options());
    expect_listed(help, "worker.", worker_options());
  }
  expect_listed(help_text(Program::scheduler), "", scheduler_options());
  expect_listed(help_text(Program::frontend), "", frontend_options());
  expect_listed(help_text(Program::worker), "", worker_options());
  EXPECT_NE(help_text(Program::worker).find("  --name\n      name of the worker (required"),
            std::string::npos);
  EXPECT_NE(help_text(Program::scheduler)
                .find("  --token_budget\n      tokens of one step, prompt and decode together: one "
                      "number, or one for each role of workers"),
            std::string::npos);
}

TEST(Table, DefaultsLieWithinTheirBounds) {
  const auto check = [](const auto& options, auto section) {
    for (const auto& option : options) {
      const std::string value = value_text(option, section);
      if (!value.empty()) {
        Status status = set_option(option, section, value, false, "/");
        EXPECT_TRUE(status.ok()) << option.name << " " << status.message();
        EXPECT_EQ(value_text(option, section), value) << option.name;
      }
    }
  };
  check(top_options(), Config());
  check(scheduler_options(), SchedulerConfig());
  check(frontend_options(), FrontendConfig());
  check(telemetry_options(), TelemetryConfig());
  check(worker_options(), WorkerConfig());
}

}  // namespace
}  // namespace baton
