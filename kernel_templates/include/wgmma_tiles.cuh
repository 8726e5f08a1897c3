// Which tiles of C, and which blocks of K, a CTA of wgmma.cu works at, in its order. Constants are those of wgmma.cu.
#pragma once
#include "hopper.cuh"

// What a cluster does at a time: cluster tile `tile`, and of its blocks of K those in [from, to).
struct Share {
    u32 tile, from, to;
};

// The shares of this CTA's cluster, one of `clusters`. Clusters take cluster tiles GROUP_M along one side of C before
// they step along the other: those in flight share A and B in L2. Tiles that do not fill a wave are left over for TAIL:
// laid end to end, `pitch` blocks of K each, they are cut into one piece of `piece` blocks for every cluster. A piece
// may hold the end of one tile and the start of the next. Who has the end of a tile finishes it.
struct Tiles {
    u32 rows, cols;              // cluster tiles along M and N
    u32 rank_m, rank_n, rank_k;  // of this CTA in its cluster
    u32 cluster, clusters, k_blocks;
    u32 whole, count;                    // shares of whole tiles, all shares
    u32 pitch, piece, left_over, start;  // start: where in tile left_over the piece begins

    __device__ __forceinline__ Tiles(i64 M, i64 N, i64 K) {
        const u32 rank = CLUSTER > 1 ? cluster_rank() : 0;
        rank_m = rank % CLUSTER_M;
        rank_n = rank / CLUSTER_M % CLUSTER_N;
        rank_k = rank / SHARERS;
        rows = (u32)((M + BM * CLUSTER_M - 1) / (BM * CLUSTER_M));
        cols = (u32)((N + BN * CLUSTER_N - 1) / (BN * CLUSTER_N));
        k_blocks = (u32)((K + DEPTH - 1) / DEPTH);
        cluster = blockIdx.x / CLUSTER;
        clusters = gridDim.x / CLUSTER;
        const u32 tiles = rows * cols;
        whole = count = PERSISTENT ? (tiles - cluster + clusters - 1) / clusters : 1;
        if constexpr (TAIL > 1) divide(tiles);
    }
    __device__ __forceinline__ void divide(u32 tiles) {
        whole = tiles / clusters;
        count = whole;
        pitch = piece = k_blocks;
        left_over = start = 0;
        const u32 rest = tiles - whole * clusters;
        if (rest == 0) return;
        // Equal parts where every tile can have two or more; else pieces of equal length, wherever they begin.
        const u32 parts = min(min(clusters / rest, TAIL), k_blocks);
        if (parts > 1) piece = (k_blocks + parts - 1) / parts, pitch = parts * piece;
        else piece = (u32)(((u64)rest * k_blocks + clusters - 1) / clusters), pitch = k_blocks;
        const u64 begin = (u64)cluster * piece;
        left_over = (u32)(begin / pitch);
        start = (u32)(begin - (u64)left_over * pitch);
        if (left_over < rest && start < k_blocks) count += start + piece > pitch && left_over + 1 < rest ? 2 : 1;
    }
    // The end of a tile waits for what others have of it: so a piece begins with the start of the next tile.
    __device__ __forceinline__ Share share(u32 index) const {
        if (SPLIT_K > 1) {
            // A half without blocks takes one beyond K, of zeros.
            const u32 half = (k_blocks + SPLIT_K - 1) / SPLIT_K, from = rank_k * half;
            return {cluster, from, max(from + 1, min(from + half, k_blocks))};
        }
        if (TAIL == 1 || index < whole) return {cluster + index * clusters, 0, k_blocks};
        const u32 tile = whole * clusters + left_over;
        if (count - index == 2) return {tile + 1, 0, start + piece - pitch};
        return {tile, start, min(start + piece, k_blocks)};
    }
    __device__ __forceinline__ u32 length(u32 index) const {
        if (TAIL == 1) return k_blocks;
        if (index >= count) return 0;
        const Share found = share(index);
        return found.to - found.from;
    }
    // How many clusters before this one have parts of a tile whose blocks from `from` on are here.
    __device__ __forceinline__ u32 others(u32 from) const { return (from + piece - 1) / piece; }
    // The first row and column of C in cluster tile `tile`.
    __device__ __forceinline__ void locate(u32 tile, int& m0, int& n0) const {
        const u32 along = RASTER_N ? cols : rows, across = RASTER_N ? rows : cols;
        const u32 group = min((u32)GROUP_M, along);
        const u32 start = tile / (group * across) * group, in_group = tile % (group * across);
        const u32 width = min(group, along - start);
        const u32 x = start + in_group % width, y = in_group / width;
        m0 = ((RASTER_N ? y : x) * CLUSTER_M + rank_m) * BM;
        n0 = ((RASTER_N ? x : y) * CLUSTER_N + rank_n) * BN;
    }
};
