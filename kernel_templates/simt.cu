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
// WM        = { default = 64,  values = [16, 32, 64, 128], meaning = "rows of C per warp" }
// WN        = { default = 64,  values = [16, 32, 64, 128], meaning = "columns of C per warp" }
// TM        = { default = 4,   values = [2, 4, 8, 16], meaning = "adjacent rows per thread, repeated to cover WM" }
// TN        = { default = 4,   values = [2, 4, 8, 16], meaning = "adjacent columns per thread, repeated to cover WN" }
// STAGES    = { default = 3,   values = [1, 2, 3, 4], meaning = "slabs in shared memory; 1 needs a second barrier" }
// PAD       = { default = 4,   values = [0, 1, 2, 4, 8], meaning = "unused floats after each k row of a slab" }
// SWIZZLE   = { default = 0,   values = [0, 1], meaning = "XOR transposed slabs against store conflicts" }
// VEC       = { default = 4,   values = [1, 2, 4], meaning = "floats per load and store, global and shared" }
// UNROLL    = { default = 16,  values = [1, 2, 4, 8, 16], meaning = "k steps per inner iteration, at most BK" }
// GROUP_M   = { default = 8,   values = [1, 2, 4, 8, 16], meaning = "block rows that run together, sharing B in L2" }
// REGISTERS = { default = 255, values = [64, 96, 128, 168, 255], meaning = "at most, per thread: fewer, more blocks" }
// COPY      = { default = "async", values = ["registers", "async"], meaning = "how slabs reach shared memory" }
// EDGE      = { default = "tail", values = ["predicate", "pad", "tail"], meaning = "masks: all, none, rim tiles" }
//
// [derived]
// THREADS  = "32 * floor_div(BM, WM) * floor_div(BN, WN)"
// LANES_M  = "4 * min(2, max(1, floor_div(WM, WN)))"
// LANES_N  = "floor_div(32, LANES_M)"
// THREAD_M = "floor_div(WM, LANES_M)"
// THREAD_N = "floor_div(WN, LANES_N)"
// M_PADDED = "ceil_div(M, BM) * BM"
// N_PADDED = "ceil_div(N, BN) * BN"
// K_PADDED = "ceil_div(K, BK) * BK"
// PAD_BYTES = "16384"
// UNEVEN   = "M % BM + N % BN + K % BK + lda % VEC + ldb % VEC"
//
// [[constraints]]
// expr = "128 % WM == 0 and 128 % WN == 0 and 64 % BK == 0 and 64 % UNROLL == 0 and 256 % BM == 0 and 256 % BN == 0"
// why  = "copies and swizzle take indices apart by their bits: BM, BN, BK, WM, WN, UNROLL are powers of two"
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
// expr = "VEC * THREADS % BN == 0"
// why  = "the block copies whole rows of B at a time: lower BN, or raise VEC"
// [[constraints]]
// expr = "STAGES * (BM + BN + 2 * PAD) * BK * sizeof_in <= max_smem_bytes"
// why  = "the slabs fit into shared memory: lower STAGES or BK"
//
// [[workspace]]
// name  = "A_padded"
// bytes = "M_PADDED * K_PADDED * sizeof_in"
// zero  = "never"
// when  = "EDGE == pad and UNEVEN > 0"
// [[workspace]]
// name  = "B_padded"
// bytes = "N_PADDED * K_PADDED * sizeof_in"
// zero  = "never"
// when  = "EDGE == pad and UNEVEN > 0"
//
// [[step]]
// kernel = "pad"
// args   = ["workspace:A_padded", "workspace:B_padded", "A", "B", "i64:M", "i64:N", "i64:K", "i64:lda", "i64:ldb"]
// grid   = ["ceil_div(M_PADDED * K_PADDED * 4, PAD_BYTES) + ceil_div(N_PADDED * K_PADDED * 4, PAD_BYTES)", "1", "1"]
// block  = "256"
// smem_bytes = "0"
// when   = "EDGE == pad and UNEVEN > 0"
// [[step]]
// args  = ["A", "B", "C", "i64:M", "i64:N", "i64:K", "i64:lda", "i64:ldb", "i64:ldc",
//          "workspace:A_padded", "workspace:B_padded", "epilogue"]
// grid  = ["ceil_div(M, BM) * ceil_div(N, BN)", "1", "1"]
// block = "THREADS"
// smem_bytes = "STAGES * (BM + BN + 2 * PAD) * BK * sizeof_in"
//
// [[start]]
// set = { STAGES = 2 }
// [[start]]
// when = "M <= 1024"
// set = { BM = 64, WM = 32, STAGES = 4, REGISTERS = 168 }
// [[start]]
// set = { EDGE = "predicate" }
// [account]
// unit = "ffma"
// accumulators = "THREAD_M * THREAD_N"
// stage_bytes = "(BM + BN + 2 * PAD) * BK * sizeof_in"
// warp = "floor_div(row, WM) * floor_div(BN, WN) + floor_div(column, WN)"
// lane = """floor_div(column, TN) % 2 + floor_div(row, TM) % 4 * 2 + floor_div(column, 2 * TN) % 2 * 8 + 16 * \
//           (floor_div(row, 4 * TM) % floor_div(LANES_M, 4) + floor_div(column, 4 * TN) % floor_div(LANES_N, 4))"""
// ///

