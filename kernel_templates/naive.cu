// /// gemmsweep
// summary   = "One thread computes one element of C, every operand straight from global memory."
// backend   = "cuda"
// arch      = "sm_75+"
// dtypes    = ["fp32", "fp16", "bf16"]
// layouts   = ["nn", "nt"]
//
// [parameters]
// BM     = { default = 8,  values = [1, 2, 4, 8, 16, 32, 64], meaning = "rows of C per block" }
// BN     = { default = 32, values = [1, 2, 4, 8, 16, 32, 64], meaning = "columns of C per block" }
// UNROLL = { default = 4,  values = [1, 2, 4, 8, 16, 24, 32], meaning = "k steps that are loaded together" }
// ORDER  = { default = "coalesced", values = ["coalesced", "strided"], meaning = "adjacent threads lie along n, or m" }
//
// [derived]
// THREADS = "BM * BN"
//
// [[constraints]]
// expr = "THREADS <= 1024"
// why  = "a block holds at most 1024 threads"
// [[constraints]]
// expr = "THREADS % 32 == 0"
// why  = "a block is made of whole warps"
// [[constraints]]
// expr = "UNROLL >= 1 and (2 * UNROLL + 24) * THREADS <= 65536"
// why  = "operands asked for and 24 more registers per thread fit a register file of 65536: lower UNROLL, BM or BN"
//
// [launch]
// args  = ["A", "B", "C", "i64:M", "i64:N", "i64:K", "i64:lda", "i64:ldb", "i64:ldc", "epilogue"]
// grid  = ["ceil_div(M, BM) * ceil_div(N, BN)", "1", "1"]
// block = "THREADS"
// smem_bytes = "0"
//
// [[start]]
// when = "K <= 32"
// set = { BM = 4, UNROLL = 24 }
// [account]
// unit = "ffma"
// accumulators = "1"
// warp = "floor_div(ORDER * (row + column * BM) + (1 - ORDER) * (row * BN + column), 32)"
// lane = "(ORDER * (row + column * BM) + (1 - ORDER) * (row * BN + column)) % 32"
// ///

// The baseline, and the reference of the others: k is summed in ascending order by one fp32 fma each, so a kernel that
// claims the same order must give the same bits. No tile is kept anywhere: what reuse there is, the caches provide, and
// that depends on which elements a warp asks for together (ORDER). A small product takes as long as its trips to
// memory, so what is left of K below UNROLL is one trip too.
#include "epilogue.cuh"

constexpr int BM = $BM;
constexpr int BN = $BN;
constexpr int UNROLL = $UNROLL;
constexpr int THREADS = $THREADS;
constexpr bool STRIDED = $ORDER;
constexpr bool B_NT = $B_NT;
$STATIC_ASSERTS

using In = $IN;
using Out = $OUT;
using Ops = $EPILOGUE;

// Adds UNROLL products, or the first `left` of them, at least one; b's elements are `step` apart. Those beyond repeat
// the last one's loads: loads under predicates, of which there are few, would wait for each other.
template <bool ALL>
__device__ __forceinline__ float plus_products(float acc, const In* a, const In* b, i64 step, int left) {
    In x[UNROLL], y[UNROLL];
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) {
        const int k = ALL || u < left ? u : left - 1;
        x[u] = a[k];
        y[u] = b[k * step];
    }
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) acc = ALL || u < left ? fmaf(to_float(x[u]), to_float(y[u]), acc) : acc;
    return acc;
}

// "1" lifts the compiler's aim at full occupancy, for which it would spill operands.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
gemm(const In* A, const In* B, Out* C, i64 M, i64 N, i64 K, i64 lda, i64 ldb, i64 ldc, Epilogue epilogue) {
    // The grid has one dimension because only x may exceed 65535 blocks; blocks go along n first.
    const unsigned tiles_n = static_cast<unsigned>((N + BN - 1) / BN);
    const unsigned tile_m = blockIdx.x / tiles_n;
    const unsigned tile_n = blockIdx.x % tiles_n;

    const int t = threadIdx.x;
    const i64 row = static_cast<i64>(tile_m) * BM + (STRIDED ? t % BM : t / BN);
    const i64 col = static_cast<i64>(tile_n) * BN + (STRIDED ? t / BM : t % BN);
    if (row >= M || col >= N) return;

    const In* a = A + row * lda;                   // this thread's row of A
    const In* b = B_NT ? B + col * ldb : B + col;  // and its column of B
    const i64 b_step = B_NT ? 1 : ldb;
    float acc = 0.0f;
    i64 left = K;
#pragma unroll 1
    for (; left >= UNROLL; left -= UNROLL) {
        acc = plus_products<true>(acc, a, b, b_step, UNROLL);
        a += UNROLL;
        b += UNROLL * b_step;
    }
    if (UNROLL > 1 && left > 0) acc = plus_products<false>(acc, a, b, b_step, (int)left);

    Out* c = C + row * ldc + col;
    *c = from_float<Out>(finish<Ops>(acc, c, epilogue, row, col));
}
