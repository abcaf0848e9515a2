// A process that does one kind of work for this one, within limits: frames over a socket pair, a
// length in 4 bytes (little-endian) in front of each. It gets no descriptor but its socket, and no
// variable but PATH, TZ and the locale.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "ipc/process.h"
#include "ipc/status.h"
#include "ipc/types.h"

namespace baton {

/// Not thread-safe. Killed by the destructor; dies with the thread that started it.
class HelperProcess {
 public:
  /// The socket's number in the helper.
  static constexpr int kSocketFd = 3;

  /// Starts `arguments` (the program is looked up in PATH). `input`: its standard input; -1: empty.
  /// A program that cannot be run shows as a helper that is gone.
  static Result<std::unique_ptr<HelperProcess>> start(std::vector<std::string> arguments, int input,
                                                      std::size_t max_reply_bytes);
  ~HelperProcess();
  HelperProcess(const HelperProcess&) = delete;
  HelperProcess& operator=(const HelperProcess&) = delete;

  enum class Exchange : unsigned char { done, timed_out, closed };
  /// Sends a frame and takes the one that answers it, within `wall` time and `cpu` time of the
  /// helper. After anything but `done` the helper is good for nothing. Once `wanted` says no, the
  /// helper is told by an empty frame, and should answer soon.
  Exchange exchange(std::string_view request, TimeNs wall, TimeNs cpu, std::string& reply,
                    const std::function<bool()>& wanted = {});
  pid_t pid() const { return pid_; }

 private:
  HelperProcess(UniqueFd socket, pid_t pid, std::size_t max_reply_bytes)
      : socket_(std::move(socket)), pid_(pid), max_reply_bytes_(max_reply_bytes) {}

  bool send_some(std::string& out, std::size_t& sent) const;
  bool receive_some(std::string& in) const;
  TimeNs cpu_time() const;

  UniqueFd socket_;
  pid_t pid_ = 0;
  const std::size_t max_reply_bytes_;
};

/// The helper's side, with blocking calls. False: the other end is closed, or the frame is longer
/// than `max_bytes`.
bool read_frame(int socket, std::size_t max_bytes, std::string& frame);
bool write_frame(int socket, std::string_view frame);

}  // namespace baton
