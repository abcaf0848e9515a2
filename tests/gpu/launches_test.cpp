// Which kernels a decode step launches, and with which grids: recorded as a graph of a small model
// of each family with a fused layer, and compared with tests/golden/gpu_launches.txt. A change of
// the decoder that costs these families a launch, or another kernel, shows here. Nothing is timed:
// each matrix has the kernel that needs no timing, and whether a layer runs as one kernel is said.
// BATON_REGENERATE_GOLDEN=1 writes the file.
#include <cuda.h>
#include <cuda_runtime.h>
#include <cxxabi.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <regex>
#include <sstream>
#include <string>
#include <vector>

#include "ipc/kv_layout.h"
#include "workers/cuda/device.h"
#include "workers/model/gpu_decoder.h"
#include "workers/model/gpu_weights.h"

namespace baton {
namespace {

constexpr int kMaxRows = 64;
constexpr int kTokensPerBlock = 16;

struct Case {
  const char* name;
  const char* settings;  // of config.json, beside the common ones
  bool chained = false;
};

constexpr const char* kCommon = R"("hidden_size": 1024, "intermediate_size": 2048,
  "num_hidden_layers": 2, "num_attention_heads": 16, "num_key_value_heads": 4, "head_dim": 128,
  "vocab_size": 1024, "max_position_embeddings": 512, "rms_norm_eps": 1e-5)";

const Case kCases[] = {
    {"llama", R"("architectures": ["LlamaForCausalLM"], "model_type": "llama")"},
    {"llama, a layer in one kernel",
     R"("architectures": ["LlamaForCausalLM"], "model_type": "llama")", true},
    {"llama, gptq", R"("architectures": ["LlamaForCausalLM"], "model_type": "llama",
      "quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": true})"},
    {"qwen2", R"("architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2")"},
    {"qwen3, a layer in one kernel",
     R"("architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3")", true},
    {"mistral", R"("architectures": ["MistralForCausalLM"], "model_type": "mistral",
      "sliding_window": 64)"},
    {"mixtral", R"("architectures": ["MixtralForCausalLM"], "model_type": "mixtral",
      "num_local_experts": 8, "num_experts_per_tok": 2, "sliding_window": null)"},
    {"qwen3_moe", R"("architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe",
      "num_experts": 16, "num_experts_per_tok": 4, "moe_intermediate_size": 256,
      "norm_topk_prob": true, "decoder_sparse_step": 1, "mlp_only_layers": [])"},
};

void must(cudaError_t error) {
  if (error != cudaSuccess) throw cuda::CudaError(cudaGetErrorString(error));
}

template <typename F>
F driver_call(const char* name) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result{};
  must(cudaGetDriverEntryPointByVersion(name, &found, 12040, cudaEnableDefault, &result));
  if (found == nullptr) throw cuda::CudaError(std::string("the driver has no ") + name);
  return reinterpret_cast<F>(found);
}

/// Without what differs from build to build, and without namespaces and arguments.
std::string short_name(const std::string& mangled) {
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> text(
      abi::__cxa_demangle(mangled.c_str(), nullptr, nullptr, &status), &std::free);
  std::string name = status == 0 ? text.get() : mangled;
  name = std::regex_replace(name, std::regex(R"(_GLOBAL__N__\w*::|_INTERNAL_\w*::)"), "");
  name = std::regex_replace(name, std::regex(R"(\(anonymous namespace\)::|baton::cuda::)"), "");
  name = std::regex_replace(name, std::regex("^void "), "");
  if (!name.ends_with(")")) return name;
  std::size_t at = name.size();
  for (int depth = 0; at > 0;) {
    --at;
    depth += name[at] == ')' ? 1 : name[at] == '(' ? -1 : 0;
    if (depth == 0) break;
  }
  return name.substr(0, at);
}

std::string line_of(cudaGraphNode_t node) {
  cudaGraphNodeType type{};
  must(cudaGraphNodeGetType(node, &type));
  if (type == cudaGraphNodeTypeMemset) return "memset";
  if (type == cudaGraphNodeTypeMemcpy) return "memcpy";
  if (type != cudaGraphNodeTypeKernel) return "another node";
  static const auto params_of = driver_call<CUresult (*)(CUgraphNode, CUDA_KERNEL_NODE_PARAMS*)>(
      "cuGraphKernelNodeGetParams");
  static const auto name_of = driver_call<CUresult (*)(const char**, CUfunction)>("cuFuncGetName");
  static const auto kernel_name_of =
      driver_call<CUresult (*)(const char**, CUkernel)>("cuKernelGetName");
  CUDA_KERNEL_NODE_PARAMS params{};
  if (params_of(node, &params) != CUDA_SUCCESS) throw cuda::CudaError("a node without parameters");
  const char* name = nullptr;
  if (params.func == nullptr || name_of(&name, params.func) != CUDA_SUCCESS) {
    if (params.kern == nullptr || kernel_name_of(&name, params.kern) != CUDA_SUCCESS) name = "?";
  }
  std::ostringstream text;
  text << short_name(name) << " grid " << params.gridDimX << " " << params.gridDimY << " "
       << params.gridDimZ << " block " << params.blockDimX;
  return text.str();
}

