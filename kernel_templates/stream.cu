// /// gemmsweep
// summary   = "Up to 16 rows of A: warps stream rows of B from memory straight into the fragments of tensor cores."
// backend   = "cuda"
// arch      = "sm_80+"
// dtypes    = ["fp16", "bf16"]
// layouts   = ["nt"]
// requires  = ["M <= 16"]
//
// [parameters]
// ROWS    = { default = 16, values = [16, 32, 64], meaning = "rows of B per warp, which share its reads of A" }
// WARPS   = { default = 8, values = [1, 2, 4, 8, 16], meaning = "warps per block" }
// SPLIT_K = { default = 8, values = [1, 2, 4, 8, 16], meaning = "warps of a block that divide K of the same rows" }
// UNROLL  = { default = 4, values = [1, 2, 4, 8], meaning = "runs of 64 bytes per row that a warp asks for together" }
// CACHE   = { default = "streaming", values = ["default", "streaming", "no_allocate"], meaning = "how B passes L1" }
//
// [derived]
// M_TILES    = "ceil_div(min(M, 16), 8)"
// N_TILES    = "floor_div(ROWS, 16)"
// THREADS    = "32 * WARPS"
// BLOCK_ROWS = "ROWS * floor_div(WARPS, SPLIT_K)"
//
// [[constraints]]
// expr = "ROWS >= 16 and ROWS % 16 == 0"
// why  = "a multiply takes 16 rows of B"
// [[constraints]]
// expr = "SPLIT_K >= 1 and UNROLL >= 1"
// why  = "there is something to do: raise SPLIT_K and UNROLL to at least 1"
// [[constraints]]
// expr = "WARPS % SPLIT_K == 0"
// why  = "the warps of a block form whole groups of SPLIT_K: lower SPLIT_K"
// [[constraints]]
// expr = "THREADS <= 1024"
// why  = "a block holds at most 1024 threads"
// [[constraints]]
// expr = "8 * UNROLL * N_TILES + 4 * N_TILES * M_TILES + 4 * M_TILES <= 200"
// why  = "loads in flight and sums leave a thread 55 of its 255 registers: lower UNROLL or ROWS"
// [[constraints]]
// expr = "(8 * UNROLL * N_TILES + 4 * N_TILES * M_TILES + 4 * M_TILES + 40) * THREADS <= 65536"
// why  = "loads in flight, sums and 40 more registers per thread fit a register file of 65536: lower UNROLL or WARPS"
// [[constraints]]
// expr = "512 * WARPS * N_TILES * M_TILES <= 49152"
// why  = "the sums of a block fit 48 KB of shared memory: lower WARPS or ROWS"
//
// [launch]
// args  = ["A", "B", "C", "i64:M", "i64:N", "i64:K", "i64:lda", "i64:ldb", "i64:ldc", "epilogue"]
// grid  = ["ceil_div(N, BLOCK_ROWS)", "1", "1"]
// block = "THREADS"
// smem_bytes = "0"
//
// [[start]]
// set = { CACHE = "no_allocate" }
// [[start]]
// set = { SPLIT_K = 4 }
// [account]
// unit = "tensor"
// accumulators = "4 * N_TILES * M_TILES"
// ///

// mma sums over K in any order, as long as both its operands have the same one. So a lane takes 16 bytes of a row where
// they lie, and calls them its eight elements of two multiplies: neither operand passes shared memory, no warp waits
// for another, and each has UNROLL * ROWS runs of 64 bytes in flight. Rows of B take the side of the multiply that is
// 16 wide, rows of A ("tokens") the side that is 8 wide. All warps need A, which comes from L1: with more than 16
// tokens its reads would outweigh those of B.
#include "epilogue.cuh"
#include "tiles.cuh"

typedef $IN In;
typedef $OUT Out;
typedef $EPILOGUE Ops;

enum Cache { DEFAULT, STREAMING, NO_ALLOCATE };  // in the header's order

constexpr int ROWS = $ROWS;
constexpr int WARPS = $WARPS;
constexpr int SPLIT_K = $SPLIT_K;
constexpr int UNROLL = $UNROLL;
constexpr Cache CACHE = Cache($CACHE);
constexpr int M_TILES = $M_TILES;  // the kernel is built for M, so that the sums stay in registers
constexpr int N_TILES = $N_TILES;
constexpr int THREADS = $THREADS;
constexpr int BLOCK_ROWS = $BLOCK_ROWS;
$STATIC_ASSERTS

constexpr int RUN = 32, WIDTH = 8;  // elements of K: of one step of a warp, of one lane in it

struct Vector {
    u32 word[4];
};

// Volatile, so that the compiler keeps the loads of a batch together instead of sinking each to its use.
#define LOAD(HOW)                                                                  \
    asm volatile("ld.global" HOW ".v4.u32 {%0, %1, %2, %3}, [%4];"                 \
                 : "=r"(v.word[0]), "=r"(v.word[1]), "=r"(v.word[2]), "=r"(v.word[3]) : "l"(from))
template <Cache HOW> __device__ __forceinline__ Vector load(const In* from) {
    Vector v;
    if constexpr (HOW == STREAMING) LOAD(".cs.nc");
    else if constexpr (HOW == NO_ALLOCATE) LOAD(".nc.L1::no_allocate");
    else LOAD(".nc");
    return v;
}
// Element by element, for rows that are not aligned and for the end of K, beyond which there are zeros.
__device__ __forceinline__ Vector gather(const In* from, i64 exist) {
    Vector v;
#pragma unroll
    for (int i = 0; i < WIDTH; i += 2) {
        const u32 low = i < exist ? from[i].bits : 0, high = i + 1 < exist ? from[i + 1].bits : 0;
        v.word[i / 2] = low | high << 16;
    }
    return v;
}

