#include "frontend/core/request_explainer.h"

#include <algorithm>
#include <utility>

namespace baton {

void RequestExplainer::ended(std::uint64_t connection, EndedRequest request) {
  unwritten_.insert_or_assign(connection, std::move(request));
}

void RequestExplainer::written(std::uint64_t connection, TimeNs now) {
  const auto at = unwritten_.find(connection);
  if (at == unwritten_.end()) return;
  EndedRequest request = std::move(at->second);
  unwritten_.erase(at);
  request.marks.written = now;
  if (request.awaited == 0 || awaiting_.size() >= kMostWaiting) {
    finish(request);
  } else {
    awaiting_.insert_or_assign(request.awaited, std::move(request));
  }
}

EndedRequest* RequestExplainer::waiting_for(std::uint64_t counter) {
  if (const auto at = awaiting_.find(counter); at != awaiting_.end()) return &at->second;
  const auto at = std::find_if(unwritten_.begin(), unwritten_.end(),
                               [&](const auto& each) { return each.second.awaited == counter; });
  return at == unwritten_.end() ? nullptr : &at->second;
}

void RequestExplainer::abandoned(const StreamEnd& end) {
  EndedRequest* request = waiting_for(end.counter);
  if (request == nullptr) return;
  request->marks.submitted = end.submitted;
  request->request.attempts = end.attempts;
  if (end.timing) request->timing = end.timing;
}

void RequestExplainer::told(const RequestTiming& timing) {
  EndedRequest* request = waiting_for(timing.counter);
  if (request == nullptr) return;
  request->timing = timing;
  request->awaited = 0;
  const auto at = awaiting_.find(timing.counter);
  if (at == awaiting_.end()) return;  // it is not written yet
  EndedRequest whole = std::move(at->second);
  awaiting_.erase(at);
  finish(whole);
}

void RequestExplainer::tick(TimeNs now) {
  for (auto at = awaiting_.begin(); at != awaiting_.end();) {
    if (now - at->second.marks.written < kWait) {
      ++at;
      continue;
    }
    finish(at->second);
    at = awaiting_.erase(at);
  }
}

void RequestExplainer::finish(EndedRequest& ended) {
  ExplainedRequest& request = ended.request;
  const FrontendMarks& marks = ended.marks;
  const PartTimes spent = split_time(marks, ended.timing ? &*ended.timing : nullptr);
  request.spent.assign(spent.begin(), spent.end());
  request.total = std::max<TimeNs>(0, marks.written - marks.first_byte);
  request.at =
      static_cast<std::uint64_t>(std::max<TimeNs>(0, marks.first_byte + ended.wall_offset));
  request.told = ended.timing.has_value();
  if (ended.timing) request.timing = std::move(*ended.timing);
  sink_(std::move(ended));
}

}  // namespace baton
