// /// gemmsweep
// summary   = "Few rows of A: B streams through a deep ring onto the wide side of the multiply; blocks divide K."
// backend   = "cuda"
// arch      = "sm_80+"
// dtypes    = ["fp16", "bf16", "fp32"]
// layouts   = ["nt", "nn"]
// requires  = ["M <= 128"]
// deterministic = "REDUCE != atomic or SPLIT_K <= 2"
//
// [parameters]
// BM      = { default = 16, values = [8, 16, 32, 64, 128], meaning = "tokens (rows of C) per block" }
// BN      = { default = 64, values = [16, 32, 64, 112, 128, 224, 256], meaning = "weights (columns of C) per block" }
// BK      = { default = 64, values = [32, 64, 128, 256, 512], meaning = "K depth of one slab of the ring, elements" }
// STAGES  = { default = 4, values = [2, 3, 4, 6, 8, 12], meaning = "slabs in the ring" }
// WARPS   = { default = 4, values = [1, 2, 4, 7, 8], meaning = "warps side by side along the weights" }
// K_WARPS = { default = 1, values = [1, 2, 4], meaning = "rows of WARPS warps that divide K of a slab" }
// L2_FETCH = { default = 128, values = [64, 128, 256], meaning = "bytes that a copy of 16 brings from memory to L2" }
// SPLIT_K = { default = 4, values = [1, 2, 3, 4, 6, 7, 8, 16, 32, 64, 128], meaning = "blocks that share K of a tile" }
// [parameters.REDUCE]
// default = "arrival"
// values  = ["serial", "atomic", "arrival", "workspace", "cluster"]
// meaning = "sums meet in turn, by atomic adds, at the last block to arrive, in a second kernel, or within clusters"
//
// [derived]
// WN      = "floor_div(BN, WARPS)"
// ROW_THREADS = "32 * WARPS"
// THREADS = "ROW_THREADS * K_WARPS"
// PITCH = "BN + 4 + 16 * min(1, BN % 32)"
// ALONE = "1 - min(1, SPLIT_K - 1)"
// PAIRS_ACROSS = "min(floor_div(BN, 2), THREADS)"
// ROWS_DOWN = "floor_div(THREADS, PAIRS_ACROSS)"
// TILES   = "ceil_div(M, BM) * ceil_div(N, BN)"
// CLUSTER_SIZE = "min(SPLIT_K, 1 + 7 * floor_div(REDUCE, cluster))"
// SHARE = "ceil_div(BM * BN, 4 * CLUSTER_SIZE)"
// RING_BYTES = "STAGES * (BM + BN) * BK * sizeof_in"
// SMEM_BYTES = "RING_BYTES + min(1, CLUSTER_SIZE - 1) * ((CLUSTER_SIZE - 1) * SHARE * 16 + 8)"
// SLICES  = "max(1, min(1, floor_div(REDUCE, arrival)) * floor_div(SPLIT_K, CLUSTER_SIZE))"
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
// expr = "BK % 16 == 0 and 4096 % BK == 0 and (is_nt == 1 or 4096 % BN == 0)"
// why  = "a multiply takes 16 of K, and rows in shared memory, along K or in layout nn along N, are a power of two"
// [[constraints]]
// expr = "K_WARPS >= 1 and BK % (16 * K_WARPS) == 0"
// why  = "a multiply takes 16 of K, and every row of warps as many: lower K_WARPS or raise BK"
// [[constraints]]
// expr = "(K_WARPS - 1) * BM * BN * 4 <= RING_BYTES"
// why  = "the sums of the rows of warps meet where the ring was: lower K_WARPS, raise STAGES or BK"
// [[constraints]]
// expr = "SPLIT_K > 1 or K_WARPS * BM * PITCH * 4 <= RING_BYTES"
// why  = "a block that shares no K stores its sums from where the ring was: raise STAGES or BK, lower BM, BN or K_WARPS"
// [[constraints]]
// expr = "L2_FETCH == 64 or L2_FETCH == 128 or L2_FETCH == 256"
// why  = "the instruction has names for 64, 128 and 256 bytes"
// [[constraints]]
// expr = "THREADS <= 1024"
// why  = "a block holds at most 1024 threads"
// [[constraints]]
// expr = "WN * BM <= 4096"
// why  = "a thread accumulates WN * BM / 32 elements, at most 128 of its 255 registers: raise WARPS or lower BM, BN"
// [[constraints]]
// expr = "is_fp32 == 0 or WN * BM <= 2048 and WN <= 128"
// why  = "with FFMA a thread holds WN / 2 registers of weights beside its sums: raise WARPS or lower BM, BN"
// [[constraints]]
// expr = "BM * BN * K_WARPS + (64 + 32 * is_fp32) * THREADS <= 65536"
// why  = "the accumulators and 64 more registers per thread, in fp32 96, fit a register file of 65536"
// [[constraints]]
// expr = "SMEM_BYTES <= max_smem_bytes"
// why  = "the ring and sums from other blocks of a cluster fit the shared memory of a block: lower STAGES or BK"
// [[constraints]]
// expr = "SPLIT_K % CLUSTER_SIZE == 0"
// why  = "a cluster has at most 8 blocks, and all clusters as many: REDUCE=cluster wants SPLIT_K <= 8 or % 8 == 0"
// [[constraints]]
// expr = "CLUSTER_SIZE == 1 or compute_capability >= 90"
// why  = "blocks form clusters on sm_90 and later: choose another REDUCE"
//
// [[workspace]]
// name  = "partials"
// bytes = "TILES * SLICES * BM * BN * 4"
// zero  = "once"
// when  = "SPLIT_K > CLUSTER_SIZE"
// [[workspace]]
// name  = "counters"
// bytes = "TILES * CLUSTER_SIZE * 4"
// zero  = "once"
// when  = "SPLIT_K > CLUSTER_SIZE and REDUCE != workspace"
//
// [[step]]
// args  = ["A", "B", "C", "i64:M", "i64:N", "i64:K", "i64:lda", "i64:ldb", "i64:ldc", "workspace:partials",
//          "workspace:counters", "epilogue"]
// grid  = ["TILES * SPLIT_K", "1", "1"]
// block = "THREADS"
// smem_bytes = "SMEM_BYTES"
// [[step]]
// kernel = "add_slices"
// args  = ["C", "i64:M", "i64:N", "i64:ldc", "workspace:partials", "epilogue"]
// grid  = ["TILES * floor_div(WN * BM, 128)", "1", "1"]
// block = "ROW_THREADS"
// when  = "SPLIT_K > 1 and REDUCE == workspace"
//
// [[start]]
// when = "is_fp32 == 0"
// set = { BN = 32, BK = 128, STAGES = 8, WARPS = 2, SPLIT_K = 2, REDUCE = "cluster" }
// [[start]]
// when = "is_fp32 == 0"
// set = { BN = 64, BK = 256, K_WARPS = 2, SPLIT_K = 1 }
// [[start]]
// when = "is_fp32 == 0 and M > 16"
// set = { BM = 32, BN = 64, BK = 256, STAGES = 2, SPLIT_K = 1 }
// [[start]]
// when = "is_fp32 == 0 and M > 16 and is_nt == 1"
// set = { BM = 32, BN = 112, BK = 128, WARPS = 7, SPLIT_K = 1 }
// [[start]]
// when = "is_fp32 == 0 and M > 32"
// set = { BM = 64, BK = 128, STAGES = 6, K_WARPS = 2, SPLIT_K = 2, REDUCE = "cluster" }
// [[start]]
// when = "is_fp32 == 0 and K > 16 * N"
// set = { BM = 64, BN = 32, BK = 128, STAGES = 8, WARPS = 2, K_WARPS = 2, SPLIT_K = 32, REDUCE = "workspace" }
// [[start]]
// when = "is_fp32 == 0 and K > 16 * N"
// set = { BM = 64, BN = 32, BK = 128, STAGES = 8, WARPS = 2, K_WARPS = 2, SPLIT_K = 32, REDUCE = "atomic" }
// [[start]]
// when = "is_fp32 == 1"
// set = { BM = 8, BK = 64, STAGES = 3, WARPS = 2, SPLIT_K = 8 }
// [[start]]
// when = "is_fp32 == 1"
// set = { BN = 128, STAGES = 2, SPLIT_K = 7 }
// [[start]]
// when = "is_fp32 == 1"
// set = { BM = 16, BK = 32, SPLIT_K = 8 }
// [account]
// accumulators = "floor_div(WN * BM, 32)"
// warp = "ALONE * floor_div(row % ROWS_DOWN * PAIRS_ACROSS + floor_div(column, 2) % PAIRS_ACROSS, 32) + (1 - ALONE) * floor_div(column, WN)"
// lane = "ALONE * ((row % ROWS_DOWN * PAIRS_ACROSS + floor_div(column, 2) % PAIRS_ACROSS) % 32) + (1 - ALONE) * (is_fp32 * (floor_div(row % 8, 2) * 2 + column % 2 + floor_div(column % 8, 2) * 8) + (1 - is_fp32) * (column % 8 * 4 + floor_div(row % 8, 2)))"
// stage_bytes = "(BM + BN) * BK * sizeof_in"
// ///

