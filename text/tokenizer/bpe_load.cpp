// Reads a Bpe from its JSON.
#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <nlohmann/json.hpp>
#include <utility>

#include "text/tokenizer/bpe.h"
#include "text/tokenizer/space_symbol.h"
#include "text/tokenizer/spec_object.h"
#include "text/tokenizer/unicode.h"

namespace baton {
namespace {

using Json = nlohmann::json;

constexpr std::int64_t kMaxId = 4 << 20;

/// Bytes 33..126, 161..172 and 174..255 stand for themselves; the others, in order, are 256 + n.
struct ByteCharacters {
  std::array<char32_t, 256> character{};
  std::array<std::int16_t, 512> byte{};
  ByteCharacters() {
    byte.fill(-1);
    char32_t next = 256;
    for (unsigned b = 0; b < 256; ++b) {
      const bool itself = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
      character[b] = itself ? b : next++;
      byte[character[b]] = static_cast<std::int16_t>(b);
    }
  }
};

const ByteCharacters& byte_characters() {
  static const ByteCharacters table;
  return table;
}

std::string byte_token(unsigned byte) {
  static constexpr char kDigits[] = "0123456789ABCDEF";
  return std::string("<0x") + kDigits[byte >> 4] + kDigits[byte & 15] + ">";
}

}  // namespace

char32_t byte_level_character(unsigned char byte) { return byte_characters().character[byte]; }

bool byte_level_bytes(std::string_view token, std::string& bytes) {
  bytes.clear();
  while (!token.empty()) {
    const char32_t character = take_character(token);
    const int byte = character < 512 ? byte_characters().byte[character] : -1;
    if (byte < 0) return false;
    bytes.push_back(static_cast<char>(byte));
  }
  return true;
}

Result<Bpe> Bpe::parse(const Json& spec, bool byte_level, const std::string& where) {
  static std::atomic<std::uint64_t> instances{0};
  SpecObject object(spec, where);
  const std::string type = object.text("type", "BPE");
  if (object.ok() && type != "BPE") return unsupported(where, "the model '" + type + "'");
  Bpe bpe;
  bpe.instance_ = ++instances;
  bpe.byte_level_ = byte_level;
  bpe.byte_fallback_ = object.flag("byte_fallback", false);
  bpe.fuse_unk_ = object.flag("fuse_unk", false);
  bpe.ignore_merges_ = object.flag("ignore_merges", false);
  const Json& dropout = object.value("dropout");
  if (!dropout.is_null() && dropout != 0.0) return unsupported(where, "dropout");
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    if (!object.text(key, "").empty()) return unsupported(where, key);
  }
  const std::string unk = object.text("unk_token", "");
  const Json& vocab = object.value("vocab");
  const Json& merges = object.list("merges");
  if (Status status = object.finish(); !status.ok()) return status;
  if (Status status = bpe.read_vocab(vocab, where); !status.ok()) return status;
  if (Status status = bpe.read_merges(merges, where); !status.ok()) return status;
  bpe.unk_ = unk.empty() ? -1 : bpe.id_of(unk);
  if (!unk.empty() && bpe.unk_ < 0) return invalid(where + ": unk_token is not in the vocab");
  bpe.index_characters();
  bpe.find_bounds();
  return bpe;
}

Status Bpe::read_vocab(const Json& vocab, const std::string& where) {
  if (!vocab.is_object()) return invalid(where + ": 'vocab' must be an object");
  std::int64_t last = -1;
  for (const auto& [token, id] : vocab.items()) {
    if (!id.is_number_integer() || id.get<std::int64_t>() < 0 || id.get<std::int64_t>() >= kMaxId) {
      return invalid(where + ": the id of '" + token + "' must be a number below " +
                     std::to_string(kMaxId));
    }
    if (token.empty()) return unsupported(where, "an empty token");
    last = std::max(last, id.get<std::int64_t>());
  }
  tokens_.resize(static_cast<std::size_t>(last + 1));
  for (const auto& [token, id] : vocab.items()) {
    std::string& slot = tokens_[id.get<std::size_t>()];
    if (!slot.empty()) return invalid(where + ": '" + slot + "' and '" + token + "' share an id");
    slot = token;
  }
  ids_.reserve(vocab.size());
  for (std::size_t id = 0; id < tokens_.size(); ++id) {
    if (!tokens_[id].empty()) ids_.emplace(tokens_[id], static_cast<Token>(id));
  }
  return {};
}

