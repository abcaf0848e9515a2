// What Hopper (sm_90a) adds for a matrix product, one PTX instruction a function: barriers in
// shared memory that count bytes, the copy engine's tiles, warpgroup products, clusters. PTX ISA
// 8.0, chapters 9.7.9, 9.7.13 and 9.7.15.
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdint>

#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define BATON_HOPPER 1
#endif

namespace baton::cuda::hopper {

__device__ __forceinline__ std::uint32_t shared_address(const void* p) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(p));
}

// ------------------------------------------------------------------ barriers (mbarrier)

__device__ __forceinline__ void barrier_init(std::uint64_t* barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)),
               "r"(arrivals));
}

/// After the inits, before the barriers are used by the copy engine.
__device__ __forceinline__ void barrier_init_done() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void barrier_arrive(std::uint64_t* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier))
               : "memory");
}

/// As `count` threads.
__device__ __forceinline__ void barrier_arrive(std::uint64_t* barrier, int count) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)),
               "r"(count)
               : "memory");
}

/// Arrives, and lets the phase also wait for `bytes` of copies.
__device__ __forceinline__ void barrier_expect(std::uint64_t* barrier, int bytes) {
  asm volatile(
      "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)),
      "r"(bytes)
      : "memory");
}

/// Until the phase of this parity has completed.
__device__ __forceinline__ void barrier_wait(std::uint64_t* barrier, int parity) {
  const std::uint32_t address = shared_address(barrier);
  std::uint32_t done = 0;
  do {
    asm volatile(
        "{\n.reg .pred p;\n"
        "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
        "selp.u32 %0, 1, 0, p;\n}"
        : "=r"(done)
        : "r"(address), "r"(parity)
        : "memory");
  } while (done == 0);
}

// ------------------------------------------------------------------ the copy engine

/// How long L2 should keep what a copy brings.
__device__ __forceinline__ std::uint64_t policy_evict_first() {
  std::uint64_t policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}
__device__ __forceinline__ std::uint64_t policy_evict_last() {
  std::uint64_t policy;
  asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

__device__ __forceinline__ void prefetch_map(const CUtensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(reinterpret_cast<std::uint64_t>(map)) : "memory");
}

/// The box of `map` at (column, row) to shared memory; its bytes count on `barrier`.
__device__ __forceinline__ void copy_box(void* to, const CUtensorMap* map, int column, int row,
                                         std::uint64_t* barrier, std::uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      ".L2::cache_hint [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(shared_address(to)),
      "l"(reinterpret_cast<std::uint64_t>(map)), "r"(column), "r"(row),
      "r"(shared_address(barrier)), "l"(policy)
      : "memory");
}

/// Likewise a box of three dimensions, at 0 in the first.
__device__ __forceinline__ void copy_box_3d(void* to, const CUtensorMap* map, int row, int last,
                                            std::uint64_t* barrier, std::uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      ".L2::cache_hint [%0], [%1, {%2, %3, %4}], [%5], %6;" ::"r"(shared_address(to)),
      "l"(reinterpret_cast<std::uint64_t>(map)), "r"(0), "r"(row), "r"(last),
      "r"(shared_address(barrier)), "l"(policy)
      : "memory");
}

/// `bytes` from global to shared memory; all three multiples of 16. They count on `barrier`.
__device__ __forceinline__ void copy_bytes(void* to, const void* from, int bytes,
                                           std::uint64_t* barrier, std::uint64_t policy) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1], %2, [%3], %4;" ::"r"(shared_address(to)),
      "l"(reinterpret_cast<std::uint64_t>(from)), "r"(bytes), "r"(shared_address(barrier)),
      "l"(policy)
      : "memory");
}

// ------------------------------------------------------------------ clusters

/// All threads of all CTAs of the cluster; what was written before is seen after.
__device__ __forceinline__ void cluster_sync() {
  asm volatile(
      "barrier.cluster.arrive.release.aligned;\n"
      "barrier.cluster.wait.acquire.aligned;" ::
          : "memory");
}

