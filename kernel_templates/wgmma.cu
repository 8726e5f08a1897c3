// /// gemmsweep
// summary   = "Hopper: a producer warpgroup keeps TMA loads in flight, consumer warpgroups multiply with wgmma."
// backend   = "cuda"
// arch      = "sm_90a"
// dtypes    = ["bf16", "fp16", "tf32"]
// layouts   = ["nn", "nt"]
// [parameters]
// BM = { default = 128, values = [64, 128, 192, 256, 320, 384], meaning = "rows of C per block tile" }
// BN = { default = 256, values = [64, 96, 104, 128, 160, 192, 208, 256], meaning = "columns of C per block tile" }
// BK = { default = 64, values = [64, 128], meaning = "K depth of a stage in elements of 2 bytes; tf32 has half of it" }
// STAGES = { default = 4, values = [1, 2, 3, 4, 5, 6, 7, 8], meaning = "stages in the ring of shared memory" }
// CONSUMERS = { default = 2, values = [1, 2, 3], meaning = "warpgroups that multiply" }
// SCHEDULE = { default = "cooperative", values = ["cooperative", "pingpong"], meaning = "share a tile, or take turns" }
// CONSUMER_SPLIT = { default = "m", values = ["m", "n"], meaning = "the side of a shared tile that is divided" }
// CLUSTER_M = { default = 2, values = [1, 2, 4], meaning = "CTAs, one below the other, that share their loads of B" }
// CLUSTER_N = { default = 1, values = [1, 2, 4], meaning = "CTAs, side by side, that share their loads of A" }
// MMA_INFLIGHT = { default = 1, values = [0, 1], meaning = "stages multiplied while the next is awaited" }
// REG_PRODUCER = { default = 40, values = [24, 32, 40, 48, 56], meaning = "registers of a producer thread" }
// REG_CONSUMER = { default = 232, values = [160, 208, 216, 224, 232, 240], meaning = "those of a consumer thread" }
// RASTER = { default = "m", values = ["m", "n"], meaning = "the side of C along which tiles are taken first" }
// GROUP_M = { default = 8, values = [1, 2, 4, 8, 16], meaning = "cluster tiles along RASTER before a step across" }
// STORE = { default = "tma", values = ["direct", "tma"], meaning = "registers to C, or through shared memory" }
// PERSISTENT = { default = 1, values = [0, 1], meaning = "1: as many CTAs as run at once, each for many tiles" }
// [derived]
// DEPTH = "floor_div(2 * BK, sizeof_in)"
// M_SHARES = "1 + (CONSUMERS - 1) * (1 - SCHEDULE) * (1 - CONSUMER_SPLIT)"
// N_SHARES = "1 + (CONSUMERS - 1) * (1 - SCHEDULE) * CONSUMER_SPLIT"
// WM = "floor_div(BM, M_SHARES)"
// WN = "floor_div(BN, N_SHARES)"
// CLUSTER = "CLUSTER_M * CLUSTER_N"
// THREADS = "128 * (1 + CONSUMERS)"
// CTAS_PER_SM = "max(1, 3 - CONSUMERS)"
// ENTRY_REGS = "8 * floor_div(8192, THREADS * CTAS_PER_SM)"
// C_ROW = "128 - 64 * min(1, WN * sizeof_out % 128)"
// C_BYTES = "STORE * CONSUMERS * 2 * 64 * C_ROW"
// STAGE_BYTES = "(BM + BN) * 2 * BK"
// SMEM_BYTES = "1024 + C_BYTES + STAGES * (STAGE_BYTES + 16)"
// TILE_CTAS = "ceil_div(M, BM * CLUSTER_M) * ceil_div(N, BN * CLUSTER_N) * CLUSTER"
// RESIDENT_CTAS = "max(1, min(CTAS_PER_SM, floor_div(max_smem_bytes + 1024, SMEM_BYTES + 1024))) * sm_count"
// [[constraints]]
// expr = "is_tf32 == 0 or is_nt == 1"
// why  = "wgmma reads B across its rows only for 2-byte elements: tf32 takes layout nt here, mma takes nn"
// [[constraints]]
// expr = "lda * sizeof_in % 16 == 0"
// why  = "TMA needs rows of A that start at multiples of 16 bytes; mma takes any lda"
// [[constraints]]
// expr = "ldb * sizeof_in % 16 == 0"
// why  = "TMA needs rows of B that start at multiples of 16 bytes; mma takes any ldb"
// [[constraints]]
// expr = "ldc * sizeof_out % 16 == 0"
// why  = "the tensor map of C, made for either STORE, needs rows at multiples of 16 bytes; mma takes any ldc"
// [[constraints]]
// expr = "max(M, max(N, K)) < 2147400000"
// why  = "TMA counts rows and columns with 31 bits"
// [[constraints]]
// expr = "CONSUMERS >= 1"
// why  = "somebody has to multiply"
// [[constraints]]
// expr = "SCHEDULE == cooperative or CONSUMERS == 2"
// why  = "pingpong is a game for two consumers"
// [[constraints]]
// expr = "SCHEDULE == cooperative or PERSISTENT == 1"
// why  = "pingpong needs a next tile, which only a persistent CTA has"
// [[constraints]]
// expr = "SCHEDULE == cooperative or CONSUMER_SPLIT == m"
// why  = "with pingpong a consumer has the whole tile: there is nothing to split"
// [[constraints]]
// expr = "BM % (64 * M_SHARES) == 0"
// why  = "wgmma takes 64 rows: each consumer needs a multiple of that"
// [[constraints]]
// expr = "BN % (8 * N_SHARES) == 0"
// why  = "wgmma takes columns by eight: each consumer needs a multiple of that"
// [[constraints]]
// expr = "is_nt == 1 or BN % (64 * N_SHARES) == 0"
// why  = "layout nn keeps B in panels of 64 columns: each consumer needs whole panels"
// [[constraints]]
// expr = "WN <= 256"
// why  = "wgmma takes at most 256 columns"
// [[constraints]]
// expr = "BK % 64 == 0"
// why  = "a swizzled row of shared memory is 128 bytes of K"
// [[constraints]]
// expr = "8 % CLUSTER == 0"
// why  = "a cluster has 1, 2, 4 or 8 CTAs"
// [[constraints]]
// expr = "PERSISTENT == 0 or CLUSTER <= 2"
// why  = "chips differ in how many larger clusters run at once: those of a persistent grid left over would run alone"
// [[constraints]]
// expr = "BM % (8 * CLUSTER_N) == 0"
// why  = "each CTA that shares A loads its part, in groups of eight rows (the period of the swizzle)"
// [[constraints]]
// expr = "is_nt == 0 or BN % (8 * CLUSTER_M) == 0"
// why  = "each CTA that shares B loads its part, in groups of eight rows (the period of the swizzle)"
// [[constraints]]
// expr = "is_nt == 1 or BK % (8 * CLUSTER_M) == 0"
// why  = "each CTA that shares B loads its part, in groups of eight rows (the period of the swizzle)"
// [[constraints]]
// expr = "REG_PRODUCER % 8 + REG_CONSUMER % 8 == 0"
// why  = "setmaxnreg takes multiples of 8"
// [[constraints]]
// expr = "REG_PRODUCER >= 24 and REG_PRODUCER <= ENTRY_REGS"
// why  = "the producer gives registers away: from those at entry down to 24 at the least"
// [[constraints]]
// expr = "REG_CONSUMER >= ENTRY_REGS"
// why  = "consumers take registers: they cannot have fewer than at entry"
// [[constraints]]
// expr = "REG_PRODUCER + CONSUMERS * REG_CONSUMER <= (1 + CONSUMERS) * ENTRY_REGS"
// why  = "a CTA has the registers it was launched with; consumers that ask for more wait for ever"
// [[constraints]]
// expr = "floor_div(WM * WN, 128) + 32 <= REG_CONSUMER"
// why  = "the accumulators and 32 more must fit the registers of a consumer: else its wgmmas run one by one"
// [[constraints]]
// expr = "floor_div(WN, 2) + 26 <= ENTRY_REGS"
// why  = "the compiler wants one wgmma and 26 more to fit the registers at entry"
// [[constraints]]
// expr = "MMA_INFLIGHT <= 1"
// why  = "a stage is handed back at most one stage late"
// [[constraints]]
// expr = "STAGES > MMA_INFLIGHT"
// why  = "a consumer that keeps a stage while it awaits the next needs two: with one it would wait for ever"
// [[constraints]]
// expr = "STORE == direct or WN * sizeof_out % 64 == 0"
// why  = "C leaves shared memory in boxes of 64 or 128 bytes"
// [[constraints]]
// expr = "SMEM_BYTES <= max_smem_bytes"
// why  = "the stages and the store's buffers must fit the shared memory of a block"
// [[tensor_map]]
// name = "A_MAP"
// operand = "A"
// box = ["floor_div(128, sizeof_in)", "floor_div(BM, CLUSTER_N)"]
// swizzle = "128"
// promotion = "256"
// [[tensor_map]]
// name = "B_MAP"
// operand = "B"
// box = ["floor_div(128, sizeof_in)", "floor_div(is_nt * BN + (1 - is_nt) * DEPTH, CLUSTER_M)"]
// swizzle = "128"
// promotion = "256"
// [[tensor_map]]
// name = "C_MAP"
// operand = "C"
// box = ["floor_div(C_ROW, sizeof_out)", "64"]
// swizzle = "C_ROW"
// [launch]
// args  = [
//   "tensor_map:A_MAP", "tensor_map:B_MAP", "tensor_map:C_MAP", "C", "i64:M", "i64:N", "i64:K", "i64:ldc", "epilogue",
// ]
// grid  = ["min(TILE_CTAS, RESIDENT_CTAS - RESIDENT_CTAS % CLUSTER + (1 - PERSISTENT) * TILE_CTAS)", "1", "1"]
// block = "THREADS"
// smem_bytes = "SMEM_BYTES"
// [account]
// unit = "tensor"
// accumulators = "floor_div(WM * WN, 128)"
// stage_bytes = "STAGE_BYTES"
// ///
//
// A CTA is one warpgroup that loads and CONSUMERS that multiply; between them lies a ring of STAGES. `full` barriers
// say that TMA has filled a stage, `empty` barriers that every consumer of the cluster is done with it. CTAs of a
// cluster whose tiles lie in the same columns of C need the same B: each loads a part of it for all; likewise A along
// the rows. Tiles at the edges read zeros beyond the matrices. In shared memory a row has 128 bytes, swizzled; what is
// deeper or wider lies in panels, one after the other. With pingpong, consumers take turns at whole tiles: one stores
// while the other multiplies. tf32 is truncated by the tensor cores, not rounded: nothing passes through registers on
// the way.
#include "epilogue.cuh"
#include "hopper.cuh"

