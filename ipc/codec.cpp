#include "ipc/codec.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <exception>
#include <limits>
#include <msgpack.hpp>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "ipc/spoken_version.h"

namespace baton {
namespace {

static_assert(std::endian::native == std::endian::little,
              "vectors of numbers travel as little-endian memory");

constexpr std::size_t kMaxStringBytes = 1U << 20U;
constexpr std::size_t kMaxDepth = 8;  // StepPlan > add > AddSequence > sampling > bad_words is 6

// types.h knows nothing of the wire, so the fields of its two structs are listed here.
template <typename T>
auto fields_of(T& value) {
  return value.fields();
}
auto fields_of(const RequestId& v) { return std::tie(v.frontend, v.counter); }
auto fields_of(RequestId& v) { return std::tie(v.frontend, v.counter); }
#define BATON_SAMPLING_FIELDS(v)                                                             \
  std::tie(v.temperature, v.top_p, v.top_k, v.min_p, v.typical_p, v.seed, v.min_tokens,      \
           v.max_tokens, v.stop_ids, v.repetition_penalty, v.presence_penalty,               \
           v.frequency_penalty, v.bias_tokens, v.bias_values, v.allowed_tokens, v.bad_words, \
           v.logprobs, v.prompt_logprobs, v.grammar_kind, v.grammar, v.num_beams,            \
           v.num_return_sequences, v.length_penalty, v.early_stopping, v.pooling,            \
           v.reasoning_budget, v.reasoning_open, v.reasoning_close)
auto fields_of(const SamplingParams& v) { return BATON_SAMPLING_FIELDS(v); }
auto fields_of(SamplingParams& v) { return BATON_SAMPLING_FIELDS(v); }
#undef BATON_SAMPLING_FIELDS

template <typename T>
struct EnumBound;  // largest value
template <>
struct EnumBound<Role> : std::integral_constant<Role, Role::mixed> {};
template <>
struct EnumBound<LogitsWanted> : std::integral_constant<LogitsWanted, LogitsWanted::all> {};
template <>
struct EnumBound<GrammarKind> : std::integral_constant<GrammarKind, GrammarKind::structural_tag> {};
template <>
struct EnumBound<EarlyStopping> : std::integral_constant<EarlyStopping, EarlyStopping::never> {};
template <>
struct EnumBound<Pooling> : std::integral_constant<Pooling, Pooling::token_logits> {};
template <>
struct EnumBound<ErrorCode> : std::integral_constant<ErrorCode, ErrorCode::internal> {};

template <typename T>
constexpr bool kPacked = std::is_same_v<T, std::uint32_t> || std::is_same_v<T, std::uint64_t> ||
                         std::is_same_v<T, std::int32_t> || std::is_same_v<T, float>;

// ------------------------------------------------------------------------------------- encode

struct StringSink {
  std::string& out;
  void write(const char* bytes, std::size_t n) { out.append(bytes, n); }
};
/// msgpack's packer; floats get a way of their own, because pack(float) writes 1.0 as an integer.
class Packer : public msgpack::packer<StringSink> {
 public:
  explicit Packer(StringSink& sink) : msgpack::packer<StringSink>(sink), sink_(sink) {}

  void pack_float32(float value) {
    constexpr char kFloat32 = '\xCA';  // followed by four bytes, the highest first
    const auto bits = std::bit_cast<std::uint32_t>(value);
    const std::array<char, 5> bytes{kFloat32, static_cast<char>(bits >> 24U),
                                    static_cast<char>(bits >> 16U), static_cast<char>(bits >> 8U),
                                    static_cast<char>(bits)};
    sink_.write(bytes.data(), bytes.size());
  }