/// Where CTA `rank` of the cluster has what is at this address of shared memory here.
__device__ __forceinline__ std::uint32_t cluster_address(const void* here, int rank) {
  std::uint32_t there;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(shared_address(here)), "r"(rank));
  return there;
}

/// 16 bytes of the shared memory of CTA `rank` of the cluster, at the address they have here.
__device__ __forceinline__ float4 cluster_load(const float4* here, int rank) {
  float4 v;
  asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "r"(cluster_address(here, rank))
               : "memory");
  return v;
}

__device__ __forceinline__ void cluster_store(const float4* here, int rank, float4 v) {
  asm volatile(
      "st.shared::cluster.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(cluster_address(here, rank)),
      "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w)
      : "memory");
}

/// At a barrier of CTA `rank`, which sees what this thread has stored there, by
/// cluster_barrier_wait().
__device__ __forceinline__ void cluster_barrier_arrive(const std::uint64_t* here, int rank) {
  asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(
                   cluster_address(here, rank))
               : "memory");
}

__device__ __forceinline__ void cluster_barrier_wait(std::uint64_t* barrier, int parity) {
  const std::uint32_t address = shared_address(barrier);
  std::uint32_t done = 0;
  do {
    asm volatile(
        "{\n.reg .pred p;\n"
        "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2;\n"
        "selp.u32 %0, 1, 0, p;\n}"
        : "=r"(done)
        : "r"(address), "r"(parity)
        : "memory");
  } while (done == 0);
}

