// A front end's twin: it holds the sockets of clients, and the journals, beyond the front end's
// death, until a successor (inheritance.h) takes them. The order of a take-over:
//
//   Twin::start, Inheritance::fetch, go on with the replies, Twin::commit, Inheritance::release
//
// Whoever dies in between, all is with the one that RUN_DIR/NAME.twin leads to.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "ipc/status.h"
#include "ipc/types.h"

namespace baton {

/// How long a twin waits after its front end's death.
struct TwinPatience {
  TimeNs nobody_comes = 60 * kSecond;  // for a successor, and again for another one
  TimeNs says_nothing = 30 * kSecond;  // for a successor that came: to take all, to release
};

/// A process that shares this one's descriptor table (clone(CLONE_FILES): memory of its own), so
/// that every socket that is accepted from now on outlives this process, while close() stays what
/// it is. After this process's end, if it had committed, the twin keeps TCP sockets and keepsakes
/// and closes all else. It takes no signal but SIGKILL and SIGSTOP, and is in a session of its own.
/// It and this process killed together leave nothing.
///
/// Not thread-safe, but for set_keepsake(). Made by the process that dismisses it: a fork of this
/// one must not destroy it. Movable.
class Twin {
 public:
  /// Call it early: before threads, while this process has little memory (what it has then, the
  /// twin keeps). One at a time under `name`: the caller sees to it (LockFile). Listens on
  /// RUN_DIR/NAME.twin.PID, which no successor looks at yet. Errors: no such folder, a path too
  /// long for a socket, a kernel without pidfd (before 5.3), no memory.
  static Result<Twin> start(const std::string& run_dir, const std::string& name,
                            const TwinPatience& patience = {});
  /// Dismisses it: a process that means to leave a legacy has to end without this (_exit).
  ~Twin();
  Twin(Twin&& other) noexcept;
  Twin& operator=(Twin&& other) noexcept;

  /// Which descriptor a successor gets as keepsake number `index` (0..3); -1: none. It stays the
  /// caller's, who takes it out before it closes it. May be changed while serving.
  void set_keepsake(unsigned index, int fd);
  /// From now on whoever starts under this name inherits from this twin: the socket is renamed to
  /// RUN_DIR/NAME.twin, and RUN_DIR/NAME.twin.pid says "PID START\n" of the twin. An error leaves
  /// all as it was.
  Status commit();

  /// Readable when the twin has ended: call replace() then. Another one after each replace(), and
  /// after a look_after() that replaced it; -1 while there is no twin.
  int fd() const;
  /// A new twin in place of one that was killed; one that lives is killed first. This process may
  /// have threads. After an error there is none, and look_after() tries again.
  Status replace();
  /// Call it once a second: continues a twin that somebody stopped, replaces one that stays stopped
  /// or has ended. The error is replace()'s.
  Status look_after();
  /// 0: there is none.
  std::int32_t pid() const;

  /// This process ends on purpose and leaves nothing: ends the twin, removes its files. Again: no
  /// effect. All else but pid() and fd() is not to be called after it.
  void dismiss();

 private:
  struct Parts;
  explicit Twin(std::unique_ptr<Parts> parts);
  std::unique_ptr<Parts> parts_;
};

/// "RUN_DIR/NAME.twin": where a successor finds the twin.
std::string twin_path(const std::string& run_dir, const std::string& name);

}  // namespace baton
