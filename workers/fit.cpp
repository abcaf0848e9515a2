// baton-fit: whether a model fits this machine, by the number of ranks; `./baton doctor --model`
// asks it. Reads headers alone.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "baton_version.h"
#include "ipc/option_spelling.h"
#include "workers/model/rank_fit.h"
#include "workers/pool/host_memory.h"

namespace {

constexpr int kFitsNowhere = 1;
constexpr int kNoModel = 2;

struct Options {
  std::string model;
  std::uint32_t max_context = 0;
  double fraction = 0.9;
  std::uint64_t host_free_mib = 0;
  std::uint64_t shared_free_mib = 0;
  std::vector<std::uint64_t> gpu_free_mib;
  unsigned cores = 0;
};

int answer(const Options& o) {
  using namespace baton;
  MachineMemory machine;
  machine.fraction = o.fraction;
  machine.host = o.host_free_mib > 0 ? o.host_free_mib << 20U : free_host_memory();
  machine.shared = o.shared_free_mib > 0 ? o.shared_free_mib << 20U : free_shared_memory();
  machine.cores = o.cores > 0 ? o.cores : std::max(1U, std::thread::hardware_concurrency());
  for (const std::uint64_t mib : o.gpu_free_mib) machine.gpus.push_back(mib << 20U);
  try {
    const ModelConfig config = load_model_config(o.model);
    const Checkpoint checkpoint(o.model);
    const auto path = std::filesystem::weakly_canonical(o.model);
    const FitAnswer fit =
        fit_model({config, checkpoint, path.filename().string(), o.max_context}, machine);
    for (const std::string& line : fit.lines) std::printf("%s\n", line.c_str());
    return fit.somewhere ? 0 : kFitsNowhere;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return kNoModel;
  }
}

}  // namespace

int main(int argc, char** argv) {
  Options o;
  CLI::App app{
      "Whether a model fits this machine's memory, by the number of ranks of a worker (processes "
      "that share it): its weights, and a KV pool for one sequence of the longest context"};
  app.name("baton-fit");
  app.add_option("--model", o.model, "model folder, or GGUF file")->required();
  app.add_option("--max-context", o.max_context, "tokens of the longest sequence; 0: the model's")
      ->capture_default_str();
  app.add_option("--memory-fraction", o.fraction, "of the free memory that may be taken")
      ->check(CLI::Range(0.01, 0.99))
      ->capture_default_str();
  app.add_option("--gpu-free-mib", o.gpu_free_mib, "free memory of each GPU")->delimiter(',');
  app.add_option("--host-free-mib", o.host_free_mib, "of the host; 0: as the system says")
      ->capture_default_str();
  app.add_option("--shared-free-mib", o.shared_free_mib, "of /dev/shm; 0: as the system says")
      ->capture_default_str();
  app.add_option("--cores", o.cores, "most ranks on CPUs; 0: those of this machine")
      ->capture_default_str();
  app.set_version_flag("--version", "baton-fit " BATON_VERSION " (" BATON_COMMIT ")");
  const baton::SpelledArguments spelled(argc, argv, '_', '-');
  CLI11_PARSE(app, spelled.argc(), spelled.argv());
  return answer(o);
}
