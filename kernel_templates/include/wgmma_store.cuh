// From accumulators to C: three ways to store. Constants and accumulators are those of wgmma.cu.
#pragma once
#include "epilogue.cuh"
#include "hopper.cuh"
#include "pairs.cuh"

typedef decltype(pair_of(0, 0, Out())) Pair;

// Where accumulators go. Of 64 x WN of them a warp has 16 rows and a thread WN / 4 pairs of neighbours: pair 2j in row
// lane / 4 at columns 8j + lane % 4 * 2, pair 2j + 1 eight rows below.
struct Destination {
    const TensorMap& map;
    Out* C;
    int M, N;
    i64 ldc;
    Epilogue epilogue;
};

// FRESH: beta is 0, so that C is not read; what is computed outside of C is not stored. Otherwise it is not computed.
template <bool FRESH> __device__ __forceinline__ float finished(float acc, const Destination& to, int row, int col) {
    if constexpr (FRESH) {
        Epilogue epilogue = to.epilogue;
        epilogue.beta = 0.0f;
        return finish<Ops, Out>(acc, nullptr, epilogue, min(row, to.M - 1), min(col, to.N - 1));
    } else {
        if (row >= to.M || col >= to.N) return 0.0f;
        return finish<Ops>(acc, to.C + (i64)row * to.ldc + col, to.epilogue, row, col);
    }
}
// row, col: of pair 0.
template <bool FRESH>
__device__ __forceinline__ Pair finished_pair(const float (&acc)[WN / 2], int pair, const Destination& to, int row,
                                              int col) {
    row += pair % 2 * 8;
    col += pair / 2 * 8;
    return pair_of(finished<FRESH>(acc[2 * pair], to, row, col), finished<FRESH>(acc[2 * pair + 1], to, row, col + 1),
                   Out());
}

// A box's worth of pairs: columns c to c + C_COLS of those at row0, col0.
template <bool FRESH>
__device__ __forceinline__ void finish_box(Pair (&pairs)[C_COLS / 4], const float (&acc)[WN / 2], int c,
                                           const Destination& to, int row0, int col0) {
    int row = row0 + threadIdx.x % 32 / 4, col = col0 + threadIdx.x % 4 * 2;
    settled(row, col);  // or the compiler keeps the addresses of every bias from box to box, and spills
#pragma unroll
    for (int j = 0; j < C_COLS / 4; ++j) pairs[j] = finished_pair<FRESH>(acc, c / 4 + j, to, row, col);
}

// A box in shared memory has 16 rows of C_ROW bytes, swizzled as TMA expects.
__device__ __forceinline__ u32 box_chunk(u32 box, u32 row, u32 chunk) {
    return box + row * C_ROW + (C_ROW == 128 ? chunk ^ row % 8 : chunk ^ row / 2 % 4) * 16;
}
__device__ __forceinline__ u32 in_box(u32 box, u32 row, u32 col) {
    const u32 byte = col * sizeof(Out);
    return box_chunk(box, row, byte / 16) + byte % 16;
}
__device__ __forceinline__ void fill_box(u32 box, const u32 (&pairs)[C_COLS / 4]) {
    const u32 lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < C_COLS / 4; i += 4)
        stmatrix(box_chunk(box, lane % 16, i / 2 + lane / 16), pairs[i], pairs[i + 1], pairs[i + 2],
                 pairs[i + 3]);
}
__device__ __forceinline__ void fill_box(u32 box, const Floats (&pairs)[C_COLS / 4]) {
    const u32 lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < C_COLS / 4; ++i)
        store_shared(box_chunk(box, lane / 4 + i % 2 * 8, i / 2 * 2 + lane % 4 / 2) + lane % 2 * 8, pairs[i].x,
                     pairs[i].y);
}

// Calls each(pairs, row, col) for the pairs of every box of a consumer's share, finished.
template <bool FRESH, class Each>
__device__ __forceinline__ void each_box(const Accumulators& acc, const Destination& to, int row0, int col0, Each each) {
#pragma unroll
    for (int i = 0; i < M_TILES; ++i)
#pragma unroll
        for (int c = 0; c < WN; c += C_COLS) {
            const int row = row0 + 64 * i;
            Pair pairs[C_COLS / 4];
            finish_box<FRESH>(pairs, acc[i], c, to, row, col0);
            each(pairs, row, col0 + c);
        }
}

