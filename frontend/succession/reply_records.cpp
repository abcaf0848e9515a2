#include "frontend/succession/reply_records.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

namespace baton {
namespace {

enum class Kind : std::uint8_t {
  opening = 1,
  begins,
  token,
  ends,
  probed,
  fails,
  whole,
  attempt,
  timed,
  got_on,
  idled,
};

class RecordWriter {
 public:
  explicit RecordWriter(std::string& out) : out_(out) {}
  template <typename T>
  void put(T value) {
    static_assert(std::is_arithmetic_v<T> || std::is_enum_v<T>);
    char bytes[sizeof value];
    std::memcpy(bytes, &value, sizeof value);
    out_.append(bytes, sizeof value);
  }
  template <typename List>
  void put_list(const List& list) {
    put(static_cast<std::uint32_t>(list.size()));
    if (list.empty()) return;
    out_.append(reinterpret_cast<const char*>(list.data()), list.size() * sizeof list[0]);
  }

 private:
  std::string& out_;
};

/// After the first thing that is not there, all are zero or empty, and good() is false.
class RecordReader {
 public:
  explicit RecordReader(std::string_view bytes) : bytes_(bytes) {}
  template <typename T>
  T take() {
    T value{};
    if (bytes_.size() < sizeof value) return fail(value);
    std::memcpy(&value, bytes_.data(), sizeof value);
    bytes_.remove_prefix(sizeof value);
    return value;
  }
  bool take_bool() {
    const auto value = take<std::uint8_t>();
    if (value > 1) fail(value);
    return value == 1;
  }
  std::string_view take_text() {
    const auto size = take<std::uint32_t>();
    if (size > bytes_.size()) return fail(std::string_view{});
    const std::string_view text = bytes_.substr(0, size);
    bytes_.remove_prefix(size);
    return text;
  }
  template <typename T>
  void take_list(std::vector<T>& list) {
    const auto size = take<std::uint32_t>();
    list.clear();
    if (size > bytes_.size() / sizeof(T)) {
      fail(size);
      return;
    }
    list.resize(size);
    if (size > 0) std::memcpy(list.data(), bytes_.data(), size * sizeof(T));
    bytes_.remove_prefix(size * sizeof(T));
  }
  /// All was there, and nothing else.
  bool good() const { return !failed_ && bytes_.empty(); }

