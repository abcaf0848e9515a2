// The admin unix socket: line protocol, many clients, none of which can hold the scheduler back.
#pragma once

#include <deque>
#include <list>
#include <memory>
#include <string>
#include <vector>

#include "ipc/channel.h"
#include "ipc/process.h"
#include "scheduler/admin/admin_commands.h"

namespace baton {

class AdminServer {
 public:
  explicit AdminServer(AdminBackend& backend) : backend_(backend) {}
  ~AdminServer();
  AdminServer(const AdminServer&) = delete;
  AdminServer& operator=(const AdminServer&) = delete;

  /// Creates the socket with mode 0600, replacing a stale one. The caller holds the scheduler's
  /// lock.
  Status listen(const std::string& path);
  void add_to(Poller& poller) const;
  /// Accepts, reads, answers; never blocks. Call it every turn.
  void serve(TimeNs now);

 private:
  struct Client {
    UniqueFd fd;
    std::string input;
    std::string output;
    std::unique_ptr<PendingAnswer> pending;
    bool closing = false;  // input has ended; goes when its last answer is out
  };

  void accept_clients();
  bool read(Client& client);
  void execute(Client& client, TimeNs now);
  bool write(Client& client);

  AdminBackend& backend_;
  std::string path_;
  UniqueFd listener_;
  std::list<Client> clients_;
};

}  // namespace baton
