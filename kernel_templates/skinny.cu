// /// gemmsweep
// summary   = "Few rows of A: B streams through a deep ring onto the wide side of the multiply; blocks divide K."
// backend   = "cuda"
// arch      = "sm_80+"
// dtypes    = ["fp16", "bf16", "fp32"]
// layouts   = ["nt", "nn"]
// requires  = ["M <= 128"]
//
// [parameters]
// BM      = { default = 16, values = [8, 16, 32, 64, 128], meaning = "tokens (rows of C) per block" }
// BN      = { default = 64, values = [16, 32, 64, 128, 256], meaning = "weights (columns of C) per block" }
// BK      = { default = 64, values = [32, 64, 128, 256, 512], meaning = "K depth of one slab of the ring, elements" }
// STAGES  = { default = 4, values = [2, 3, 4, 6, 8, 12], meaning = "slabs in the ring" }
// WARPS   = { default = 4, values = [1, 2, 4, 8], meaning = "warps per block, side by side along the weights" }
// SPLIT_K = { default = 4, values = [1, 2, 3, 4, 6, 8, 16, 32], meaning = "blocks that divide K of a tile" }
// REDUCE  = { default = "atomic", values = ["serial", "atomic"], meaning = "add in turn, or the last adds all" }
//
// [derived]
// WN      = "floor_div(BN, WARPS)"
// THREADS = "32 * WARPS"
// TILES   = "ceil_div(M, BM) * ceil_div(N, BN)"
// SLICES  = "1 + REDUCE * (SPLIT_K - 1)"
//
// [[constraints]]
// expr = "SPLIT_K >= 1 and STAGES >= 2"
// why  = "some block takes K, and one slab is fetched while another is multiplied: raise SPLIT_K or STAGES"
// [[constraints]]
// expr = "BM >= 8 and BM % min(BM, 16) == 0 and BM % 8 == 0"
// why  = "a multiply takes 8 tokens, a load from shared memory 16 where there are so many"
// [[constraints]]
// expr = "BN % (16 * WARPS) == 0"
// why  = "every warp takes whole tiles of 16 weights: lower WARPS or raise BN"
// [[constraints]]
// expr = "BK % 16 == 0 and 4096 % BK == 0 and 4096 % BN == 0"
// why  = "a multiply takes 16 of K, and the threads of a block divide rows of a power of two evenly"
// [[constraints]]
// expr = "THREADS <= 1024"
// why  = "a block holds at most 1024 threads"
// [[constraints]]
// expr = "WN * BM <= 4096"
// why  = "a thread accumulates WN * BM / 32 elements, at most 128 of its 255 registers: raise WARPS or lower BM, BN"
// [[constraints]]
// expr = "BM * BN + 64 * THREADS <= 65536"
// why  = "the accumulators and 64 more registers per thread fit a register file of 65536"
// [[constraints]]
// expr = "STAGES * (BM + BN) * BK * sizeof_in <= max_smem_bytes"
// why  = "the ring fits the shared memory of a block: lower STAGES or BK"
//
// [[workspace]]
// name  = "partials"
// bytes = "TILES * SLICES * BM * BN * 4"
// zero  = "never"
// [[workspace]]
// name  = "counters"
// bytes = "TILES * 4"
// zero  = "once"
//
// [launch]
// args  = ["A", "B", "C", "i64:M", "i64:N", "i64:K", "i64:lda", "i64:ldb", "i64:ldc", "workspace:partials",
//          "workspace:counters", "epilogue"]
// grid  = ["TILES * SPLIT_K", "1", "1"]
// block = "THREADS"
// smem_bytes = "STAGES * (BM + BN) * BK * sizeof_in"
//
// [account]
// accumulators = "floor_div(WN * BM, 32)"
// stage_bytes = "(BM + BN) * BK * sizeof_in"
// ///

// C is computed as its transpose: columns of C ("weights", rows of B in layout nt) take the side of the multiply that
// is 16 wide, rows of C ("tokens") the side that is 8 wide, so that few tokens leave little of it idle. Time goes into
// reading B once; a ring of cp.async copies keeps STAGES - 1 slabs of it in flight.
//
// Too few tiles would leave multiprocessors idle, so SPLIT_K blocks divide K of a tile and add their sums in fp32, in
// the order of K whichever block comes first: results are the same from run to run. The epilogue runs once, after that.
#include "epilogue.cuh"

typedef unsigned u32;
typedef $IN In;
typedef $OUT Out;
typedef $EPILOGUE Ops;

