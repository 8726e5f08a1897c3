// The instructions of sm_90a that CUDA C++ has no words for: mbarriers, TMA, clusters, registers of a warpgroup, wgmma.
// Shared memory is addressed by 32 bits; the CTAs of a cluster all have the same things at the same addresses.
#pragma once
#include "types.cuh"

typedef unsigned u32;
typedef unsigned long long u64;

struct alignas(64) TensorMap {  // CUtensorMap, encoded by the host
    unsigned char bytes[128];
};

// ---- mbarriers: a phase ends when the arrivals counted on have come, and the bytes expected have landed

__device__ __forceinline__ void mbarrier_init(u32 barrier, u32 arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
// Makes them known to whoever meets this thread at a barrier, that of its cluster included, and to TMA.
__device__ __forceinline__ void mbarrier_init_fence() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ __forceinline__ void mbarrier_arrive_expecting(u32 barrier, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
__device__ __forceinline__ void mbarrier_arrive(u32 barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
// Arrives on the barrier that lies at the same address in CTA `rank` of the cluster.
__device__ __forceinline__ void mbarrier_arrive_at(u32 barrier, u32 rank) {
    asm volatile("{\n.reg .b32 remote;\n"
                 "mapa.shared::cluster.u32 remote, %0, %1;\n"
                 "mbarrier.arrive.shared::cluster.b64 _, [remote];\n}" ::"r"(barrier), "r"(rank) : "memory");
}
// Waits for the end of a phase of this parity; that of the phase before the first is 1.
__device__ __forceinline__ void mbarrier_wait(u32 barrier, u32 parity) {
    asm volatile("{\n.reg .pred done;\n"
                 "again:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
                 "@!done bra again;\n}" ::"r"(barrier), "r"(parity) : "memory");
}

// As mbarrier_wait, where another CTA's stores end the phase.
__device__ __forceinline__ void mbarrier_wait_for_cluster(u32 barrier, u32 parity) {
    asm volatile("{\n.reg .pred done;\n"
                 "again:\n"
                 "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n"
                 "@!done bra again;\n}" ::"r"(barrier), "r"(parity) : "memory");
}

// ---- TMA: x counts elements along a row, y rows; what lies outside the matrix is read as zero and not written

__device__ __forceinline__ void prefetch(const TensorMap& map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}
__device__ __forceinline__ void tma_load(u32 to, const TensorMap& map, int x, int y, u32 barrier) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%2, %3}], [%4];"
                 ::"r"(to), "l"(&map), "r"(x), "r"(y), "r"(barrier) : "memory");
}
// Into every CTA of the cluster whose bit is set in `ranks`, each of which hears of it at its own barrier.
__device__ __forceinline__ void tma_multicast(u32 to, const TensorMap& map, int x, int y, u32 barrier, u32 ranks) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
                 "[%0], [%1, {%2, %3}], [%4], %5;"
                 ::"r"(to), "l"(&map), "r"(x), "r"(y), "r"(barrier), "h"((unsigned short)ranks) : "memory");
}
// EVICT_FIRST: lines of L2 that it leaves give way to others.
template <bool EVICT_FIRST> __device__ __forceinline__ void tma_store(const TensorMap& map, int x, int y, u32 from) {
    if constexpr (EVICT_FIRST) {
        u64 policy;
        asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
        asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group.L2::cache_hint [%0, {%1, %2}], [%3], %4;"
                     ::"l"(&map), "r"(x), "r"(y), "r"(from), "l"(policy) : "memory");
    } else {
        asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];"
                     ::"l"(&map), "r"(x), "r"(y), "r"(from) : "memory");
    }
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
// Until the stores of this thread, but for its last LEFT, have read shared memory.
template <int LEFT> __device__ __forceinline__ void tma_stores_have_read() {
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(LEFT) : "memory");
}
// What this thread wrote to shared memory becomes visible to TMA.
__device__ __forceinline__ void fence_for_tma() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// ---- threads

