// What straddles two aligned vectors, put together in registers.
#pragma once

// The 16 bytes that start `shift` bytes into two neighbouring vectors: shifted by 8, by 4, and by 0 to 3 bytes.
__device__ __forceinline__ uint4 shifted(uint4 low, uint4 high, unsigned shift) {
    unsigned w[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
    for (int i = 0; i < 6; ++i) w[i] = shift & 8 ? w[i + 2] : w[i];
#pragma unroll
    for (int i = 0; i < 5; ++i) w[i] = shift & 4 ? w[i + 1] : w[i];
#pragma unroll
    for (int i = 0; i < 4; ++i) w[i] = __funnelshift_r(w[i], w[i + 1], (shift & 3) * 8);
    return {w[0], w[1], w[2], w[3]};
}
