// /// gemmsweep
// summary   = "Tensor cores through mma.sync; a cp.async pipeline feeds shared memory, ldmatrix feeds the registers."
// backend   = "cuda"
// arch      = "sm_80+"
// dtypes    = ["fp16", "bf16", "tf32", "fp32"]
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
// GROUP_M = { default = 1, values = [1, 2, 4, 8, 16], meaning = "rows of block tiles that share columns of B in L2" }
// FRAG_BUFFERS = { default = 2, values = [1, 2], meaning = "2: load the next k-step's fragments before this mma" }
// [parameters.EDGE]
// default = "tail"
// values = ["predicate", "pad", "tail"]
// meaning = "predicate: all copies masked; pad: operands first copied to whole tiles; tail: only the rim masked"
// [parameters.ACC]
// default = "fp32"
// values = ["fp32", "fp16"]
// meaning = "what a thread sums products in"
// [parameters.CHUNK_K]
// default = 0
// values = [0, 16, 32, 64, 128, 256, 512, 1024]
// meaning = "with ACC=fp16: elements of K summed in fp16 before the sum joins one in fp32; 0: all of K"
// [parameters.SCALE_INPUT]
// default = 1
// values = [0, 1]
// meaning = "fp32 only, multiplied as fp16: 1 scales each tile by a power of two into fp16's range, 0 does not"
// [parameters.NAN_SAFE]
// default = 0
// values = [0, 1]
// meaning = "1: a tile of C that meets Inf or NaN is summed again in fp32 by ascending k, bit for bit as naive does"
// [derived]
// THREADS = "32 * floor_div(BM, WM) * floor_div(BN, WN)"
// ELEMENT_BYTES = "2 + 2 * is_tf32"
// M_PADDED = "ceil_div(M, BM) * BM"
// N_PADDED = "ceil_div(N, BN) * BN"
// K_PADDED = "ceil_div(K, BK) * BK"
// LDB_PADDED = "is_nt * K_PADDED + (1 - is_nt) * N_PADDED"
// PAD_BYTES = "16384"
// A_BLOCKS = "ceil_div(M_PADDED * K_PADDED * sizeof_in, PAD_BYTES)"
// B_BLOCKS = "ceil_div(N_PADDED * K_PADDED * sizeof_in, PAD_BYTES)"
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
// expr = "PAD * ELEMENT_BYTES % 16 == 0"
// why  = "ldmatrix and 16-byte copies need rows that start at multiples of 16 bytes in shared memory"
// [[constraints]]
// expr = "STAGES * (A_TILE + B_TILE) * sizeof_in + 256 * is_fp32 <= max_smem_bytes"
// why  = "all stages must fit the shared memory of a block, and for fp32 a word per warp and operand"
// [[constraints]]
// expr = "ACC == fp32 or is_fp16 == 1 or is_fp32 == 1"
// why  = "tensor cores sum only products of fp16 in fp16"
// [[constraints]]
// expr = "CHUNK_K == 0 or (ACC == fp16 and is_fp32 == 0)"
// why  = "chunks of K are for sums in fp16; of fp32 operands every slab is a chunk, as each has a scale of its own"
// [[constraints]]
// expr = "CHUNK_K % 16 == 0 and max(BK, CHUNK_K) % max(1, min(BK, CHUNK_K)) == 0"
// why  = "a chunk is a whole number of mma steps, and of slabs, or a slab of chunks"
// [[constraints]]
// expr = "SCALE_INPUT == 1 or is_fp32 == 1"
// why  = "only fp32 operands are converted; for the other types leave SCALE_INPUT at its default"
// [[step]]
// kernel = "pad"
// when  = "EDGE == pad"
// args  = ["A", "B", "workspace:A_WHOLE", "workspace:B_WHOLE", "i64:M", "i64:N", "i64:K", "i64:lda", "i64:ldb",
//          "i64:M_PADDED", "i64:N_PADDED", "i64:K_PADDED"]
// grid  = ["A_BLOCKS + B_BLOCKS"]
// block = "256"
// [[step]]
// when  = "EDGE == pad"
// args  = ["workspace:A_WHOLE", "workspace:B_WHOLE", "C", "i64:M", "i64:N", "i64:K", "i64:K_PADDED", "i64:LDB_PADDED",
//          "i64:ldc", "epilogue"]
// grid  = ["ceil_div(M, BM) * ceil_div(N, BN)"]
// block = "THREADS"
// smem_bytes = "STAGES * (A_TILE + B_TILE) * sizeof_in"
// [[step]]
// when  = "EDGE != pad"
// args  = ["A", "B", "C", "i64:M", "i64:N", "i64:K", "i64:lda", "i64:ldb", "i64:ldc", "epilogue"]
// grid  = ["ceil_div(M, BM) * ceil_div(N, BN)"]
// block = "THREADS"
// smem_bytes = "STAGES * (A_TILE + B_TILE) * sizeof_in"
// [[workspace]]
// name  = "A_WHOLE"
// when  = "EDGE == pad"
// bytes = "M_PADDED * K_PADDED * sizeof_in"
// zero  = "never"
// [[workspace]]
// name  = "B_WHOLE"
// when  = "EDGE == pad"
// bytes = "N_PADDED * K_PADDED * sizeof_in"
// zero  = "never"
// [[accuracy]]
// when  = "is_fp32 == 1"
// acc   = "fp16"
// unit  = "1024"
// terms = "1 + ACC * ceil_div(min(BK, K), 8)"
// [[accuracy]]
// when  = "ACC == fp16 and CHUNK_K == 0"
// acc   = "fp16"
// unit  = "1024"
// terms = "ceil_div(K, 8)"
// [[accuracy]]
// when  = "ACC == fp16"
// acc   = "fp16"
// unit  = "1024"
// terms = "ceil_div(min(K, CHUNK_K), 8)"
// [[start]]
// set = { STAGES = 4 }
// [[start]]
// set = { EDGE = "pad" }
// [account]
// unit = "tensor"
// accumulators = "floor_div(WM * WN, 32)"
// stage_bytes = "(A_TILE + B_TILE) * sizeof_in"
// ///
//
// A block owns BM x BN of C, a warp WM x WN of that, kept in registers as tiles of m16n8. K advances in slabs of BK:
// while the warps multiply one slab, cp.async fetches the STAGES - 1 behind it. Every step of mma takes 32 bytes of K,
// two 16-byte chunks, whatever the type (k16 of 2-byte elements, k8 of tf32), so one loop serves these types. fp32 is
// converted slab by slab and has a loop of its own. Sums in fp16, and products of fp32 rounded to fp16, are of another
// accuracy class than the problem's; the header says by how much.
#include "epilogue.cuh"
#include "nan_safe.cuh"
#include "pad_copy.cuh"
#include "scaled.cuh"
#include "tiles.cuh"

