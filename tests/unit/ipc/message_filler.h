// Fills any message with distinct values, and compares any two, field by field through `fields()`:
// a new field is covered without anybody remembering it.
#pragma once

#include <cstdint>
#include <string>
#include <tuple>
#include <type_traits>
#include <vector>

#include "ipc/messages.h"

namespace baton::testing {

inline auto wire_fields(RequestId& v) { return std::tie(v.frontend, v.counter); }
inline auto wire_fields(SamplingParams& v) {
  return std::tie(v.temperature, v.top_p, v.top_k, v.min_p, v.typical_p, v.seed, v.min_tokens,
                  v.max_tokens, v.stop_ids, v.repetition_penalty, v.presence_penalty,
                  v.frequency_penalty, v.bias_tokens, v.bias_values, v.allowed_tokens, v.bad_words,
                  v.logprobs, v.prompt_logprobs, v.grammar_kind, v.grammar, v.num_beams,
                  v.num_return_sequences, v.length_penalty, v.early_stopping, v.pooling,
                  v.reasoning_budget, v.reasoning_open, v.reasoning_close);
}
template <typename T>
auto wire_fields(T& v) {
  return v.fields();
}

/// Deterministic: the n-th value of a message is always the same, and no field keeps its default.
class Filler {
 public:
  template <typename T>
  void fill(std::vector<T>& v) {
    v.resize(2);
    for (T& entry : v) {
      fill(entry);
    }
  }

  template <typename T>
  void fill(T& v) {
    ++n_;
    if constexpr (std::is_same_v<T, std::string>) {
      v = "text " + std::to_string(n_) + " \xe4\xbd\xa0";
    } else if constexpr (std::is_same_v<T, bool>) {
      v = !v;
    } else if constexpr (std::is_same_v<T, ErrorCode>) {
      v = ErrorCode::kv_exhausted;
    } else if constexpr (std::is_enum_v<T>) {
      v = static_cast<T>(1);
    } else if constexpr (std::is_same_v<T, float>) {
      v = 0.125F * static_cast<float>(n_);
    } else if constexpr (std::is_integral_v<T>) {
      fill_integer(v);
    } else {
      std::apply([this](auto&... field) { (fill(field), ...); }, wire_fields(v));
    }
  }

 private:
  /// Small, large and negative ones in turn: every width that msgpack has.
  template <typename T>
  void fill_integer(T& v) {
    constexpr std::uint64_t kWide[] = {0x11, 0xA5, 0x1234, 0x56789A, 0x7FFFFFFF};
    const std::uint64_t wide = kWide[n_ % 5] + n_;
    if (std::is_same_v<T, std::uint64_t> && n_ % 2 == 0) {
      v = static_cast<T>((wide << 32U) | 0xFEDCBA98U);
    } else if (std::is_signed_v<T> && n_ % 2 == 1) {
      v = static_cast<T>(-static_cast<T>(wide & 0xFFFFFFU));
    } else {
      v = static_cast<T>(wide & 0x7FFFFFFFU);
    }
  }

  std::uint64_t n_ = 0;
};

template <typename T>
bool same(T& a, T& b);

template <typename T>
bool same(std::vector<T>& a, std::vector<T>& b) {
  if (a.size() != b.size()) {
    return false;
  }
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (!same(a[i], b[i])) {
      return false;
    }
  }
  return true;
}

template <typename T>
bool same(T& a, T& b) {
  if constexpr (std::is_arithmetic_v<T> || std::is_enum_v<T> || std::is_same_v<T, std::string>) {
    return a == b;
  } else {
    auto fa = wire_fields(a);
    auto fb = wire_fields(b);
    return [&]<std::size_t... I>(std::index_sequence<I...>) {
      return (same(std::get<I>(fa), std::get<I>(fb)) && ...);
    }
    (std::make_index_sequence<std::tuple_size_v<decltype(fa)>>());
  }
}

template <typename M>
M filled() {
  M message;
  Filler().fill(message);
  return message;
}

/// Calls f(filled message) for every alternative of a variant.
template <typename Variant, typename F>
void for_each_message(F f) {
  [&]<typename... M>(std::in_place_type_t<std::variant<M...>>) {
    (f(filled<M>()), ...);
  }(std::in_place_type<Variant>);
}

}  // namespace baton::testing
