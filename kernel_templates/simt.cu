// /// gemmsweep
// summary   = "Block tiles in shared memory, warp and thread tiles in registers, FFMA."
// backend   = "cuda"
// arch      = "sm_75+"
// dtypes    = ["fp32"]
// layouts   = ["nn", "nt"]
//
// [parameters]
// BM        = { default = 128, values = [32, 64, 128, 256], meaning = "rows of C per block" }
// BN        = { default = 128, values = [32, 64, 128, 256], meaning = "columns of C per block" }
// BK        = { default = 16,  values = [8, 16, 32, 64], meaning = "k depth of one shared-memory slab" }
// WM        = { default = 32,  values = [16, 32, 64, 128], meaning = "rows of C per warp" }
// WN        = { default = 64,  values = [16, 32, 64, 128], meaning = "columns of C per warp" }
// TM        = { default = 4,   values = [2, 4, 8, 16], meaning = "adjacent rows per thread, repeated to cover WM" }
// TN        = { default = 4,   values = [2, 4, 8, 16], meaning = "adjacent columns per thread, repeated to cover WN" }
// STAGES    = { default = 2,   values = [1, 2, 3, 4], meaning = "slabs in shared memory; 1 needs a second barrier" }
// PAD       = { default = 0,   values = [0, 1, 2, 4, 8], meaning = "unused floats after each k row of a slab" }
// SWIZZLE   = { default = 1,   values = [0, 1], meaning = "XOR transposed slabs against store conflicts" }
// VEC       = { default = 4,   values = [1, 2, 4], meaning = "floats per load and store, global and shared" }
// UNROLL    = { default = 16,  values = [1, 2, 4, 8, 16], meaning = "k steps per inner iteration, at most BK" }
// GROUP_M   = { default = 8,   values = [1, 2, 4, 8, 16], meaning = "block rows that run together, sharing B in L2" }
// REGISTERS = { default = 128, values = [64, 96, 128, 168, 255], meaning = "at most, per thread: fewer, more blocks" }
//
// [derived]
// THREADS  = "32 * floor_div(BM, WM) * floor_div(BN, WN)"
// LANES_M  = "4 * min(2, max(1, floor_div(WM, WN)))"
// LANES_N  = "floor_div(32, LANES_M)"
// THREAD_M = "floor_div(WM, LANES_M)"
// THREAD_N = "floor_div(WN, LANES_N)"
//
// [[constraints]]
// expr = "128 % WM == 0 and 128 % WN == 0 and 64 % BK == 0 and 64 % UNROLL == 0 and BM % 32 == 0 and BN % 32 == 0"
// why  = "the swizzle takes indices apart by their bits: WM, WN, BK, UNROLL are powers of two, BM, BN multiples of 32"
// [[constraints]]
// expr = "BM % WM == 0 and BN % WN == 0"
// why  = "whole warp tiles cover the block tile: lower WM or WN"
// [[constraints]]
// expr = "1024 % THREADS == 0"
// why  = "a block holds a power of two of threads, at most 1024: raise WM or WN"
// [[constraints]]
// expr = "THREAD_M % TM == 0 and THREAD_N % TN == 0"
// why  = "LANES_M x LANES_N lanes cover the warp tile with whole TM x TN pieces: lower TM or TN, or raise WM or WN"
// [[constraints]]
// expr = "THREAD_M * THREAD_N + 2 * (THREAD_M + THREAD_N) <= REGISTERS"
// why  = "accumulators and two sets of fragments stay in registers: raise REGISTERS, or lower WM or WN"
// [[constraints]]
// expr = "REGISTERS * THREADS <= 65536"
// why  = "a multiprocessor has 65536 registers: lower REGISTERS, or raise WM or WN"
// [[constraints]]
// expr = "TM % VEC == 0 and TN % VEC == 0 and PAD % VEC == 0"
// why  = "fragments are read in whole, aligned vectors: lower VEC"
// [[constraints]]
// expr = "BM * BK % (VEC * THREADS) == 0 and BN * BK % (VEC * THREADS) == 0"
// why  = "every thread copies the same number of whole vectors of a slab: raise BK or lower VEC"
// [[constraints]]
// expr = "VEC * THREADS % BK == 0 and VEC * THREADS % BN == 0"
// why  = "the block copies whole rows of a slab at a time: lower BK or BN, or raise VEC"
// [[constraints]]
// expr = "STAGES * (BM + BN + 2 * PAD) * BK * sizeof_in <= max_smem_bytes"
// why  = "the slabs fit into shared memory: lower STAGES or BK"
//
// [launch]
// args  = ["A", "B", "C", "i64:M", "i64:N", "i64:K", "i64:lda", "i64:ldb", "i64:ldc", "epilogue"]
// grid  = ["ceil_div(M, BM) * ceil_div(N, BN)", "1", "1"]
// block = "THREADS"
// smem_bytes = "STAGES * (BM + BN + 2 * PAD) * BK * sizeof_in"
//
// [account]
// unit = "ffma"
// accumulators = "THREAD_M * THREAD_N"
// stage_bytes = "(BM + BN + 2 * PAD) * BK * sizeof_in"
// ///

