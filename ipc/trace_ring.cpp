#include "ipc/trace_ring.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

namespace baton {
namespace {

using Word = std::atomic<std::uint64_t>;
static_assert(Word::is_always_lock_free && sizeof(Word) == 8);
constexpr std::size_t kWords = sizeof(TraceRecord) / 8;
constexpr TimeNs kRetry = 50 * kMillisecond;

/// The beginning of a ring.
struct RingHead {
  Word layout{0};
  Word next{0};  // number of the record that is written next; raised before its slot is touched
};

/// Numbers begin with 1; a slot whose number is 0 is being written.
struct RingSlot {
  Word number{0};
  std::array<Word, kWords> words{};
};
static_assert(sizeof(RingSlot) == kTraceSlotBytes);

Status failed(const std::string& path, const char* what, int error) {
  return {ErrorCode::internal, path + ": " + what + ": " + std::strerror(error)};
}

/// What a process looks at that has no trace.control.
TraceControl& never() {
  static TraceControl control;
  return control;
}

}  // namespace

std::string_view TraceRecord::words() const {
  return {text.data(), strnlen(text.data(), text.size())};
}

Result<SharedPages> SharedPages::open(const std::string& path, std::size_t bytes, bool lock) {
  SharedPages pages;
  pages.fd_ =
      UniqueFd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, S_IRUSR | S_IWUSR));
  if (!pages.fd_) return failed(path, "open", errno);
  if (lock && ::flock(pages.fd_.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno == EWOULDBLOCK)
      return Status(ErrorCode::unavailable, path + ": another process writes to it");
    return failed(path, "flock", errno);
  }
  if (const int error = ::posix_fallocate(pages.fd_.get(), 0, static_cast<off_t>(bytes));
      error != 0)
    return failed(path, "room on the disk", error);
  void* at = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, pages.fd_.get(), 0);
  if (at == MAP_FAILED) return failed(path, "mmap", errno);
  pages.data_ = static_cast<std::byte*>(at);
  pages.bytes_ = bytes;
  return pages;
}

SharedPages::SharedPages(SharedPages&& other) noexcept { *this = std::move(other); }

SharedPages& SharedPages::operator=(SharedPages&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  std::swap(fd_, other.fd_);
  return *this;
}

SharedPages::~SharedPages() {
  if (data_ != nullptr) ::munmap(data_, bytes_);
}

Result<SharedPages> open_trace_control(const std::string& run_dir) {
  return SharedPages::open(run_dir + "/trace.control", sizeof(TraceControl), /*lock=*/false);
}

Tracer::Tracer(const std::string& run_dir, const std::string& name)
    : path_(run_dir + "/" + name + ".trace"),
      pid_(static_cast<std::uint32_t>(::getpid())),
      control_(&never()) {
  if (run_dir.empty()) return;
  auto pages = open_trace_control(run_dir);
  if (!pages.ok()) return;
  control_pages_ = std::move(pages).value();
  control_ = &control_of(control_pages_);
}

bool Tracer::begin(TimeNs now) {
  TimeNs until = control_->until.load(std::memory_order_acquire);
  if (until == 0) return false;
  if (now >= until) {  // whoever asked for it has died
    control_->until.compare_exchange_strong(until, 0);
    ready_ = false;
    return false;
  }
  const std::uint64_t session = control_->session.load(std::memory_order_acquire);
  if (session == session_ || now < retry_) return false;
  ready_ = false;
  if (control_->layout.load(std::memory_order_relaxed) != kTraceLayout) {
    session_ = session;  // of another build: it could not read these records
    return false;
  }
  ring_ = SharedPages();
  auto ring = SharedPages::open(path_, kTraceRingBytes, /*lock=*/true);
  if (!ring.ok()) {
    // The process before may still be about to end.
    if (ring.status().code() == ErrorCode::unavailable) {
      retry_ = now + kRetry;
    } else {
      session_ = session;
    }
    return false;
  }
  ring_ = std::move(ring).value();
  auto& head = *reinterpret_cast<RingHead*>(ring_.data());
  if (const std::uint64_t layout = head.layout.load(); layout != kTraceLayout) {
    if (layout != 0) std::memset(ring_.data(), 0, kTraceRingBytes);  // another build's, no new file
    head.next.store(1);
    head.layout.store(kTraceLayout, std::memory_order_release);
  }
  session_ = session;
  ready_ = true;
  TraceRecord life;
  life.kind = TraceKind::life;
  life.at = now;
  life.args[0] = pid_start_time(static_cast<std::int32_t>(pid_));
  add(life);
  return true;
}