// A lane's rows: of every tile of 16 rows of B the two that it multiplies, of every tile of 8 tokens one.
struct Rows {
    const In* weight[N_TILES][2];
    const In* token[M_TILES];
};

// Multiplies COUNT runs. k: this lane's place in the first; K: where the rows end, if the runs need not be whole.
template <int COUNT, bool WHOLE>
__device__ __forceinline__ void multiply(float4 (&acc)[N_TILES][M_TILES], const Rows& rows, i64 k, i64 K) {
    Vector weights[COUNT][N_TILES][2];
#pragma unroll
    for (int u = 0; u < COUNT; ++u)
#pragma unroll
        for (int i = 0; i < N_TILES; ++i)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const In* from = rows.weight[i][half] + k + u * RUN;
                weights[u][i][half] = WHOLE ? load<CACHE>(from) : gather(from, K - k - u * RUN);
            }
#pragma unroll
    for (int u = 0; u < COUNT; ++u) {
        Vector tokens[M_TILES];
#pragma unroll
        for (int j = 0; j < M_TILES; ++j) {
            const In* from = rows.token[j] + k + u * RUN;
            tokens[j] = WHOLE ? load<DEFAULT>(from) : gather(from, K - k - u * RUN);
        }
#pragma unroll
        for (int i = 0; i < N_TILES; ++i)
#pragma unroll
            for (int pair = 0; pair < 4; pair += 2) {
                const Vector &x = weights[u][i][0], &y = weights[u][i][1];
                const u32 a[4] = {x.word[pair], y.word[pair], x.word[pair + 1], y.word[pair + 1]};
#pragma unroll
                for (int j = 0; j < M_TILES; ++j) {
                    const u32 b[2] = {tokens[j].word[pair], tokens[j].word[pair + 1]};
                    float4& c = acc[i][j];
                    mma(c.x, c.y, c.z, c.w, a, b, In());
                }
            }
    }
}

// "1" lifts the compiler's aim at full occupancy, for which it would hold back loads to save registers.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
gemm(const In* A, const In* B, Out* C, i64 M, i64 N, i64 K, i64 lda, i64 ldb, i64 ldc, Epilogue epilogue) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, part = warp % SPLIT_K;
    const i64 block_n = (i64)blockIdx.x * BLOCK_ROWS, n = block_n + warp / SPLIT_K * ROWS;
    Rows rows;  // beyond N and M they repeat the last, unused
#pragma unroll
    for (int i = 0; i < N_TILES; ++i)
#pragma unroll
        for (int half = 0; half < 2; ++half)
            rows.weight[i][half] = B + min(n + 16 * i + 8 * half + lane / 4, N - 1) * ldb;
#pragma unroll
    for (int j = 0; j < M_TILES; ++j) rows.token[j] = A + min((i64)(8 * j + lane / 4), M - 1) * lda;

    // The warps that divide K take turns at UNROLL runs each, then at single ones of what is left.
    float4 acc[N_TILES][M_TILES] = {};
    const i64 runs = lda % WIDTH == 0 && ldb % WIDTH == 0 ? K / RUN : 0;
    const i64 batches = runs / UNROLL;
    const int k = lane % 4 * WIDTH;
#pragma unroll 1
    for (i64 batch = part; batch < batches; batch += SPLIT_K)
        multiply<UNROLL, true>(acc, rows, batch * UNROLL * RUN + k, K);
#pragma unroll 1
    for (i64 run = batches * UNROLL + part; run < runs; run += SPLIT_K) multiply<1, true>(acc, rows, run * RUN + k, K);
#pragma unroll 1
    for (i64 run = runs + part; run * RUN < K; run += SPLIT_K) multiply<1, false>(acc, rows, run * RUN + k, K);

    // Sums meet in the order of the warps. A lane has of each 16 x 8 tile row lane / 4 with two tokens, and row + 8.
    __shared__ float4 sums[WARPS][N_TILES * M_TILES * 32];
#pragma unroll
    for (int i = 0; i < N_TILES; ++i)
#pragma unroll
        for (int j = 0; j < M_TILES; ++j) sums[warp][(i * M_TILES + j) * 32 + lane] = acc[i][j];
    __syncthreads();

    auto store = [&](int row, int token, float x) {
        if (block_n + row >= N || token >= M) return;
        Out* c = C + token * ldc + block_n + row;
        *c = from_float<Out>(finish<Ops>(x, c, epilogue, token, block_n + row));
    };
    for (int i = threadIdx.x; i < WARPS / SPLIT_K * N_TILES * M_TILES * 32; i += THREADS) {
        const int group = i / (N_TILES * M_TILES * 32), place = i % (N_TILES * M_TILES * 32);
        float4 sum = sums[group * SPLIT_K][place];
#pragma unroll
        for (int p = 1; p < SPLIT_K; ++p) {
            const float4 x = sums[group * SPLIT_K + p][place];
            sum = {sum.x + x.x, sum.y + x.y, sum.z + x.z, sum.w + x.w};
        }
        const int row = group * ROWS + place / 32 / M_TILES * 16 + place % 32 / 4;
        const int token = place / 32 % M_TILES * 8 + place % 4 * 2;
        store(row, token, sum.x);
        store(row, token + 1, sum.y);
        store(row + 8, token, sum.z);
        store(row + 8, token + 1, sum.w);
    }
}
