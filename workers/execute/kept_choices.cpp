#include "workers/execute/kept_choices.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>

#include "ipc/files.h"
#include "ipc/process.h"

namespace baton {

namespace {

constexpr std::size_t kMostBytes = std::size_t{4} << 20U;

std::string path_of(const std::string& run_dir, const std::string& key) {
  return run_dir + "/" + cuda::choices_file_name(key);
}

}  // namespace

std::string program_stamp() {
  struct stat info {};
  std::string text = build_version();
  if (::stat("/proc/self/exe", &info) == 0) {
    text += ", " + std::to_string(info.st_size) + " bytes of " +
            std::to_string(info.st_mtim.tv_sec) + "." + std::to_string(info.st_mtim.tv_nsec);
  }
  return text;
}

std::optional<cuda::KernelChoices> recall_choices(const std::string& run_dir,
                                                  const std::string& key) {
  const auto text = read_regular_file(path_of(run_dir, key), kMostBytes);
  if (!text.ok() || !text.value()) return std::nullopt;
  return cuda::from_text(key, *text.value());
}

bool keep_choices(const std::string& run_dir, const std::string& key,
                  const cuda::KernelChoices& choices) {
  const std::string path = path_of(run_dir, key);
  const std::string fresh = path + "." + std::to_string(::getpid());
  std::ofstream file(fresh, std::ios::binary | std::ios::trunc);
  file << cuda::to_text(key, choices);
  file.close();
  if (file.good() && std::rename(fresh.c_str(), path.c_str()) == 0) return true;
  std::remove(fresh.c_str());
  return false;
}

}  // namespace baton
