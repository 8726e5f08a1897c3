"""The least that synchronises as `wgmma` does: bulk copies into two stages, full and empty mbarriers. It is right.

    compute-sanitizer --tool racecheck python tests/benchmarks/minimal_mbarrier.py        needs a GPU from sm_90 on

128 threads feed a ring of two stages of 256 floats, 128 sum what is in it; the sums are compared with CuPy's.
"""

SOURCE = r"""
extern "C" __global__ void bulk(const float* in, float* out) {
    __shared__ __align__(128) float data[2][256];
    __shared__ __align__(8) unsigned long long full[2], empty[2];
    unsigned f0 = (unsigned)__cvta_generic_to_shared(&full[0]), e0 = (unsigned)__cvta_generic_to_shared(&empty[0]);
    if (threadIdx.x == 0) {
        for (int i = 0; i < 2; ++i) {
            asm volatile("mbarrier.init.shared.b64 [%0], 1;" :: "r"(f0 + 8 * i));
            asm volatile("mbarrier.init.shared.b64 [%0], 1;" :: "r"(e0 + 8 * i));
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    auto wait = [](unsigned bar, unsigned parity) {
        asm volatile(
            "{\n.reg .pred p;\nW:\nmbarrier.try_wait.parity.shared.b64 p, [%0], %1;\n@!p bra W;\n}"
            :: "r"(bar), "r"(parity) : "memory");
    };
    if (threadIdx.x < 128) {
        if (threadIdx.x == 0)
            for (int k = 0; k < 8; ++k) {
                int s = k % 2;
                wait(e0 + 8 * s, (k / 2 & 1) ^ 1);
                asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], 1024;" :: "r"(f0 + 8 * s) : "memory");
                asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], 1024, [%2];"
                    :: "r"((unsigned)__cvta_generic_to_shared(data[s])), "l"(in + k * 256), "r"(f0 + 8 * s) : "memory");
            }
    } else {
        float sum = 0;
        for (int k = 0; k < 8; ++k) {
            int s = k % 2;
            wait(f0 + 8 * s, k / 2 & 1);
            sum += data[s][threadIdx.x - 128] + data[s][threadIdx.x];
            asm volatile("bar.sync 1, 128;" ::: "memory");
            if (threadIdx.x == 128) asm volatile("mbarrier.arrive.shared.b64 _, [%0];" :: "r"(e0 + 8 * s) : "memory");
        }
        out[threadIdx.x - 128] = sum;
    }
}"""
RIGHT = "the sums are right"


def main() -> None:
    import cupy as cp

    kernel = cp.RawModule(code=SOURCE, options=("-std=c++17",)).get_function("bulk")
    values, sums = cp.random.rand(8 * 256, dtype=cp.float32), cp.empty(128, dtype=cp.float32)
    kernel((1,), (256,), (values, sums))
    wanted = values.reshape(8, 2, 128).sum(axis=(0, 1))
    print(RIGHT if cp.allclose(sums, wanted) else "the sums are wrong")


if __name__ == "__main__":
    main()
