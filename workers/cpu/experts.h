// Mixture of experts: which experts a step's rows take, and the rows grouped by expert. Pure.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace baton::cpu {

/// One step's routing. A row's choice follows from its own probabilities alone; what its neighbours
/// choose decides only where its copies lie among the gathered rows.
class ExpertPlan {
 public:
  /// The copies [first, first + rows) of the gathered matrix go through this expert.
  struct Group {
    int expert = 0;
    int first = 0;
    int rows = 0;
  };
  /// One expert of one row: its result lies in line `line` of the gathered matrix.
  struct Choice {
    int expert = 0;
    int line = 0;
    float weight = 0;
  };

  /// `probabilities` is [rows, experts], row-major, softmax over the experts. Each row takes the
  /// `active` likeliest (of equal ones the lower number); with `normalise` their weights are
  /// divided by their sum. 1 <= active <= experts.
  void make(std::span<const float> probabilities, int experts, int active, bool normalise);

  /// Experts that at least one row takes, ascending.
  std::span<const Group> groups() const { return groups_; }
  /// [rows * active]: the row that each line of the gathered matrix is a copy of.
  std::span<const int> sources() const { return sources_; }
  /// The row's choices in ascending order of the expert, which is the order of their sum.
  std::span<const Choice> of_row(int row) const {
    return std::span<const Choice>(choices_).subspan(
        static_cast<std::size_t>(row) * static_cast<std::size_t>(active_),
        static_cast<std::size_t>(active_));
  }

 private:
  void choose(std::span<const float> probabilities, bool normalise, std::span<Choice> chosen);

  int active_ = 0;
  std::vector<Choice> choices_;  // [rows, active]
  std::vector<Group> groups_;
  std::vector<int> sources_;
  std::vector<int> next_line_;  // [experts]
  std::vector<char> taken_;     // [experts], of the row at hand
};

}  // namespace baton::cpu
