// /// gemmsweep
// summary   = "Up to four rows of A: warps stream whole rows of B through registers, a dot product per element of C."
// backend   = "cuda"
// arch      = "sm_75+"
// dtypes    = ["fp16", "bf16", "fp32"]
// layouts   = ["nt"]
// requires  = ["M <= 4"]
//
// [parameters]
// ROWS    = { default = 1, values = [1, 2, 4, 8], meaning = "rows of B per warp, which share its reads of A" }
// WARPS   = { default = 8, values = [1, 2, 4, 8, 16, 32], meaning = "warps per block" }
// SPLIT_K = { default = 1, values = [1, 2, 4, 8, 16, 32], meaning = "warps of a block that divide K of the same rows" }
// UNROLL  = { default = 4, values = [1, 2, 4, 8, 16], meaning = "loads in flight per lane and row" }
// VEC     = { default = 16, values = [4, 8, 16], meaning = "bytes per load where the rows are aligned to them" }
// CACHE   = { default = "no_allocate", values = ["default", "streaming", "no_allocate"], meaning = "how B passes L1" }
//
// [derived]
// TOKENS     = "min(M, 4)"
// THREADS    = "32 * WARPS"
// BLOCK_ROWS = "ROWS * floor_div(WARPS, SPLIT_K)"
//
// [[constraints]]
// expr = "ROWS >= 1 and SPLIT_K >= 1 and UNROLL >= 1"
// why  = "there is something to do: raise ROWS, SPLIT_K and UNROLL to at least 1"
// [[constraints]]
// expr = "VEC >= 4 and 16 % VEC == 0"
// why  = "a load takes 4, 8 or 16 bytes"
// [[constraints]]
// expr = "WARPS % SPLIT_K == 0"
// why  = "the warps of a block form whole groups of SPLIT_K: lower SPLIT_K"
// [[constraints]]
// expr = "THREADS <= 1024"
// why  = "a block holds at most 1024 threads"
// [[constraints]]
// expr = "UNROLL * ROWS * VEC <= 512"
// why  = "the loads in flight fill at most 128 of a thread's 255 registers: lower UNROLL, ROWS or VEC"
// [[constraints]]
// expr = "(floor_div(UNROLL * (ROWS + 1) * VEC, 4) + ROWS * TOKENS + 24) * THREADS <= 65536"
// why  = "loads in flight, sums and 24 more registers per thread fit a register file of 65536: lower UNROLL or WARPS"
//
// [launch]
// args  = ["A", "B", "C", "i64:N", "i64:K", "i64:lda", "i64:ldb", "i64:ldc", "epilogue"]
// grid  = ["ceil_div(N, BLOCK_ROWS)", "1", "1"]
// block = "THREADS"
// smem_bytes = "0"
//
// [[start]]
// set = { WARPS = 4, SPLIT_K = 4 }
// [[start]]
// set = { WARPS = 4, SPLIT_K = 2, UNROLL = 8 }
// [account]
// unit = "ffma"
// accumulators = "ROWS * TOKENS"
// ///

// B is read once, so nothing but the number of bytes in flight matters: every lane asks for UNROLL vectors of each of
// ROWS rows before it uses the first. A is small and comes from L1, which B therefore had better not fill. Sums meet
// in a warp by shuffles, and in a block through shared memory in a fixed order.
#include "epilogue.cuh"

typedef unsigned u32;
typedef $IN In;
typedef $OUT Out;
typedef $EPILOGUE Ops;

enum Cache { DEFAULT, STREAMING, NO_ALLOCATE };  // in the header's order

constexpr int ROWS = $ROWS;
constexpr int WARPS = $WARPS;
constexpr int SPLIT_K = $SPLIT_K;
constexpr int UNROLL = $UNROLL;
constexpr int VEC = $VEC;
constexpr Cache CACHE = Cache($CACHE);
constexpr int TOKENS = $TOKENS;  // M, the rows of A: the kernel is built for it, so that the sums stay in registers
constexpr int THREADS = $THREADS;
constexpr int BLOCK_ROWS = $BLOCK_ROWS;
$STATIC_ASSERTS

// What one load brings.
template <int WIDTH> struct Vector {
    static constexpr int BYTES = WIDTH * sizeof(In);
    u32 word[(BYTES + 3) / 4];
};
template <int WIDTH> __device__ __forceinline__ float element(const Vector<WIDTH>& v, int i, float) {
    return __uint_as_float(v.word[i]);
}
template <int WIDTH, class Half> __device__ __forceinline__ float element(const Vector<WIDTH>& v, int i, Half x) {
    x.bits = (unsigned short)(v.word[i / 2] >> i % 2 * 16);
    return to_float(x);
}

// Volatile, so that the compiler keeps the loads of a batch together instead of sinking each to its use.
#define LOAD(HOW)                                                                                                   \
    if constexpr (v.BYTES == 16)                                                                                    \
        asm volatile("ld.global" HOW ".v4.u32 {%0, %1, %2, %3}, [%4];"                                              \
                     : "=r"(v.word[0]), "=r"(v.word[1]), "=r"(v.word[2]), "=r"(v.word[3]) : "l"(from));             \
    else if constexpr (v.BYTES == 8)                                                                                \
        asm volatile("ld.global" HOW ".v2.u32 {%0, %1}, [%2];" : "=r"(v.word[0]), "=r"(v.word[1]) : "l"(from));     \
    else if constexpr (v.BYTES == 4)                                                                                \
        asm volatile("ld.global" HOW ".u32 %0, [%1];" : "=r"(v.word[0]) : "l"(from));                               \
    else                                                                                                            \
        asm volatile("{.reg .u16 x; ld.global" HOW ".u16 x, [%1]; cvt.u32.u16 %0, x;}" : "=r"(v.word[0]) : "l"(from))