// Three levels of reuse: a block keeps BK-deep slabs of A and B in shared memory, a warp reads its WM and WN parts of
// them as fragments, a thread multiplies each value of A in its fragments with each of B: THREAD_M * THREAD_N FFMA for
// THREAD_M + THREAD_N floats read. Slabs lie k-major, so fragments are rows of vectors whatever the layout in memory.
//
// Two copies run ahead of the arithmetic: the slab AHEAD (global to shared memory, by way of registers or not, COPY),
// and the fragments of the next k step (shared memory to registers). In every config k ascends through one fmaf per
// product, as in naive.cu: the results are those of naive.cu to the last bit, Inf and NaN included, so that there is no
// NAN_SAFE to choose here.
#include "epilogue.cuh"
#include "pad_copy.cuh"

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
constexpr bool ASYNC = $COPY;
constexpr bool PADDED = $EDGE == 1;
constexpr bool TAIL = $EDGE == 2;
constexpr int THREADS = $THREADS;
constexpr int LANES_M = $LANES_M;
constexpr int LANES_N = $LANES_N;
constexpr int THREAD_M = $THREAD_M;
constexpr int THREAD_N = $THREAD_N;
constexpr bool B_NT = $B_NT;
$STATIC_ASSERTS
static_assert($PAD_BYTES == PAD_BLOCK_BYTES, "PAD_BYTES of the header is what a block of pad_copy.cuh writes");

using Ops = $EPILOGUE;

constexpr int AHEAD = STAGES == 1 ? 1 : STAGES - 1;  // slabs between the one being copied and the one being multiplied

struct alignas(VEC * sizeof(float)) Vector {
    float at[VEC];
};

// COUNT floats from global to shared memory, behind the arithmetic (before sm_80: at once); zeros if they lie outside.
template <int COUNT> __device__ __forceinline__ void copy_async(float* to, const float* from, bool inside) {
#if __CUDA_ARCH__ >= 800
    constexpr int BYTES = COUNT * sizeof(float);
    const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(to));
    const int valid = inside ? BYTES : 0;
    if (COUNT == 4)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(from), "r"(valid));
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(address), "l"(from), "n"(BYTES), "r"(valid));
#else
#pragma unroll
    for (int i = 0; i < COUNT; ++i) to[i] = inside ? from[i] : 0.0f;
#endif
}
__device__ __forceinline__ void commit() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
template <int PENDING> __device__ __forceinline__ void wait() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
#endif
}

// A or B as a block sees it. X is the operand's own dimension (m of A, n of B), of which the block's begins at x0.
struct Operand {
    const float* matrix;
    i64 ld, X, x0, K;
};