typedef $IN In;
typedef $OUT Out;
typedef $EPILOGUE Ops;

constexpr int BM = $BM;
constexpr int BN = $BN;
constexpr int BK = $BK;
constexpr int STAGES = $STAGES;
constexpr int CONSUMERS = $CONSUMERS;
constexpr bool PINGPONG = $SCHEDULE;
constexpr bool SPLIT_N = $CONSUMER_SPLIT;
constexpr int CLUSTER_M = $CLUSTER_M;
constexpr int CLUSTER_N = $CLUSTER_N;
constexpr int MMA_INFLIGHT = $MMA_INFLIGHT;
constexpr int REG_PRODUCER = $REG_PRODUCER;
constexpr int REG_CONSUMER = $REG_CONSUMER;
constexpr bool RASTER_N = $RASTER;
constexpr int GROUP_M = $GROUP_M;
constexpr bool STORE_TMA = $STORE;
constexpr bool PERSISTENT = $PERSISTENT;
constexpr bool B_NT = $B_NT;
constexpr int DEPTH = $DEPTH;  // of a stage, in elements of K
constexpr int WM = $WM;        // rows of C per consumer
#define WN $WN                 // columns of C per consumer: the N of its wgmma, spelled into the instruction's name
constexpr int THREADS = $THREADS;
constexpr int CTAS_PER_SM = $CTAS_PER_SM;
constexpr int C_ROW = $C_ROW;  // bytes of a row of a store's box
constexpr int C_BYTES = $C_BYTES;
constexpr int STAGE_BYTES = $STAGE_BYTES;
$STATIC_ASSERTS

