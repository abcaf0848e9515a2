#include "scheduler/admin/kv_events.h"

#include <bit>
#include <cstddef>
#include <string_view>
#include <vector>

namespace baton {
namespace {

class Packer {
 public:
  void nil() { byte(0xC0); }
  void number(double value) {
    byte(0xCB);
    big_endian(std::bit_cast<std::uint64_t>(value), 8);
  }
  void integer(std::int64_t value) {
    if (value >= 0) return unsigned_integer(static_cast<std::uint64_t>(value));
    byte(0xD3);
    big_endian(static_cast<std::uint64_t>(value), 8);
  }
  void unsigned_integer(std::uint64_t value) {
    if (value < 0x80) return byte(static_cast<unsigned>(value));
    if (value <= 0xFFFF) {
      byte(0xCD);
      return big_endian(value, 2);
    }
    if (value <= 0xFFFFFFFF) {
      byte(0xCE);
      return big_endian(value, 4);
    }
    byte(0xCF);
    big_endian(value, 8);
  }
  void text(std::string_view value) {  // all of ours are shorter than 32 bytes
    byte(0xA0U | static_cast<unsigned>(value.size()));
    out_.append(value);
  }
  void array(std::size_t size) { sized(size, 0x90, 0xDC); }
  void map(std::size_t size) { sized(size, 0x80, 0xDE); }
  std::string take() { return std::move(out_); }

 private:
  void byte(unsigned value) { out_.push_back(static_cast<char>(value)); }
  void big_endian(std::uint64_t value, int bytes) {
    for (int i = bytes - 1; i >= 0; --i) byte((value >> (8U * static_cast<unsigned>(i))) & 0xFFU);
  }
  void sized(std::size_t size, unsigned small, unsigned large) {
    if (size < 16) return byte(small | static_cast<unsigned>(size));
    byte(size <= 0xFFFF ? large : large + 1);
    big_endian(size, size <= 0xFFFF ? 2 : 4);
  }

  std::string out_;
};

/// Events that are one of vLLM's: [first, last) of those given.
struct Run {
  std::size_t first = 0;
  std::size_t last = 0;
};

std::vector<Run> runs_of(std::span<const CacheEvent> events) {
  std::vector<Run> runs;
  for (std::size_t i = 0; i < events.size(); ++i) {
    const bool goes_on = i > 0 && events[i].what == events[i - 1].what &&
                         events[i].host == events[i - 1].host &&
                         (events[i].what == CacheEvent::What::removed ||
                          (events[i].what == CacheEvent::What::stored &&
                           events[i].parent == events[i - 1].hash));
    if (!goes_on) runs.push_back({i, i});
    runs.back().last = i + 1;
  }
  return runs;
}

class EventPacker {
 public:
  EventPacker(Packer& out, const KvEventFormat& format) : out_(out), format_(format) {}

  void pack(std::span<const CacheEvent> run) {
    const CacheEvent& first = run.front();
    switch (first.what) {
      case CacheEvent::What::stored:
        begin("BlockStored", 7);
        hashes(run);
        key("parent_block_hash");
        first.parent ? out_.unsigned_integer(*first.parent) : out_.nil();
        tokens(run);
        key("block_size");
        out_.unsigned_integer(format_.block_size);
        key("lora_id");
        out_.nil();
        medium(first);
        key("lora_name");
        return out_.nil();
      case CacheEvent::What::removed:
        begin("BlockRemoved", 2);
        hashes(run);
        return medium(first);
      case CacheEvent::What::cleared:
        return begin("AllBlocksCleared", 0);
    }
  }

 private:
  void begin(std::string_view tag, std::size_t fields) {
    format_.arrays ? out_.array(fields + 1) : out_.map(fields + 1);
    key("type");
    out_.text(tag);
  }
  void key(std::string_view name) {
    if (!format_.arrays) out_.text(name);
  }
  void hashes(std::span<const CacheEvent> run) {
    key("block_hashes");
    out_.array(run.size());
    for (const CacheEvent& event : run) out_.unsigned_integer(event.hash);
  }
  void tokens(std::span<const CacheEvent> run) {
    std::size_t count = 0;
    for (const CacheEvent& event : run) count += event.tokens.size();
    key("token_ids");
    out_.array(count);
    for (const CacheEvent& event : run) {
      for (const Token token : event.tokens) out_.integer(token);
    }
  }
  void medium(const CacheEvent& event) {
    key("medium");
    out_.text(event.host ? "CPU" : "GPU");
  }

  Packer& out_;
  const KvEventFormat& format_;
};

}  // namespace

std::string encode_kv_events(double unix_seconds, std::span<const CacheEvent> events,
                             const KvEventFormat& format) {
  Packer out;
  out.array(3);
  out.number(unix_seconds);
  const std::vector<Run> runs = runs_of(events);
  out.array(runs.size());
  EventPacker packer(out, format);
  for (const Run& run : runs) packer.pack(events.subspan(run.first, run.last - run.first));
  out.unsigned_integer(format.rank);
  return out.take();
}

}  // namespace baton