enum Reduce { SERIAL, ATOMIC };  // in the header's order

constexpr int BM = $BM;
constexpr int BN = $BN;
constexpr int BK = $BK;
constexpr int STAGES = $STAGES;
constexpr int WARPS = $WARPS;
constexpr int SPLIT_K = $SPLIT_K;
constexpr Reduce REDUCE = Reduce($REDUCE);
constexpr int WN = $WN;
constexpr int THREADS = $THREADS;
constexpr bool B_NT = $B_NT;
$STATIC_ASSERTS

constexpr int CHUNK = 16 / sizeof(In);  // elements in 16 bytes: a row of an 8x8 matrix of ldmatrix
constexpr int N_TILES = WN / 16, M_TILES = BM / 8;  // of a warp
constexpr int SLICE = N_TILES * M_TILES * THREADS;  // float4: the sums of one block

// What a thread accumulates: of each tile of 16 weights x 8 tokens the elements that mma leaves with a lane.
typedef float4 Sums[N_TILES][M_TILES];

__host__ __device__ constexpr int min_of(int a, int b) { return a < b ? a : b; }
__host__ __device__ constexpr int lowest_bit(int x) { return x & -x; }

// A tile in shared memory, row after row. Reads take one chunk of each of eight consecutive rows; the XOR spreads them
// over eight bank groups. It permutes PERIOD chunks; rows shorter than the 128 bytes of all banks share a key.
template <int ROWS_, int COLS_> struct Tile {
    static constexpr int ROWS = ROWS_, COLS = COLS_;
    static constexpr int STRIDE = COLS * sizeof(In), BYTES = ROWS * STRIDE;
    static constexpr int PERIOD = min_of(8, lowest_bit(COLS / CHUNK));

    static __device__ __forceinline__ u32 chunk_offset(u32 row, u32 chunk) {
        return row * STRIDE + (chunk ^ row / (8 / PERIOD) % PERIOD) * 16;
    }
    static __device__ __forceinline__ u32 offset(u32 row, u32 col) {
        return chunk_offset(row, col / CHUNK) + col % CHUNK * sizeof(In);
    }
};
typedef Tile<BM, BK> TileA;
typedef Tile<B_NT ? BN : BK, B_NT ? BK : BN> TileB;
constexpr int STAGE_BYTES = TileA::BYTES + TileB::BYTES;

// Copies the first `bytes` of a unit and fills the rest with zeros; with 0 bytes the source is not touched.
template <int UNIT> __device__ __forceinline__ void copy_unit(u32 to, const In* from, int bytes) {
    if constexpr (UNIT == 16) {
        asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes));
    } else if constexpr (UNIT == 4) {
        asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from), "r"(bytes));
    } else {
        const unsigned short bits = bytes ? *reinterpret_cast<const unsigned short*>(from) : 0;
        asm volatile("st.shared.u16 [%0], %1;" ::"r"(to), "h"(bits));
    }
}

// Copies a tile, of which rows x cols exist at `from`, in units of UNIT bytes; what does not exist becomes zero.
template <class T, int UNIT>
__device__ __forceinline__ void copy_tile(u32 to, const In* from, i64 ld, int rows, int cols) {
    constexpr int WIDTH = UNIT / sizeof(In);
    constexpr int ACROSS = min_of(T::COLS / WIDTH, lowest_bit(THREADS)), DOWN = THREADS / ACROSS;
    const int row0 = threadIdx.x / ACROSS, col0 = threadIdx.x % ACROSS * WIDTH;
    from += row0 * ld + col0;
#pragma unroll (UNIT == 16 ? 16 : 1)
    for (int col = 0; col < T::COLS; col += ACROSS * WIDTH) {
        const int bytes = max(0, min(cols - col0 - col, WIDTH)) * (int)sizeof(In);
#pragma unroll (UNIT == 16 ? 16 : 4)
        for (int row = 0; row < T::ROWS; row += DOWN)
            if (T::ROWS % DOWN == 0 || row0 + row < T::ROWS)
                copy_unit<UNIT>(to + T::offset(row0 + row, col0 + col), from + row * ld + col,
                                row0 + row < rows ? bytes : 0);
    }
}

