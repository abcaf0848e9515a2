// The real renderer (Python and Jinja2 in processes of their own): what it renders is in
// chat_template_test; here is what it survives.
#include "frontend/chat/template_pool.h"

#include <gtest/gtest.h>
#include <signal.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <future>
#include <nlohmann/json.hpp>

#include "ipc/process.h"
#include "tests/support/temp_dir.h"

namespace baton {
namespace {

using Json = nlohmann::json;

TemplateSetup setup_of(std::map<std::string, std::string> templates) {
  TemplateSetup setup;
  setup.templates = std::move(templates);
  setup.start_time = 60 * kSecond;
  setup.render_time = kSecond;  // of a processor; machines that test are busy
  return setup;
}

std::string request(const std::string& name, const std::string& content = "hi") {
  return Json({{"template", name},
               {"messages", {{{"role", "user"}, {"content", content}}}},
               {"tools", nullptr},
               {"variables", Json::object()},
               {"add_generation_prompt", true},
               {"continue_final_message", false}})
      .dump();
}

constexpr const char* kForever =
    "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}";
constexpr const char* kMemory =
    "{% set ns = namespace(x='abcdefgh') %}{% for i in range(40) %}{% set ns.x = ns.x ~ ns.x %}"
    "{% endfor %}{{ ns.x }}";
constexpr const char* kOutput = "{% for i in range(90000) %}{{ '%0200d' | format(i) }}{% endfor %}";

struct Failing {
  const char* text;
  const char* message;  // part of it
  bool usable;
};

std::unique_ptr<TemplateProcess> start(const TemplateSetup& setup) {
  auto process = TemplateProcess::start(setup);
  if (!process.ok()) throw std::runtime_error(process.status().message());
  return std::move(process).value();
}

TEST(TemplateProcess, ATemplateThatFailsIsTheRequestsFault) {
  const Failing table[] = {
      {"{{ raise_exception('turn by turn, please') }}",
       "the chat template refuses these messages: turn by turn, please", true},
      {"{{ a.b.c }}", "failed on these messages: UndefinedError: 'a' is undefined", true},
      {"{{ messages[0].content + 5 }}", "failed on these messages: TypeError", true},
      {"{{ range(10 ** 9) | list }}", "OverflowError: Range too big", true},
      {"{{ '\\ud800' }}", "half a surrogate pair", true},
      {"{{ messages.append(1) }}", "failed on these messages: SecurityError", true},
      {"{{ messages.__class__.__mro__ }}", "failed on these messages: SecurityError", true},
      {"{{ ''.__class__.__subclasses__() }}", "failed on these messages: SecurityError", true},
      {"{{ namespace(_x=1) }}", "SecurityError: a namespace may not hold '_x'", true},
      {"{% include 'x' %}", "failed on these messages: TypeError", true},
      {"{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "calls itself too deeply", false},
      {kOutput, "wrote more than 8388608 characters", true},
      {kMemory, "ran out of memory", false},
      {"{{ 'x' * 10 ** 10 }}", "ran out of memory", false},  // computed when it is compiled
      {kForever, "took longer than 1000 ms for these messages and was stopped", false},
  };
  std::map<std::string, std::string> templates{{"good", "<{{ messages[0].content }}>"}};
  for (const Failing& line : table) templates[line.text] = line.text;
  const TemplateSetup setup = setup_of(templates);
  auto process = start(setup);
  for (const Failing& line : table) {
    const auto rendered = process->render(request(line.text));
    EXPECT_EQ(rendered.status().code(), ErrorCode::invalid_argument) << line.text;
    EXPECT_NE(rendered.status().message().find(line.message), std::string::npos)
        << line.text << "\n  says: " << rendered.status().message();
    EXPECT_LT(rendered.status().message().size(), 700U);
    if (line.usable) {
      EXPECT_TRUE(process->usable()) << line.text;
    } else {
      process = start(setup);
    }
    const auto good = process->render(request("good"));
    ASSERT_TRUE(good.ok()) << "after " << line.text << ": " << good.status().message();
    EXPECT_EQ(good.value(), "<hi>");
  }
}

TEST(TemplateProcess, TextOfAnyKindPasses) {
  auto process = start(setup_of({{"default", "{{ messages[0].content }}"}}));
  std::string long_text;
  for (int i = 0; i < 200'000; ++i) long_text += "你 é\n";
  for (const std::string& text : {std::string("\0\x01\x7F\"\\\n\r\u2028", 10),
                                  std::string("👋🏽 \u202E\uFEFF"), long_text}) {
    const auto rendered = process->render(request("default", text));
    ASSERT_TRUE(rendered.ok()) << rendered.status().message();
    EXPECT_EQ(rendered.value(), text);
  }
}

TEST(TemplateProcess, SaysWhatIsMissing) {
  const auto why = [](const TemplateSetup& setup) {
    return TemplateProcess::start(setup).status().message();
  };
  TemplateSetup setup = setup_of({{"default", "x"}});
  setup.python = "baton-no-such-python";
  EXPECT_NE(why(setup).find("is 'baton-no-such-python' installed?"), std::string::npos);
  setup = setup_of({{"default", "x"}});
  setup.path = {"/nonexistent"};
  EXPECT_NE(why(setup).find("Jinja2 is not in /nonexistent"), std::string::npos) << why(setup);
  EXPECT_NE(why(setup_of({{"default", "a\n{% if %}"}}))
                .find("the chat template 'default' is wrong in line 2"),
            std::string::npos);
  setup = setup_of({{"default", "x"}});
  setup.start_time = 1'000'000;
  EXPECT_NE(why(setup).find("did not start within 1 ms"), std::string::npos);
}

TemplatePool::Options options_of(std::size_t threads, std::size_t max_waiting = 256) {
  TemplatePool::Options options;
  options.threads = threads;
  options.max_waiting = max_waiting;
  options.retry = kSecond / 10;
  return options;
}

std::future<Result<std::string>> ask(
    TemplatePool& pool, const std::string& name, const std::string& content = "hi",
    const std::string& owner = "me", std::function<bool()> wanted = [] { return true; }) {
  auto promise = std::make_shared<std::promise<Result<std::string>>>();
  auto future = promise->get_future();
  const bool taken =
      pool.render(request(name, content), owner, std::move(wanted),
                  [promise](const Result<std::string>& r) { promise->set_value(r); });
  if (!taken) promise->set_value(Status(ErrorCode::queue_full, "full"));
  return future;
}

/// Pools start beside one another: all of them have the time of one, and who waits shows life.
TEST(TemplatePool, SeveralAreAwaitedTogether) {
  const TempDir folder;
  folder.write("python", "#!/bin/sh\nexec sleep 60\n");
  const std::string python = folder / "python";
  std::filesystem::permissions(python, std::filesystem::perms::owner_all);
  TemplateSetup setup = setup_of({{"default", "x"}});
  TemplatePool good(setup, options_of(1));
  ASSERT_TRUE(good.await_first(60 * kSecond).ok());
  setup.python = python;
  setup.start_time = 3 * kSecond;  // until then a pool cannot be stopped
  TemplatePool one(setup, options_of(1));
  TemplatePool two(setup, options_of(1));
  int touched = 0;
  const TimeNs began = now_ns();
  const auto started = TemplatePool::await_all({&one, &good, &two}, kSecond, [&] { ++touched; });
  EXPECT_GE(now_ns() - began, kSecond);
  EXPECT_LT(now_ns() - began, 2 * kSecond);
  EXPECT_GE(touched, 5);
  ASSERT_EQ(started.size(), 3U);
  EXPECT_FALSE(started[0].ok());
  EXPECT_TRUE(started[1].ok());
  EXPECT_FALSE(started[2].ok());
}

TEST(TemplatePool, OneThatKillsItsRendererLeavesTheOthersAlone) {
  TemplatePool pool(setup_of({{"good", "<{{ messages[0].content }}>"}, {"forever", kForever}}),
                    options_of(2));
  ASSERT_TRUE(pool.await_first(60 * kSecond).ok());
  auto killer = ask(pool, "forever");
  std::vector<std::future<Result<std::string>>> others;
  for (int i = 0; i < 50; ++i) others.push_back(ask(pool, "good", std::to_string(i)));
  for (int i = 0; i < 50; ++i) {
    const auto rendered = others[static_cast<std::size_t>(i)].get();
    ASSERT_TRUE(rendered.ok()) << rendered.status().message();
    EXPECT_EQ(rendered.value(), "<" + std::to_string(i) + ">");
  }
  EXPECT_EQ(killer.get().status().code(), ErrorCode::invalid_argument);
  EXPECT_TRUE(ask(pool, "good").get().ok());
}

TEST(TemplatePool, AProcessThatDiedWhileIdleIsReplaced) {
  TemplatePool pool(setup_of({{"pid", "x"}}), options_of(1));
  ASSERT_TRUE(pool.await_first(60 * kSecond).ok());
  for (int i = 0; i < 3; ++i) {
    for (const pid_t pid : pool.idle_pids()) kill(pid, SIGKILL);
    const auto rendered = ask(pool, "pid").get();
    // Both of the processes that a request may try can be among the killed ones.
    if (!rendered.ok()) {
      EXPECT_NE(rendered.status().message().find("ended on these messages"), std::string::npos);
    }
  }
  EXPECT_EQ(ask(pool, "pid").get().value(), "x");
}

TEST(TemplatePool, AFullQueueIsSaidSo) {
  TemplatePool pool(setup_of({{"good", "x"}, {"forever", kForever}}), options_of(1, 2));
  ASSERT_TRUE(pool.await_first(60 * kSecond).ok());
  std::vector<std::future<Result<std::string>>> asked;
  for (int i = 0; i < 8; ++i) asked.push_back(ask(pool, i == 0 ? "forever" : "good"));
  int full = 0;
  for (auto& future : asked) full += future.get().status().code() == ErrorCode::queue_full ? 1 : 0;
  EXPECT_GE(full, 5);
  EXPECT_LE(full, 6);
}

TEST(TemplatePool, OwnersTakeTurnsAndNothingIsRenderedForWhoLeft) {
  TemplatePool pool(setup_of({{"good", "x"}, {"forever", kForever}}), options_of(1));
  ASSERT_TRUE(pool.await_first(60 * kSecond).ok());
  std::vector<std::future<Result<std::string>>> theirs;
  std::atomic<bool> there{true};
  for (int i = 0; i < 4; ++i) {
    theirs.push_back(ask(pool, "forever", "hi", "them", [&] { return there.load(); }));
  }
  const TimeNs began = now_ns();
  auto mine = ask(pool, "good", "hi", "me");
  EXPECT_TRUE(mine.get().ok());
  EXPECT_EQ(theirs[2].wait_for(std::chrono::seconds(0)), std::future_status::timeout);
  there = false;
  EXPECT_EQ(theirs[3].get().status().code(), ErrorCode::cancelled);
  std::printf("%.1f s\n", static_cast<double>(now_ns() - began) / 1e9);
}

TEST(TemplatePool, WithoutARendererEachRequestIsToldWhy) {
  TemplateSetup setup = setup_of({{"default", "{% endfor %}"}});
  TemplatePool pool(setup, options_of(2));
  const Status first = pool.await_first(60 * kSecond);
  EXPECT_EQ(first.code(), ErrorCode::unavailable);
  for (int i = 0; i < 3; ++i) {
    const auto rendered = ask(pool, "default").get();
    EXPECT_EQ(rendered.status().code(), ErrorCode::unavailable);
    EXPECT_NE(rendered.status().message().find("is wrong in line 1"), std::string::npos);
  }
}

TEST(TemplatePool, CanBeEndedWhileItRenders) {
  auto pool = std::make_unique<TemplatePool>(setup_of({{"forever", kForever}}), options_of(2));
  std::vector<std::future<Result<std::string>>> asked;
  for (int i = 0; i < 6; ++i) asked.push_back(ask(*pool, "forever"));
  pool->stop();
  EXPECT_EQ(ask(*pool, "forever").get().status().code(), ErrorCode::queue_full);
}

}  // namespace
}  // namespace baton