 private:
  StringSink& sink_;
};

template <typename T>
void put(Packer& packer, const T& value);

template <typename T>
void put_vector(Packer& packer, const std::vector<T>& values) {
  if constexpr (kPacked<T>) {
    const auto bytes = static_cast<std::uint32_t>(values.size() * sizeof(T));
    packer.pack_bin(bytes);
    packer.pack_bin_body(reinterpret_cast<const char*>(values.data()), bytes);
  } else {
    packer.pack_array(static_cast<std::uint32_t>(values.size()));
    for (const T& value : values) {
      put(packer, value);
    }
  }
}
template <typename T>
struct IsVector : std::false_type {};
template <typename T>
struct IsVector<std::vector<T>> : std::true_type {};

template <typename T>
void put(Packer& packer, const T& value) {
  if constexpr (std::is_enum_v<T>) {
    packer.pack(static_cast<std::uint32_t>(value));
  } else if constexpr (std::is_same_v<T, float>) {
    packer.pack_float32(value);
  } else if constexpr (std::is_integral_v<T>) {
    packer.pack(value);
  } else if constexpr (std::is_same_v<T, std::string>) {
    packer.pack_str(static_cast<std::uint32_t>(value.size()));
    packer.pack_str_body(value.data(), static_cast<std::uint32_t>(value.size()));
  } else if constexpr (IsVector<T>::value) {
    put_vector(packer, value);
  } else {
    std::apply(
        [&packer](const auto&... field) {
          packer.pack_array(sizeof...(field));
          (put(packer, field), ...);
        },
        fields_of(value));
  }
}

// ------------------------------------------------------------------------------------- decode

/// Reads msgpack objects into typed fields; on the first thing that does not fit says what and
/// where.
class Reader {
 public:
  const std::string& error() const { return error_; }

  template <typename T>
  bool get(const msgpack::object& object, T& value) {
    if constexpr (std::is_same_v<T, bool>) {
      return object.type == msgpack::type::BOOLEAN ? (value = object.via.boolean, true)
                                                   : fail("expected a bool");
    } else if constexpr (std::is_enum_v<T>) {
      return get_enum(object, value);
    } else if constexpr (std::is_integral_v<T>) {
      return get_integer(object, value);
    } else if constexpr (std::is_same_v<T, float>) {
      return get_float(object, value);
    } else if constexpr (std::is_same_v<T, std::string>) {
      return get_string(object, value);
    } else if constexpr (IsVector<T>::value) {
      return get_vector(object, value);
    } else {
      return get_fields(object, value);
    }
  }

 private:
  bool fail(std::string what) {
    error_ = std::move(what);
    return false;
  }

  template <typename T>
  bool get_integer(const msgpack::object& object, T& value) {
    if (object.type == msgpack::type::POSITIVE_INTEGER) {
      if (object.via.u64 > static_cast<std::uint64_t>(std::numeric_limits<T>::max())) {
        return fail("the integer is too large");
      }
      value = static_cast<T>(object.via.u64);
      return true;
    }
    if (object.type == msgpack::type::NEGATIVE_INTEGER) {
      if (std::is_unsigned_v<T> ||
          object.via.i64 < static_cast<std::int64_t>(std::numeric_limits<T>::min())) {
        return fail("the integer is too small");
      }
      value = static_cast<T>(object.via.i64);
      return true;
    }
    return fail("expected an integer");
  }

  template <typename T>
  bool get_enum(const msgpack::object& object, T& value) {
    std::uint32_t number = 0;
    if (!get_integer(object, number)) {
      return false;
    }
    if (number > static_cast<std::uint32_t>(EnumBound<T>::value)) {
      return fail("unknown value " + std::to_string(number));
    }
    value = static_cast<T>(number);
    return true;
  }

  bool get_float(const msgpack::object& object, float& value) {
    if (object.type != msgpack::type::FLOAT32) {
      return fail("expected a float32");
    }
    value = static_cast<float>(object.via.f64);
    return std::isfinite(value) || fail("the number is not finite");
  }

  bool get_string(const msgpack::object& object, std::string& value) {
    if (object.type != msgpack::type::STR) {
      return fail("expected a string");
    }
    value.assign(object.via.str.ptr, object.via.str.size);
    return true;
  }

