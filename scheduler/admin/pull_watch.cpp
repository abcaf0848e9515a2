#include "scheduler/admin/pull_watch.h"

namespace baton {

void PullWatch::look(TimeNs now) {
  looked_ = now;
  while (!recent_.empty() && now - recent_.front().ended > kKept) recent_.pop_front();
}

void PullWatch::ended(const State& state, PullId id, TimeNs now) {
  if (now - looked_ > kPatience) {
    recent_.clear();
    return;
  }
  const OpenPull* pull = state.pulls.find(id);
  if (pull == nullptr || pull->is_probe()) return;
  const Request* request = state.requests.find(pull->request);
  recent_.push_back({id, request == nullptr ? RequestId{} : request->name, pull->from_worker,
                     pull->to_worker, pull->from, pull->to, now});
  if (recent_.size() > kMost) recent_.pop_front();
}

}  // namespace baton
