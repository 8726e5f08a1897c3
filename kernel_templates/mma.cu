// /// gemmsweep
// summary   = "Tensor cores through mma.sync; a cp.async pipeline feeds shared memory, ldmatrix feeds the registers."
// backend   = "cuda"
// arch      = "sm_80+"
// dtypes    = ["fp16", "bf16", "tf32"]
// layouts   = ["nn", "nt"]
// [parameters]
// BM = { default = 128, values = [32, 64, 128, 192, 256], meaning = "rows of C per block" }
// BN = { default = 128, values = [32, 64, 128, 256], meaning = "columns of C per block" }
// BK = { default = 32, values = [16, 32, 64, 128], meaning = "K depth of one slab in shared memory, elements" }
// WM = { default = 64, values = [16, 32, 64, 128], meaning = "rows of C per warp" }
// WN = { default = 64, values = [16, 32, 64, 128], meaning = "columns of C per warp" }
// STAGES = { default = 3, values = [1, 2, 3, 4, 5], meaning = "slabs in shared memory; 1 leaves nothing to overlap" }
// PAD = { default = 0, values = [0, 4, 8, 16], meaning = "unused elements at the end of a shared-memory row" }
// SWIZZLE = { default = 1, values = [0, 1], meaning = "1: XOR the 16-byte chunks of a row with the row number" }
// WAIT_ALL = { default = 0, values = [0, 1], meaning = "1: wait for every copy in flight, not only for the next slab" }
// GROUP_M = { default = 8, values = [1, 2, 4, 8, 16], meaning = "rows of block tiles that share columns of B in L2" }
// FRAG_BUFFERS = { default = 2, values = [1, 2], meaning = "2: load the next k-step's fragments before this mma" }
// [derived]
// THREADS = "32 * floor_div(BM, WM) * floor_div(BN, WN)"
// A_TILE = "BM * (BK + PAD)"
// B_TILE = "is_nt * BN * (BK + PAD) + (1 - is_nt) * BK * (BN + PAD)"
// [[constraints]]
// expr = "BM % WM == 0"
// why  = "whole warp tiles cover the rows of the block tile"
// [[constraints]]
// expr = "BN % WN == 0"
// why  = "whole warp tiles cover the columns of the block tile"
// [[constraints]]
// expr = "WM * WN <= 4096"
// why  = "a thread accumulates WM * WN / 32 elements of C: 128 of its 255 registers at most"
// [[constraints]]
// expr = "THREADS <= 1024"
// why  = "a block holds at most 1024 threads"
// [[constraints]]
// expr = "BM * BN + 32 * THREADS <= 65536"
// why  = "the accumulators and 32 more registers per thread must fit a register file of 65536"
// [[constraints]]
// expr = "PAD * sizeof_in % 16 == 0"
// why  = "ldmatrix and 16-byte copies need rows that start at multiples of 16 bytes in shared memory"
// [[constraints]]
// expr = "STAGES * (A_TILE + B_TILE) * sizeof_in <= max_smem_bytes"
// why  = "all stages must fit the shared memory of a block"
// [launch]
// args  = ["A", "B", "C", "i64:M", "i64:N", "i64:K", "i64:lda", "i64:ldb", "i64:ldc", "epilogue"]
// grid  = ["ceil_div(M, BM) * ceil_div(N, BN)", "1", "1"]
// block = "THREADS"
// smem_bytes = "STAGES * (A_TILE + B_TILE) * sizeof_in"
// [account]
// unit = "tensor"
// accumulators = "floor_div(WM * WN, 32)"
// stage_bytes = "(A_TILE + B_TILE) * sizeof_in"
// ///
//
// A block owns BM x BN of C, a warp WM x WN of that, kept in registers as tiles of m16n8. K advances in slabs of BK:
// while the warps multiply one slab, cp.async fetches the STAGES - 1 behind it. Every step of mma takes 32 bytes of K,
// two 16-byte chunks, whatever the type (k16 of 2-byte elements, k8 of tf32), so one loop serves all types.
#include "epilogue.cuh"

