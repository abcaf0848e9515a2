#include "workers/cuda/attention/head_gemm.h"

#include <cuda_runtime.h>

#include <bit>
#include <map>
#include <tuple>

#include "workers/cuda/linear/cublas_check.h"

namespace baton::cuda {
namespace {

/// Matrices of all heads, each `apart` elements behind the one before; cuBLAS counts by columns.
cublasLtMatrixLayoutOpaque_t layout(int rows, int columns, std::int64_t stride, int heads,
                                    std::int64_t apart) {
  cublasLtMatrixLayoutOpaque_t made;
  check(cublasLtMatrixLayoutInit(&made, CUDA_R_16BF, static_cast<std::uint64_t>(rows),
                                 static_cast<std::uint64_t>(columns), stride),
        "layout");
  check(cublasLtMatrixLayoutSetAttribute(&made, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &heads,
                                         sizeof heads),
        "layout");
  check(cublasLtMatrixLayoutSetAttribute(&made, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &apart,
                                         sizeof apart),
        "layout");
  return made;
}

/// y^T [out x rows] = W [out x in] x^T of each head.
struct Problem {
  cublasLtMatmulDescOpaque_t operation;
  cublasLtMatrixLayoutOpaque_t w, x, y;

  explicit Problem(const HeadProduct& a)
      : w(layout(a.in, a.out, a.in, a.heads, a.w_head)),
        x(layout(a.in, a.rows, a.x_row, a.heads, a.x_head)),
        y(layout(a.out, a.rows, a.y_row, a.heads, a.y_head)) {
    check(cublasLtMatmulDescInit(&operation, CUBLAS_COMPUTE_32F, CUDA_R_32F), "operation");
    const cublasOperation_t transposed = CUBLAS_OP_T;
    check(cublasLtMatmulDescSetAttribute(&operation, CUBLASLT_MATMUL_DESC_TRANSA, &transposed,
                                         sizeof transposed),
          "transpose");
  }
};

}  // namespace

struct HeadGemm::Impl {
  cublasLtHandle_t handle = nullptr;
  /// What the library proposes, by rows (rounded up to a power of two) and sizes.
  std::map<std::tuple<int, int, int, int>, cublasLtMatmulAlgo_t> chosen;

  cublasLtMatmulAlgo_t algorithm(const HeadProduct& a);
  cublasLtMatmulAlgo_t proposed(const HeadProduct& a) const;
  cublasStatus_t multiply(const HeadProduct& a, const cublasLtMatmulAlgo_t& how,
                          Stream stream) const;
};

cublasLtMatmulAlgo_t HeadGemm::Impl::algorithm(const HeadProduct& a) {
  HeadProduct round = a;
  round.rows = static_cast<int>(std::bit_ceil(static_cast<unsigned>(a.rows)));
  const auto key = std::make_tuple(round.rows, a.heads, a.in, a.out);
  if (const auto it = chosen.find(key); it != chosen.end()) return it->second;
  return chosen.emplace(key, proposed(round)).first->second;
}

cublasLtMatmulAlgo_t HeadGemm::Impl::proposed(const HeadProduct& a) const {
  Problem problem(a);
  cublasLtMatmulPreferenceOpaque_t preference;  // without a workspace: no sum is split
  check(cublasLtMatmulPreferenceInit(&preference), "preference");
  const std::uint32_t alignment = 16;
  for (const auto which :
       {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
    check(cublasLtMatmulPreferenceSetAttribute(&preference, which, &alignment, sizeof alignment),
          "preference");
  }
  cublasLtMatmulHeuristicResult_t result;
  int found = 0;
  check(cublasLtMatmulAlgoGetHeuristic(handle, &problem.operation, &problem.w, &problem.x,
                                       &problem.y, &problem.y, &preference, 1, &result, &found),
        "heuristic");
  if (found == 0) throw CudaError("cublasLt knows no algorithm for a product by heads");
  return result.algo;
}

cublasStatus_t HeadGemm::Impl::multiply(const HeadProduct& a, const cublasLtMatmulAlgo_t& how,
                                        Stream stream) const {
  Problem problem(a);
  const float one = 1, nought = 0;
  return cublasLtMatmul(handle, &problem.operation, &one, a.w, &problem.w, a.x, &problem.x, &nought,
                        a.y, &problem.y, a.y, &problem.y, &how, nullptr, 0, stream);
}

HeadGemm::HeadGemm() : impl_(new Impl) { check(cublasLtCreate(&impl_->handle), "create"); }

HeadGemm::~HeadGemm() { cublasLtDestroy(impl_->handle); }

void HeadGemm::run(const HeadProduct& a, Stream stream) const {
  if (a.rows <= 0) return;
  if (a.inputs_first) throw CudaError("a product by heads with inputs first is not the library's");
  cublasStatus_t status = impl_->multiply(a, impl_->algorithm(a), stream);
  if (status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE) {
    // What serves the rounded number of rows need not serve this one.
    status = impl_->multiply(a, impl_->proposed(a), stream);
  }
  check(status, "product by heads");
}

void HeadGemm::prepare(const HeadProduct& a) const {
  HeadProduct part = a;
  for (part.rows = PrefillAttention::kGatherTile;; part.rows *= 2) {
    impl_->algorithm(part);
    if (part.rows >= a.rows) return;
  }
}

}  // namespace baton::cuda
