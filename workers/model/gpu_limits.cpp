#include "workers/model/gpu_limits.h"

#include "workers/model/error.h"

namespace baton {

void check_gpu_limits(const ModelConfig& config) {
  if (config.experts.count > 0 && config.experts.intermediate % 16 != 0) {
    throw ModelError("the intermediate size of an expert must be a multiple of 16 on device cuda");
  }
  if (config.hidden % 16 != 0 || config.intermediate % 16 != 0 ||
      (config.heads * config.head_dim) % 16 != 0) {
    throw ModelError(
        "hidden_size, intermediate_size and heads * head_dim must be multiples of 16 on device "
        "cuda");
  }
}

}  // namespace baton
