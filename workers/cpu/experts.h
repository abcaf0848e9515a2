// Mixture of experts: which experts a step's rows take, and the rows grouped by expert. Pure.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace baton::cpu {

/// How a row's experts follow from what the router says of each of them.
struct RouterRule {
  int experts = 0;
  int active = 0;               // that a row takes; 1 <= active <= experts
  bool normalise = false;       // their weights are divided by their sum
  float scale = 1;              // and then multiplied
  const float* bias = nullptr;  // [experts], added where experts are chosen alone; may be null
  int groups = 1;               // equal parts of the experts, neighbours in each
  int active_groups = 1;        // experts are chosen in the best of them alone
  bool group_pairs = true;  // a group is as good as its two best experts together, else its best
};

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

  /// `weights` is [rows, experts], row-major: a softmax over the experts, or sigmoids. Each row
  /// takes the `active` largest, of equal ones the lower number.
  void make(std::span<const float> weights, const RouterRule& rule);

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
  void choose(std::span<const float> weights, const RouterRule& rule, std::span<Choice> chosen);
  void close_groups(std::span<const float> scores, const RouterRule& rule);

  int active_ = 0;
  std::vector<Choice> choices_;  // [rows, active]
  std::vector<Group> groups_;
  std::vector<int> sources_;
  std::vector<int> next_line_;  // [experts]
  std::vector<char> taken_;     // [experts], of the row at hand: not to be chosen any more
  std::vector<float> scores_;   // [experts], of the row at hand: weights and the bias
  std::vector<float> group_scores_;  // [groups], likewise
  std::vector<char> open_;           // [groups], likewise: its experts may be chosen
};

}  // namespace baton::cpu
