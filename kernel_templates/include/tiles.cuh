// Tiles in shared memory and the tensor cores of sm_80: cp.async fills a tile, ldmatrix reads it, mma.sync multiplies.
// What a template chooses reaches this as template arguments.
#pragma once
#include "types.cuh"

typedef unsigned u32;

__host__ __device__ constexpr int min_of(int a, int b) { return a < b ? a : b; }
__host__ __device__ constexpr int lowest_bit(int x) { return x & -x; }

// A tile in shared memory, row after row. ldmatrix reads one chunk of 16 bytes of each of eight consecutive rows. They
// lie in eight different bank groups if PAD makes the row stride an odd number of chunks, or if the XOR spreads them;
// either undoes part of the other. The XOR permutes PERIOD chunks; rows shorter than the 128 bytes of all banks share
// a key.
template <class T, int ROWS_, int COLS_, int PAD = 0, bool SWIZZLE = true, bool BY_WORD = false> struct Tile {
    typedef T Element;
    static constexpr int ROWS = ROWS_, COLS = COLS_;
    static constexpr int CHUNK = 16 / sizeof(T);  // elements
    static constexpr int STRIDE = (COLS + PAD) * sizeof(T), BYTES = ROWS * STRIDE;
    static constexpr int PERIOD = min_of(8, lowest_bit(COLS / CHUNK));

    static __device__ __forceinline__ u32 chunk_offset(u32 row, u32 chunk) {
        // Reading by word, a warp takes two neighbouring chunks of four rows: then move chunks in pairs.
        const u32 key = row / (8 / PERIOD) << BY_WORD;
        return row * STRIDE + (SWIZZLE ? chunk ^ key % PERIOD : chunk) * 16;
    }
    static __device__ __forceinline__ u32 offset(u32 row, u32 col) {
        return chunk_offset(row, col / CHUNK) + col % CHUNK * sizeof(T);
    }
};

// Copies the first `bytes` of a unit and fills the rest with zeros; with 0 bytes the source is not touched. L2: bytes
// that a unit of 16 brings from memory to L2.
template <int UNIT, int L2 = 128> __device__ __forceinline__ void copy_unit(u32 to, const void* from, int bytes) {
    if constexpr (UNIT == 16) {
        asm volatile("cp.async.cg.shared.global.L2::%3B [%0], [%1], 16, %2;"
                     ::"r"(to), "l"(from), "r"(bytes), "n"(L2));
    } else if constexpr (UNIT == 4) {
        asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from), "r"(bytes));
    } else {
        const unsigned short bits = bytes ? *static_cast<const unsigned short*>(from) : 0;
        asm volatile("st.shared.u16 [%0], %1;" ::"r"(to), "h"(bits));
    }
}

// Copies a tile in units of UNIT bytes, of which rows x cols exist at `from`; what does not exist becomes zero. Along a
// dimension that is not masked, the whole tile exists or, at 0 or less, nothing: its units need no masks of their own.
// BATCH: rows whose units narrower than 16 bytes are asked for together, each of which takes registers.
template <class Tile, int THREADS, int UNIT, bool MASK_ROWS, bool MASK_COLS, int BATCH, int L2>
__device__ __forceinline__ void copy_tile(u32 to, const typename Tile::Element* from, i64 ld, int rows, int cols) {
    constexpr int SIZE = sizeof(typename Tile::Element), WIDTH = UNIT / SIZE;
    constexpr int ACROSS = min_of(Tile::COLS / WIDTH, lowest_bit(THREADS)), DOWN = THREADS / ACROSS;
    const int row0 = threadIdx.x / ACROSS, col0 = threadIdx.x % ACROSS * WIDTH;
    const int whole = rows > 0 && cols > 0 ? UNIT : 0;
    from += row0 * ld + col0;
#pragma unroll
    for (int col = 0; col < Tile::COLS; col += ACROSS * WIDTH) {
        const int bytes = MASK_COLS ? max(0, min(cols - col0 - col, WIDTH)) * SIZE : whole;
#pragma unroll (UNIT == 16 ? Tile::ROWS : BATCH)
        for (int row = 0; row < Tile::ROWS; row += DOWN)
            if (Tile::ROWS % DOWN == 0 || row0 + row < Tile::ROWS)
                copy_unit<UNIT, L2>(to + Tile::offset(row0 + row, col0 + col), from + row * ld + col,
                                    !MASK_ROWS || row0 + row < rows ? bytes : 0);
    }
}

