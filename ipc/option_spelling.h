// One spelling of the options of a command line: --run-dir and --run_dir are the same option.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

namespace baton {

/// argv in which the names of long options (up to a '=') have `to` in place of `from`. Values stay
/// as they are. Null behind the last, as in main().
class SpelledArguments {
 public:
  SpelledArguments(int argc, const char* const* argv, char from, char to) {
    for (int i = 0; i < argc; ++i) {
      std::string& text = texts_.emplace_back(argv[i]);
      if (i == 0 || !text.starts_with("--")) continue;
      const auto name_end = std::find(text.begin() + 2, text.end(), '=');
      std::replace(text.begin() + 2, name_end, from, to);
    }
    for (const std::string& text : texts_) pointers_.push_back(text.c_str());
    pointers_.push_back(nullptr);
  }

  int argc() const { return static_cast<int>(texts_.size()); }
  const char* const* argv() const { return pointers_.data(); }

 private:
  std::vector<std::string> texts_;
  std::vector<const char*> pointers_;
};

}  // namespace baton
