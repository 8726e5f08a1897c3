// Rows copied between matrices whose rows start at different places modulo 16 bytes: into padding, and back.
// A thread writes one aligned 16 bytes of the target; what it needs of the source straddles two aligned 16 bytes,
// which are read whole (the second one again by the neighbour, from L1) and shifted together.
// Up to three matrices in one launch. Beyond the columns of the source the target gets zeros.
#include "shifted.cuh"

typedef long long i64;

struct Job {
    const char* from; char* to;
    i64 from_stride, to_stride;                    // bytes
    unsigned rows, from_bytes, to_bytes;           // of a row
    unsigned chunks, blocks;                       // aligned 16 bytes of a row of the target; blocks of this job
};

__device__ uint4 shifted(const char* at) {
    const unsigned off = (unsigned)((size_t)at & 15);
    const uint4* aligned = reinterpret_cast<const uint4*>(at - off);
    const uint4 lo = aligned[0];
    return off == 0 ? lo : shifted(lo, aligned[1], off);
}

__device__ void copy_chunk(const Job& j, unsigned index) {
    const unsigned row = index / j.chunks, chunk = index % j.chunks;
    const char* from = j.from + row * j.from_stride;
    char* to = j.to + row * j.to_stride;
    const int begin = (int)(chunk * 16) - (int)((size_t)to & 15);  // of the 16 bytes, within the row; may be negative
    if (begin >= 0 && begin + 16 <= (int)min(j.from_bytes, j.to_bytes)) {
        *reinterpret_cast<uint4*>(to + begin) = shifted(from + begin);
        return;
    }
#pragma unroll
    for (int at = begin; at < begin + 16; at += (int)sizeof(ELEMENT)) {
        if (at < 0 || at >= (int)j.to_bytes) continue;
        *reinterpret_cast<ELEMENT*>(to + at) =
            at < (int)j.from_bytes ? *reinterpret_cast<const ELEMENT*>(from + at) : (ELEMENT)0;
    }
}

extern "C" __global__ void gemmsweep_pad_copy(Job first, Job second, Job third) {
    unsigned block = blockIdx.x;
    Job j = first;
    if (block >= j.blocks) { block -= j.blocks; j = second; }
    if (block >= j.blocks) { block -= j.blocks; j = third; }
    const unsigned total = j.rows * j.chunks;
#pragma unroll
    for (int i = 0; i < PER_THREAD; ++i) {
        const unsigned index = (block * PER_THREAD + i) * blockDim.x + threadIdx.x;
        if (index < total) copy_chunk(j, index);
    }
}
