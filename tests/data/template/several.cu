// A repository's file as it is: helpers, three kernels, a launcher, a main.
#include <cublas_v2.h>
#include <cuda_runtime.h>
#include <helper_cuda.h>

#include <chrono>
#include <cstdint>
#include <iostream>
#include <random>
#include <type_traits>
#include <vector>

#define CEIL_DIV(a, b) (((a) + (b)-1) / (b))
#define CHECK(call) do { if ((call) != cudaSuccess) { std::cerr << "failed {" << std::endl; exit(1); } } while (0)
#define HOST_DEVICE __host__ __device__ __forceinline__

using std::vector;
static int verbose = 0;
static const char *names[] = {"one {", "two"};
std::vector<float> host_a{1.0f, 2.0f};
cublasHandle_t handle;
constexpr int WARP = 32;

constexpr int threads_of(int tiles) { return tiles * WARP; }
HOST_DEVICE float twice(float x) { return x + x; }

struct Timer {
  std::chrono::time_point<std::chrono::steady_clock> start;
  Timer() : start{std::chrono::steady_clock::now()} {}
  double seconds() const { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(); }
};

struct Pair {
  float x, y;
  __device__ Pair operator+(const Pair &other) const { return {x + other.x, y + other.y}; }
  bool operator<(const Pair &other) const { return x < other.x; }
  friend std::ostream &operator<<(std::ostream &out, const Pair &p) { return out << p.x; }
};

__global__ void fill(float *out, float value, int count) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) out[i] = value;
}

namespace mine {
template <int BM, int BN, int BK, int TM, int TN>
__global__ void __launch_bounds__((BM * BN) / (TM * TN)) sgemm(int M, int N, int K, const float *A, const float *B,
                                                              float *C) {
  static_assert(std::is_same<float, float>::value, "");
  auto at = [=](int row, int column) { return uint64_t(row) * N + column; };
  __shared__ float slab[BM * BK + threads_of(1)];
  slab[threadIdx.x % (BM * BK)] = A[threadIdx.x];
  __syncthreads();
  Pair sum = Pair{slab[0], 0.0f} + Pair{B[K - 1], 0.0f};
  C[at(blockIdx.y * BM, blockIdx.x * BN) + threadIdx.x % BN] = twice(sum.x);
}

template <typename F>
void launch(F wanted, int rows, int columns, int depth, float *a, float *b, float *c, dim3 extra = {1, 1, 1}) {
  const uint TILE_K = 8;
  constexpr int bm = 64, per = 8;
  const unsigned bn = 64;
  dim3 grid(CEIL_DIV(columns, bn), CEIL_DIV(rows, 64));
  dim3 block((64 * bn) / (8 * 8));
  sgemm<64, bn, TILE_K, 8, 8><<<grid, block>>>(rows, columns, depth, a, b, c);
}
}  // namespace mine

extern "C" {
__global__ void copy(const float *in, float *out) { out[threadIdx.x] = in[threadIdx.x]; }
void plain_host(float *);
}

int main(int argc, char **argv)
{
#ifdef ONE
  if (argc > 1) {
#else
  if (argc > 2) {
#endif
    const char *text = R"x(}} " )x"; char brace = '}';  // }
    mine::launch([](int x) { return x; }, 64, 64, 64, nullptr, nullptr, nullptr);
  }
  vector<float> numbers(10);
  CHECK(cudaDeviceSynchronize());
  return verbose;
}
