#include "workers/execute/rank_pulls.h"

#include <spdlog/spdlog.h>

#include <chrono>
#include <cstring>
#include <map>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <variant>

#include "ipc/codec.h"

namespace baton {

namespace {

constexpr auto kUntilTheEnd = std::chrono::seconds(10);
constexpr std::uint64_t kHere = 0;  // number of a mapping that rank 0 alone has

enum class Ask : std::uint8_t { map, copy, place, unmap };

struct Head {
  Ask ask = Ask::map;
  std::uint64_t mapping = 0;
};

std::string ask_of(Ask ask, std::uint64_t mapping, const Pull* pull) {
  std::string bytes;
  if (pull != nullptr) encode(*pull, bytes);
  const Head head{ask, mapping};
  bytes.insert(0, reinterpret_cast<const char*>(&head), sizeof head);
  return bytes;
}

/// What all ranks have come to: the first that failed says why.
Status outcome(Collective& all, const Status& own) {
  const std::vector<std::string> errors = all.all_gather(own.ok() ? std::string() : own.message());
  for (std::size_t rank = 0; rank < errors.size(); ++rank) {
    if (errors[rank].empty()) continue;
    return Status(ErrorCode::unavailable, "rank " + std::to_string(rank) + ": " + errors[rank]);
  }
  return {};
}

}  // namespace

/// Unmapped everywhere when rank 0 lets it go.
class RankBlockReader::Mapped final : public MappedPool {
 public:
  Mapped(RankBlockReader& reader, std::uint64_t number, std::unique_ptr<MappedPool> own)
      : reader_(reader), number_(number), own_(std::move(own)) {}
  ~Mapped() override {
    if (number_ != kHere) reader_.unmap(number_);
  }
  MappedPool& own() { return *own_; }
  std::uint64_t number() const { return number_; }
  void now_everywhere(std::uint64_t number) { number_ = number; }

 private:
  RankBlockReader& reader_;
  std::uint64_t number_;
  const std::unique_ptr<MappedPool> own_;
};

RankBlockReader::RankBlockReader(std::unique_ptr<BlockReader> own, Collective& all, Copies copies,
                                 std::function<void(const RankLost&)> on_lost)
    : own_(std::move(own)), all_(all), copies_(copies), on_lost_(std::move(on_lost)) {}

Status RankBlockReader::all_do(const std::string& asked, const std::function<Status()>& own) {
  try {
    std::string bytes = asked;
    all_.broadcast(bytes, kMaxMessageBytes);
    return outcome(all_, own());
  } catch (const RankLost& lost) {
    // Nothing is answered before this process has ended: a late rank may still write to where the
    // blocks were to go.
    on_lost_(lost);
    std::this_thread::sleep_for(kUntilTheEnd);
    return Status(ErrorCode::unavailable, lost.what());
  }
}

/// Whoever cannot is about to end.
void RankBlockReader::unmap(std::uint64_t number) {
  const Status status = all_do(ask_of(Ask::unmap, number, nullptr), [] { return Status(); });
  if (!status.ok()) spdlog::debug("unmapping: {}", status.message());
}

Result<std::unique_ptr<MappedPool>> RankBlockReader::map(const Pull& pull) {
  if (copies_ == Copies::by_rank_0) {
    auto mapped = own_->map(pull);
    if (!mapped.ok()) return mapped.status();
    return std::unique_ptr<MappedPool>(
        std::make_unique<Mapped>(*this, kHere, std::move(mapped).value()));
  }
  const std::uint64_t number = ++last_;
  std::unique_ptr<MappedPool> own;
  const Status status = all_do(ask_of(Ask::map, number, &pull), [&]() -> Status {
    auto mapped = own_->map(pull);
    if (!mapped.ok()) return mapped.status();
    own = std::move(mapped).value();
    return {};
  });
  if (status.ok()) {
    return std::unique_ptr<MappedPool>(std::make_unique<Mapped>(*this, number, std::move(own)));
  }
  unmap(number);  // those that could
  return status;
}

Status RankBlockReader::copy(MappedPool& exported, const Pull& pull) {
  auto& mapped = static_cast<Mapped&>(exported);
  if (copies_ == Copies::by_rank_0) return own_->copy(mapped.own(), pull);
  return all_do(ask_of(Ask::copy, mapped.number(), &pull),
                [&] { return own_->copy(mapped.own(), pull); });
}

Status RankBlockReader::place(MappedPool& exported, const Pull& pull) {
  auto& mapped = static_cast<Mapped&>(exported);
  if (copies_ == Copies::by_all) {  // and all have mapped it
    return all_do(ask_of(Ask::place, mapped.number(), &pull),
                  [&] { return own_->place(mapped.own(), pull); });
  }
  if (mapped.number() != kHere) return {};
  const std::uint64_t number = ++last_;
  const Status status =
      all_do(ask_of(Ask::place, number, &pull), [&] { return own_->place(mapped.own(), pull); });
  if (status.ok()) {
    mapped.now_everywhere(number);
  } else {
    unmap(number);  // those that could
  }
  return status;
}

Result<std::vector<std::uint64_t>> RankBlockReader::sums(const std::vector<BlockId>& blocks) {
  if (copies_ == Copies::by_rank_0) return own_->sums(blocks);
  return invalid("checksums of a worker of several ranks on GPUs");
}

void follow_pulls(BlockReader& own, Collective& all) {
  std::map<std::uint64_t, std::unique_ptr<MappedPool>> mappings;
  std::string bytes;
  for (;;) {
    all.broadcast(bytes, kMaxMessageBytes);
    Head head;
    if (bytes.size() < sizeof head) throw std::logic_error("a pull of rank 0 that cannot be read");
    std::memcpy(&head, bytes.data(), sizeof head);
    Status status;
    if (head.ask == Ask::unmap) {
      mappings.erase(head.mapping);
    } else {
      const auto message = decode_to_worker(std::string_view(bytes).substr(sizeof head));
      const Pull* pull = message.ok() ? std::get_if<Pull>(&message.value()) : nullptr;
      if (pull == nullptr) throw std::logic_error("a pull of rank 0 that cannot be read");
      const auto known = mappings.find(head.mapping);
      if (head.ask == Ask::copy) {
        status = own.copy(*mappings.at(head.mapping), *pull);
      } else if (known != mappings.end()) {
        status = own.place(*known->second, *pull);
      } else {
        auto mapped = own.map(*pull);
        status = mapped.ok() ? Status() : mapped.status();
        if (status.ok() && head.ask == Ask::place) status = own.place(*mapped.value(), *pull);
        if (status.ok()) mappings[head.mapping] = std::move(mapped).value();
      }
    }
    if (status = outcome(all, status); !status.ok()) spdlog::debug("{}", status.message());
  }
}

}  // namespace baton
