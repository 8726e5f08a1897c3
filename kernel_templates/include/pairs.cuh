// Two neighbouring elements of C, converted and stored by one instruction each.
#pragma once
#include "types.cuh"

struct alignas(8) Floats {
    float x, y;
};
__device__ __forceinline__ Floats pair_of(float x, float y, float) { return {x, y}; }
__device__ __forceinline__ unsigned pair_of(float x, float y, fp16) {
    unsigned pair;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(y), "f"(x));
    return pair;
}
__device__ __forceinline__ unsigned pair_of(float x, float y, bf16) {
    unsigned pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(y), "f"(x));
    return pair;
}
