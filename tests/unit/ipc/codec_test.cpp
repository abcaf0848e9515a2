#include "ipc/codec.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <limits>
#include <map>
#include <random>
#include <set>
#include <sstream>

#include "tests/unit/ipc/message_filler.h"

namespace baton {
namespace {

using testing::filled;
using testing::for_each_message;
using testing::same;

Result<FrontendMessage> decode_as(std::string_view bytes, FrontendMessage*) {
  return decode_frontend_message(bytes);
}
Result<ToFrontend> decode_as(std::string_view bytes, ToFrontend*) {
  return decode_to_frontend(bytes);
}
Result<WorkerMessage> decode_as(std::string_view bytes, WorkerMessage*) {
  return decode_worker_message(bytes);
}
Result<ToWorker> decode_as(std::string_view bytes, ToWorker*) { return decode_to_worker(bytes); }
Result<ToMemory> decode_as(std::string_view bytes, ToMemory*) { return decode_to_memory(bytes); }
Result<FromMemory> decode_as(std::string_view bytes, FromMemory*) {
  return decode_from_memory(bytes);
}

Result<TimingRecord> decode_as(std::string_view bytes, TimingRecord*) {
  return decode_timing_record(bytes);
}

template <typename Variant>
Result<Variant> decode_as(std::string_view bytes) {
  return decode_as(bytes, static_cast<Variant*>(nullptr));
}

template <typename Variant>
class CodecDirection : public ::testing::Test {};
using Directions = ::testing::Types<FrontendMessage, ToFrontend, WorkerMessage, ToWorker, ToMemory,
                                    FromMemory, TimingRecord>;
TYPED_TEST_SUITE(CodecDirection, Directions);

TYPED_TEST(CodecDirection, RoundTripOfEveryFilledMessage) {
  int count = 0;
  for_each_message<TypeParam>([&]<typename M>(M message) {
    auto back = decode_as<TypeParam>(encode(message));
    ASSERT_TRUE(back.ok()) << MessageTag<M>::name << ": " << back.status().message();
    ASSERT_TRUE(std::holds_alternative<M>(back.value())) << MessageTag<M>::name;
    EXPECT_TRUE(same(message, std::get<M>(back.value()))) << MessageTag<M>::name;
    M other;
    EXPECT_FALSE(same(message, other)) << MessageTag<M>::name << ": the comparison sees nothing";
    ++count;
  });
  EXPECT_EQ(count, static_cast<int>(std::variant_size_v<TypeParam>));
}

TYPED_TEST(CodecDirection, RoundTripOfEveryEmptyMessage) {
  for_each_message<TypeParam>([&]<typename M>(M) {
    M message;
    auto back = decode_as<TypeParam>(encode(message));
    ASSERT_TRUE(back.ok()) << MessageTag<M>::name << ": " << back.status().message();
    EXPECT_TRUE(same(message, std::get<M>(back.value()))) << MessageTag<M>::name;
  });
}

TYPED_TEST(CodecDirection, TruncationAtEveryByteAndTrailingBytes) {
  for_each_message<TypeParam>([&]<typename M>(M message) {
    const std::string bytes = encode(message);
    for (std::size_t n = 0; n < bytes.size(); ++n) {
      // A copy of the exact length, so that AddressSanitizer sees a read beyond it.
      const std::vector<char> cut(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(n));
      EXPECT_FALSE(decode_as<TypeParam>(std::string_view(cut.data(), cut.size())).ok())
          << MessageTag<M>::name << " cut to " << n << " of " << bytes.size();
    }
    auto longer = decode_as<TypeParam>(bytes + '\0');
    ASSERT_FALSE(longer.ok());
    EXPECT_EQ(longer.status().message(), "1 bytes after the end of the message");
  });
}

TYPED_TEST(CodecDirection, MutatedBytesNeverThrowAndSurvivorsEncodeAgain) {
  std::vector<std::string> seeds;
  for_each_message<TypeParam>([&](const auto& message) { seeds.push_back(encode(message)); });
  std::mt19937_64 random(20261121);
  int accepted = 0;
  for (int round = 0; round < 25'000; ++round) {  // four directions: 100,000 in all
    std::string bytes = seeds[random() % seeds.size()];
    const int changes = 1 + static_cast<int>(random() % 4);
    for (int i = 0; i < changes && !bytes.empty(); ++i) {
      const std::size_t at = random() % bytes.size();
      switch (random() % 5) {
        case 0:
          bytes[at] = static_cast<char>(random());
          break;
        case 1:
          bytes[at] = static_cast<char>(bytes[at] ^ (1 << (random() % 8)));
          break;
        case 2:
          bytes.erase(at, 1 + random() % 8);
          break;
        case 3:
          bytes.insert(at, 1 + random() % 8, static_cast<char>(random()));
          break;
        default:  // type bytes of msgpack: lengths that lie
          bytes[at] = static_cast<char>(0xC0 + random() % 0x20);
      }
    }
    const std::vector<char> exact(bytes.begin(), bytes.end());
    auto result = decode_as<TypeParam>(std::string_view(exact.data(), exact.size()));
    if (!result.ok()) {
      ASSERT_FALSE(result.status().message().empty());
      continue;
    }
    ++accepted;
    std::visit(
        [](auto& message) {
          auto again = decode_as<TypeParam>(encode(message));
          ASSERT_TRUE(again.ok()) << again.status().message();
          using M = std::decay_t<decltype(message)>;
          EXPECT_TRUE(same(message, std::get<M>(again.value())));
        },
        result.value());
  }
  EXPECT_GT(accepted, 100);  // otherwise the mutations never get past the first bytes
}

// ------------------------------------------------------------------------------- golden bytes

std::string to_hex(const std::string& bytes) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string hex;
  for (const unsigned char c : bytes) {
    hex += kDigits[c >> 4U];
    hex += kDigits[c & 15U];
  }
  return hex;
}

std::map<std::string, std::string> current_bytes() {
  std::map<std::string, std::string> lines;
  const auto add = [&]<typename M>(const M& message) {
    lines[MessageTag<M>::name] = to_hex(encode(message));
  };
  for_each_message<FrontendMessage>(add);
  for_each_message<ToFrontend>(add);
  for_each_message<WorkerMessage>(add);
  for_each_message<ToWorker>(add);
  for_each_message<ToMemory>(add);
  for_each_message<FromMemory>(add);
  for_each_message<TimingRecord>(add);
  return lines;
}

TEST(CodecGolden, BytesOfEveryMessageAreThoseOnFile) {
  const char* source = std::getenv("BATON_SOURCE_DIR");
  const std::string path =
      std::string(source != nullptr ? source : ".") + "/tests/golden/messages.txt";
  const auto lines = current_bytes();
  if (std::getenv("BATON_REGENERATE_GOLDEN") != nullptr) {
    std::ofstream file(path);
    file << "# Bytes of every message, filled by tests/unit/ipc/message_filler.h. A change here is "
            "a\n"
            "# change of the wire format: raise kProtocolVersion, then\n"
            "#   BATON_REGENERATE_GOLDEN=1 build/cpu/tests/codec_test "
            "--gtest_filter='CodecGolden*'\n"
            "protocol "
         << kProtocolVersion << "\n";
    for (const auto& [name, hex] : lines) {
      file << name << " " << hex << "\n";
    }
    GTEST_SKIP() << "wrote " << path;
  }
  std::ifstream file(path);
  ASSERT_TRUE(file) << path;
  std::set<std::string> seen;
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line[0] == '#') {
      continue;
    }
    std::istringstream words(line);
    std::string name;
    std::string hex;
    words >> name >> hex;
    seen.insert(name);
    if (name == "protocol") {
      EXPECT_EQ(hex, std::to_string(kProtocolVersion));
    } else {
      ASSERT_TRUE(lines.count(name)) << name;
      EXPECT_EQ(hex, lines.at(name)) << name << ": the wire format changed";
    }
  }
  EXPECT_EQ(seen.size(), lines.size() + 1) << "a message has no line";
}

