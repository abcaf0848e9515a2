#include "workers/execute/travel_choice.h"

#include <algorithm>

namespace baton {

void TravelChoice::told(bool travelled, double us, double link_us) {
  if (travelled != travels(true)) return;  // launched before the last decision
  if (trying_) {
    quickest_ = tried_ == 0 ? us : std::min(quickest_, us);
    if (++tried_ == kTried) decide();
    return;
  }
  usual_ = usual_ == 0 ? us : usual_ + (us - usual_) / 8;
  ++since_;
  const bool could_be_quicker = !travels_ || usual_ > link_us;
  if (since_ < wait_ || !could_be_quicker) return;
  trying_ = true;
  tried_ = 0;
}

void TravelChoice::decide() {
  trying_ = false;
  since_ = 0;
  if (quickest_ < kQuicker * usual_) {
    travels_ = !travels_;
    usual_ = quickest_;
    wait_ = kFirstWait;
  } else {
    wait_ = std::min(2 * wait_, kLongestWait);
  }
}

}  // namespace baton
