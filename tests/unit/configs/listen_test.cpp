// frontend.listen: several ports, each with its dialects, and no path with two owners.
#include <gtest/gtest.h>

#include <sstream>

#include "configs/config.h"
#include "configs/dialects.h"

namespace baton {
namespace {

using Names = std::vector<std::string>;

std::string listen_error_of(const std::string& yaml) {
  auto config = parse_config(yaml, "/etc/baton/t.yaml");
  return config.ok() ? "accepted" : config.status().message();
}

FrontendConfig frontend_of(std::vector<const char*> arguments) {
  arguments.insert(arguments.begin(), "program");
  arguments.push_back("--model=/m");
  std::ostringstream out, err;
  const Loaded loaded = load_config(Program::frontend, static_cast<int>(arguments.size()),
                                    arguments.data(), out, err);
  EXPECT_EQ(err.str(), "");
  return loaded.config ? loaded.config->frontend : FrontendConfig();
}

std::string error_of_line(std::vector<const char*> arguments) {
  arguments.insert(arguments.begin(), "program");
  std::ostringstream out, err;
  load_config(Program::frontend, static_cast<int>(arguments.size()), arguments.data(), out, err);
  return err.str();
}

TEST(Listen, WithoutAListThereIsOnePortWithTheUsualDialects) {
  const FrontendConfig f =
      parse_config("frontend: {host: 0.0.0.0, port: 81}", "t.yaml").value().frontend;
  ASSERT_EQ(f.listen.size(), 1U);
  EXPECT_EQ(f.listen[0].host, "0.0.0.0");
  EXPECT_EQ(f.listen[0].port, 81);
  EXPECT_EQ(f.listen[0].dialects, (Names{"openai", "lab", "anthropic", "ollama"}));
}

TEST(Listen, OnePortWithOtherDialects) {
  for (const char* words : {"openai", "[openai]", "' openai '"}) {
    const auto config = parse_config(std::string("frontend: {dialects: ") + words + "}", "t.yaml");
    ASSERT_TRUE(config.ok()) << config.status().message();
    EXPECT_EQ(config.value().frontend.listen[0].dialects, Names{"openai"});
  }
}

TEST(Listen, AListOfPorts) {
  const auto config = parse_config(
      "frontend:\n"
      "  host: 10.0.0.1\n"
      "  listen:\n"
      "    - {port: 8000, dialects: [openai, lab]}\n"
      "    - {port: 8000, host: 127.0.0.1, dialects: lab}\n"
      "    - {port: 0}\n",
      "t.yaml");
  ASSERT_TRUE(config.ok()) << config.status().message();
  const FrontendConfig& f = config.value().frontend;
  ASSERT_EQ(f.listen.size(), 3U);
  EXPECT_EQ(f.port, 8000) << "the first entry's, for what names one port";
  EXPECT_EQ(f.listen[0].host, "10.0.0.1");
  EXPECT_EQ(f.listen[1].host, "127.0.0.1");
  EXPECT_EQ(f.listen[1].dialects, Names{"lab"});
  EXPECT_EQ(f.listen[2].port, 0);
  EXPECT_EQ(f.listen[2].dialects, (Names{"openai", "lab", "anthropic", "ollama"}));
}

TEST(Listen, TheCommandLineReplacesTheListOrItsFirstEntry) {
  const FrontendConfig two =
      frontend_of({"--listen", "9000=lab", "--listen", "127.0.0.2:9001=openai,lab"});
  ASSERT_EQ(two.listen.size(), 2U);
  EXPECT_EQ(two.listen[0].port, 9000);
  EXPECT_EQ(two.listen[0].dialects, Names{"lab"});
  EXPECT_EQ(two.listen[1].host, "127.0.0.2");
  EXPECT_EQ(two.listen[1].dialects, (Names{"openai", "lab"}));
  const FrontendConfig moved =
      frontend_of({"--frontend.listen=9000=lab", "--listen=9001", "--port=7"});
  EXPECT_EQ(moved.listen[0].port, 7);
  EXPECT_EQ(moved.listen[0].dialects, Names{"lab"});
  EXPECT_EQ(moved.listen[1].port, 9001);
  EXPECT_EQ(frontend_of({"--dialects", "lab"}).listen[0].dialects, Names{"lab"});
}

TEST(Listen, WhatIsWrongIsNamedWithItsLine) {
  EXPECT_EQ(listen_error_of("frontend:\n  listen: 8000\n"),
            "/etc/baton/t.yaml:2: frontend.listen: expected a list of ports");
  EXPECT_EQ(listen_error_of("frontend:\n  listen:\n    - 8000\n"),
            "/etc/baton/t.yaml:3: frontend.listen[0]: expected a map of options");
  EXPECT_EQ(listen_error_of("frontend:\n  listen:\n    - dialects: lab\n"),
            "/etc/baton/t.yaml:3: frontend.listen[0].port: is missing");
  EXPECT_EQ(listen_error_of("frontend:\n  port: 1\n  listen:\n    - port: 2\n"),
            "/etc/baton/t.yaml:2: frontend.port: stands beside frontend.listen, which says it for "
            "each port");
  EXPECT_EQ(listen_error_of("frontend:\n  listen:\n    - port: 2\n    - port: 2\n"),
            "/etc/baton/t.yaml:4: frontend.listen[1].port: 2 is the port of /etc/baton/t.yaml:3: "
            "frontend.listen[0]");
  EXPECT_EQ(listen_error_of("frontend:\n  dialects: openai, lab, openai\n"),
            "/etc/baton/t.yaml:2: frontend.dialects: names openai twice");
  const std::string unknown = listen_error_of("frontend:\n  dialects: [opeani]\n");
  EXPECT_EQ(unknown.find("/etc/baton/t.yaml:2: frontend.dialects: is 'opeani'; it may be one or "
                         "more of openai, lab"),
            0U)
      << unknown;
  EXPECT_EQ(listen_error_of("frontend:\n  dialects: [[lab]]\n"),
            "/etc/baton/t.yaml:2: frontend.dialects: expected a list of words");
  EXPECT_EQ(listen_error_of("frontend:\n  port: [1]\n"),
            "/etc/baton/t.yaml:2: frontend.port: expected one value, not a map or a list");
  EXPECT_NE(error_of_line({"--listen", "x=lab"}).find("--listen x=lab: is 'x'; it may be"),
            std::string::npos);
}

TEST(Listen, AClashNamesBothDialectsAndThePath) {
  EXPECT_EQ(listen_error_of("frontend:\n"
                            "  listen:\n"
                            "    - port: 1\n"
                            "    - port: 2\n"
                            "      dialects: [lab, openai, tgi]\n"),
            "/etc/baton/t.yaml:5: frontend.listen[1].dialects: lab and tgi both own POST "
            "/generate; give one of them another port in frontend.listen");
  EXPECT_EQ(listen_error_of("frontend: {dialects: [tgi, lightllm]}"),
            "/etc/baton/t.yaml:1: frontend.dialects: tgi and lightllm both own POST /generate; "
            "give one of them another port in frontend.listen");
  EXPECT_NE(error_of_line({"--dialects=lab,distserve"})
                .find("command line: --dialects: lab and distserve both own POST /generate"),
            std::string::npos);
}

TEST(Dialects, NamesAreUniqueAndNoDialectOwnsAPathTwice) {
  for (const DialectFacts& facts : dialect_facts()) {
    EXPECT_EQ(find_dialect(facts.name), &facts);
    for (std::size_t i = 0; i < facts.paths.size(); ++i) {
      for (std::size_t j = 0; j < i; ++j) {
        const bool same = std::string(facts.paths[i].path) == facts.paths[j].path &&
                          std::string(facts.paths[i].method) == facts.paths[j].method;
        EXPECT_FALSE(same) << facts.name << " " << facts.paths[i].path;
      }
    }
    EXPECT_FALSE(find_clash({facts.name}));
  }
  EXPECT_EQ(find_dialect("nobody"), nullptr);
}

TEST(Dialects, TgiAndOpenAiShareOnePath) {
  EXPECT_FALSE(find_clash({"openai", "tgi"})) << "both answer POST /tokenize, and alike";
  EXPECT_TRUE(find_clash({"lab", "tgi"}));
}

}  // namespace
}  // namespace baton
