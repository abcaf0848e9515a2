// Which weights are the same: every byte counts, and a kept digest only as long as the files are
// the ones that it was computed of.
#include "workers/model/content_digest.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/temp_dir.h"
#include "workers/model/config.h"
#include "workers/model/fingerprint.h"

namespace baton {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kBytes = 40U << 20U;  // three pieces

/// A checkpoint of one tensor, written an hour ago as far as its own times can say.
void write_checkpoint(const std::string& folder, std::size_t bytes = kBytes) {
  std::string header = R"({"w":{"dtype":"U8","shape":[)" + std::to_string(bytes) +
                       R"(],"data_offsets":[0,)" + std::to_string(bytes) + "]}}";
  header.append((8 - header.size() % 8) % 8, ' ');
  std::string file;
  for (int i = 0; i < 8; ++i) file.push_back(static_cast<char>(header.size() >> (8 * i)));
  file += header;
  for (std::size_t i = 0; i < bytes; ++i) file.push_back(static_cast<char>(i * 31 >> 3U));
  fs::create_directories(folder);
  std::ofstream(folder + "/model.safetensors", std::ios::binary) << file;
}

/// One byte, with the modification time put back.
void edit(const std::string& folder, std::size_t from_end) {
  const std::string path = folder + "/model.safetensors";
  struct stat info {};
  ASSERT_EQ(::stat(path.c_str(), &info), 0);
  std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
  file.seekp(static_cast<std::streamoff>(info.st_size) - static_cast<std::streamoff>(from_end));
  file.put('?');
  file.close();
  const timespec times[2] = {info.st_atim, info.st_mtim};
  ASSERT_EQ(::utimensat(AT_FDCWD, path.c_str(), times, 0), 0);
}

std::vector<std::string> kept_in(const std::string& folder) {
  std::vector<std::string> found;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().extension() == ".digest") found.push_back(entry.path().string());
  }
  return found;
}

ContentDigest digest_of(const std::string& folder, const DigestCache& cache = {}) {
  return content_digest(Checkpoint(folder), cache);
}

TEST(ContentDigest, EveryByteCounts) {
  const TempDir folder;
  write_checkpoint(folder / "a");
  write_checkpoint(folder / "b");
  const ContentDigest first = digest_of(folder / "a");
  EXPECT_EQ(digest_of(folder / "b"), first) << "a copy in another folder";
  for (const int threads : {1, 3}) EXPECT_EQ(digest_of(folder / "a", {"", threads}), first);
  // 256 samples of 64 bytes lie more than 150 kB apart here: all of these are between two.
  for (const std::size_t from_end : {1U, 100'000U, (20U << 20U) + 77'777U}) {
    write_checkpoint(folder / "b");
    edit(folder / "b", from_end);
    EXPECT_FALSE(digest_of(folder / "b") == first) << from_end;
  }
}

TEST(ContentDigest, TheFingerprintFollowsFromIt) {
  const TempDir folder;
  write_checkpoint(folder / "a");
  const ModelConfig config{};
  const auto fingerprint = [&] {
    const Checkpoint checkpoint(folder / "a");
    return model_fingerprint(config, checkpoint, content_digest(checkpoint, {}));
  };
  const auto first = fingerprint();
  EXPECT_EQ(fingerprint(), first);
  edit(folder / "a", 100'000);
  EXPECT_NE(fingerprint(), first);
}

TEST(ContentDigest, IsKeptByTheStampsOfItsFiles) {
  const TempDir folder;
  const DigestCache cache{folder.path(), 2};
  write_checkpoint(folder / "a", 100'000);
  EXPECT_FALSE(digest_of(folder / "a", cache).cached);
  EXPECT_TRUE(kept_in(folder.path()).empty()) << "it was written so shortly before";
  std::this_thread::sleep_for(std::chrono::milliseconds(2100));
  const ContentDigest first = digest_of(folder / "a", cache);
  EXPECT_FALSE(first.cached);
  ASSERT_EQ(kept_in(folder.path()).size(), 1U);
  struct stat info {};
  ASSERT_EQ(::stat(kept_in(folder.path()).front().c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777U, 0600U);
  EXPECT_TRUE(digest_of(folder / "a", cache).cached);
  EXPECT_EQ(digest_of(folder / "a", cache), first);

  edit(folder / "a", 50);  // its size and modification time are as they were
  const ContentDigest edited = digest_of(folder / "a", cache);
  EXPECT_FALSE(edited.cached);
  EXPECT_FALSE(edited == first);
}

TEST(ContentDigest, ABadCacheIsComputedAgain) {
  const TempDir folder;
  const DigestCache cache{folder.path(), 1};
  write_checkpoint(folder / "a", 1000);
  std::this_thread::sleep_for(std::chrono::milliseconds(2100));
  const ContentDigest first = digest_of(folder / "a", cache);
  const std::string kept = kept_in(folder.path()).at(0);
  const auto write = [&](const std::string& text) {
    std::ofstream(kept, std::ios::binary | std::ios::trunc) << text;
  };
  std::string text;
  std::ifstream file(kept);
  std::getline(file, text);
  const std::string other_key = (text.front() == '0' ? '1' : '0') + text.substr(1) + '\n';
  for (const std::string& bad :
       {std::string(), text, text + "0\n", other_key, std::string(10'000, 'x')}) {
    write(bad);
    const ContentDigest again = digest_of(folder / "a", cache);
    EXPECT_FALSE(again.cached) << bad;
    EXPECT_EQ(again, first);
    EXPECT_TRUE(digest_of(folder / "a", cache).cached) << "it is written anew";
  }
  EXPECT_FALSE(digest_of(folder / "a", {"/nonexistent", 1}).cached);
  EXPECT_EQ(digest_of(folder / "a", {"/nonexistent", 1}), first);
}

TEST(ContentDigest, AFileThatIsWrittenWhileItIsLoadedIsRefused) {
  const TempDir folder;
  write_checkpoint(folder / "a", 1000);
  const Checkpoint checkpoint(folder / "a");
  EXPECT_NO_THROW(expect_unchanged(checkpoint));
  std::this_thread::sleep_for(std::chrono::milliseconds(30));
  edit(folder / "a", 1);
  EXPECT_THROW(expect_unchanged(checkpoint), ModelChanged);
  EXPECT_THROW(content_digest(checkpoint, {}), ModelChanged);
  fs::remove(folder / "a/model.safetensors");
  EXPECT_THROW(expect_unchanged(checkpoint), ModelChanged);
}

TEST(ContentDigest, ThoseThatAskAtTheSameTimeReadOnce) {
  const TempDir folder;
  const DigestCache cache{folder.path(), 1};
  write_checkpoint(folder / "a");
  std::this_thread::sleep_for(std::chrono::milliseconds(2100));
  std::vector<ContentDigest> digests(6);
  {
    std::vector<std::jthread> threads;
    for (ContentDigest& digest : digests)
      threads.emplace_back([&] { digest = digest_of(folder / "a", cache); });
  }
  int read = 0;
  for (const ContentDigest& digest : digests) {
    EXPECT_EQ(digest, digests.front());
    read += digest.cached ? 0 : 1;
  }
  EXPECT_EQ(read, 1);
}

}  // namespace
}  // namespace baton