// C is computed as its transpose: columns of C ("weights", rows of B in layout nt) take the side of the multiply that
// is 16 wide, rows of C ("tokens") the side that is 8 wide, so that few tokens leave little of it idle. Time goes into
// reading B once; a ring of cp.async copies keeps STAGES - 1 slabs of it in flight.
//
// Too few tiles would leave multiprocessors idle, so SPLIT_K blocks divide K of a tile and add their sums in fp32: in
// the order of K whichever block comes first, so that results are the same from run to run, except by atomic adds. The
// epilogue runs once, after that.
#include "epilogue.cuh"
#include "hopper.cuh"
#include "tiles.cuh"

typedef $IN In;
typedef $OUT Out;
typedef $EPILOGUE Ops;

enum Reduce { SERIAL, ATOMIC, ARRIVAL, WORKSPACE, CLUSTER };  // in the header's order

constexpr int BM = $BM;
constexpr int BN = $BN;
constexpr int BK = $BK;
constexpr int STAGES = $STAGES;
constexpr int WARPS = $WARPS;
constexpr int K_WARPS = $K_WARPS;
constexpr int L2_FETCH = $L2_FETCH;
constexpr int SPLIT_K = $SPLIT_K;
constexpr Reduce REDUCE = Reduce($REDUCE);
constexpr int WN = $WN;
constexpr int ROW_THREADS = $ROW_THREADS;  // of WARPS
constexpr int THREADS = $THREADS;
constexpr int PITCH = $PITCH;  // floats: fragments of 8 x 8 then lie in different banks
constexpr int PAIRS_ACROSS = $PAIRS_ACROSS, ROWS_DOWN = $ROWS_DOWN;  // of C, stored at a time by a block with all of K
constexpr int CLUSTER_SIZE = $CLUSTER_SIZE;
constexpr int SHARE = $SHARE;  // places, of which a block of a cluster adds up what all have
constexpr int RING_BYTES = $RING_BYTES;
constexpr bool B_NT = $B_NT;
$STATIC_ASSERTS

