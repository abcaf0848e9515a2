// baton-ctl: one command (or a session of them) on the scheduler's admin socket.
//   baton-ctl show kv json          baton-ctl --socket PATH help          echo 'show info' |
//   baton-ctl -
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstring>
#include <iostream>
#include <string>
#include <vector>

#include "configs/config.h"
#include "ipc/process.h"

namespace {

int connect_to(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) {
    errno = ENAMETOOLONG;
    return -1;
  }
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  const int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return -1;
  if (::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0) return fd;
  const int why = errno;
  ::close(fd);
  errno = why;
  return -1;
}

bool send_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t n = ::send(fd, text.data(), text.size(), MSG_NOSIGNAL);
    if (n <= 0) return false;
    text.remove_prefix(static_cast<std::size_t>(n));
  }
  return true;
}

/// Sends one line, copies the answer up to its empty line to stdout. Returns the exit code.
int ask(int fd, const std::string& line) {
  if (!send_all(fd, line + "\n")) {
    std::cerr << "baton-ctl: the scheduler closed the connection\n";
    return 1;
  }
  std::string answer;
  char buffer[65536];
  while (answer != "\n" && (answer.size() < 2 || answer.substr(answer.size() - 2) != "\n\n")) {
    const ssize_t n = ::recv(fd, buffer, sizeof buffer, 0);
    if (n <= 0) {
      std::cerr << "baton-ctl: the scheduler left before it had answered\n";
      return 1;
    }
    answer.append(buffer, static_cast<std::size_t>(n));
  }
  answer.pop_back();
  std::cout << answer << std::flush;
  return answer.rfind("error:", 0) == 0 ? 1 : 0;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"Commands on the scheduler's admin socket; 'baton-ctl help' lists them"};
  std::string config_file;
  std::string socket;
  std::vector<std::string> words;
  app.add_option("--config", config_file, "YAML file that names run_dir or scheduler.admin_socket");
  app.add_option("--socket", socket, "path of the admin socket (default: from the configuration)");
  app.add_option("command", words, "the command; '-' reads commands from stdin, one a line")
      ->required();
  app.set_version_flag("--version", std::string("baton-ctl ") + baton::build_version());
  app.prefix_command(false);
  CLI11_PARSE(app, argc, argv);

  if (socket.empty()) {
    std::vector<const char*> args = {"baton-ctl"};
    if (!config_file.empty()) args.insert(args.end(), {"--config", config_file.c_str()});
    const baton::Loaded loaded =
        baton::load_config(baton::Program::tool, static_cast<int>(args.size()), args.data());
    if (!loaded.config) return loaded.exit_code;
    socket = loaded.config->scheduler.admin_socket;
  }
  const int fd = connect_to(socket);
  if (fd < 0) {
    std::cerr << "baton-ctl: " << socket << ": " << std::strerror(errno)
              << " (is baton-scheduler running?)\n";
    return 1;
  }
  if (words.size() == 1 && words[0] == "-") {
    int worst = 0;
    for (std::string line; std::getline(std::cin, line);) worst = std::max(worst, ask(fd, line));
    return worst;
  }
  std::string line;
  for (const std::string& word : words) line += (line.empty() ? "" : " ") + word;
  return ask(fd, line);
}
