// A licence may stand here.

// /// gemmsweep
// summary = "A small template for tests."
// backend = "cuda"
// arch    = "sm_75+"
// dtypes  = ["fp32", "fp16", "tf32"]
// layouts = ["nn", "nt"]
//
// [parameters]
// BM   = { default = 16, values = [8, 16, 32], meaning = "rows of C per block" }
// BN   = { default = 16, values = [8, 16, 32], meaning = "columns of C per block" }
// EDGE = { default = "pad", values = ["pad", "tail"], meaning = "what happens at the edge" }
//
// [derived]
// THREADS = "BM * BN"
// HALF    = "floor_div(THREADS, 2)"
//
// [[constraints]]
// expr = "THREADS <= 512 or EDGE == tail"
// why  = "a padded block holds at most 512 threads"
//
// [[constraints]]
// expr = "HALF % 32 == 0"
// why  = "half a \"block\" is whole warps"
//
// [[constraints]]
// expr = "M >= BM or not EDGE == tail"
// why  = "a tail needs one whole tile"
//
// [launch]
// args  = ["A", "B", "C", "i64:M", "i32:ceil_div(N, BN)", "epilogue"]
// grid  = ["ceil_div(N, BN)", "ceil_div(M, BM)"]
// block = "THREADS"
// smem_bytes = "2 * THREADS * sizeof_in"
//
// [account]
// unit = "ffma"
// accumulators = 1
// ///
#include "epilogue.cuh"
#include "tiny.cuh"

constexpr int BM = $BM;
constexpr int BN = ${BN};
constexpr int EDGE = $EDGE;
constexpr int THREADS = $THREADS;
$STATIC_ASSERTS

using In = $IN;
using Out = $OUT;
using Ops = $EPILOGUE;

extern "C" __global__ void __launch_bounds__(THREADS) gemm(const In*, const In*, Out* c, i64 m, int, Epilogue e) {
    c[m] = from_float<Out>(Ops::apply<Out>(TINY * $B_NT, e, EDGE, $IS_TF32));  // costs 1 $$
}