constexpr int CHUNK = 16 / sizeof(In);  // elements in 16 bytes: a row of an 8x8 matrix of ldmatrix
constexpr int N_TILES = WN / 16, M_TILES = BM / 8;  // of a warp
constexpr int SLICE = N_TILES * M_TILES * ROW_THREADS;  // float4: the sums of one block
constexpr int SLICES = REDUCE == SERIAL || REDUCE == ATOMIC ? 1 : SPLIT_K / CLUSTER_SIZE;  // of a tile in memory

// What a thread accumulates: of each tile of 16 weights x 8 tokens the elements that mma leaves with a lane.
typedef float4 Sums[N_TILES][M_TILES];

typedef Tile<In, BM, BK> TileA;
typedef Tile<In, B_NT ? BN : BK, B_NT ? BK : BN> TileB;
constexpr int STAGE_BYTES = TileA::BYTES + TileB::BYTES;

// Of a tile of 16 weights x 8 tokens a lane owns two of each: x y are weight lane_n with tokens 2 * lane_m and the
// next, z w are weight lane_n + 8. Tensor cores have it so. On FFMA, lanes that differ in bit 0 share their tokens, in
// bit 1 their weights: only such pairs let the hardware serve a half warp's 16-byte reads in one go.
__device__ __forceinline__ int lane_n(int lane) {
    return sizeof(In) == 4 ? (lane & 1) + (lane >> 3 << 1) : lane / 4;
}
__device__ __forceinline__ int lane_m(int lane) {
    return sizeof(In) == 4 ? lane >> 1 & 3 : lane % 4;
}