// One operand's slab, in shared memory and on its way there. TRANSPOSE: rows of global memory run along k (A, and B of
// layout nt), whereas in shared memory they always run along x.
template <int BX, bool TRANSPOSE> struct Slab {
    static constexpr int ROW = BX + PAD;  // floats from one k to the next in shared memory
    static constexpr int FLOATS = BK * ROW;

    // Copy i of a thread takes WIDTH floats of one row of global memory; RUN neighbouring threads share that row.
    static constexpr int WIDTH = TRANSPOSE && ASYNC ? 1 : VEC;
    static constexpr int RUN = !TRANSPOSE ? BX / WIDTH : BK / WIDTH < 8 ? BK / WIDTH : 8;
    static constexpr int ROWS = TRANSPOSE ? BX : BK;
    static constexpr int COPIES = BX * BK / (WIDTH * THREADS);
    static constexpr int POINTERS = RUN * ROWS <= THREADS ? 1 : RUN * ROWS / THREADS;  // rows that a thread copies from

    // The place of copy number i of the block's. Thread t has t, t + THREADS, ...: sums of different powers of two, so
    // that the place of a sum is the sum of the places.
    static __device__ __forceinline__ constexpr int row(int i) { return i / RUN % ROWS; }
    static __device__ __forceinline__ constexpr int column(int i) { return (i % RUN + i / (RUN * ROWS) * RUN) * WIDTH; }
    static __device__ __forceinline__ constexpr int k_of(int i) { return TRANSPOSE ? column(i) : row(i); }
    static __device__ __forceinline__ constexpr int x_of(int i) { return TRANSPOSE ? row(i) : column(i); }

    // Element (k, x) lies at k * ROW + (x ^ swizzle(k)). A warp that transposes stores RUN values of k (every WIDTH-th)
    // for 32 / RUN of x at a time. With neither PAD nor SWIZZLE all those k have the same banks; the XOR gives each its
    // own. It permutes whole vectors within 32 floats, a bijection for each k: reads along x stay free of conflicts.
    static __device__ __forceinline__ constexpr int swizzle(int k) {
        return SWIZZLE && TRANSPOSE ? k / WIDTH * (32 / RUN) % 32 : 0;
    }
    // Where (k, x + c) lies, k and c known to the compiler: x and c, sums of different powers of two, have no bit in
    // common, hence (x + c) ^ swizzle == (x ^ low) + high, where only x ^ low is left to compute.
    static __device__ __forceinline__ float* at(float* slab, int k, int x, int c) {
        const int flip = c ^ swizzle(k);
        return SWIZZLE && TRANSPOSE ? slab + (x ^ flip % 32) + (k * ROW + flip / 32 * 32) : slab + x + (k * ROW + c);
    }
    // Where this thread stores element j of its copy i.
    static __device__ __forceinline__ float* target(float* slab, int i, int j) {
        const int k = k_of(threadIdx.x);
        float* const to = slab + k * ROW;
        const int x = x_of(threadIdx.x) ^ swizzle(k);
        return TRANSPOSE ? at(to, k_of(i * THREADS) + j, x, x_of(i * THREADS)) : at(to, k_of(i * THREADS), x, 0) + j;
    }
};

