// Kernels of the measuring itself: clock stamps and the L2 scrub.

// Each SM writes its cycle counter and the wall clock (ns), so that two stamps give its mean frequency between them.
extern "C" __global__ void gemmsweep_stamp(unsigned long long* slots, unsigned limit) {
    unsigned sm;
    unsigned long long now;
    asm volatile("mov.u32 %0, %%smid;" : "=r"(sm));
    if (sm >= limit || threadIdx.x) return;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    slots[2 * sm] = clock64();
    slots[2 * sm + 1] = now;
}

// Reads `chunks` of 16 bytes: the L2 then holds nothing else, and no dirty line whose write-back the burst would pay for.
extern "C" __global__ void gemmsweep_scrub(const uint4* memory, long long chunks, unsigned* never) {
    unsigned sum = 0;
    const long long step = (long long)gridDim.x * blockDim.x;
#pragma unroll 8
    for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < chunks; i += step) {
        const uint4 x = memory[i];
        sum |= x.x | x.y | x.z | x.w;
    }
    if (sum) *never = sum;  // the memory is zero: this keeps the loads
}