// Three levels of reuse: a block keeps BK-deep slabs of A and B in shared memory, a warp reads its WM and WN parts of
// them as fragments, a thread multiplies each value of A in its fragments with each of B: THREAD_M * THREAD_N FFMA for
// THREAD_M + THREAD_N floats read. Slabs lie k-major, so fragments are rows of vectors whatever the layout in memory.
//
// Two copies run ahead of the arithmetic, both through registers: the slab AHEAD (global to shared memory), and the
// fragments of the next k step (shared memory to registers). k ascends through one fmaf per product, as in naive.cu.
#include "epilogue.cuh"

constexpr int BM = $BM;
constexpr int BN = $BN;
constexpr int BK = $BK;
constexpr int WM = $WM;
constexpr int WN = $WN;
constexpr int TM = $TM;
constexpr int TN = $TN;
constexpr int STAGES = $STAGES;
constexpr int PAD = $PAD;
constexpr bool SWIZZLE = $SWIZZLE;
constexpr int VEC = $VEC;
constexpr int UNROLL = $UNROLL < BK ? $UNROLL : BK;
constexpr int GROUP_M = $GROUP_M;
constexpr int REGISTERS = $REGISTERS;
constexpr int THREADS = $THREADS;
constexpr int LANES_M = $LANES_M;
constexpr int LANES_N = $LANES_N;
constexpr int THREAD_M = $THREAD_M;
constexpr int THREAD_N = $THREAD_N;
constexpr bool B_NT = $B_NT;
$STATIC_ASSERTS

using Ops = $EPILOGUE;

constexpr int AHEAD = STAGES == 1 ? 1 : STAGES - 1;  // slabs between the one being loaded and the one being multiplied

struct alignas(VEC * sizeof(float)) Vector {
    float at[VEC];
};

