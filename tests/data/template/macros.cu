#include <stdio.h>
#ifndef TILE
#define TILE 16
#endif
#define UNROLL 4  // unguarded
#define MAX(a, b) ((a) > (b) ? (a) : (b))

extern "C" __global__ void square(const float *a, const float *b, float *c, int n) {
    int row = blockIdx.y * TILE + threadIdx.y, col = blockIdx.x * TILE + threadIdx.x;
    float x = 0;
#pragma unroll UNROLL
    for (int k = 0; k < n; ++k) x += a[row * n + k] * b[k * n + col];
    c[row * n + col] = x;
}
