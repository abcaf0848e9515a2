// A model folder's tokenizer.json: refused or read, and what was read takes every text.
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "tests/fuzz/fuzz.h"
#include "text/tokenizer/hf_tokenizer.h"
#include "text/tokenizer/tokenizer.h"

namespace {

std::string make_folder() {
  const std::filesystem::path base = std::filesystem::exists("/dev/shm") ? "/dev/shm" : "/tmp";
  const auto folder = base / ("baton-fuzz-" + std::to_string(getpid()));
  std::filesystem::create_directories(folder);
  return folder;
}

struct Folder {
  std::string path = make_folder();
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
  }
};

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const Folder folder;
  std::ofstream(folder.path + "/tokenizer.json", std::ios::binary | std::ios::trunc)
      .write(reinterpret_cast<const char*>(data), static_cast<std::streamsize>(size));
  const auto tokenizer = baton::load_hf_tokenizer(folder.path);
  if (!tokenizer.ok()) return 0;
  for (const char* text :
       {"", "Hello, world", " \xe5\xa5\xbd \xf0\x9f\x98\x80\xff", "a\n\n  1234'll"}) {
    const auto ids = tokenizer.value()->encode(text, true);
    for (const baton::Token id : ids) {
      baton::fuzz::require(
          id >= 0 && id < static_cast<baton::Token>(tokenizer.value()->vocab_size()),
          "ids lie in the vocabulary");
    }
    tokenizer.value()->decode(ids);
  }
  return 0;
}
