// What `baton-ctl top` draws, as lines of a terminal. Pure.
#pragma once

#include <cstddef>
#include <deque>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace baton {

struct TopSize {
  int columns = 80;
  int rows = 24;  // 0: as many as there is to say
};

struct TopStyle {
  bool colour = true;  // ANSI sequences for colours; never for moving the cursor
  bool utf8 = true;    // blocks and bars by characters beyond ASCII
};

/// What changes between two looks, by the second.
struct TopRates {
  double tokens = 0, handoffs = 0, finished = 0, prompt_tokens = 0;
  struct OfWorker {
    double steps = 0, tokens = 0;
  };
  std::map<std::string, OfWorker> workers;
};

class TopView {
 public:
  explicit TopView(TopStyle style) : style_(style) {}

  /// Takes the next `show live json`. One that is of another scheduler begins anew.
  void take(nlohmann::json live);
  /// No line is longer than `size.columns` characters, and there are no more of them than rows.
  std::vector<std::string> draw(const TopSize& size) const;
  const TopRates& rates() const { return rates_; }

 private:
  TopStyle style_;
  nlohmann::json live_;
  TopRates rates_;
  std::deque<double> history_;  // tokens/s, newest last
};

/// The map of `show live` as letters, `cells` of them: one letter a block or so, however large the
/// pool is.
std::string expand_map(const std::string& map, std::size_t cells);

}  // namespace baton
