// A kernel as one finds it: template parameters, its own argument order, whole tiles only, reads C.
#include <cassert>
#include <cstdint>
#include <cstdio>
#include <cuda_runtime.h>

namespace sgemm {
template <const int BM, const int BN, const int BK, const int TM>
__global__ void __launch_bounds__((BM * BN) / TM) tiled(int M, int N, int K, float alpha, const float *A,
                                                       const float *B, float beta, float *C) {
    const uint cRow = blockIdx.y;
    __shared__ float As[BM * BK];
    assert(blockDim.x == BM * BN / TM);
    As[threadIdx.x % (BM * BK)] = A[threadIdx.x];
    __syncthreads();
    uint64_t at = uint64_t(cRow) * BM * N + threadIdx.x;
    if (at < uint64_t(M) * N) C[at] = alpha * As[0] * B[K - 1] + beta * C[at];
}
}  // namespace sgemm
