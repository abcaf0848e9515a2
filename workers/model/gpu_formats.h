// Which of a model's matrices stay quantised on a GPU, and how: those of each layer, by their
// names. Pure and free of CUDA.
#pragma once

#include <string>
#include <vector>

#include "workers/model/config.h"
#include "workers/model/gpu_cut.h"
#include "workers/model/gpu_format.h"
#include "workers/model/safetensors.h"

namespace baton {

class GpuFormats {
 public:
  /// `config`: the whole model's. All three outlive it; without a checkpoint as
  /// gpu_linear_format().
  GpuFormats(const ModelConfig& config, const Checkpoint* checkpoint, const GpuCut& cut);

  LinearFormat qkv(int layer) const;
  LinearFormat o(int layer) const;
  /// Of what leads from q_rank numbers to queries.
  LinearFormat latent_q(int layer) const;
  /// Of a dense layer.
  LinearFormat gate_up(int layer) const;
  LinearFormat down(int layer) const;
  /// Of what all tokens take beside a layer's experts.
  LinearFormat shared_gate_up(int layer) const;
  LinearFormat shared_down(int layer) const;
  /// Of a layer's experts: as gpu_expert_format().
  cuda::ExpertFormat experts(int layer) const;
  /// Quantisers leave it plain as a rule.
  LinearFormat lm_head() const;

  /// What became of the matrices that are stored quantised, experts apart: those kept by their
  /// format, and those widened to bf16.
  struct Summary {
    int int4 = 0;
    int int8 = 0;
    int fp8 = 0;
    int widened = 0;

    /// "int4", "int8", "fp8" or "bf16": what most are in.
    std::string most() const;
    /// "kept int4: 96 matrices, widened to bf16: 32"; empty where none is stored quantised.
    std::string text() const;
  };
  Summary summary() const;

 private:
  using Names = std::vector<std::string>;

  Names of_layer(int layer, Names names) const;
  Names qkv_names(int layer) const;
  Names gate_up_names(int layer) const;
  Names shared_up_names(int layer) const;
  /// Of what a rank has some inputs of, unless it has some outputs.
  LinearFormat of_inputs(const Names& parts, int in) const;
  LinearFormat of(const Names& parts, int in) const;
  /// Half of the rows of one tensor: not where outputs with one scale would be parted.
  bool halves(const std::string& fused, int intermediate) const;
  void count(const Names& parts, const LinearFormat& format, Summary& summary) const;

  const ModelConfig& config_;
  const Checkpoint* checkpoint_;
  const GpuCut& cut_;
  std::string layers_;  // in front of a layer's number
};

}  // namespace baton
