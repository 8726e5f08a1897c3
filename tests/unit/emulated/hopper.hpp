// PTX of sm_90a: mbarriers, TMA, clusters, warpgroups. And what tells all PTX apart.
#pragma once
#include "ptx.hpp"

namespace emulated {

struct MemoryBarrier {
    unsigned count, pending, phase;
    long bytes;
    unsigned cluster;  // that made it
};
std::map<unsigned, MemoryBarrier> memory_barriers[MAX_CLUSTER];  // of each block of a cluster
inline MemoryBarrier& barrier_of(unsigned of, unsigned address) {
    const auto found = memory_barriers[of].find(address);
    if (found == memory_barriers[of].end() || found->second.cluster != clusters_begun) give_up("an mbarrier that nobody made");
    return found->second;
}
inline void require_whole_phases() {
    for (const auto& [address, b] : memory_barriers[rank])
        if (b.cluster == clusters_begun && (b.pending != b.count || b.bytes))
            give_up("a block has ended in the middle of an mbarrier's phase");
}
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
template <class Each>
void each_row(const Map& map, long columns, int x, int y, unsigned shared, unsigned char* memory, Each each) {
    const int bytes = map.box_columns * map.element;
    for (int r = 0; r < map.box_rows; ++r)
        for (int c = 0; c < map.box_columns; ++c) {
            const bool inside = x + c >= 0 && x + c < columns && y + r >= 0 && y + r < map.rows;
            const unsigned at = swizzled(shared + r * bytes + c * map.element, map.swizzle);
            each(memory + at, inside ? map.base + (y + r) * map.row_bytes + (long)(x + c) * map.element : nullptr);
        }
}
// A load of TMA on its way: the box it fills is poison until it lands, some turns of the scheduler later, in any order.
struct Load2d {
    Map map;
    int x, y;
    unsigned to, barrier;  // addresses, with the rank of the block they are of
    unsigned turns;
};
std::vector<Load2d> loads_2d;
// An mbarrier hears of bytes that have landed.
inline void complete(unsigned barrier, long bytes) {
    MemoryBarrier& there = barrier_of(rank_of(barrier), barrier & 0xffffff);
    there.bytes -= bytes;
    turn(there);
}
inline void land_2d(const Load2d& load) {
    const Map& map = load.map;
    each_row(map, map.columns, load.x, load.y, load.to & 0xffffff, shared_at(load.to & ~0xffffffu),
             [&](unsigned char* here, unsigned char* there) {
                 if (there) memcpy(here, there, map.element);
                 else memset(here, 0, map.element);
             });
    if (!alone) complete(load.barrier, (long)map.box_columns * map.box_rows * map.element);
}
// Sixteen bytes on their way to another block, whose barrier hears of them.
struct Sent {
    unsigned words[4];
    unsigned to, barrier, turns;
};
std::vector<Sent> sent;
inline void land_sent(const Sent& one) {
    memcpy(shared_at(one.to), one.words, sizeof one.words);
    complete(one.barrier, sizeof one.words);
}
template <class One> size_t land_due(std::vector<One>& on_their_way, void (*land)(const One&)) {
    size_t kept = 0;
    for (One& one : on_their_way) {
        if (--one.turns) on_their_way[kept++] = one;
        else land(one);
    }
    on_their_way.resize(kept);
    return kept;
}
const bool hooked = [] {
    every_turn = [] { return land_due(loads_2d, land_2d) + land_due(sent, land_sent) > 0; };
    block_ends = require_whole_phases;
    return true;
}();
unsigned issued;
inline unsigned some_turns() { return 1 + issued++ % 5; }

inline void tensor_copy(const std::string& text, std::vector<Operand>& ops) {
    Map map;
    const bool load = has(text, "mbarrier::complete_tx");
    const unsigned shared = (unsigned)ops[load ? 0 : 3].value;
    memcpy(&map, reinterpret_cast<const void*>(ops[load ? 1 : 0].value), sizeof map);
    const int x = (int)ops[load ? 2 : 1].value, y = (int)ops[load ? 3 : 2].value;
    if (shared % 128 || (map.swizzle && shared % (8 * map.swizzle))) give_up("misaligned " + text);
    if (load) {
        const unsigned to = has(text, "multicast") ? (unsigned)ops[5].value : 1u << rank;
        for (unsigned r = 0; r < 32; ++r) {
            if (!(to >> r & 1)) continue;
            const Load2d one = {map, x, y, mapped(shared, r), mapped((unsigned)ops[4].value, r), some_turns()};
            if (alone) {
                land_2d(one);
                continue;
            }
            memset(shared_at(one.to), 0xFF, (size_t)map.box_columns * map.box_rows * map.element);
            loads_2d.push_back(one);
        }
        return;
    }
    // A store writes whole 16 bytes, what follows the last column in them too (seen on an H200).
    const long chunk = 16 / map.element, columns = (map.columns + chunk - 1) / chunk * chunk;
    each_row(map, columns, x, y, shared, host_shared, [&](unsigned char* here, unsigned char* there) {
        if (there) memcpy(there, here, map.element);
    });
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
Barrier group_barriers[MAX_CLUSTER][8];
GroupLane* group_lanes[MAX_CLUSTER][8][128];
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
    group_lanes[rank][group][mine.lane] = &mine;
    group_barriers[rank][group].wait(128, [&] {
        std::vector<float> left(64 * depth), right(depth * N);
        for (int row = 0; row < 64; ++row)
            for (int k = 0; k < depth; ++k) left[row * depth + k] = element_at(a.at(row, k * size), type);
        for (int n = 0; n < N; ++n)
            for (int k = 0; k < depth; ++k)
                right[k * N + n] = element_at(along_n ? b.at(k, n * size) : b.at(n, k * size), type);
        for (GroupLane* lane : group_lanes[rank][group])
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
    const auto barrier = [&](int i) -> MemoryBarrier& { return barrier_of(rank, (unsigned)ops[i].value); };
    if (has(text, "wgmma.mma_async")) warpgroup_multiply(text, ops);
    else if (has(text, "cp.async.bulk.tensor.2d")) tensor_copy(text, ops);
    else if (has(text, "stmatrix")) store_matrices(text, ops);
    else if (has(text, "mbarrier.init")) {
        const unsigned count = (unsigned)ops[1].value;
        memory_barriers[rank][(unsigned)ops[0].value] = {count, count, 0, 0, clusters_begun};
    } else if (has(text, "mbarrier.try_wait.parity")) {
        while (!alone && (barrier(0).phase & 1) == (unsigned)ops[1].value) yield();
    } else if (has(text, "mbarrier.arrive")) {
        if (alone) return true;
        const unsigned to = has(text, "mapa") ? rank_of(mapped(0, (unsigned)ops[1].value)) : rank;
        MemoryBarrier& there = barrier_of(to, (unsigned)ops[0].value);
        if (has(text, "expect_tx")) there.bytes += (long)ops[1].value;
        if (there.pending-- == 0) give_up("too many arrivals at an mbarrier");
        turn(there);
    } else if (has(text, "%%cluster_ctarank")) {
        memcpy(ops[0].to, &rank, 4);
    } else if (has(text, "mapa.shared::cluster.u32 %0")) {
        const unsigned there = mapped((unsigned)ops[1].value, (unsigned)ops[2].value);
        memcpy(ops[0].to, &there, 4);
    } else if (has(text, "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32")) {
        if (alone) return true;
        Sent one = {{}, (unsigned)ops[0].value, (unsigned)ops[5].value, some_turns()};
        for (int i = 0; i < 4; ++i) one.words[i] = (unsigned)ops[1 + i].value;
        if (one.to % 16) give_up("misaligned " + text);
        sent.push_back(one);
    } else if (has(text, "barrier.cluster.arrive")) {
        if (!alone) cluster_arrive();
    } else if (has(text, "barrier.cluster.wait")) {
        if (!alone) cluster_wait();
    } else if (has(text, "bar.sync")) {
        blocks[rank].named[ops[0].value].wait((unsigned)ops[1].value, [] {});
    } else if (has(text, "bar.arrive")) {
        Barrier& b = blocks[rank].named[ops[0].value];
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