 private:
  template <typename T>
  T fail(T value) {
    failed_ = true;
    bytes_ = {};
    return value;
  }
  std::string_view bytes_;
  bool failed_ = false;
};

void put_logprobs(RecordWriter& writer, const Logprobs& values) {
  writer.put_list(values.items);
  writer.put_list(values.logprobs);
  writer.put_list(values.counts);
  writer.put_list(values.top_tokens);
  writer.put_list(values.top_logprobs);
}

void take_logprobs(RecordReader& reader, Logprobs& values) {
  reader.take_list(values.items);
  reader.take_list(values.logprobs);
  reader.take_list(values.counts);
  reader.take_list(values.top_tokens);
  reader.take_list(values.top_logprobs);
}

void put(RecordWriter& writer, const ChoiceBegins& event) {
  writer.put(event.choice);
  writer.put(event.cached_tokens);
  writer.put<std::uint8_t>(event.prompt != nullptr);
  if (event.prompt != nullptr) put_logprobs(writer, *event.prompt);
}

void put(RecordWriter& writer, const TokenCame& event) {
  writer.put(event.choice);
  writer.put(event.token);
  writer.put<std::uint8_t>(event.logprobs != nullptr);
  if (event.logprobs == nullptr) return;
  writer.put(event.logprobs->logprob);
  writer.put_list(event.logprobs->top_tokens);
  writer.put_list(event.logprobs->top_logprobs);
  if (!event.logprobs->vector.empty()) writer.put_list(event.logprobs->vector);
}

void put(RecordWriter& writer, const ChoiceEnds& event) {
  writer.put(event.choice);
  writer.put(event.reason);
  writer.put<std::uint8_t>(event.score.has_value());
  if (event.score) writer.put(*event.score);
  writer.put_list(event.lifetime);
}

void put(RecordWriter& /*writer*/, const ClientProbed& /*event*/) {}

void put(RecordWriter& writer, const ReplyFails& event) {
  writer.put(event.code);
  writer.put(event.retry_after_s);
  writer.put_list(event.message);
}

void put(RecordWriter& writer, const ReplyTimed& event) {
  writer.put(event.decode_steps);
  writer.put(event.median_gap);
  writer.put_list(event.spent);
}

void put(RecordWriter& writer, const PromptGotOn& event) {
  writer.put(event.choice);
  writer.put(event.done);
  writer.put(event.cached);
  writer.put(event.took);
}

void put(RecordWriter& /*writer*/, const StreamIdled& /*event*/) {}

/// What an opening may have, as bits; a build for one model reads no more than the first.
constexpr std::uint8_t kRendered = 1;
constexpr std::uint8_t kOfSeveral = 2;
constexpr std::uint8_t kNamed = 4;  // of several alone

/// Later than any time of this century, and small enough that two of them can be added.
constexpr TimeNs kLatest = TimeNs{1} << 61;
constexpr ErrorCode kLastErrorCode = ErrorCode::internal;
constexpr Kind kKinds[] = {Kind::begins, Kind::token, Kind::ends,   Kind::probed,
                           Kind::fails,  Kind::timed, Kind::got_on, Kind::idled};
static_assert(std::size(kKinds) == std::variant_size_v<ReplyEvent>);

ChoiceBegins take_begins(RecordReader& reader, Logprobs& prompt) {
  ChoiceBegins made;
  made.choice = reader.take<std::uint32_t>();
  made.cached_tokens = reader.take<std::uint32_t>();
  if (!reader.take_bool()) return made;
  take_logprobs(reader, prompt);
  made.prompt = &prompt;
  return made;
}

TokenCame take_token(RecordReader& reader, LogprobReader::Entry& entry, std::vector<Token>& tops,
                     std::vector<float>& values, std::vector<float>& vector) {
  TokenCame made;
  made.choice = reader.take<std::uint32_t>();
  made.token = reader.take<Token>();
  if (!reader.take_bool()) return made;
  entry.logprob = reader.take<float>();
  reader.take_list(tops);
  reader.take_list(values);
  entry.top_tokens = tops;
  entry.top_logprobs = values;
  vector.clear();
  if (!reader.good()) reader.take_list(vector);  // most have none
  entry.vector = vector;
  made.logprobs = &entry;
  return made;
}

ChoiceEnds take_ends(RecordReader& reader, std::vector<TimeNs>& lifetime) {
  ChoiceEnds made;
  made.choice = reader.take<std::uint32_t>();
  made.reason = reader.take<FinishReason>();
  if (reader.take_bool()) made.score = reader.take<float>();
  reader.take_list(lifetime);
  made.lifetime = lifetime;
  return made;
}

ReplyFails take_fails(RecordReader& reader) {
  ReplyFails made;
  made.code = reader.take<ErrorCode>();
  made.retry_after_s = reader.take<std::uint32_t>();
  made.message = reader.take_text();
  return made;
}

ReplyTimed take_timed(RecordReader& reader, std::vector<TimeNs>& spent) {
  ReplyTimed made;
  made.decode_steps = reader.take<std::uint32_t>();
  made.median_gap = reader.take<TimeNs>();
  reader.take_list(spent);
  made.spent = spent;
  return made;
}

PromptGotOn take_got_on(RecordReader& reader) {
  PromptGotOn made;
  made.choice = reader.take<std::uint32_t>();
  made.done = reader.take<std::uint32_t>();
  made.cached = reader.take<std::uint32_t>();
  made.took = reader.take<TimeNs>();
  return made;
}

bool known(std::span<const Token> tokens, std::uint32_t vocabulary) {
  return std::all_of(tokens.begin(), tokens.end(), [&](Token token) {
    return token >= 0 && static_cast<std::uint32_t>(token) < vocabulary;
  });
}

}  // namespace

std::string encode_opening(const ReplyOpening& opening) {
  std::string out;
  RecordWriter writer(out);
  writer.put(Kind::opening);
  writer.put(opening.place.request_at);
  writer.put(opening.place.begins_at);
  writer.put_list(opening.facts.request_id);
  writer.put(opening.facts.received);
  writer.put(opening.facts.wall_offset);
  writer.put(opening.facts.max_context);
  writer.put(opening.facts.seed);
  writer.put(opening.first_counter);
  writer.put_list(opening.fingerprint);
  const bool several = !opening.entry.empty();
  const bool named = several && !opening.model.empty();
  writer.put(static_cast<std::uint8_t>((opening.rendered ? kRendered : 0) |
                                       (several ? kOfSeveral : 0) | (named ? kNamed : 0)));
  if (opening.rendered) writer.put_list(*opening.rendered);
  if (several) {
    writer.put_list(opening.entry);
    writer.put(opening.identity);
  }
  if (named) writer.put_list(opening.model);
  // What most replies do not have is left out: of the first, if the second is there, all but that.
  const bool limits = !opening.facts.limits.empty();
  if (limits || !opening.facts.load.empty()) writer.put_list(opening.facts.load);
  if (limits) writer.put_list(opening.facts.limits);
  return out;
}

std::string encode_whole(const ReplyPlace& place, bool keep_alive, std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size() + 32);
  RecordWriter writer(out);
  writer.put(Kind::whole);
  writer.put(place.request_at);
  writer.put(place.begins_at);
  writer.put<std::uint8_t>(keep_alive);
  writer.put_list(bytes);
  return out;
}

