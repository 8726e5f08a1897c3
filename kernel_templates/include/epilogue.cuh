// What happens to an accumulator on its way to memory: D = chain(alpha * acc + beta * C), once, in fp32.
// A new operation is one struct here and its name in gemmsweep/epilogue.py.
#pragma once
#include "types.cuh"

// Filled by the host, passed by value; the layout is repeated in gemmsweep/epilogue.py.
struct Epilogue {
    float alpha, beta;
    const void* bias;  // Out elements: n of them (Bias), or m (BiasRow)
    float slope;       // LeakyRelu
    float lo, hi;      // Clamp
};

struct Bias {
    template <class Out> static __device__ __forceinline__ float apply(float x, const Epilogue& e, i64, i64 col) {
        return x + to_float(static_cast<const Out*>(e.bias)[col]);
    }
};
struct BiasRow {
    template <class Out> static __device__ __forceinline__ float apply(float x, const Epilogue& e, i64 row, i64) {
        return x + to_float(static_cast<const Out*>(e.bias)[row]);
    }
};
struct Relu {
    template <class Out> static __device__ __forceinline__ float apply(float x, const Epilogue&, i64, i64) {
        return x < 0.0f ? 0.0f : x;  // a NaN stays a NaN
    }
};
struct LeakyRelu {
    template <class Out> static __device__ __forceinline__ float apply(float x, const Epilogue& e, i64, i64) {
        return x < 0.0f ? x * e.slope : x;
    }
};
struct Gelu {
    template <class Out> static __device__ __forceinline__ float apply(float x, const Epilogue&, i64, i64) {
        return 0.5f * x * (1.0f + erff(x * 0.70710678f));
    }
};
struct Silu {
    template <class Out> static __device__ __forceinline__ float apply(float x, const Epilogue&, i64, i64) {
        return x / (1.0f + expf(-x));
    }
};
struct Clamp {
    template <class Out> static __device__ __forceinline__ float apply(float x, const Epilogue& e, i64, i64) {
        return x < e.lo ? e.lo : x > e.hi ? e.hi : x;
    }
};

template <class... Ops> struct Chain {
    template <class Out> static __device__ __forceinline__ float apply(float x, const Epilogue& e, i64 row, i64 col) {
        ((x = Ops::template apply<Out>(x, e, row, col)), ...);
        return x;
    }
};

// One finished element of C, which lies at c; beta == 0 must not read C, whose old contents may be NaN. The roundings
// are spelled out: left to the compiler, which of the two products it fuses into the sum differs from kernel to kernel.
template <class Ops, class Out>
__device__ __forceinline__ float finish(float acc, const Out* c, const Epilogue& e, i64 row, i64 col) {
    float x = __fmul_rn(e.alpha, acc);
    if (e.beta != 0.0f) x = __fmaf_rn(e.beta, to_float(*c), x);
    return Ops::template apply<Out>(x, e, row, col);
}
