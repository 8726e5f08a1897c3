#include "epilogue.cuh"
#include "tiny.cuh"

constexpr int BM = 16;
constexpr int BN = 16;
constexpr int EDGE = 1;
constexpr int THREADS = 256;
static_assert(((long long)THREADS <= 512LL) || ((long long)EDGE == 1LL), "a padded block holds at most 512 threads");
static_assert((((long long)THREADS / 2LL) % 32LL) == 0LL, "half a \"block\" is whole warps");
static_assert((long long)THREADS == ((long long)BM * (long long)BN), "THREADS = BM * BN");

using In = fp16;
using Out = fp16;
using Ops = Chain<Bias, LeakyRelu>;

extern "C" __global__ void __launch_bounds__(THREADS) gemm(const In*, const In*, Out* c, i64 m, int, Epilogue e) {
    c[m] = from_float<Out>(Ops::apply<Out>(TINY * 1, e, EDGE, 0));  // costs 1 $
}