Result<AnyOpening> decode_opening(std::string_view record) {
  RecordReader reader(record);
  const auto kind = reader.take<Kind>();
  if (kind != Kind::opening && kind != Kind::whole) return invalid("journal: no opening");
  ReplyPlace place;
  place.request_at = reader.take<std::uint64_t>();
  place.begins_at = reader.take<std::uint64_t>();
  if (kind == Kind::whole) {
    WholeReply whole;
    whole.place = place;
    whole.keep_alive = reader.take_bool();
    whole.bytes = reader.take_text();
    if (!reader.good()) return invalid("journal: a whole reply of the wrong length");
    return AnyOpening(std::move(whole));
  }
  ReplyOpening opening;
  opening.place = place;
  opening.facts.request_id = reader.take_text();
  opening.facts.received = reader.take<TimeNs>();
  opening.facts.wall_offset = reader.take<TimeNs>();
  opening.facts.max_context = reader.take<std::uint32_t>();
  opening.facts.seed = reader.take<std::uint64_t>();
  opening.first_counter = reader.take<std::uint64_t>();
  opening.fingerprint = reader.take_text();
  const auto parts = reader.take<std::uint8_t>();
  if ((parts & kRendered) != 0) opening.rendered = reader.take_text();
  if ((parts & kOfSeveral) != 0) {
    opening.entry = reader.take_text();
    opening.identity = reader.take<std::uint64_t>();
  }
  if ((parts & kNamed) != 0) opening.model = reader.take_text();
  if (!reader.good()) opening.facts.load = reader.take_text();
  if (!reader.good()) opening.facts.limits = reader.take_text();
  if (!reader.good()) return invalid("journal: an opening of the wrong length");
  if ((parts & ~(kRendered | kOfSeveral | kNamed)) != 0)
    return invalid("journal: an opening of more parts");
  if ((parts & kNamed) != 0 && (opening.entry.empty() || opening.model.empty()))
    return invalid("journal: an opening with a name of no model");
  if (opening.facts.received < 0 || opening.facts.received > kLatest ||
      opening.facts.wall_offset < -kLatest || opening.facts.wall_offset > kLatest) {
    return invalid("journal: an opening at no possible time");
  }
  return AnyOpening(std::move(opening));
}

void encode_attempt(const AttemptSent& sent, std::string& out) {
  RecordWriter writer(out);
  writer.put(Kind::attempt);
  writer.put(TimeNs{0});
  writer.put(sent.request);
  writer.put(sent.attempt);
}

