#include "frontend/chat/template_process.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "frontend/chat/render_templates_script.h"

namespace baton {
namespace {

using Json = nlohmann::json;

/// The program's text as a file without a name: the child's standard input.
UniqueFd script_file() {
  UniqueFd file(memfd_create("render_templates.py", MFD_CLOEXEC));
  const std::string_view text = kRenderTemplatesScript;
  if (!file || write(file.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size()) ||
      lseek(file.get(), 0, SEEK_SET) != 0) {
    return UniqueFd();
  }
  return file;
}

std::string setup_frame(const TemplateSetup& setup) {
  Json frame = {{"path", setup.path},
                {"memory_bytes", setup.memory_bytes},
                {"output_characters", setup.output_characters},
                {"templates", setup.templates}};
  return frame.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string milliseconds(TimeNs time) { return std::to_string(time / 1'000'000) + " ms"; }

}  // namespace

std::vector<std::string> TemplateSetup::python_path() {
  std::vector<std::string> path;
  if (const char* deps = std::getenv("BATON_DEPS")) path.push_back(std::string(deps) + "/python");
  std::error_code ignored;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", ignored);
  if (!ignored) path.push_back(program.parent_path().parent_path() / "python");
  path.push_back(kConfiguredPythonPath);
  return path;
}

Result<std::unique_ptr<TemplateProcess>> TemplateProcess::start(const TemplateSetup& setup) {
  const auto failed = [] {
    return Status(
        ErrorCode::unavailable,
        std::string("cannot start the renderer of chat templates: ") + std::strerror(errno));
  };
  const UniqueFd script = script_file();
  if (!script) return failed();
  // -I -S: no variable, folder or package of this machine's Python has a say.
  auto helper = HelperProcess::start({setup.python, "-I", "-S", "-", "baton-chat-templates"},
                                     script.get(), 4 * setup.output_characters + 65536);
  if (!helper.ok()) return failed();
  std::unique_ptr<TemplateProcess> made(new TemplateProcess(setup, std::move(helper).value()));
  std::string reply;
  const auto exchanged =
      made->helper_->exchange(setup_frame(setup), setup.start_time, setup.start_time, reply);
  if (exchanged == HelperProcess::Exchange::timed_out) {
    return Status(ErrorCode::unavailable, "the renderer of chat templates did not start within " +
                                              milliseconds(setup.start_time));
  }
  const Json answer = Json::parse(reply, nullptr, false);
  if (answer.is_object() && answer.contains("ready")) return made;
  if (answer.is_object() && answer.contains("error")) {
    return Status(ErrorCode::unavailable, answer["error"].get<std::string>());
  }
  return Status(ErrorCode::unavailable,
                "the renderer of chat templates ended while it started: is '" + setup.python +
                    "' installed?");
}

Result<std::string> TemplateProcess::render(std::string_view request) {
  std::string reply;
  const auto exchanged =
      helper_->exchange(request, 10 * setup_.render_time, setup_.render_time, reply);
  usable_ = false;
  if (exchanged == HelperProcess::Exchange::timed_out) {
    return invalid("the chat template took longer than " + milliseconds(setup_.render_time) +
                   " for these messages and was stopped");
  }
  Json answer = Json::parse(reply, nullptr, false);
  if (exchanged == HelperProcess::Exchange::closed || !answer.is_object()) {
    return Status(ErrorCode::unavailable, "the renderer of chat templates ended");
  }
  usable_ = !answer.value("last", false);
  if (const auto text = answer.find("text"); text != answer.end() && text->is_string()) {
    return std::move(text->get_ref<std::string&>());
  }
  const std::string why = answer.value("error", "no reason given");
  return invalid((answer.value("refused", false) ? "the chat template refuses these messages: "
                                                 : "the chat template failed on these messages: ") +
                 why);
}

}  // namespace baton
