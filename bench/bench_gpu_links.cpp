// Which GPUs of this host can read each other's memory, and how fast: with the kernel that pulls KV
// blocks (workers/cuda/blocks.h). `./baton doctor` prints it.
#include <cuda_runtime.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <iostream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "workers/cuda/blocks.h"
#include "workers/cuda/device.h"

namespace {

using namespace baton::cuda;
using Json = nlohmann::json;

constexpr std::size_t kBlockBytes = 256 << 10;
constexpr int kCtas = 64;  // more make it no faster
constexpr int kRounds = 6;

void check(cudaError_t error) {
  if (error != cudaSuccess) throw std::runtime_error(cudaGetErrorString(error));
}

/// GB/s at which GPU `to` reads scattered blocks of GPU `from`; empty where it cannot.
std::optional<double> measure(int to, int from, int blocks) {
  const std::size_t bytes = static_cast<std::size_t>(blocks) * kBlockBytes;
  int can = 1;
  if (to != from) check(cudaDeviceCanAccessPeer(&can, to, from));
  if (can == 0) return std::nullopt;
  set_device(from);
  const DeviceMemory source(bytes);
  set_device(to);
  if (to != from) {
    const cudaError_t enabled = cudaDeviceEnablePeerAccess(from, 0);
    if (enabled == cudaErrorPeerAccessAlreadyEnabled) {
      cudaGetLastError();
    } else {
      check(enabled);
    }
  }
  const DeviceMemory pool(bytes);
  std::vector<std::uint32_t> ids(2 * static_cast<std::size_t>(blocks));
  std::iota(ids.begin(), ids.begin() + blocks, 0U);
  for (int i = 0; i < blocks; ++i) {  // scattered, as blocks of a pool in use are; 7919 is prime
    ids[static_cast<std::size_t>(blocks + i)] =
        static_cast<std::uint32_t>((std::uint64_t{7919} * i) % blocks);
  }
  const DeviceMemory lists(ids.size() * sizeof ids[0]);
  const OwnedStream stream;
  copy_to_device(lists.data(), ids.data(), lists.bytes(), stream.get());
  const OwnedEvent begin(/*timing=*/true);
  const OwnedEvent end(/*timing=*/true);
  float best = 0;
  for (int i = 0; i < kRounds; ++i) {  // the first ones wake the clocks up
    begin.record(stream.get());
    copy_blocks(pool.data(), source.data(), lists.as<std::uint32_t>(),
                lists.as<std::uint32_t>(static_cast<std::size_t>(blocks) * sizeof ids[0]), blocks,
                kBlockBytes, kCtas, stream.get());
    end.record(stream.get());
    stream.synchronize();
    const float us = OwnedEvent::microseconds(begin, end);
    best = best == 0 ? us : std::min(best, us);
  }
  return 1e-3 * static_cast<double>(bytes) / best;
}

int run(int argc, char** argv) {
  CLI::App app{"Which GPUs can read each other's memory, in GB/s: row reads from column"};
  int blocks = 1024;
  bool json = false;
  app.add_option("--blocks", blocks, "of 256 KiB that are copied at a time")
      ->check(CLI::Range(1, 65536))
      ->capture_default_str();
  app.add_flag("--json", json, "one JSON object");
  CLI11_PARSE(app, argc, argv);
  const int n = device_count();
  if (n == 0) throw std::runtime_error("no GPU is visible");
  Json all = Json::array();
  bool whole = true;
  for (int to = 0; to < n; ++to) {
    if (!json)
      std::printf("%s%d", to == 0 ? "GB/s   reads from GPU 0.." : "", to == 0 ? n - 1 : to);
    if (!json && to == 0) std::printf("\n0");
    for (int from = 0; from < n; ++from) {
      const auto rate = measure(to, from, blocks);
      whole = whole && rate.has_value();
      all.push_back(
          {{"importer", to}, {"exporter", from}, {"gb_per_s", rate ? Json(*rate) : Json()}});
      if (json) continue;
      if (rate) {
        std::printf(" %8.0f", *rate);
      } else {
        std::printf("       no");
      }
    }
    if (!json) std::printf("\n");
  }
  if (json) std::cout << all.dump() << '\n';
  if (!json && !whole) {
    std::printf(
        "no: without peer access nothing is handed from the one to the other; each decodes what it "
        "prefills\n");
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::exception& e) {
    std::cerr << "baton-bench-gpu-links: " << e.what() << '\n';
    return 1;
  }
}