typedef unsigned u32;
typedef $IN In;
typedef $OUT Out;
typedef $EPILOGUE Ops;

constexpr int BM = $BM;
constexpr int BN = $BN;
constexpr int BK = $BK;
constexpr int WM = $WM;
constexpr int WN = $WN;
constexpr int STAGES = $STAGES;
constexpr int PAD = $PAD;
constexpr bool SWIZZLE = $SWIZZLE;
constexpr bool WAIT_ALL = $WAIT_ALL;
constexpr int GROUP_M = $GROUP_M;
constexpr int FRAG_BUFFERS = $FRAG_BUFFERS;
constexpr bool B_NT = $B_NT;
constexpr int THREADS = $THREADS;
$STATIC_ASSERTS

constexpr int CHUNK = 16 / sizeof(In);     // elements in 16 bytes: a row of an 8x8 matrix of ldmatrix
constexpr int K_STEPS = BK / (2 * CHUNK);  // mma steps in a slab
constexpr int M_TILES = WM / 16, N_TILES = WN / 8;
constexpr bool B_BY_WORD = !B_NT && sizeof(In) == 4;  // ldmatrix.trans knows 2-byte elements only

__host__ __device__ constexpr int min_of(int a, int b) { return a < b ? a : b; }
__host__ __device__ constexpr int lowest_bit(int x) { return x & -x; }

// A tile in shared memory, row after row. ldmatrix reads one chunk of each of eight consecutive rows; they lie in eight
// different bank groups if PAD makes the row stride an odd number of chunks, or if the XOR spreads them; either undoes
// part of the other. The XOR permutes PERIOD chunks; rows shorter than the 128 bytes of all banks share a key.
template <int ROWS_, int COLS_, bool BY_WORD> struct Tile {
    static constexpr int ROWS = ROWS_, COLS = COLS_;
    static constexpr int STRIDE = (COLS + PAD) * sizeof(In), BYTES = ROWS * STRIDE;
    static constexpr int PERIOD = min_of(8, lowest_bit(COLS / CHUNK));

    static __device__ __forceinline__ u32 chunk_offset(u32 row, u32 chunk) {
        // Reading by word, a warp takes two neighbouring chunks of four rows: then move chunks in pairs.
        const u32 key = row / (8 / PERIOD) << BY_WORD;
        return row * STRIDE + (SWIZZLE ? chunk ^ key % PERIOD : chunk) * 16;
    }
    static __device__ __forceinline__ u32 offset(u32 row, u32 col) {
        return chunk_offset(row, col / CHUNK) + col % CHUNK * sizeof(In);
    }
};
typedef Tile<BM, BK, false> TileA;
typedef Tile<B_NT ? BN : BK, B_NT ? BK : BN, B_BY_WORD> TileB;
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
#pragma unroll
    for (int col = 0; col < T::COLS; col += ACROSS * WIDTH) {
        const int bytes = max(0, min(cols - col0 - col, WIDTH)) * (int)sizeof(In);
#pragma unroll (UNIT == 16 ? T::ROWS : 8)
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

// What one warp multiplies in one step: A as m16 x 32 bytes per tile, B as n8 x 32 bytes per tile.
struct Fragments {
    u32 a[M_TILES][4];
    u32 b[N_TILES][2];
};

// Four 8x8 matrices of 2-byte (or 8x4 of 4-byte) elements; lane i gives the address of row i % 8 of matrix i / 8.
template <bool TRANSPOSED> __device__ __forceinline__ void ldmatrix(u32& x, u32& y, u32& z, u32& w, u32 from) {
    if constexpr (TRANSPOSED)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(x), "=r"(y), "=r"(z), "=r"(w) : "r"(from));
    else
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(x), "=r"(y), "=r"(z), "=r"(w) : "r"(from));
}
__device__ __forceinline__ u32 load_word(u32 from) {
    u32 x;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(x) : "r"(from));
    return x;
}

