// The conservative path for tiles that meet an Inf or a NaN, or overflow: their sums anew, in fp32, one fma per product
// by ascending k, as naive.cu has them. `totals` lie as mma.m16n8 leaves them with a lane (tiles.cuh).
#pragma once
#include "types.cuh"

// Whether a total is Inf or NaN. It is if any of its factors is: neither ever leaves a sum again.
template <int M_TILES, int N_TILES>
__device__ __forceinline__ bool any_not_finite(const float (&totals)[M_TILES][N_TILES][4]) {
    unsigned largest = 0;
#pragma unroll
    for (int i = 0; i < M_TILES; ++i)
#pragma unroll
        for (int j = 0; j < N_TILES; ++j)
#pragma unroll
            for (int e = 0; e < 4; ++e) largest = max(largest, __float_as_uint(totals[i][j][e]) & 0x7fffffffu);
    return largest >= 0x7f800000u;
}

// A and B address the block's first row and column, of which `rows` and `cols` exist; m, n are those of the warp tile
// within the block tile. Rows and columns that do not exist repeat the last one that does.
template <bool B_NT, class In, int M_TILES, int N_TILES>
__device__ __forceinline__ void sum_in_order(float (&totals)[M_TILES][N_TILES][4], const In* A, const In* B, i64 K,
                                             i64 lda, i64 ldb, int rows, int cols, int m, int n) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < M_TILES; ++i)
#pragma unroll
        for (int j = 0; j < N_TILES; ++j)
#pragma unroll
            for (int e = 0; e < 4; ++e) totals[i][j][e] = 0.0f;
#pragma unroll 1
    for (i64 k = 0; k < K; ++k) {
        float a[M_TILES][2], b[N_TILES][2];
#pragma unroll
        for (int x = 0; x < 2 * M_TILES; ++x)
            a[x / 2][x % 2] = to_float(A[min(m + 8 * x + lane / 4, rows - 1) * lda + k]);
#pragma unroll
        for (int x = 0; x < 2 * N_TILES; ++x) {
            const i64 col = min(n + x / 2 * 8 + lane % 4 * 2 + x % 2, cols - 1);
            b[x / 2][x % 2] = to_float(B_NT ? B[col * ldb + k] : B[k * ldb + col]);
        }
#pragma unroll
        for (int i = 0; i < M_TILES; ++i)
#pragma unroll
            for (int j = 0; j < N_TILES; ++j)
#pragma unroll
                for (int e = 0; e < 4; ++e) totals[i][j][e] = fmaf(a[i][e / 2], b[j][e % 2], totals[i][j][e]);
    }
}
