// The GPU as host code sees it: which one, its memory, streams, events, graphs. Plain C++: no CUDA
// header is needed to use it. Everything throws CudaError.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "workers/cuda/types.h"

namespace baton::cuda {

struct DeviceInfo {
  int ordinal = 0;
  std::string name;
  std::string uuid;         // "GPU-xxxxxxxx-....", as nvidia-smi prints it
  int multiprocessors = 0;  // under MPS those that this process may use
  int major = 0;            // compute capability
  int minor = 0;
  bool mps = false;  // shared with other processes by MPS
  int driver = 0;    // its version: 13000 for 13.0
};

int device_count();
/// Finds a GPU by ordinal ("0") or UUID and makes it the calling thread's; others are left alone.
DeviceInfo use_device(const std::string& ordinal_or_uuid);
/// For further threads.
void set_device(int ordinal);
/// The ordinal of a GPU that this process sees; nullopt: it sees none of this UUID.
std::optional<int> find_device(const std::string& uuid);
/// Lets kernels of one GPU reach the memory of another. Throws CudaError where they cannot.
void enable_peer_access(int of, int to);

/// Another GPU is the calling thread's until the end of the scope.
class OnDevice {
 public:
  explicit OnDevice(int ordinal);
  ~OnDevice();
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

 private:
  int before_ = 0;
};

struct MemoryInfo {
  std::size_t free = 0;
  std::size_t total = 0;
};
MemoryInfo memory_info();

/// Plain cudaMalloc memory (it can be exported). Uninitialised.
class DeviceMemory {
 public:
  DeviceMemory() = default;
  explicit DeviceMemory(std::size_t bytes);
  /// Memory of another process of this host, which that one lets this one write: a memory
  /// process's. `handle` as export_memory() has it. Throws CudaError.
  static DeviceMemory import(const std::string& handle, std::size_t bytes);
  ~DeviceMemory();
  DeviceMemory(DeviceMemory&& other) noexcept { *this = std::move(other); }
  DeviceMemory& operator=(DeviceMemory&& other) noexcept;

  std::byte* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }
  template <typename T>
  T* as(std::size_t offset_bytes = 0) const {
    return reinterpret_cast<T*>(data_ + offset_bytes);
  }
  /// Forgets it without freeing: exported memory is freed by the end of the process alone.
  void leak() { data_ = nullptr; }

 private:
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
  bool imported_ = false;  // unmapped instead of freed
};

/// Page-locked host memory, readable by the device under the same address.
class PinnedMemory {
 public:
  PinnedMemory() = default;
  explicit PinnedMemory(std::size_t bytes);
  ~PinnedMemory();
  PinnedMemory(PinnedMemory&& other) noexcept { *this = std::move(other); }
  PinnedMemory& operator=(PinnedMemory&& other) noexcept;

  std::byte* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }

 private:
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
};

/// Page-locks host memory that exists already, a mapping of shared memory for example, so that
/// every device of this process reads it (and writes it, unless `read_only`). The memory must
/// outlive this.
class RegisteredMemory {
 public:
  RegisteredMemory() = default;
  /// `read_only`: for mappings without leave to write. Some devices have no such registration.
  RegisteredMemory(const std::byte* memory, std::size_t bytes, bool read_only);
  ~RegisteredMemory();
  RegisteredMemory(RegisteredMemory&& other) noexcept { *this = std::move(other); }
  RegisteredMemory& operator=(RegisteredMemory&& other) noexcept;
  explicit operator bool() const { return memory_ != nullptr; }

  /// Where the device finds it.
  std::byte* device_data() const { return device_data_; }

 private:
  std::byte* memory_ = nullptr;
  std::byte* device_data_ = nullptr;
};

/// A non-blocking stream with its handle owned.
class OwnedStream {
 public:
  /// `high_priority`: its kernels are scheduled before those of other streams of this process.
  explicit OwnedStream(bool high_priority = false);
  ~OwnedStream();
  OwnedStream(const OwnedStream&) = delete;
  OwnedStream& operator=(const OwnedStream&) = delete;
  Stream get() const { return stream_; }
  void synchronize() const;

 private:
  Stream stream_ = nullptr;
};

/// Calls `function` on a thread of the driver when the stream comes to it. It must not call CUDA, and
/// the stream waits until it is back.
void call_host(Stream stream, void (*function)(void*), void* argument);

class OwnedEvent {
 public:
  explicit OwnedEvent(bool timing = false);
  ~OwnedEvent();
  OwnedEvent(const OwnedEvent&) = delete;
  OwnedEvent& operator=(const OwnedEvent&) = delete;
  void record(Stream stream) const;
  /// What is queued on `stream` from now on, of whatever device, begins behind what was recorded.
  void hold(Stream stream) const;
  /// Whether what was recorded has ended. Throws if the device failed.
  bool ended() const;
  void synchronize() const;
  /// Microseconds on the device between two events with `timing` that have both ended.
  static float microseconds(const OwnedEvent& from, const OwnedEvent& to);

 private:
  Event event_ = nullptr;
};

void copy_to_device(void* to, const void* from, std::size_t bytes, Stream stream);
void copy_to_host(void* to, const void* from, std::size_t bytes, Stream stream);
/// `height` rows of `width` bytes.
void copy_rows_to_device(void* to, std::size_t to_pitch, const void* from, std::size_t from_pitch,
                         std::size_t width, std::size_t height, Stream stream);
/// Likewise within a device.
void copy_rows(void* to, std::size_t to_pitch, const void* from, std::size_t from_pitch,
               std::size_t width, std::size_t height, Stream stream);
void fill_bytes(void* to, int value, std::size_t bytes, Stream stream);

/// A recorded sequence of launches that is replayed by one call.
class Graph {
 public:
  Graph() = default;
  ~Graph();
  Graph(Graph&& other) noexcept { *this = std::move(other); }
  Graph& operator=(Graph&& other) noexcept {
    std::swap(graph_, other.graph_);
    return *this;
  }
  explicit operator bool() const { return graph_ != nullptr; }
  void launch(Stream stream) const;

  /// Everything that `queue()` queues on `stream` is recorded instead of run.
  template <typename F>
  static Graph record(Stream stream, F&& queue) {
    begin(stream);
    try {
      queue();
    } catch (...) {
      abandon(stream);
      throw;
    }
    return end(stream);
  }

 private:
  static void begin(Stream stream);
  static void abandon(Stream stream);
  static Graph end(Stream stream);
  void* graph_ = nullptr;  // cudaGraphExec_t
};

/// The text that another process of this host needs to map `memory` (hex of a cudaIpcMemHandle_t).
std::string export_memory(const DeviceMemory& memory);

/// Memory of another process, mapped. Unmapped by the destructor.
class ImportedMemory {
 public:
  explicit ImportedMemory(const std::string& handle);
  ~ImportedMemory();
  ImportedMemory(const ImportedMemory&) = delete;
  ImportedMemory& operator=(const ImportedMemory&) = delete;
  const std::byte* data() const { return data_; }

 private:
  std::byte* data_ = nullptr;
};

/// Normal random numbers of this standard deviation, the same for the same seed; for benchmarks.
void fill_normal(Bf16* to, std::size_t n, float deviation, std::uint64_t seed, Stream stream);

}  // namespace baton::cuda