// A thread's copies, slab after slab. MASKED: what lies outside the matrix becomes zero, in both as 0 * Inf is NaN.
// Otherwise every slab is known to lie inside.
template <class S, bool TRANSPOSE, bool MASKED> struct Copies {
    const float* from[S::POINTERS];      // this thread's rows of the next slab
    Vector loaded[ASYNC ? 1 : S::COPIES];
    i64 K, step;     // step: elements of memory from one slab to the next
    int in_reach;    // how many elements of a vector along x lie inside X
    int fast_slabs;  // the slabs before this one lie wholly inside the matrix and are copied by vectors

    // Vectors beyond X are read from the last one instead: they only reach elements of C that are never stored.
    __device__ __forceinline__ Copies(const Operand& o, int BX, int first_slab) : K(o.K) {
        const i64 last = TRANSPOSE ? o.X - 1 : (o.X - 1) / VEC * VEC;
        const i64 k = static_cast<i64>(first_slab) * BK + S::k_of(threadIdx.x);
        const i64 x = o.x0 + S::x_of(threadIdx.x);
#pragma unroll
        for (int i = 0; i < S::POINTERS; ++i) {
            const i64 here = MASKED ? min(x + S::x_of(i * THREADS), last) : x + S::x_of(i * THREADS);
            from[i] = o.matrix + (TRANSPOSE ? here * o.ld + k : (k + S::k_of(i * THREADS)) * o.ld + here);
        }
        step = TRANSPOSE ? BK : BK * o.ld;
        in_reach = static_cast<int>(min(o.X - min(x, last), static_cast<i64>(VEC)));
        const bool whole_vectors =
            (S::WIDTH == 1 || o.ld % VEC == 0) && (TRANSPOSE || o.X % VEC == 0 || o.x0 + BX <= o.X);
        fast_slabs = whole_vectors ? static_cast<int>(K / BK) : 0;
    }

    __device__ __forceinline__ const float* source(int i) const {
        return from[i % S::POINTERS] + (TRANSPOSE ? S::k_of(i * THREADS) : 0);
    }
    // Whether element j of copy i lies inside a slab of which k_left k remain from this thread's first on.
    __device__ __forceinline__ bool inside(int i, int j, int k_left) const {
        const int k = S::k_of(i * THREADS);
        return TRANSPOSE ? k + j < k_left : k < k_left && j < in_reach;
    }
    __device__ __forceinline__ int k_left(int slab) const {
        return static_cast<int>(min(K - static_cast<i64>(slab) * BK, static_cast<i64>(BK))) - S::k_of(threadIdx.x);
    }
    // On to the next slab. Where there is none the last one is copied again, to where nobody reads it. That costs less
    // than a branch, at which the compiler cuts the arithmetic in two and moves the loads right before their stores.
    __device__ __forceinline__ void advance(bool more) {
        const i64 by = MASKED || more ? step : 0;
#pragma unroll
        for (int i = 0; i < S::POINTERS; ++i) from[i] += by;
    }

    __device__ __forceinline__ void load(int slab) {
        if (!MASKED || slab < fast_slabs) {
#pragma unroll
            for (int i = 0; i < S::COPIES; ++i) loaded[i] = *reinterpret_cast<const Vector*>(source(i));
        } else {
            const int left = k_left(slab);
#pragma unroll
            for (int i = 0; i < S::COPIES; ++i)
#pragma unroll
                for (int j = 0; j < VEC; ++j) loaded[i].at[j] = inside(i, j, left) ? source(i)[j] : 0.0f;
        }
    }
    __device__ __forceinline__ void store(float* stage) const {
#pragma unroll
        for (int i = 0; i < S::COPIES; ++i) {
            if (TRANSPOSE) {
#pragma unroll
                for (int j = 0; j < VEC; ++j) *S::target(stage, i, j) = loaded[i].at[j];
            } else {
                *reinterpret_cast<Vector*>(S::target(stage, i, 0)) = loaded[i];
            }
        }
    }
    // Copies begin to end of the thread's, which need no registers.
    __device__ __forceinline__ void start(float* stage, int slab, int begin, int end) const {
        if (!MASKED || slab < fast_slabs) {
#pragma unroll
            for (int i = begin; i < end; ++i) copy_async<S::WIDTH>(S::target(stage, i, 0), source(i), true);
        } else {
            const int left = k_left(slab);
#pragma unroll
            for (int i = begin; i < end; ++i)
#pragma unroll
                for (int j = 0; j < S::WIDTH; ++j)
                    copy_async<1>(S::target(stage, i, j), source(i) + j, inside(i, j, left));
        }
    }
};

using SlabA = Slab<BM, true>;
using SlabB = Slab<BN, B_NT>;
constexpr int STAGE = SlabA::FLOATS + SlabB::FLOATS;
constexpr int COPIES = SlabA::COPIES + SlabB::COPIES;

// Both operands' copies of a slab into the stage it gets.
template <bool MASKED> struct Feed {
    Copies<SlabA, true, MASKED> a;
    Copies<SlabB, B_NT, MASKED> b;

    __device__ __forceinline__ Feed(const Operand& a, const Operand& b, int first_slab)
        : a(a, BM, first_slab), b(b, BN, first_slab) {}
    __device__ __forceinline__ void advance(bool more) {
        a.advance(more);
        b.advance(more);
    }
    __device__ __forceinline__ void load(int slab) {
        a.load(slab);
        b.load(slab);
    }
    __device__ __forceinline__ void store(float* stage) const {
        a.store(stage);
        b.store(stage + SlabA::FLOATS);
    }
    // Copies begin to end of COPIES: those of A, then those of B.
    __device__ __forceinline__ void start(float* stage, int slab, int begin, int end) const {
        a.start(stage, slab, min(begin, SlabA::COPIES), min(end, SlabA::COPIES));
        b.start(stage + SlabA::FLOATS, slab, max(begin - SlabA::COPIES, 0), max(end - SlabA::COPIES, 0));
    }
};

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