constexpr int ROW = 128;                 // bytes of a row in shared memory
constexpr int PANEL = ROW / sizeof(In);  // elements in it
constexpr int K_PANELS = DEPTH / PANEL;
constexpr int K_STEPS = 2 * BK / 32;  // wgmma takes 32 bytes of K
constexpr int A_BYTES = BM * ROW * K_PANELS;
constexpr int M_TILES = WM / 64;
constexpr int CLUSTER = CLUSTER_M * CLUSTER_N;
constexpr int SHARING = PINGPONG ? 1 : CONSUMERS;  // consumers of a stage
constexpr int TURNS = PINGPONG ? CONSUMERS : 1;    // a consumer has every tile, or one in so many
constexpr int C_COLS = C_ROW / sizeof(Out);
constexpr int C_BOX = 64 * C_ROW;
typedef float Accumulators[M_TILES][WN / 2];

// Named barriers; 0 is __syncthreads.
__device__ __forceinline__ u32 stores_barrier(int consumer) { return 1 + consumer; }
__device__ __forceinline__ u32 turn_barrier(int consumer) { return 1 + CONSUMERS + consumer; }

// A position in the ring; the parity is that of the phase of `full` which fills it.
struct Ring {
    u32 base, barriers;  // shared memory: the first stage, the first barrier
    u32 stage, parity;

