// /// gemmsweep
// summary   = "Hopper: a producer warpgroup keeps TMA loads in flight, consumer warpgroups multiply with wgmma."
// backend   = "cuda"
// arch      = "sm_90a"
// dtypes    = ["bf16", "fp16", "tf32"]
// layouts   = ["nn", "nt"]
// [parameters]
// BM = { default = 128, values = [64, 128, 192, 256, 320, 384], meaning = "rows of C per block tile" }
// BN = { default = 128, values = [32, 64, 96, 104, 112, 128, 160, 192, 208, 256], meaning = "columns per block tile" }
// BK = { default = 64, values = [64, 128], meaning = "K depth of a stage in elements of 2 bytes; tf32 has half of it" }
// STAGES = { default = 6, values = [1, 2, 3, 4, 5, 6, 7, 8], meaning = "stages in the ring of shared memory" }
// CONSUMERS = { default = 2, values = [1, 2, 3], meaning = "warpgroups that multiply" }
// SCHEDULE = { default = "pingpong", values = ["cooperative", "pingpong"], meaning = "share a tile, or take turns" }
// CONSUMER_SPLIT = { default = "m", values = ["m", "n"], meaning = "the side of a shared tile that is divided" }
// CLUSTER_M = { default = 2, values = [1, 2, 4], meaning = "CTAs, one below the other, that share their loads of B" }
// CLUSTER_N = { default = 1, values = [1, 2, 4], meaning = "CTAs, side by side, that share their loads of A" }
// SPLIT_K = { default = 1, values = [1, 2], meaning = "CTAs of a cluster that divide K of one tile" }
// MMA_INFLIGHT = { default = 1, values = [0, 1], meaning = "stages multiplied while the next is awaited" }
// REG_PRODUCER = { default = 40, values = [24, 32, 40, 48, 56], meaning = "registers of a producer thread" }
// REG_CONSUMER = { default = 232, values = [160, 208, 216, 224, 232, 240], meaning = "those of a consumer thread" }
// RASTER = { default = "m", values = ["m", "n"], meaning = "the side of C along which tiles are taken first" }
// GROUP_M = { default = 8, values = [1, 2, 4, 8, 16], meaning = "cluster tiles along RASTER before a step across" }
// STORE = { default = "tma", values = ["direct", "tma", "rows"], meaning = "from registers, or boxes: TMA, warps" }
// L2_PROMOTION = { default = 128, values = [0, 64, 128, 256], meaning = "bytes that L2 fetches for a load, at least" }
// C_HINT = { default = "keep", values = ["keep", "evict_first"], meaning = "how L2 treats C when TMA has stored it" }
// PERSISTENT = { default = 1, values = [0, 1], meaning = "1: as many CTAs as run at once, each for many tiles" }
// STAGGER = { default = 0, values = [0, 1, 2, 3], meaning = "last stages of a tile that wait for the consumer before" }
// TAIL = { default = 2, values = [1, 2, 4, 8], meaning = "parts along K, at most, of a tile of the last partial wave" }
// EDGE = { default = "tma", values = ["pad", "tma"], meaning = "A and B as they are, or copied to whole lines first" }
// [derived]
// PAD_BYTES = "16384"
// DEPTH = "floor_div(2 * BK, sizeof_in)"
// M_SHARES = "1 + (CONSUMERS - 1) * (1 - SCHEDULE) * (1 - CONSUMER_SPLIT)"
// N_SHARES = "1 + (CONSUMERS - 1) * (1 - SCHEDULE) * CONSUMER_SPLIT"
// WM = "floor_div(BM, M_SHARES)"
// WN = "floor_div(BN, N_SHARES)"
// CLUSTER = "CLUSTER_M * CLUSTER_N * SPLIT_K"
// THREADS = "128 * (1 + CONSUMERS)"
// CTAS_PER_SM = "max(1, 3 - CONSUMERS)"
// ENTRY_REGS = "8 * floor_div(8192, THREADS * CTAS_PER_SM)"
// C_ROW = "128 - 64 * min(1, WN * sizeof_out % 128)"
// C_BYTES = "min(1, STORE) * CONSUMERS * 2 * 64 * C_ROW"
// B_ROWS = "is_nt * N + (1 - is_nt) * K"
// B_COLS = "is_nt * K + (1 - is_nt) * N"
// PADDED_LDA = "ceil_div(K * sizeof_in, 128) * floor_div(128, sizeof_in)"
// PADDED_LDB = "ceil_div(B_COLS * sizeof_in, 128) * floor_div(128, sizeof_in)"
// STAGE_BYTES = "(BM + BN) * 2 * BK"
// SENT_BYTES = "(SPLIT_K - 1) * WM * WN * 4"
// SMEM_BYTES = "1024 + C_BYTES + SENT_BYTES + STAGES * (STAGE_BYTES + 16) + 8 * (SPLIT_K - 1)"
// TILE_CTAS = "ceil_div(M, BM * CLUSTER_M) * ceil_div(N, BN * CLUSTER_N) * CLUSTER"
// RESIDENT_CTAS = "max(1, min(CTAS_PER_SM, floor_div(max_smem_bytes + 1024, SMEM_BYTES + 1024))) * sm_count"
// PERSISTENT_CTAS = "RESIDENT_CTAS - RESIDENT_CTAS % CLUSTER"
// GRID = "min(TILE_CTAS * (1 + (TAIL - 1) * sm_count), PERSISTENT_CTAS + (1 - PERSISTENT) * TILE_CTAS)"
// [[constraints]]
// expr = "is_tf32 == 0 or is_nt == 1"
// why  = "wgmma reads B across its rows only for 2-byte elements: tf32 takes layout nt here, mma takes nn"
// [[constraints]]
// expr = "EDGE == pad or lda * sizeof_in % 16 == 0"
// why  = "TMA needs rows of A that start at multiples of 16 bytes: EDGE=pad makes a copy that has them"
// [[constraints]]
// expr = "EDGE == pad or ldb * sizeof_in % 16 == 0"
// why  = "TMA needs rows of B that start at multiples of 16 bytes: EDGE=pad makes a copy that has them"
// [[constraints]]
// expr = "STORE != tma or ldc * sizeof_out % 16 + N * sizeof_out % 16 == 0"
// why  = "TMA stores whole 16 bytes of a row, what follows C's last column too: STORE=rows and direct take any N and ldc"
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
// expr = "SPLIT_K == 1 or SPLIT_K == 2 and CONSUMERS == 2 and SCHEDULE == cooperative"
// why  = "each of two CTAs finishes the share of one of its two consumers"
// [[constraints]]
// expr = "SPLIT_K == 1 or PERSISTENT == 0"
// why  = "sums of one tile are sent while the next would be loaded: a CTA with SPLIT_K has one tile"
// [[constraints]]
// expr = "TAIL >= 1"
// why  = "a tile has at least one part"
// [[constraints]]
// expr = "TAIL == 1 or PERSISTENT == 1"
// why  = "a grid of one CTA per tile has no last wave to divide"
// [[constraints]]
// expr = "STAGGER == 0 or SCHEDULE == cooperative and CONSUMERS >= 2"
// why  = "only consumers that share a tile come to its end together"
// [[constraints]]
// expr = "STAGGER * (CONSUMERS - 1) + MMA_INFLIGHT <= STAGES"
// why  = "a consumer that waits keeps its stages from the one it waits for: with all of them, both wait for ever"
// [[constraints]]
// expr = "C_HINT == keep or STORE == tma"
// why  = "the hint goes with TMA's stores"
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
// why  = "C leaves shared memory in rows of 64 or 128 bytes"
// [[constraints]]
// expr = "SMEM_BYTES <= max_smem_bytes"
// why  = "the stages, the store's buffers and sums sent for SPLIT_K must fit the shared memory of a block"
// [[workspace]]
// name = "A_PADDED"
// bytes = "M * PADDED_LDA * sizeof_in"
// when = "EDGE == pad"
// [[workspace]]
// name = "B_PADDED"
// bytes = "B_ROWS * PADDED_LDB * sizeof_in"
// when = "EDGE == pad"
// [[workspace]]
// name = "PARTIAL_SUMS"
// bytes = "PERSISTENT_CTAS * BM * BN * 4"
// when = "TAIL > 1"
// [[workspace]]
// name = "PARTIAL_FLAGS"
// bytes = "PERSISTENT_CTAS * CONSUMERS * 4"
// zero = "once"
// when = "TAIL > 1"
// [[tensor_map]]
// name = "A_MAP"
// operand = "A"
// box = ["floor_div(128, sizeof_in)", "floor_div(BM, CLUSTER_N)"]
// swizzle = "128"
// promotion = "L2_PROMOTION"
// when = "EDGE == tma"
// [[tensor_map]]
// name = "B_MAP"
// operand = "B"
// box = ["floor_div(128, sizeof_in)", "floor_div(is_nt * BN + (1 - is_nt) * DEPTH, CLUSTER_M)"]
// swizzle = "128"
// promotion = "L2_PROMOTION"
// when = "EDGE == tma"
// [[tensor_map]]
// name = "A_PADDED_MAP"
// operand = "workspace:A_PADDED"
// extent = ["K", "M"]
// ld = "PADDED_LDA"
// box = ["floor_div(128, sizeof_in)", "floor_div(BM, CLUSTER_N)"]
// swizzle = "128"
// promotion = "L2_PROMOTION"
// when = "EDGE == pad"
// [[tensor_map]]
// name = "B_PADDED_MAP"
// operand = "workspace:B_PADDED"
// extent = ["B_COLS", "B_ROWS"]
// ld = "PADDED_LDB"
// box = ["floor_div(128, sizeof_in)", "floor_div(is_nt * BN + (1 - is_nt) * DEPTH, CLUSTER_M)"]
// swizzle = "128"
// promotion = "L2_PROMOTION"
// when = "EDGE == pad"
// [[tensor_map]]
// name = "C_MAP"
// operand = "C"
// box = ["floor_div(C_ROW, sizeof_out)", "16"]
// swizzle = "C_ROW"
// when = "STORE == tma"
// [[step]]
// kernel = "pad"
// args  = [
//   "workspace:A_PADDED", "A", "i64:M", "i64:K", "i64:lda", "i64:PADDED_LDA",
//   "workspace:B_PADDED", "B", "i64:B_ROWS", "i64:B_COLS", "i64:ldb", "i64:PADDED_LDB",
// ]
// grid  = ["ceil_div(M * PADDED_LDA * sizeof_in, PAD_BYTES) + ceil_div(B_ROWS * PADDED_LDB * sizeof_in, PAD_BYTES)"]
// block = ["256"]
// when = "EDGE == pad"
// [[step]]
// args  = [
//   "tensor_map:A_PADDED_MAP", "tensor_map:B_PADDED_MAP", "tensor_map:C_MAP", "C", "i64:M", "i64:N", "i64:K",
//   "i64:ldc", "workspace:PARTIAL_SUMS", "workspace:PARTIAL_FLAGS", "epilogue",
// ]
// grid  = ["GRID"]
// block = ["THREADS"]
// smem_bytes = "SMEM_BYTES"
// when = "EDGE == pad"
// [[step]]
// args  = [
//   "tensor_map:A_MAP", "tensor_map:B_MAP", "tensor_map:C_MAP", "C", "i64:M", "i64:N", "i64:K",
//   "i64:ldc", "workspace:PARTIAL_SUMS", "workspace:PARTIAL_FLAGS", "epilogue",
// ]
// grid  = ["GRID"]
// block = ["THREADS"]
// smem_bytes = "SMEM_BYTES"
// when = "EDGE == tma"
// [[start]]
// when = "M > 512"
// set = { SCHEDULE = "cooperative", BN = 256, STAGES = 4, STAGGER = 3 }
// [[start]]
// when = "M > 512"
// set = { SCHEDULE = "cooperative", BN = 256, STAGES = 4, STAGGER = 3, CLUSTER_M = 1, TAIL = 1 }
// [[start]]
// when = "M > 64 and M <= 1024"
// set = { SCHEDULE = "cooperative", CLUSTER_M = 1, TAIL = 1 }
// [[start]]
// when = "M > 64 and M <= 1024"
// set = { BM = 64, CONSUMERS = 1, SCHEDULE = "cooperative", CLUSTER_M = 1, STAGES = 8, TAIL = 1, REG_CONSUMER = 160 }
// [[start]]
// when = "M > 64 and M <= 1024 and (lda * sizeof_in % 128 > 0 or ldb * sizeof_in % 128 > 0)"
// set = { BM = 64, CONSUMERS = 1, SCHEDULE = "cooperative", STAGES = 8, TAIL = 1, REG_CONSUMER = 160, PERSISTENT = 0 }
// [[start]]
// when = "M <= 1024 and (lda * sizeof_in % 16 > 0 or ldb * sizeof_in % 16 > 0)"
// set = { BM = 64, CONSUMERS = 1, SCHEDULE = "cooperative", CLUSTER_M = 1, STAGES = 8, TAIL = 1, REG_CONSUMER = 160, EDGE = "pad", STORE = "rows" }
// [[start]]
// when = "M > 1024 and (lda * sizeof_in % 128 > 0 or ldb * sizeof_in % 128 > 0)"
// set = { EDGE = "pad", STORE = "rows", TAIL = 1 }
// [[start]]
// when = "M <= 64"
// set = { BM = 64, CONSUMERS = 1, SCHEDULE = "cooperative", CLUSTER_M = 1, STAGES = 8, TAIL = 1, BN = 32, BK = 128, REG_CONSUMER = 208, PERSISTENT = 0 }
// [[start]]
// when = "M <= 64"
// set = { BM = 64, BN = 64, BK = 128, STAGES = 5, CONSUMER_SPLIT = "n", SCHEDULE = "cooperative", CLUSTER_M = 1, SPLIT_K = 2, PERSISTENT = 0, TAIL = 1 }
// [account]
// tiles = "TILE_CTAS"
// unit = "tensor"
// accumulators = "floor_div(WM * WN, 128)"
// warp = "4 + 4 * (floor_div(row, WM) * N_SHARES + floor_div(column, WN)) + floor_div(row % 64, 16)"
// lane = "row % 8 * 4 + floor_div(column % 8, 2)"
// stage_bytes = "STAGE_BYTES"
// ///
//
// A CTA is one warpgroup that loads and CONSUMERS that multiply; between them lies a ring of STAGES. `full` barriers
// say that TMA has filled a stage, `empty` barriers that every consumer of the cluster is done with it. CTAs of a
// cluster whose tiles lie in the same columns of C need the same B: each loads a part of it for all; likewise A along
// the rows. Tiles at the edges read zeros beyond the matrices. In shared memory a row has 128 bytes, swizzled; what is
// deeper or wider lies in panels, one after the other. TMA rounds fp32 to tf32 on the way there.
//
// So that the tensor cores do not rest while tiles are stored: with pingpong, consumers take turns at whole tiles, one
// stores while the other multiplies; with STAGGER, those that share a tile finish it one after the other, each leaving
// its last stages to multiply while the one before stores. Where the tiles do not fill the last wave, TAIL divides its
// tiles along K among all CTAs; sums of the parts meet in global memory, added in one order always. Where there are few
// tiles, SPLIT_K gives each to two CTAs of a cluster, half of K each: larger tiles need fewer bytes of A and B. Each of
// them finishes the share of one consumer, with the sums that the other CTA's sends to its shared memory.
#include "epilogue.cuh"
#include "hopper.cuh"
#include "pad_copy.cuh"

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
constexpr int SPLIT_K = $SPLIT_K;
constexpr int MMA_INFLIGHT = $MMA_INFLIGHT;
constexpr int REG_PRODUCER = $REG_PRODUCER;
constexpr int REG_CONSUMER = $REG_CONSUMER;
constexpr bool RASTER_N = $RASTER;
constexpr int GROUP_M = $GROUP_M;
constexpr int STORE = $STORE;
#define C_EVICT_FIRST $C_HINT
constexpr bool PERSISTENT = $PERSISTENT;
constexpr u32 STAGGER = $STAGGER;
constexpr u32 TAIL = $TAIL;
#define EDGE_TMA $EDGE
constexpr bool B_NT = $B_NT;
constexpr int DEPTH = $DEPTH;  // of a stage, in elements of K
constexpr int WM = $WM;        // rows of C per consumer
#define WN $WN                 // columns of C per consumer: the N of its wgmma, spelled into the instruction's name
constexpr int THREADS = $THREADS;
constexpr int CTAS_PER_SM = $CTAS_PER_SM;
constexpr int C_ROW = $C_ROW;  // bytes of a row of a store's box
constexpr int C_BYTES = $C_BYTES;
constexpr int SENT_BYTES = $SENT_BYTES;
constexpr int STAGE_BYTES = $STAGE_BYTES;
$STATIC_ASSERTS
static_assert($PAD_BYTES == PAD_BLOCK_BYTES, "PAD_BYTES of the header is what a block of pad_copy.cuh writes");

