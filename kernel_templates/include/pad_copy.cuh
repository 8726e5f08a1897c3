// A matrix with any leading dimension copied into a workspace of whole tiles whose rows start at multiples of 16 bytes;
// what the matrix lacks is zero. Bound by memory: a thread reads the two aligned vectors that hold its 16 bytes, shifts
// them into place in registers, and writes one vector; its neighbour's second read of the same line is served by L1.
// Many threads with one vector in flight each are faster than few with several: the latter cost registers.
#pragma once
#include "shifted.cuh"
#include "types.cuh"

constexpr int PAD_THREADS = 256;  // of a block
constexpr int PAD_VECTORS = 4;    // vectors of 16 bytes that a thread writes
constexpr int PAD_BLOCK_BYTES = 16 * PAD_VECTORS * PAD_THREADS;

// Blocks that a workspace needs; in a header: ceil_div(rows * ld * sizeof_in, PAD_BYTES), a derived value that the body
// asserts to be PAD_BLOCK_BYTES.
template <class T> __device__ __forceinline__ i64 pad_blocks(i64 rows, i64 ld) {
    return (rows * ld * (i64)sizeof(T) + PAD_BLOCK_BYTES - 1) / PAD_BLOCK_BYTES;
}

// The 16 bytes at `from`, in a row that ends at `row_end`, of a matrix that ends at `end`: nothing is read beyond that.
template <class T>
__device__ __forceinline__ uint4 padded_vector(const T* from, const T* row_end, const T* end) {
    constexpr int WIDTH = 16 / sizeof(T);
    union {
        uint4 vector;
        T elements[WIDTH];
    } out = {};
    const unsigned shift = (unsigned)((size_t)from % 16);
    const uint4* aligned = reinterpret_cast<const uint4*>((size_t)from - shift);
    if (from + WIDTH <= row_end && reinterpret_cast<const T*>(aligned + (shift != 0 ? 2 : 1)) <= end) {
        const uint4 low = __ldg(aligned);
        return shifted(low, shift ? __ldg(aligned + 1) : low, shift);
    }
#pragma unroll
    for (int i = 0; i < WIDTH; ++i)
        if (from + i < row_end) out.elements[i] = from[i];
    return out.vector;
}

// Block `block` of pad_blocks(to_rows, to_ld). `from` is rows x cols with leading dimension ld; `to` is to_rows rows of
// to_ld elements, a multiple of 16 bytes, with nothing between them.
template <class T>
__device__ __forceinline__ void pad_copy(T* to, i64 to_rows, i64 to_ld, const T* from, i64 rows, i64 cols, i64 ld,
                                         i64 block) {
    constexpr int WIDTH = 16 / sizeof(T);
    const unsigned width = (unsigned)(to_ld / WIDTH);  // vectors in a row
    const i64 first = block * (PAD_VECTORS * PAD_THREADS), first_row = first / width;
    const unsigned first_col = (unsigned)(first - first_row * width);
    const T* end = from + (rows - 1) * ld + cols;
#pragma unroll
    for (int i = 0; i < PAD_VECTORS; ++i) {
        const unsigned vector = first_col + i * PAD_THREADS + threadIdx.x;
        const i64 row = first_row + vector / width, col = (i64)(vector % width) * WIDTH;
        if (row < to_rows) {
            uint4 value = make_uint4(0, 0, 0, 0);
            if (row < rows && col < cols) value = padded_vector(from + row * ld + col, from + row * ld + cols, end);
            reinterpret_cast<uint4*>(to + row * to_ld)[col / WIDTH] = value;
        }
    }
}

// Both operands at once, the grid being the blocks of A and then those of B (stored (n, k) if B_NT).
template <bool B_NT, class T>
__device__ __forceinline__ void pad_operands(const T* A, const T* B, T* a_padded, T* b_padded, i64 M, i64 N, i64 K,
                                             i64 lda, i64 ldb, i64 m_padded, i64 n_padded, i64 k_padded) {
    const i64 a_blocks = pad_blocks<T>(m_padded, k_padded);
    if (blockIdx.x < a_blocks) pad_copy(a_padded, m_padded, k_padded, A, M, K, lda, blockIdx.x);
    else if (B_NT) pad_copy(b_padded, n_padded, k_padded, B, N, K, ldb, blockIdx.x - a_blocks);
    else pad_copy(b_padded, k_padded, n_padded, B, K, N, ldb, blockIdx.x - a_blocks);
}
