// Models that are loaded beside the loop: one at a time, and each result once.
#include "frontend/late_models.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <string>
#include <thread>
#include <vector>

namespace baton {
namespace {

std::optional<LateModels::Loaded> awaited(LateModels& late) {
  std::optional<LateModels::Loaded> loaded;
  while (!(loaded = late.take())) std::this_thread::yield();
  return loaded;
}

TEST(LateModels, OneIsLoadedAtATimeAndToldOnce) {
  std::promise<void> folder;
  std::shared_future<void> comes = folder.get_future().share();
  LateModels late(
      [comes](std::size_t model) -> Result<ServedModel> {
        comes.wait();
        if (model == 7) return invalid("no such folder");
        ServedModel made;
        made.name = std::to_string(model);
        return made;
      },
      [](std::size_t, const ServedModel&) {});
  EXPECT_FALSE(late.take()) << "nothing was begun";
  EXPECT_TRUE(late.begin(3));
  EXPECT_FALSE(late.begin(7)) << "another one is being loaded";
  EXPECT_FALSE(late.take());
  folder.set_value();
  const auto loaded = awaited(late);
  EXPECT_EQ(loaded->model, 3U);
  EXPECT_EQ(loaded->result.value().name, "3");
  EXPECT_FALSE(late.take()) << "once";
  EXPECT_TRUE(late.begin(7));
  const auto none = awaited(late);
  EXPECT_EQ(none->model, 7U);
  EXPECT_EQ(none->result.status().message(), "no such folder");
}

TEST(LateModels, WhoLeavesWaitsForWhatIsBeingLoaded) {
  std::atomic<bool> done = false;
  LateModels late(
      [&](std::size_t) -> Result<ServedModel> {
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
        done = true;
        return ServedModel();
      },
      [](std::size_t, const ServedModel&) {});
  late.finish();  // nothing was begun
  late.begin(0);
  late.finish();
  EXPECT_TRUE(done);
}

}  // namespace
}  // namespace baton
