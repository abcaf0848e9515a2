#include "frontend/core/metrics_merge.h"

#include <string_view>
#include <unordered_map>

namespace baton {
namespace {

/// One metric: its two lines of explanation, and its values.
struct Family {
  std::string head;
  std::string lines;
};

class Merger {
 public:
  void take(std::string_view text) {
    Family* family = nullptr;
    bool fresh = false;
    while (!text.empty()) {
      const std::size_t end = text.find('\n');
      const std::string_view line = text.substr(0, end == text.npos ? end : end + 1);
      text.remove_prefix(line.size());
      if (line.starts_with(kHelp)) {
        const std::string_view rest = line.substr(kHelp.size());
        fresh = begin(std::string(rest.substr(0, rest.find(' '))), &family);
      }
      if (family == nullptr) continue;
      if (!line.starts_with('#')) {
        family->lines += line;
      } else if (fresh) {
        family->head += line;
      }
    }
  }

  std::string text() const {
    std::string text;
    for (const Family& family : families_) text += family.head + family.lines;
    return text;
  }

 private:
  static constexpr std::string_view kHelp = "# HELP ";

  /// True: it was not there yet.
  bool begin(const std::string& name, Family** family) {
    const auto [at, fresh] = places_.emplace(name, families_.size());
    if (fresh) families_.emplace_back();
    *family = &families_[at->second];
    return fresh;
  }

  std::vector<Family> families_;
  std::unordered_map<std::string, std::size_t> places_;
};

}  // namespace

std::string merge_metrics(const std::vector<std::string>& texts) {
  if (texts.size() == 1) return texts.front();
  Merger merger;
  for (const std::string& text : texts) merger.take(text);
  return merger.text();
}

}  // namespace baton