// One slab on tensor cores. n: the warp's first weight in the block tile.
template <class T> __device__ __forceinline__ void multiply(Sums& acc, u32 a_tile, u32 b_tile, int n, T type) {
    const int lane = threadIdx.x % 32;
#pragma unroll (min_of(BK / 16 / K_WARPS, 8))
    for (int turn = 0; turn < BK / 16 / K_WARPS; ++turn) {
        const int step = turn * K_WARPS + threadIdx.x / ROW_THREADS;
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
            for (int j = 0; j < M_TILES; ++j) {
                float4& c = acc[i][j];
                mma(c.x, c.y, c.z, c.w, weights[i], tokens[j], type);
            }
    }
}

// One slab in fp32: four of K at a time, each product one FFMA.
__device__ __forceinline__ float dot(float sum, float4 x, float4 y) {
    return fmaf(x.w, y.w, fmaf(x.z, y.z, fmaf(x.y, y.y, fmaf(x.x, y.x, sum))));
}
__device__ __forceinline__ void multiply(Sums& acc, u32 a_tile, u32 b_tile, int n, float) {
    const int lane = threadIdx.x % 32, first_n = n + lane_n(lane), first_m = 2 * lane_m(lane);
#pragma unroll 4
    for (int turn = 0; turn < BK / 4 / K_WARPS; ++turn) {
        const int k = 4 * (turn * K_WARPS + threadIdx.x / ROW_THREADS);
        float4 weights[2 * N_TILES];
#pragma unroll
        for (int i = 0; i < 2 * N_TILES; ++i) {
            if constexpr (B_NT) {
                weights[i] = load_shared_vector(b_tile + TileB::offset(first_n, k) + 8 * i * TileB::STRIDE);
            } else {
                auto weight = [&](int x) {
                    return __uint_as_float(load_word(b_tile + TileB::offset(k + x, first_n + 8 * i)));
                };
                weights[i] = {weight(0), weight(1), weight(2), weight(3)};
            }
        }
#pragma unroll
        for (int j = 0; j < M_TILES; ++j) {
            const float4 even = load_shared_vector(a_tile + TileA::offset(first_m, k) + 8 * j * TileA::STRIDE);
            const float4 odd = load_shared_vector(a_tile + TileA::offset(first_m + 1, k) + 8 * j * TileA::STRIDE);
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
    i64 k_left = K;  // of the slabs not yet asked for
    auto copy_slab = [&](int stage) {
        if (k_left > 0) {
            const u32 to = shared + stage * STAGE_BYTES;
            const int depth = (int)min(k_left, (i64)BK);
            copy_rows<TileA, THREADS, ALIGNED, true, true, 4, L2_FETCH>(to, A, lda, rows, depth);
            copy_rows<TileB, THREADS, ALIGNED, true, true, 4, L2_FETCH>(
                to + TileA::BYTES, B, ldb, B_NT ? cols : depth, B_NT ? depth : cols);
            A += BK;
            B += B_NT ? BK : BK * ldb;
            k_left -= BK;
        }
        commit_copies();
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

// Counts this block; true for the last of COUNT, which leaves the counter at zero for the next launch.
template <int COUNT> __device__ __forceinline__ bool is_last(u32* counter) {
    __syncthreads();
    const bool last = __syncthreads_or(threadIdx.x == 0 && count_up(counter) == COUNT - 1);
    if (last && threadIdx.x == 0) *counter = 0;
    return last;
}

// A tile's sums have SLICE places, each the float4 that one thread of a row of warps has of one 16 x 8 tile. What lies
// in memory is in their order, in which threads that follow each other use places that follow each other.
template <class Use> __device__ __forceinline__ void each_place_of_row(Sums& acc, Use use) {
#pragma unroll
    for (int i = 0; i < N_TILES; ++i)
#pragma unroll
        for (int j = 0; j < M_TILES; ++j) use((i * M_TILES + j) * ROW_THREADS + threadIdx.x % ROW_THREADS, acc[i][j]);
}
// The same for the first row only, which has the sums of all after add_rows.
template <class Use> __device__ __forceinline__ void each_place(Sums& acc, Use use) {
    if (threadIdx.x < ROW_THREADS) each_place_of_row(acc, use);
}
__device__ __forceinline__ float4 plus(float4 x, float4 y) { return {x.x + y.x, x.y + y.y, x.z + y.z, x.w + y.w}; }

// The sum over the slices of a tile at one place, in the order of K; AT_ONCE of them are asked for together.
template <int AT_ONCE> __device__ __forceinline__ float4 over_slices(const float4* slices, int place) {
    float4 sum = __ldcg(slices + place);
#pragma unroll AT_ONCE
    for (int s = 1; s < SLICES; ++s) sum = plus(sum, __ldcg(slices + s * SLICE + place));
    return sum;
}
__device__ __forceinline__ void atomic_add(float4* to, float4 x) {
#if __CUDA_ARCH__ >= 900
    asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};"
                 ::"l"(to), "f"(x.x), "f"(x.y), "f"(x.z), "f"(x.w) : "memory");
#else
    atomicAdd(&to->x, x.x);
    atomicAdd(&to->y, x.y);
    atomicAdd(&to->z, x.z);
    atomicAdd(&to->w, x.w);
#endif
}
__device__ __forceinline__ void store_vector(u32 to, float4 v) {
    asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};"
                 ::"r"(to), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w) : "memory");
}
// Adds the sums of all rows of warps to those of the first, in their order.
__device__ __forceinline__ void add_rows(Sums& acc, u32 shared) {
    const int row = threadIdx.x / ROW_THREADS;
    auto at = [&](int r, int place) { return shared + ((r - 1) * SLICE + place) * (u32)sizeof(float4); };
    __syncthreads();  // the ring is no longer in use: every copy has been waited for
    if (row > 0) each_place_of_row(acc, [&](int place, float4& sums) { store_vector(at(row, place), sums); });
    __syncthreads();
    each_place(acc, [&](int place, float4& sums) {
#pragma unroll
        for (int r = 1; r < K_WARPS; ++r) sums = plus(sums, load_shared_vector(at(r, place)));
    });
}
// A block of a cluster adds up its share of the places; what the other blocks have of it, they send to where `at` says.
// `landed`, after that, ends its one phase when all has come.
struct Received {
    u32 sums, landed;
    u32 first, end;  // the share

