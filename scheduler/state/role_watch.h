// What `roles: auto` remembers between two looks.
#pragma once

#include <string>

#include "ipc/types.h"

namespace baton {

/// How much there is to do on either side. A load of 1 is what one worker can do.
struct RolePressure {
  double queue_s = 0;      // prompt work that waits, for each worker's worth of prefill
  double prompt_load = 0;  // prompts computed, smoothed
  double decode_load = 0;  // places and blocks taken, and hand-offs that wait for some
};

/// Times are 0 while the thing is not so.
struct RoleWatch {
  TimeNs looked = 0;
  double prompt_us = 0;  // of all workers, when last looked
  double prompt_load = 0;
  RolePressure pressure;
  TimeNs prompts_pressed = 0;  // since when
  TimeNs decode_pressed = 0;
  TimeNs prompts_calm = 0;
  TimeNs decode_calm = 0;
  TimeNs nobody_decodes = 0;
  TimeNs nobody_prefills = 0;
  TimeNs changed = 0;
  std::string last;  // the last change, in words
};

}  // namespace baton
