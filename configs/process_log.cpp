#include "configs/process_log.h"

#include <spdlog/formatter.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <chrono>
#include <memory>

#include "ipc/log_line.h"

namespace baton {
namespace {

std::string_view view(spdlog::string_view_t text) { return {text.data(), text.size()}; }

class LineFormatter : public spdlog::formatter {
 public:
  LineFormatter(LogFormat format, std::string name) : format_(format), name_(std::move(name)) {}

  void format(const spdlog::details::log_msg& message, spdlog::memory_buf_t& to) override {
    using std::chrono::duration_cast, std::chrono::nanoseconds;
    const auto since = duration_cast<nanoseconds>(message.time.time_since_epoch());
    std::string line =
        log_line(format_, since.count(), view(spdlog::level::to_string_view(message.level)), name_,
                 view(message.payload));
    line += '\n';
    to.append(line.data(), line.data() + line.size());
  }

  std::unique_ptr<spdlog::formatter> clone() const override {
    return std::make_unique<LineFormatter>(format_, name_);
  }

 private:
  LogFormat format_;
  std::string name_;
};

}  // namespace

void start_process_log(const Config& config, const std::string& name) {
  auto log = spdlog::stderr_logger_mt(name);
  log->set_formatter(std::make_unique<LineFormatter>(log_format_of(config.log_format), name));
  log->set_level(spdlog::level::from_str(config.log_level));
  log->flush_on(spdlog::level::info);
  spdlog::set_default_logger(std::move(log));
}

}  // namespace baton