// A warp stores its 16 rows through two boxes of shared memory in turn: while TMA empties one, the other is filled.
template <bool FRESH>
__device__ __forceinline__ void store_by_tma(const Accumulators& acc, const Destination& to, u32 boxes, u32& turn,
                                             int row0, int col0) {
    const int lane = threadIdx.x % 32;
    each_box<FRESH>(acc, to, row0, col0, [&](const Pair(&pairs)[C_COLS / 4], int row, int col) {
        const u32 box = boxes + turn * C_BOX;
        if (lane == 0) tma_stores_have_read<1>();
        __syncwarp();
        fill_box(box, pairs);
        fence_for_tma();
        __syncwarp();
        if (lane == 0) tma_store<C_EVICT_FIRST>(to.map, col, row, box);
        turn ^= 1;
    });
}

// A warp stores its 16 rows one after the other, from shared memory: where TMA cannot, whole lines all the same. A row
// that does not start at a word of memory goes by elements.
template <bool FRESH>
__device__ __forceinline__ void store_rows(const Accumulators& acc, const Destination& to, u32 boxes, int row0,
                                           int col0) {
    const int lane = threadIdx.x % 32;
    each_box<FRESH>(acc, to, row0, col0, [&](const Pair(&pairs)[C_COLS / 4], int row, int col) {
        __syncwarp();
        fill_box(boxes, pairs);
        __syncwarp();
        const int rows = min(16, to.M - row), cols = min(C_COLS, to.N - col);
        const bool in_words = sizeof(Out) == 2 && cols == 64;
#pragma unroll 4
        for (int r = 0; r < rows; ++r) {
            Out* at = to.C + (i64)(row + r) * to.ldc + col;
            if (in_words && (size_t)at % 4 == 0) {
                reinterpret_cast<u32*>(at)[lane] = load_shared<u32>(box_chunk(boxes, r, lane / 4) + lane % 4 * 4);
            } else {
#pragma unroll
                for (int x = lane; x < C_COLS; x += 32)
                    if (x < cols) at[x] = load_shared<Out>(in_box(boxes, r, x));
            }
        }
    });
}

template <bool FRESH>
__device__ __forceinline__ void store_directly(const Accumulators& acc, const Destination& to, bool in_pairs, int row0,
                                               int col0) {
    const int row = row0 + threadIdx.x % 32 / 4, col = col0 + threadIdx.x % 4 * 2;
#pragma unroll
    for (int i = 0; i < M_TILES; ++i)
#pragma unroll
        for (int j = 0; j < WN / 4; ++j) {
            const int r = row + 64 * i + j % 2 * 8, c = col + j / 2 * 8;
            Out* at = to.C + (i64)r * to.ldc + c;
            if (in_pairs) {
                *reinterpret_cast<Pair*>(at) = finished_pair<FRESH>(acc[i], j, to, row + 64 * i, col);
            } else {
                if (r < to.M && c < to.N) at[0] = from_float<Out>(finished<FRESH>(acc[i][2 * j], to, r, c));
                if (r < to.M && c + 1 < to.N) at[1] = from_float<Out>(finished<FRESH>(acc[i][2 * j + 1], to, r, c + 1));
            }
        }
}

template <bool FRESH>
__device__ __forceinline__ void store(const Accumulators& acc, const Destination& to, u32 boxes, u32& turn, int row0,
                                      int col0) {
    if constexpr (STORE_BY_TMA) {
        store_by_tma<FRESH>(acc, to, boxes, turn, row0, col0);
    } else if constexpr (STORE_DIRECTLY) {
        const bool inside = row0 - (int)threadIdx.x % 128 / 32 * 16 + WM <= to.M && col0 + WN <= to.N;
        store_directly<FRESH>(acc, to, inside && to.ldc % 2 == 0, row0, col0);
    } else {
        store_rows<FRESH>(acc, to, boxes, row0, col0);
    }
}
