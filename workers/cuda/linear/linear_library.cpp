#include "workers/cuda/linear/linear_library.h"

#include <cuda_runtime.h>

#include "workers/cuda/linear/cublas_check.h"

namespace baton::cuda {

/// cuBLAS counts by columns: there y^T [out x rows] = W [out x in] x^T, with W transposed. All of
/// it lives on the stack, so that a call allocates nothing.
struct LibraryLinear::Problem {
  cublasLtMatmulDescOpaque_t operation;
  cublasLtMatrixLayoutOpaque_t w, x, y;

  Problem(int rows, int out, int in, Store store) {
    check(cublasLtMatmulDescInit(&operation, CUBLAS_COMPUTE_32F, CUDA_R_32F), "operation");
    const cublasOperation_t transposed = CUBLAS_OP_T;
    check(cublasLtMatmulDescSetAttribute(&operation, CUBLASLT_MATMUL_DESC_TRANSA, &transposed,
                                         sizeof transposed),
          "transpose");
    const auto r = static_cast<std::uint64_t>(rows);
    const auto o = static_cast<std::uint64_t>(out);
    const auto i = static_cast<std::uint64_t>(in);
    check(cublasLtMatrixLayoutInit(&w, CUDA_R_16BF, i, o, in), "layout");
    check(cublasLtMatrixLayoutInit(&x, CUDA_R_16BF, i, r, in), "layout");
    check(cublasLtMatrixLayoutInit(&y, store.f32 ? CUDA_R_32F : CUDA_R_16BF, o, r, out), "layout");
  }
};

LibraryLinear::LibraryLinear(void* workspace, std::size_t workspace_bytes)
    : workspace_(workspace), workspace_bytes_(workspace_bytes) {
  check(cublasLtCreate(&handle_), "create");
}

LibraryLinear::~LibraryLinear() { cublasLtDestroy(handle_); }

std::size_t LibraryLinear::version() { return cublasLtGetVersion(); }

std::vector<LibraryLinear::Algorithm> LibraryLinear::candidates(int rows, int out, int in,
                                                                Store store, bool whole_sums,
                                                                int most) const {
  Problem problem(rows, out, in, store);
  cublasLtMatmulPreferenceOpaque_t preference;
  check(cublasLtMatmulPreferenceInit(&preference), "preference");
  const auto set = [&](cublasLtMatmulPreferenceAttributes_t which, const auto& value) {
    check(cublasLtMatmulPreferenceSetAttribute(&preference, which, &value, sizeof value),
          "preference");
  };
  set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, workspace_bytes_);
  const std::uint32_t alignment = 16;
  for (const auto which :
       {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
    set(which, alignment);
  }
  // Never one that adds up its parts in bf16.
  const std::uint32_t schemes =
      whole_sums ? CUBLASLT_REDUCTION_SCHEME_NONE
                 : CUBLASLT_REDUCTION_SCHEME_INPLACE | CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
  set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, schemes);
  std::vector<cublasLtMatmulHeuristicResult_t> results(static_cast<std::size_t>(most));
  int found = 0;
  check(cublasLtMatmulAlgoGetHeuristic(handle_, &problem.operation, &problem.w, &problem.x,
                                       &problem.y, &problem.y, &preference, most, results.data(),
                                       &found),
        "heuristic");
  std::vector<Algorithm> algorithms;
  for (int i = 0; i < found; ++i) {
    const auto& result = results[static_cast<std::size_t>(i)];
    if (result.state == CUBLAS_STATUS_SUCCESS) algorithms.push_back(result.algo);
  }
  if (algorithms.empty()) throw CudaError("cublasLt knows no algorithm for a linear layer");
  return algorithms;
}

bool LibraryLinear::run(const Algorithm& algorithm, const Bf16* x, int rows, const LinearWeight& w,
                        Store store, void* y, Stream stream) const {
  Problem problem(rows, w.out, w.in, store);
  const float one = 1;
  const float old = store.add ? 1 : 0;
  const cublasStatus_t status =
      cublasLtMatmul(handle_, &problem.operation, &one, w.data, &problem.w, x, &problem.x, &old, y,
                     &problem.y, y, &problem.y, &algorithm, workspace_, workspace_bytes_, stream);
  if (status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE) return false;
  check(status, "matmul");
  return true;
}

}  // namespace baton::cuda