  template <typename T>
  bool get_vector(const msgpack::object& object, std::vector<T>& values) {
    if constexpr (kPacked<T>) {
      if (object.type != msgpack::type::BIN) {
        return fail("expected packed numbers");
      }
      const std::size_t bytes = object.via.bin.size;
      if (bytes % sizeof(T) != 0) {
        return fail(std::to_string(bytes) + " bytes are no whole number of " +
                    std::to_string(sizeof(T)) + "-byte numbers");
      }
      values.resize(bytes / sizeof(T));
      if (bytes != 0) {
        std::memcpy(values.data(), object.via.bin.ptr, bytes);
      }
      if constexpr (std::is_same_v<T, float>) {
        for (const float value : values) {
          if (!std::isfinite(value)) return fail("a number is not finite");
        }
      }
      return true;
    } else {
      if (object.type != msgpack::type::ARRAY) {
        return fail("expected an array");
      }
      const msgpack::object_array& array = object.via.array;
      values.clear();
      values.resize(array.size);
      for (std::uint32_t i = 0; i < array.size; ++i) {
        if (!get(array.ptr[i], values[i])) {
          return fail("entry " + std::to_string(i) + ": " + error_);
        }
      }
      return true;
    }
  }

  template <typename T>
  bool get_fields(const msgpack::object& object, T& value) {
    auto fields = fields_of(value);
    constexpr std::size_t kCount = std::tuple_size_v<decltype(fields)>;
    if (object.type != msgpack::type::ARRAY || object.via.array.size != kCount) {
      return fail("expected an array of " + std::to_string(kCount) + " fields");
    }
    std::uint32_t index = 0;
    const bool good = std::apply(
        [&](auto&... field) { return (get(object.via.array.ptr[index++], field) && ...); }, fields);
    return good || fail("field " + std::to_string(index - 1) + ": " + error_);
  }

