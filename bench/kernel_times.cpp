// A library that any CUDA program loads by CUDA_INJECTION64_PATH: it notes when each kernel began
// and ended (CUPTI's activity records, kernels of graphs too) and writes them down when the program
// exits, for tools/kernel_times.py. Format: number of names, each as length and bytes, then
// records; all little-endian.
#include <cupti.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

namespace {

struct Record {
  std::uint64_t begin_ns, end_ns;
  std::uint32_t name;
  std::uint32_t ctas;
};

constexpr std::size_t kBufferBytes = 8 << 20;
constexpr std::size_t kMostRecords = 400'000;  // the last ones are kept

std::mutex mutex;
std::deque<Record> records;
std::vector<std::string> names;
std::unordered_map<std::string, std::uint32_t> numbers;

void CUPTIAPI give_buffer(std::uint8_t** buffer, std::size_t* bytes, std::size_t* most) {
  *buffer = static_cast<std::uint8_t*>(std::aligned_alloc(8, kBufferBytes));
  *bytes = *buffer != nullptr ? kBufferBytes : 0;
  *most = 0;
}

void note(const CUpti_ActivityKernel9& kernel) {
  const std::string name = kernel.name != nullptr ? kernel.name : "?";
  const auto [it, added] = numbers.try_emplace(name, static_cast<std::uint32_t>(names.size()));
  if (added) names.push_back(name);
  records.push_back({kernel.start, kernel.end, it->second,
                     static_cast<std::uint32_t>(kernel.gridX * kernel.gridY * kernel.gridZ)});
  if (records.size() > kMostRecords) records.pop_front();
}

void CUPTIAPI take_buffer(CUcontext, std::uint32_t, std::uint8_t* buffer, std::size_t,
                          std::size_t used) {
  const std::lock_guard lock(mutex);
  CUpti_Activity* record = nullptr;
  while (cuptiActivityGetNextRecord(buffer, used, &record) == CUPTI_SUCCESS) {
    if (record->kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) {
      note(*reinterpret_cast<CUpti_ActivityKernel9*>(record));
    }
  }
  std::free(buffer);
}

void write_down() {
  cuptiActivityFlushAll(1);
  const char* path = std::getenv("KERNEL_TIMES");
  std::FILE* file = std::fopen(path != nullptr ? path : "kernel_times.bin", "wb");
  if (file == nullptr) {
    std::perror("kernel_times");
    return;
  }
  const std::lock_guard lock(mutex);
  const std::uint64_t n = names.size();
  std::fwrite(&n, sizeof n, 1, file);
  for (const std::string& name : names) {
    const auto length = static_cast<std::uint32_t>(name.size());
    std::fwrite(&length, sizeof length, 1, file);
    std::fwrite(name.data(), 1, length, file);
  }
  for (const Record& record : records) std::fwrite(&record, sizeof record, 1, file);
  if (std::fclose(file) != 0) std::perror("kernel_times");
}

}  // namespace

/// What the driver calls at the program's first use of CUDA.
extern "C" __attribute__((visibility("default"))) int InitializeInjection() {
  if (cuptiActivityRegisterCallbacks(give_buffer, take_buffer) != CUPTI_SUCCESS) return 0;
  if (cuptiActivityEnable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) != CUPTI_SUCCESS) return 0;
  std::atexit(write_down);
  return 1;
}
