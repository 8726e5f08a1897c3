// fp32 operands on fp16 tensor cores: each tile is scaled by a power of two, from the largest magnitude in it, so that
// it fits fp16's range; the sums of products are scaled back as they are added up in fp32. Infinities and NaNs stay
// what they are and have no say in the scale.
#pragma once
#include "tiles.cuh"

// 2^e; below fp32's normal range the smallest normal, which is only used where the true result is zero anyway.
__device__ __forceinline__ float power_of_two(int e) { return __uint_as_float((u32)(max(e, -126) + 127) << 23); }

// x * 2^e in two steps, as 2^e alone may be out of range.
__device__ __forceinline__ float scaled(float x, int e) {
    return __fmul_rn(__fmul_rn(x, power_of_two(e / 2)), power_of_two(e - e / 2));
}
// sum + x * 2^e, rounded once.
__device__ __forceinline__ float add_scaled(float sum, float x, int e) {
    return __fmaf_rn(__fmul_rn(x, power_of_two(e / 2)), power_of_two(e - e / 2), sum);
}

// The exponent of a positive number given by its bits; of zero, one below that of the smallest subnormal.
__device__ __forceinline__ int exponent_of(u32 bits) {
    return bits >= 0x00800000u ? (int)(bits >> 23) - 127 : 31 - __clz(bits) - 149;
}

// The largest of all threads' values; `warps` holds one word per warp. Every thread has entered before any returns.
template <int THREADS> __device__ __forceinline__ u32 block_max(u32 x, u32* warps) {
    const int lane = threadIdx.x % 32;
    x = __reduce_max_sync(~0u, x);
    if (lane == 0) warps[threadIdx.x / 32] = x;
    __syncthreads();
    return __reduce_max_sync(~0u, lane < THREADS / 32 ? warps[lane] : 0);
}

// Turns a tile of fp32 into one of fp16 at the same place, scaled so that its largest finite magnitude lies in
// [2^TOP, 2^(TOP + 1)), or not scaled; returns the exponent of the scale. The result is readable after a barrier.
template <class From, class To, int THREADS, bool SCALE, int TOP>
__device__ __forceinline__ int convert_tile(u32 tile, u32* warps) {
    constexpr int ACROSS = From::COLS / 4, VECTORS = From::ROWS * ACROSS;
    constexpr int EACH = (VECTORS + THREADS - 1) / THREADS;
    u32 x[EACH][4], largest = 0;
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
        const int vector = threadIdx.x + i * THREADS;
        if (VECTORS % THREADS != 0 && vector >= VECTORS) break;
        asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(x[i][0]), "=r"(x[i][1]), "=r"(x[i][2]), "=r"(x[i][3])
                     : "r"(tile + From::chunk_offset(vector / ACROSS, vector % ACROSS)));
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            const u32 magnitude = x[i][e] & 0x7fffffffu;
            if (SCALE && magnitude < 0x7f800000u) {
                largest = max(largest, magnitude);
                // Next to fp32's largest number, rounding to fp16's mantissa would carry beyond it.
                x[i][e] = (x[i][e] & 0x80000000u) | min(magnitude, 0x7f7fe000u);
            }
        }
    }
    int scale = 0;
    if constexpr (SCALE) scale = TOP - exponent_of(block_max<THREADS>(largest, warps));
    else __syncthreads();  // all is read before anything is written
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
        const int vector = threadIdx.x + i * THREADS;
        if (VECTORS % THREADS != 0 && vector >= VECTORS) break;
        u32 halves[2];
#pragma unroll
        for (int e = 0; e < 2; ++e) {
            const float low = __uint_as_float(x[i][2 * e]), high = __uint_as_float(x[i][2 * e + 1]);
            halves[e] = from_float<fp16>(SCALE ? scaled(low, scale) : low).bits |
                        (u32)from_float<fp16>(SCALE ? scaled(high, scale) : high).bits << 16;
        }
        asm volatile("st.shared.v2.u32 [%0], {%1, %2};" ::"r"(tile + To::offset(vector / ACROSS, vector % ACROSS * 4)),
                     "r"(halves[0]), "r"(halves[1])
                     : "memory");
    }
    return scale;
}
