#include "workers/execute/cuda_executor.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "configs/gpu_memory.h"
#include "ipc/process.h"
#include "workers/execute/gpu_kernels.h"
#include "workers/execute/gpu_pool.h"
#include "workers/execute/gpu_shared_weights.h"
#include "workers/execute/rank_pulls.h"
#include "workers/model/error.h"
#include "workers/model/fingerprint.h"
#include "workers/model/gpu_cut.h"
#include "workers/model/gpu_formats.h"
#include "workers/model/gpu_limits.h"
#include "workers/model/gpu_shapes.h"
#include "workers/pool/cuda_sums.h"
#include "workers/sampling/gpu_results.h"

namespace baton {

namespace {

/// A step's upload: about 100 bytes a token, 28 a piece of attention, 4 a block of a table.
constexpr std::size_t kInputBytes = 32 << 20;
constexpr int kMaxWanted = 512;
/// Of worker.in_place_keys.
constexpr std::uint32_t kAllInPlace = std::numeric_limits<std::int32_t>::max();
/// For rows that the host finishes.
constexpr int kMaxSamplingThreads = 8;

/// Lists that find no room send a row to the host.
bool may_need_host(const BatchRow& row) {
  return GpuStepPacker::needs_host(row) || row.holds_next_step();
}

/// The longest prompt whose chunks gather their keys: the longest that is served, unless a layer's
/// keys and values are more than this part of the GPU's memory.
std::int64_t gathered_keys(const ModelConfig& c, std::uint32_t max_context, std::size_t memory) {
  constexpr std::size_t kPart = 16;
  const std::int64_t context =
      max_context == 0 ? c.max_context : std::min<std::int64_t>(c.max_context, max_context);
  return std::min(context, static_cast<std::int64_t>(memory / kPart / gathered_key_bytes(c)));
}

std::string mib(std::uint64_t bytes) { return std::to_string(bytes >> 20U) + " MiB"; }

}  // namespace

struct CudaExecutor::Lane {
  Lane(const GpuDecoder& decoder, int max_rows, RowSamplingPool& sampling,
       const cuda::OwnedStream& stream)
      : inputs(kInputBytes),
        tokens(static_cast<std::size_t>(max_rows) * sizeof(std::int32_t)),
        logprobs(static_cast<std::size_t>(max_rows) * sizeof(cuda::TokenLogprobs)),
        host_rows(static_cast<std::uint32_t>(decoder.config().vocab), sampling, stream) {
    if (const cuda::PrefillAttention* prefill = decoder.prefill_attention()) {
      plan_ints = cuda::PinnedMemory(prefill->int_workspace_bytes());
      plan = prefill->make_plan();
    }
    if (const cuda::PrefillAttention* near = decoder.near_prefill_attention()) {
      near_plan_ints = cuda::PinnedMemory(near->int_workspace_bytes());
      near_plan = near->make_plan();
    }
  }
  int index = 0;
  cuda::PinnedMemory inputs;
  cuda::PinnedMemory plan_ints;
  cuda::PinnedMemory tokens;    // what the step sampled, by row
  cuda::PinnedMemory logprobs;  // by line of logits
  cuda::PrefillAttention::PlanPtr plan;
  cuda::PinnedMemory near_plan_ints;  // of layers with the nearer window
  cuda::PrefillAttention::PlanPtr near_plan;
  CudaSums sums;
  cuda::OwnedEvent ended;
  GpuHostRows host_rows;
  std::vector<bool> on_host;  // by row
  std::vector<GpuStepPacker::Line> late;
  std::size_t told_lines = 0;
  const RunStep* step = nullptr;
  TimeNs launched = 0;   // of several ranks
  bool travels = false;  // other devices take part
  GpuProgress::OfStep progress;
  GpuBatch::OnKeys on_keys;
};

CudaExecutor::CudaExecutor(Options options) : options_(std::move(options)) {}

CudaExecutor::~CudaExecutor() {
  // Nothing may be freed under a running kernel. A device that failed is of no use to anybody.
  try {
    if (stream_) stream_->synchronize();
  } catch (const cuda::CudaError&) {
  }
}

// ---------------------------------------------------------------- start

Result<ModelShape> CudaExecutor::load(std::atomic<int>& percent) {
  try {
    return load_model(percent);
  } catch (const ModelError& e) {
    return invalid(e.what());
  } catch (const std::invalid_argument& e) {
    return invalid(e.what());
  } catch (const ModelChanged& e) {
    return Status(ErrorCode::unavailable, e.what());
  } catch (const cuda::CudaError& e) {
    return Status(ErrorCode::internal, e.what());
  }
}

/// auto spreads the workers over the GPUs in turn; those that meet on one share its memory.
void CudaExecutor::choose_device() {
  if (options_.gpu == "auto") {
    const int gpus = std::max(cuda::device_count(), 1);
    const int here = (options_.index + options_.rank) % gpus;
    const int neighbours = options_.count / gpus + (here < options_.count % gpus ? 1 : 0);
    options_.gpu = std::to_string(here);
    options_.memory_fraction /= std::max(neighbours, 1);
  }
  device_ = cuda::use_device(options_.gpu);
  memory_socket_ = options_.run_dir + "/" + gpu_memory_name(options_.gpu) + ".sock";
  if (!options_.wants_mps) return;
  if (device_.mps) {
    spdlog::info("MPS: {} multiprocessors of {} for this worker", device_.multiprocessors,
                 device_.name);
  } else {
    spdlog::warn("no MPS runs for {}: mps_thread_percentage and mps_priority have no effect",
                 device_.name);
  }
}

ModelShape CudaExecutor::load_model(std::atomic<int>& percent) {
  const TimeNs begin = now_ns();
  choose_device();
  stream_ = std::make_unique<cuda::OwnedStream>();
  ModelConfig config = load_model_config(options_.model_folder);
  check_gpu_limits(config);
  meet_ranks(config);
  const GpuCut cut = options_.cut();
  std::unique_ptr<const Checkpoint> checkpoint;
  if (!options_.dummy_weights) checkpoint = std::make_unique<Checkpoint>(options_.model_folder);
  const cuda::MemoryInfo memory = cuda::memory_info();
  ContentDigest content;
  if (checkpoint != nullptr) {
    content = content_digest(*checkpoint, {options_.run_dir, 0});
    spdlog::info("{}", to_text(content));
  }
  const std::uint64_t fingerprint = checkpoint == nullptr
                                        ? model_fingerprint(config)
                                        : model_fingerprint(config, *checkpoint, content);
  const GpuFormats::Summary formats = GpuFormats(config, checkpoint.get(), cut).summary();
  weights_name_ = formats.most();
  const TimeNs asked = now_ns();
  BroughtWeights brought = bring_gpu_weights({options_.process_name(), memory_socket_, &config,
                                              checkpoint.get(), fingerprint, device_, cut},
                                             percent);
  checkpoint.reset();
  weights_link_ = std::move(brought.link);
  if (brought.unmappable) memory_socket_.clear();
  const TimeNs loaded = now_ns();
  GpuDecoder::Options o;
  o.max_rows = static_cast<int>(options_.max_step_tokens);
  o.max_wanted = std::min(o.max_rows, kMaxWanted);
  o.max_table = static_cast<int>(kInputBytes / sizeof(std::int32_t));
  o.tokens_per_block = static_cast<int>(options_.tokens_per_block);
  if ((options_.elastic && reads_in_place()) || config.latent.rank > 0)
    o.gathered_keys =
        gathered_keys(config_of_rank(config, cut), options_.max_context, memory.total);
  o.kv_groups = options_.kv_groups;
  o.deterministic = options_.deterministic;
  o.chain = options_.chain;
  o.cut = cut;
  o.kv_repeats = kv_repeats(config, cut);
  all_kv_heads_ = config.pool_heads();
  if (group_ != nullptr) o.exchange = meet_devices(config.hidden);
  decoder_ =
      std::make_unique<GpuDecoder>(config_of_rank(config, cut), std::move(brought.weights), o);
  const TimeNs made = now_ns();
  if (group_ != nullptr) {
    choose_kernels_alike();
  } else {
    choose_kernels(*decoder_, {options_.run_dir, device_, o, options_.tokens_per_block},
                   stream_->get());
  }
  const auto seconds = [](TimeNs from, TimeNs to) { return 1e-9 * static_cast<double>(to - from); };
  spdlog::info(
      "{} ({}): ready in {:.2f} s, weights {} {} in {:.2f} s, workspace {} in {:.2f} s, kernels "
      "chosen in {:.2f} s",
      device_.name, device_.uuid, seconds(begin, asked), mib(decoder_->weight_bytes()),
      brought.mapped ? "mapped" : "loaded", seconds(asked, loaded),
      mib(decoder_->workspace_bytes()), seconds(loaded, made), seconds(made, now_ns()));
  if (!formats.text().empty()) spdlog::info("quantised weights: {}", formats.text());
  spdlog::debug("{}", decoder_->linears_report());

  const ModelConfig& c = decoder_->config();
  shape_ = {};
  shape_.model_fingerprint = fingerprint;
  shape_.dtype = KvDtype::bf16;
  shape_.layers = decoder_->kv_plan().layers_in_block;
  shape_.groups = decoder_->kv_plan().groups;
  shape_.kv_heads = static_cast<std::uint32_t>(c.pool_heads());
  shape_.head_dim = static_cast<std::uint32_t>(c.pool_dim());
  shape_.tokens_per_block = options_.tokens_per_block;
  ModelShape shape;
  shape.geometry = shape_;
  for (const KvPlan::Place& place : decoder_->kv_plan().places) {
    shape.layer_groups.push_back(place.group);
  }
  shape.max_context = static_cast<std::uint32_t>(c.max_context);
  shape.vocab_size = static_cast<std::uint32_t>(c.vocab);
  shape.max_step_tokens = options_.max_step_tokens;
  grammars_ = std::make_unique<GrammarMasks>(options_.model_folder, shape.vocab_size,
                                             GrammarMasks::Options(), on_grammar_);
  const int cores =
      static_cast<int>(std::thread::hardware_concurrency()) / std::max(options_.count, 1);
  mask_of_row_ = [this](std::size_t row) { return grammars_->wait(row); };
  sampling_ = std::make_unique<RowSamplingPool>(std::clamp(cores / 2, 1, kMaxSamplingThreads),
                                                mask_of_row_);
  shape.facts.weights = weights_name_;
  shape.facts.weight_bytes = decoder_->weight_bytes();
  shape.facts.weight_copy = brought.copy;
  shape.facts.free_bytes = memory.free;
  percent = 100;
  return shape;
}

Result<PoolExport> CudaExecutor::allocate(const PoolRequest& request) {
  if (group_ == nullptr) return allocate_now(request);
  // What fails on one rank is final for all: none could begin again where the others are.
  Result<PoolExport> made = Status(ErrorCode::unavailable, "");
  try {
    made = allocate_now(request);
  } catch (const std::exception& e) {
    made = Status(ErrorCode::unavailable, e.what());
  }
  if (!made.ok()) ranks_.tell_lost(made.status().message());
  return made;
}

Result<PoolExport> CudaExecutor::allocate_now(const PoolRequest& request) {
  GpuPoolRequest gpu;
  gpu.shape = shape_;
  gpu.memory_fraction = options_.memory_fraction;
  gpu.weight_bytes = decoder_->weight_bytes();
  gpu.workspace_bytes = decoder_->workspace_bytes();
  gpu.other_bytes = inputs_.bytes() + (exchange_ ? exchange_->bytes() : 0);
  gpu.weights = weights_name_;
  gpu.memory_socket = memory_socket_;
  gpu.neighbours = options_.neighbours;
  GpuPool made;
  try {
    auto pool = make_pool(request, gpu);
    if (!pool.ok()) return pool.status();
    made = std::move(pool).value();
    pool_ = std::move(made.pool);
    pools_ =
        std::make_shared<PoolNumbers>(made.allocation, pool_->data(), pool_->geometry().blocks);
    copies_ = std::make_unique<CudaCopies>(*pool_, device_.multiprocessors, kSteps);
  } catch (const cuda::CudaError& e) {
    return Status(ErrorCode::unavailable, e.what());
  }
  const KvGeometry& g = pool_->geometry();
  decoder_->set_pool(pool_->data(), g);
  packer_ = std::make_unique<GpuStepPacker>(*decoder_, g);
  late_rows_ = std::make_unique<GpuLateRows>(*decoder_, *packer_, *stream_);
  if (reads_in_place()) {
    if (options_.in_place_keys < kAllInPlace && packer_->may_travel())
      holders_ = std::make_shared<HolderDevices>(
          device_.ordinal, kInputBytes,
          [&attention = decoder_->decode_attention()] { attention.load_over_pools(); });
    const auto make_travel = [&] {
      return std::make_unique<GpuTravel>(*decoder_, pools_, holders_, options_.in_place_keys,
                                         g.block_bytes / g.tokens_per_block);
    };
    travel_ = make_travel();
    if (group_ != nullptr && holders_ && !all_have_room_to_travel()) {
      holders_.reset();
      travel_ = make_travel();
    }
  }
  inputs_ = cuda::DeviceMemory(kInputBytes);
  for (auto& lane : lanes_) {
    lane = std::make_unique<Lane>(*decoder_, static_cast<int>(options_.max_step_tokens), *sampling_,
                                  *stream_);
  }
  if (options_.time_steps) timer_ = std::make_unique<cuda::StepTimer>();
  plan_graphs();
  // Streams wait for a worker that comes back to its pool: its graphs are recorded as steps need
  // them.
  if (!made.kept) record_graphs();
  if (request.tells_layers && reads_in_place()) progress_.create(request);
  if (group_ != nullptr) {
    progress_.while_waiting([&live = group_->collective().progress()] {
      live.fetch_add(1, std::memory_order_relaxed);
    });
    progress_.void_if(group_->memory().head().aborted);
  }
  return PoolExport{g,
                    gather_handles(),
                    pool_->host_part().handle(),
                    pool_->host_part().geometry().blocks,
                    copies_->measure_host_block_us(stream_->get()),
                    progress_.handle(),
                    made.allocation,
                    std::move(made.lease)};
}

/// The rows that a decode step of `rows` rows is filled up to; 0: none was recorded for so many.
int CudaExecutor::graph_rows(int rows) const {
  const auto it = graphs_.lower_bound(rows);
  return it == graphs_.end() ? 0 : it->first;
}

/// For which numbers of rows there are graphs.
void CudaExecutor::plan_graphs() {
  graphs_.clear();
  const int most = static_cast<int>(options_.max_decode_rows);
  for (int rows = 1; rows <= most;) {
    graphs_[rows] = cuda::Graph();
    rows = rows < 8 ? rows + 1 : rows < 32 ? rows + 4 : rows < 64 ? rows + 8 : rows + 16;
  }
}

void CudaExecutor::record_graphs() {
  const TimeNs begin = now_ns();
  Lane& lane = *lanes_[0];
  for (auto& [rows, graph] : graphs_) {
    const auto packed =
        packer_->pack_nothing(rows, lane.inputs.data(), inputs_.data(), kInputBytes);
    cuda::copy_to_device(inputs_.data(), lane.inputs.data(), packed.bytes, stream_->get());
    // Once for real: what a library sets up at its first call must not be recorded.
    decoder_->run(packed.batch, stream_->get());
    stream_->synchronize();
    graph = record_graph(packed.batch);
  }
  spdlog::info("{} graphs of decode steps recorded in {:.1f} s", graphs_.size(),
               1e-9 * static_cast<double>(now_ns() - begin));
}

cuda::Graph CudaExecutor::record_graph(const GpuBatch& batch) {
  return cuda::Graph::record(stream_->get(), [&] { decoder_->run(batch, stream_->get()); });
}

std::unique_ptr<BlockReader> CudaExecutor::block_reader() {
  CudaBlockReader::Options options;
  options.run_dir = options_.run_dir;
  options.cut = options_.cut();
  options.kv_heads = all_kv_heads_;
  if (reads_in_place()) {
    options.pools = pools_;
    options.holders = holders_;
  }
  auto own = std::make_unique<CudaBlockReader>(*pool_, device_, std::move(options));
  if (group_ == nullptr || options_.rank != 0) return own;
  return std::make_unique<RankBlockReader>(std::move(own), group_->pulls(),
                                           RankBlockReader::Copies::by_all,
                                           [this](const RankLost& lost) { ranks_.lose(lost); });
}

// ---------------------------------------------------------------- steps

void CudaExecutor::launch(const RunStep& step) {
  const int index = (oldest_ + n_launched_) % kSteps;
  Lane& lane = *lanes_[index];
  lane.index = index;
  lane.step = &step;
  lane.host_rows.begin(step);
  grammars_->begin(step);  // goes on while the forward pass runs
  if (timer_ && (!step.copies.empty() || step.rows.empty())) timer_->begin(stream_->get());
  copies_->queue(step.copies, index, stream_->get());
  if (!step.rows.empty()) {
    launch_rows(step, lane);
  } else if (group_ != nullptr) {
    hand_on(step, 0, {}, nullptr);
    decoder_->meet(stream_->get());
  }
  lane.sums.queue(*pool_, step.summed, stream_->get());
  if (timer_) timer_->end(stream_->get());
  lane.ended.record(stream_->get());
  lane.launched = now_ns();
  ++n_launched_;
}

GpuStepPacker::Packed CudaExecutor::pack(const RunStep& step, int padded, Lane& lane) {
  std::byte* const host = lane.inputs.data();
  if (!step.reads_in_place) {
    return packer_->pack(step, padded, host, inputs_.data(), kInputBytes);
  }
  return packer_->pack(resolved_.resolve(step, *pools_), padded, host, inputs_.data(), kInputBytes,
                       &travel_->pools(lane.index, GpuStepPacker::decodes_only(step)));
}

void CudaExecutor::launch_rows(const RunStep& step, Lane& lane) {
  const auto n = static_cast<int>(step.rows.size());
  const bool graphs = GpuStepPacker::decodes_only(step) && !dump_ && !step.reads_in_place;
  int padded = graphs ? graph_rows(n) : 0;
  // A recorded step shows its logits at its end alone.
  if (padded > decoder_->max_wanted() &&
      std::any_of(step.rows.begin(), step.rows.end(), may_need_host)) {
    padded = 0;
  }
  auto packed = pack(step, padded, lane);
  // Plans with more tokens are refused before they come here (SequenceTable).
  if (packed.too_large || packed.batch.rows > static_cast<int>(options_.max_step_tokens)) {
    throw std::logic_error("a step of " + std::to_string(packed.batch.rows) +
                           " tokens has no room in the workspace of " +
                           std::to_string(options_.max_step_tokens) + " or in the upload");
  }
  if (group_ != nullptr) hand_on(step, padded, packed, lane.inputs.data());
  // Packing is over: from here on the device has work.
  if (timer_ && step.copies.empty()) timer_->begin(stream_->get());
  cuda::copy_to_device(inputs_.data(), lane.inputs.data(), packed.bytes, stream_->get());
  if (step.reads_in_place) {
    travel_->begin(packed, lane.inputs.data(), inputs_.data(), GpuStepPacker::decodes_only(step),
                   lane.index, stream_->get());
  }
  lane.travels = packed.batch.travel != nullptr;
  auto next_line = packer_->host_lines().begin();
  const auto to_host = [&](int first, int count, const float* logits) {
    if (dump_) show_logits(logits, count);
    for (; next_line != packer_->host_lines().end() && next_line->at < first + count; ++next_line) {
      lane.host_rows.copy(next_line->line,
                          logits + std::int64_t{next_line->at - first} * decoder_->config().vocab);
    }
  };
  progress_.begin(lane.progress, step, decoder_->config().layers);
  if (!step.waits.empty() || (progress_.tells() && !GpuStepPacker::decodes_only(step))) {
    lane.on_keys = [this, &lane](int layer) { before_attention(lane, layer); };
    packed.batch.on_keys = &lane.on_keys;
  }
  queue_rows(packed.batch, padded, packer_->chunks(), lane, to_host);
  if (group_ != nullptr && packed.batch.on_keys != nullptr)
    progress_.tell(lane.progress, static_cast<std::uint32_t>(decoder_->config().layers),
                   stream_->get());
  if (step.reads_in_place) travel_->end(lane.index, stream_->get());
  lane.on_host = packer_->on_host();
  lane.late = packer_->late_lines();
  lane.told_lines = packer_->told_lines();
  fetch_results(lane);
}

/// A layer's keys and values are queued. A rank joins a layer's exchange behind its own keys of
/// that layer. So rank 0 of several tells a layer when it has had the exchange, and the last one at
/// the step's end. It comes to a meeting when its waits have ended, since no rank may read before
/// that.
void CudaExecutor::before_attention(Lane& lane, int layer) {
  const auto before = static_cast<std::uint32_t>(layer);
  if (group_ != nullptr) progress_.tell(lane.progress, before, stream_->get());
  progress_.await(lane.progress, before + 1);
  if (group_ == nullptr) return progress_.tell(lane.progress, before + 1, stream_->get());
  if (!lane.step->waits.empty()) decoder_->meet(stream_->get());
}

/// The forward pass of rows that were uploaded. Every rank runs this for the same steps in the same
/// order, so that all of them record the same graphs.
void CudaExecutor::queue_rows(GpuBatch batch, int padded,
                              std::span<const cuda::AttentionRow> chunks, Lane& lane,
                              const GpuDecoder::LogitsUse& use) {
  cuda::Graph* const graph = padded > 0 ? &graphs_.at(padded) : nullptr;
  if (graph != nullptr) {
    if (*graph) {
      graph->launch(stream_->get());
    } else {
      decoder_->run(batch, stream_->get());
    }
    if (use) use(0, batch.wanted, decoder_->logits());
    if (!*graph) *graph = record_graph(batch);  // every address in it depends on `padded` alone
    return;
  }
  if (!chunks.empty()) {
    decoder_->prefill_attention()->plan(chunks, *lane.plan, decoder_->prefill_float_workspace(),
                                        decoder_->prefill_int_workspace(), lane.plan_ints.data(),
                                        stream_->get(), /*gather=*/batch.pool_offsets != nullptr);
    batch.chunks = lane.plan.get();
    if (const cuda::PrefillAttention* near = decoder_->near_prefill_attention()) {
      near->plan(chunks, *lane.near_plan, decoder_->near_prefill_float_workspace(),
                 decoder_->near_prefill_int_workspace(), lane.near_plan_ints.data(),
                 stream_->get());
      batch.near_chunks = lane.near_plan.get();
    }
  }
  decoder_->run(batch, stream_->get(), use);
}

/// A step of rank 0's, on this rank's device.
void CudaExecutor::follow_on(const GpuRankStep& step, int index) {
  Lane& lane = *lanes_[index];
  wait_for_end(lane);  // of the step before the last one: its buffers are used again
  copies_->queue(step.copies, index, stream_->get());
  if (step.batch.rows > 0) {
    if (step.input_bytes > kInputBytes) throw std::logic_error("a step of rank 0 has no room here");
    std::memcpy(lane.inputs.data(), step.inputs, step.input_bytes);
    GpuBatch batch = moved(step.batch, step.base, inputs_.data());
    cuda::TravelWork travel = step.travel;
    find_pools(step, travel, lane.inputs.data());
    cuda::copy_to_device(inputs_.data(), lane.inputs.data(), step.input_bytes, stream_->get());
    lane.travels = !travel.parts.empty();
    if (lane.travels) {
      travel_->send(travel, lane.inputs.data(), step.input_bytes, inputs_.data(), stream_->get());
      batch.travel = &travel;
    }
    const GpuBatch::OnKeys meet = [this](int) { decoder_->meet(stream_->get()); };
    if (step.awaits) batch.on_keys = &meet;
    queue_rows(batch, step.padded, step.chunks, lane, {});
  } else {
    decoder_->meet(stream_->get());
  }
  lane.ended.record(stream_->get());
  lane.launched = now_ns();
}

Status CudaExecutor::dump_activations(ActivationDump dump) {
  if (group_ != nullptr) return invalid("a worker of several ranks shows no activations");
  dump_ = std::move(dump);
  decoder_->set_dump({});
  if (!dump_) return {};
  decoder_->set_dump(
      [this](const std::string& part, const cuda::Bf16* values, int rows, int columns) {
        const auto n = static_cast<std::size_t>(rows) * static_cast<std::size_t>(columns);
        std::vector<cuda::Bf16> stored(n);
        cuda::copy_to_host(stored.data(), values, n * sizeof(cuda::Bf16), stream_->get());
        stream_->synchronize();
        std::vector<float> shown(n);
        std::transform(stored.begin(), stored.end(), shown.begin(), [](cuda::Bf16 value) {
          return std::bit_cast<float>(std::uint32_t{value.bits} << 16U);
        });
        dump_(part, shown.data(), rows, columns);
      });
  return {};
}

void CudaExecutor::show_logits(const float* logits, int rows) {
  const int vocab = decoder_->config().vocab;
  std::vector<float> shown(static_cast<std::size_t>(rows) * static_cast<std::size_t>(vocab));
  cuda::copy_to_host(shown.data(), logits, shown.size() * sizeof(float), stream_->get());
  stream_->synchronize();
  dump_("logits", shown.data(), rows, vocab);
}

/// Tokens and log probabilities that the device found.
void CudaExecutor::fetch_results(Lane& lane) {
  cuda::copy_to_host(lane.tokens.data(), decoder_->sampled(),
                     lane.step->rows.size() * sizeof(std::int32_t), stream_->get());
  if (lane.told_lines == 0) return;
  cuda::copy_to_host(lane.logprobs.data(), decoder_->logprobs(),
                     lane.told_lines * sizeof(cuda::TokenLogprobs), stream_->get());
}

/// Of several ranks: kernels wait without an end, so the host does not.
bool CudaExecutor::overdue(const Lane& lane) const {
  return group_ != nullptr && now_ns() - lane.launched > options_.rank_timeout + kMostStepTime;
}

/// A step of several ranks ends when all of them have come.
void CudaExecutor::wait_for_end(const Lane& lane) {
  if (group_ == nullptr) {
    // Its end waits for the other devices, too, and would for one that failed.
    if (lane.travels && !lane.ended.ended()) travel_->look();
    return lane.ended.synchronize();
  }
  constexpr auto kNap = std::chrono::microseconds(20);
  constexpr TimeNs kAwake = 20 * kMillisecond;
  const TimeNs began = now_ns();
  while (!lane.ended.ended()) {
    if (overdue(lane)) {
      ranks_.tell_lost("a step of several ranks does not end");
      Collective::abort(group_->memory(), options_.rank, /*silent=*/true);
      throw RankLost(options_.rank, true);
    }
    if (lane.travels) travel_->look();
    group_->collective().progress().fetch_add(1, std::memory_order_relaxed);  // it lives
    if (now_ns() - began > kAwake) std::this_thread::sleep_for(kNap);
  }
  // Kernels that were told to wait no longer have left numbers that nobody computed.
  if (const auto lost = Collective::loss(group_->memory())) {
    ranks_.tell_lost(lost->what());
    throw RankLost(*lost);
  }
}

void CudaExecutor::look_at_device() const {
  for (const auto& lane : lanes_) static_cast<void>(lane->ended.ended());
}

bool CudaExecutor::finished() {
  // A failed device throws: collect() will say so in the caller's own way.
  const Lane& lane = *lanes_[oldest_];
  try {
    if (lane.ended.ended()) return true;
    if (lane.travels) travel_->look();
    return overdue(lane);
  } catch (const cuda::CudaError&) {
    return true;
  }
}

void CudaExecutor::collect(StepOutput& output) {
  Lane& lane = *lanes_[oldest_];
  oldest_ = (oldest_ + 1) % kSteps;
  --n_launched_;
  wait_for_end(lane);
  output.sums = lane.sums.take();
  if (timer_) {
    const auto times = timer_->take();
    output.idle_us = times.idle_us;
    output.run_us = times.run_us;
  }
  if (!lane.late.empty()) {
    // No step was launched behind this one: its logits are still there.
    late_rows_->draw(*lane.step, lane.late, mask_of_row_, lane.on_host, output);
    lane.late.clear();
    fetch_results(lane);
    stream_->synchronize();
  }
  take_results(*lane.step, lane.on_host, reinterpret_cast<const std::int32_t*>(lane.tokens.data()),
               reinterpret_cast<const cuda::TokenLogprobs*>(lane.logprobs.data()),
               lane.host_rows.finish(), output);
  if (!lane.step->rows.empty()) lane.progress.awaited.tell(output);
}

}  // namespace baton
