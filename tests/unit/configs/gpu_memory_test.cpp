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

TEST(GpuMemory, ProcessesAreNamedByTheirGpu) {
  EXPECT_EQ(gpu_memory_name("3"), "memory-gpu3");
  EXPECT_EQ(gpu_memory_name("GPU-12-ab"), "memory-GPU-12-ab");
}

}  // namespace
}  // namespace baton