    __device__ __forceinline__ void advance() {
        const bool wraps = ++stage == STAGES;
        stage = wraps ? 0 : stage;
        parity ^= wraps;
    }
    __device__ __forceinline__ void skip(u32 blocks) {
        const u32 to = stage + blocks;
        stage = to % STAGES;
        parity ^= to / STAGES & 1;
    }
    __device__ __forceinline__ u32 a_tile() const { return base + stage * STAGE_BYTES; }
    __device__ __forceinline__ u32 b_tile() const { return a_tile() + A_BYTES; }
    __device__ __forceinline__ u32 full() const { return barriers + stage * 8; }
    __device__ __forceinline__ u32 empty() const { return full() + STAGES * 8; }
    __device__ __forceinline__ u32 empty_before() const { return empty() + (stage ? -8 : STAGES * 8 - 8); }
};

// The tiles of C that this CTA computes. Clusters take cluster tiles GROUP_M along one side of C before they step along
// the other: those in flight share A and B in L2.
struct Tiles {
    u32 rows, cols;      // cluster tiles along M and N
    u32 rank_m, rank_n;  // of this CTA in its cluster
    u32 first, count, stride;

    __device__ __forceinline__ Tiles(i64 M, i64 N) {
        const u32 rank = CLUSTER > 1 ? cluster_rank() : 0;
        rank_m = rank % CLUSTER_M;
        rank_n = rank / CLUSTER_M;
        rows = (u32)((M + BM * CLUSTER_M - 1) / (BM * CLUSTER_M));
        cols = (u32)((N + BN * CLUSTER_N - 1) / (BN * CLUSTER_N));
        first = blockIdx.x / CLUSTER;
        count = PERSISTENT ? rows * cols : first + 1;
        stride = gridDim.x / CLUSTER;
    }
    // The first row and column of C in tile `index`.
    __device__ __forceinline__ void locate(u32 index, int& m0, int& n0) const {
        const u32 along = RASTER_N ? cols : rows, across = RASTER_N ? rows : cols;
        const u32 group = min((u32)GROUP_M, along);
        const u32 start = index / (group * across) * group, in_group = index % (group * across);
        const u32 width = min(group, along - start);
        const u32 x = start + in_group % width, y = in_group / width;
        m0 = ((RASTER_N ? y : x) * CLUSTER_M + rank_m) * BM;
        n0 = ((RASTER_N ? x : y) * CLUSTER_N + rank_n) * BN;
    }
};