using Accumulators = float[THREAD_M][THREAD_N];

// One k step. Rows are taken to and fro, so that at each turn, too, one operand is still in the register file's reuse
// cache: an FFMA then reads two registers and not three, and two are what the register file delivers in one cycle.
__device__ __forceinline__ void multiply(Accumulators& acc, const Fragments& f) {
#pragma unroll
    for (int i = 0; i < THREAD_M; ++i)
#pragma unroll
        for (int step = 0; step < THREAD_N; ++step) {
            const int j = i % 2 == 0 ? step : THREAD_N - 1 - step;
            acc[i][j] = fmaf(f.a.at[i], f.b.at[j], acc[i][j]);
        }
}

// The k steps over which the copies of a slab are spread. With two stages they must arrive by the end of the slab: none
// starts late. With masks there is one step, because their branch would cut the arithmetic apart at each.
template <bool MASKED> constexpr int COPY_STEPS = MASKED || UNROLL == 1 ? 1 : STAGES == 2 ? UNROLL / 2 : UNROLL;

// k steps per inner iteration: few in the loop with masks beside the main one, or it costs as much compile time.
template <bool MASKED> constexpr int STEPS = MASKED && TAIL && UNROLL > 4 ? 4 : UNROLL;

// Slabs first to end, at least one; m and n are the thread's first elements of the block tile.
template <bool MASKED>
__device__ __forceinline__ void accumulate(Accumulators& acc, float* shared, const Operand& A, const Operand& B,
                                           int first, int end, int m, int n) {
    Feed<MASKED> feed(A, B, first);
#pragma unroll 1
    for (int slab = first; slab < first + AHEAD; ++slab) {
        float* const stage = shared + (slab - first) * STAGE;
        if (!MASKED || slab < end) {
            if (ASYNC) {
                feed.start(stage, slab, 0, COPIES);
            } else {
                feed.load(slab);
                feed.store(stage);
            }
            feed.advance(slab + 1 < end);
        }
        if (ASYNC) commit();
    }
    if (ASYNC) wait<AHEAD - 1>();
    __syncthreads();

    Fragments now, next;
    int read = 0;                        // the stage being multiplied
    int write = AHEAD % STAGES * STAGE;  // the stage to be filled
    now.load(shared, 0, 0, m, n);
#pragma unroll 1
    for (int slab = first; slab < end; ++slab) {
        const int coming = slab + AHEAD;
        const bool fill = !MASKED || coming < end;
        if (!ASYNC && fill) {
            feed.load(coming);
            feed.advance(coming + 1 < end);
        }
#pragma unroll 1
        for (int k0 = 0; k0 < BK; k0 += STEPS<MASKED>) {
#pragma unroll
            for (int u = 0; u < STEPS<MASKED>; ++u) {
                if (ASYNC && STAGES > 1 && k0 == 0 && fill && u < COPY_STEPS<MASKED>)
                    feed.start(shared + write, coming, u * COPIES / COPY_STEPS<MASKED>,
                               (u + 1) * COPIES / COPY_STEPS<MASKED>);
                const bool last = u == STEPS<MASKED> - 1;
                int k = last ? k0 + STEPS<MASKED> : k0;
                if (last && k == BK) {
                    // The slab's last fragments are in registers: its stage may be refilled once every warp is here.
                    if (STAGES == 1) __syncthreads();
                    if (ASYNC) {
                        if (STAGES == 1 && fill) feed.start(shared + write, coming, 0, COPIES);
                        commit();
                        feed.advance(coming + 1 < end);
                        wait<AHEAD - 1>();
                    } else if (fill) {
                        feed.store(shared + write);
                    }
                    __syncthreads();
                    read = read + STAGE < STAGES * STAGE ? read + STAGE : 0;
                    write = write + STAGE < STAGES * STAGE ? write + STAGE : 0;
                    k = 0;
                }
                next.load(shared + read, k, last ? 0 : u + 1, m, n);
                multiply(acc, now);
                now = next;
            }
        }
    }
    if (ASYNC) wait<0>();
}