/// Some of the CTA's threads (a multiple of 32); id 0 is __syncthreads'.
__device__ __forceinline__ void sync_threads(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// ------------------------------------------------------------------ warpgroup products (wgmma)

/// Describes a K-major operand in shared memory as the copy engine's 128-byte swizzle leaves it:
/// rows of 64 bf16, eight rows to an aligned KiB. Add 2 for the next 16 of k.
__device__ __forceinline__ std::uint64_t operand(const void* shared) {
  constexpr std::uint64_t kSwizzle128 = std::uint64_t{1} << 62;
  constexpr std::uint64_t kEightRows = std::uint64_t{1024 >> 4} << 32;
  constexpr std::uint64_t kUnused = std::uint64_t{1} << 16;
  return kSwizzle128 | kEightRows | kUnused | ((shared_address(shared) & 0x3FFFF) >> 4);
}

/// The operand that lies `units` of 16 bytes behind. In 32 bits: sums with carries the compiler
/// computes ahead of all products, and whatever holds their operands is held meanwhile (3 % of a
/// layer kernel).
__device__ __forceinline__ std::uint64_t operand_behind(std::uint64_t first, int units) {
  const auto low = static_cast<std::uint32_t>(first) + static_cast<std::uint32_t>(units);
  return first >> 32 << 32 | low;
}

__device__ __forceinline__ void product_begin() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void product_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
/// Until at most `kPending` of the committed groups are unfinished.
template <int kPending>
__device__ __forceinline__ void product_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}
/// Keeps the compiler from moving uses of the sums across a wait.
template <int kCount>
__device__ __forceinline__ void pin(float (&d)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

/// d (64 x kN, fp32) = a (64 x 16) b (16 x kN) + (add ? d : 0) of one warpgroup. Lane 4 g + t of
/// warp w holds rows 16 w + g (d[4 j], d[4 j + 1]) and 16 w + g + 8 (d[4 j + 2], d[4 j + 3]) of
/// columns 8 j + 2 t and 8 j + 2 t + 1.
template <int kN>
struct Product;

/// The same with a in registers: of the warp's 16 rows and 16 k lane 4 g + t holds row g (a[0],
/// a[2]) and g + 8 (a[1], a[3]), k 2 t and 2 t + 1 (a[0], a[1]) and those eight on. They must stay
/// as they are until the product has been waited for.
template <int kN>
struct RegisterProduct;

#define BATON_S4 "%0, %1, %2, %3"
#define BATON_S8 BATON_S4 ", %4, %5, %6, %7"
#define BATON_S16 BATON_S8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define BATON_S32 \
  BATON_S16 ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define BATON_S64                                                                      \
  BATON_S32                                                                            \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define BATON_S128                                                                     \
  BATON_S64                                                                            \
  ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, " \
  "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "   \
  "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, "   \
  "%110, %111, %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, "     \
  "%123, %124, %125, %126, %127"
#define BATON_D4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define BATON_D8(i) BATON_D4(i), BATON_D4(i + 4)
#define BATON_D16(i) BATON_D8(i), BATON_D8(i + 8)
#define BATON_D32(i) BATON_D16(i), BATON_D16(i + 16)
#define BATON_D64(i) BATON_D32(i), BATON_D32(i + 32)
#define BATON_D128(i) BATON_D64(i), BATON_D64(i + 64)
#define BATON_PRODUCT(n, sums, registers, a_at, b_at, add_at)                                   \
  template <>                                                                                   \
  struct Product<n> {                                                                           \
    static __device__ __forceinline__ void run(float (&d)[n / 2], std::uint64_t a,              \
                                               std::uint64_t b, int add) {                      \
      asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " add_at                                   \
                   ", 0;\nwgmma.mma_async.sync.aligned.m64n" #n "k16.f32.bf16.bf16 {" registers \
                   "}, " a_at ", " b_at ", p, 1, 1, 0, 0;\n}"                                   \
                   : sums                                                                       \
                   : "l"(a), "l"(b), "r"(add));                                                 \
    }                                                                                           \
  };
#define BATON_REGISTER_PRODUCT(n, sums, registers, a_at, b_at, add_at)                          \
  template <>                                                                                   \
  struct RegisterProduct<n> {                                                                   \
    static __device__ __forceinline__ void run(float (&d)[n / 2], const std::uint32_t (&a)[4],  \
                                               std::uint64_t b, int add) {                      \
      asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " add_at                                   \
                   ", 0;\nwgmma.mma_async.sync.aligned.m64n" #n "k16.f32.bf16.bf16 {" registers \
                   "}, {" a_at "}, " b_at ", p, 1, 1, 0;\n}"                                    \
                   : sums                                                                       \
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));             \
    }                                                                                           \
  };
BATON_PRODUCT(8, BATON_D4(0), BATON_S4, "%4", "%5", "%6")
BATON_PRODUCT(16, BATON_D8(0), BATON_S8, "%8", "%9", "%10")
BATON_PRODUCT(32, BATON_D16(0), BATON_S16, "%16", "%17", "%18")
BATON_PRODUCT(64, BATON_D32(0), BATON_S32, "%32", "%33", "%34")
BATON_PRODUCT(128, BATON_D64(0), BATON_S64, "%64", "%65", "%66")
BATON_PRODUCT(256, BATON_D128(0), BATON_S128, "%128", "%129", "%130")
#undef BATON_PRODUCT
BATON_REGISTER_PRODUCT(8, BATON_D4(0), BATON_S4, "%4, %5, %6, %7", "%8", "%9")
BATON_REGISTER_PRODUCT(16, BATON_D8(0), BATON_S8, "%8, %9, %10, %11", "%12", "%13")
BATON_REGISTER_PRODUCT(32, BATON_D16(0), BATON_S16, "%16, %17, %18, %19", "%20", "%21")
BATON_REGISTER_PRODUCT(64, BATON_D32(0), BATON_S32, "%32, %33, %34, %35", "%36", "%37")
BATON_REGISTER_PRODUCT(128, BATON_D64(0), BATON_S64, "%64, %65, %66, %67", "%68", "%69")
#undef BATON_REGISTER_PRODUCT

/// Threads of a warpgroup take registers of the multiprocessor's, or give some back: to so many
/// each, a multiple of 8.
template <int kRegisters>
__device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

}  // namespace baton::cuda::hopper