// m, n: the first row and column of the warp tile within the block tile.
__device__ __forceinline__ void load_fragments(Fragments& f, u32 a_tile, u32 b_tile, int m, int n, int step) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < M_TILES; ++i)
        ldmatrix<false>(f.a[i][0], f.a[i][1], f.a[i][2], f.a[i][3],
                        a_tile + TileA::chunk_offset(m + lane % 16, 2 * step + lane / 16) + 16 * i * TileA::STRIDE);
#pragma unroll
    for (int j = 0; j < N_TILES; j += 2) {
        if constexpr (B_BY_WORD) {
#pragma unroll
            for (int x = 0; x < 4; ++x)
                f.b[j + x / 2][x % 2] = load_word(b_tile + TileB::offset(lane % 4, n + 8 * (j + x / 2) + lane / 4) +
                                                  (8 * step + x % 2 * 4) * TileB::STRIDE);
        } else {
            const u32 from = B_NT ? TileB::chunk_offset(n + lane / 16 * 8 + lane % 8, 2 * step + lane / 8 % 2)
                                  : TileB::chunk_offset(lane % 16, (n + 8 * j) / CHUNK + lane / 16);
            ldmatrix<!B_NT>(f.b[j][0], f.b[j][1], f.b[j + 1][0], f.b[j + 1][1],
                            b_tile + from + (B_NT ? 8 * j : 16 * step) * TileB::STRIDE);
        }
    }
}

// tf32 keeps 10 bits of fp32's mantissa; without rounding, the tensor cores would drop the rest.
template <int COUNT> __device__ __forceinline__ void round_to_tf32(u32 (&x)[COUNT]) {
    if constexpr (sizeof(In) == 4) {
#pragma unroll
        for (int i = 0; i < COUNT; ++i)
#if __CUDA_ARCH__ >= 900  // one instruction there; rna takes three
            asm("cvt.rn.tf32.f32 %0, %1;" : "=r"(x[i]) : "f"(__uint_as_float(x[i])));
#else
            asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(x[i]) : "f"(__uint_as_float(x[i])));
#endif
    }
}

#define MMA(SHAPE)                                                                                               \
    asm("mma.sync.aligned." SHAPE " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"             \
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])                                                         \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]))
__device__ __forceinline__ void mma(float (&c)[4], const u32 (&a)[4], const u32 (&b)[2], fp16) {
    MMA("m16n8k16.row.col.f32.f16.f16.f32");
}
__device__ __forceinline__ void mma(float (&c)[4], const u32 (&a)[4], const u32 (&b)[2], bf16) {
    MMA("m16n8k16.row.col.f32.bf16.bf16.f32");
}
__device__ __forceinline__ void mma(float (&c)[4], const u32 (&a)[4], const u32 (&b)[2], float) {
    MMA("m16n8k8.row.col.f32.tf32.tf32.f32");
}

__device__ __forceinline__ void multiply(float (&acc)[M_TILES][N_TILES][4], Fragments& f) {
#pragma unroll
    for (int j = 0; j < N_TILES; ++j) round_to_tf32(f.b[j]);
#pragma unroll
    for (int i = 0; i < M_TILES; ++i) {
        round_to_tf32(f.a[i]);
#pragma unroll
        for (int j = 0; j < N_TILES; ++j) mma(acc[i][j], f.a[i], f.b[j], In());
    }
}