// Loads ROWS rows of a panel from row y on, or one part of them for all SHARERS, which load the others.
template <int ROWS, int SHARERS>
__device__ __forceinline__ void load_panel(u32 to, const TensorMap& map, int x, int y, u32 barrier, u32 part,
                                           u32 ranks) {
    constexpr int PART = ROWS / SHARERS;
    if constexpr (SHARERS == 1) tma_load(to, map, x, y, barrier);
    else tma_multicast(to + part * PART * ROW, map, x, y + part * PART, barrier, ranks);
}

__device__ __forceinline__ void produce(Ring ring, const Tiles& tiles, const TensorMap& A, const TensorMap& B,
                                        u32 k_blocks) {
    // CTA (m, n) of the cluster has rank n * CLUSTER_M + m, the number of its bit in a multicast.
    constexpr u32 COLUMN = (1 << CLUSTER_M) - 1, ROW_OF_CTAS = ((1 << CLUSTER) - 1) / COLUMN;
    const u32 same_cols = COLUMN << tiles.rank_n * CLUSTER_M, same_rows = ROW_OF_CTAS << tiles.rank_m;
    for (u32 tile = tiles.first; tile < tiles.count; tile += tiles.stride) {
        int m0, n0;
        tiles.locate(tile, m0, n0);
#pragma unroll 1
        for (u32 block = 0; block < k_blocks; ++block) {
            const int k = block * DEPTH;
            mbarrier_wait(ring.empty(), ring.parity ^ 1);
            mbarrier_arrive_expecting(ring.full(), STAGE_BYTES);
#pragma unroll
            for (int p = 0; p < K_PANELS; ++p)
                load_panel<BM, CLUSTER_N>(ring.a_tile() + p * BM * ROW, A, k + p * PANEL, m0, ring.full(),
                                          tiles.rank_n, same_rows);
            if constexpr (B_NT) {
#pragma unroll
                for (int p = 0; p < K_PANELS; ++p)
                    load_panel<BN, CLUSTER_M>(ring.b_tile() + p * BN * ROW, B, k + p * PANEL, n0, ring.full(),
                                              tiles.rank_m, same_cols);
            } else {
#pragma unroll
                for (int p = 0; p < BN / PANEL; ++p)
                    load_panel<DEPTH, CLUSTER_M>(ring.b_tile() + p * DEPTH * ROW, B, n0 + p * PANEL, k, ring.full(),
                                                 tiles.rank_m, same_cols);
            }
            ring.advance();
        }
    }
}

__device__ __forceinline__ void wgmma(float (&d)[WN / 2], u64 a, u64 b, u32 accumulate, bf16) {
    if constexpr (B_NT) WGMMA(WN, "k16.f32.bf16.bf16", ", 1, 1, 0, 0");
    else WGMMA(WN, "k16.f32.bf16.bf16", ", 1, 1, 0, 1");
}
__device__ __forceinline__ void wgmma(float (&d)[WN / 2], u64 a, u64 b, u32 accumulate, fp16) {
    if constexpr (B_NT) WGMMA(WN, "k16.f32.f16.f16", ", 1, 1, 0, 0");
    else WGMMA(WN, "k16.f32.f16.f16", ", 1, 1, 0, 1");
}
__device__ __forceinline__ void wgmma(float (&d)[WN / 2], u64 a, u64 b, u32 accumulate, float) {
    WGMMA(WN, "k8.f32.tf32.tf32", ", 1, 1");
}