// One operand's slabs on their way from global memory, through registers, to shared memory. X is the operand's own
// dimension (m of A, n of B), of which the block owns BX from x0 on. TRANSPOSE: k is contiguous in memory (A, and B of
// layout nt), so that a slab is transposed as it is stored.
template <int BX, bool TRANSPOSE> struct Slab {
    static constexpr int ROW = BX + PAD;  // floats from one k to the next in shared memory
    static constexpr int FLOATS = BK * ROW;
    static constexpr int VECTORS = BX * BK / (VEC * THREADS);    // copied per thread
    static constexpr int PER_ROW = (TRANSPOSE ? BK : BX) / VEC;  // vectors in a row, contiguous in global memory
    static constexpr int ROWS_PER_PASS = THREADS / PER_ROW;      // rows that the block copies at a time
    static constexpr int XOR_STEP = PER_ROW < 32 / VEC ? 32 / PER_ROW : VEC;

    const float* from[VECTORS];  // this thread's vectors of the next slab to load
    Vector loaded[VECTORS];
    i64 K, step;     // step: elements of memory from one slab to the next
    int in_reach;    // how many elements of a vector along x lie inside X
    int fast_slabs;  // the slabs before this one lie wholly inside the matrix and are loaded by vectors

    // Element (k, x) of a slab lies at k * ROW + (x ^ swizzle(k)). One transposing store of a warp writes PER_ROW
    // values of k for 32 / PER_ROW of x. With neither PAD nor SWIZZLE all those k have the same banks; the XOR gives
    // each its own. It permutes whole vectors within 32 floats, a bijection for each k, so that reads along x stay free
    // of conflicts.
    static __device__ __forceinline__ constexpr int swizzle(int k) {
        return SWIZZLE && TRANSPOSE ? k / VEC * XOR_STEP % 32 : 0;
    }
    // Where (k, x + c) lies, k and c known to the compiler: x and c, sums of different powers of two, have no bit in
    // common, hence (x + c) ^ swizzle == (x ^ low) + high, where only x ^ low is left to compute.
    static __device__ __forceinline__ float* at(float* slab, int k, int x, int c) {
        const int flip = c ^ swizzle(k);
        return SWIZZLE && TRANSPOSE ? slab + (x ^ flip % 32) + (k * ROW + flip / 32 * 32) : slab + x + (k * ROW + c);
    }

    // The first of this thread's vectors; each further one lies ROWS_PER_PASS rows on.
    static __device__ __forceinline__ int row() { return threadIdx.x / PER_ROW; }
    static __device__ __forceinline__ int column() { return threadIdx.x % PER_ROW * VEC; }
    static __device__ __forceinline__ int first_k() { return TRANSPOSE ? column() : row(); }
    static __device__ __forceinline__ int first_x() { return TRANSPOSE ? row() : column(); }
    static __device__ __forceinline__ int pass_k(int i) { return TRANSPOSE ? 0 : i * ROWS_PER_PASS; }
    static __device__ __forceinline__ int pass_x(int i) { return TRANSPOSE ? i * ROWS_PER_PASS : 0; }

    // Vectors beyond X are read from the last one instead: they only reach elements of C that are never stored.
    __device__ __forceinline__ Slab(const float* matrix, i64 ld, i64 X, i64 x0, i64 K) : K(K) {
        const i64 last = TRANSPOSE ? X - 1 : (X - 1) / VEC * VEC;
#pragma unroll
        for (int i = 0; i < VECTORS; ++i) {
            const i64 x = min(x0 + first_x() + pass_x(i), last);
            const i64 k = first_k() + pass_k(i);
            from[i] = TRANSPOSE ? matrix + x * ld + k : matrix + k * ld + x;
        }
        step = TRANSPOSE ? BK : BK * ld;
        in_reach = static_cast<int>(min(X - min(x0 + first_x(), last), static_cast<i64>(VEC)));
        const bool whole_vectors = ld % VEC == 0 && (TRANSPOSE || X % VEC == 0 || x0 + BX <= X);
        fast_slabs = whole_vectors ? static_cast<int>(K / BK) : 0;
    }

    // The last slab is zero beyond K in both operands: 0 * Inf would be NaN. The branch also holds the vector loads
    // here, a whole slab of arithmetic before store(): in straight-line code the compiler sinks them to save registers.
    __device__ __forceinline__ void load(int slab) {
        if (slab < fast_slabs) {
#pragma unroll
            for (int i = 0; i < VECTORS; ++i) loaded[i] = *reinterpret_cast<const Vector*>(from[i]);
        } else {
            const int k_left = static_cast<int>(min(K - static_cast<i64>(slab) * BK, static_cast<i64>(BK))) - first_k();
#pragma unroll
            for (int i = 0; i < VECTORS; ++i) {
#pragma unroll
                for (int j = 0; j < VEC; ++j) {
                    const bool inside = TRANSPOSE ? j < k_left : pass_k(i) < k_left && j < in_reach;
                    loaded[i].at[j] = inside ? from[i][j] : 0.0f;
                }
            }
        }
#pragma unroll
        for (int i = 0; i < VECTORS; ++i) from[i] += step;
    }

    __device__ __forceinline__ void store(float* slab) const {
        float* const to = slab + first_k() * ROW;
        const int x = first_x() ^ swizzle(first_k());
#pragma unroll
        for (int i = 0; i < VECTORS; ++i) {
            if (TRANSPOSE) {
#pragma unroll
                for (int j = 0; j < VEC; ++j) *at(to, j, x, pass_x(i)) = loaded[i].at[j];
            } else {
                *reinterpret_cast<Vector*>(at(to, pass_k(i), x, 0)) = loaded[i];
            }
        }
    }
};

using SlabA = Slab<BM, true>;
using SlabB = Slab<BN, B_NT>;
constexpr int STAGE = SlabA::FLOATS + SlabB::FLOATS;

// Where a thread's value i of THREAD_M (or THREAD_N) lies in the warp tile, counted from its first.
template <int T, int LANES> __device__ __forceinline__ constexpr int spread(int i) {
    return i / T * (T * LANES) + i % T;
}

// One operand of a k step in registers: THREAD_M values of A or THREAD_N of B.
template <class S, int T, int LANES, int COUNT> struct Fragment {
    float at[COUNT];

    // Step u of the steps that begin at row k of a slab; x is the thread's first element of the block tile.
    __device__ __forceinline__ void load(float* slab, int k, int u, int x) {
        float* const from = slab + k * S::ROW;
        const int swizzled = x ^ S::swizzle(k);
#pragma unroll
        for (int i = 0; i < COUNT; i += VEC) {
            const Vector v = *reinterpret_cast<const Vector*>(S::at(from, u, swizzled, spread<T, LANES>(i)));
#pragma unroll
            for (int j = 0; j < VEC; ++j) at[i + j] = v.at[j];
        }
    }
};

struct Fragments {
    Fragment<SlabA, TM, LANES_M, THREAD_M> a;
    Fragment<SlabB, TN, LANES_N, THREAD_N> b;

    __device__ __forceinline__ void load(float* stage, int k, int u, int m, int n) {
        a.load(stage, k, u, m);
        b.load(stage + SlabA::FLOATS, k, u, n);
    }
};

