#include "workers/cuda/device.h"

#include <cuda_runtime.h>

#include <array>
#include <cstdio>
#include <cstring>

namespace baton::cuda {

namespace {

void check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  throw CudaError(std::string(what) + ": " + cudaGetErrorString(error));
}

std::string uuid_text(const cudaUUID_t& uuid) {
  std::string text = "GPU-";
  for (int i = 0; i < 16; ++i) {
    char two[3];
    std::snprintf(two, sizeof two, "%02x", static_cast<unsigned char>(uuid.bytes[i]));
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += two;
  }
  return text;
}

DeviceInfo info_of(int ordinal) {
  cudaDeviceProp p{};
  check(cudaGetDeviceProperties(&p, ordinal), "cudaGetDeviceProperties");
  int driver = 0;
  check(cudaDriverGetVersion(&driver), "cudaDriverGetVersion");
  return {ordinal, p.name,  uuid_text(p.uuid), p.multiProcessorCount,
          p.major, p.minor, p.mpsEnabled != 0, driver};
}

/// What stands behind "@" says who has the memory.
std::byte* open_handle(const std::string& text) {
  const std::string handle = text.substr(0, text.find('@'));
  cudaIpcMemHandle_t raw{};
  const auto digit = [](char c) { return c <= '9' ? c - '0' : c - 'a' + 10; };
  if (handle.size() != 2 * sizeof raw.reserved ||
      handle.find_first_not_of("0123456789abcdef") != std::string::npos) {
    throw CudaError("a pool's handle is not a cudaIpcMemHandle");
  }
  for (std::size_t i = 0; i < sizeof raw.reserved; ++i) {
    raw.reserved[i] = static_cast<char>(digit(handle[2 * i]) * 16 + digit(handle[2 * i + 1]));
  }
  void* memory = nullptr;
  const cudaError_t error = cudaIpcOpenMemHandle(&memory, raw, cudaIpcMemLazyEnablePeerAccess);
  if (error != cudaSuccess) {
    cudaGetLastError();
    throw CudaError(std::string("cudaIpcOpenMemHandle: ") + cudaGetErrorString(error));
  }
  return static_cast<std::byte*>(memory);
}

}  // namespace

int device_count() {
  int count = 0;
  check(cudaGetDeviceCount(&count), "cudaGetDeviceCount");
  return count;
}

DeviceInfo use_device(const std::string& ordinal_or_uuid) {
  const int count = device_count();
  std::string seen;
  for (int i = 0; i < count; ++i) {
    const DeviceInfo info = info_of(i);
    if (ordinal_or_uuid == std::to_string(i) || ordinal_or_uuid == info.uuid) {
      set_device(i);
      return info;
    }
    seen += (seen.empty() ? "" : ", ") + std::to_string(i) + " (" + info.uuid + ")";
  }
  throw CudaError("no GPU '" + ordinal_or_uuid + "'; there are: " + (seen.empty() ? "none" : seen));
}

void set_device(int ordinal) { check(cudaSetDevice(ordinal), "cudaSetDevice"); }

std::optional<int> find_device(const std::string& uuid) {
  for (int i = 0; i < device_count(); ++i) {
    if (info_of(i).uuid == uuid) return i;
  }
  return std::nullopt;
}

void enable_peer_access(int of, int to) {
  int can = 0;
  check(cudaDeviceCanAccessPeer(&can, of, to), "cudaDeviceCanAccessPeer");
  if (can == 0) throw CudaError("no peer access between the GPUs");
  const OnDevice on(of);
  const cudaError_t error = cudaDeviceEnablePeerAccess(to, 0);
  if (error != cudaSuccess) cudaGetLastError();  // not sticky
  if (error == cudaErrorPeerAccessAlreadyEnabled) return;
  check(error, "cudaDeviceEnablePeerAccess");
}

