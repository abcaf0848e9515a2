#include "text/tokenizer/sentencepiece_model.h"

#include <optional>

namespace baton {
namespace {

// Field numbers of sentencepiece_model.proto.
constexpr std::uint32_t kModelPieces = 1;
constexpr std::uint32_t kModelTrainer = 2;
constexpr std::uint32_t kModelNormalizer = 3;
constexpr std::uint32_t kModelSelfTest = 4;
constexpr std::uint32_t kModelDenormalizer = 5;
constexpr std::uint32_t kPieceText = 1;
constexpr std::uint32_t kPieceType = 3;
constexpr std::uint32_t kTrainerModelType = 3;
constexpr std::uint64_t kModelTypeBpe = 2;
constexpr std::uint32_t kTrainerWhitespaceSuffix = 24;
constexpr std::uint32_t kNormalizerCharsmap = 2;
constexpr std::uint32_t kNormalizerDummyPrefix = 3;
constexpr std::uint32_t kNormalizerExtraSpaces = 4;

struct Field {
  std::uint32_t number = 0;
  std::uint64_t value = 0;  // of a varint
  std::string_view bytes;   // of a length-delimited field
  std::string_view whole;   // key included
};

/// Reads one protobuf message field by field.
class Reader {
 public:
  explicit Reader(std::string_view bytes) : bytes_(bytes) {}

  /// The next field; empty at the end or at damage (then failed() is true).
  std::optional<Field> next() {
    if (position_ == bytes_.size()) return std::nullopt;
    const std::size_t begin = position_;
    Field field;
    const std::uint64_t key = varint();
    field.number = static_cast<std::uint32_t>(key >> 3);
    switch (key & 7) {
      case 0:
        field.value = varint();
        break;
      case 1:
        skip(8);
        break;
      case 2: {
        const std::uint64_t size = varint();
        if (!failed_ && size <= bytes_.size() - position_) {
          field.bytes = bytes_.substr(position_, size);
        }
        skip(size);
        break;
      }
      case 5:
        skip(4);
        break;
      default:
        failed_ = true;
    }
    if (failed_) return std::nullopt;
    field.whole = bytes_.substr(begin, position_ - begin);
    return field;
  }

  bool failed() const { return failed_; }

 private:
  std::uint64_t varint() {
    std::uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      if (position_ == bytes_.size()) break;
      const auto byte = static_cast<unsigned char>(bytes_[position_++]);
      value |= static_cast<std::uint64_t>(byte & 0x7F) << shift;
      if (byte < 0x80) return value;
    }
    failed_ = true;
    return 0;
  }

  void skip(std::uint64_t size) {
    if (failed_ || size > bytes_.size() - position_) {
      failed_ = true;
      return;
    }
    position_ += size;
  }

  std::string_view bytes_;
  std::size_t position_ = 0;
  bool failed_ = false;
};

void append_varint(std::string& out, std::uint64_t value) {
  while (value >= 0x80) {
    out.push_back(static_cast<char>(value | 0x80));
    value >>= 7;
  }
  out.push_back(static_cast<char>(value));
}

bool read_piece(std::string_view bytes, SentencePieceFacts& facts) {
  std::string text;
  auto type = SentencePieceType::normal;
  Reader reader(bytes);
  while (auto field = reader.next()) {
    if (field->number == kPieceText) text = field->bytes;
    if (field->number == kPieceType) {
      if (field->value < 1 || field->value > 6) return false;
      type = static_cast<SentencePieceType>(field->value);
    }
  }
  facts.pieces.push_back(std::move(text));
  facts.types.push_back(type);
  return !reader.failed();
}

bool read_trainer(std::string_view bytes, SentencePieceFacts& facts) {
  Reader reader(bytes);
  while (auto field = reader.next()) {
    if (field->number == kTrainerModelType) facts.is_bpe = field->value == kModelTypeBpe;
    if (field->number == kTrainerWhitespaceSuffix) facts.whitespace_as_suffix = field->value != 0;
  }
  return !reader.failed();
}

bool read_normalizer(std::string_view bytes, SentencePieceFacts& facts) {
  Reader reader(bytes);
  while (auto field = reader.next()) {
    if (field->number == kNormalizerDummyPrefix) facts.add_dummy_prefix = field->value != 0;
    if (field->number == kNormalizerCharsmap) facts.has_charsmap = !field->bytes.empty();
    if (field->number == kNormalizerExtraSpaces) facts.remove_extra_whitespaces = field->value != 0;
  }
  return !reader.failed();
}

bool read_denormalizer(std::string_view bytes, SentencePieceFacts& facts) {
  Reader reader(bytes);
  while (auto field = reader.next()) {
    if (field->number == kNormalizerCharsmap) facts.has_denormalizer = !field->bytes.empty();
  }
  return !reader.failed();
}

}  // namespace

Result<SentencePieceFacts> read_sentencepiece_model(std::string_view bytes) {
  SentencePieceFacts facts;
  Reader reader(bytes);
  bool good = true;
  while (auto field = reader.next()) {
    switch (field->number) {
      case kModelPieces:
        good = good && read_piece(field->bytes, facts);
        break;
      case kModelTrainer:
        good = good && read_trainer(field->bytes, facts);
        break;
      case kModelNormalizer:
        good = good && read_normalizer(field->bytes, facts);
        break;
      case kModelDenormalizer:
        good = good && read_denormalizer(field->bytes, facts);
        break;
      default:
        break;
    }
  }
  if (!good || reader.failed() || facts.pieces.empty()) {
    return invalid("not a sentencepiece model, or a damaged one");
  }
  return facts;
}

std::string with_control_pieces(std::string_view bytes, const std::vector<bool>& chosen) {
  std::string out;
  out.reserve(bytes.size() + 16);
  std::size_t id = 0;
  Reader reader(bytes);
  while (auto field = reader.next()) {
    // The self-test compares encodings with markers in them, which are about to change.
    if (field->number == kModelSelfTest) continue;
    if (field->number != kModelPieces || !chosen[id++]) {
      out.append(field->whole);
      continue;
    }
    // Of a scalar field written twice, the last one counts.
    append_varint(out, (kModelPieces << 3) | 2);
    append_varint(out, field->bytes.size() + 2);
    out.append(field->bytes);
    append_varint(out, (kPieceType << 3) | 0);
    append_varint(out, static_cast<std::uint64_t>(SentencePieceType::control));
  }
  return out;
}

std::string without_dummy_prefix(std::string_view bytes) {
  std::string out;
  Reader reader(bytes);
  while (auto field = reader.next()) {
    if (field->number != kModelSelfTest) out.append(field->whole);
  }
  // A message field written twice is merged: this changes one field of the normalizer's settings.
  append_varint(out, (kModelNormalizer << 3) | 2);
  append_varint(out, 2);
  append_varint(out, (kNormalizerDummyPrefix << 3) | 0);
  append_varint(out, 0);
  return out;
}

}  // namespace baton