  std::string error_;
};

bool refer_to_buffer(msgpack::type::object_type /*type*/, std::size_t /*size*/, void* /*user*/) {
  return true;  // strings and bins stay where they are; they are copied once, into the message
}

/// The alternative of Variant whose tag is `tag`, read from `body`.
template <typename Variant>
Result<Variant> read_body(std::uint64_t tag, const msgpack::object& body) {
  Reader reader;
  std::optional<Variant> found;
  const char* name = nullptr;
  const auto try_one = [&]<typename M>(std::in_place_type_t<M>) {
    if (tag != MessageTag<M>::value) {
      return false;
    }
    name = MessageTag<M>::name;
    M message;
    if (reader.get(body, message)) {
      found.emplace(std::move(message));
    }
    return true;
  };
  const bool known = [&]<typename... M>(std::in_place_type_t<std::variant<M...>>) {
    return (try_one(std::in_place_type<M>) || ...);
  }(std::in_place_type<Variant>);
  if (!known) {
    return invalid("message of unknown type " + std::to_string(tag));
  }
  if (!found) {
    return invalid(std::string(name) + ": " + reader.error());
  }
  return *std::move(found);
}

template <typename Variant>
Result<Variant> read_envelope(const msgpack::object& root) {
  const auto& array = root.via.array;
  if (root.type != msgpack::type::ARRAY || array.size < 1 ||
      array.ptr[0].type != msgpack::type::POSITIVE_INTEGER) {
    return invalid("not a Baton message: no array [version, type, body]");
  }
  if (array.ptr[0].via.u64 != kSpokenVersion) {
    return Status(ErrorCode::unavailable,
                  "the peer speaks protocol version " + std::to_string(array.ptr[0].via.u64) +
                      ", this build speaks " + std::to_string(kSpokenVersion) +
                      ": run one build of Baton everywhere");
  }
  if (array.size != 3 || array.ptr[1].type != msgpack::type::POSITIVE_INTEGER) {
    return invalid("not a Baton message: no array [version, type, body]");
  }
  return read_body<Variant>(array.ptr[1].via.u64, array.ptr[2]);
}

template <typename Variant>
Result<Variant> decode(std::string_view bytes) {
  if (bytes.empty()) {
    return invalid("empty message");
  }
  if (bytes.size() > kMaxMessageBytes) {
    return invalid("message of " + std::to_string(bytes.size()) + " bytes; at most " +
                   std::to_string(kMaxMessageBytes) + " are read");
  }
  // No array can have more entries than the message has bytes: bounds what a short lie allocates.
  const std::size_t entries = std::min(kMaxArrayEntries, bytes.size());
  const msgpack::unpack_limit limits(entries, /*map=*/0, kMaxStringBytes, kMaxMessageBytes,
                                     /*ext=*/0, kMaxDepth);
  // The zone holds the parsed arrays; its first piece (64 KiB) is kept from message to message.
  thread_local msgpack::zone zone(64U << 10U);
  struct Clear {
    ~Clear() { zone.clear(); }
  } clear;
  try {
    std::size_t used = 0;
    const msgpack::object root =
        msgpack::unpack(zone, bytes.data(), bytes.size(), used, refer_to_buffer, nullptr, limits);
    if (used != bytes.size()) {
      return invalid(std::to_string(bytes.size() - used) + " bytes after the end of the message");
    }
    return read_envelope<Variant>(root);
  } catch (const msgpack::insufficient_bytes&) {
    return invalid("the message is truncated");
  } catch (const std::exception& error) {  // size limits, malformed bytes, no memory
    return invalid(std::string("malformed message: ") + error.what());
  }
}

}  // namespace

template <typename M>
void encode(const M& message, std::string& out) {
  out.clear();
  StringSink sink{out};
  Packer packer(sink);
  packer.pack_array(3);
  packer.pack(kSpokenVersion);
  packer.pack(MessageTag<M>::value);
  put(packer, message);
}

Result<FrontendMessage> decode_frontend_message(std::string_view bytes) {
  return decode<FrontendMessage>(bytes);
}
Result<ToFrontend> decode_to_frontend(std::string_view bytes) { return decode<ToFrontend>(bytes); }
Result<WorkerMessage> decode_worker_message(std::string_view bytes) {
  return decode<WorkerMessage>(bytes);
}
Result<ToWorker> decode_to_worker(std::string_view bytes) { return decode<ToWorker>(bytes); }
Result<ToMemory> decode_to_memory(std::string_view bytes) { return decode<ToMemory>(bytes); }
Result<FromMemory> decode_from_memory(std::string_view bytes) { return decode<FromMemory>(bytes); }
Result<TimingRecord> decode_timing_record(std::string_view bytes) {
  return decode<TimingRecord>(bytes);
}

#define BATON_ENCODE(type) template void encode<type>(const type&, std::string&)
BATON_ENCODE(FrontendHello);
BATON_ENCODE(Submit);
BATON_ENCODE(Cancel);
BATON_ENCODE(Finish);
BATON_ENCODE(Ack);
BATON_ENCODE(FrontendHeartbeat);
BATON_ENCODE(FrontendBye);
BATON_ENCODE(FrontendWelcome);
BATON_ENCODE(Events);
BATON_ENCODE(Gone);
BATON_ENCODE(FrontendUnknown);
BATON_ENCODE(Register);
BATON_ENCODE(Hello);
BATON_ENCODE(StepResult);
BATON_ENCODE(PullDone);
BATON_ENCODE(PullFailed);
BATON_ENCODE(Closed);
BATON_ENCODE(WorkerHeartbeat);
BATON_ENCODE(Tables);
BATON_ENCODE(GrammarState);
BATON_ENCODE(WorkerBye);
BATON_ENCODE(Registered);
BATON_ENCODE(Welcome);
BATON_ENCODE(StepPlan);
BATON_ENCODE(Pull);
BATON_ENCODE(Close);
BATON_ENCODE(Fenced);
BATON_ENCODE(Superseded);
BATON_ENCODE(AuditTables);
BATON_ENCODE(PrepareGrammar);
BATON_ENCODE(Leave);
BATON_ENCODE(TakeRole);
BATON_ENCODE(Refused);
BATON_ENCODE(Lease);
BATON_ENCODE(Leased);
BATON_ENCODE(WeightsAsk);
BATON_ENCODE(WeightsGiven);
BATON_ENCODE(WeightsSealed);
BATON_ENCODE(MemoryCommand);
BATON_ENCODE(PoolMapped);
BATON_ENCODE(MemoryReport);
BATON_ENCODE(ExplainedRequest);
#undef BATON_ENCODE

}  // namespace baton