OnDevice::OnDevice(int ordinal) {
  check(cudaGetDevice(&before_), "cudaGetDevice");
  const cudaError_t error = cudaSetDevice(ordinal);
  if (error == cudaSuccess) return;
  cudaGetLastError();
  cudaSetDevice(before_);  // also if that GPU gives no context
  check(error, "cudaSetDevice");
}
OnDevice::~OnDevice() { cudaSetDevice(before_); }

MemoryInfo memory_info() {
  MemoryInfo info;
  check(cudaMemGetInfo(&info.free, &info.total), "cudaMemGetInfo");
  return info;
}

DeviceMemory::DeviceMemory(std::size_t bytes) : bytes_(bytes) {
  void* memory = nullptr;
  const cudaError_t error = cudaMalloc(&memory, bytes);
  if (error != cudaSuccess) {
    cudaGetLastError();  // not sticky: the caller may try again
    throw CudaError("cudaMalloc of " + std::to_string(bytes >> 20U) +
                    " MiB: " + cudaGetErrorString(error));
  }
  data_ = static_cast<std::byte*>(memory);
}
DeviceMemory DeviceMemory::import(const std::string& handle, std::size_t bytes) {
  DeviceMemory memory;
  memory.data_ = open_handle(handle);
  memory.bytes_ = bytes;
  memory.imported_ = true;
  return memory;
}
DeviceMemory::~DeviceMemory() {
  if (data_ == nullptr) return;
  if (imported_) {
    cudaIpcCloseMemHandle(data_);
  } else {
    cudaFree(data_);
  }
}
DeviceMemory& DeviceMemory::operator=(DeviceMemory&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  std::swap(imported_, other.imported_);
  return *this;
}

PinnedMemory::PinnedMemory(std::size_t bytes) : bytes_(bytes) {
  void* memory = nullptr;
  check(cudaHostAlloc(&memory, bytes, cudaHostAllocMapped | cudaHostAllocPortable),
        "cudaHostAlloc");
  data_ = static_cast<std::byte*>(memory);
}
PinnedMemory::~PinnedMemory() {
  if (data_ != nullptr) cudaFreeHost(data_);
}
PinnedMemory& PinnedMemory::operator=(PinnedMemory&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

RegisteredMemory::RegisteredMemory(const std::byte* memory, std::size_t bytes, bool read_only) {
  auto* const start = const_cast<std::byte*>(memory);
  const unsigned flags = cudaHostRegisterMapped | cudaHostRegisterPortable |
                         (read_only ? cudaHostRegisterReadOnly : 0U);
  cudaError_t error = cudaHostRegister(start, bytes, flags);
  if (error == cudaSuccess) {
    memory_ = start;
    void* seen = nullptr;
    error = cudaHostGetDevicePointer(&seen, start, 0);
    device_data_ = static_cast<std::byte*>(seen);
  }
  if (error == cudaSuccess) return;
  cudaGetLastError();  // not sticky
  if (memory_ != nullptr) cudaHostUnregister(std::exchange(memory_, nullptr));
  throw CudaError("page-locking " + std::to_string(bytes >> 20U) +
                  " MiB of host memory: " + cudaGetErrorString(error));
}
RegisteredMemory::~RegisteredMemory() {
  if (memory_ != nullptr) cudaHostUnregister(memory_);
}
RegisteredMemory& RegisteredMemory::operator=(RegisteredMemory&& other) noexcept {
  std::swap(memory_, other.memory_);
  std::swap(device_data_, other.device_data_);
  return *this;
}

OwnedStream::OwnedStream(bool high_priority) {
  int least = 0;
  int greatest = 0;
  check(cudaDeviceGetStreamPriorityRange(&least, &greatest), "cudaDeviceGetStreamPriorityRange");
  check(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking,
                                     high_priority ? greatest : least),
        "cudaStreamCreateWithPriority");
}
OwnedStream::~OwnedStream() { cudaStreamDestroy(stream_); }
void OwnedStream::synchronize() const {
  check(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
}

void call_host(Stream stream, void (*function)(void*), void* argument) {
  check(cudaLaunchHostFunc(stream, function, argument), "cudaLaunchHostFunc");
}

OwnedEvent::OwnedEvent(bool timing) {
  check(cudaEventCreateWithFlags(&event_, timing ? cudaEventDefault : cudaEventDisableTiming),
        "cudaEventCreate");
}
OwnedEvent::~OwnedEvent() { cudaEventDestroy(event_); }
void OwnedEvent::record(Stream stream) const {
  check(cudaEventRecord(event_, stream), "cudaEventRecord");
}
void OwnedEvent::hold(Stream stream) const {
  check(cudaStreamWaitEvent(stream, event_, 0), "cudaStreamWaitEvent");
}
bool OwnedEvent::ended() const {
  const cudaError_t error = cudaEventQuery(event_);
  if (error == cudaErrorNotReady) return false;
  check(error, "a step on the GPU");
  return true;
}
void OwnedEvent::synchronize() const { check(cudaEventSynchronize(event_), "a step on the GPU"); }
float OwnedEvent::microseconds(const OwnedEvent& from, const OwnedEvent& to) {
  float ms = 0;
  check(cudaEventElapsedTime(&ms, from.event_, to.event_), "cudaEventElapsedTime");
  return 1e3F * ms;
}

void copy_to_device(void* to, const void* from, std::size_t bytes, Stream stream) {
  check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, stream), "copy to the GPU");
}
void copy_to_host(void* to, const void* from, std::size_t bytes, Stream stream) {
  check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, stream), "copy from the GPU");
}
void copy_rows_to_device(void* to, std::size_t to_pitch, const void* from, std::size_t from_pitch,
                         std::size_t width, std::size_t height, Stream stream) {
  check(cudaMemcpy2DAsync(to, to_pitch, from, from_pitch, width, height, cudaMemcpyHostToDevice,
                          stream),
        "copy to the GPU");
}