// The widest copy that the alignment of the rows allows. ALIGNED is known to the main loop, which then has no branch.
template <class T, bool ALIGNED>
__device__ __forceinline__ void copy_rows(u32 to, const In* from, i64 ld, int rows, int cols) {
    if constexpr (ALIGNED) {
        copy_tile<T, 16>(to, from, ld, rows, cols);
    } else if constexpr (sizeof(In) == 4) {
        copy_tile<T, 4>(to, from, ld, rows, cols);
    } else {
        if (ld % 2 == 0) copy_tile<T, 4>(to, from, ld, rows, cols);
        else copy_tile<T, 2>(to, from, ld, rows, cols);
    }
}

__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int IN_FLIGHT> __device__ __forceinline__ void wait_for_copies() {
    asm volatile("cp.async.wait_group %0;" ::"n"(IN_FLIGHT) : "memory");
}

// Of a tile of 16 weights x 8 tokens a lane owns two of each: x y are weight lane_n with tokens 2 * lane_m and the
// next, z w are weight lane_n + 8. Tensor cores have it so. On FFMA, lanes that differ in bit 0 share their tokens, in
// bit 1 their weights: only such pairs let the hardware serve a half warp's 16-byte reads in one go.
__device__ __forceinline__ int lane_n() {
    const int lane = threadIdx.x % 32;
    return sizeof(In) == 4 ? (lane & 1) + (lane >> 3 << 1) : lane / 4;
}
__device__ __forceinline__ int lane_m() {
    const int lane = threadIdx.x % 32;
    return sizeof(In) == 4 ? lane >> 1 & 3 : lane % 4;
}

// 8x8 matrices of 2-byte elements; lane i gives the address of row i % 8 of matrix i / 8.
template <bool TRANSPOSED> __device__ __forceinline__ void ldmatrix(u32& x, u32& y, u32& z, u32& w, u32 from) {
    if constexpr (TRANSPOSED)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(x), "=r"(y), "=r"(z), "=r"(w) : "r"(from));
    else
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(x), "=r"(y), "=r"(z), "=r"(w) : "r"(from));
}
__device__ __forceinline__ void ldmatrix(u32& x, u32& y, u32 from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];" : "=r"(x), "=r"(y) : "r"(from));
}
__device__ __forceinline__ float4 load_vector(u32 from) {
    float4 v;
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "r"(from));
    return v;
}
__device__ __forceinline__ float load_float(u32 from) {
    float x;
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(x) : "r"(from));
    return x;
}

