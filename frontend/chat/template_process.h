// One process that renders chat templates (render_templates.py, which is compiled into this
// program). Its frames are JSON.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "frontend/core/helper_process.h"
#include "ipc/status.h"
#include "ipc/types.h"

namespace baton {

/// What a renderer may use, and what it renders.
struct TemplateSetup {
  std::map<std::string, std::string> templates;   // by name
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

/// Not thread-safe. Ends as its HelperProcess does.
class TemplateProcess {
 public:
  /// Starts it and waits until it has compiled the templates. unavailable: Python or Jinja2 is
  /// missing, too old or too slow; invalid_argument: a template is wrong. The message says which.
  static Result<std::unique_ptr<TemplateProcess>> start(const TemplateSetup& setup);
  /// Text for a frame of ChatTemplate::render_request(). invalid_argument: the template refuses the
  /// messages, or fails on them, or takes too long or too much memory. unavailable: the process was
  /// gone. When usable() is false afterwards, it renders no more.
  Result<std::string> render(std::string_view request);
  bool usable() const { return usable_; }
  pid_t pid() const { return helper_->pid(); }

 private:
  TemplateProcess(const TemplateSetup& setup, std::unique_ptr<HelperProcess> helper)
      : setup_(setup), helper_(std::move(helper)) {}

  const TemplateSetup setup_;
  std::unique_ptr<HelperProcess> helper_;
  bool usable_ = true;
};

}  // namespace baton