typedef $IN In;
typedef $OUT Out;
typedef $EPILOGUE Ops;

enum Edge { PREDICATE, PADDED, TAIL };  // in the header's order

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
constexpr Edge EDGE = Edge($EDGE);
constexpr int ACC = $ACC;  // in the header's order: fp32, fp16
constexpr int CHUNK_K = $CHUNK_K;
constexpr bool SCALE_INPUT = $SCALE_INPUT;
constexpr bool NAN_SAFE = $NAN_SAFE;
constexpr bool B_NT = $B_NT;
constexpr int THREADS = $THREADS;
$STATIC_ASSERTS
static_assert($PAD_BYTES == PAD_BLOCK_BYTES, "PAD_BYTES of the header is what a block of pad_copy.cuh writes");

constexpr bool ACC_FP16 = ACC == 1;
// fp32 is multiplied as fp16: a slab is converted where it lies, once it has arrived.
constexpr bool CONVERTED = sizeof(In) == 4 && !$IS_TF32;
template <bool, class Yes, class No> struct Choice { typedef Yes Type; };
template <class Yes, class No> struct Choice<false, Yes, No> { typedef No Type; };
typedef Choice<CONVERTED, fp16, In>::Type Factor;

constexpr int CHUNK = 16 / sizeof(Factor);  // elements in 16 bytes: a row of an 8x8 matrix of ldmatrix
constexpr int COPY_CHUNK = 16 / sizeof(In);
constexpr int K_STEPS = BK / (2 * CHUNK);   // mma steps in a slab
constexpr int M_TILES = WM / 16, N_TILES = WN / 8;
constexpr bool B_BY_WORD = !B_NT && sizeof(Factor) == 4;  // ldmatrix.trans knows 2-byte elements only