/// FNV-1a over words of 8 bytes: it need not stand up to anybody, only show another build's bytes,
/// and each event passes here.
MadeBytes made(std::string_view bytes) {
  constexpr std::uint64_t kPrime = 1099511628211U;
  std::uint64_t sum = 14695981039346656037U;
  const auto size = static_cast<std::uint32_t>(bytes.size());
  for (; bytes.size() >= 8; bytes.remove_prefix(8)) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes.data(), 8);
    sum = (sum ^ word) * kPrime;
  }
  for (const char c : bytes) sum = (sum ^ static_cast<unsigned char>(c)) * kPrime;
  return {size, static_cast<std::uint32_t>(sum ^ sum >> 32)};
}

void encode_event(const ReplyEvent& event, TimeNs time, const MadeBytes& bytes, std::string& out) {
  RecordWriter writer(out);
  writer.put(kKinds[event.index()]);
  writer.put(time);
  writer.put(bytes.size);
  writer.put(bytes.sum);
  std::visit([&](const auto& what) { put(writer, what); }, event);
}

Status DecodedEvent::decode(std::string_view record, const EventBounds& bounds) {
  RecordReader reader(record);
  const auto kind = reader.take<Kind>();
  time = reader.take<TimeNs>();
  bool good = time >= 0 && time <= kLatest;
  attempt.reset();
  if (kind == Kind::attempt) {
    attempt = AttemptSent{reader.take<std::uint32_t>(), reader.take<std::uint32_t>()};
    good = good && attempt->request < bounds.requests && attempt->attempt > 0;
    if (!good || !reader.good()) return invalid("journal: an attempt that cannot be");
    return {};
  }
  bytes.size = reader.take<std::uint32_t>();
  bytes.sum = reader.take<std::uint32_t>();
  switch (kind) {
    case Kind::begins: {
      auto& made = event.emplace<ChoiceBegins>(take_begins(reader, prompt_));
      good = good && made.choice < bounds.choices;
      if (made.prompt != nullptr)
        good = good && prompt_.agrees() && known(prompt_.top_tokens, bounds.vocabulary);
      break;
    }
    case Kind::token: {
      auto& made =
          event.emplace<TokenCame>(take_token(reader, entry_, tops_, top_logprobs_, vector_));
      good = good && made.choice < bounds.choices && known({&made.token, 1}, bounds.vocabulary);
      if (made.logprobs != nullptr)
        good = good && tops_.size() == top_logprobs_.size() && known(tops_, bounds.vocabulary) &&
               vector_.size() <= SamplingParams::kMaxPooled;
      break;
    }
    case Kind::ends: {
      auto& made = event.emplace<ChoiceEnds>(take_ends(reader, lifetime_));
      good = good && made.choice < bounds.choices &&
             (made.reason == FinishReason::stop || made.reason == FinishReason::length) &&
             (lifetime_.empty() || lifetime_.size() == kLifetimeMoments);
      break;
    }
    case Kind::probed:
      event = ClientProbed{};
      break;
    case Kind::fails: {
      auto& made = event.emplace<ReplyFails>(take_fails(reader));
      good = good && made.code != ErrorCode::ok && made.code <= kLastErrorCode;
      break;
    }
    case Kind::timed: {
      auto& made = event.emplace<ReplyTimed>(take_timed(reader, spent_));
      good = good && spent_.size() == kParts && made.median_gap >= 0 && made.median_gap <= kLatest;
      for (const TimeNs part : spent_) good = good && part >= 0 && part <= kLatest / 16;
      break;
    }
    case Kind::got_on: {
      const auto& made = event.emplace<PromptGotOn>(take_got_on(reader));
      good = good && made.choice < bounds.choices && made.cached <= made.done && made.took >= 0 &&
             made.took <= kLatest;
      break;
    }
    case Kind::idled:
      event = StreamIdled{};
      break;
    default:
      return invalid("journal: a record of no known kind");
  }
  if (!good || !reader.good()) return invalid("journal: an event that cannot be");
  return {};
}

}  // namespace baton
