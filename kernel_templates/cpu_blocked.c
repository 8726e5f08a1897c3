// /// gemmsweep
// summary = "Blocks of A and B packed for L2 and L3, a tile of C in vector registers (the BLIS scheme)."
// backend = "cpu"
// dtypes  = ["fp32"]
// layouts = ["nn", "nt"]
//
// [parameters]
// BM = { default = 336, values = [168, 336, 504, 672], meaning = "rows of a packed block of A; BM x BK fits L2" }
// BN = { default = 3072, values = [384, 768, 1536, 3072], meaning = "columns of a packed block of B; BK x BN fits L3" }
// BK = { default = 256, values = [64, 128, 256, 384, 512], meaning = "depth of both blocks; BK x NR fits L1" }
// MR = { default = 6, values = [4, 6, 8, 12, 14], meaning = "rows of the register tile" }
// NR = { default = 16, values = [8, 16, 24, 32, 48, 64], meaning = "columns of the register tile, floats" }
// UNROLL = { default = 4, values = [1, 2, 4, 8], meaning = "steps of K in one pass of the innermost loop" }
// THREADS = { default = 1, values = [1, 2, 4, 8], meaning = "threads; each computes its own strip of C" }
//
// [[constraints]]
// expr = "BM % MR == 0"
// why  = "a block of A is whole panels of MR rows (every declared BM is a multiple of every declared MR)"
// [[constraints]]
// expr = "BN % NR == 0"
// why  = "a block of B is whole panels of NR columns (every declared BN is a multiple of every declared NR)"
// [[constraints]]
// expr = "NR % 4 == 0"
// why  = "a row of the register tile is whole vectors, and the narrowest holds 4 floats"
// [[constraints]]
// expr = "THREADS <= cores"
// why  = "threads that take turns on one core measure the scheduler"
//
// [launch]
// args = ["A", "B", "C", "i64:M", "i64:N", "i64:K", "i64:lda", "i64:ldb", "i64:ldc", "alpha", "beta"]
//
// [account]
// unit = "ffma"
// accumulators = "MR * NR"
// ///
// The scheme of GotoBLAS and BLIS. A micro-kernel holds MR x NR of C in vector registers and walks down a panel of A
// (MR rows) and a panel of B (NR columns), both packed so that every step of K reads the next few floats. The panel of
// B stays in L1 while the panels of one block of A stream past it from L2; blocks of B wait in L3.
//
// The register tile decides: 6 x 16 fills the 16 registers of AVX and the 32 of NEON; AVX-512 has room for 14 x 32. A
// tile that does not fit is still right, but the compiler spills it.
//
// gemm returns 0, or the errno of an allocation or a thread that failed: C is then incomplete.
#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>

enum { BM = $BM };
enum { BN = $BN };
enum { BK = $BK };
enum { MR = $MR };
enum { NR = $NR };
enum { UNROLL = $UNROLL };
enum { THREADS = $THREADS };
enum { B_NT = $B_NT };  // 1: B is stored (n, k)
$STATIC_ASSERTS

// Vector extensions of GCC and Clang instead of intrinsics: the same source becomes AVX-512, AVX, SSE or NEON.
#if defined(__AVX512F__)
enum { WIDEST = 16 };
#elif defined(__AVX__)
enum { WIDEST = 8 };
#else
enum { WIDEST = 4 };
#endif
enum { VL = NR % WIDEST == 0 ? WIDEST : WIDEST == 16 && NR % 8 == 0 ? 8 : 4 };  // floats per vector
enum { NV = NR / VL };                                                         // vectors per row of the tile
enum { LINE = 16 };                                                            // floats per cache line

typedef float Vec __attribute__((vector_size(VL * sizeof(float)), may_alias));
typedef float VecAnywhere __attribute__((vector_size(VL * sizeof(float)), may_alias, aligned(4)));
typedef float Quad __attribute__((vector_size(16), may_alias, aligned(4)));

// SHUFFLE: GCC before 12 has no __builtin_shufflevector, Clang has no __builtin_shuffle.
// FLATTEN: accumulators indexed by a loop live in registers only if nothing is left of the loop.
#if defined(__clang__)
#define SHUFFLE(x, y, ...) __builtin_shufflevector(x, y, __VA_ARGS__)
#define FLATTEN _Pragma("clang loop unroll(full)")
#else
typedef int32_t QuadMask __attribute__((vector_size(16)));
#define SHUFFLE(x, y, ...) __builtin_shuffle(x, y, (QuadMask){__VA_ARGS__})
#define FLATTEN _Pragma("GCC unroll 16")
#endif
#define INLINE static inline __attribute__((always_inline))

INLINE int64_t min_of(int64_t x, int64_t y) { return x < y ? x : y; }
INLINE int64_t round_up(int64_t x, int64_t unit) { return (x + unit - 1) / unit * unit; }

