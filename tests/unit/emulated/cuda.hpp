// CUDA on the host, for tests: every thread of a block is a fiber, blocks run one after the other, but those of a cluster
// together, and the PTX that the templates write is carried out as its definition says. What is not known here ends the
// process with its text.
#pragma once
#include <ucontext.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#define __device__
#define __host__
#define __global__
#define __forceinline__ inline
#define __restrict__
#define __grid_constant__
#define __shared__ static
#define __align__(n) __attribute__((aligned(n)))
#define __launch_bounds__(...)
#define __maxnreg__(...)
#define __cluster_dims__(...)
#define __CUDA_ARCH__ 900

namespace emulated {

struct Index {
    unsigned x, y, z;
};
Index threadIdx, blockIdx, blockDim, gridDim;
constexpr unsigned MAX_CLUSTER = 8;
alignas(1024) unsigned char shared_memory[MAX_CLUSTER][256 * 1024];
unsigned rank;                                    // in its cluster, of the block whose thread runs
unsigned char* host_shared = shared_memory[rank];  // that block's

[[noreturn]] inline void give_up(const std::string& why) {
    fprintf(stderr, "emulated CUDA: %s\n", why.c_str());
    fflush(stderr);
    _Exit(3);
}

// ---- threads

constexpr size_t STACK_BYTES = 256 * 1024;
// A cp.async on its way: it lands when its thread waits for its group, and not before, whatever the hardware would do.
struct InFlight {
    unsigned to;
    const void* from;
    int size, bytes;
    unsigned group;
};
struct Fiber {
    ucontext_t context;
    std::unique_ptr<char[]> stack;
    bool done = false;
    std::vector<InFlight> in_flight;
    unsigned group = 0;  // that the next cp.async is part of
    unsigned cluster_phase = 0;
};
std::vector<Fiber> fibers;
ucontext_t scheduler;
unsigned current, progress;
bool alone;  // one thread at a time, nobody waits for anybody: to see what a thread writes, not what
void (*kernel)();

inline void yield() { swapcontext(&fibers[current].context, &scheduler); }
inline void fiber_main();

struct Barrier {
    unsigned arrived = 0, phase = 0;
    // The last to come runs `work` before the others go on.
    template <class Work> void wait(unsigned count, Work work) {
        if (alone) return;
        const unsigned mine = phase;
        if (++arrived == count) {
            work();
            arrived = 0;
            ++phase;
            ++progress;
        } else {
            while (phase == mine) yield();
        }
    }
};
// Waits until all but the last `groups` of this thread's groups of copies have landed.
inline void land(unsigned groups) {
    std::vector<InFlight>& all = fibers[current].in_flight;
    size_t kept = 0;
    for (const InFlight& copy : all) {
        if (copy.group + groups >= fibers[current].group) {
            all[kept++] = copy;
            continue;
        }
        memset(host_shared + copy.to, 0, copy.size);
        if (copy.bytes) memcpy(host_shared + copy.to, copy.from, copy.bytes);
    }
    all.resize(kept);
}

struct Warp {
    Barrier barrier;
    void* lanes[32];
};
struct Block {
    Index index;
    Barrier barrier, named[16];
    std::vector<Warp> warps;
    unsigned running = 0;  // threads
    int any_so_far = 0;
};
Block blocks[MAX_CLUSTER];  // of the cluster
bool (*every_turn)() = [] { return false; };  // what hardware does while threads take a step: is any of it left to do?
void (*block_ends)() = [] {};
unsigned cluster_size = 1, cluster_phase, cluster_arrivals, clusters_begun;

inline void fiber_main() {
    kernel();
    fibers[current].done = true;
    if (--blocks[rank].running == 0 && !alone) block_ends();
    ++progress;
}

// All 32 lanes come here with operands of their own; `work` sees them all.
template <class T, class Work> void collective(T& mine, Work work) {
    if (alone) return;
    Warp& warp = blocks[rank].warps[threadIdx.x / 32];
    warp.lanes[threadIdx.x % 32] = &mine;
    warp.barrier.wait(32, [&] { work(reinterpret_cast<T**>(warp.lanes)); });
}

inline void __syncthreads() {
    blocks[rank].barrier.wait(blockDim.x, [] {});
}
inline void __syncwarp(unsigned = ~0u) {
    int nothing = 0;
    collective(nothing, [](int**) {});
}

// Both halves of a cluster's barrier; a thread waits for the phase in which it arrived.
inline void cluster_arrive() {
    fibers[current].cluster_phase = cluster_phase;
    if (++cluster_arrivals < cluster_size * blockDim.x) return;
    cluster_arrivals = 0;
    ++cluster_phase;
    ++progress;
}
inline void cluster_wait() {
    while (cluster_phase == fibers[current].cluster_phase) yield();
}
// An address as `mapa` gives it: above those of a block's own, with the rank of the block that it is of.
inline unsigned mapped(unsigned address, unsigned to) { return address | (to + 1) << 24; }
inline unsigned rank_of(unsigned address) {
    const unsigned of = address >> 24 ? (address >> 24) - 1 : rank;
    if (!alone && of >= cluster_size) give_up("the cluster has no such block");
    if (!alone && !blocks[of].running) give_up("shared memory of a block that has ended");
    return of;
}
inline unsigned char* shared_at(unsigned address) {
    return shared_memory[alone ? 0 : rank_of(address)] + (address & 0xffffff);
}

inline void start(Fiber& fiber) {
    fiber.done = false;
    fiber.in_flight.clear();
    fiber.group = 0;
    if (!fiber.stack) fiber.stack.reset(new char[STACK_BYTES]);  // untouched pages cost nothing
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.stack.get();
    fiber.context.uc_stack.ss_size = STACK_BYTES;
    fiber.context.uc_link = &scheduler;
    makecontext(&fiber.context, fiber_main, 0);
}
inline void resume(unsigned fiber) {
    current = fiber;
    rank = fiber / blockDim.x;
    host_shared = shared_memory[rank];
    threadIdx = {fiber % blockDim.x, 0, 0};
    blockIdx = blocks[rank].index;
    swapcontext(&scheduler, &fibers[fiber].context);
}
// Blocks `first` and those after it along x.
inline void run_cluster(Index first) {
    const unsigned threads = blockDim.x * cluster_size;
    for (unsigned r = 0; r < cluster_size; ++r) {
        blocks[r] = Block();
        blocks[r].index = {first.x + r, first.y, first.z};
        blocks[r].warps.assign((blockDim.x + 31) / 32, Warp());
        blocks[r].running = blockDim.x;
    }
    cluster_phase = cluster_arrivals = 0;
    ++clusters_begun;
    fibers.resize(threads);
    for (Fiber& fiber : fibers) start(fiber);
    for (unsigned left = threads, idle = 0, round = 0; left; ++round) {
        const unsigned before = progress;
        left = 0;
        for (unsigned turn = 0; turn < threads; ++turn) {
            const unsigned next = before % 2 ? threads - 1 - turn : turn;  // who runs ahead where a barrier lacks, changes
            if (fibers[next].done) continue;
            // The first of a cluster begins long before the others and takes nine steps for each of theirs.
            if (next < blockDim.x || (round > 256 && round % 9 == 0)) resume(next);
            left += !fibers[next].done;
        }
        every_turn();
        idle = progress == before ? idle + 1 : 0;
        if (idle > 1000) give_up("every thread waits");
    }
    if (every_turn()) give_up("a block has ended with loads on their way");
}

inline void run_grid(void (*body)(), Index grid, unsigned threads, unsigned cluster) {
    kernel = body;
    gridDim = grid;
    blockDim = {threads, 1, 1};
    cluster_size = cluster;
    if (cluster > MAX_CLUSTER || grid.x % cluster) give_up("a grid that is no whole number of clusters");
    for (unsigned z = 0; z < grid.z; ++z)
        for (unsigned y = 0; y < grid.y; ++y)
            for (unsigned x = 0; x < grid.x; x += cluster) run_cluster({x, y, z});
    fibers.clear();
}

// Which thread of block (0, 0, 0) writes an element of C: each runs by itself over a C that is all poison.
template <class T> void find_owners(void (*body)(), Index grid, unsigned threads, T* C, long elements, int* owner) {
    alone = true;
    rank = 0;
    host_shared = shared_memory[0];
    gridDim = grid;
    blockDim = {threads, 1, 1};
    blockIdx = {0, 0, 0};
    for (unsigned t = 0; t < threads; ++t) {
        memset(C, 0xA5, elements * sizeof(T));
        threadIdx = {t, 0, 0};
        body();
        for (long i = 0; i < elements; ++i) {
            T poison;
            memset(&poison, 0xA5, sizeof(T));
            if (memcmp(&C[i], &poison, sizeof(T))) owner[i] = owner[i] == -1 ? int(t) : -2;
        }
    }
    alone = false;
}

// ---- what CUDA C++ has of its own

template <class A, class B> constexpr std::common_type_t<A, B> min(A a, B b) {
    return b < a ? std::common_type_t<A, B>(b) : std::common_type_t<A, B>(a);
}
template <class A, class B> constexpr std::common_type_t<A, B> max(A a, B b) {
    return a < b ? std::common_type_t<A, B>(b) : std::common_type_t<A, B>(a);
}
template <class T, int N> struct alignas(sizeof(T) * N) Vec;
template <class T> struct alignas(2 * sizeof(T)) Vec<T, 2> { T x, y; };
template <class T> struct alignas(4 * sizeof(T)) Vec<T, 4> { T x, y, z, w; };
typedef Vec<float, 2> float2;
typedef Vec<float, 4> float4;
typedef Vec<int, 4> int4;
typedef Vec<unsigned, 2> uint2;
typedef Vec<unsigned, 4> uint4;
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
template <class To, class From> To bits_as(From from) {
    static_assert(sizeof(To) == sizeof(From), "");
    To to;
    memcpy(&to, &from, sizeof to);
    return to;
}
inline float __uint_as_float(unsigned x) { return bits_as<float>(x); }
inline unsigned __float_as_uint(float x) { return bits_as<unsigned>(x); }
inline float __int_as_float(int x) { return bits_as<float>(x); }
inline int __float_as_int(float x) { return bits_as<int>(x); }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
inline unsigned long long __cvta_generic_to_shared(const void* p) {
    return static_cast<const unsigned char*>(p) - host_shared;
}
inline void __threadfence() {}
inline void __threadfence_block() {}
inline void __nanosleep(unsigned) { if (!alone) yield(); }
template <class T> T __ldg(const T* p) { return *p; }
template <class T> T __ldcg(const T* p) { return *p; }
template <class T> T __ldcs(const T* p) { return *p; }
template <class T> void __stcg(T* p, T x) { *p = x; }
template <class T> void __stcs(T* p, T x) { *p = x; }
inline int __clz(int x) { return x ? __builtin_clz((unsigned)x) : 32; }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned by) {
    return (unsigned)((((unsigned long long)high << 32) | low) >> (by & 31));
}
template <class T> T atomicAdd(T* p, T x) { const T old = *p; *p += x; return old; }
template <class T> T atomicExch(T* p, T x) { const T old = *p; *p = x; return old; }
template <class T> T shuffled(T mine, int from) {
    if (alone) return mine;
    struct Lane { T value; int from; T result; } lane = {mine, from, mine};
    collective(lane, [](Lane** all) {
        for (int i = 0; i < 32; ++i) all[i]->result = all[all[i]->from & 31]->value;
    });
    return lane.result;
}
template <class T, class Fold> T folded(T mine, Fold fold) {
    if (alone) return mine;
    struct Lane { T value, result; } lane = {mine, mine};
    collective(lane, [&](Lane** all) {
        T sum = all[0]->value;
        for (int i = 1; i < 32; ++i) sum = fold(sum, all[i]->value);
        for (int i = 0; i < 32; ++i) all[i]->result = sum;
    });
    return lane.result;
}
template <class T> T __reduce_max_sync(unsigned, T x) { return folded(x, [](T a, T b) { return a < b ? b : a; }); }
inline int __any_sync(unsigned, int x) { return folded(x != 0, [](int a, int b) { return a | b; }); }
inline int __all_sync(unsigned, int x) { return folded(x != 0, [](int a, int b) { return a & b; }); }
inline int __syncthreads_or(int x) {
    int& any_so_far = blocks[rank].any_so_far;
    __syncthreads();
    if (threadIdx.x == 0) any_so_far = 0;
    __syncthreads();
    any_so_far |= x != 0;
    __syncthreads();
    return any_so_far;
}
template <class T> T __shfl_xor_sync(unsigned, T x, int mask) { return shuffled(x, int(threadIdx.x % 32) ^ mask); }
template <class T> T __shfl_sync(unsigned, T x, int from) { return shuffled(x, from); }
template <class T> T __shfl_down_sync(unsigned, T x, int by) {
    const int from = int(threadIdx.x % 32) + by;
    return shuffled(x, from < 32 ? from : int(threadIdx.x % 32));
}

}  // namespace emulated