#define MMA(TYPE)                                                                                                    \
    asm("mma.sync.aligned.m16n8k16.row.col.f32." TYPE "." TYPE ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, " \
        "{%0, %1, %2, %3};"                                                                                          \
        : "+f"(c.x), "+f"(c.y), "+f"(c.z), "+f"(c.w)                                                                 \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]))
__device__ __forceinline__ void mma(float4& c, const u32 (&a)[4], const u32 (&b)[2], fp16) { MMA("f16"); }
__device__ __forceinline__ void mma(float4& c, const u32 (&a)[4], const u32 (&b)[2], bf16) { MMA("bf16"); }

// One slab on tensor cores. n: the warp's first weight in the block tile.
template <class T> __device__ __forceinline__ void multiply(Sums& acc, u32 a_tile, u32 b_tile, int n, T type) {
    const int lane = threadIdx.x % 32;
#pragma unroll (min_of(BK / 16, 8))
    for (int step = 0; step < BK / 16; ++step) {
        u32 weights[N_TILES][4], tokens[M_TILES][2];
#pragma unroll
        for (int i = 0; i < N_TILES; ++i) {
            const u32 from = B_NT ? TileB::chunk_offset(n + lane % 16, 2 * step + lane / 16)
                                  : TileB::chunk_offset(lane / 16 * 8 + lane % 8, (n + 16 * i) / CHUNK + lane / 8 % 2);
            ldmatrix<!B_NT>(weights[i][0], weights[i][1], weights[i][2], weights[i][3],
                            b_tile + from + 16 * (B_NT ? i : step) * TileB::STRIDE);
        }
        const u32 from = a_tile + TileA::chunk_offset(lane / 16 % M_TILES * 8 + lane % 8, 2 * step + lane / 8 % 2);
        if constexpr (M_TILES == 1) ldmatrix(tokens[0][0], tokens[0][1], from);
#pragma unroll
        for (int j = 0; j + 1 < M_TILES; j += 2)
            ldmatrix<false>(tokens[j][0], tokens[j][1], tokens[j + 1][0], tokens[j + 1][1],
                            from + 8 * j * TileA::STRIDE);
#pragma unroll
        for (int i = 0; i < N_TILES; ++i)
#pragma unroll
            for (int j = 0; j < M_TILES; ++j) mma(acc[i][j], weights[i], tokens[j], type);
    }
}

// One slab in fp32: four of K at a time, each product one FFMA.
__device__ __forceinline__ float dot(float sum, float4 x, float4 y) {
    return fmaf(x.w, y.w, fmaf(x.z, y.z, fmaf(x.y, y.y, fmaf(x.x, y.x, sum))));
}
__device__ __forceinline__ void multiply(Sums& acc, u32 a_tile, u32 b_tile, int n, float) {
    const int first_n = n + lane_n(), first_m = 2 * lane_m();
#pragma unroll 4
    for (int k = 0; k < BK; k += 4) {
        float4 weights[2 * N_TILES];
#pragma unroll
        for (int i = 0; i < 2 * N_TILES; ++i) {
            if constexpr (B_NT) {
                weights[i] = load_vector(b_tile + TileB::offset(first_n, k) + 8 * i * TileB::STRIDE);
            } else {
                auto weight = [&](int x) { return load_float(b_tile + TileB::offset(k + x, first_n + 8 * i)); };
                weights[i] = {weight(0), weight(1), weight(2), weight(3)};
            }
        }
#pragma unroll
        for (int j = 0; j < M_TILES; ++j) {
            const float4 even = load_vector(a_tile + TileA::offset(first_m, k) + 8 * j * TileA::STRIDE);
            const float4 odd = load_vector(a_tile + TileA::offset(first_m + 1, k) + 8 * j * TileA::STRIDE);
#pragma unroll
            for (int i = 0; i < N_TILES; ++i) {
                float4& c = acc[i][j];
                c = {dot(c.x, weights[2 * i], even), dot(c.y, weights[2 * i], odd), dot(c.z, weights[2 * i + 1], even),
                     dot(c.w, weights[2 * i + 1], odd)};
            }
        }
    }
}

// A and B address the block's first slab, of whose tokens and weights `rows` and `cols` exist; K: the block's part.
template <bool ALIGNED>
__device__ __forceinline__ void main_loop(Sums& acc, u32 shared, const In* A, const In* B, i64 K, i64 lda, i64 ldb,
                                          int rows, int cols, int n) {
    i64 k_left = K;  // of the slabs not yet asked for; below zero, the copies fill with zeros
    auto copy_slab = [&](int stage) {
        const u32 to = shared + stage * STAGE_BYTES;
        const int depth = (int)min(k_left, (i64)BK);
        copy_rows<TileA, ALIGNED>(to, A, lda, rows, depth);
        copy_rows<TileB, ALIGNED>(to + TileA::BYTES, B, ldb, B_NT ? cols : depth, B_NT ? depth : cols);
        commit_copies();
        A += BK;
        B += B_NT ? BK : BK * ldb;
        k_left -= BK;
    };
#pragma unroll 1
    for (int stage = 0; stage < STAGES - 1; ++stage) copy_slab(stage);
    int stage = 0;
#pragma unroll 1
    for (i64 k = 0; k < K; k += BK) {
        wait_for_copies<STAGES - 2>();
        __syncthreads();
        copy_slab(stage == 0 ? STAGES - 1 : stage - 1);  // the barrier has shown that all have left it
        const u32 from = shared + stage * STAGE_BYTES;
        multiply(acc, from, from + TileA::BYTES, n, In());
        stage = stage + 1 == STAGES ? 0 : stage + 1;
    }
}

// A counter per tile orders the blocks that share it. What a block wrote before it counts, every thread of a block that
// has read the count may read: the release and the acquire of one thread reach the others through the barriers.
__device__ __forceinline__ u32 acquire(const u32* counter) {
    u32 x;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(x) : "l"(counter) : "memory");
    return x;
}
__device__ __forceinline__ void release(u32* counter, u32 x) {
    asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(counter), "r"(x) : "memory");
}
__device__ __forceinline__ u32 count_up(u32* counter) {
    u32 before;
    asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;" : "=r"(before) : "l"(counter) : "memory");
    return before;
}

// A slice holds the sums of one block thread by thread, as only the same thread of another block reads them.
__device__ __forceinline__ void put(float4* slice, const Sums& acc) {
#pragma unroll
    for (int i = 0; i < N_TILES; ++i)
#pragma unroll
        for (int j = 0; j < M_TILES; ++j) __stcg(slice + (i * M_TILES + j) * THREADS + threadIdx.x, acc[i][j]);
}
__device__ __forceinline__ void add(Sums& acc, const float4* slice) {
#pragma unroll
    for (int i = 0; i < N_TILES; ++i)
#pragma unroll
        for (int j = 0; j < M_TILES; ++j) {
            const float4 x = __ldcg(slice + (i * M_TILES + j) * THREADS + threadIdx.x);
            float4& c = acc[i][j];
            c = {c.x + x.x, c.y + x.y, c.z + x.z, c.w + x.w};
        }
}

