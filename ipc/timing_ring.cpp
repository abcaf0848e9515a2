#include "ipc/timing_ring.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "ipc/codec.h"

namespace baton {
namespace {

/// In front of a record's bytes.
struct SlotHead {
  std::uint64_t number = 0;  // 0: empty
  std::uint32_t size = 0;
  std::uint32_t sum = 0;
};
static_assert(sizeof(SlotHead) == 16);
constexpr std::size_t kRoom = kTimingSlotBytes - sizeof(SlotHead);

/// FNV-1a over words of 8 bytes: it need only show a slot that was half written.
std::uint32_t sum_of(std::uint64_t number, std::string_view bytes) {
  constexpr std::uint64_t kPrime = 1099511628211U;
  std::uint64_t sum = 14695981039346656037U ^ number;
  for (; bytes.size() >= 8; bytes.remove_prefix(8)) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes.data(), 8);
    sum = (sum ^ word) * kPrime;
  }
  for (const char c : bytes) sum = (sum ^ static_cast<unsigned char>(c)) * kPrime;
  return static_cast<std::uint32_t>(sum ^ sum >> 32U);
}

Status failed(const std::string& path, const char* what) {
  return {ErrorCode::internal, path + ": " + what + ": " + std::strerror(errno)};
}

/// Calls `take` with what is whole in each slot.
Status each_slot(int fd, const std::string& path,
                 const std::function<void(std::uint64_t, std::string_view)>& take) {
  std::string buffer(64 * kTimingSlotBytes, '\0');
  for (off_t at = 0;;) {
    const ssize_t n = pread(fd, buffer.data(), buffer.size(), at);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return failed(path, "read");
    if (n == 0) return {};
    const auto have = static_cast<std::size_t>(n);
    for (std::size_t slot = 0; slot + sizeof(SlotHead) <= have; slot += kTimingSlotBytes) {
      SlotHead head;
      std::memcpy(&head, buffer.data() + slot, sizeof head);
      if (head.number == 0 || head.size > kRoom || slot + sizeof head + head.size > have) continue;
      const std::string_view bytes(buffer.data() + slot + sizeof head, head.size);
      if (sum_of(head.number, bytes) == head.sum) take(head.number, bytes);
    }
    at += static_cast<off_t>(have);
    if (have % kTimingSlotBytes != 0) return {};  // the last one, not filled to its end
  }
}

}  // namespace

Result<TimingRing> TimingRing::open(const std::string& path, std::size_t slots) {
  UniqueFd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!fd) return failed(path, "open");
  std::uint64_t next = 1;
  const Status read = each_slot(fd.get(), path, [&](std::uint64_t number, std::string_view) {
    next = std::max(next, number + 1);
  });
  if (!read.ok()) return read;
  return TimingRing(std::move(fd), slots, next);
}

bool TimingRing::add(ExplainedRequest request) {
  encode(request, bytes_);
  while (bytes_.size() > kRoom) {
    std::vector<Moment>& moments = request.timing.moments;
    if (moments.empty()) return false;
    const auto middle = moments.begin() + static_cast<std::ptrdiff_t>(moments.size() / 2);
    moments.erase(middle, std::min(middle + 4, moments.end()));
    encode(request, bytes_);
  }
  SlotHead head{next_, static_cast<std::uint32_t>(bytes_.size()), sum_of(next_, bytes_)};
  bytes_.insert(0, reinterpret_cast<const char*>(&head), sizeof head);
  const auto at = static_cast<off_t>((next_ - 1) % slots_ * kTimingSlotBytes);
  const ssize_t n = pwrite(fd_.get(), bytes_.data(), bytes_.size(), at);
  ++next_;
  return n == static_cast<ssize_t>(bytes_.size());
}

Status read_timings(const std::string& path,
                    const std::function<void(std::uint64_t, const ExplainedRequest&)>& take) {
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  if (!fd) return failed(path, "open");
  return each_slot(fd.get(), path, [&](std::uint64_t number, std::string_view bytes) {
    const auto record = decode_timing_record(bytes);
    if (record.ok()) take(number, std::get<ExplainedRequest>(record.value()));
  });
}

}  // namespace baton