    __device__ __forceinline__ explicit Received(u32 shared)
        : sums(shared + RING_BYTES), landed(sums + (CLUSTER_SIZE - 1) * SHARE * sizeof(float4)),
          first(CLUSTER_SIZE > 1 ? cluster_rank() * SHARE : 0), end(min(first + SHARE, (u32)SLICE)) {}
    // At the start of the block: others may send once they have waited for the cluster.
    __device__ __forceinline__ void expect() const {
        if (threadIdx.x == 0) {
            mbarrier_init(landed, 1);
            mbarrier_init_fence();
            mbarrier_arrive_expecting(landed, (CLUSTER_SIZE - 1) * (end - first) * sizeof(float4));
        }
        __syncwarp();
        cluster_arrive_relaxed();
    }
    // In the block that has it: the place of its share, counted from its first, as block `from` sends it.
    __device__ __forceinline__ u32 at(u32 from, u32 owner, u32 place) const {
        return sums + ((from - (from > owner)) * SHARE + place) * sizeof(float4);
    }
};

// A tile of C, of which rows x cols exist at C.
struct Target {
    Out* C;
    i64 ldc, m0, n0;
    int rows, cols;

    __device__ __forceinline__ Target(Out* c, i64 ldc, i64 M, i64 N, u32 tile) : ldc(ldc) {
        const u32 tiles_m = (u32)((M + BM - 1) / BM);  // neighbours share weights, then tokens
        m0 = (i64)(tile % tiles_m) * BM, n0 = (i64)(tile / tiles_m) * BN;
        rows = (int)min(M - m0, (i64)BM), cols = (int)min(N - n0, (i64)BN);
        C = c + m0 * ldc + n0;
    }
    __device__ __forceinline__ void store(int row, int col, float x, const Epilogue& epilogue) const {
        if (row >= rows || col >= cols) return;
        Out* c = C + row * ldc + col;
        *c = from_float<Out>(finish<Ops>(x, c, epilogue, m0 + row, n0 + col));
    }
    __device__ __forceinline__ void store(int place, float4 sums, const Epilogue& epilogue) const {
        const int tile = place / ROW_THREADS, thread = place % ROW_THREADS;
        const int row = tile % M_TILES * 8 + 2 * lane_m(thread % 32);
        const int col = thread / 32 * WN + tile / M_TILES * 16 + lane_n(thread % 32);
        store(row, col, sums.x, epilogue);
        store(row + 1, col, sums.y, epilogue);
        store(row, col + 8, sums.z, epilogue);
        store(row + 1, col + 8, sums.w, epilogue);
    }
};