// Adds up the sums of the blocks of a tile; true for the block that then has them all. It leaves the counter at zero
// for the next launch. SERIAL waits for blocks of lower number only; these were started earlier, so the wait ends.
__device__ __forceinline__ bool reduce(Sums& acc, float4* slices, u32* counter, u32 split) {
    if constexpr (SPLIT_K == 1) {
        return true;
    } else if constexpr (REDUCE == SERIAL) {
        if (split > 0) {
            if (threadIdx.x == 0)
                while (acquire(counter) != split) {}
            __syncthreads();
            add(acc, slices);
        }
        const bool last = split == SPLIT_K - 1;
        if (!last) put(slices, acc);
        __syncthreads();
        if (threadIdx.x == 0) release(counter, last ? 0 : split + 1);
        return last;
    } else {
        put(slices + split * SLICE, acc);
        __syncthreads();
        if (!__syncthreads_or(threadIdx.x == 0 && count_up(counter) == SPLIT_K - 1)) return false;
#pragma unroll
        for (int i = 0; i < N_TILES; ++i)
#pragma unroll
            for (int j = 0; j < M_TILES; ++j) acc[i][j] = {};
#pragma unroll (1 + 16 / (N_TILES * M_TILES))
        for (int s = 0; s < SPLIT_K; ++s) add(acc, slices + s * SLICE);
        if (threadIdx.x == 0) *counter = 0;
        return true;
    }
}

// "1": the ring, not registers, decides how many blocks share a multiprocessor, so none need be saved by spilling.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
gemm(const In* A, const In* B, Out* C, i64 M, i64 N, i64 K, i64 lda, i64 ldb, i64 ldc, float4* partials,
     u32* counters, Epilogue epilogue) {
    extern __shared__ __align__(128) unsigned char shared_bytes[];
    const u32 shared = (u32)__cvta_generic_to_shared(shared_bytes);

    // Neighbouring blocks share weights, then tokens; the blocks of one tile are a whole row of tiles apart.
    const u32 tiles_m = (u32)((M + BM - 1) / BM), tiles = tiles_m * (u32)((N + BN - 1) / BN);
    const u32 tile = blockIdx.x % tiles, split = blockIdx.x / tiles;
    const i64 m0 = (i64)(tile % tiles_m) * BM, n0 = (i64)(tile / tiles_m) * BN;
    const int rows = (int)min(M - m0, (i64)BM), cols = (int)min(N - n0, (i64)BN);
    const i64 slabs = (K + BK - 1) / BK;
    const i64 k0 = slabs * split / SPLIT_K * BK, k1 = min(slabs * (split + 1) / SPLIT_K * BK, K);

    const int n = threadIdx.x / 32 * WN;
    const In* a = A + m0 * lda + k0;
    const In* b = B + (B_NT ? n0 * ldb + k0 : k0 * ldb + n0);
    Sums acc = {};
    if (lda % CHUNK == 0 && ldb % CHUNK == 0) main_loop<true>(acc, shared, a, b, k1 - k0, lda, ldb, rows, cols, n);
    else main_loop<false>(acc, shared, a, b, k1 - k0, lda, ldb, rows, cols, n);

    constexpr int SLICES = REDUCE == SERIAL ? 1 : SPLIT_K;
    if (!reduce(acc, partials + (i64)tile * SLICES * SLICE, counters + tile, split)) return;
    auto store = [&](int row, int col, float x) {
        if (row >= rows || col >= cols) return;
        Out* c = C + (m0 + row) * ldc + n0 + col;
        *c = from_float<Out>(finish<Ops>(x, c, epilogue, m0 + row, n0 + col));
    };
#pragma unroll
    for (int j = 0; j < M_TILES; ++j)
#pragma unroll
        for (int i = 0; i < N_TILES; ++i) {
            const int row = 8 * j + 2 * lane_m(), col = n + 16 * i + lane_n();
            store(row, col, acc[i][j].x);
            store(row + 1, col, acc[i][j].y);
            store(row, col + 8, acc[i][j].z);
            store(row + 1, col + 8, acc[i][j].w);
        }
}
