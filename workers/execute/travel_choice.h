// Whether queries travel to keys on other GPUs or the keys come over the link, by what steps took.
// Where the other GPU's own worker computes, two processes take turns there (without MPS in slices
// of about a millisecond), and each layer may wait for its turn: then the link is quicker. Nobody
// tells whether it is so; now and then the other way is tried. Pure.
#pragma once

#include <cstdint>

namespace baton {

class TravelChoice {
 public:
  /// For the next step. `told`: told() will hear of it; whatever else reads in place goes the usual
  /// way, also while the other one is tried: a prompt may come in each step for minutes.
  bool travels(bool told) const { return trying_ && told ? !travels_ : travels_; }
  /// Such a step went that way and took so long on the device. `link_us`: no less than this its
  /// keys would have taken, or did take, over the link.
  void told(bool travelled, double us, double link_us);

 private:
  void decide();

  static constexpr int kTried = 3;  // steps; the quickest of them counts
  static constexpr int kFirstWait = 32;
  static constexpr int kLongestWait = 1024;
  /// Of what is usual: what is not clearly quicker is not worth a change.
  static constexpr double kQuicker = 0.85;

  bool travels_ = true;
  bool trying_ = false;  // the other way
  int tried_ = 0;
  double quickest_ = 0;  // of the tried
  double usual_ = 0;     // of late; 0: not known
  int since_ = 0;        // steps behind the last try
  int wait_ = kFirstWait;
};

}  // namespace baton