#include "skinny_store.cuh"

// Adds what the blocks of lower number have left in the slice; true for the last block. It waits for those only, and
// they were started earlier, so the wait ends.
__device__ __forceinline__ bool add_in_turn(Sums& acc, float4* slice, u32* counter, u32 split) {
    if (split > 0) {
        if (threadIdx.x == 0)
            while (acquire(counter) != split) {}
        __syncthreads();
        each_place(acc, [&](int place, float4& sums) { sums = plus(__ldcg(slice + place), sums); });
    }
    const bool last = split == SPLIT_K - 1;
    if (!last) each_place(acc, [&](int place, float4& sums) { __stcg(slice + place, sums); });
    __syncthreads();
    if (threadIdx.x == 0) release(counter, last ? 0 : split + 1);
    return last;
}

// Every block of a cluster sends what it has of the others' shares and adds up its own, in the order of K. Where there are
// several clusters to a tile, the last block to arrive of those with the same share adds up what the clusters have left.
__device__ __forceinline__ void add_in_cluster(Sums& acc, const Received& received, float4* slices, u32* counters,
                                               u32 split, const Target& target, const Epilogue& epilogue) {
    const u32 rank = cluster_rank();
    cluster_wait();
    each_place(acc, [&](int place, float4& sums) {
        const u32 owner = place / SHARE;
        if (owner != rank)
            store_to_cluster(in_cta(received.at(rank, owner, place - owner * SHARE), owner), sums.x, sums.y, sums.z,
                             sums.w, in_cta(received.landed, owner));
    });
    mbarrier_wait_for_cluster(received.landed, 0);
    each_place(acc, [&](int place, float4& sums) {
        if (place / SHARE != rank) return;
        auto of = [&](u32 r) {
            return r == rank ? sums : load_shared_vector(received.at(r, rank, place - received.first));
        };
        float4 total = of(0);
#pragma unroll
        for (u32 r = 1; r < CLUSTER_SIZE; ++r) total = plus(total, of(r));
        if constexpr (SLICES == 1) target.store(place, total, epilogue);
        else __stcg(slices + split / CLUSTER_SIZE * SLICE + place, total);
    });
    if constexpr (SLICES > 1)
        if (is_last<SLICES>(counters + rank))
            for (u32 place = received.first + threadIdx.x; place < received.end; place += THREADS)
                target.store(place, over_slices<16>(slices, place), epilogue);
}

