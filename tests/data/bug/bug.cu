// /// gemmsweep
// summary   = "A plain kernel with the mistakes that a sweep has to survive, chosen by BUG."
// backend   = "cuda"
// arch      = "sm_75+"
// dtypes    = ["fp32"]
// layouts   = ["nn"]
//
// [parameters.BUG]
// default = "none"
// values  = ["none", "oob", "hang", "assert", "wrong", "nan", "race", "misaligned", "stale_counter"]
// meaning = "what is wrong with the kernel"
//
// [derived]
// TILE = "16"
// SPLITS = "4"
//
// [launch]
// args  = ["A", "B", "C", "i64:M", "i64:N", "i64:K", "i64:lda", "i64:ldb", "i64:ldc", "epilogue",
//          "workspace:parts", "workspace:arrivals"]
// grid  = ["ceil_div(N, TILE)", "ceil_div(M, TILE)", "SPLITS"]
// block = "TILE * TILE"
// smem_bytes = "0"
//
// [[workspace]]
// name  = "parts"
// bytes = "4 * SPLITS * M * N"
// zero  = "never"
//
// # Per tile: how many blocks have come, and which splits they were, first to last.
// [[workspace]]
// name  = "arrivals"
// bytes = "4 * (SPLITS + 1) * ceil_div(M, TILE) * ceil_div(N, TILE)"
// zero  = "once"
// ///

// SPLITS blocks share one tile of C. Each leaves its part of the sum in `parts`; the last to arrive adds the parts in a fixed
// order and sets the counter back for the next launch.
#include "epilogue.cuh"

enum { NONE, OOB, HANG, ASSERT, WRONG, NOT_A_NUMBER, RACE, MISALIGNED, STALE_COUNTER };
constexpr int BUG = $BUG;
constexpr int TILE = $TILE;
constexpr int SPLITS = $SPLITS;
using Ops = $EPILOGUE;

// Ends the kernel or lets it go on, as BUG says. Every condition depends on memory, so the compiler cannot decide it.
__device__ void strike(const float* A, float* C, const volatile int* arrived) {
    if (BUG == OOB) C[(1ll << 40) + threadIdx.x] = 1.0f;
    if (BUG == HANG) while (*arrived >= 0) {}
    if (BUG == ASSERT && *arrived >= 0) __assertfail("*arrived < 0", "bug.cu", __LINE__, "strike", 1);  // what assert() calls
    if (BUG == MISALIGNED) {
        const volatile float* between = reinterpret_cast<const volatile float*>(reinterpret_cast<const char*>(A) + 1);
        C[0] = *between;
    }
}

// The order of arrival would be nearly the same every time: wait up to a few microseconds that nobody can foresee.
__device__ void dawdle() {
    unsigned long long now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    const long long begin = clock64();
    const long long cycles = ((now / 32 + blockIdx.z * 7919u + blockIdx.x * 104729u + blockIdx.y) * 2654435761u >> 8) % 8192;
    while (clock64() - begin < cycles) {}
}

extern "C" __global__ void __launch_bounds__(TILE * TILE)
gemm(const float* A, const float* B, float* C, i64 M, i64 N, i64 K, i64 lda, i64 ldb, i64 ldc, Epilogue epilogue,
     float* parts, int* arrivals) {
    const i64 row = static_cast<i64>(blockIdx.y) * TILE + threadIdx.x / TILE;
    const i64 col = static_cast<i64>(blockIdx.x) * TILE + threadIdx.x % TILE;
    const int split = blockIdx.z;
    const bool inside = row < M && col < N;
    int* arrived = arrivals + (static_cast<i64>(blockIdx.y) * gridDim.x + blockIdx.x) * (SPLITS + 1);
    int* order = arrived + 1;

    strike(A, C, arrived);

    // This block's part of K; of a wrong kernel the very last product is missing.
    const i64 depth = (K + SPLITS - 1) / SPLITS;
    const i64 first = split * depth;
    i64 last = first + depth < K ? first + depth : K;
    if (BUG == WRONG && last == K) last -= 1;
    if (inside) {
        float acc = 0.0f;
        for (i64 k = first; k < last; ++k) acc = fmaf(A[row * lda + k], B[k * ldb + col], acc);
        parts[(split * M + row) * N + col] = acc;
    }

    if (BUG == RACE) dawdle();
    __shared__ int place;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        place = atomicAdd(arrived, 1);
        if (place < SPLITS) atomicExch(order + place, split);
        __threadfence();
    }
    __syncthreads();
    if (place != SPLITS - 1) return;
    __threadfence();

    // A racy kernel adds the parts as they came, which rounds differently from launch to launch. An entry of `order` may
    // itself come late: whatever is read, every part is added once, so the sum stays within its bounds.
    int sequence[SPLITS];
    unsigned left = (1u << SPLITS) - 1;
    for (int i = 0; i < SPLITS; ++i) {
        const int came = BUG == RACE ? *const_cast<volatile int*>(order + i) : i;
        sequence[i] = came >= 0 && came < SPLITS && (left >> came & 1) ? came : __ffs(left) - 1;
        left &= ~(1u << sequence[i]);
    }
    if (inside) {
        float acc = 0.0f;
        for (int i = 0; i < SPLITS; ++i) acc += *const_cast<volatile float*>(parts + (sequence[i] * M + row) * N + col);
        if (BUG == NOT_A_NUMBER && row == M - 1 && col == N - 1) acc = __int_as_float(0x7fffffff);
        float* c = C + row * ldc + col;
        *c = finish<Ops>(acc, c, epilogue, row, col);
    }
    if (BUG != STALE_COUNTER && threadIdx.x == 0) *arrived = 0;
}