// dst[q][r] = src[r][q] of 4 x 4 elements.
INLINE void transpose_quad(float* dst, int64_t dst_ld, const float* src, int64_t src_ld) {
    const Quad r0 = *(const Quad*)src, r1 = *(const Quad*)(src + src_ld);
    const Quad r2 = *(const Quad*)(src + 2 * src_ld), r3 = *(const Quad*)(src + 3 * src_ld);
    const Quad low01 = SHUFFLE(r0, r1, 0, 4, 1, 5), high01 = SHUFFLE(r0, r1, 2, 6, 3, 7);
    const Quad low23 = SHUFFLE(r2, r3, 0, 4, 1, 5), high23 = SHUFFLE(r2, r3, 2, 6, 3, 7);
    *(Quad*)dst = SHUFFLE(low01, low23, 0, 1, 4, 5);
    *(Quad*)(dst + dst_ld) = SHUFFLE(low01, low23, 2, 3, 6, 7);
    *(Quad*)(dst + 2 * dst_ld) = SHUFFLE(high01, high23, 0, 1, 4, 5);
    *(Quad*)(dst + 3 * dst_ld) = SHUFFLE(high01, high23, 2, 3, 6, 7);
}

// One panel whose K runs along the rows of src: panel[k][r] = src[r][k] for r < rows, zeros up to width. One cache
// line of every row at a time: rows that lie a power of two apart share a cache set and would evict each other.
INLINE void pack_rows(float* restrict panel, int width, const float* restrict src, int64_t ld, int rows, int64_t bk) {
    for (int64_t k = 0; k < bk; k += LINE) {
        const int steps = (int)min_of(LINE, bk - k);
        int r = 0;
        if (steps == LINE)
            for (; r + 4 <= rows; r += 4)
                for (int q = 0; q < LINE; q += 4)
                    transpose_quad(panel + (k + q) * width + r, width, src + r * ld + k + q, ld);
        for (; r < width; ++r)
            for (int q = 0; q < steps; ++q) panel[(k + q) * width + r] = r < rows ? src[r * ld + k + q] : 0.0f;
    }
}

// bm x bk of A, as panels of MR rows.
static void pack_a(float* restrict packed, const float* restrict a, int64_t lda, int64_t bm, int64_t bk) {
    for (int64_t i = 0; i < bm; i += MR)
        pack_rows(packed + i * bk, MR, a + i * lda, lda, (int)min_of(MR, bm - i), bk);
}

// bk x bn of B, as panels of NR columns.
static void pack_b(float* restrict packed, const float* restrict b, int64_t ldb, int64_t bn, int64_t bk) {
    if (B_NT) {
        for (int64_t j = 0; j < bn; j += NR)
            pack_rows(packed + j * bk, NR, b + j * ldb, ldb, (int)min_of(NR, bn - j), bk);
        return;
    }
    // Eight rows of B side by side: few enough streams for the prefetchers, few enough pages for the TLB.
    enum { ROWS = 8 };
    for (int64_t k0 = 0; k0 < bk; k0 += ROWS)
        for (int64_t j = 0; j < bn; j += NR)
            for (int64_t k = k0; k < min_of(k0 + ROWS, bk); ++k) {
                const float* src = b + k * ldb + j;
                float* dst = packed + j * bk + k * NR;
                if (bn - j >= NR) {
                    FLATTEN for (int v = 0; v < NV; ++v) ((Vec*)dst)[v] = *(const VecAnywhere*)(src + v * VL);
                } else {
                    for (int x = 0; x < NR; ++x) dst[x] = x < bn - j ? src[x] : 0.0f;
                }
            }
}

// One step of K: a column of A times a row of B. Volatile, because GCC would otherwise read a vector of B again for
// every row of A that it multiplies: with 16 registers, three loads for two FMAs.
INLINE void outer_product(Vec acc[MR][NV], const float* a, const float* b) {
    Vec row[NV];
    FLATTEN for (int v = 0; v < NV; ++v) row[v] = ((const volatile Vec*)b)[v];
    FLATTEN for (int i = 0; i < MR; ++i) {
        FLATTEN for (int v = 0; v < NV; ++v) acc[i][v] += a[i] * row[v];
    }
}