// Tells all CTAs of the cluster that one consumer is done with a stage.
__device__ __forceinline__ void release(u32 empty) {
    const u32 lane = threadIdx.x % 128;
    if (CLUSTER == 1 && lane == 0) mbarrier_arrive(empty);
    if (CLUSTER > 1 && lane < CLUSTER) mbarrier_arrive_at(empty, lane);
}

// m, n: the first row and column of the consumer's share of the tile.
__device__ __forceinline__ void multiply(Accumulators& acc, Ring& ring, u32 k_blocks, int m, int n) {
    constexpr int B_PANEL = B_NT ? BN * ROW : DEPTH * ROW;
    for (u32 block = 0; block < k_blocks; ++block) {
        mbarrier_wait(ring.full(), ring.parity);
        const u64 a = swizzled_128(ring.a_tile() + m * ROW, 0);
        const u64 b = swizzled_128(ring.b_tile() + (B_NT ? n * ROW : n / PANEL * B_PANEL), B_NT ? 0 : B_PANEL);
        wgmma_fence();
#pragma unroll
        for (int step = 0; step < K_STEPS; ++step) {
            const int a_offset = step / 4 * BM * ROW + step % 4 * 32;
            const int b_offset = B_NT ? step / 4 * B_PANEL + step % 4 * 32 : step * 16 * ROW;
#pragma unroll
            for (int i = 0; i < M_TILES; ++i)
                wgmma(acc[i], a + (a_offset + i * 64 * ROW) / 16, b + b_offset / 16, step || block, In());
        }
        wgmma_commit();
        wgmma_wait<MMA_INFLIGHT>();
        if (MMA_INFLIGHT == 0) release(ring.empty());
        else if (block) release(ring.empty_before());
        ring.advance();
    }
    wgmma_wait<0>();
    if (MMA_INFLIGHT) release(ring.empty_before());
#pragma unroll
    for (int i = 0; i < M_TILES; ++i) wgmma_settled(acc[i]);
}

// Two neighbouring elements of C.
struct alignas(8) Floats {
    float x, y;
};
__device__ __forceinline__ Floats pair_of(float x, float y, float) { return {x, y}; }
__device__ __forceinline__ u32 pair_of(float x, float y, fp16) {
    u32 pair;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(y), "f"(x));
    return pair;
}
__device__ __forceinline__ u32 pair_of(float x, float y, bf16) {
    u32 pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(y), "f"(x));
    return pair;
}
typedef decltype(pair_of(0, 0, Out())) Pair;

// Where accumulators go. Of 64 x WN of them a warp has 16 rows and a thread WN / 4 pairs of neighbours: pair 2j in row
// lane / 4 at columns 8j + lane % 4 * 2, pair 2j + 1 eight rows below.
struct Destination {
    const TensorMap& map;
    Out* C;
    i64 M, N, ldc;
    Epilogue epilogue;
};

// WHOLE: the tile lies within C, and beta is 0. Otherwise what lies outside of C is not read.
template <bool WHOLE> __device__ __forceinline__ float finished(float acc, const Destination& to, i64 row, i64 col) {
    if constexpr (WHOLE) {
        Epilogue epilogue = to.epilogue;
        epilogue.beta = 0.0f;
        return finish<Ops, Out>(acc, nullptr, epilogue, row, col);
    } else {
        return row < to.M && col < to.N ? finish<Ops>(acc, to.C + row * to.ldc + col, to.epilogue, row, col) : 0.0f;
    }
}
// row, col: of pair 0.
template <bool WHOLE>
__device__ __forceinline__ Pair finished_pair(const float (&acc)[WN / 2], int pair, const Destination& to, i64 row,
                                              i64 col) {
    row += pair % 2 * 8;
    col += pair / 2 * 8;
    return pair_of(finished<WHOLE>(acc[2 * pair], to, row, col), finished<WHOLE>(acc[2 * pair + 1], to, row, col + 1),
                   Out());
}