// The widest copy that the alignment of the rows allows. ALIGNED is known to the main loop, which then has no branch.
template <class Tile, int THREADS, bool ALIGNED, bool MASK_ROWS = true, bool MASK_COLS = true, int BATCH = 8,
          int L2 = 128>
__device__ __forceinline__ void copy_rows(u32 to, const typename Tile::Element* from, i64 ld, int rows, int cols) {
    if constexpr (ALIGNED) {
        copy_tile<Tile, THREADS, 16, MASK_ROWS, MASK_COLS, BATCH, L2>(to, from, ld, rows, cols);
    } else if constexpr (sizeof(typename Tile::Element) == 4) {
        copy_tile<Tile, THREADS, 4, MASK_ROWS, MASK_COLS, BATCH, L2>(to, from, ld, rows, cols);
    } else {
        if (ld % 2 == 0) copy_tile<Tile, THREADS, 4, MASK_ROWS, MASK_COLS, BATCH, L2>(to, from, ld, rows, cols);
        else copy_tile<Tile, THREADS, 2, MASK_ROWS, MASK_COLS, BATCH, L2>(to, from, ld, rows, cols);
    }
}

__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int IN_FLIGHT> __device__ __forceinline__ void wait_for_copies() {
    asm volatile("cp.async.wait_group %0;" ::"n"(IN_FLIGHT) : "memory");
}

// 8x8 matrices of 2-byte (or 8x4 of 4-byte) elements; lane i gives the address of row i % 8 of matrix i / 8.
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
__device__ __forceinline__ u32 load_word(u32 from) {
    u32 x;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(x) : "r"(from));
    return x;
}

// c += a * b of one tile, m16n8 by 32 bytes of K, summed in fp32. A lane holds c0 c1, two neighbours in row lane / 4,
// and c2 c3, those in the eighth row below. The last argument only names the type of the elements; float means tf32.
#define MMA_FP32(SHAPE)                                                                              \
    asm("mma.sync.aligned." SHAPE " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};" \
        : "+f"(c0), "+f"(c1), "+f"(c2), "+f"(c3)                                                     \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]))
__device__ __forceinline__ void mma(float& c0, float& c1, float& c2, float& c3, const u32 (&a)[4], const u32 (&b)[2],
                                    fp16) {
    MMA_FP32("m16n8k16.row.col.f32.f16.f16.f32");
}
__device__ __forceinline__ void mma(float& c0, float& c1, float& c2, float& c3, const u32 (&a)[4], const u32 (&b)[2],
                                    bf16) {
    MMA_FP32("m16n8k16.row.col.f32.bf16.bf16.f32");
}
__device__ __forceinline__ void mma(float& c0, float& c1, float& c2, float& c3, const u32 (&a)[4], const u32 (&b)[2],
                                    float) {
    MMA_FP32("m16n8k8.row.col.f32.tf32.tf32.f32");
}
#undef MMA_FP32

// The same of fp16 elements summed in fp16: c01 holds c0 c1, c23 the two below.
__device__ __forceinline__ void mma(u32& c01, u32& c23, const u32 (&a)[4], const u32 (&b)[2], fp16) {
    asm("mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 {%0, %1}, {%2, %3, %4, %5}, {%6, %7}, {%0, %1};"
        : "+r"(c01), "+r"(c23)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// tf32 keeps 10 bits of fp32's mantissa; without rounding, the tensor cores would drop the rest.
__device__ __forceinline__ u32 rounded_to_tf32(u32 x) {
    u32 y;
#if __CUDA_ARCH__ >= 900  // one instruction there; rna takes three
    asm("cvt.rn.tf32.f32 %0, %1;" : "=r"(y) : "f"(__uint_as_float(x)));
#else
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(y) : "f"(__uint_as_float(x)));
#endif
    return y;
}
