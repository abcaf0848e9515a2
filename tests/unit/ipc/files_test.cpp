// Files of a model folder that are not what they should be.
#include "ipc/files.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "tests/support/temp_dir.h"

namespace baton {
namespace {

std::string write(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
  return path;
}

std::string repeated(const std::string& text, std::size_t times) {
  std::string all;
  for (std::size_t i = 0; i < times; ++i) all += text;
  return all;
}

TEST(Files, ARegularFileAndALinkToOneAreRead) {
  const TempDir dir;
  const std::string path = write(dir.path() + "/a", std::string("x\0y", 3));
  std::filesystem::create_symlink(path, dir.path() + "/b");
  for (const char* name : {"/a", "/b"}) {
    const auto text = read_regular_file(dir.path() + name, 3);
    ASSERT_TRUE(text.ok());
    EXPECT_EQ(text.value(), std::string("x\0y", 3));
  }
}

TEST(Files, NoFileIsNoError) {
  const TempDir dir;
  const auto text = read_regular_file(dir.path() + "/a", 3);
  ASSERT_TRUE(text.ok());
  EXPECT_FALSE(text.value().has_value());
}

TEST(Files, APipeIsRefusedAtOnce) {
  const TempDir dir;
  const std::string path = dir.path() + "/a";
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  EXPECT_EQ(read_regular_file(path, 3).status().message(), path + ": not a regular file");
}

TEST(Files, AFolderADeviceAndALargeFileAreRefused) {
  const TempDir dir;
  EXPECT_NE(read_regular_file(dir.path(), 3).status().message().find("not a regular file"),
            std::string::npos);
  EXPECT_NE(read_regular_file("/dev/zero", 3).status().message().find("not a regular file"),
            std::string::npos);
  const std::string path = write(dir.path() + "/a", "1234");
  EXPECT_EQ(read_regular_file(path, 3).status().message(), path + ": larger than 3 bytes");
}

TEST(Json, DepthCountsBracketsOutsideOfStrings) {
  EXPECT_TRUE(json_depth_within(R"({"a": [1, [2]]})", 3));
  EXPECT_FALSE(json_depth_within(R"({"a": [1, [2]]})", 2));
  EXPECT_TRUE(json_depth_within(R"({"a": "[[[[\"[[[["})", 1));
  EXPECT_FALSE(json_depth_within(repeated("[", 1'500'000), kMaxJsonDepth));
}

TEST(Json, PythonsConstantsBecomeStrings) {
  EXPECT_EQ(quote_bare_constants(R"({"a": NaN, "b": [-Infinity, Infinity], "NaN": "is \"NaN\""})"),
            R"({"a": "NaN", "b": ["-Infinity", "Infinity"], "NaN": "is \"NaN\""})");
  EXPECT_EQ(quote_bare_constants(R"({"a": 1})"), R"({"a": 1})");
  EXPECT_EQ(quote_bare_constants("NaN"), "\"NaN\"");
}

TEST(Json, AFileIsReadWithBoth) {
  const TempDir dir;
  EXPECT_EQ(read_json_text(write(dir.path() + "/a", "[NaN]"), 100).value(), "[\"NaN\"]");
  const std::string deep = write(dir.path() + "/b", repeated("[", 65) + repeated("]", 65));
  EXPECT_EQ(read_json_text(deep, 1000).status().message(),
            deep + ": the JSON is nested more than 64 deep");
}

}  // namespace
}  // namespace baton
