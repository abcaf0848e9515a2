// Which schedulers a command of baton-ctl goes to.
#include <gtest/gtest.h>

#include "scheduler/admin/model_ctl.h"

namespace baton {
namespace {

const std::vector<ModelSocket> kTwo = {{"small", "/s"}, {"big", "/b"}};
const std::vector<ModelSocket> kOne = {{"", "/o"}};

/// "small big", or the error.
std::string asked(std::vector<std::string> words, const std::vector<ModelSocket>& models = kTwo) {
  const auto found = asked_models(words, models);
  if (!found.ok()) return found.status().message();
  std::string names;
  for (const ModelSocket& one : found.value()) names += (names.empty() ? "" : " ") + one.model;
  return names;
}

TEST(ModelCtl, WhatShowsGoesToAll) {
  EXPECT_EQ(asked({"show", "kv", "json"}), "small big");
  EXPECT_EQ(asked({"audit"}), "small big");
  EXPECT_EQ(asked({"help"}), "small");
}

TEST(ModelCtl, WhatChangesWantsAName) {
  const std::string error = "several models run here: name one with --model (small, big)";
  EXPECT_EQ(asked({"set", "worker", "decode0", "drain"}), error);
  EXPECT_EQ(asked({"cancel", "1-2"}), error);
  EXPECT_EQ(asked({"top"}), error);
  EXPECT_EQ(asked({"set", "worker", "big.decode0", "drain"}), "big") << "it has one";
  EXPECT_EQ(asked({"set", "worker", "bigger.decode0", "drain"}), error);
  EXPECT_EQ(asked({"set", "worker", "decode0", "drain"}, kOne), "") << "the one model";
}

TEST(ModelCtl, TheOptionChooses) {
  EXPECT_EQ(choose_models(kTwo, "").value().size(), 2U);
  EXPECT_EQ(choose_models(kTwo, "big").value()[0].admin_socket, "/b");
  EXPECT_EQ(choose_models(kTwo, "x").status().message(),
            "--model x: there is no such model; there are small, big");
  EXPECT_EQ(choose_models(kOne, "x").status().message(),
            "--model x: one model runs here, without a name: leave it out");
}

TEST(ModelCtl, AWorkersNameMayLackTheModels) {
  EXPECT_EQ(with_full_name({"set", "worker", "decode0", "drain"}, "big"),
            "set worker big.decode0 drain");
  EXPECT_EQ(with_full_name({"wait", "worker", "big.decode0", "ready", "5s"}, "big"),
            "wait worker big.decode0 ready 5s");
  EXPECT_EQ(with_full_name({"set", "worker", "decode0", "drain"}, ""), "set worker decode0 drain");
  EXPECT_EQ(with_full_name({"show", "workers", "json"}, "big"), "show workers json");
}

TEST(ModelCtl, AnswersAreToldApart) {
  const auto ask = [](const ModelSocket& one) -> std::optional<std::string> {
    if (one.model == "small") return "[1]\n";
    return std::nullopt;
  };
  std::string text;
  EXPECT_EQ(ask_models(kTwo, false, ask, text), 1) << "one does not answer";
  EXPECT_EQ(text, "[small]\n[1]\n[big]\nerror: its scheduler does not answer\n");
  EXPECT_EQ(ask_models(kTwo, true, ask, text), 1);
  EXPECT_EQ(text,
            "{\"small\":[1],\"big\":{\"error\":\"error: its scheduler does not answer\\n\"}}\n");
  EXPECT_EQ(ask_models({kTwo[0]}, true, ask, text), 0);
}

}  // namespace
}  // namespace baton
