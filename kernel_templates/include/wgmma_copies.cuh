// B by the threads of the producer, as wgmma.cu includes it among its constants. TMA fetches a row of 128 bytes at a
// time, in two requests where the row lies across lines of memory; cp.async has both engines work side by side.
#pragma once

constexpr int B_SIDE = B_NT ? BN : DEPTH;    // rows of B in a stage
constexpr int B_ACROSS = B_NT ? DEPTH : BN;  // elements in each
constexpr int CHUNK = 16 / sizeof(In);       // of a copy
constexpr int CHUNKS = B_ACROSS / CHUNK;     // in a row
constexpr int ROWS_AT_ONCE = B_BY_THREADS ? 128 / CHUNKS : 1;

// The first `bytes` of 16, the rest are zeros.
__device__ __forceinline__ void copy_chunk(u32 to, const In* from, u32 bytes) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}
// Arrives on the barrier once the copies of this thread have landed.
__device__ __forceinline__ void arrive_when_landed(u32 barrier) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}
__device__ __forceinline__ void copies_landed() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// The stage of B that begins at (row0, col0) of rows x cols, swizzled as TMA does it: chunk c of row r lies at c ^ r % 8.
__device__ __forceinline__ void copy_stage(u32 tile, const In* B, i64 ldb, int row0, int col0, int rows, int cols) {
    const int chunk = threadIdx.x % CHUNKS, first = threadIdx.x / CHUNKS, col = col0 + chunk * CHUNK;
    const int left = cols - col;
    const u32 bytes = left < 0 ? 0 : (left > CHUNK ? CHUNK : left) * sizeof(In);
    const In* from = B + (i64)(row0 + first) * ldb + col;
    const u32 to = tile + (chunk / 8 * B_SIDE + first) * ROW;
#pragma unroll
    for (int i = 0; i < B_SIDE; i += ROWS_AT_ONCE) {
        const u32 there = row0 + first + i < rows ? bytes : 0;
        copy_chunk(to + i * ROW + ((chunk ^ (first + i)) & 7) * 16, there ? from : B, there);
        from += ROWS_AT_ONCE * ldb;
    }
}