void Tracer::add(TraceRecord record, std::string_view text) {
  if (!ready_) return;
  record.pid = pid_;
  std::copy_n(text.data(), std::min(text.size(), record.text.size()), record.text.data());
  std::array<std::uint64_t, kWords> words;
  std::memcpy(words.data(), &record, sizeof record);
  auto& head = *reinterpret_cast<RingHead*>(ring_.data());
  const std::uint64_t number = head.next.load(std::memory_order_relaxed);
  auto& slot = reinterpret_cast<RingSlot*>(ring_.data() + kTraceHeadBytes)[number % kTraceSlots];
  // A reader that finds any of the new words finds the larger `next`, too, and knows by it that
  // what it has read of this slot's record before may be torn.
  head.next.store(number + 1, std::memory_order_relaxed);
  slot.number.store(0, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_release);
  for (std::size_t i = 0; i < kWords; ++i) slot.words[i].store(words[i], std::memory_order_relaxed);
  slot.number.store(number, std::memory_order_release);
}

namespace {

std::uint64_t word_at(const UniqueFd& fd, std::size_t at) {
  std::uint64_t word = 0;
  return ::pread(fd.get(), &word, sizeof word, static_cast<off_t>(at)) == sizeof word ? word : 0;
}

std::uint64_t next_of(const UniqueFd& fd) {
  if (word_at(fd, offsetof(RingHead, layout)) != kTraceLayout) return 1;
  return std::max<std::uint64_t>(1, word_at(fd, offsetof(RingHead, next)));
}

}  // namespace

Result<TraceReader> TraceReader::open(const std::string& path, bool from_start) {
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  if (!fd) return failed(path, "open", errno);
  struct stat facts {};
  if (::fstat(fd.get(), &facts) != 0) return failed(path, "fstat", errno);
  if (!S_ISREG(facts.st_mode)) return Status(ErrorCode::internal, path + ": is no regular file");
  TraceReader reader(std::move(fd), facts.st_ino);
  const std::uint64_t next = next_of(reader.fd_);
  reader.next_ = next;
  if (from_start) reader.next_ = next > kTraceSlots ? next - kTraceSlots : 1;
  return reader;
}

/// A record is whole if its slot has its number, and if nobody had begun to write the one that
/// takes its slot when it had been read.
void TraceReader::drain(const std::function<void(const TraceRecord&)>& take) {
  const std::uint64_t end = next_of(fd_);
  if (end <= next_) return;
  constexpr std::size_t kAtOnce = 512;
  std::vector<std::array<std::uint64_t, 1 + kWords>> slots(kAtOnce);
  if (end - next_ > kTraceSlots) {
    lost_ += end - kTraceSlots - next_;
    next_ = end - kTraceSlots;
  }
  while (next_ < end) {
    const std::size_t first = next_ % kTraceSlots;
    const std::size_t count =
        std::min({kAtOnce, kTraceSlots - first, static_cast<std::size_t>(end - next_)});
    const ssize_t read = ::pread(fd_.get(), slots.data(), count * kTraceSlotBytes,
                                 static_cast<off_t>(kTraceHeadBytes + first * kTraceSlotBytes));
    if (read != static_cast<ssize_t>(count * kTraceSlotBytes)) return;
    const std::uint64_t now = next_of(fd_);
    for (std::size_t i = 0; i < count; ++i, ++next_) {
      // The writer was perhaps in the middle of the last one: it is looked at again.
      if (slots[i][0] != next_ && next_ + 1 == end) return;
      if (slots[i][0] != next_ || next_ + kTraceSlots < now) {
        ++lost_;
        continue;
      }
      TraceRecord record;
      std::memcpy(static_cast<void*>(&record), slots[i].data() + 1, sizeof record);
      take(record);
    }
  }
}

}  // namespace baton