// A box in shared memory has rows of C_ROW bytes, swizzled as TMA expects; a warp fills 16 of them from `row` on.
__device__ __forceinline__ u32 box_chunk(u32 box, u32 row, u32 chunk) {
    return box + row * C_ROW + (C_ROW == 128 ? chunk ^ row % 8 : chunk ^ row / 2 % 4) * 16;
}
__device__ __forceinline__ void fill_box(u32 box, u32 row, const u32 (&pairs)[C_COLS / 4]) {
    const u32 lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < C_COLS / 4; i += 4)
        stmatrix(box_chunk(box, row + lane % 16, i / 2 + lane / 16), pairs[i], pairs[i + 1], pairs[i + 2],
                 pairs[i + 3]);
}
__device__ __forceinline__ void fill_box(u32 box, u32 row, const Floats (&pairs)[C_COLS / 4]) {
    const u32 lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < C_COLS / 4; ++i)
        store_shared(box_chunk(box, row + lane / 4 + i % 2 * 8, i / 2 * 2 + lane % 4 / 2) + lane % 2 * 8, pairs[i].x,
                     pairs[i].y);
}

// Through two boxes of shared memory in turn: while TMA empties one, the other is filled.
template <bool WHOLE>
__device__ __forceinline__ void store_by_tma(const Accumulators& acc, const Destination& to, u32 boxes, u32& turn,
                                             int consumer, int row0, int col0) {
    const u32 warp_row = threadIdx.x % 128 / 32 * 16;
    const i64 row = row0 + warp_row + threadIdx.x % 32 / 4, col = col0 + threadIdx.x % 4 * 2;
#pragma unroll
    for (int i = 0; i < M_TILES; ++i)
#pragma unroll
        for (int c = 0; c < WN; c += C_COLS) {
            const u32 box = boxes + turn * C_BOX;
            Pair pairs[C_COLS / 4];
#pragma unroll
            for (int j = 0; j < C_COLS / 4; ++j)
                pairs[j] = finished_pair<WHOLE>(acc[i], c / 4 + j, to, row + 64 * i, col);
            fill_box(box, warp_row, pairs);
            fence_for_tma();
            // Past the barrier the other box is filled again: the store before must have read it.
            if (threadIdx.x % 128 == 0) tma_stores_have_read();
            named_sync(stores_barrier(consumer), 128);
            if (threadIdx.x % 128 == 0) tma_store(to.map, col0 + c, row0 + 64 * i, box);
            turn ^= 1;
        }
}

template <bool WHOLE>
__device__ __forceinline__ void store_directly(const Accumulators& acc, const Destination& to, int row0, int col0) {
    const i64 row = row0 + threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4, col = col0 + threadIdx.x % 4 * 2;
#pragma unroll
    for (int i = 0; i < M_TILES; ++i)
#pragma unroll
        for (int j = 0; j < WN / 4; ++j) {
            const i64 r = row + 64 * i + j % 2 * 8, c = col + j / 2 * 8;
            Out* at = to.C + r * to.ldc + c;
            if constexpr (WHOLE) {
                *reinterpret_cast<Pair*>(at) = finished_pair<true>(acc[i], j, to, row + 64 * i, col);
            } else {
                if (r < to.M && c < to.N) at[0] = from_float<Out>(finished<false>(acc[i][2 * j], to, r, c));
                if (r < to.M && c + 1 < to.N) at[1] = from_float<Out>(finished<false>(acc[i][2 * j + 1], to, r, c + 1));
            }
        }
}

