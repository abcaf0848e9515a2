#include "configs/gpu_memory.h"

#include <gtest/gtest.h>

namespace baton {
namespace {

WorkerConfig on(const std::string& device, const std::string& gpu) {
  WorkerConfig worker;
  worker.device = device;
  worker.gpu = gpu;
  return worker;
}

TEST(GpuMemory, OneProcessForEachGpuThatWorkersName) {
  const std::vector<WorkerConfig> workers = {on("cuda", "0"), on("cuda", "1"), on("cuda", "0"),
                                             on("cpu", "auto"), on("cuda", "GPU-12-ab")};
  EXPECT_EQ(gpus_with_memory(workers), (std::vector<std::string>{"0", "1", "GPU-12-ab"}));
}

TEST(GpuMemory, WorkersThatSayAutoUseAsManyGpusAtMost) {
  EXPECT_EQ(gpus_with_memory({on("cuda", "auto"), on("cuda", "auto")}),
            (std::vector<std::string>{"0", "1"}));
  EXPECT_TRUE(gpus_with_memory({on("cpu", "auto")}).empty());
}

TEST(GpuMemory, EveryRankHasAGpu) {
  WorkerConfig two = on("cuda", "2,GPU-12-ab");
  two.ranks = 2;
  EXPECT_EQ(gpus_of(two).value(), (std::vector<std::string>{"2", "GPU-12-ab"}));
  EXPECT_EQ(gpus_with_memory({two}), (std::vector<std::string>{"2", "GPU-12-ab"}));
  two.gpu = "auto";
  EXPECT_EQ(gpus_of(two).value(), (std::vector<std::string>{"auto", "auto"}));
  EXPECT_EQ(gpus_with_memory({two, on("cuda", "auto")}), (std::vector<std::string>{"0", "1", "2"}));
  for (const char* gpu : {"0", "0,1,2", "0,", ",1", "0,auto", ""}) {
    two.gpu = gpu;
    const auto gpus = gpus_of(two);
    ASSERT_FALSE(gpus.ok()) << gpu;
    EXPECT_NE(gpus.status().message().find("2 GPUs"), std::string::npos) << gpus.status().message();
  }
  EXPECT_FALSE(gpus_of(on("cuda", "0,1")).ok());
}

TEST(GpuMemory, ProcessesAreNamedByTheirGpu) {
  EXPECT_EQ(gpu_memory_name("3"), "memory-gpu3");
  EXPECT_EQ(gpu_memory_name("GPU-12-ab"), "memory-GPU-12-ab");
}

}  // namespace
}  // namespace baton