constexpr int ROW = 128;                 // bytes of a row in shared memory
constexpr int PANEL = ROW / sizeof(In);  // elements in it
constexpr int K_PANELS = DEPTH / PANEL;
constexpr int K_STEPS = 2 * BK / 32;  // wgmma takes 32 bytes of K
constexpr int A_BYTES = BM * ROW * K_PANELS;
constexpr int M_TILES = WM / 64;
constexpr int SHARERS = CLUSTER_M * CLUSTER_N;  // CTAs that share loads: those of one half of K
constexpr int CLUSTER = SHARERS * SPLIT_K;
constexpr bool STORE_DIRECTLY = STORE == 0, STORE_BY_TMA = STORE == 1;
constexpr int SHARING = PINGPONG ? 1 : CONSUMERS;  // consumers of a stage
constexpr int TURNS = PINGPONG ? CONSUMERS : 1;    // a consumer has every tile, or one in so many
constexpr int C_COLS = C_ROW / sizeof(Out);
constexpr int C_BOX = 16 * C_ROW;  // a warp has two of them
typedef float Accumulators[M_TILES][WN / 2];

// Named barriers; 0 is __syncthreads.
__device__ __forceinline__ u32 own_barrier(int consumer) { return 1 + consumer; }
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
    // Ends its one phase when the sums sent by the other CTA have landed.
    __device__ __forceinline__ u32 sums() const { return barriers + 2 * STAGES * 8; }
};