Status Bpe::read_merges(const Json& merges, const std::string& where) {
  merges_.assign(std::bit_ceil(std::max<std::size_t>(16, merges.size() * 2)), Merge());
  merged_.reserve(merges.size());
  for (std::size_t i = 0; i < merges.size(); ++i) {
    const Json& merge = merges[i];
    std::string left;
    std::string right;
    if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
      left = merge[0].get<std::string>();
      right = merge[1].get<std::string>();
    } else if (merge.is_string()) {
      const auto& text = merge.get_ref<const std::string&>();
      const std::size_t space = text.find(' ');
      if (space != std::string::npos && text.find(' ', space + 1) == std::string::npos) {
        left = text.substr(0, space);
        right = text.substr(space + 1);
      }
    }
    const Token ids[] = {id_of(left), id_of(right), id_of(left + right)};
    if (ids[0] < 0 || ids[1] < 0 || ids[2] < 0) {
      return invalid(where + ": merge " + std::to_string(i) +
                     " is damaged, or not of tokens in the vocab");
    }
    add_merge(pair_of(ids[0], ids[1]), static_cast<std::uint32_t>(i));
    merged_.push_back(ids[2]);
  }
  return {};
}

/// Of a pair that comes twice, the last rank counts.
void Bpe::add_merge(std::uint64_t pair, std::uint32_t rank) {
  std::size_t i = slot_of(pair);
  while (merges_[i].pair != kNoPair && merges_[i].pair != pair) i = (i + 1) & (merges_.size() - 1);
  merges_[i] = {pair, rank};
}

void Bpe::index_characters() {
  for (unsigned byte = 0; byte < 256; ++byte) {
    std::string token = byte_token(byte);
    if (byte_level_) {
      token.clear();
      append_utf8(token, byte_level_character(static_cast<unsigned char>(byte)));
    }
    byte_ids_[byte] = byte_level_ || byte_fallback_ ? id_of(token) : -1;
  }
  if (byte_level_) {
    std::string bytes;
    for (std::size_t id = 0; ignore_merges_ && id < tokens_.size(); ++id) {
      if (!tokens_[id].empty() && byte_level_bytes(tokens_[id], bytes)) {
        byte_words_.emplace(bytes, static_cast<Token>(id));
      }
    }
    return;
  }
  character_ids_.assign(0x10000, -1);
  for (std::size_t id = 0; id < tokens_.size(); ++id) {
    if (tokens_[id].empty()) continue;
    std::string_view rest = tokens_[id];
    const char32_t character = take_character(rest);
    if (rest.empty() && character < character_ids_.size()) {
      character_ids_[character] = static_cast<Token>(id);
    }
  }
}

void Bpe::find_bounds() {
  const bool all_bytes =
      std::all_of(byte_ids_.begin(), byte_ids_.end(), [](Token id) { return id >= 0; });
  std::size_t longest = 4;  // an unknown character
  bool inner_space = false;
  std::string bytes;
  for (const std::string& token : tokens_) {
    longest = std::max(longest,
                       byte_level_ && byte_level_bytes(token, bytes) ? bytes.size() : token.size());
    inner_space = inner_space || has_inner_space(token);
  }
  // Otherwise a run of unknown characters may become one token, or none.
  if (all_bytes || (unk_ >= 0 && !fuse_unk_)) max_token_bytes_ = longest;
  cuts_before_spaces_ = !byte_level_ && !ignore_merges_ && !inner_space && id_of(kSpaceSymbol) >= 0;
}

}  // namespace baton
