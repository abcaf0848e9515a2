// A worker of two processes whose rows begin in another worker's pool, while that one still writes
// it: both ranks read it, none before it is there, and a wait in vain is one for both. This process
// is rank 0 and the other worker.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <limits>
#include <optional>
#include <string>
#include <thread>

#include "ipc/shm_region.h"
#include "tests/cpu_torch/forked_rank.h"
#include "tests/cpu_torch/model_fixture.h"
#include "tests/support/temp_dir.h"

namespace baton::test {
namespace {

using std::chrono::milliseconds;

constexpr AllocationId kOther = 77;
constexpr std::uint32_t kSpanBlocks = 8;  // of each pool
constexpr std::size_t kBefore = 48;       // tokens in the other pool: three blocks
constexpr Term kTheirTerm = 5;
constexpr StepId kTheirStep = 9;

class RankSpans : public testing::Test {
 protected:
  /// The rank is forked before this process has any thread.
  void SetUp() override {
    options.model_folder = golden_folder() + "/models/gqa_tied_llama3";
    options.run_dir = folder / "run";
    options.name = "w";
    options.ranks = 2;
    options.rank_timeout = 300 * kMillisecond;
    ASSERT_TRUE(ensure_private_directory(options.run_dir).ok());
    child.emplace(options);
    group.emplace(options);
    group->on_lost([this](const std::string&) { ++losses; });
    pool = start(*group, "w");
    CpuExecutor::Options alone = options;
    alone.ranks = 1;
    one.emplace(alone);
    const PoolExport reference = start(*one, "one");
    geometry = reference.geometry;
    tokens = random_tokens(kBefore + 20, 60, 4);
    run(*one, step_of(0, kBefore, {0, 1, 2}, LogitsWanted::none));
    wanted = run(*one, step_of(kBefore, tokens.size(), {0, 1, 2, 3, 4}, LogitsWanted::last));
    computed =
        ShmRegion::open_readonly(reference.ranks[0].handle, *kv_pool_bytes(geometry)).value();

    other = ShmRegion::create("baton-rank-spans-" + std::to_string(::getpid()), computed.size())
                .value();
    auto* floats = reinterpret_cast<float*>(other.writable_data());
    std::fill_n(floats, other.size() / sizeof(float), std::numeric_limits<float>::quiet_NaN());
    reader = group->block_reader();
    map();
    theirs = StepProgress::create(request_of("other")).value();
    theirs.begin_term(kTheirTerm);
    group->begin_term(3);
  }
  void TearDown() override {
    mapped.reset();
    group.reset();
    child.reset();
  }

  PoolRequest request_of(const std::string& worker) const {
    PoolRequest request;
    request.run_dir = options.run_dir;
    request.worker = worker;
    request.pid = ::getpid();
    request.pid_start = pid_start_time(request.pid);
    request.allocation = make_allocation_id(worker, 1);
    request.pool_blocks = kSpanBlocks;
    request.tells_layers = true;
    return request;
  }
  PoolExport start(CpuExecutor& executor, const std::string& worker) const {
    std::atomic<int> percent{0};
    const auto shape = executor.load(percent);
    EXPECT_TRUE(shape.ok()) << shape.status().message();
    auto made = executor.allocate(request_of(worker));
    EXPECT_TRUE(made.ok()) << made.status().message();
    return std::move(made).value();
  }
  void map() {
    Pull pull;
    pull.allocation = kOther;
    pull.ranks = {{"cpu", other.name()}};
    pull.exporter_blocks = kSpanBlocks;
    auto made = reader->map(pull);
    ASSERT_TRUE(made.ok()) << made.status().message();
    mapped = std::move(made).value();
    const Status placed = reader->place(*mapped, pull);
    ASSERT_TRUE(placed.ok()) << placed.message();
  }

