// From the sums of a block that has all of K to C. Constants, sums and target are those of skinny.cu.
//
// All blocks are at this at the end, when there is nothing left to load, so it is short, in time and in code, which is
// fetched when it is first needed: sums pass through shared memory, from where a thread needs few instructions for two
// neighbours and a warp stores whole sectors.
#pragma once
#include "epilogue.cuh"
#include "pairs.cuh"
#include "tiles.cuh"

typedef decltype(pair_of(0, 0, Out())) Pair;

constexpr bool EVEN = BN / 2 % PAIRS_ACROSS == 0 && THREADS % PAIRS_ACROSS == 0 && BM % ROWS_DOWN == 0;
constexpr int AT_ONCE = EVEN ? min_of(4, lowest_bit(BM / ROWS_DOWN)) : 4;  // rows of a thread asked for together

__device__ __forceinline__ void store_float(u32 to, float x) {
    asm volatile("st.shared.f32 [%0], %1;" ::"r"(to), "f"(x) : "memory");
}
__device__ __forceinline__ Floats load_floats(u32 from) {
    Floats v;
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(v.x), "=f"(v.y) : "r"(from) : "memory");
    return v;
}

// Every row of warps has a copy of the tile, rows of PITCH floats.
__device__ __forceinline__ u32 summed_at(u32 shared, int row_of_warps, int row, int col) {
    return shared + ((row_of_warps * BM + row) * PITCH + col) * (u32)sizeof(float);
}
__device__ __forceinline__ Floats over_rows_of_warps(u32 shared, int row, int col) {
    Floats sum = load_floats(summed_at(shared, 0, row, col));
#pragma unroll
    for (int r = 1; r < K_WARPS; ++r) {
        const Floats more = load_floats(summed_at(shared, r, row, col));
        sum = {sum.x + more.x, sum.y + more.y};
    }
    return sum;
}

// PLAIN: all columns of the tile exist, pairs of C are aligned, C is not read, and threads share out the tile evenly.
template <bool PLAIN>
__device__ __forceinline__ void store_pairs(u32 shared, const Target& target, const Epilogue& epilogue, bool aligned) {
    const int across = threadIdx.x % PAIRS_ACROSS, down = threadIdx.x / PAIRS_ACROSS;
    const int cols = PLAIN ? BN : down < ROWS_DOWN ? target.cols : 0;
    for (int col = 2 * across; col < cols; col += 2 * PAIRS_ACROSS) {
        Out* c = target.C + down * target.ldc + col;
#pragma unroll 1
        for (int row = down; row < (PLAIN ? BM : target.rows); row += AT_ONCE * ROWS_DOWN) {
            Floats sums[AT_ONCE];
#pragma unroll
            for (int x = 0; x < AT_ONCE; ++x) {
                const int r = row + x * ROWS_DOWN;
                sums[x] = over_rows_of_warps(shared, PLAIN ? r : min_of(r, BM - 1), col);
            }
#pragma unroll
            for (int x = 0; x < AT_ONCE; ++x, c += ROWS_DOWN * target.ldc) {
                const int r = row + x * ROWS_DOWN;
                auto finished = [&](float sum, int right) {
                    return finish<Ops>(sum, c + right, epilogue, target.m0 + r, target.n0 + col + right);
                };
                if (r >= target.rows) continue;
                if (PLAIN || (aligned && col + 1 < cols)) {
                    *reinterpret_cast<Pair*>(c) = pair_of(finished(sums[x].x, 0), finished(sums[x].y, 1), Out());
                } else {
                    c[0] = from_float<Out>(finished(sums[x].x, 0));
                    if (col + 1 < cols) c[1] = from_float<Out>(finished(sums[x].y, 1));
                }
            }
        }
    }
}

__device__ __forceinline__ void store_tile(const Sums& acc, u32 shared, const Target& target,
                                           const Epilogue& epilogue) {
    const int lane = threadIdx.x % 32;
    const u32 own = summed_at(shared, threadIdx.x / ROW_THREADS, 2 * lane_m(lane),
                              threadIdx.x % ROW_THREADS / 32 * WN + lane_n(lane));
    __syncthreads();  // the ring is no longer in use: every copy has been waited for
#pragma unroll
    for (int i = 0; i < N_TILES; ++i)
#pragma unroll
        for (int j = 0; j < M_TILES; ++j) {
            const u32 to = own + (8 * j * PITCH + 16 * i) * (u32)sizeof(float);
            store_float(to, acc[i][j].x);
            store_float(to + PITCH * (u32)sizeof(float), acc[i][j].y);
            store_float(to + 8 * (u32)sizeof(float), acc[i][j].z);
            store_float(to + (PITCH + 8) * (u32)sizeof(float), acc[i][j].w);
        }
    __syncthreads();
    const bool aligned = (size_t)target.C % sizeof(Pair) == 0 && target.ldc % 2 == 0;
    if (EVEN && aligned && target.cols == BN && epilogue.beta == 0.0f) {
        Epilogue fresh = epilogue;
        fresh.beta = 0.0f;  // now the compiler knows, too
        store_pairs<true>(shared, target, fresh, aligned);
    } else {
        store_pairs<false>(shared, target, epilogue, aligned);
    }
}
