// PTX of sm_90a: mbarriers, TMA, warpgroups. A cluster has one CTA here. And what tells all PTX apart.
#pragma once
#include "ptx.hpp"

namespace emulated {

struct MemoryBarrier {
    unsigned count, pending, phase;
    long bytes;
};
std::map<unsigned, MemoryBarrier> memory_barriers;
inline void turn(MemoryBarrier& b) {
    if (b.pending == 0 && b.bytes == 0) b.pending = b.count, ++b.phase, ++progress;
}

// What the tests put into the 128 bytes of a tensor map.
struct Map {
    unsigned char* base;
    long columns, rows, row_bytes;
    int element, box_columns, box_rows, swizzle;
};
// The XOR that TMA and wgmma apply to an address in shared memory: 16-byte chunks by the number of the 128-byte row.
inline unsigned swizzled(unsigned address, int bytes) { return address ^ (address >> 3 & (bytes - 1) & 0x70); }
// `columns`: of a row in memory, within which what is copied counts as inside.
template <class Each> void each_row(const Map& map, long columns, int x, int y, unsigned shared, Each each) {
    const int bytes = map.box_columns * map.element;
    for (int r = 0; r < map.box_rows; ++r)
        for (int c = 0; c < map.box_columns; ++c) {
            const bool inside = x + c >= 0 && x + c < columns && y + r >= 0 && y + r < map.rows;
            const unsigned at = swizzled(shared + r * bytes + c * map.element, map.swizzle);
            each(host_shared + at, inside ? map.base + (y + r) * map.row_bytes + (long)(x + c) * map.element : nullptr);
        }
}
inline void tensor_copy(const std::string& text, std::vector<Operand>& ops) {
    Map map;
    const bool load = has(text, "mbarrier::complete_tx");
    const unsigned shared = (unsigned)ops[load ? 0 : 3].value;
    memcpy(&map, reinterpret_cast<const void*>(ops[load ? 1 : 0].value), sizeof map);
    const int x = (int)ops[load ? 2 : 1].value, y = (int)ops[load ? 3 : 2].value;
    if (shared % 128 || (map.swizzle && shared % (8 * map.swizzle))) give_up("misaligned " + text);
    if (has(text, "multicast") && ops[5].value != 1) give_up("a cluster has one CTA here: " + text);
    // A store writes whole 16 bytes, what follows the last column in them too (seen on an H200).
    const long chunk = 16 / map.element, columns = load ? map.columns : (map.columns + chunk - 1) / chunk * chunk;
    each_row(map, columns, x, y, shared, [&](unsigned char* here, unsigned char* there) {
        if (load && there) memcpy(here, there, map.element);
        if (load && !there) memset(here, 0, map.element);
        if (!load && there) memcpy(there, here, map.element);
    });
    if (!load || alone) return;
    MemoryBarrier& barrier = memory_barriers.at((unsigned)ops[4].value);
    barrier.bytes -= (long)map.box_columns * map.box_rows * map.element;
    turn(barrier);
}

// Where a descriptor of wgmma says that byte `byte` of row `row` lies; along N, `row` is of K, and `byte` runs on in panels.
struct Descriptor {
    unsigned start, leading, stride;
    explicit Descriptor(unsigned long long d)
        : start(unsigned(d & 0x3fff) << 4), leading(unsigned(d >> 16 & 0x3fff) << 4), stride(unsigned(d >> 32 & 0x3fff) << 4) {
        if (d >> 62 != 1) give_up("a descriptor without the swizzle of 128 bytes");
    }
    unsigned char* at(int row, int byte) const {
        return host_shared + swizzled(start + row / 8 * stride + row % 8 * 128 + byte / 128 * leading + byte % 128, 128);
    }
};
struct GroupLane {
    std::vector<float> d;
    int lane;
};
Barrier group_barriers[8];
GroupLane* group_lanes[8][128];
inline float element_at(const unsigned char* p, char type) {
    unsigned short bits;
    unsigned word;
    memcpy(&bits, p, 2);
    if (type == 'b') return bf16_bits(bits);
    if (type == 'f') return half_bits(bits);
    memcpy(&word, p, 4);
    return __uint_as_float(word & ~0x1fffu);
}
inline void warpgroup_multiply(const std::string& text, std::vector<Operand>& ops) {
    const size_t at = text.find(".m64n") + 5;
    const int N = atoi(text.c_str() + at);
    const char type = has(text, "bf16.bf16") ? 'b' : has(text, "f16.f16") ? 'f' : has(text, "tf32.tf32") ? 't' : '?';
    const int size = type == 't' ? 4 : 2, depth = 32 / size;
    if (type == '?' || (int)ops.size() != 3 + N / 2 || !has(text, ".f32.")) give_up(text);
    const bool along_n = type != 't' && has(text, "1, 1, 0, 1");
    const Descriptor a(ops[0].value), b(ops[1].value);
    const bool accumulate = (unsigned)ops[2].value != 0;
    const unsigned group = threadIdx.x / 128;
    GroupLane mine = {std::vector<float>(N / 2), int(threadIdx.x % 128)};
    for (int r = 0; r < N / 2; ++r) mine.d[r] = accumulate ? __uint_as_float((unsigned)ops[3 + r].value) : 0.0f;
    group_lanes[group][mine.lane] = &mine;
    group_barriers[group].wait(128, [&] {
        std::vector<float> left(64 * depth), right(depth * N);
        for (int row = 0; row < 64; ++row)
            for (int k = 0; k < depth; ++k) left[row * depth + k] = element_at(a.at(row, k * size), type);
        for (int n = 0; n < N; ++n)
            for (int k = 0; k < depth; ++k)
                right[k * N + n] = element_at(along_n ? b.at(k, n * size) : b.at(n, k * size), type);
        for (GroupLane* lane : group_lanes[group])
            for (int r = 0; r < N / 2; ++r) {
                const int row = lane->lane / 32 * 16 + lane->lane % 32 / 4 + r % 4 / 2 * 8;
                const int column = r / 4 * 8 + lane->lane % 4 * 2 + r % 2;
                for (int k = 0; k < depth; ++k) lane->d[r] += left[row * depth + k] * right[k * N + column];
            }
    });
    for (int r = 0; r < N / 2; ++r) memcpy(ops[3 + r].to, &mine.d[r], 4);
}

inline void store_matrices(const std::string& text, std::vector<Operand>& ops) {
    struct Lane { unsigned to, x[4]; } lane = {};
    if (!has(text, ".m8n8.x4.shared.b16")) give_up(text);
    lane.to = (unsigned)ops[0].value;
    for (int q = 0; q < 4; ++q) lane.x[q] = (unsigned)ops[1 + q].value;
    collective(lane, [](Lane** all) {
        for (int l = 0; l < 32; ++l)
            for (int q = 0; q < 4; ++q) memcpy(host_shared + all[8 * q + l / 4]->to + l % 4 * 4, &all[l]->x[q], 4);
    });
}

inline bool ptx_hopper(const std::string& text, std::vector<Operand>& ops) {
    const auto barrier = [&](int i) -> MemoryBarrier& { return memory_barriers[(unsigned)ops[i].value]; };
    if (has(text, "wgmma.mma_async")) warpgroup_multiply(text, ops);
    else if (has(text, "cp.async.bulk.tensor.2d")) tensor_copy(text, ops);
    else if (has(text, "stmatrix")) store_matrices(text, ops);
    else if (has(text, "mbarrier.init")) barrier(0) = {(unsigned)ops[1].value, (unsigned)ops[1].value, 0, 0};
    else if (has(text, "mbarrier.try_wait.parity")) {
        while (!alone && (barrier(0).phase & 1) == (unsigned)ops[1].value) yield();
    } else if (has(text, "mbarrier.arrive")) {
        if (has(text, "mapa") && ops[1].value != 0) give_up("a cluster has one CTA here");
        if (alone) return true;
        if (has(text, "expect_tx")) barrier(0).bytes += (long)ops[1].value;
        if (barrier(0).pending-- == 0) give_up("too many arrivals at an mbarrier");
        turn(barrier(0));
    } else if (has(text, "%%cluster_ctarank")) {
        memset(ops[0].to, 0, 4);
    } else if (has(text, "barrier.cluster")) {
        __syncthreads();
    } else if (has(text, "bar.sync")) {
        named_barriers[ops[0].value].wait((unsigned)ops[1].value, [] {});
    } else if (has(text, "bar.arrive")) {
        Barrier& b = named_barriers[ops[0].value];
        if (!alone && ++b.arrived == (unsigned)ops[1].value) b.arrived = 0, ++b.phase, ++progress;
    } else {
        return has(text, "wgmma.") || has(text, "setmaxnreg") || has(text, "cp.async.bulk.commit_group") ||
               has(text, "cp.async.bulk.wait_group") || has(text, "fence.");
    }
    return true;
}

inline void ptx(const char* words, std::vector<Operand> ops) {
    const std::string text = words;
    const auto starts = [&](const char* word) { return text.compare(0, strlen(word), word) == 0; };
    for (const char* order : {"fence.", "prefetch", "griddepcontrol", "membar", "createpolicy"})
        if (starts(order)) return;
    if (starts("cp.async.commit_group") || starts("cp.async.wait_group")) {
        if (alone) return;
        if (starts("cp.async.commit_group")) ++fibers[current].group;
        else land((unsigned)ops[0].value);
        return;
    }
    if (starts("{.reg .u16 x; ld.global")) {  // a 2-byte load into a 4-byte register
        unsigned short x;
        memcpy(&x, reinterpret_cast<const void*>(ops[1].value), 2);
        const unsigned wide = x;
        memcpy(ops[0].to, &wide, 4);
        return;
    }
    if (text.empty() || ptx_hopper(text, ops) || ptx_memory(text, ops) || ptx_convert(text, ops)) return;
    if (starts("cp.async.ca.shared") || starts("cp.async.cg.shared")) ptx_copy(text, ops);
    else if (starts("ldmatrix.sync.aligned.m8n8") || starts("mma.sync.aligned")) ptx_matrices(text, ops);
    else give_up("unknown PTX: " + text);
}

}  // namespace emulated

// What a kernel may name; the rest would be in the way of its own names.
using emulated::threadIdx, emulated::blockIdx, emulated::blockDim, emulated::gridDim, emulated::min, emulated::max;
using emulated::float2, emulated::float4, emulated::int4, emulated::uint2, emulated::uint4;
using emulated::make_float2, emulated::make_float4, emulated::make_uint2, emulated::make_uint4;
using emulated::__uint_as_float, emulated::__float_as_uint, emulated::__int_as_float, emulated::__float_as_int;
using emulated::__fmul_rn, emulated::__fadd_rn, emulated::__fmaf_rn, emulated::__cvta_generic_to_shared;
using emulated::__ldg, emulated::__ldcg, emulated::__ldcs, emulated::__stcg, emulated::__stcs;
using emulated::__clz, emulated::__popc, emulated::__funnelshift_r, emulated::__nanosleep;
using emulated::__threadfence, emulated::__threadfence_block, emulated::atomicAdd, emulated::atomicExch;
using emulated::__syncthreads, emulated::__syncthreads_or, emulated::__syncwarp;
using emulated::__reduce_max_sync, emulated::__any_sync, emulated::__all_sync;
using emulated::__shfl_xor_sync, emulated::__shfl_sync, emulated::__shfl_down_sync;