void copy_rows(void* to, std::size_t to_pitch, const void* from, std::size_t from_pitch,
               std::size_t width, std::size_t height, Stream stream) {
  check(cudaMemcpy2DAsync(to, to_pitch, from, from_pitch, width, height, cudaMemcpyDeviceToDevice,
                          stream),
        "copy to the GPU");
}
void fill_bytes(void* to, int value, std::size_t bytes, Stream stream) {
  check(cudaMemsetAsync(to, value, bytes, stream), "cudaMemset");
}

Graph::~Graph() {
  if (graph_ != nullptr) cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(graph_));
}
void Graph::launch(Stream stream) const {
  check(cudaGraphLaunch(static_cast<cudaGraphExec_t>(graph_), stream), "cudaGraphLaunch");
}
void Graph::begin(Stream stream) {
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "begin of a graph");
}
void Graph::abandon(Stream stream) {
  cudaGraph_t graph = nullptr;
  cudaStreamEndCapture(stream, &graph);
  if (graph != nullptr) cudaGraphDestroy(graph);
  cudaGetLastError();
}
Graph Graph::end(Stream stream) {
  cudaGraph_t graph = nullptr;
  check(cudaStreamEndCapture(stream, &graph), "end of a graph");
  cudaGraphExec_t exec = nullptr;
  const cudaError_t error = cudaGraphInstantiate(&exec, graph, 0);
  cudaGraphDestroy(graph);
  check(error, "cudaGraphInstantiate");
  Graph result;
  result.graph_ = exec;
  return result;
}

std::string export_memory(const DeviceMemory& memory) {
  cudaIpcMemHandle_t handle{};
  check(cudaIpcGetMemHandle(&handle, memory.data()), "cudaIpcGetMemHandle");
  std::string text;
  for (const char byte : handle.reserved) {
    char two[3];
    std::snprintf(two, sizeof two, "%02x", static_cast<unsigned char>(byte));
    text += two;
  }
  return text;
}

ImportedMemory::ImportedMemory(const std::string& handle) : data_(open_handle(handle)) {}
ImportedMemory::~ImportedMemory() { cudaIpcCloseMemHandle(data_); }

}  // namespace baton::cuda