// Tiles as they are multiplied, and as they are copied.
template <class T> struct Tiles {
    typedef Tile<T, BM, BK, PAD, SWIZZLE> A;
    typedef Tile<T, B_NT ? BN : BK, B_NT ? BK : BN, PAD, SWIZZLE, B_BY_WORD> B;
};
typedef Tiles<Factor>::A TileA;
typedef Tiles<Factor>::B TileB;
typedef Tiles<In>::A CopyA;
typedef Tiles<In>::B CopyB;
constexpr int STAGE_BYTES = CopyA::BYTES + CopyB::BYTES;

// What a lane sums in while it multiplies: four elements of each tile of m16n8, two to a register if they are fp16.
constexpr int SUM_WORDS = ACC_FP16 ? 2 : 4;
template <int TILES> using Sums = Choice<ACC_FP16, u32, float>::Type[TILES][N_TILES][SUM_WORDS];
typedef float Totals[M_TILES][N_TILES][4];

// What one warp multiplies in one step: A as m16 x 32 bytes per tile, B as n8 x 32 bytes per tile.
template <int TILES> struct Fragments {
    u32 a[TILES][4];
    u32 b[N_TILES][2];
};

// m, n: the first row and column of the TILES tiles of m16 within the block tile.
template <int TILES>
__device__ __forceinline__ void load_fragments(Fragments<TILES>& f, u32 a_tile, u32 b_tile, int m, int n, int step) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < TILES; ++i)
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

template <int COUNT> __device__ __forceinline__ void round_factors(u32 (&x)[COUNT]) {
    if constexpr (sizeof(Factor) == 4) {
#pragma unroll
        for (int i = 0; i < COUNT; ++i) x[i] = rounded_to_tf32(x[i]);
    }
}

template <int TILES> __device__ __forceinline__ void multiply(Sums<TILES>& sums, Fragments<TILES>& f) {
#pragma unroll
    for (int j = 0; j < N_TILES; ++j) round_factors(f.b[j]);
#pragma unroll
    for (int i = 0; i < TILES; ++i) {
        round_factors(f.a[i]);
#pragma unroll
        for (int j = 0; j < N_TILES; ++j) {
            auto& c = sums[i][j];
            if constexpr (ACC_FP16) mma(c[0], c[1], f.a[i], f.b[j], Factor());
            else mma(c[0], c[1], c[2], c[3], f.a[i], f.b[j], Factor());
        }
    }
}

// Element e of the four that a lane holds of a tile.
__device__ __forceinline__ float element(const float (&c)[4], int e) { return c[e]; }
__device__ __forceinline__ float element(const u32 (&c)[2], int e) {
    return to_float(fp16{(unsigned short)(c[e / 2] >> 16 * (e % 2))});
}

// Adds the sums, times 2^scale, to the totals of TILES rows of tiles from `first` on, and starts them from zero again.
template <int TILES> __device__ __forceinline__ void settle(Totals& totals, Sums<TILES>& sums, int first, int scale) {
#pragma unroll
    for (int i = 0; i < TILES; ++i)
#pragma unroll
        for (int j = 0; j < N_TILES; ++j) {
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                float& total = totals[first + i][j][e];
                const float sum = element(sums[i][j], e);
                total = CONVERTED && SCALE_INPUT ? add_scaled(total, sum, scale) : total + sum;
            }
#pragma unroll
            for (int w = 0; w < SUM_WORDS; ++w) sums[i][j][w] = 0;
        }
}