__device__ __forceinline__ u32 cluster_rank() {
    u32 rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}
// Where `address` lies in the shared memory of CTA `rank` of the cluster.
__device__ __forceinline__ u32 in_cta(u32 address, u32 rank) {
    u32 there;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
    return there;
}
// Both addresses are of another CTA of the cluster; its barrier hears of the 16 bytes when they have landed.
__device__ __forceinline__ void store_to_cluster(u32 to, float x, float y, float z, float w, u32 barrier) {
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];"
                 ::"r"(to), "f"(x), "f"(y), "f"(z), "f"(w), "r"(barrier) : "memory");
}
// The barrier of a cluster in its two halves: who has arrived can do other things before it waits for the others. Relaxed:
// it shows that they have begun and, by mbarrier_init_fence, that their mbarriers are ready, nothing else that was written.
// A release would have every thread wait until its memory is in order for the whole GPU.
__device__ __forceinline__ void cluster_arrive_relaxed() {
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
__device__ __forceinline__ void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }
__device__ __forceinline__ void named_sync(u32 barrier, u32 threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}
__device__ __forceinline__ void named_arrive(u32 barrier, u32 threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}
// Keeps the compiler from computing them anywhere but here.
__device__ __forceinline__ void settled(int& x, int& y) { asm volatile("" : "+r"(x), "+r"(y)); }
template <int COUNT> __device__ __forceinline__ void lower_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
}
template <int COUNT> __device__ __forceinline__ void raise_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
}

// A flag in global memory that says what its raiser's CTA wrote before, up to a barrier, can be read past one.
__device__ __forceinline__ void raise_flag(u32* flag) {
    asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(flag), "r"(1) : "memory");
}
__device__ __forceinline__ void await_and_lower_flag(u32* flag) {
    u32 raised;
    do asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(raised) : "l"(flag) : "memory");
    while (!raised);
    *flag = 0;
}

// Four 8x8 matrices of 2-byte elements; lane i gives the address of row i % 8 of matrix i / 8.
__device__ __forceinline__ void stmatrix(u32 to, u32 x, u32 y, u32 z, u32 w) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};"
                 ::"r"(to), "r"(x), "r"(y), "r"(z), "r"(w) : "memory");
}
template <class T> __device__ __forceinline__ T load_shared(u32 from) {
    T x;
    if constexpr (sizeof(T) == 4) asm volatile("ld.shared.b32 %0, [%1];" : "=r"(reinterpret_cast<u32&>(x)) : "r"(from));
    else asm volatile("ld.shared.b16 %0, [%1];" : "=h"(reinterpret_cast<unsigned short&>(x)) : "r"(from));
    return x;
}
__device__ __forceinline__ float4 load_shared_vector(u32 from) {
    float4 x;
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w) : "r"(from));
    return x;
}
__device__ __forceinline__ void store_shared(u32 to, float x, float y) {
    asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(to), "f"(x), "f"(y) : "memory");
}

// ---- wgmma: four warps multiply 64 rows of A with N columns of B, both in shared memory

