// One line of text a message, for traces.
#pragma once

#include <string>

#include "scheduler/apply/events.h"
#include "tests/sim/network.h"

namespace baton::sim {

std::string describe(const ToScheduler& message);
std::string describe(const ToPeer& message);
std::string describe(const Event& event);

}  // namespace baton::sim
