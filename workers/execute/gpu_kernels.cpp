#include "workers/execute/gpu_kernels.h"

#include <spdlog/spdlog.h>

#include <algorithm>

#include "workers/cuda/current_device.h"
#include "workers/cuda/linear/linear.h"
#include "workers/execute/kept_choices.h"
#include "workers/model/fingerprint.h"

namespace baton {

namespace {

/// One line. The checkpoint's own bytes say nothing about kernels: what its layers are quantised to
/// shows in the configuration and in the size of the weights.
std::string key_of(const GpuDecoder& decoder, const KernelsRequest& request) {
  const ModelConfig& model = decoder.config();
  const GpuDecoder::Options& o = request.options;
  const auto text = [](auto n) { return std::to_string(n); };
  std::string key = request.device.uuid + "; " + request.device.name + "; " +
                    text(request.device.multiprocessors) + " multiprocessors; driver " +
                    text(request.device.driver) + "; cublasLt " +
                    text(cuda::Linears::library_version()) + "; " + program_stamp() + "; model " +
                    text(model_fingerprint(model)) + ", " + text(decoder.weight_bytes()) +
                    " bytes; rows " + text(o.max_rows) + ", " + text(o.max_wanted) +
                    " wanted; blocks of " + text(request.tokens_per_block) + "; deterministic " +
                    text(static_cast<int>(o.deterministic)) + "; chain " +
                    text(static_cast<int>(o.chain));
  // Beside other processes no layer is one kernel.
  if (cuda::under_mps()) key += "; MPS";
  std::replace(key.begin(), key.end(), '\n', ' ');
  return key;
}

}  // namespace

void choose_kernels(GpuDecoder& decoder, const KernelsRequest& request, cuda::Stream stream) {
  const std::string key = key_of(decoder, request);
  if (const auto kept = recall_choices(request.run_dir, key); kept && decoder.take(*kept)) {
    spdlog::info("kernels as an earlier process has chosen them: {}/{}", request.run_dir,
                 cuda::choices_file_name(key));
    return;
  }
  decoder.tune(stream);
  if (!keep_choices(request.run_dir, key, decoder.choices()))
    spdlog::warn("kernel choices cannot be kept in {}", request.run_dir);
}

}  // namespace baton
