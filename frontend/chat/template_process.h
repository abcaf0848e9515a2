// One process that renders chat templates (render_templates.py, which is compiled into this program):
// frames of JSON over a socket pair, a length in 4 bytes (little-endian) in front of each.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "ipc/process.h"
#include "ipc/status.h"
#include "ipc/types.h"

namespace baton {

/// What a renderer may use, and what it renders.
struct TemplateSetup {
  std::map<std::string, std::string> templates;  // by name
  std::vector<std::string> path = python_path();  // folders with Jinja2 and MarkupSafe
  std::string python = "python3";                 // looked up in PATH
  std::size_t memory_bytes = 256U << 20U;         // of address space
  std::size_t output_characters = 8U << 20U;
  TimeNs start_time = 20 * kSecond;  // to start and to compile the templates
  /// A render that used this much of a processor is killed; on a busy machine, one that could not
  /// is killed after ten times that.
  TimeNs render_time = kSecond / 5;

  /// $BATON_DEPS/python, python/ beside the folder of this program, and the folder that the build
  /// was configured with.
  static std::vector<std::string> python_path();
};

/// Not thread-safe. Killed by the destructor; dies with the thread that started it.
class TemplateProcess {
 public:
  /// Starts it and waits until it has compiled the templates. unavailable: Python or Jinja2 is
  /// missing, too old or too slow; invalid_argument: a template is wrong. The message says which.
  static Result<std::unique_ptr<TemplateProcess>> start(const TemplateSetup& setup);
  ~TemplateProcess();
  TemplateProcess(const TemplateProcess&) = delete;
  TemplateProcess& operator=(const TemplateProcess&) = delete;

  /// Text for a frame of ChatTemplate::render_request(). invalid_argument: the template refuses the
  /// messages, or fails on them, or takes too long or too much memory. unavailable: the process was
  /// gone. When usable() is false afterwards, it renders no more.
  Result<std::string> render(std::string_view request);
  bool usable() const { return usable_; }
  pid_t pid() const { return pid_; }

 private:
  TemplateProcess(const TemplateSetup& setup, UniqueFd socket, pid_t pid)
      : setup_(setup), socket_(std::move(socket)), pid_(pid) {}

  enum class Exchange : unsigned char { done, timed_out, closed };
  /// Sends a frame and takes the one that answers it.
  Exchange exchange(std::string_view request, TimeNs wall, TimeNs cpu, std::string& reply);
  bool send_some(std::string& out, std::size_t& sent) const;
  bool receive_some(std::string& in) const;
  TimeNs cpu_time() const;

  const TemplateSetup setup_;
  UniqueFd socket_;
  pid_t pid_ = 0;
  bool usable_ = true;
};

}  // namespace baton