// An operand in rows of 128 bytes, swizzled by TMA: eight rows after another lie 1024 bytes apart. Where the rows run
// along K, `panel_bytes` is ignored; where they run along N, it is the distance from 64 columns to the next 64.
// Adding bytes / 16 moves the start.
__device__ __forceinline__ u64 swizzled_128(u32 address, u32 panel_bytes) {
    return (u64)1 << 62 | (u64)(1024 / 16) << 32 | (u64)(panel_bytes / 16) << 16 | (address & 0x3ffff) / 16;
}
__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int IN_FLIGHT> __device__ __forceinline__ void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(IN_FLIGHT) : "memory");
}
// Keeps the compiler from reading accumulators before the wait above this line.
template <int COUNT> __device__ __forceinline__ void wgmma_settled(float (&d)[COUNT]) {
#pragma unroll
    for (int i = 0; i < COUNT; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

// WGMMA(N, "k16.f32.bf16.bf16", ", 1, 1, 0, 0") is d = A * B + accumulate * d: a and b are descriptors, d has N / 2
// registers, four for each eight columns. Inline PTX numbers its outputs first, and how many depends on N: so the three
// inputs pose as outputs, and have fixed numbers.
#define WGMMA(N, TYPES, TAIL) WGMMA_EXPANDED(N, TYPES, TAIL)
#define WGMMA_EXPANDED(N, TYPES, TAIL)                                                                               \
    asm volatile("{\n.reg .pred accumulate;\nsetp.ne.b32 accumulate, %2, 0;\n"                                      \
                 "wgmma.mma_async.sync.aligned.m64n" #N TYPES " {" WGMMA_NAMES_##N "}, %0, %1, accumulate" TAIL ";\n}" \
                 : "+l"(a), "+l"(b), "+r"(accumulate), WGMMA_REGISTERS_##N)
#define WGMMA_FOUR(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define WGMMA_NAMES_8 "%3, %4, %5, %6"
#define WGMMA_NAMES_16 WGMMA_NAMES_8 ", %7, %8, %9, %10"
#define WGMMA_NAMES_24 WGMMA_NAMES_16 ", %11, %12, %13, %14"
#define WGMMA_NAMES_32 WGMMA_NAMES_24 ", %15, %16, %17, %18"
#define WGMMA_NAMES_40 WGMMA_NAMES_32 ", %19, %20, %21, %22"
#define WGMMA_NAMES_48 WGMMA_NAMES_40 ", %23, %24, %25, %26"
#define WGMMA_NAMES_56 WGMMA_NAMES_48 ", %27, %28, %29, %30"
#define WGMMA_NAMES_64 WGMMA_NAMES_56 ", %31, %32, %33, %34"
#define WGMMA_NAMES_72 WGMMA_NAMES_64 ", %35, %36, %37, %38"
#define WGMMA_NAMES_80 WGMMA_NAMES_72 ", %39, %40, %41, %42"
#define WGMMA_NAMES_88 WGMMA_NAMES_80 ", %43, %44, %45, %46"
#define WGMMA_NAMES_96 WGMMA_NAMES_88 ", %47, %48, %49, %50"
#define WGMMA_NAMES_104 WGMMA_NAMES_96 ", %51, %52, %53, %54"
#define WGMMA_NAMES_112 WGMMA_NAMES_104 ", %55, %56, %57, %58"
#define WGMMA_NAMES_120 WGMMA_NAMES_112 ", %59, %60, %61, %62"
#define WGMMA_NAMES_128 WGMMA_NAMES_120 ", %63, %64, %65, %66"
#define WGMMA_NAMES_136 WGMMA_NAMES_128 ", %67, %68, %69, %70"
#define WGMMA_NAMES_144 WGMMA_NAMES_136 ", %71, %72, %73, %74"
#define WGMMA_NAMES_152 WGMMA_NAMES_144 ", %75, %76, %77, %78"
#define WGMMA_NAMES_160 WGMMA_NAMES_152 ", %79, %80, %81, %82"
#define WGMMA_NAMES_168 WGMMA_NAMES_160 ", %83, %84, %85, %86"
#define WGMMA_NAMES_176 WGMMA_NAMES_168 ", %87, %88, %89, %90"
#define WGMMA_NAMES_184 WGMMA_NAMES_176 ", %91, %92, %93, %94"
#define WGMMA_NAMES_192 WGMMA_NAMES_184 ", %95, %96, %97, %98"
#define WGMMA_NAMES_200 WGMMA_NAMES_192 ", %99, %100, %101, %102"
#define WGMMA_NAMES_208 WGMMA_NAMES_200 ", %103, %104, %105, %106"
#define WGMMA_NAMES_216 WGMMA_NAMES_208 ", %107, %108, %109, %110"
#define WGMMA_NAMES_224 WGMMA_NAMES_216 ", %111, %112, %113, %114"
#define WGMMA_NAMES_232 WGMMA_NAMES_224 ", %115, %116, %117, %118"
#define WGMMA_NAMES_240 WGMMA_NAMES_232 ", %119, %120, %121, %122"
#define WGMMA_NAMES_248 WGMMA_NAMES_240 ", %123, %124, %125, %126"
#define WGMMA_NAMES_256 WGMMA_NAMES_248 ", %127, %128, %129, %130"
#define WGMMA_REGISTERS_8 WGMMA_FOUR(0)
#define WGMMA_REGISTERS_16 WGMMA_REGISTERS_8, WGMMA_FOUR(4)
#define WGMMA_REGISTERS_24 WGMMA_REGISTERS_16, WGMMA_FOUR(8)
#define WGMMA_REGISTERS_32 WGMMA_REGISTERS_24, WGMMA_FOUR(12)
#define WGMMA_REGISTERS_40 WGMMA_REGISTERS_32, WGMMA_FOUR(16)
#define WGMMA_REGISTERS_48 WGMMA_REGISTERS_40, WGMMA_FOUR(20)
#define WGMMA_REGISTERS_56 WGMMA_REGISTERS_48, WGMMA_FOUR(24)
#define WGMMA_REGISTERS_64 WGMMA_REGISTERS_56, WGMMA_FOUR(28)
#define WGMMA_REGISTERS_72 WGMMA_REGISTERS_64, WGMMA_FOUR(32)
#define WGMMA_REGISTERS_80 WGMMA_REGISTERS_72, WGMMA_FOUR(36)
#define WGMMA_REGISTERS_88 WGMMA_REGISTERS_80, WGMMA_FOUR(40)
#define WGMMA_REGISTERS_96 WGMMA_REGISTERS_88, WGMMA_FOUR(44)
#define WGMMA_REGISTERS_104 WGMMA_REGISTERS_96, WGMMA_FOUR(48)
#define WGMMA_REGISTERS_112 WGMMA_REGISTERS_104, WGMMA_FOUR(52)
#define WGMMA_REGISTERS_120 WGMMA_REGISTERS_112, WGMMA_FOUR(56)
#define WGMMA_REGISTERS_128 WGMMA_REGISTERS_120, WGMMA_FOUR(60)
#define WGMMA_REGISTERS_136 WGMMA_REGISTERS_128, WGMMA_FOUR(64)
#define WGMMA_REGISTERS_144 WGMMA_REGISTERS_136, WGMMA_FOUR(68)
#define WGMMA_REGISTERS_152 WGMMA_REGISTERS_144, WGMMA_FOUR(72)
#define WGMMA_REGISTERS_160 WGMMA_REGISTERS_152, WGMMA_FOUR(76)
#define WGMMA_REGISTERS_168 WGMMA_REGISTERS_160, WGMMA_FOUR(80)
#define WGMMA_REGISTERS_176 WGMMA_REGISTERS_168, WGMMA_FOUR(84)
#define WGMMA_REGISTERS_184 WGMMA_REGISTERS_176, WGMMA_FOUR(88)
#define WGMMA_REGISTERS_192 WGMMA_REGISTERS_184, WGMMA_FOUR(92)
#define WGMMA_REGISTERS_200 WGMMA_REGISTERS_192, WGMMA_FOUR(96)
#define WGMMA_REGISTERS_208 WGMMA_REGISTERS_200, WGMMA_FOUR(100)
#define WGMMA_REGISTERS_216 WGMMA_REGISTERS_208, WGMMA_FOUR(104)
#define WGMMA_REGISTERS_224 WGMMA_REGISTERS_216, WGMMA_FOUR(108)
#define WGMMA_REGISTERS_232 WGMMA_REGISTERS_224, WGMMA_FOUR(112)
#define WGMMA_REGISTERS_240 WGMMA_REGISTERS_232, WGMMA_FOUR(116)
#define WGMMA_REGISTERS_248 WGMMA_REGISTERS_240, WGMMA_FOUR(120)
#define WGMMA_REGISTERS_256 WGMMA_REGISTERS_248, WGMMA_FOUR(124)