TEST(CodecGolden, OneMessageReadByHand) {
  Finish finish;
  finish.request = {3, 300};
  finish.attempt = 1;
  finish.n = 70'000;
  //          [3  v  tag [3 [2 3 u16 300   1 u32 70000
  EXPECT_EQ(to_hex(encode(finish)), "931604939203cd012c01ce00011170");
  Gone gone;
  gone.epoch = 1;
  gone.counters = {2};
  //          [3  v  tag [2 1 bin8 len 8, little-endian
  EXPECT_EQ(to_hex(encode(gone)), "9316169201c4080200000000000000");
}

// ------------------------------------------------------------------------------- what is refused

std::string error_of(const std::string& bytes) {
  auto result = decode_frontend_message(bytes);
  return result.ok() ? "accepted" : result.status().message();
}

/// An envelope around `body`, given as msgpack bytes.
std::string envelope(int tag, const std::string& body, int version = kProtocolVersion) {
  std::string bytes = "\x93";
  bytes += static_cast<char>(version);
  bytes += static_cast<char>(tag);
  return bytes + body;
}

TEST(CodecErrors, AnotherProtocolVersionNamesBoth) {
  auto result = decode_frontend_message(envelope(99, "\xC0", kProtocolVersion + 1));
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.status().code(), ErrorCode::unavailable);
  EXPECT_EQ(result.status().message(),
            "the peer speaks protocol version " + std::to_string(kProtocolVersion + 1) +
                ", this build speaks " + std::to_string(kProtocolVersion) +
                ": run one build of Baton everywhere");
  // Also when the rest of the envelope has changed.
  const std::string later = {'\x91', static_cast<char>(kProtocolVersion + 1)};
  EXPECT_EQ(decode_frontend_message(later).status().code(), ErrorCode::unavailable);
}

