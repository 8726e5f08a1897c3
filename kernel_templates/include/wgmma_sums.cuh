// Sums of a part of K on their way to the CTA that finishes the tile. Constants and accumulators are those of wgmma.cu.
#pragma once
#include "hopper.cuh"

// Where the sums of a part of a tile wait for the rest: each consumer of a part has a place, and a flag that it is
// filled. A thread's accumulators lie 128 vectors apart: a warp reads and writes whole lines.
struct Places {
    float4* sums;
    u32* flags;

    __device__ __forceinline__ float4* at(u32 place) const {
        return sums + (size_t)place * (M_TILES * WN / 8) * 128 + threadIdx.x % 128;
    }
    __device__ __forceinline__ void leave(const Accumulators& acc, u32 place, int consumer) const {
        float4* to = at(place);
#pragma unroll
        for (int i = 0; i < M_TILES; ++i)
#pragma unroll
            for (int j = 0; j < WN / 2; j += 4)
                __stcg(to + (i * WN / 2 + j) / 4 * 128,
                       make_float4(acc[i][j], acc[i][j + 1], acc[i][j + 2], acc[i][j + 3]));
        named_sync(own_barrier(consumer), 128);
        if (threadIdx.x % 128 == 0) raise_flag(flags + place);
    }
    // Flags are left as they were found, lowered.
    __device__ __forceinline__ void add(Accumulators& acc, u32 place, int consumer) const {
        if (threadIdx.x % 128 == 0) await_and_lower_flag(flags + place);
        named_sync(own_barrier(consumer), 128);
        const float4* from = at(place);
#pragma unroll
        for (int i = 0; i < M_TILES; ++i)
#pragma unroll
            for (int j = 0; j < WN / 2; j += 4) {
                const float4 sum = __ldcg(from + (i * WN / 2 + j) / 4 * 128);
                acc[i][j] += sum.x;
                acc[i][j + 1] += sum.y;
                acc[i][j + 2] += sum.z;
                acc[i][j + 3] += sum.w;
            }
    }
};

// Accumulators to shared memory of another CTA, whose barrier hears of them, and from there, added to those of the same
// consumer here.
__device__ __forceinline__ void send(const Accumulators& acc, u32 to, u32 barrier) {
    to += threadIdx.x % 128 * 16;
#pragma unroll
    for (int i = 0; i < M_TILES; ++i)
#pragma unroll
        for (int j = 0; j < WN / 2; j += 4)
            store_to_cluster(to + (i * WN / 2 + j) / 4 * 128 * 16, acc[i][j], acc[i][j + 1], acc[i][j + 2],
                             acc[i][j + 3], barrier);
}
__device__ __forceinline__ void receive(Accumulators& acc, u32 from) {
    from += threadIdx.x % 128 * 16;
#pragma unroll
    for (int i = 0; i < M_TILES; ++i)
#pragma unroll
        for (int j = 0; j < WN / 2; j += 4) {
            const float4 sum = load_shared_vector(from + (i * WN / 2 + j) / 4 * 128 * 16);
            acc[i][j] += sum.x;
            acc[i][j + 1] += sum.y;
            acc[i][j + 2] += sum.z;
            acc[i][j + 3] += sum.w;
        }
}