// A and B address the first slab of the block's rows and columns, of which `rows` and `cols` exist.
template <bool ALIGNED>
__device__ __forceinline__ void main_loop(float (&acc)[M_TILES][N_TILES][4], u32 shared, const In* A, const In* B,
                                          i64 K, i64 lda, i64 ldb, int rows, int cols, int m, int n) {
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

    int stage = -1;  // the slab being read
    Fragments f[FRAG_BUFFERS];
    // Loads the fragments of one step; step 0 first makes the next slab readable, and then refills the slab before it,
    // which the barrier has shown to be free.
    auto load_step = [&](Fragments& to, int step) {
        if (step == 0) {
            if (STAGES == 1) {
                __syncthreads();
                copy_slab(0);
            }
            wait_for_copies<WAIT_ALL || STAGES == 1 ? 0 : STAGES - 2>();
            __syncthreads();
            stage = stage + 1 == STAGES ? 0 : stage + 1;
        }
        const u32 from = shared + stage * STAGE_BYTES;
        load_fragments(to, from, from + TileA::BYTES, m, n, step);
        if (step == 0 && STAGES > 1) copy_slab(stage == 0 ? STAGES - 1 : stage - 1);
    };
    if (FRAG_BUFFERS == 2) load_step(f[0], 0);
    for (i64 k = 0; k < K; k += BK) {
#pragma unroll
        for (int step = 0; step < K_STEPS; ++step) {
            // With two buffers, the loads run one step ahead of the products, across the border of the slab.
            constexpr int AHEAD = FRAG_BUFFERS - 1;
            load_step(f[(step + AHEAD) % FRAG_BUFFERS], (step + AHEAD) % K_STEPS);
            multiply(acc, f[step % FRAG_BUFFERS]);
        }
        if (K_STEPS % FRAG_BUFFERS != 0) f[0] = f[FRAG_BUFFERS - 1];
    }
}

// Two neighbouring elements of C; the second may lie outside.
struct alignas(2 * sizeof(Out)) Pair {
    Out x, y;
};
__device__ __forceinline__ void store_pair(Out* C, float x, float y, i64 row, i64 col, i64 N, i64 ldc,
                                           const Epilogue& e) {
    Out* c = C + row * ldc + col;
    if (col + 1 < N) {
        const Pair pair = {from_float<Out>(finish<Ops>(x, c, e, row, col)),
                           from_float<Out>(finish<Ops>(y, c + 1, e, row, col + 1))};
        if (ldc % 2 == 0) {
            *reinterpret_cast<Pair*>(c) = pair;
        } else {
            c[0] = pair.x;
            c[1] = pair.y;
        }
    } else if (col < N) {
        c[0] = from_float<Out>(finish<Ops>(x, c, e, row, col));
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
gemm(const In* A, const In* B, Out* C, i64 M, i64 N, i64 K, i64 lda, i64 ldb, i64 ldc, Epilogue epilogue) {
    extern __shared__ __align__(128) unsigned char shared_bytes[];
    const u32 shared = (u32)__cvta_generic_to_shared(shared_bytes);

    // Blocks run down GROUP_M tiles of C before they step to the next column: those in flight share A and B in L2.
    const u32 tiles_m = (u32)((M + BM - 1) / BM), tiles_n = (u32)((N + BN - 1) / BN);
    const u32 group_m = min((u32)GROUP_M, tiles_m);
    const u32 first = blockIdx.x / (group_m * tiles_n) * group_m, in_group = blockIdx.x % (group_m * tiles_n);
    const u32 height = min(group_m, tiles_m - first);
    const i64 m0 = (i64)(first + in_group % height) * BM, n0 = (i64)(in_group / height) * BN;
    const int rows = (int)min(M - m0, (i64)BM), cols = (int)min(N - n0, (i64)BN);

    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int m = warp / (BN / WN) * WM, n = warp % (BN / WN) * WN;
    const In* a = A + m0 * lda;
    const In* b = B + (B_NT ? n0 * ldb : n0);
    float acc[M_TILES][N_TILES][4] = {};
    if (lda % CHUNK == 0 && ldb % CHUNK == 0) main_loop<true>(acc, shared, a, b, K, lda, ldb, rows, cols, m, n);
    else main_loop<false>(acc, shared, a, b, K, lda, ldb, rows, cols, m, n);

    // In a tile of m16n8 a lane holds two neighbours in row lane / 4, and two in the eighth row below.
#pragma unroll
    for (int i = 0; i < M_TILES; ++i)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int row = m + 16 * i + 8 * half + lane / 4;
            if (row < rows)
#pragma unroll
                for (int j = 0; j < N_TILES; ++j)
                    store_pair(C, acc[i][j][2 * half], acc[i][j][2 * half + 1], m0 + row,
                               n0 + n + 8 * j + lane % 4 * 2, N, ldc, epilogue);
        }
}
