// What the sentencepiece library does not tell about a model file, read from its protobuf bytes.
// Only the few fields that matter here are known; everything else is copied as it is.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "ipc/status.h"

namespace baton {

/// ModelProto.SentencePiece.Type.
enum class SentencePieceType : std::uint8_t {
  normal = 1,
  unknown = 2,
  control = 3,
  user_defined = 4,
  unused = 5,
  byte = 6,
};

struct SentencePieceFacts {
  std::vector<std::string> pieces;       // by id
  std::vector<SentencePieceType> types;  // by id
  bool is_bpe = false;
  bool add_dummy_prefix = true;
  bool remove_extra_whitespaces = true;
  bool whitespace_as_suffix = false;
  bool has_denormalizer = false;
  bool has_charsmap = false;  // the normalizer rewrites characters
};

/// Reads a serialised model. Every length is checked; damage is an error.
Result<SentencePieceFacts> read_sentencepiece_model(std::string_view bytes);

/// The same model with the chosen pieces turned into control symbols, which never parse out of
/// text. Precondition: read_sentencepiece_model accepted `bytes` and `chosen` has one entry a
/// piece.
std::string with_control_pieces(std::string_view bytes, const std::vector<bool>& chosen);

/// The same model without the space that it puts before every text.
std::string without_dummy_prefix(std::string_view bytes);

}  // namespace baton
