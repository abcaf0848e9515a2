// Models that could not be loaded when the front end began, and may be later: whatever was missing
// may have come. Loading takes seconds, so it is done beside the loop.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <future>
#include <optional>
#include <utility>

#include "frontend/core/served_model.h"
#include "ipc/status.h"

namespace baton {

/// Lives on the loop's thread. One model is loaded at a time.
class LateModels {
 public:
  /// Loads a model, by its number among all, and starts what its requests need. On another thread.
  using Load = std::function<Result<ServedModel>(std::size_t)>;
  /// Gives requests what is known of a model by now: the model, or why it is not served. On the
  /// loop's thread, once that knows it.
  using Tell = std::function<void(std::size_t, const ServedModel&)>;

  LateModels(Load load, Tell tell) : load_(std::move(load)), tell_(std::move(tell)) {}
  ~LateModels() = default;  // as finish()
  LateModels(const LateModels&) = delete;
  LateModels& operator=(const LateModels&) = delete;

  /// False: another one is being loaded.
  bool begin(std::size_t model) {
    if (loading_.valid()) return false;
    model_ = model;
    loading_ = std::async(std::launch::async, load_, model);
    return true;
  }

  struct Loaded {
    std::size_t model = 0;
    Result<ServedModel> result;
  };
  /// What has come of begin(), once; nothing: it is still loading, or nothing was begun.
  std::optional<Loaded> take() {
    if (!loading_.valid() ||
        loading_.wait_for(std::chrono::seconds(0)) != std::future_status::ready) {
      return std::nullopt;
    }
    return Loaded{model_, loading_.get()};
  }

  /// Waits for what is being loaded: then nothing of it is touched any more.
  void finish() const {
    if (loading_.valid()) loading_.wait();
  }

  void tell(std::size_t model, const ServedModel& known) const { tell_(model, known); }

 private:
  Load load_;
  Tell tell_;
  std::size_t model_ = 0;
  std::future<Result<ServedModel>> loading_;
};

}  // namespace baton