TEST(CodecErrors, SayWhatIsWrongAndWhere) {
  EXPECT_EQ(error_of(""), "empty message");
  EXPECT_EQ(error_of("\x01"), "not a Baton message: no array [version, type, body]");
  const std::string shorter = {'\x92', static_cast<char>(kProtocolVersion), '\x03'};
  EXPECT_EQ(error_of(shorter), "not a Baton message: no array [version, type, body]");
  EXPECT_EQ(error_of(envelope(99, "\x90")), "message of unknown type 99");
  EXPECT_EQ(error_of(encode(StepPlan())), "message of unknown type 62") << "for another direction";
  EXPECT_EQ(error_of(envelope(4, "\x92\x92\x01\x01\x01")), "Finish: expected an array of 3 fields");
  EXPECT_EQ(error_of(envelope(4, "\x93\x92\x01\xA1x\x01\x01")),
            "Finish: field 0: field 1: expected an integer");
  EXPECT_EQ(error_of(envelope(4, "\x93\x92\x01\x01\xFF\x01")),
            "Finish: field 1: the integer is too small");
  EXPECT_EQ(error_of(envelope(4, std::string("\x93\x92\x01\x01\xCF\x00\x00\x00\x01\x00\x00\x00\x00"
                                             "\x01",
                                             14))),
            "Finish: field 1: the integer is too large");
  EXPECT_EQ(error_of(envelope(6, std::string("\x95\x01\xC4\x07", 4) + std::string(7, 'x') +
                                     std::string("\xC4\x00\xC4\x00\xC4\x00", 6))),
            "FrontendHeartbeat: field 1: 7 bytes are no whole number of 8-byte numbers");
  EXPECT_EQ(error_of(envelope(4, "\xC1")).substr(0, 17), "malformed message");
}

