// baton-bench-tokenizer: how fast one thread turns a text into ids, and ids into a stream of text.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "text/text_stream.h"
#include "text/tokenizer/tokenizer.h"

namespace baton {
namespace {

/// Processor time, so that what else runs on the machine counts little.
double seconds_of(const auto& work) {
  const std::clock_t begin = std::clock();
  work();
  return static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
}

/// Parts of about `size` bytes, each up to and with a line's end.
std::vector<std::string_view> cut(std::string_view text, std::size_t size) {
  std::vector<std::string_view> parts;
  while (!text.empty()) {
    const std::size_t end = text.find('\n', std::min(size, text.size()));
    const std::size_t length = end == std::string_view::npos ? text.size() : end + 1;
    parts.push_back(text.substr(0, length));
    text.remove_prefix(length);
  }
  return parts;
}

int run(const std::string& folder, const std::string& path, std::size_t chunk, int rounds) {
  const auto loaded = Tokenizer::load(folder);
  std::ifstream file(path, std::ios::binary);
  const std::string text(std::istreambuf_iterator<char>(file), {});
  if (!loaded.ok() || text.empty()) {
    std::fprintf(stderr, "%s\n", loaded.ok() ? "no text" : loaded.status().message().c_str());
    return 1;
  }
  const Tokenizer& tokenizer = *loaded.value();
  const auto parts = cut(text, chunk);
  std::vector<std::vector<Token>> ids(parts.size());
  double encode_s = 1e9;
  double decode_s = 1e9;
  for (int round = 0; round < rounds; ++round) {
    encode_s = std::min(encode_s, seconds_of([&] {
                          for (std::size_t i = 0; i < parts.size(); ++i)
                            ids[i] = tokenizer.encode(parts[i], false);
                        }));
    decode_s = std::min(decode_s, seconds_of([&] {
                          for (const auto& some : ids) {
                            TextStream stream(tokenizer, {});
                            for (const Token id : some) stream.feed({&id, 1});
                            stream.flush();
                          }
                        }));
  }
  std::size_t tokens = 0;
  std::uint64_t hash = 0xCBF29CE484222325U;
  for (const auto& some : ids) {
    tokens += some.size();
    for (const Token id : some) hash = (hash ^ static_cast<std::uint32_t>(id)) * 0x100000001B3U;
  }
  const double megabytes = static_cast<double>(text.size()) / 1e6;
  std::printf("{\"mb_s\": %.2f, \"tokens\": %zu, \"hash\": \"%016lx\", \"ns_a_token_out\": %.1f}\n",
              megabytes / encode_s, tokens, static_cast<unsigned long>(hash),
              decode_s * 1e9 / static_cast<double>(tokens));
  return 0;
}

}  // namespace
}  // namespace baton

int main(int argc, char** argv) {
  CLI::App app("Tokenises a text file in parts, on one thread; prints JSON");
  std::string folder;
  std::string path;
  std::size_t chunk = 4096;
  int rounds = 3;
  app.add_option("folder", folder, "model folder")->required();
  app.add_option("text", path, "UTF-8 text")->required();
  app.add_option("--chunk", chunk, "bytes of one part, about")->check(CLI::PositiveNumber);
  app.add_option("--rounds", rounds, "the best of so many counts")->check(CLI::PositiveNumber);
  CLI11_PARSE(app, argc, argv);
  return baton::run(folder, path, chunk, rounds);
}
