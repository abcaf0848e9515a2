// RUN_DIR/NAME.trace: what a process does, while somebody traces; and RUN_DIR/trace.control, which
// says whether somebody does. Both are mapped: a record costs its writer no system call, and what
// it wrote outlives it, however it ends. One writer a ring; readers ask nobody.
//
// While nobody traces, there is no ring: a process has one page of trace.control mapped and looks
// at one word of it (Tracer::on()). A trace has a deadline in that page, so that it ends by itself
// if whoever asked for it dies.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "ipc/process.h"
#include "ipc/status.h"
#include "ipc/types.h"

namespace baton {

/// What a record tells; `args`, `part` and `text` are as each says. Requests are named by a
/// RequestId: the first two args.
enum class TraceKind : std::uint16_t {
  none = 0,
  life,  // the process records from here on. args: pid's start time
  // Of the scheduler.
  turn,        // one round of its loop that had work. args: messages taken, messages sent
  plan,        // a step's plan was sent. text: worker. args: term, step, rows, prompt tokens
  pull_asked,  // text: importer. args: request, pull, blocks
  part,        // a request is in `part` from `at` on. args: request
  part_end,    // ... and has ended. args: request
  lost,        // a worker's or front end's process has ended. text: its name
  // Of a worker.
  pool,        // it has a pool. args: allocation, blocks
  step_given,  // to the thread of the device. args: term, step
  step,  // args: term, step, rows << 32 | tokens, decoding rows << 32 | copies to or from the host
         // part
  pull_given,  // to the thread that copies. args: pull, allocation, blocks
  pull,        // text: why it failed. args: pull
  // Of a front end.
  request,  // its first byte came at `at`, and for `took` it was read. text: X-Request-Id.
            // args: request (of its first choice), choices << 32 | prompt tokens, when it came to
            // the loop
  first_token,  // args: request
  request_end,  // took: since its first byte. text: why. args: request, tokens, status of HTTP
  refused,  // without ever being one of the scheduler's. text: what was asked. args: status of HTTP
  // Of a memory process.
  lease,  // text: worker. args: blocks, whether they were kept
  kept,   // a worker has died and its pool is kept. text: worker. args: pid
  // Of the supervisor.
  started,  // text: process. args: pid
  ended,    // text: process and how. args: pid
};

/// A record's fixed size is what makes it cheap, and what lets a reader tell a whole one from a
/// torn one.
struct TraceRecord {
  TraceKind kind = TraceKind::none;
  std::uint16_t part = 0;  // Part
  std::uint32_t pid = 0;   // of the writer; filled in by Tracer
  TimeNs at = 0;           // monotonic
  TimeNs took = 0;
  std::array<std::uint64_t, 4> args{};
  std::array<char, 64> text{};  // ends with its first zero byte, or where it is full

  std::string_view words() const;
};
static_assert(sizeof(TraceRecord) == 120);

constexpr std::size_t kTraceRingBytes = std::size_t{2} << 20U;
constexpr std::size_t kTraceHeadBytes = 4096;
constexpr std::size_t kTraceSlotBytes = 8 + sizeof(TraceRecord);
constexpr std::size_t kTraceSlots = (kTraceRingBytes - kTraceHeadBytes) / kTraceSlotBytes;

/// Memory of a file that all who map it see.
class SharedPages {
 public:
  SharedPages() = default;
  /// Makes the file (0600) if it is not there, gives it `bytes` bytes of the disk, so that no write
  /// can fail for want of room, and maps it. `lock`: held (flock) as long as this lives; if another
  /// process holds it, the error is ErrorCode::unavailable.
  static Result<SharedPages> open(const std::string& path, std::size_t bytes, bool lock);
  ~SharedPages();
  SharedPages(SharedPages&& other) noexcept;
  SharedPages& operator=(SharedPages&& other) noexcept;
  SharedPages(const SharedPages&) = delete;
  SharedPages& operator=(const SharedPages&) = delete;

  std::byte* data() const { return data_; }
  explicit operator bool() const { return data_ != nullptr; }

 private:
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
  UniqueFd fd_;
};

/// What trace.control holds.
struct TraceControl {
  std::atomic<TimeNs> until{0};  // monotonic; 0: nobody traces
  std::atomic<std::uint64_t> session{0};
  std::atomic<std::uint64_t> layout{0};  // of records that are wanted: kTraceLayout of who asks
};
constexpr std::uint64_t kTraceLayout =
    0x4241544f4e545201;  // raised when TraceRecord or a kind changes

Result<SharedPages> open_trace_control(const std::string& run_dir);
inline TraceControl& control_of(const SharedPages& pages) {
  return *reinterpret_cast<TraceControl*>(pages.data());
}

/// A process's side. Of one thread.
class Tracer {
 public:
  /// `name`: of the process. Where trace.control cannot be had, or without a `run_dir`,
  /// nothing is ever traced.
  Tracer(const std::string& run_dir, const std::string& name);
  Tracer(const Tracer&) = delete;
  Tracer& operator=(const Tracer&) = delete;

  /// Whether records are wanted: ask before making one.
  bool on() const { return ready_ && wanted(); }
  /// Call it in every round of the loop. True once in each trace, when it begins for this process:
  /// tell then what goes on already.
  bool look(TimeNs now) { return wanted() && begin(now); }
  /// Costs a copy of 128 bytes.
  void add(TraceRecord record, std::string_view text = {});

 private:
  bool wanted() const { return control_->until.load(std::memory_order_relaxed) != 0; }
  bool begin(TimeNs now);

  const std::string path_;
  const std::uint32_t pid_;
  SharedPages control_pages_;
  SharedPages ring_;
  TraceControl* control_;
  std::uint64_t session_ = 0;  // the last one that was looked at
  TimeNs retry_ = 0;
  bool ready_ = false;  // ring_ is open for the session
};

/// Reads a ring beside its writer, or when that is gone.
class TraceReader {
 public:
  /// From the record on that is written next. With `from_start`, from the oldest one.
  static Result<TraceReader> open(const std::string& path, bool from_start);
  /// Calls `take` for each record since the last call, in order; those that were overwritten
  /// meanwhile, or half written by one who died, are counted by lost().
  void drain(const std::function<void(const TraceRecord&)>& take);
  std::uint64_t lost() const { return lost_; }
  /// The file that was opened, for telling whether another one has its name.
  std::uint64_t file() const { return file_; }

 private:
  TraceReader(UniqueFd fd, std::uint64_t file) : fd_(std::move(fd)), file_(file) {}
  UniqueFd fd_;
  std::uint64_t file_ = 0;  // its inode
  std::uint64_t next_ = 1;
  std::uint64_t lost_ = 0;
};

}  // namespace baton