TEST(CodecErrors, EnumsBeyondTheirLastValue) {
  Register message;
  message.role = static_cast<Role>(3);
  auto result = decode_worker_message(encode(message));
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.status().message(), "Register: field 4: unknown value 3");
}

TEST(CodecErrors, NumbersThatAreNotFinite) {
  Submit message;
  message.sampling.temperature = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(error_of(encode(message)), "Submit: field 11: field 0: the number is not finite");
  message.sampling.temperature = 1.0F;
  message.sampling.top_p = std::numeric_limits<float>::infinity();
  EXPECT_EQ(error_of(encode(message)), "Submit: field 11: field 1: the number is not finite");
}

TEST(CodecErrors, LengthsThatLieAreRefusedWithoutTheMemory) {
  // array32, map32, str32, bin32 and ext32 that announce 4 Gi entries.
  for (const char type : {'\xDD', '\xDF', '\xDB', '\xC6', '\xC9'}) {
    EXPECT_NE(error_of(envelope(4, std::string(1, type) + "\xFF\xFF\xFF\xFF")), "accepted");
  }
  EXPECT_NE(error_of(std::string(4096, '\x91')), "accepted") << "deep nesting";
  EXPECT_NE(error_of("\x81\x01\x01"), "accepted") << "a map";
  EXPECT_NE(error_of(std::string("\xD4\x01\x01", 3)), "accepted") << "an extension";
  FrontendHello hello;
  hello.name.assign((1U << 20U) + 1, 'x');
  EXPECT_EQ(error_of(encode(hello)).substr(0, 17), "malformed message") << "a string over 1 MiB";
  EXPECT_EQ(error_of(std::string(kMaxMessageBytes + 1, '\x91')),
            "message of 67108865 bytes; at most 67108864 are read");
}

TEST(CodecSize, ATokenCostsFourBytesWhateverItsValue) {
  Submit message;
  const std::size_t empty = encode(message).size();
  message.prompt.assign(10'000, 1);
  const std::size_t small = encode(message).size();
  message.prompt.assign(10'000, std::numeric_limits<Token>::max());
  EXPECT_EQ(encode(message).size(), small);
  EXPECT_LE(small - empty, 4 * 10'000 + 4);
}

TEST(CodecSize, ASteadyStepOf256SequencesIsAFewBytes) {
  StepPlan plan;
  plan.term = 1'800'000'000'000'000'000ULL;
  plan.step = 1'000'000;
  plan.decode = true;
  for (std::uint32_t i = 0; i < 16; ++i) {  // one sequence in 16 needs a block
    plan.grow_sequences.push_back((std::uint64_t{7} << 32U) | i);
    plan.grow_blocks.push_back(i);
  }
  EXPECT_LT(encode(plan).size(), 256U);
}

TEST(CodecBuffer, EncodeReplacesTheContentAndKeepsTheCapacity) {
  std::string buffer(10'000, 'x');
  const std::size_t capacity = buffer.capacity();
  encode(Ack(), buffer);
  EXPECT_EQ(buffer, encode(Ack()));
  EXPECT_EQ(buffer.capacity(), capacity);
}

TEST(CodecTags, AreUnique) {
  std::set<std::uint32_t> tags;
  int count = 0;
  const auto add = [&]<typename M>(const M&) {
    tags.insert(MessageTag<M>::value);
    ++count;
  };
  for_each_message<FrontendMessage>(add);
  for_each_message<ToFrontend>(add);
  for_each_message<WorkerMessage>(add);
  for_each_message<ToWorker>(add);
  for_each_message<ToMemory>(add);
  for_each_message<FromMemory>(add);
  for_each_message<TimingRecord>(add);
  EXPECT_EQ(static_cast<int>(tags.size()), count - 1) << "Refused goes to both";
}

}  // namespace
}  // namespace baton
