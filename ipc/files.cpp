#include "ipc/files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

namespace baton {
namespace {

struct Descriptor {
  int number;
  ~Descriptor() {
    if (number >= 0) ::close(number);
  }
};

/// Goes over JSON once and calls `outside(i)` for every character that is in no string.
template <typename F>
void outside_of_strings(std::string_view json, F outside) {
  bool quoted = false;
  for (std::size_t i = 0; i < json.size(); ++i) {
    const char c = json[i];
    if (quoted && c == '\\') {
      ++i;
    } else if (c == '"') {
      quoted = !quoted;
    } else if (!quoted && !outside(i)) {
      return;
    }
  }
}

/// Of the three at `json[i]`, or nothing.
std::string_view constant_at(std::string_view json, std::size_t i) {
  constexpr std::array<std::string_view, 3> kConstants = {"NaN", "Infinity", "-Infinity"};
  for (const std::string_view constant : kConstants) {
    if (json.substr(i, constant.size()) == constant) return constant;
  }
  return {};
}

}  // namespace

namespace {

std::int64_t nanoseconds(const timespec& time) {
  return std::int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

std::optional<FileStamp> stamp_of(int failed, const struct stat& info) {
  if (failed != 0 || !S_ISREG(info.st_mode)) return std::nullopt;
  return FileStamp{info.st_dev, info.st_ino, static_cast<std::uint64_t>(info.st_size),
                   nanoseconds(info.st_mtim), nanoseconds(info.st_ctim)};
}

}  // namespace

std::optional<FileStamp> file_stamp(int fd) {
  struct stat info {};
  const int failed = ::fstat(fd, &info);
  return stamp_of(failed, info);
}

std::optional<FileStamp> file_stamp(const std::string& path) {
  struct stat info {};
  const int failed = ::stat(path.c_str(), &info);
  return stamp_of(failed, info);
}

Result<std::optional<std::string>> read_regular_file(const std::string& path, std::size_t most) {
  // Without O_NONBLOCK, opening a pipe would wait for a writer.
  const Descriptor fd{::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
  if (fd.number < 0) {
    if (errno == ENOENT || errno == ENOTDIR) return std::optional<std::string>();
    return invalid(path + ": " + std::strerror(errno));
  }
  struct stat info {};
  if (::fstat(fd.number, &info) != 0 || !S_ISREG(info.st_mode)) {
    return invalid(path + ": not a regular file");
  }
  const auto too_large = [&] {
    return invalid(path + ": larger than " + std::to_string(most) + " bytes");
  };
  if (static_cast<std::size_t>(info.st_size) > most) return too_large();
  std::string text(static_cast<std::size_t>(info.st_size), '\0');
  std::size_t have = 0;
  while (true) {
    if (have == text.size()) text.resize(have + 4096);  // it may grow, and files of /proc say 0
    const ssize_t n = ::read(fd.number, text.data() + have, text.size() - have);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return invalid(path + ": " + std::strerror(errno));
    if (n == 0) break;
    have += static_cast<std::size_t>(n);
    if (have > most) return too_large();
  }
  text.resize(have);
  return std::optional<std::string>(std::move(text));
}

bool json_depth_within(std::string_view json, int most) {
  int depth = 0;
  outside_of_strings(json, [&](std::size_t i) {
    if (json[i] == '[' || json[i] == '{') ++depth;
    if (json[i] == ']' || json[i] == '}') --depth;
    return depth <= most;
  });
  return depth <= most;
}

std::string quote_bare_constants(std::string json) {
  if (json.find("NaN") == json.npos && json.find("Infinity") == json.npos) return json;
  std::string quoted;
  std::size_t copied = 0;
  outside_of_strings(json, [&](std::size_t i) {
    const std::string_view constant = i < copied ? std::string_view() : constant_at(json, i);
    if (constant.empty()) return true;
    quoted.append(json, copied, i - copied);
    quoted.append("\"").append(constant).append("\"");
    copied = i + constant.size();
    return true;
  });
  quoted.append(json, copied);
  return quoted;
}

Result<std::optional<std::string>> read_json_text(const std::string& path, std::size_t most) {
  auto text = read_regular_file(path, most);
  if (!text.ok() || !text.value()) return text;
  if (!json_depth_within(*text.value(), kMaxJsonDepth)) {
    return invalid(path + ": the JSON is nested more than " + std::to_string(kMaxJsonDepth) +
                   " deep");
  }
  return std::optional<std::string>(quote_bare_constants(std::move(*text.value())));
}

}  // namespace baton