__device__ __forceinline__ void consume(Ring ring, const Tiles& tiles, const Destination& to, u32 boxes, u32 k_blocks,
                                        int consumer) {
    const int m = PINGPONG || SPLIT_N ? 0 : consumer * WM, n = !PINGPONG && SPLIT_N ? consumer * WN : 0;
    u32 turn = 0;
    if (PINGPONG) {
        ring.skip(consumer * k_blocks);
        if (consumer == 1) named_arrive(turn_barrier(0), 256);
    }
    for (u32 tile = tiles.first + (PINGPONG ? consumer * tiles.stride : 0); tile < tiles.count;
         tile += TURNS * tiles.stride) {
        Accumulators acc;
        if (PINGPONG) named_sync(turn_barrier(consumer), 256);
        multiply(acc, ring, k_blocks, m, n);
        if (PINGPONG) {
            if (tile + tiles.stride < tiles.count) named_arrive(turn_barrier(1 - consumer), 256);
            ring.skip(k_blocks);
        }
        int m0, n0;
        tiles.locate(tile, m0, n0);
        const bool inside = m0 + BM <= to.M && n0 + BN <= to.N, whole = inside && to.epilogue.beta == 0.0f;
        if constexpr (STORE_TMA) {
            if (whole) store_by_tma<true>(acc, to, boxes, turn, consumer, m0 + m, n0 + n);
            else store_by_tma<false>(acc, to, boxes, turn, consumer, m0 + m, n0 + n);
        } else {
            if (whole && to.ldc % 2 == 0) store_directly<true>(acc, to, m0 + m, n0 + n);
            else store_directly<false>(acc, to, m0 + m, n0 + n);
        }
    }
    if (STORE_TMA && threadIdx.x % 128 == 0) tma_stores_have_read();
}

extern "C" __global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(THREADS, CTAS_PER_SM)
gemm(const __grid_constant__ TensorMap A, const __grid_constant__ TensorMap B, const __grid_constant__ TensorMap C_map,
     Out* C, i64 M, i64 N, i64 K, i64 ldc, const __grid_constant__ Epilogue epilogue) {
    // From a multiple of 1024, the period of the swizzle: boxes for C, the ring, and its barriers, full then empty.
    extern __shared__ unsigned char shared_bytes[];
    const u32 boxes = ((u32)__cvta_generic_to_shared(shared_bytes) + 1023) / 1024 * 1024;
    const u32 base = boxes + C_BYTES;
    const Ring ring = {base, base + STAGES * STAGE_BYTES, 0, 0};
    if (threadIdx.x == 0) {
        prefetch(A);
        prefetch(B);
        for (u32 i = 0; i < STAGES; ++i) {
            mbarrier_init(ring.barriers + i * 8, 1);
            mbarrier_init(ring.barriers + (STAGES + i) * 8, SHARING * CLUSTER);
        }
        mbarrier_init_fence();
    }
    if (CLUSTER > 1) cluster_sync();
    else __syncthreads();

    const Tiles tiles(M, N);
    const u32 k_blocks = (u32)((K + DEPTH - 1) / DEPTH);
    const int warpgroup = threadIdx.x / 128;
    if (warpgroup == 0) {
        lower_registers<REG_PRODUCER>();
        if (threadIdx.x == 0) produce(ring, tiles, A, B, k_blocks);
        __syncwarp();
    } else {
        raise_registers<REG_CONSUMER>();
        const Destination to = {C_map, C, M, N, ldc, epilogue};
        consume(ring, tiles, to, boxes + (warpgroup - 1) * 2 * C_BOX, k_blocks, warpgroup - 1);
    }
    if (CLUSTER > 1) cluster_sync();  // peers still arrive at barriers here, or read what was sent to them
}
