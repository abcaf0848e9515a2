// A step whose rows' keys lie on several GPUs, uploaded to all of them as a worker does it.
#pragma once

#include <cstdint>
#include <cstring>
#include <memory>
#include <numeric>
#include <span>
#include <stdexcept>
#include <vector>

#include "tests/gpu/attention_fixture.h"
#include "workers/cuda/attention/travel.h"
#include "workers/cuda/attention/travel_plan.h"

namespace baton::cuda {

/// Device memory on a GPU of the test's choice.
template <typename T>
std::unique_ptr<DeviceArray<T>> array_on(int device, std::size_t n) {
  const OnDevice on(device);
  return std::make_unique<DeviceArray<T>>(n);
}

/// Pools by number: who attends to them, and how far from the own pool each of these devices sees
/// them, in elements. Device 0 is the own one.
struct SeveralPools {
  std::vector<int> device;
  std::vector<std::vector<std::int64_t>> offsets;  // [devices][pools]
};

class TravelStep {
 public:
  static constexpr int kSlots = 2048;

  /// `others`: device 1 and so on. Null: the own one reads its keys over the link.
  TravelStep(const DecodeAttention& attention, int tokens_per_block,
             std::span<const AttentionRow> rows, std::span<const std::int32_t> tables,
             const SeveralPools& pools, const std::vector<const OtherDevice*>& others)
      : attention_(attention) {
    TravelRules rules;
    rules.device_of_pool = pools.device;
    rules.devices = static_cast<int>(pools.offsets.size());
    rules.tokens_per_block = tokens_per_block;
    rules.fixed_split = attention.fixed_split();
    rules.pieces_at_once = attention.pieces_at_once();
    rules.first_slot = attention.split_slots();
    rules.slots = kSlots;
    plan_travel(rows, tables.data(), rules, plan_);
    DecodePlan own;
    attention.plan(plan_.others, own);
    own.items.insert(own.items.end(), plan_.items[0].begin(), plan_.items[0].end());

    table_ = put(tables);
    call_.work = work_of(own.items, own.rows);
    const auto merges = put(std::span<const DecodeItem>(plan_.merges));
    const auto own_offsets = put(std::span<const std::int64_t>(pools.offsets[0]));
    struct Part {
      DecodeWork work;
      std::size_t offsets;
    };
    std::vector<Part> parts;
    for (std::size_t d = 1; d < pools.offsets.size(); ++d) {
      parts.push_back(
          {work_of(plan_.items[d], 0), put(std::span<const std::int64_t>(pools.offsets[d]))});
    }
    host_ = std::make_unique<DeviceArray<std::byte>>(bytes_.size(), /*pinned=*/true);
    std::memcpy(host_->data(), bytes_.data(), bytes_.size());
    inputs_ = std::make_unique<DeviceArray<std::byte>>(bytes_.size());
    check(cudaMemcpy(inputs_->data(), host_->data(), bytes_.size(), cudaMemcpyHostToDevice),
          "copy");
    workspace_ = std::make_unique<DeviceArray<std::byte>>(attention.workspace_bytes(kSlots));
    workspace_->fill(0);

    std::byte* const here = inputs_->data();
    call_.block_table = at<std::int32_t>(here, table_);
    offsets_ = at<std::int64_t>(here, own_offsets);
    move(call_.work, here);
    travel_.asked = &asked_;
    travel_.merges = at<DecodeItem>(here, merges);
    travel_.rows = static_cast<int>(plan_.merges.size());
    travel_.workspace = workspace_->data();
    for (std::size_t i = 0; i < parts.size(); ++i) {
      if (parts[i].work.launch == 0) continue;
      std::byte* const there = others[i] == nullptr ? here : others[i]->inputs();
      TravelPart part{others[i], 0, parts[i].work, at<std::int32_t>(there, table_),
                      at<std::int64_t>(there, parts[i].offsets)};
      move(part.work, there);
      travel_.parts.push_back(part);
      if (others[i] != nullptr) others[i]->upload(host_->data(), bytes_.size());
    }
  }

  const TravelPlan& plan() const { return plan_; }
  void attend(const Bf16* qkv, Bf16* out, KvLayerView kv, float scale, Stream stream,
              const AttentionRule& rule = {}) {
    kv.pool_offsets = offsets_;
    call_.qkv = qkv;
    call_.out = out;
    call_.kv = kv;
    call_.scale = scale;
    call_.rule = rule;
    let_devices_begin(travel_, stream);
    attend_over_devices(attention_, call_, travel_, stream);
  }

 private:
  template <typename T>
  std::size_t put(std::span<const T> values) {
    const std::size_t begin = (bytes_.size() + 15) / 16 * 16;
    bytes_.resize(begin + values.size_bytes());
    if (!values.empty()) std::memcpy(bytes_.data() + begin, values.data(), values.size_bytes());
    return begin;
  }
  template <typename T>
  static const T* at(std::byte* base, std::size_t offset) {
    return reinterpret_cast<const T*>(base + offset);
  }
  /// With places in the upload for addresses: move() makes addresses of them.
  DecodeWork work_of(const std::vector<DecodeItem>& items, int rows) {
    DecodeWork work;
    const auto n = static_cast<std::int32_t>(items.size());
    work.items = reinterpret_cast<const DecodeItem*>(put(std::span<const DecodeItem>(items)));
    work.n_items = reinterpret_cast<const std::int32_t*>(put(std::span<const std::int32_t>(&n, 1)));
    work.rows = rows;
    work.launch = n;
    work.more_slots = kSlots;
    return work;
  }
  static void move(DecodeWork& work, std::byte* base) {
    work.items = at<DecodeItem>(base, reinterpret_cast<std::size_t>(work.items));
    work.n_items = at<std::int32_t>(base, reinterpret_cast<std::size_t>(work.n_items));
  }

  const DecodeAttention& attention_;
  TravelPlan plan_;
  std::vector<std::byte> bytes_;  // the upload
  std::size_t table_ = 0;
  std::unique_ptr<DeviceArray<std::byte>> host_, inputs_, workspace_;
  const std::int64_t* offsets_ = nullptr;
  DecodeCall call_;
  TravelWork travel_;
  OwnedEvent asked_;
};

}  // namespace baton::cuda
