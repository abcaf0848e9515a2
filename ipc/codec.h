// Messages <-> bytes. The only place that knows msgpack; no sockets.
//
// Wire format: a msgpack array [kProtocolVersion, type tag, body], the body an array with one entry
// a field, in the order of `fields()`. Vectors of integers travel as one msgpack `bin` of
// little-endian integers, vectors of structs as arrays, enums as integers, floats as float32.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "ipc/messages.h"
#include "ipc/status.h"

namespace baton {

/// Largest message that decode_* looks at; channels refuse larger ones before (see ChannelOptions).
constexpr std::size_t kMaxMessageBytes = 64U << 20U;
/// Most entries of an array of structs, or of a vector of vectors (the copies of one StepPlan: all
/// blocks of a long sequence come back from the host part at once).
constexpr std::size_t kMaxArrayEntries = 1U << 20U;

/// The number on the wire of each message type; stable, never reused. Specialised for every
/// message.
template <typename M>
struct MessageTag;

#define BATON_TAG(type, number)                    \
  template <>                                      \
  struct MessageTag<type> {                        \
    static constexpr std::uint32_t value = number; \
    static constexpr const char* name = #type;     \
  }
// front end -> scheduler
BATON_TAG(FrontendHello, 1);
BATON_TAG(Submit, 2);
BATON_TAG(Cancel, 3);
BATON_TAG(Finish, 4);
BATON_TAG(Ack, 5);
BATON_TAG(FrontendHeartbeat, 6);
BATON_TAG(FrontendBye, 7);
// scheduler -> front end
BATON_TAG(FrontendWelcome, 20);
BATON_TAG(Events, 21);
BATON_TAG(Gone, 22);
BATON_TAG(FrontendUnknown, 23);
// worker -> scheduler
BATON_TAG(Register, 40);
BATON_TAG(Hello, 41);
BATON_TAG(StepResult, 42);
BATON_TAG(PullDone, 43);
BATON_TAG(PullFailed, 44);
BATON_TAG(Closed, 45);
BATON_TAG(WorkerHeartbeat, 46);
BATON_TAG(Tables, 47);
BATON_TAG(WorkerBye, 48);
BATON_TAG(GrammarState, 49);
// scheduler -> worker
BATON_TAG(Registered, 60);
BATON_TAG(Welcome, 61);
BATON_TAG(StepPlan, 62);
BATON_TAG(Pull, 63);
BATON_TAG(Close, 64);
BATON_TAG(Fenced, 65);
BATON_TAG(Superseded, 66);
BATON_TAG(AuditTables, 67);
BATON_TAG(Leave, 68);
BATON_TAG(PrepareGrammar, 69);
BATON_TAG(TakeRole, 70);
// scheduler -> anybody
BATON_TAG(Refused, 80);
// worker, baton-ctl -> memory process
BATON_TAG(Lease, 90);
BATON_TAG(WeightsAsk, 91);
BATON_TAG(WeightsSealed, 92);
BATON_TAG(MemoryCommand, 93);
BATON_TAG(PoolMapped, 94);
// memory process -> worker, baton-ctl
BATON_TAG(Leased, 95);
BATON_TAG(WeightsGiven, 96);
BATON_TAG(MemoryReport, 97);
// front end -> its own file
BATON_TAG(ExplainedRequest, 110);
#undef BATON_TAG

/// Replaces the content of `out` (its capacity is reused) by the bytes of `message`. M is any
/// message struct of messages.h. Never fails; floats must be finite, or the receiver refuses the
/// message.
template <typename M>
void encode(const M& message, std::string& out);

template <typename M>
std::string encode(const M& message) {
  std::string out;
  encode(message, out);
  return out;
}

/// Bytes -> message. Never throws, whatever the bytes. Errors: ErrorCode::unavailable when the peer
/// speaks another protocol version (the text names both), ErrorCode::invalid_argument for
/// everything else (truncated, trailing bytes, unknown tag, wrong type or count, a number out of
/// range, a size beyond the limits); the text names the message and the field's index.
Result<FrontendMessage> decode_frontend_message(std::string_view bytes);
Result<ToFrontend> decode_to_frontend(std::string_view bytes);
Result<WorkerMessage> decode_worker_message(std::string_view bytes);
Result<ToWorker> decode_to_worker(std::string_view bytes);
Result<ToMemory> decode_to_memory(std::string_view bytes);
Result<FromMemory> decode_from_memory(std::string_view bytes);
Result<TimingRecord> decode_timing_record(std::string_view bytes);

}  // namespace baton
