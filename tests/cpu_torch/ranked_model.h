// A model over several ranks in one process: threads stand for the processes; exchange memory and
// pool are the same.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "tests/cpu_torch/model_fixture.h"

namespace baton::test {

/// All ranks of a model, loaded. Steps run on threads of their own; rank 0's logits are returned.
class RankedModel {
 public:
  /// `seal`: the parts are packed into memory that others could map, as with a memory process.
  RankedModel(const std::string& folder, int ranks, int threads = 1, bool seal = false,
              Activations activations = Activations::exact)
      : memory_(ExchangeMemory::create(ranks, 4096).value()) {
    for (int rank = 0; rank < ranks; ++rank) {
      groups_.push_back(std::make_unique<Collective>(memory_, rank));
    }
    models_.resize(groups_.size());
    on_all([&](std::size_t rank) {
      LoadOptions options;
      options.threads = threads;
      options.seal = seal;
      options.activations = activations;
      options.cut = {static_cast<int>(rank), ranks};
      options.group = groups_[rank].get();
      models_[rank] = LlamaModel::load(folder, options);
    });
  }

  LlamaModel& rank(std::size_t index) { return *models_[index]; }
  std::size_t ranks() const { return models_.size(); }
  const CollectiveFigures& figures(std::size_t rank) const { return groups_[rank]->figures(); }
  Collective& group(std::size_t rank) { return *groups_[rank]; }
  std::uint32_t progress(std::size_t rank) const { return groups_[rank]->progress().load(); }

  LogitsView forward(std::span<const StepRow> rows, const KvPoolView& pool) {
    LogitsView logits;
    on_all([&](std::size_t rank) {
      const LogitsView got = models_[rank]->forward(rows, pool);
      if (rank == 0) logits = got;
    });
    return logits;
  }

 private:
  void on_all(const std::function<void(std::size_t)>& f) {
    std::vector<std::thread> threads;
    for (std::size_t rank = 0; rank < models_.size(); ++rank) threads.emplace_back(f, rank);
    for (std::thread& thread : threads) thread.join();
  }

  ExchangeMemory memory_;
  std::vector<std::unique_ptr<Collective>> groups_;
  std::vector<std::unique_ptr<LlamaModel>> models_;
};

}  // namespace baton::test
