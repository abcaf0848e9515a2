#include "workers/cuda/linear/kernel_choices.h"

#include <algorithm>
#include <cstdio>
#include <sstream>
#include <utility>

#include "ipc/fnv1a.h"

namespace baton::cuda {

namespace {

constexpr const char* kHead = "baton kernel choices 1";
/// Far more than a model has: a file may be anything.
constexpr std::size_t kMostLines = 10'000;

bool sensible(const LinearChoice& c) {
  return c.in > 0 && c.out > 0 && c.output >= 0 && c.format >= 0 && c.groups >= 0 && c.rows > 0 &&
         c.variant >= 0 && !c.kernel.empty();
}

/// Rows of one shape rise: the first that is large enough serves.
bool in_order(const std::vector<LinearChoice>& all) {
  for (std::size_t i = 1; i < all.size(); ++i) {
    const LinearChoice& a = all[i - 1];
    const LinearChoice& b = all[i];
    const bool same = a.in == b.in && a.out == b.out && a.output == b.output &&
                      a.format == b.format && a.groups == b.groups;
    if (same && a.rows >= b.rows) return false;
  }
  return true;
}

/// Words of a line have no spaces.
std::string replaced(std::string text, char from, char to) {
  std::replace(text.begin(), text.end(), from, to);
  return text;
}

}  // namespace

std::string to_text(const std::string& key, const KernelChoices& choices) {
  std::ostringstream text;
  text << kHead << '\n' << key << '\n';
  text.precision(17);
  for (const LinearChoice& c : choices.linears) {
    text << "linear " << c.in << ' ' << c.out << ' ' << c.output << ' ' << c.format << ' '
         << c.groups << ' ' << c.rows << ' ' << replaced(c.kernel, ' ', '_') << ' ' << c.variant
         << ' ' << c.us;
    for (const std::uint64_t word : c.algorithm) text << ' ' << word;
    text << '\n';
  }
  for (const ChainChoice& c : choices.chains) {
    text << "chain " << c.rows << ' ' << c.chained << ' ' << c.chained_us << ' ' << c.single_us
         << '\n';
  }
  text << "end\n";
  return text.str();
}

std::optional<KernelChoices> from_text(const std::string& key, const std::string& text) {
  std::istringstream in(text);
  std::string line;
  if (!std::getline(in, line) || line != kHead) return std::nullopt;
  if (!std::getline(in, line) || line != key) return std::nullopt;
  KernelChoices choices;
  for (std::size_t n = 0; n < kMostLines && std::getline(in, line); ++n) {
    if (line == "end") {
      if (!in_order(choices.linears)) return std::nullopt;
      return choices;
    }
    std::istringstream words(line);
    std::string kind;
    words >> kind;
    if (kind == "linear") {
      LinearChoice c;
      words >> c.in >> c.out >> c.output >> c.format >> c.groups >> c.rows >> c.kernel >>
          c.variant >> c.us;
      for (std::uint64_t& word : c.algorithm) words >> word;
      if (!words || !sensible(c)) return std::nullopt;
      c.kernel = replaced(c.kernel, '_', ' ');
      choices.linears.push_back(std::move(c));
    } else if (kind == "chain") {
      ChainChoice c;
      words >> c.rows >> c.chained >> c.chained_us >> c.single_us;
      if (!words || c.rows <= 0) return std::nullopt;
      choices.chains.push_back(c);
    } else {
      return std::nullopt;
    }
  }
  return std::nullopt;  // cut off
}

std::string choices_file_name(const std::string& key) {
  const std::uint64_t hash = fnv1a(key);
  char name[48];
  std::snprintf(name, sizeof name, "kernels-%016llx.txt", static_cast<unsigned long long>(hash));
  return name;
}

}  // namespace baton::cuda
