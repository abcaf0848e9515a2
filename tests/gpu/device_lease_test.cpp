// Memory of a GPU that outlives its workers, with real processes: the memory process, workers that
// are killed with kernels under way, those who come after them, and importers. This process makes
// no CUDA call: each of the others is forked from it, and begins with CUDA itself.
#include <gtest/gtest.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <thread>
#include <vector>

#include "ipc/packet_socket.h"
#include "ipc/process.h"
#include "ipc/spoiled.h"
#include "memory/cuda_allocator.h"
#include "memory/memory_loop.h"
#include "tests/gpu/bad_kernels.h"
#include "workers/cuda/device.h"
#include "workers/execute/gpu_shared_weights.h"
#include "workers/pool/cuda_sums.h"
#include "workers/pool/lease_client.h"

namespace baton {
namespace {

constexpr std::uint64_t kBlockBytes = 1U << 20U;
constexpr std::uint32_t kBlocks = 64;
constexpr std::size_t kWords = 132 * 256;

/// A forked process.
class Child {
 public:
  using Body = std::function<void(Child&)>;
  explicit Child(const Body& body) {
    EXPECT_EQ(::pipe(up_), 0);
    EXPECT_EQ(::pipe(down_), 0);
    pid_ = ::fork();
    if (pid_ != 0) return;
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    try {
      body(*this);
    } catch (const std::exception& e) {
      std::fprintf(stderr, "child: %s\n", e.what());
      ::_exit(1);
    }
    ::_exit(0);
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  ~Child() {
    kill();
    for (const int fd : {up_[0], up_[1], down_[0], down_[1]}) ::close(fd);
  }
  void kill() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }
  pid_t pid() const { return pid_; }
  void forget() { pid_ = 0; }  // it was waited for
  // The child's side.
  void tell(std::uint64_t n) { EXPECT_EQ(::write(up_[1], &n, sizeof n), ssize_t{sizeof n}); }
  void await() {
    char byte = 0;
    if (::read(down_[0], &byte, 1) != 1) ::_exit(2);
  }
  // The test's.
  std::uint64_t hear() {
    std::uint64_t n = 0;
    pollfd poll{up_[0], POLLIN, 0};
    EXPECT_EQ(::poll(&poll, 1, 30'000), 1) << "the child is silent";
    if (poll.revents != 0) {
      EXPECT_EQ(::read(up_[0], &n, sizeof n), ssize_t{sizeof n});
    }
    return n;
  }
  void go_on() { EXPECT_EQ(::write(down_[1], "x", 1), 1); }

 private:
  pid_t pid_ = 0;
  int up_[2];
  int down_[2];
};

class DeviceLease : public testing::Test {
 protected:
  DeviceLease() {
    std::string folder = std::filesystem::temp_directory_path() / "baton-lease-XXXXXX";
    run_dir = ::mkdtemp(folder.data());
    start_memory();
  }
  ~DeviceLease() override {
    memory.reset();
    std::filesystem::remove_all(run_dir);
  }
  void start_memory() {
    memory = std::make_unique<Child>([this](Child& self) {
      SignalFd signals;
      const auto lock = LockFile::acquire(run_dir + "/memory-gpu0.lock");
      auto device = make_cuda_allocator("0");
      if (!device.ok()) throw std::runtime_error(device.status().message());
      auto listening = listen_packets(lock.value(), socket());
      self.tell(1);
      MemoryLoop(run_dir, "memory-gpu0", std::move(listening).value(), *device.value())
          .run(signals);
    });
    EXPECT_EQ(memory->hear(), 1U);
  }
  std::string socket() const { return run_dir + "/memory-gpu0.sock"; }
  LeasedPool lease(Incarnation incarnation, std::uint32_t blocks = kBlocks) const {
    Lease ask;
    ask.worker = "decode0";
    ask.incarnation = incarnation;
    ask.allocation = 100 + incarnation;
    ask.key.block_bytes = kBlockBytes;
    ask.blocks = blocks;
    auto leased = lease_pool(socket(), ask, {0, 10 * kSecond});
    if (!leased.ok()) throw std::runtime_error(leased.status().message());
    return std::move(leased).value();
  }
  static std::vector<std::uint32_t> read_words(const cuda::DeviceMemory& memory) {
    std::vector<std::uint32_t> words(kWords);
    const cuda::OwnedStream stream;
    cuda::copy_to_host(words.data(), memory.data(), kWords * sizeof(std::uint32_t), stream.get());
    stream.synchronize();
    return words;
  }
  static std::uint64_t sum(const std::vector<std::uint32_t>& words) {
    std::uint64_t sum = 0;
    for (const std::uint32_t word : words) sum += word;
    return sum;
  }

  std::string run_dir;
  std::unique_ptr<Child> memory;
};

/// The younger process has its CUDA ready and asks while the older one writes; what it reads first
/// is what it reads later.
TEST_F(DeviceLease, KernelsOfADeadProcessAreGoneBeforeTheLeasePassesOn) {
  std::vector<double> ms;
  for (Incarnation turn = 1; turn <= 20; turn += 2) {
    Child older([&](Child& self) {
      cuda::use_device("0");
      const LeasedPool leased = lease(turn);
      const auto pool = cuda::DeviceMemory::import(leased.answer.device_handle,
                                                   std::uint64_t{kBlocks} * kBlockBytes);
      const cuda::OwnedStream stream;
      cuda::write_endlessly(pool.as<std::uint32_t>(), kWords, stream.get());
      const std::uint64_t first = sum(read_words(pool));
      while (sum(read_words(pool)) == first) {
      }
      self.tell(1);
      ::pause();
    });
    ASSERT_EQ(older.hear(), 1U);
    Child younger([&](Child& self) {
      cuda::use_device("0");
      const cuda::OwnedStream warm;
      self.tell(1);
      const LeasedPool leased = lease(turn + 1);
      const TimeNs got = now_ns();
      const auto pool = cuda::DeviceMemory::import(leased.answer.device_handle,
                                                   std::uint64_t{kBlocks} * kBlockBytes);
      const auto first = read_words(pool);
      std::this_thread::sleep_for(std::chrono::milliseconds(300));
      const auto later = read_words(pool);
      self.tell(leased.answer.kept ? 1 : 0);
      self.tell(static_cast<std::uint64_t>(got));
      self.tell(first == later ? 1 : 0);
      self.tell(sum(first));
    });
    ASSERT_EQ(younger.hear(), 1U);
    std::this_thread::sleep_for(std::chrono::milliseconds(100));  // it asks, and waits
    const TimeNs killed = now_ns();
    older.kill();
    EXPECT_EQ(younger.hear(), 1U) << "kept";
    ms.push_back(static_cast<double>(static_cast<TimeNs>(younger.hear()) - killed) / 1e6);
    EXPECT_EQ(younger.hear(), 1U) << "somebody wrote after the lease had passed on";
    EXPECT_GT(younger.hear(), 0U) << "what the older one wrote is there";
  }
  std::sort(ms.begin(), ms.end());
  std::printf("from the kill to the next lease: %.0f ms (median), %.0f at most\n",
              ms[ms.size() / 2], ms.back());
}

/// Freed memory may be another pool's at once: so it is not freed before importers have let go.
TEST_F(DeviceLease, WhoHasAPoolMappedReadsOnWhenItIsGivenUp) {
  Child older([&](Child& self) {
    cuda::use_device("0");
    const LeasedPool leased = lease(1);
    const std::uint64_t bytes = std::uint64_t{kBlocks} * kBlockBytes;
    const auto pool = cuda::DeviceMemory::import(leased.answer.device_handle, bytes);
    const cuda::OwnedStream stream;
    cuda::fill_bytes(pool.data(), 7, bytes, stream.get());
    stream.synchronize();
    self.tell(1);
    ::pause();
  });
  ASSERT_EQ(older.hear(), 1U);
  Child importer([&](Child& self) {
    cuda::use_device("0");
    const std::uint64_t bytes = std::uint64_t{kBlocks} * kBlockBytes;
    const LeasedPool leased = lease(1);  // the same process's again: the handle is the pool's
    const auto hold = hold_mapping(socket(), leased.answer.device_handle);
    const auto pool = cuda::DeviceMemory::import(leased.answer.device_handle, bytes);
    const std::uint64_t before = sum_of_memory(pool.data(), bytes);
    self.tell(1);
    for (;;) {
      self.await();
      self.tell(sum_of_memory(pool.data(), bytes) == before ? 1 : 0);
    }
  });
  ASSERT_EQ(importer.hear(), 1U);
  older.kill();
  // The second has another size, the third that of the first again.
  for (Incarnation turn = 2; turn < 6; ++turn) {
    Child younger([&](Child& self) {
      cuda::use_device("0");
      const LeasedPool leased =
          lease(turn, kBlocks + static_cast<std::uint32_t>(turn % 2 == 0 ? 1 : 0));
      self.tell(leased.answer.kept ? 0 : 1);
      ::pause();
    });
    EXPECT_EQ(younger.hear(), 1U) << "fresh";
    importer.go_on();
    EXPECT_EQ(importer.hear(), 1U) << "it reads something else, turn " << turn;
  }
}

TEST_F(DeviceLease, APoolStaysMappedWhenTheMemoryProcessDies) {
  Child worker([&](Child& self) {
    cuda::use_device("0");
    const LeasedPool leased = lease(1);
    const std::uint64_t bytes = std::uint64_t{kBlocks} * kBlockBytes;
    const auto pool = cuda::DeviceMemory::import(leased.answer.device_handle, bytes);
    const cuda::OwnedStream stream;
    for (int value = 1;; ++value) {
      cuda::fill_bytes(pool.data(), value, bytes, stream.get());
      stream.synchronize();
      const auto words = read_words(pool);
      const auto byte = static_cast<std::uint32_t>(value);
      self.tell(words[0] == byte * 0x01010101U && words.back() == words[0] ? 1 : 0);
      self.await();
    }
  });
  EXPECT_EQ(worker.hear(), 1U);
  memory->kill();
  for (int i = 0; i < 3; ++i) {
    worker.go_on();
    EXPECT_EQ(worker.hear(), 1U);
  }
  start_memory();
  worker.go_on();
  EXPECT_EQ(worker.hear(), 1U);
}

/// The failed context is the dead worker's alone: the memory process goes on, and so does who has
/// the pool mapped.
TEST_F(DeviceLease, AFaultOfOneProcessGivesItsPoolUpAndHurtsNobodyElse) {
  const std::uint64_t bytes = std::uint64_t{kBlocks} * kBlockBytes;
  Child faulty([&](Child& self) {
    cuda::use_device("0");
    const LeasedPool leased = lease(1);
    const auto pool = cuda::DeviceMemory::import(leased.answer.device_handle, bytes);
    const cuda::OwnedStream stream;
    cuda::fill_bytes(pool.data(), 7, bytes, stream.get());
    stream.synchronize();
    self.tell(1);
    self.await();
    cuda::write_nowhere(stream.get());
    try {
      stream.synchronize();
    } catch (const cuda::CudaError& e) {
      mark_pool_spoiled(run_dir, "decode0");  // as WorkerLoop does when its device has failed
      std::fprintf(stderr, "%s\n", e.what());
      ::_exit(1);
    }
    ::_exit(0);
  });
  ASSERT_EQ(faulty.hear(), 1U);
  Child importer([&](Child& self) {
    cuda::use_device("0");
    const LeasedPool leased = lease(1);
    const auto hold = hold_mapping(socket(), leased.answer.device_handle);
    const auto pool = cuda::DeviceMemory::import(leased.answer.device_handle, bytes);
    self.tell(hold.ok() ? 1 : 0);
    self.await();
    self.tell(read_words(pool)[5] == 0x07070707U ? 1 : 0);
  });
  ASSERT_EQ(importer.hear(), 1U);
  faulty.go_on();
  int status = 0;
  ASSERT_EQ(::waitpid(faulty.pid(), &status, 0), faulty.pid());
  EXPECT_EQ(WEXITSTATUS(status), 1) << "the kernel was to fail";
  faulty.forget();
  Child younger([&](Child& self) {
    cuda::use_device("0");
    const LeasedPool leased = lease(2);
    const auto pool = cuda::DeviceMemory::import(leased.answer.device_handle, bytes);
    self.tell(leased.answer.kept ? 1 : 0);
    self.tell(sum(read_words(pool)));
  });
  EXPECT_EQ(younger.hear(), 0U) << "its pool is given up";
  EXPECT_EQ(younger.hear(), 0U) << "and the next one is all zero";
  importer.go_on();
  EXPECT_EQ(importer.hear(), 1U) << "an importer reads on";
}

/// A worker's whole way to its weights, with a small model: loaded once, mapped by the next, and
/// loaded again when somebody has written over them.
TEST_F(DeviceLease, WeightsAreLoadedOnceAndNotBelievedWhenTheyChange) {
  ModelConfig config;
  config.hidden = 256;
  config.layers = 2;
  config.heads = 4;
  config.kv_heads = 2;
  config.head_dim = 64;
  config.ropes = {RopeConfig{.dims = 64}};
  LayerSpec layer;
  layer.attention.scale = 0.125;
  layer.mlp.intermediate = 512;
  config.parts = {layer, layer};
  config.vocab = 1024;
  config.max_context = 512;
  const auto bring = [&](const std::string& worker) {
    GpuWeightsRequest request;
    request.worker = worker;
    request.memory_socket = socket();
    request.config = &config;
    request.fingerprint = 77;
    request.device = cuda::use_device("0");
    std::atomic<int> percent{0};
    return bring_gpu_weights(request, percent);
  };
  const auto tells = [&](const std::string& worker) {
    return [&, worker](Child& self) {
      const BroughtWeights brought = bring(worker);
      self.tell(brought.mapped ? 1 : 0);
      self.tell(brought.copy);
      self.tell(sum_of_memory(brought.weights.memory.data(), brought.weights.memory.bytes()));
      self.await();
    };
  };
  Child first(tells("prefill0"));
  EXPECT_EQ(first.hear(), 0U);
  const std::uint64_t copy = first.hear();
  const std::uint64_t content = first.hear();
  Child second(tells("decode0"));
  EXPECT_EQ(second.hear(), 1U);
  EXPECT_EQ(second.hear(), copy);
  EXPECT_EQ(second.hear(), content);
  second.kill();
  Child vandal([&](Child& self) {
    const BroughtWeights brought = bring("vandal");
    const cuda::OwnedStream stream;
    cuda::fill_bytes(brought.weights.memory.data() + 4711, 0x55, 1, stream.get());
    stream.synchronize();
    self.tell(1);
    self.await();
  });
  EXPECT_EQ(vandal.hear(), 1U);
  Child third(tells("decode0"));
  EXPECT_EQ(third.hear(), 0U) << "loaded again";
  EXPECT_NE(third.hear(), copy);
  EXPECT_EQ(third.hear(), content);
  Child fourth(tells("mixed0"));
  EXPECT_EQ(fourth.hear(), 1U);
}

TEST_F(DeviceLease, SumsOfMemoryShowOneChangedWord) {
  Child one([&](Child& self) {
    cuda::use_device("0");
    const std::size_t bytes = (std::size_t{1} << 30U) + 4096;
    const cuda::DeviceMemory words(bytes);
    const cuda::OwnedStream stream;
    cuda::fill_bytes(words.data(), 3, bytes, stream.get());
    stream.synchronize();
    const std::uint64_t before = sum_of_memory(words.data(), bytes);
    const TimeNs begin = now_ns();
    self.tell(sum_of_memory(words.data(), bytes) == before ? 1 : 0);
    const double seconds = 1e-9 * static_cast<double>(now_ns() - begin);
    std::printf("sums: %.0f GB/s\n", static_cast<double>(bytes) / seconds / 1e9);
    std::fflush(stdout);
    for (const std::size_t at : {std::size_t{16}, bytes - 8}) {
      cuda::fill_bytes(words.data() + at, 4, 1, stream.get());
      stream.synchronize();
      self.tell(sum_of_memory(words.data(), bytes) != before ? 1 : 0);
      cuda::fill_bytes(words.data() + at, 3, 1, stream.get());
    }
  });
  for (int i = 0; i < 3; ++i) EXPECT_EQ(one.hear(), 1U) << i;
}

}  // namespace
}  // namespace baton