// A block's slabs of A and B, in the order of K, on their way through the stages. MASKED: of the block tile only
// rows x cols exist.
template <bool ALIGNED, bool MASKED> struct Slabs {
    u32 shared;
    const In *A, *B;  // the first slab not yet asked for
    i64 k_left;       // and what is left of K there; below zero, the copies fill with zeros
    i64 lda, ldb;
    int rows, cols;
    int stage;  // of the slab being read

    __device__ __forceinline__ void request(int into) {
        constexpr bool MASK_K = EDGE != PADDED;
        const u32 to = shared + into * STAGE_BYTES;
        const int depth = (int)min(k_left, (i64)BK);
        copy_rows<CopyA, THREADS, ALIGNED, MASKED, MASK_K>(to, A, lda, rows, depth);
        if constexpr (B_NT) copy_rows<CopyB, THREADS, ALIGNED, MASKED, MASK_K>(to + CopyA::BYTES, B, ldb, cols, depth);
        else copy_rows<CopyB, THREADS, ALIGNED, MASK_K, MASKED>(to + CopyA::BYTES, B, ldb, depth, cols);
        commit_copies();
        A += BK;
        B += B_NT ? BK : BK * ldb;
        k_left -= BK;
    }
    __device__ __forceinline__ void start() {
        stage = -1;
#pragma unroll 1
        for (int i = 0; i < STAGES - 1; ++i) request(i);
    }
    // Makes the next slab readable, and the one before it free: its readers have all come here.
    __device__ __forceinline__ void advance() {
        if (STAGES == 1) {
            __syncthreads();
            request(0);
        }
        wait_for_copies<WAIT_ALL || STAGES == 1 ? 0 : STAGES - 2>();
        __syncthreads();
        stage = stage + 1 == STAGES ? 0 : stage + 1;
    }
    __device__ __forceinline__ void refill() {
        if (STAGES > 1) request(stage == 0 ? STAGES - 1 : stage - 1);
    }
    __device__ __forceinline__ u32 tile_a() const { return shared + stage * STAGE_BYTES; }
    __device__ __forceinline__ u32 tile_b() const { return tile_a() + CopyA::BYTES; }
};

// All slabs, as they lie. m, n: the first row and column of the warp tile within the block tile.
template <class Slabs>
__device__ __forceinline__ void multiply_slabs(Totals& totals, Slabs& slabs, i64 K, int m, int n) {
    Sums<M_TILES> sums = {};
    Fragments<M_TILES> f[FRAG_BUFFERS];
    auto load_step = [&](Fragments<M_TILES>& to, int step) {
        if (step == 0) slabs.advance();
        load_fragments(to, slabs.tile_a(), slabs.tile_b(), m, n, step);
        if (step == 0) slabs.refill();
    };
    if (FRAG_BUFFERS == 2) load_step(f[0], 0);
    for (i64 k = 0; k < K; k += BK) {
#pragma unroll
        for (int step = 0; step < K_STEPS; ++step) {
            // With two buffers, the loads run one step ahead of the products, across the border of the slab.
            constexpr int AHEAD = FRAG_BUFFERS - 1;
            load_step(f[(step + AHEAD) % FRAG_BUFFERS], (step + AHEAD) % K_STEPS);
            multiply<M_TILES>(sums, f[step % FRAG_BUFFERS]);
            const i64 summed = k + (step + 1) * 2 * CHUNK;
            if (CHUNK_K != 0 && summed % max(CHUNK_K, 1) == 0) settle<M_TILES>(totals, sums, 0, 0);
        }
        if (K_STEPS % FRAG_BUFFERS != 0) f[0] = f[FRAG_BUFFERS - 1];
    }
    settle<M_TILES>(totals, sums, 0, 0);
}

// All slabs of fp32, each converted to fp16 where it lies. A slab has a scale of its own, so its sums join the totals
// at its end; they are formed by rows of tiles, as those of the whole warp tile would not fit beside the totals.
template <class Slabs>
__device__ __forceinline__ void multiply_converted(Totals& totals, Slabs& slabs, i64 K, int m, int n) {
    // In fp16 the sum of a slab's products must stay in range, too: 2 * (TOP + 1) + log2(BK) <= 15.
    constexpr int TOP = !ACC_FP16 ? 14 : BK <= 32 ? 4 : 3;
    __shared__ u32 warps[2][32];
    for (i64 k = 0; k < K; k += BK) {
        slabs.advance();
        slabs.refill();
        const u32 a = slabs.tile_a(), b = slabs.tile_b();
        const int scale = convert_tile<CopyA, TileA, THREADS, SCALE_INPUT, TOP>(a, warps[0]) +
                          convert_tile<CopyB, TileB, THREADS, SCALE_INPUT, TOP>(b, warps[1]);
        __syncthreads();
        Sums<1> sums = {};
        Fragments<1> f[FRAG_BUFFERS];
        auto load = [&](int x) { load_fragments(f[x % FRAG_BUFFERS], a, b, m + x / K_STEPS * 16, n, x % K_STEPS); };
        if (FRAG_BUFFERS == 2) load(0);
#pragma unroll
        for (int x = 0; x < M_TILES * K_STEPS; ++x) {
            if (x + FRAG_BUFFERS - 1 < M_TILES * K_STEPS) load(x + FRAG_BUFFERS - 1);
            multiply<1>(sums, f[x % FRAG_BUFFERS]);
            if ((x + 1) % K_STEPS == 0) settle<1>(totals, sums, x / K_STEPS, -scale);
        }
    }
}