// The blocks of a tile are a whole row of tiles apart, except those of a cluster.
// "1": the ring, not registers, decides how many blocks share a multiprocessor, so none need be saved by spilling.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
#if $CLUSTER_SIZE > 1
__cluster_dims__(CLUSTER_SIZE, 1, 1)
#endif
gemm(const In* A, const In* B, Out* C, i64 M, i64 N, i64 K, i64 lda, i64 ldb, i64 ldc, float4* partials,
     u32* counters, Epilogue epilogue) {
    extern __shared__ __align__(128) unsigned char shared_bytes[];
    const u32 shared = (u32)__cvta_generic_to_shared(shared_bytes);
    const Received received(shared);
    if constexpr (CLUSTER_SIZE > 1) received.expect();

    const u32 tiles = gridDim.x / SPLIT_K, tile = blockIdx.x / CLUSTER_SIZE % tiles;
    const u32 split = blockIdx.x / CLUSTER_SIZE / tiles * CLUSTER_SIZE + blockIdx.x % CLUSTER_SIZE;
    const Target target(C, ldc, M, N, tile);
    const i64 slabs = (K + BK - 1) / BK;
    const i64 k0 = slabs * split / SPLIT_K * BK, k1 = min(slabs * (split + 1) / SPLIT_K * BK, K);

    const int n = threadIdx.x % ROW_THREADS / 32 * WN;
    const In* a = A + target.m0 * lda + k0;
    const In* b = B + (B_NT ? target.n0 * ldb + k0 : k0 * ldb + target.n0);
    Sums acc = {};
    if (lda % CHUNK == 0 && ldb % CHUNK == 0)
        main_loop<true>(acc, shared, a, b, k1 - k0, lda, ldb, target.rows, target.cols, n);
    else
        main_loop<false>(acc, shared, a, b, k1 - k0, lda, ldb, target.rows, target.cols, n);

    if constexpr (K_WARPS > 1 && SPLIT_K > 1) add_rows(acc, shared);

    float4* slices = partials + (i64)tile * SLICES * SLICE;
    auto store = [&](int place, float4& sums) { target.store(place, sums, epilogue); };
    if constexpr (SPLIT_K == 1) {
        store_tile(acc, shared, target, epilogue);
    } else if constexpr (REDUCE == SERIAL) {
        if (add_in_turn(acc, slices, counters + tile, split)) each_place(acc, store);
    } else if constexpr (REDUCE == ATOMIC) {
        each_place(acc, [&](int place, float4& sums) { atomic_add(slices + place, sums); });
        if (!is_last<SPLIT_K>(counters + tile)) return;
        each_place(acc, [&](int place, float4& sums) { sums = __ldcg(slices + place); });
        each_place(acc, [&](int place, float4&) { __stcg(slices + place, float4{}); });  // for the next launch
        each_place(acc, store);
    } else if constexpr (REDUCE == CLUSTER) {
        add_in_cluster(acc, received, slices, counters + tile * CLUSTER_SIZE, split, target, epilogue);
    } else {
        each_place(acc, [&](int place, float4& sums) { __stcg(slices + split * SLICE + place, sums); });
        if constexpr (REDUCE == WORKSPACE) return;
        if (!is_last<SPLIT_K>(counters + tile)) return;
        each_place(acc, [&](int place, float4& sums) { sums = over_slices<8>(slices, place); });
        each_place(acc, store);
    }
}

// The second pass of REDUCE=workspace: one thread to a place.
extern "C" __global__ void __launch_bounds__(ROW_THREADS)
add_slices(Out* C, i64 M, i64 N, i64 ldc, const float4* partials, Epilogue epilogue) {
    constexpr u32 PIECES = SLICE / ROW_THREADS;
    const u32 tile = blockIdx.x / PIECES, place = blockIdx.x % PIECES * ROW_THREADS + threadIdx.x;
    const Target target(C, ldc, M, N, tile);
    target.store(place, over_slices<32>(partials + (i64)tile * SLICES * SLICE, place), epilogue);
}