extern "C" __global__ void __maxnreg__(REGISTERS)
gemm(const float* A, const float* B, float* C, i64 M, i64 N, i64 K, i64 lda, i64 ldb, i64 ldc, Epilogue epilogue) {
    extern __shared__ __align__(16) float shared[];

    // Blocks run down GROUP_M block rows before they move one block column on: those in flight share rows of A and
    // columns of B.
    const unsigned tiles_m = static_cast<unsigned>((M + BM - 1) / BM);
    const unsigned tiles_n = static_cast<unsigned>((N + BN - 1) / BN);
    const unsigned first = blockIdx.x / (GROUP_M * tiles_n) * GROUP_M;
    const unsigned inside = blockIdx.x % (GROUP_M * tiles_n);
    const unsigned rows = min(tiles_m - first, static_cast<unsigned>(GROUP_M));
    const i64 block_m = static_cast<i64>(first + inside % rows) * BM;
    const i64 block_n = static_cast<i64>(inside / rows) * BN;

    // A half warp reads 4 vectors of A and 4 of B. Lanes that differ in bit 0 share their A, in bit 1 their B: only
    // such pairs let the hardware serve a half warp's 16-byte reads in one go. Bit 4 takes the warp's longer side.
    const int lane = threadIdx.x % 32;
    const int warp = threadIdx.x / 32;
    const int lane_m = (lane >> 1 & 3) + (LANES_M == 8 ? lane >> 4 << 2 : 0);
    const int lane_n = (lane & 1) + (lane >> 3 & 1) * 2 + (LANES_N == 8 ? lane >> 4 << 2 : 0);
    const int thread_m = warp / (BN / WN) * WM + lane_m * TM;  // this thread's first element of the block tile
    const int thread_n = warp % (BN / WN) * WN + lane_n * TN;

    SlabA a(A, lda, M, block_m, K);
    SlabB b(B, ldb, N, block_n, K);
    const int slabs = static_cast<int>((K + BK - 1) / BK);
    for (int slab = 0; slab < AHEAD && slab < slabs; ++slab) {
        a.load(slab);
        b.load(slab);
        a.store(shared + slab * STAGE);
        b.store(shared + slab * STAGE + SlabA::FLOATS);
    }
    __syncthreads();

    float acc[THREAD_M][THREAD_N] = {};
    Fragments now, next;
    unsigned read = 0;                // the stage being multiplied
    unsigned write = AHEAD % STAGES;  // the stage to be filled
    now.load(shared, 0, 0, thread_m, thread_n);
    for (int slab = 0; slab < slabs; ++slab) {
        const bool more = slab + AHEAD < slabs;
        if (more) {
            a.load(slab + AHEAD);
            b.load(slab + AHEAD);
        }
#pragma unroll 1
        for (int k0 = 0; k0 < BK; k0 += UNROLL) {
#pragma unroll
            for (int u = 0; u < UNROLL; ++u) {
                const bool last = u == UNROLL - 1;
                int k = last ? k0 + UNROLL : k0;
                if (last && k == BK) {
                    // The slab's last fragments are in registers: its stage may be refilled once every warp is here.
                    if (STAGES == 1) __syncthreads();
                    if (more) {
                        a.store(shared + write * STAGE);
                        b.store(shared + write * STAGE + SlabA::FLOATS);
                    }
                    __syncthreads();
                    read = read + 1 < STAGES ? read + 1 : 0;
                    write = write + 1 < STAGES ? write + 1 : 0;
                    k = 0;
                }
                next.load(shared + read * STAGE, k, last ? 0 : u + 1, thread_m, thread_n);
#pragma unroll
                for (int i = 0; i < THREAD_M; ++i)
#pragma unroll
                    for (int j = 0; j < THREAD_N; ++j) acc[i][j] = fmaf(now.a.at[i], now.b.at[j], acc[i][j]);
                now = next;
            }
        }
    }

    const bool vectors = ldc % VEC == 0;
#pragma unroll
    for (int i = 0; i < THREAD_M; ++i) {
        const i64 row = block_m + thread_m + spread<TM, LANES_M>(i);
        if (row >= M) continue;
#pragma unroll
        for (int j = 0; j < THREAD_N; j += VEC) {
            const i64 col = block_n + thread_n + spread<TN, LANES_N>(j);
            float* c = C + row * ldc + col;
            Vector out;
#pragma unroll
            for (int v = 0; v < VEC; ++v)
                if (col + v < N) out.at[v] = finish<Ops>(acc[i][j + v], c + v, epilogue, row, col + v);
            if (vectors && col + VEC <= N) {
                *reinterpret_cast<Vector*>(c) = out;
            } else {
#pragma unroll
                for (int v = 0; v < VEC; ++v)
                    if (col + v < N) c[v] = out.at[v];
            }
        }
    }
}