// C[rows][cols] = alpha * panel of A * panel of B + beta * C, at c. The padding up to MR x NR is computed and dropped.
// Not inlined: the loops around it would take registers from the tile.
static __attribute__((noinline)) void micro_kernel(const float* restrict a, const float* restrict b, int64_t bk,
                                                   float* restrict c, int64_t ldc, int rows, int cols, float alpha,
                                                   float beta) {
    for (int i = 0; i < rows; ++i) {  // C is wanted last, and its rows start anywhere in a cache line
        for (int j = 0; j < cols; j += LINE) __builtin_prefetch(c + i * ldc + j, 1);
        __builtin_prefetch(c + i * ldc + cols - 1, 1);
    }
    Vec acc[MR][NV] = {0};
    int64_t k = 0;
    for (; k + UNROLL <= bk; k += UNROLL, a += UNROLL * MR, b += UNROLL * NR) {
        FLATTEN for (int u = 0; u < UNROLL; ++u) outer_product(acc, a + u * MR, b + u * NR);
    }
    for (; k < bk; ++k, a += MR, b += NR) outer_product(acc, a, b);

    if (rows == MR && cols == NR) {
        FLATTEN for (int i = 0; i < MR; ++i) {
            FLATTEN for (int v = 0; v < NV; ++v) {
                VecAnywhere* out = (VecAnywhere*)(c + i * ldc + v * VL);
                *out = beta == 0.0f ? alpha * acc[i][v] : alpha * acc[i][v] + beta * *out;
            }
        }
        return;
    }
    Vec tile[MR][NV];
    FLATTEN for (int i = 0; i < MR; ++i) {
        FLATTEN for (int v = 0; v < NV; ++v) tile[i][v] = alpha * acc[i][v];
    }
    for (int i = 0; i < rows; ++i)
        for (int j = 0; j < cols; ++j) {
            float* out = c + i * ldc + j;
            const float x = tile[i][j / VL][j % VL];
            *out = beta == 0.0f ? x : x + beta * *out;
        }
}

// The part of C that one thread computes, with packing space of its own: threads never wait for each other.
typedef struct {
    const float *a, *b;
    float* c;
    int64_t m, n, k, lda, ldb, ldc;
    float alpha, beta;
    float *packed_a, *packed_b;
} Strip;

static void* compute_strip(void* argument) {
    const Strip s = *(const Strip*)argument;
    for (int64_t j = 0; j < s.n; j += BN)
        for (int64_t k = 0; k < s.k; k += BK) {
            const int64_t bn = min_of(BN, s.n - j), bk = min_of(BK, s.k - k);
            const float beta = k == 0 ? s.beta : 1.0f;
            pack_b(s.packed_b, B_NT ? s.b + j * s.ldb + k : s.b + k * s.ldb + j, s.ldb, bn, bk);
            for (int64_t i = 0; i < s.m; i += BM) {
                const int64_t bm = min_of(BM, s.m - i);
                pack_a(s.packed_a, s.a + i * s.lda + k, s.lda, bm, bk);
                for (int64_t jr = 0; jr < bn; jr += NR)
                    for (int64_t ir = 0; ir < bm; ir += MR)
                        micro_kernel(s.packed_a + ir * bk, s.packed_b + jr * bk, bk, s.c + (i + ir) * s.ldc + j + jr,
                                     s.ldc, (int)min_of(MR, bm - ir), (int)min_of(NR, bn - jr), s.alpha, beta);
            }
        }
    return NULL;
}

int gemm(const float* A, const float* B, float* C, int64_t M, int64_t N, int64_t K, int64_t lda, int64_t ldb,
         int64_t ldc, float alpha, float beta) {
    // Every thread packs the whole of the operand that is not cut, so the longer side of C is cut. Strips begin where
    // register tiles begin: the number of threads does not change a bit of the result.
    const int by_rows = M >= N;
    const int64_t extent = by_rows ? M : N;
    const int64_t step = round_up((extent + THREADS - 1) / THREADS, by_rows ? MR : NR);
    const int64_t m = by_rows ? min_of(step, M) : M, n = by_rows ? N : min_of(step, N), bk = min_of(BK, K);
    const int64_t a_floats = round_up(min_of(BM, round_up(m, MR)) * bk, LINE);
    const int64_t b_floats = round_up(min_of(BN, round_up(n, NR)) * bk, LINE);
    float* packed = aligned_alloc(LINE * sizeof(float), THREADS * (size_t)(a_floats + b_floats) * sizeof(float));
    if (!packed) return ENOMEM;

    Strip strips[THREADS];
    pthread_t threads[THREADS];
    strips[0] = (Strip){A, B, C, m, n, K, lda, ldb, ldc, alpha, beta, packed, packed + a_floats};
    int error = 0, t = 1;
    for (; t < THREADS && t * step < extent; ++t) {
        const int64_t at = t * step;
        Strip* s = &strips[t];
        *s = strips[0];
        s->a += by_rows ? at * lda : 0;
        s->b += by_rows ? 0 : B_NT ? at * ldb : at;
        s->c += by_rows ? at * ldc : at;
        *(by_rows ? &s->m : &s->n) = min_of(step, extent - at);
        s->packed_a += t * (a_floats + b_floats);
        s->packed_b += t * (a_floats + b_floats);
        error = pthread_create(&threads[t], NULL, compute_strip, s);
        if (error) break;
    }
    if (!error) compute_strip(&strips[0]);
    while (--t > 0) pthread_join(threads[t], NULL);
    free(packed);
    return error;
}
