// The separate epilogue kernel of a reference: C = chain(C) in place, after the vendor's product.
// A thread takes VEC columns (16 bytes where rows are aligned) of ROWS rows: enough bytes in flight
// to keep the memory busy, and a column's bias is read once.
#include "epilogue.cuh"

struct alignas(sizeof(OUT) * VEC) Pack { OUT x[VEC]; };

extern "C" __global__ void gemmsweep_elementwise(OUT* c, i64 m, i64 n, i64 ldc, Epilogue e) {
    const i64 col = ((i64)blockIdx.y * blockDim.x + threadIdx.x) * VEC;
    const i64 row = (i64)blockIdx.x * ROWS;
    if (col >= n) return;
    if (col + VEC <= n) {
        Pack packs[ROWS];
#pragma unroll
        for (int r = 0; r < ROWS; ++r)
            if (row + r < m) packs[r] = *reinterpret_cast<const Pack*>(c + (row + r) * ldc + col);
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
            if (row + r >= m) break;
#pragma unroll
            for (int i = 0; i < VEC; ++i)
                packs[r].x[i] = from_float<OUT>(OPS::apply<OUT>(to_float(packs[r].x[i]), e, row + r, col + i));
            *reinterpret_cast<Pack*>(c + (row + r) * ldc + col) = packs[r];
        }
    } else {
        for (i64 r = row; r < row + ROWS && r < m; ++r)
            for (i64 j = col; j < n; ++j)
                c[r * ldc + j] = from_float<OUT>(OPS::apply<OUT>(to_float(c[r * ldc + j]), e, r, j));
    }
}