template <int WIDTH, Cache HOW> __device__ __forceinline__ Vector<WIDTH> load(const In* from) {
    Vector<WIDTH> v;
    if constexpr (HOW == STREAMING) {
        LOAD(".cs.nc");
    } else if constexpr (HOW == NO_ALLOCATE) {
        LOAD(".nc.L1::no_allocate");
    } else {
        LOAD(".nc");
    }
    return v;
}

// Multiplies COUNT vectors of every row, `stride` elements apart. a: the first row of A; b: this warp's rows of B.
template <int COUNT, int WIDTH>
__device__ __forceinline__ void multiply(float (&acc)[ROWS][TOKENS], const In* a, i64 lda,
                                         const In* const (&b)[ROWS], i64 k, int stride) {
    Vector<WIDTH> y[COUNT][ROWS];
#pragma unroll
    for (int u = 0; u < COUNT; ++u)
#pragma unroll
        for (int r = 0; r < ROWS; ++r) y[u][r] = load<WIDTH, CACHE>(b[r] + k + u * stride);
#pragma unroll
    for (int t = 0; t < TOKENS; ++t) {
        Vector<WIDTH> x[COUNT];
#pragma unroll
        for (int u = 0; u < COUNT; ++u) x[u] = load<WIDTH, DEFAULT>(a + t * lda + k + u * stride);
#pragma unroll
        for (int u = 0; u < COUNT; ++u)
#pragma unroll
            for (int i = 0; i < WIDTH; ++i)
#pragma unroll
                for (int r = 0; r < ROWS; ++r)
                    acc[r][t] = fmaf(element(x[u], i, In()), element(y[u][r], i, In()), acc[r][t]);
    }
}

// This lane's part of K: vector after vector the lanes of the SPLIT_K warps take turns. What is left of K after its
// last whole vector is taken element by element, so that nothing beyond K is read.
template <int WIDTH>
__device__ __forceinline__ void dot_products(float (&acc)[ROWS][TOKENS], const In* a, i64 lda,
                                             const In* const (&b)[ROWS], i64 K, int part) {
    constexpr int STRIDE = SPLIT_K * 32 * WIDTH;
    const int lane = threadIdx.x % 32;
    const i64 whole = K / WIDTH * WIDTH;
    i64 k = (part * 32 + lane) * WIDTH;
#pragma unroll 1
    for (; k + (UNROLL - 1) * STRIDE < whole; k += UNROLL * STRIDE)
        multiply<UNROLL, WIDTH>(acc, a, lda, b, k, STRIDE);
#pragma unroll 1
    for (; k < whole; k += STRIDE) multiply<1, WIDTH>(acc, a, lda, b, k, STRIDE);
    if (WIDTH > 1 && part == 0 && whole + lane < K) multiply<1, 1>(acc, a, lda, b, whole + lane, STRIDE);
}

// "1" lifts the compiler's aim at full occupancy, for which it would hold back loads to save registers.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
gemm(const In* A, const In* B, Out* C, i64 N, i64 K, i64 lda, i64 ldb, i64 ldc, Epilogue epilogue) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const i64 block_n = (i64)blockIdx.x * BLOCK_ROWS, n = block_n + warp / SPLIT_K * ROWS;
    const In* b[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; ++r) b[r] = B + min(n + r, N - 1) * ldb;  // rows beyond N repeat the last, unused

    constexpr int WIDTH = VEC / sizeof(In);
    float acc[ROWS][TOKENS] = {};
    if (lda % WIDTH == 0 && ldb % WIDTH == 0) dot_products<WIDTH>(acc, A, lda, b, K, warp % SPLIT_K);
    else dot_products<1>(acc, A, lda, b, K, warp % SPLIT_K);

    __shared__ float sums[WARPS][ROWS][TOKENS];
#pragma unroll
    for (int r = 0; r < ROWS; ++r)
#pragma unroll
        for (int t = 0; t < TOKENS; ++t) {
#pragma unroll
            for (int distance = 16; distance > 0; distance /= 2)
                acc[r][t] += __shfl_xor_sync(0xffffffffu, acc[r][t], distance);
            if (lane == 0) sums[warp][r][t] = acc[r][t];
        }
    __syncthreads();

    // One thread finishes one element; neighbours lie next to each other in C.
    for (int i = threadIdx.x; i < BLOCK_ROWS * TOKENS; i += THREADS) {
        const int row = i % BLOCK_ROWS, t = i / BLOCK_ROWS;
        float sum = 0.0f;
#pragma unroll
        for (int part = 0; part < SPLIT_K; ++part) sum += sums[row / ROWS * SPLIT_K + part][row % ROWS][t];
        if (block_n + row < N) {
            Out* c = C + t * ldc + block_n + row;
            *c = from_float<Out>(finish<Ops>(sum, c, epilogue, t, block_n + row));
        }
    }
}
