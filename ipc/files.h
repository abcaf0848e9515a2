// Files of a model folder, as every process reads them: they may be anything, so that nothing here
// waits for a pipe, follows brackets without end, or takes more memory than it says.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "ipc/status.h"

namespace baton {

/// All bytes of a regular file (links are followed). Nothing where there is no such file; an error
/// that names the path for a folder, pipe or device, for more than `most` bytes, and for what
/// cannot be read.
Result<std::optional<std::string>> read_regular_file(const std::string& path, std::size_t most);

/// What the kernel says of a file: another one after every change of its bytes, but for changes
/// that fall into one tick of the file system's clock.
struct FileStamp {
  std::uint64_t device = 0;
  std::uint64_t inode = 0;
  std::uint64_t bytes = 0;
  std::int64_t modified = 0;  // ns since 1970, as is
  std::int64_t changed = 0;   // ... its inode's: nobody can set this one back
  bool operator==(const FileStamp&) const = default;
};
/// Of an open regular file, or of the one at `path` (links are followed); nothing: it is none.
std::optional<FileStamp> file_stamp(int fd);
std::optional<FileStamp> file_stamp(const std::string& path);

/// Levels of arrays and objects that the JSON of a model folder may have; published ones have up
/// to 12.
constexpr int kMaxJsonDepth = 64;

/// Whether brackets outside of strings nest at most `most` deep. Says nothing else about the JSON.
bool json_depth_within(std::string_view json, int most);

/// JSON as Python's json module writes it: NaN, Infinity and -Infinity outside of strings, which
/// JSON does not have, become the strings "NaN", "Infinity" and "-Infinity".
std::string quote_bare_constants(std::string json);

/// read_regular_file(), bounded in depth, with quote_bare_constants(): text for a JSON parser.
Result<std::optional<std::string>> read_json_text(const std::string& path, std::size_t most);

}  // namespace baton