// EDGE=pad, first step: both operands into workspaces of whole tiles, whose rows are aligned.
#if $EDGE == 1
extern "C" __global__ void __launch_bounds__(PAD_THREADS)
pad(float* A_padded, float* B_padded, const float* A, const float* B, i64 M, i64 N, i64 K, i64 lda, i64 ldb) {
    const i64 m = (M + BM - 1) / BM * BM, n = (N + BN - 1) / BN * BN, k = (K + BK - 1) / BK * BK;
    pad_operands<B_NT>(A, B, A_padded, B_padded, M, N, K, lda, ldb, m, n, k);
}
#endif

extern "C" __global__ void __maxnreg__(REGISTERS)
gemm(const float* A, const float* B, float* C, i64 M, i64 N, i64 K, i64 lda, i64 ldb, i64 ldc, const float* A_padded,
     const float* B_padded, Epilogue epilogue) {
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

    const int slabs = static_cast<int>((K + BK - 1) / BK);
    Operand a{A, lda, M, block_m, K}, b{B, ldb, N, block_n, K};
    int whole = 0;  // slabs that need no masks
    if (PADDED) {
        whole = slabs;
        if (A_padded != nullptr) {  // else the matrices are whole tiles themselves
            a.matrix = A_padded;
            b.matrix = B_padded;
            a.ld = static_cast<i64>(slabs) * BK;
            b.ld = B_NT ? a.ld : static_cast<i64>(tiles_n) * BN;
        }
    }
    const bool aligned = (SlabA::WIDTH == 1 || lda % VEC == 0) && (SlabB::WIDTH == 1 || ldb % VEC == 0);
    if (TAIL && aligned && block_m + BM <= M && block_n + BN <= N) whole = static_cast<int>(K / BK);

    Accumulators acc = {};
    if (PADDED || (TAIL && whole > 0)) accumulate<false>(acc, shared, a, b, 0, whole, thread_m, thread_n);
    if (TAIL) __syncthreads();  // the stages are free again
    if (!PADDED && whole < slabs) accumulate<true>(acc, shared, a, b, whole, slabs, thread_m, thread_n);

    // What exists of C from this thread's first element on. All of it goes by vectors and without a test. At the rim
    // each element has a test, in a loop over rows that is not unrolled and selects its row of accumulators: unrolled,
    // the tests would cost as much compile time as the main loop. A copy in local memory would be simpler, but ptxas
    // then places accumulators so that 1 in 14 FFMAs of the main loop has its operands in one register bank (-6%).
    const i64 row0 = block_m + thread_m, col0 = block_n + thread_n;
    const int m_left = static_cast<int>(min(M - row0, static_cast<i64>(BM)));
    const int n_left = static_cast<int>(min(N - col0, static_cast<i64>(BN)));
    float* const c = C + row0 * ldc + col0;
    const bool all = spread<TM, LANES_M>(THREAD_M - 1) < m_left && spread<TN, LANES_N>(THREAD_N - 1) < n_left;
    if (all && ldc % VEC == 0) {
#pragma unroll
        for (int i = 0; i < THREAD_M; ++i)
#pragma unroll
            for (int j = 0; j < THREAD_N; j += VEC) {
                const int down = spread<TM, LANES_M>(i), across = spread<TN, LANES_N>(j);
                Vector* const to = reinterpret_cast<Vector*>(c + down * ldc + across);
                Vector v = {};
                if (epilogue.beta != 0.0f) v = *to;
#pragma unroll
                for (int e = 0; e < VEC; ++e)
                    v.at[e] = finish<Ops>(acc[i][j + e], v.at + e, epilogue, row0 + down, col0 + across + e);
                *to = v;
            }
    } else {
#pragma unroll 1
        for (int i = 0; i < THREAD_M; ++i) {
            float sums[THREAD_N];
#pragma unroll
            for (int j = 0; j < THREAD_N; ++j) {
                sums[j] = acc[0][j];
#pragma unroll
                for (int r = 1; r < THREAD_M; ++r) sums[j] = r == i ? acc[r][j] : sums[j];
            }
            const int down = spread<TM, LANES_M>(i);
            if (down >= m_left) continue;
#pragma unroll
            for (int j = 0; j < THREAD_N; ++j) {
                const int across = spread<TN, LANES_N>(j);
                float* const to = c + down * ldc + across;
                if (across < n_left) *to = finish<Ops>(sums[j], to, epilogue, row0 + down, col0 + across);
            }
        }
    }
}
