#include "workers/model/content_digest.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <optional>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "ipc/files.h"
#include "ipc/process.h"

namespace baton {
namespace {

/// Threads take pieces of this size. Another size gives other digests.
constexpr std::uint64_t kPieceBytes = std::uint64_t{16} << 20U;
constexpr int kMostThreads = 8;
constexpr std::size_t kMostCacheBytes = 4096;
/// A file that was changed so shortly before it was read may be changed again within one tick of
/// the file system's clock, and have the same stamp: its digest is not kept.
constexpr TimeNs kSettled = 2 * kSecond;
/// Reading takes longer from no disk that a model is served from: who reads is waited for as long.
constexpr std::uint64_t kSlowDisk = std::uint64_t{100} << 20U;  // bytes/s
constexpr TimeNs kLook = 20 * kMillisecond;

struct Piece {
  const std::byte* data = nullptr;
  std::uint64_t bytes = 0;
};

using Canonical = std::array<unsigned char, sizeof(XXH128_canonical_t)>;

Canonical canonical(XXH128_hash_t hash) {
  XXH128_canonical_t text;
  XXH128_canonicalFromHash(&text, hash);
  Canonical bytes{};
  std::memcpy(bytes.data(), text.digest, bytes.size());
  return bytes;
}

void append(std::string& text, const Canonical& bytes) {
  text.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

/// The kernel reads ahead of the thread, from a cold disk at its full speed.
void read_ahead(const Piece& piece) {
  static const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto begin = reinterpret_cast<std::uintptr_t>(piece.data) & ~(page - 1);
  const auto end = reinterpret_cast<std::uintptr_t>(piece.data) + piece.bytes;
  (void)::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_WILLNEED);
}

std::vector<Canonical> hash_all(const std::vector<Piece>& pieces, int threads) {
  std::vector<Canonical> hashes(pieces.size());
  std::atomic<std::size_t> next{0};
  const auto work = [&] {
    for (std::size_t i = next++; i < pieces.size(); i = next++) {
      read_ahead(pieces[i]);
      hashes[i] = canonical(XXH3_128bits(pieces[i].data, pieces[i].bytes));
    }
  };
  std::vector<std::jthread> others;
  const std::size_t useful =
      std::min<std::size_t>(static_cast<std::size_t>(threads), pieces.size());
  for (std::size_t i = 1; i < useful; ++i) others.emplace_back(work);
  work();
  others.clear();
  return hashes;
}

ContentDigest digest_now(const Checkpoint& checkpoint, int threads) {
  std::vector<Piece> pieces;
  for (const auto& [name, tensor] : checkpoint.tensors()) {
    for (std::uint64_t at = 0; at < tensor.bytes; at += kPieceBytes)
      pieces.push_back({tensor.data + at, std::min(kPieceBytes, tensor.bytes - at)});
  }
  const std::vector<Canonical> hashes = hash_all(pieces, threads);
  std::string text;
  std::size_t piece = 0;
  for (const auto& [name, tensor] : checkpoint.tensors()) {
    text += name + '\0' + std::to_string(tensor.bytes) + '\0';
    for (std::uint64_t at = 0; at < tensor.bytes; at += kPieceBytes) append(text, hashes[piece++]);
  }
  const XXH128_hash_t hash = XXH3_128bits(text.data(), text.size());
  return {.high = hash.high64, .low = hash.low64};
}

std::string hex(XXH128_hash_t hash) {
  std::array<char, 33> text{};
  std::snprintf(text.data(), text.size(), "%016" PRIx64 "%016" PRIx64, hash.high64, hash.low64);
  return text.data();
}

/// All that the digest follows from, but for the bytes: the files' stamps, and which of their bytes
/// are which tensor.
std::string key_of(const Checkpoint& checkpoint) {
  std::string text = "1;";  // of this way to compute it
  for (const auto& [path, stamp] : checkpoint.files()) {
    for (const std::uint64_t n :
         {stamp.device, stamp.inode, stamp.bytes, static_cast<std::uint64_t>(stamp.modified),
          static_cast<std::uint64_t>(stamp.changed)})
      text += std::to_string(n) + ',';
  }
  for (const auto& [name, tensor] : checkpoint.tensors())
    text += name + '\0' + tensor.file + '\0' + std::to_string(tensor.offset) + ',' +
            std::to_string(tensor.bytes) + ';';
  return hex(XXH3_128bits(text.data(), text.size()));
}

bool settled(const Checkpoint& checkpoint, TimeNs begin) {
  return std::all_of(checkpoint.files().begin(), checkpoint.files().end(), [&](const auto& file) {
    return std::max(file.second.modified, file.second.changed) < begin - kSettled;
  });
}

/// One file a model folder, so that a folder whose files change leaves nothing behind.
std::string cache_path(const Checkpoint& checkpoint, const DigestCache& cache) {
  const std::string& folder = checkpoint.folder();
  return cache.folder + "/weights-" + hex(XXH3_128bits(folder.data(), folder.size())) + ".digest";
}

std::optional<ContentDigest> recall(const std::string& path, const std::string& key) {
  const auto text = read_regular_file(path, kMostCacheBytes);
  if (!text.ok() || !text.value()) return std::nullopt;
  ContentDigest digest;
  std::array<char, 33> known{};
  char end = 0;
  const int n = std::sscanf(text.value()->c_str(), "%32s %16" SCNx64 " %16" SCNx64 "%c",
                            known.data(), &digest.high, &digest.low, &end);
  if (n != 4 || end != '\n' || key != known.data()) return std::nullopt;
  digest.cached = true;
  return digest;
}

/// Best effort: without it the next start computes the digest again.
void keep(const std::string& path, const std::string& key, const ContentDigest& digest) {
  const std::string fresh = path + "." + std::to_string(::getpid());
  const std::string text =
      key + ' ' + hex({.low64 = digest.low, .high64 = digest.high}).insert(16, " ") + '\n';
  ::unlink(fresh.c_str());
  const UniqueFd fd(
      ::open(fresh.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
  const bool written =
      fd && ::write(fd.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size());
  if (!written || ::rename(fresh.c_str(), path.c_str()) != 0) ::unlink(fresh.c_str());
}

/// Held until it is closed. None: the folder cannot be written to, or who reads takes too long.
UniqueFd turn_to_read(const std::string& path, std::uint64_t bytes) {
  UniqueFd fd(::open((path + ".lock").c_str(),
                     O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600));
  const TimeNs until = now_ns() + 10 * kSecond + static_cast<TimeNs>(bytes / kSlowDisk) * kSecond;
  while (fd && ::flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK || now_ns() > until) return UniqueFd();
    ::usleep(static_cast<useconds_t>(kLook / 1000));
  }
  return fd;
}

int threads_of(const DigestCache& cache) {
  if (cache.threads > 0) return std::min(cache.threads, kMostThreads);
  return std::clamp(static_cast<int>(std::thread::hardware_concurrency()), 1, kMostThreads);
}

}  // namespace

ContentDigest content_digest(const Checkpoint& checkpoint, const DigestCache& cache) {
  UniqueFd turn;
  std::string path;
  std::string key;
  if (!cache.folder.empty()) {
    path = cache_path(checkpoint, cache);
    key = key_of(checkpoint);
    if (const auto kept = recall(path, key)) return *kept;
    std::uint64_t bytes = 0;
    for (const auto& [file, stamp] : checkpoint.files()) bytes += stamp.bytes;
    turn = turn_to_read(path, bytes);
    if (const auto kept = recall(path, key)) return *kept;  // another process has read meanwhile
  }
  const TimeNs begin = wall_ns();
  const TimeNs since = now_ns();
  ContentDigest digest = digest_now(checkpoint, threads_of(cache));
  digest.seconds = 1e-9 * static_cast<double>(now_ns() - since);
  for (const auto& [name, tensor] : checkpoint.tensors()) digest.bytes += tensor.bytes;
  expect_unchanged(checkpoint);
  if (!cache.folder.empty() && settled(checkpoint, begin)) keep(path, key, digest);
  return digest;
}

std::string to_text(const ContentDigest& digest) {
  if (digest.cached) return "weights' digest kept from an earlier start";
  std::array<char, 96> text{};
  std::snprintf(text.data(), text.size(), "weights' digest: %" PRIu64 " MiB read in %.2f s",
                digest.bytes >> 20U, digest.seconds);
  return text.data();
}

void expect_unchanged(const Checkpoint& checkpoint) {
  for (const auto& [path, stamp] : checkpoint.files()) {
    if (file_stamp(path) != stamp)
      throw ModelChanged(path + ": was written while it was loaded; it is read again");
  }
}

}  // namespace baton
