// Model files that lie: every one must be refused with the file and the tensor named, none may be
// read out of bounds.
#include "workers/model/safetensors.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>

#include "tests/support/temp_dir.h"
#include "workers/model/error.h"

namespace baton {
namespace {

namespace fs = std::filesystem;

/// A file in memory, 8-byte aligned, ending exactly at the end of its allocation.
struct File {
  std::vector<std::uint64_t> words;
  std::size_t size = 0;

  explicit File(const std::string& bytes) : words((bytes.size() + 7) / 8), size(bytes.size()) {
    std::copy(bytes.begin(), bytes.end(), reinterpret_cast<char*>(words.data()));
  }
  const std::byte* data() const { return reinterpret_cast<const std::byte*>(words.data()); }
};

std::string with_length(std::uint64_t length, const std::string& rest) {
  std::string bytes;
  for (int i = 0; i < 8; ++i) bytes.push_back(static_cast<char>(length >> (8 * i)));
  return bytes + rest;
}

/// A file of this header (padded to 8) and so many bytes of data.
std::string file_of(std::string header, std::size_t data_bytes) {
  header.append((8 - header.size() % 8) % 8, ' ');
  return with_length(header.size(), header + std::string(data_bytes, 'x'));
}

std::string refusal(const std::string& bytes) {
  const File file(bytes);
  try {
    parse_safetensors(file.data(), file.size, "m.safetensors");
  } catch (const ModelError& error) {
    return error.what();
  }
  return "";
}

const char* const kGood =
    R"({"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},)"
    R"("b":{"dtype":"BF16","shape":[4],"data_offsets":[24,32]},)"
    R"("s":{"dtype":"I64","shape":[],"data_offsets":[32,40]}})";

TEST(Safetensors, ReadsAGoodFile) {
  const File file(file_of(kGood, 40));
  const auto tensors = parse_safetensors(file.data(), file.size, "m");
  ASSERT_EQ(tensors.size(), 3U);
  EXPECT_EQ(tensors.at("a").shape, (std::vector<std::int64_t>{2, 3}));
  EXPECT_EQ(tensors.at("b").bytes, 8U);
  EXPECT_EQ(tensors.at("b").dtype, "BF16");
  EXPECT_EQ(tensors.at("b").data, tensors.at("a").data + 24);
  EXPECT_TRUE(tensors.at("s").shape.empty());
  const File empty(file_of("{}", 0));
  EXPECT_TRUE(parse_safetensors(empty.data(), empty.size, "m").empty());
}

