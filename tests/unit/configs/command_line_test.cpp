#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "configs/config.h"
#include "ipc/process.h"

namespace baton {
namespace {

struct Outcome {
  Loaded loaded;
  std::string out;
  std::string err;
};

Outcome run(Program who, std::vector<const char*> arguments) {
  arguments.insert(arguments.begin(), "program");
  std::ostringstream out;
  std::ostringstream err;
  Outcome result;
  result.loaded = load_config(who, static_cast<int>(arguments.size()), arguments.data(), out, err);
  result.out = out.str();
  result.err = err.str();
  return result;
}

class TempFile {
 public:
  explicit TempFile(const std::string& text) {
    path_ = (std::filesystem::temp_directory_path() /
             ("baton-config-test-" + std::to_string(::getpid()) + ".yaml"))
                .string();
    std::ofstream(path_) << text;
  }
  ~TempFile() { std::filesystem::remove(path_); }
  const char* path() const { return path_.c_str(); }

 private:
  std::string path_;
};

constexpr const char* kPair =
    "model: models/a\n"
    "worker: {threads: 3}\n"
    "workers:\n"
    "  - {name: prefill0, role: prefill}\n"
    "  - {name: decode0, role: decode, threads: 5}\n";

TEST(CommandLine, DashesAndUnderscoresAreTheSame) {
  const TempFile file(kPair);
  Outcome r = run(Program::tool, {"--config", file.path(), "--run-dir", "/tmp/a-b",
                                  "--worker.pool-mib=77", "--frontend.allowed-origins=http://a-b"});
  ASSERT_TRUE(r.loaded.config) << r.err;
  EXPECT_EQ(r.loaded.config->run_dir, "/tmp/a-b");
  EXPECT_EQ(r.loaded.config->workers.at(0).pool_mib, 77);
  EXPECT_EQ(r.loaded.config->frontend.allowed_origins, std::vector<std::string>{"http://a-b"});
}

TEST(CommandLine, WinsOverTheFileAndHasShortNamesForItsOwnSection) {
  const TempFile file(kPair);
  Outcome r =
      run(Program::worker, {"--config", file.path(), "--name", "decode0", "--worker.pool_mib", "77",
                            "--step_delay_ms=9", "--fake", "--scheduler.token_budget", "64"});
  ASSERT_TRUE(r.loaded.config) << r.err;
  const Config& c = *r.loaded.config;
  EXPECT_EQ(c.self.name, "decode0");
  EXPECT_EQ(c.self.role, Role::decode);
  EXPECT_EQ(c.self.threads, 5U) << "its entry";
  EXPECT_EQ(c.self.pool_mib, 77U) << "the defaults of all, from the command line";
  EXPECT_EQ(c.self.step_delay_ms, 9U);
  EXPECT_TRUE(c.self.fake);
  EXPECT_EQ(c.workers[0].threads, 3U);
  EXPECT_EQ(c.workers[0].pool_mib, 77U);
  EXPECT_FALSE(c.workers[0].fake) << "a short name is for this process alone";
  EXPECT_EQ(c.scheduler.token_budget.decode, 64U);
  EXPECT_EQ(c.model, std::filesystem::temp_directory_path().string() + "/models/a");

  r = run(Program::frontend,
          {"--config", file.path(), "--port", "0", "--name", "f1", "--model", "m"});
  ASSERT_TRUE(r.loaded.config) << r.err;
  EXPECT_EQ(r.loaded.config->frontend.port, 0);
  EXPECT_EQ(r.loaded.config->frontend.name, "f1");
  EXPECT_EQ(r.loaded.config->model, std::filesystem::current_path().string() + "/m")
      << "on the command line relative to the working directory";

  r = run(Program::scheduler, {"--max_waiting", "5", "--run_dir", "/r"});
  ASSERT_TRUE(r.loaded.config) << r.err;
  EXPECT_EQ(r.loaded.config->scheduler.max_waiting, 5U);
  EXPECT_EQ(r.loaded.config->scheduler.admin_socket, "/r/admin.sock");

  r = run(Program::worker, {"--model", "m", "--name", "extra", "--role", "mixed", "--fault_token",
                            "-1", "--fake", "false"});
  ASSERT_TRUE(r.loaded.config) << r.err;
  EXPECT_EQ(r.loaded.config->self.role, Role::mixed);
  EXPECT_FALSE(r.loaded.config->self.fake);
}

TEST(CommandLine, ErrorsNameTheOption) {
  const TempFile file(kPair);
  const auto error = [&](Program who, std::vector<const char*> arguments) {
    const Outcome r = run(who, std::move(arguments));
    EXPECT_FALSE(r.loaded.config);
    EXPECT_EQ(r.loaded.exit_code, 2);
    EXPECT_EQ(r.out, "");
    return r.err;
  };
  EXPECT_EQ(
      error(Program::worker, {"--config", file.path(), "--name", "decode0", "--threads", "257"}),
      "command line: --threads: is 257; it may be 0 to 256\n");
  EXPECT_EQ(error(Program::scheduler, {"--token_budgte", "1"}),
            "command line: --token_budgte: no such option; did you mean --token_budget?\n");
  EXPECT_EQ(error(Program::scheduler, {"--xyzzy"}),
            "command line: --xyzzy: no such option; see --help\n");
  EXPECT_EQ(error(Program::scheduler, {"start"}), "command line: 'start' is not an option\n");
  // What CLI11 says behind the option's name differs between its versions.
  EXPECT_EQ(error(Program::scheduler, {"--prefill_token_budget", "9"}),
            "command line: --prefill_token_budget: no such option any more; it is --token_budget "
            "prefill=TOKENS\n");
  EXPECT_EQ(error(Program::worker, {"--scheduler.local_prefill_cached=0.5"}),
            "command line: --scheduler.local_prefill_cached: no such option any more; it is "
            "--scheduler.local_prefill cached=SHARE\n");
  EXPECT_EQ(error(Program::scheduler, {"--token_budget"}).substr(0, 30),
            "command line: --token_budget: ");
  EXPECT_EQ(error(Program::scheduler, {"--drain_s", "1", "--drain_s", "2"}).substr(0, 24),
            "command line: --drain_s:");
  EXPECT_EQ(error(Program::scheduler, {"--config", "/nowhere.yaml"}),
            "/nowhere.yaml: no such file\n");
  EXPECT_EQ(error(Program::worker, {"--config", file.path()}),
            "command line: --name: is missing; the file has prefill0, decode0 (a worker beside "
            "them needs --name and --role)\n");
  EXPECT_EQ(error(Program::worker, {"--config", file.path(), "--name", "decode1"}),
            "command line: --name: there is no worker 'decode1'; the file has prefill0, decode0 (a "
            "worker beside them needs --name and --role)\n");
  EXPECT_EQ(error(Program::frontend, {}),
            "model: is missing; name the model's folder in the file or with --model\n");
}

TEST(CommandLine, HelpAndVersion) {
  Outcome r = run(Program::scheduler, {"--version"});
  EXPECT_FALSE(r.loaded.config);
  EXPECT_EQ(r.loaded.exit_code, 0);
  EXPECT_EQ(r.out, std::string(build_version()) + "\n");
  r = run(Program::worker, {"--help"});
  EXPECT_FALSE(r.loaded.config);
  EXPECT_EQ(r.loaded.exit_code, 0);
  EXPECT_EQ(r.out, help_text(Program::worker));
  EXPECT_EQ(r.err, "");
}

}  // namespace
}  // namespace baton