template <bool ALIGNED, bool MASKED>
__device__ __forceinline__ void main_loop(Totals& totals, u32 shared, const In* A, const In* B, i64 K, i64 lda, i64 ldb,
                                          int rows, int cols, int m, int n) {
    Slabs<ALIGNED, MASKED> slabs = {shared, A, B, K, lda, ldb, rows, cols};
    slabs.start();
    if constexpr (CONVERTED) multiply_converted(totals, slabs, K, m, n);
    else multiply_slabs(totals, slabs, K, m, n);
}

// Two neighbouring elements of C.
struct alignas(2 * sizeof(Out)) Pair {
    Out x, y;
};

// The first step of EDGE = pad: A and B into whole, aligned tiles.
#if $EDGE == 1
extern "C" __global__ void __launch_bounds__(PAD_THREADS)
pad(const In* A, const In* B, In* a_whole, In* b_whole, i64 M, i64 N, i64 K, i64 lda, i64 ldb, i64 m_padded,
    i64 n_padded, i64 k_padded) {
    pad_operands<B_NT>(A, B, a_whole, b_whole, M, N, K, lda, ldb, m_padded, n_padded, k_padded);
}
#endif

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
    Totals totals = {};
    const bool aligned = lda % COPY_CHUNK == 0 && ldb % COPY_CHUNK == 0, whole = rows == BM && cols == BN;
    if (EDGE == PADDED || (EDGE == TAIL && aligned && whole))
        main_loop<true, false>(totals, shared, a, b, K, lda, ldb, rows, cols, m, n);
    else if (aligned) main_loop<true, true>(totals, shared, a, b, K, lda, ldb, rows, cols, m, n);
    else main_loop<false, true>(totals, shared, a, b, K, lda, ldb, rows, cols, m, n);
    if (NAN_SAFE && __syncthreads_or(any_not_finite(totals)))
        sum_in_order<B_NT>(totals, a, b, K, lda, ldb, rows, cols, m, n);

    // In a tile of m16n8 a lane holds two neighbours in row lane / 4, and two in the eighth row below. A whole block
    // tile goes by pairs without a test. At the rim each element has a test, in a loop that is not unrolled, out of a
    // copy of the totals that lies in local memory for that: unrolled, the tests would cost more compile time than the
    // main loop.
    const int lane_row = m + lane / 4, lane_col = n + lane % 4 * 2;
    const i64 row0 = m0 + lane_row, col0 = n0 + lane_col;
    Out* const c = C + row0 * ldc + col0;
    if (whole && ldc % 2 == 0) {
#pragma unroll
        for (int i = 0; i < 2 * M_TILES; ++i)
#pragma unroll
            for (int j = 0; j < N_TILES; ++j) {
                Pair* const to = reinterpret_cast<Pair*>(c + 8 * i * ldc + 8 * j);
                Pair pair = {};
                if (epilogue.beta != 0.0f) pair = *to;
                const float* const sums = totals[i / 2][j] + i % 2 * 2;
                const i64 row = row0 + 8 * i, col = col0 + 8 * j;
                pair.x = from_float<Out>(finish<Ops>(sums[0], &pair.x, epilogue, row, col));
                pair.y = from_float<Out>(finish<Ops>(sums[1], &pair.y, epilogue, row, col + 1));
                *to = pair;
            }
    } else {
        float copy[2 * M_TILES][2 * N_TILES];
#pragma unroll
        for (int i = 0; i < 2 * M_TILES; ++i)
#pragma unroll
            for (int j = 0; j < 2 * N_TILES; ++j) copy[i][j] = totals[i / 2][j / 2][i % 2 * 2 + j % 2];
#pragma unroll 1
        for (int i = 0; i < 2 * M_TILES && lane_row + 8 * i < rows; ++i)
#pragma unroll 2
            for (int j = 0; j < 2 * N_TILES; ++j) {
                const int across = j / 2 * 8 + j % 2;
                Out* const to = c + 8 * i * ldc + across;
                if (lane_col + across < cols)
                    *to = from_float<Out>(finish<Ops>(copy[i][j], to, epilogue, row0 + 8 * i, col0 + across));
            }
    }
}