TEST(Safetensors, RefusesEveryLie) {
  const auto entry = [](const std::string& dtype, const std::string& shape,
                        const std::string& offsets) {
    return R"({"t":{"dtype":)" + dtype + R"(,"shape":)" + shape + R"(,"data_offsets":)" + offsets +
           "}}";
  };
  struct Case {
    std::string bytes, words;
  };
  const std::vector<Case> cases = {
      {"", "too short"},
      {"1234567", "too short"},
      {with_length(3, "{}"), "header"},
      {with_length(~0ULL, "{}"), "header"},
      {with_length(1ULL << 63, "{}"), "header"},
      {with_length(100'000'001, "{}"), "header"},
      {file_of("{\"t\":", 0), "malformed JSON"},
      {file_of("[]", 0), "not an object"},
      {file_of(std::string(200'000, '['), 0), "nested"},
      {file_of(R"({"t":1})", 0), "tensor t"},
      {file_of(R"({"t":{"dtype":"F32","shape":[1]}})", 4), "data_offsets"},
      {file_of(R"({"t":{"shape":[1],"data_offsets":[0,4]}})", 4), "dtype"},
      {file_of(entry("7", "[1]", "[0,4]"), 4), "dtype"},
      {file_of(entry("\"F31\"", "[1]", "[0,4]"), 4), "F31"},
      {file_of(entry("\"F32\"", "[-1]", "[0,4]"), 4), "size"},
      {file_of(entry("\"F32\"", "[1.5]", "[0,4]"), 4), "size"},
      {file_of(entry("\"F32\"", "[18446744073709551616]", "[0,4]"), 4), "size"},
      {file_of(entry("\"F32\"", "[18446744073709551615]", "[0,4]"), 4), "overflow"},
      {file_of(entry("\"F32\"", "[4294967296,4294967296]", "[0,0]"), 0), "overflow"},
      {file_of(entry("\"F32\"", "[2147483648,1073741825]", "[0,4]"), 4), "overflow"},
      {file_of(entry("\"F32\"", "[1,1,1,1,1,1,1,1,1]", "[0,4]"), 4), "dimensions"},
      {file_of(entry("\"F32\"", "[1]", "[0,4,8]"), 8), "two numbers"},
      {file_of(entry("\"F32\"", "[1]", "[4,0]"), 4), "outside"},
      {file_of(entry("\"F32\"", "[1]", "[0,18446744073709551615]"), 4), "outside"},
      {file_of(entry("\"F32\"", "[2]", "[0,8]"), 4), "outside"},
      {file_of(entry("\"F32\"", "[2]", "[0,4]"), 4), "size of the shape"},
      {file_of(entry("\"F32\"", "[1]", "[0,4]"), 5), "end of the file"},
      {file_of(entry("\"F32\"", "[1]", "[4,8]"), 8), "unused bytes"},
      {file_of(R"({"h":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},)"
               R"("t":{"dtype":"F32","shape":[1],"data_offsets":[2,6]}})",
               6),
       "aligned"},
      {file_of(R"({"t":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
               R"("u":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
               8),
       "overlap"},
      {file_of(R"({"t":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
               R"("t":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})",
               4),
       "twice"},
  };
  for (const Case& c : cases) {
    const std::string message = refusal(c.bytes);
    EXPECT_NE(message.find(c.words), std::string::npos)
        << "wanted \"" << c.words << "\", got \"" << message << "\" for " << c.bytes.substr(0, 200);
    EXPECT_EQ(message.rfind("m.safetensors: ", 0), 0U) << message;
  }
}

TEST(Safetensors, AGitLfsPointerIsNamed) {
  const std::string pointer =
      "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 15242880\n";
  EXPECT_EQ(
      refusal(pointer),
      "m.safetensors: a git-lfs pointer instead of the weights; fetch them with: git lfs pull");
}

/// Truncated and randomly changed files end in an error or in views that lie inside the file.
TEST(Safetensors, MutatedFilesNeverReachOutside) {
  const std::string good = file_of(kGood, 40);
  std::mt19937 rng(1);
  int accepted = 0;
  for (int i = 0; i < 20'000; ++i) {
    std::string bytes = good;
    if (i % 2 == 0) bytes.resize(rng() % (bytes.size() + 1));
    for (std::uint32_t n = rng() % 4; n > 0 && !bytes.empty(); --n) {
      const char digits[] = "0123456789[]{},\":F";
      bytes[rng() % bytes.size()] =
          rng() % 2 == 0 ? digits[rng() % (sizeof(digits) - 1)] : static_cast<char>(rng());
    }
    const File file(bytes);
    try {
      for (const auto& [name, view] : parse_safetensors(file.data(), file.size, "m")) {
        ASSERT_GE(view.data, file.data());
        ASSERT_LE(view.data + view.bytes, file.data() + file.size);
      }
      ++accepted;
    } catch (const ModelError&) {  // the expected end
    }
  }
  EXPECT_GT(accepted, 0);
  EXPECT_LT(accepted, 15'000);
}

TEST(Checkpoint, ShardsAreFoundByTheirIndex) {
  const TempDir folder;
  folder.write("one.safetensors",
               file_of(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 4));
  folder.write("two.safetensors",
               file_of(R"({"b":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 8));
  const auto index = [&](const std::string& map) {
    folder.write("model.safetensors.index.json", R"({"weight_map":)" + map + "}");
  };
  const auto error = [&]() -> std::string {
    try {
      const Checkpoint checkpoint(folder.path());
    } catch (const ModelError& e) {
      return e.what();
    }
    return "";
  };
  index(R"({"a":"one.safetensors","b":"two.safetensors"})");
  const Checkpoint checkpoint(folder.path());
  ASSERT_NE(checkpoint.find("a"), nullptr);
  ASSERT_NE(checkpoint.find("b"), nullptr);
  EXPECT_EQ(checkpoint.find("b")->bytes, 8U);
  EXPECT_EQ(checkpoint.find("c"), nullptr);

  index(R"({"a":"one.safetensors","b":"one.safetensors"})");
  EXPECT_NE(error().find("tensor b"), std::string::npos) << error();
  for (const char* path : {"\"../one.safetensors\"", "\"/etc/passwd\"", "\"\"", "\"..\"", "3"}) {
    index(std::string(R"({"a":)") + path + "}");
    EXPECT_NE(error().find("plain file name"), std::string::npos) << error();
  }
  index(R"({"a":"three.safetensors"})");
  EXPECT_NE(error().find("three.safetensors"), std::string::npos) << error();
  folder.write("model.safetensors.index.json", "{}");
  EXPECT_NE(error().find("weight_map"), std::string::npos) << error();
}

}  // namespace
}  // namespace baton