#include "wgmma_tiles.cuh"

// Loads ROWS rows of a panel from row y on, or one part of them for all SHARERS, which load the others.
template <int ROWS, int SHARERS>
__device__ __forceinline__ void load_panel(u32 to, const TensorMap& map, int x, int y, u32 barrier, u32 part,
                                           u32 ranks) {
    constexpr int PART = ROWS / SHARERS;
    if constexpr (SHARERS == 1) tma_load(to, map, x, y, barrier);
    else tma_multicast(to + part * PART * ROW, map, x, y + part * PART, barrier, ranks);
}

// m0, n0: of the first tile.
__device__ __forceinline__ void produce(Ring ring, const Tiles& tiles, const TensorMap& A, const TensorMap& B, int m0,
                                        int n0) {
    // CTA (m, n, k) of the cluster has rank (k * CLUSTER_N + n) * CLUSTER_M + m, the number of its bit in a multicast.
    constexpr u32 COLUMN = (1 << CLUSTER_M) - 1, ROW_OF_CTAS = ((1 << SHARERS) - 1) / COLUMN;
    const u32 first = tiles.rank_k * SHARERS;
    const u32 same_cols = COLUMN << first + tiles.rank_n * CLUSTER_M, same_rows = ROW_OF_CTAS << first + tiles.rank_m;
    for (u32 index = 0; index < tiles.count; ++index) {
        const Share share = tiles.share(index);
#pragma unroll 1
        for (u32 block = share.from; block < share.to; ++block) {
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
        if (index + 1 < tiles.count) tiles.locate(tiles.share(index + 1).tile, m0, n0);
    }
    // Other CTAs still arrive at barriers here: none of these may be gone before all stages have been handed back.
    if (SHARERS > 1)
        for (u32 stage = 0; stage < STAGES; ++stage, ring.advance()) mbarrier_wait(ring.empty(), ring.parity ^ 1);
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

// Tells all CTAs that share loads, `first_sharer` and those after it, that one consumer is done with a stage.
__device__ __forceinline__ void release(u32 empty, u32 first_sharer) {
    const u32 lane = threadIdx.x % 128;
    if (SHARERS == 1 && lane == 0) mbarrier_arrive(empty);
    if (SHARERS > 1 && lane < SHARERS) mbarrier_arrive_at(empty, first_sharer + lane);
}

// m, n: the first row and column of the consumer's part of the tile.
__device__ __forceinline__ void multiply(Accumulators& acc, Ring& ring, u32 blocks, int m, int n, int consumer,
                                         u32 first_sharer) {
    constexpr int B_PANEL = B_NT ? BN * ROW : DEPTH * ROW;
    // With no more blocks than stages, the consumer before could be here again before this one has been.
    const bool staggered = STAGGER && blocks > STAGES;
    const u32 pause = staggered && consumer ? blocks - min(consumer * STAGGER, blocks) : blocks;
    for (u32 block = 0; block < blocks; ++block) {
        if (STAGGER && block == pause) named_sync(turn_barrier(consumer), 256);
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
        if (MMA_INFLIGHT == 0) release(ring.empty(), first_sharer);
        else if (block) release(ring.empty_before(), first_sharer);
        ring.advance();
    }
    if (staggered && consumer + 1 < CONSUMERS) named_arrive(turn_barrier(consumer + 1), 256);
    wgmma_wait<0>();
    if (MMA_INFLIGHT) release(ring.empty_before(), first_sharer);
#pragma unroll
    for (int i = 0; i < M_TILES; ++i) wgmma_settled(acc[i]);
}

#include "wgmma_sums.cuh"

#include "wgmma_store.cuh"

__device__ __forceinline__ void consume(Ring ring, const Tiles& tiles, const Destination& to, u32 boxes, u32 sent,
                                        const Places& places, int consumer) {
    const int m = PINGPONG || SPLIT_N ? 0 : consumer * WM, n = !PINGPONG && SPLIT_N ? consumer * WN : 0;
    const int part = PINGPONG ? 0 : consumer, warp = threadIdx.x % 128 / 32;
    boxes += (consumer * 4 + warp) * 2 * C_BOX;
    u32 turn = 0;
    if (PINGPONG) {
        if (consumer == 1) ring.skip(tiles.length(0));
        if (consumer == 1) named_arrive(turn_barrier(0), 256);
    }
    for (u32 index = PINGPONG ? consumer : 0; index < tiles.count; index += TURNS) {
        const Share share = tiles.share(index);
        int m0, n0;
        tiles.locate(share.tile, m0, n0);
        Accumulators acc;
        if (PINGPONG) named_sync(turn_barrier(consumer), 256);
        multiply(acc, ring, share.to - share.from, m, n, consumer, tiles.rank_k * SHARERS);
        if (PINGPONG) {
            if (index + 1 < tiles.count) named_arrive(turn_barrier(1 - consumer), 256);
            ring.skip(tiles.length(index + 1));
        }
        if constexpr (SPLIT_K > 1) {
            // Each CTA's ranks are as the other's, but for K.
            const bool finishes = consumer == tiles.rank_k;
            const u32 other = (SPLIT_K - 1 - tiles.rank_k) * SHARERS + tiles.rank_n * CLUSTER_M + tiles.rank_m;
            if (SHARERS == 1) cluster_wait();  // the other CTA has started
            if (!finishes) {
                send(acc, in_cta(sent, other), in_cta(ring.sums(), other));
                return;
            }
            mbarrier_wait_for_cluster(ring.sums(), 0);
            receive(acc, sent);
        }
        if constexpr (TAIL > 1) {
            if (share.to < tiles.k_blocks) {
                places.leave(acc, blockIdx.x * SHARING + part, consumer);
                continue;
            }
            for (u32 other = tiles.others(share.from); other > 0; --other)
                places.add(acc, (blockIdx.x - other * CLUSTER) * SHARING + part, consumer);
        }
        const int row0 = m0 + m + warp * 16, col0 = n0 + n;
        if (to.epilogue.beta == 0.0f) store<true>(acc, to, boxes, turn, row0, col0);
        else store<false>(acc, to, boxes, turn, row0, col0);
    }
    if (STORE_BY_TMA && threadIdx.x % 32 == 0) tma_stores_have_read<0>();
}

#if !EDGE_TMA
// One launch for both: the first blocks copy A, the rest B.
extern "C" __global__ void __launch_bounds__(PAD_THREADS)
pad(In* A_padded, const In* A, i64 A_rows, i64 A_cols, i64 lda, i64 padded_lda, In* B_padded, const In* B, i64 B_rows,
    i64 B_cols, i64 ldb, i64 padded_ldb) {
    const i64 of_a = pad_blocks<In>(A_rows, padded_lda), block = blockIdx.x;
    if (block < of_a) pad_copy(A_padded, A_rows, padded_lda, A, A_rows, A_cols, lda, block);
    else pad_copy(B_padded, B_rows, padded_ldb, B, B_rows, B_cols, ldb, block - of_a);
}
#endif

extern "C" __global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(THREADS, CTAS_PER_SM)
gemm(const __grid_constant__ TensorMap A, const __grid_constant__ TensorMap B, const __grid_constant__ TensorMap C_map,
     Out* C, i64 M, i64 N, i64 K, i64 ldc, float4* partial_sums, u32* partial_flags,
     const __grid_constant__ Epilogue epilogue) {
    // From a multiple of 1024, the period of the swizzle: boxes for C, what SPLIT_K sends, the ring, and its barriers,
    // full then empty, and that of what is sent.
    extern __shared__ unsigned char shared_bytes[];
    const u32 boxes = ((u32)__cvta_generic_to_shared(shared_bytes) + 1023) / 1024 * 1024;
    const u32 sent = boxes + C_BYTES, base = sent + SENT_BYTES;
    const Ring ring = {base, base + STAGES * STAGE_BYTES, 0, 0};
    if (threadIdx.x == 0) {
        prefetch(A);
        prefetch(B);
        if (STORE_BY_TMA) prefetch(C_map);
    }
    if (threadIdx.x == THREADS - 32) {
        for (u32 i = 0; i < STAGES; ++i) {
            mbarrier_init(ring.barriers + i * 8, 1);
            mbarrier_init(ring.barriers + (STAGES + i) * 8, SHARING * SHARERS);
        }
        if (SPLIT_K > 1) mbarrier_init(ring.sums(), 1);
        mbarrier_init_fence();
        if (SPLIT_K > 1) mbarrier_arrive_expecting(ring.sums(), SENT_BYTES);
    }
    __syncwarp();
    if (CLUSTER > 1) cluster_arrive_relaxed();
    // Meanwhile the first loads are made ready.
    const Tiles tiles(M, N, K);
    int m0 = 0, n0 = 0;
    if (tiles.count > 0) tiles.locate(tiles.share(0).tile, m0, n0);
    settled(m0, n0);
    // Only a CTA that shares loads touches the barriers of others; without them, the others matter when sums are sent.
    if (SHARERS > 1) cluster_wait();
    else __syncthreads();

    const int warpgroup = threadIdx.x / 128;
    if (warpgroup == 0) {
        lower_registers<REG_PRODUCER>();
        if (threadIdx.x == 0) produce(ring, tiles, A, B, m0, n0);
        __syncwarp();
        if (SPLIT_K > 1 && SHARERS == 1) cluster_wait();  // as the consumers do
    } else {
        raise_registers<REG_CONSUMER>();
        const Destination to = {C_map, C, (int)M, (int)N, ldc, epilogue};
        consume(ring, tiles, to, boxes, sent, {partial_sums, partial_flags}, warpgroup - 1);
    }
}
