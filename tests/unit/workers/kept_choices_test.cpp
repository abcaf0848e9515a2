// Kernel choices as a file: what is written is read again, and nothing else is believed.
#include "workers/execute/kept_choices.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>

namespace baton {
namespace {

using cuda::from_text;
using cuda::KernelChoices;
using cuda::to_text;

const std::string kKey = "GPU-1; 132 multiprocessors; build 1";

KernelChoices some() {
  KernelChoices all;
  for (const int rows : {1, 8, 64}) {
    all.linears.push_back({4096, 6144, 1, 2, 32, rows, "quantized ring", 3, {}, 12.25 + rows});
    all.linears.push_back({4096, 4096, 0, 0, 1, rows, "cublasLt", 0, {1, 2, 3, ~0ULL, 5, 6, 7, 8}});
  }
  std::sort(all.linears.begin(), all.linears.end(),
            [](const auto& a, const auto& b) { return a.out < b.out; });
  all.chains = {{1, true, 10.5, 12.1}, {2, false, 13.0, 12.0}};
  return all;
}

TEST(KernelChoices, AreReadAsTheyWereWritten) {
  const auto read = from_text(kKey, to_text(kKey, some()));
  ASSERT_TRUE(read);
  EXPECT_EQ(*read, some());
}

TEST(KernelChoices, OfAnotherKeyAreNotTaken) {
  EXPECT_FALSE(from_text(kKey + "x", to_text(kKey, some())));
  EXPECT_NE(cuda::choices_file_name(kKey), cuda::choices_file_name(kKey + "x"));
}

TEST(KernelChoices, OfATornFileAreNotTaken) {
  const std::string text = to_text(kKey, some());
  for (std::size_t n = 0; n + 1 < text.size(); ++n)
    EXPECT_FALSE(from_text(kKey, text.substr(0, n))) << n;
}

TEST(KernelChoices, WithoutSenseAreNotTaken) {
  KernelChoices wrong = some();
  std::swap(wrong.linears[0], wrong.linears[1]);
  EXPECT_FALSE(from_text(kKey, to_text(kKey, wrong))) << "rows fall";
  wrong = some();
  wrong.linears[2].in = -5;
  EXPECT_FALSE(from_text(kKey, to_text(kKey, wrong)));
  std::string text = to_text(kKey, some());
  text.replace(text.find("linear "), 7, "matrix ");
  EXPECT_FALSE(from_text(kKey, text));
}

TEST(KernelChoices, AreKeptInAFolder) {
  std::string folder = std::filesystem::temp_directory_path() / "baton-choices-XXXXXX";
  const std::string run_dir = ::mkdtemp(folder.data());
  EXPECT_FALSE(recall_choices(run_dir, kKey));
  EXPECT_TRUE(keep_choices(run_dir, kKey, some()));
  ASSERT_TRUE(recall_choices(run_dir, kKey));
  EXPECT_EQ(*recall_choices(run_dir, kKey), some());
  std::ofstream(run_dir + "/" + cuda::choices_file_name(kKey)) << "nonsense";
  EXPECT_FALSE(recall_choices(run_dir, kKey));
  EXPECT_FALSE(keep_choices(run_dir + "/nowhere", kKey, some()));
  std::filesystem::remove_all(run_dir);
}

TEST(KernelChoices, TheProgramIsPartOfAKey) { EXPECT_NE(program_stamp(), ""); }

}  // namespace
}  // namespace baton