/// In order: each node of such a graph has one node behind it.
std::vector<std::string> lines_of(cudaGraph_t graph) {
  std::size_t n = 0;
  must(cudaGraphGetRootNodes(graph, nullptr, &n));
  if (n != 1) throw cuda::CudaError("a graph with several beginnings");
  cudaGraphNode_t node = nullptr;
  must(cudaGraphGetRootNodes(graph, &node, &n));
  std::vector<std::string> lines;
  while (true) {
    lines.push_back(line_of(node));
    std::size_t behind = 0;
    must(cudaGraphNodeGetDependentNodes(node, nullptr, nullptr, &behind));
    if (behind == 0) return lines;
    if (behind != 1) throw cuda::CudaError("a graph that forks");
    cudaGraphNode_t next = nullptr;
    cudaGraphEdgeData edge{};
    must(cudaGraphNodeGetDependentNodes(node, &next, &edge, &behind));
    node = next;
  }
}

/// A small decoder with random weights and a pool, and the inputs of a step.
class Small {
 public:
  explicit Small(const Case& c) : config_(config_of(c)), inputs_(1 << 20) {
    GpuWeights weights =
        place_gpu_weights(config_, nullptr, cuda::DeviceMemory(gpu_weight_bytes(config_, nullptr)));
    std::atomic<int> percent{0};
    random_gpu_weights(config_, percent, weights);
    GpuDecoder::Options options;
    options.max_rows = options.max_wanted = kMaxRows;
    options.max_table = 1 << 10;
    options.tokens_per_block = kTokensPerBlock;
    decoder_ = std::make_unique<GpuDecoder>(config_, std::move(weights), options);
    cuda::KernelChoices choices;
    if (c.chained) choices.chains.push_back({kMaxRows, true, 0, 0});
    if (!decoder_->take(choices)) throw cuda::CudaError("no such layer kernel");
    KvGeometry g;
    g.dtype = KvDtype::bf16;
    g.layers = static_cast<std::uint32_t>(config_.layers);
    g.kv_heads = static_cast<std::uint32_t>(config_.kv_heads);
    g.head_dim = static_cast<std::uint32_t>(config_.head_dim);
    g.tokens_per_block = kTokensPerBlock;
    g.blocks = 64;
    g.block_bytes = kv_block_bytes(g).value();
    pool_ = cuda::DeviceMemory(g.block_bytes * g.blocks);
    decoder_->set_pool(pool_.data(), g);
  }

  /// What a decode step of so many rows launches; its inputs are never read.
  std::vector<std::string> launches(int rows) {
    GpuBatch batch;
    batch.rows = batch.wanted = rows;
    batch.tokens = batch.positions = inputs_.as<std::int32_t>();
    batch.slots = inputs_.as<std::int64_t>();
    batch.block_table = batch.words = inputs_.as<std::int32_t>();
    batch.samples = inputs_.as<cuda::SampleRow>();
    batch.singles.items = inputs_.as<cuda::DecodeItem>();
    batch.singles.n_items = inputs_.as<std::int32_t>();
    batch.singles.rows = rows;
    batch.singles.launch = decoder_->decode_attention().max_items(rows);
    const cuda::OwnedStream stream;
    cudaGraph_t graph = nullptr;
    must(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeThreadLocal));
    decoder_->run(batch, stream.get());
    must(cudaStreamEndCapture(stream.get(), &graph));
    std::vector<std::string> lines = lines_of(graph);
    must(cudaGraphDestroy(graph));
    return lines;
  }

 private:
  static ModelConfig config_of(const Case& c) {
    return parse_model_config(std::string("{") + c.settings + ", " + kCommon + "}", "", c.name);
  }

  ModelConfig config_;
  cuda::DeviceMemory inputs_, pool_;
  std::unique_ptr<GpuDecoder> decoder_;
};

std::string recorded() {
  std::ostringstream text;
  for (const Case& c : kCases) {
    Small small(c);
    for (const int rows : {1, kMaxRows}) {
      text << "# " << c.name << ", " << rows << (rows == 1 ? " row\n" : " rows\n");
      for (const std::string& line : small.launches(rows)) text << line << "\n";
    }
  }
  return text.str();
}

TEST(Launches, AreThoseOfTheFile) {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) GTEST_SKIP() << "no GPU";
  cudaDeviceProp device{};
  must(cudaGetDeviceProperties(&device, 0));
  if (device.major != 9 || device.minor != 0 || device.multiProcessorCount != 132) {
    GTEST_SKIP() << "recorded on a Hopper GPU of 132 multiprocessors: grids follow from them";
  }
  const char* folder = std::getenv("BATON_SOURCE_DIR");
  const std::string path =
      std::string(folder == nullptr ? "." : folder) + "/tests/golden/gpu_launches.txt";
  const std::string got = recorded();
  if (std::getenv("BATON_REGENERATE_GOLDEN") != nullptr) {
    std::ofstream(path) << got;
    return;
  }
  std::ifstream file(path);
  ASSERT_TRUE(file) << path;
  std::istringstream lines(got);
  std::string want, have, part;
  for (int n = 1; std::getline(file, want); ++n) {
    ASSERT_TRUE(std::getline(lines, have)) << path << ":" << n << ": nothing launched any more";
    if (want.starts_with("#")) part = want;
    ASSERT_EQ(have, want) << path << ":" << n << ", " << part;
  }
  EXPECT_FALSE(std::getline(lines, have)) << "launched beside what the file has: " << have;
}

}  // namespace
}  // namespace baton