  RunStep step_of(std::size_t begin, std::size_t end, const std::vector<BlockId>& table,
                  LogitsWanted logits) {
    table_ = table;
    RunStep step;
    step.term = 3;
    step.step = ++steps;
    BatchRow& row = step.rows.emplace_back();
    row.tokens = std::span<const Token>(tokens).subspan(begin, end - begin);
    row.position = static_cast<std::int64_t>(begin);
    row.blocks = table_;
    row.logits = logits;
    row.sampling = &sampling;
    return step;
  }
  /// The tokens behind those in the other pool.
  RunStep rest_of_it(bool waits) {
    RunStep step = step_of(kBefore, tokens.size(), {0, 1, 2, 5, 6}, LogitsWanted::last);
    step.rows[0].before = parts_;
    step.reads_in_place = true;
    if (waits) step.waits = {{0, theirs.handle(), kTheirTerm, kTheirStep}};
    return step;
  }
  static StepOutput run(CpuExecutor& executor, const RunStep& step) {
    StepOutput output;
    output.tokens.assign(step.rows.size(), kNoToken);
    executor.launch(step);
    executor.collect(output);
    return output;
  }
  /// One layer more of the first tokens lies in the other pool.
  void write(std::uint32_t layer) {
    for (const BlockId block : {0, 1, 2}) {
      const std::uint64_t at = kv_offset(geometry, block, layer, KvPart::key, 0, 0);
      std::memcpy(other.writable_data() + at, computed.data() + at, kv_layer_stride(geometry));
    }
    theirs.written(kTheirTerm, kTheirStep, layer + 1);
  }
  void expect_wanted(const StepOutput& output) const {
    EXPECT_TRUE(output.failed.empty());
    EXPECT_EQ(output.tokens, wanted.tokens);
    EXPECT_TRUE(output.logprobs == wanted.logprobs);
  }

  TempDir folder;
  SignalFd signals;
  CpuExecutor::Options options;
  std::optional<ForkedRank> child;
  std::atomic<int> losses{0};
  std::optional<CpuExecutor> group;  // rank 0
  std::optional<CpuExecutor> one;    // a worker of one process
  PoolExport pool;                   // the group's
  KvGeometry geometry;
  std::vector<Token> tokens;
  StepOutput wanted;
  ShmRegion computed;  // the pool of `one`
  ShmRegion other;
  StepProgress theirs;
  std::unique_ptr<BlockReader> reader;
  std::unique_ptr<MappedPool> mapped;
  SamplingParams sampling = [] {
    SamplingParams params;
    params.temperature = 0;
    params.logprobs = 5;
    return params;
  }();
  StepId steps = 0;
  std::vector<BlockId> table_;
  const std::vector<TablePart> parts_ = {{kOther, 3}};
};

/// Longer for each layer than a rank that does not get on may take.
TEST_F(RankSpans, NoRankReadsALayerThatIsNotThere) {
  std::thread writer([this] {
    for (std::uint32_t layer = 0; layer < geometry.layers; ++layer) {
      std::this_thread::sleep_for(milliseconds(500));
      write(layer);
    }
  });
  const RunStep step = rest_of_it(/*waits=*/true);
  const StepOutput output = run(*group, step);
  writer.join();
  expect_wanted(output);
  EXPECT_GE(output.waited_us, 500'000U);
  EXPECT_EQ(losses, 0);
  // Whoever waits for this step in turn has all of its layers.
  EXPECT_EQ(PeerProgress().wait(pool.progress_handle, step.term, step.step, geometry.layers), "");
}

TEST_F(RankSpans, AWaitInVainIsOneForAllRanks) {
  std::thread writer([this] {
    write(0);
    std::this_thread::sleep_for(milliseconds(100));
    theirs.failed(kTheirTerm, kTheirStep);
  });
  const RunStep step = rest_of_it(/*waits=*/true);
  const StepOutput output = run(*group, step);  // no rank sees another sum than rank 0
  writer.join();
  // What was not written is NaN, of which the logits tell, too.
  EXPECT_TRUE(std::any_of(output.failed.begin(), output.failed.end(),
                          [](const FailedRow& row) { return row.waited; }));
  PeerProgress others({100 * kMillisecond, 100 * kMillisecond});
  EXPECT_NE(others.wait(pool.progress_handle, step.term, step.step, geometry.layers), "");
  // The group goes on.
  for (std::uint32_t layer = 0; layer < geometry.layers; ++layer) write(layer);
  group->begin_term(4);
  RunStep again = rest_of_it(/*waits=*/false);
  again.term = 4;
  expect_wanted(run(*group, again));
  EXPECT_EQ(losses, 0);
}

TEST_F(RankSpans, AnUnmappedPoolIsMappedAgain) {
  for (std::uint32_t layer = 0; layer < geometry.layers; ++layer) write(layer);
  expect_wanted(run(*group, rest_of_it(false)));
  mapped.reset();
  EXPECT_ANY_THROW(run(*group, rest_of_it(false))) << "rank 0 does not give it to the others";
  map();
  expect_wanted(run(*group, rest_of_it(false)));
  EXPECT_EQ(losses, 0);
}

}  // namespace
}  // namespace baton::test
