// PTX of any architecture: registers, shared memory, cp.async, ldmatrix and mma.sync.
#pragma once
#include "cuda.hpp"

namespace emulated {

struct Operand {
    void* to;            // outputs
    unsigned long long value;  // inputs; of "+" operands what they were
};
template <class T> unsigned long long raw(T x) {
    unsigned long long value = 0;
    memcpy(&value, &x, sizeof x);
    return value;
}
template <class T> Operand ptx_out(T& x) { return {&x, raw(x)}; }
template <class T> Operand ptx_in(T x) { return {nullptr, raw(x)}; }

struct Copy {
    unsigned to;
    const void* from;
    int bytes;
};
std::vector<Copy> copies;  // by cp.async, those of 0 bytes left out

typedef _Float16 half;
inline float half_bits(unsigned short bits) { return bits_as<half>(bits); }
inline float bf16_bits(unsigned short bits) { return bits_as<float>(unsigned(bits) << 16); }

// Operands between braces, or single ones, in the order of the text: %4 is 4.
inline std::vector<std::vector<int>> groups(const std::string& text) {
    std::vector<std::vector<int>> found;
    bool inside = false;
    for (size_t i = 0; i < text.size(); ++i) {
        if (text[i] == '{') found.emplace_back(), inside = true;
        if (text[i] == '}') inside = false;
        if (text[i] == '%' && isdigit(text[i + 1])) {
            if (!inside) found.emplace_back();
            found.back().push_back(atoi(text.c_str() + i + 1));
        }
    }
    return found;
}

struct Multiply {
    float d[4];
    unsigned a[4], b[2];
};
template <class Float> void multiply_k16(Multiply** lanes, Float to_float) {
    float a[16][16], b[16][8];
    for (int l = 0; l < 32; ++l)
        for (int half = 0; half < 2; ++half) {
            const int row = l / 4, k = l % 4 * 2 + half;
            for (int r = 0; r < 4; ++r)
                a[row + r % 2 * 8][k + r / 2 * 8] = to_float((unsigned short)(lanes[l]->a[r] >> 16 * half));
            for (int r = 0; r < 2; ++r) b[k + 8 * r][row] = to_float((unsigned short)(lanes[l]->b[r] >> 16 * half));
        }
    for (int l = 0; l < 32; ++l)
        for (int r = 0; r < 4; ++r)
            for (int k = 0; k < 16; ++k) lanes[l]->d[r] += a[l / 4 + r / 2 * 8][k] * b[k][l % 4 * 2 + r % 2];
}
inline void multiply_k8(Multiply** lanes) {
    float a[16][8], b[8][8];
    for (int l = 0; l < 32; ++l) {
        for (int r = 0; r < 4; ++r) a[l / 4 + r % 2 * 8][l % 4 + r / 2 * 4] = __uint_as_float(lanes[l]->a[r] & ~0x1fffu);
        for (int r = 0; r < 2; ++r) b[l % 4 + 4 * r][l / 4] = __uint_as_float(lanes[l]->b[r] & ~0x1fffu);
    }
    for (int l = 0; l < 32; ++l)
        for (int r = 0; r < 4; ++r)
            for (int k = 0; k < 8; ++k) lanes[l]->d[r] += a[l / 4 + r / 2 * 8][k] * b[k][l % 4 * 2 + r % 2];
}

struct Load {
    unsigned from;
    unsigned result[4];
};
// Matrix q is 8 rows of 16 bytes; lanes 8q … 8q + 7 give their addresses. A lane gets two neighbours of row l / 4, or,
// transposed, those of column l / 4 in two rows.
inline void load_matrices(Load** lanes, bool transposed, int count) {
    for (int l = 0; l < 32; ++l)
        for (int q = 0; q < count; ++q)
            for (int half = 0; half < 2; ++half) {
                const int pair = l % 4 * 2 + half, row = transposed ? pair : l / 4, column = transposed ? l / 4 : pair;
                unsigned short element;
                memcpy(&element, host_shared + lanes[8 * q + row]->from + 2 * column, 2);
                lanes[l]->result[q] = half ? lanes[l]->result[q] | unsigned(element) << 16 : element;
            }
}

inline bool has(const std::string& text, const char* word) { return text.find(word) != std::string::npos; }

inline void ptx_matrices(const std::string& text, std::vector<Operand>& ops) {
    const auto g = groups(text);
    if (text.compare(0, 8, "ldmatrix") == 0) {
        Load load = {(unsigned)ops[g[1][0]].value, {}};
        const int count = (int)g[0].size();
        if (count == 1 ? !has(text, ".x1") : count == 2 ? !has(text, ".x2") : !has(text, ".x4")) give_up(text);
        collective(load, [&](Load** lanes) { load_matrices(lanes, has(text, ".trans"), count); });
        for (int q = 0; q < count; ++q) memcpy(ops[g[0][q]].to, &load.result[q], 4);
        return;
    }
    Multiply m = {};
    const bool in_half = has(text, "m16n8k16.row.col.f16.f16.f16.f16");  // sums are pairs of fp16, rounded once a step
    if (in_half && (g.size() != 4 || g[0].size() != 2)) give_up(text);
    if (in_half) {
        for (int r = 0; r < 4; ++r) m.d[r] = half_bits((unsigned short)(ops[g[3][r / 2]].value >> 16 * (r % 2)));
        for (int r = 0; r < 4; ++r) m.a[r] = (unsigned)ops[g[1][r]].value;
        for (int r = 0; r < 2; ++r) m.b[r] = (unsigned)ops[g[2][r]].value;
        collective(m, [](Multiply** lanes) { multiply_k16(lanes, half_bits); });
        for (int r = 0; r < 2; ++r) {
            const unsigned pair = bits_as<unsigned short>((half)m.d[2 * r]) | bits_as<unsigned short>((half)m.d[2 * r + 1]) << 16;
            memcpy(ops[g[0][r]].to, &pair, 4);
        }
        return;
    }
    if (g.size() != 4 || g[0].size() != 4 || g[1].size() != 4 || g[2].size() != 2) give_up(text);
    for (int r = 0; r < 4; ++r) m.d[r] = __uint_as_float((unsigned)ops[g[3][r]].value);
    for (int r = 0; r < 4; ++r) m.a[r] = (unsigned)ops[g[1][r]].value;
    for (int r = 0; r < 2; ++r) m.b[r] = (unsigned)ops[g[2][r]].value;
    if (has(text, "m16n8k16.row.col.f32.f16.f16.f32"))
        collective(m, [](Multiply** lanes) { multiply_k16(lanes, half_bits); });
    else if (has(text, "m16n8k16.row.col.f32.bf16.bf16.f32"))
        collective(m, [](Multiply** lanes) { multiply_k16(lanes, bf16_bits); });
    else if (has(text, "m16n8k8.row.col.f32.tf32.tf32.f32"))
        collective(m, [](Multiply** lanes) { multiply_k8(lanes); });
    else
        give_up(text);
    for (int r = 0; r < 4; ++r) memcpy(ops[g[0][r]].to, &m.d[r], 4);
}

inline void ptx_copy(const std::string& text, std::vector<Operand>& ops) {
    const unsigned to = (unsigned)ops[0].value;
    const void* from = reinterpret_cast<const void*>(ops[1].value);
    const size_t size_at = text.find("[%1], ") + 6;
    const bool size_is_operand = text[size_at] == '%';
    const int size = size_is_operand ? int(ops[2].value) : atoi(text.c_str() + size_at);
    const size_t valid = size_is_operand ? 3 : 2;  // the operand that says how many bytes are not to become zero
    const int bytes = valid < ops.size() ? int(ops[valid].value) : size;
    if (size != 4 && size != 8 && size != 16) give_up(text);
    if (to % size || bytes < 0 || bytes > size || (bytes && reinterpret_cast<uintptr_t>(from) % size)) give_up("misaligned " + text);
    memset(host_shared + to, 0xFF, size);  // until it lands
    if (!alone) fibers[current].in_flight.push_back({to, from, size, bytes, fibers[current].group});
    if (bytes) copies.push_back({to, from, bytes});
}

// Bytes that one register of a load or store moves: u16 and b16 are 2, u32, b32 and f32 4.
inline int width_of(const std::string& word) { return has(word, "16") ? 2 : has(word, "64") ? 8 : 4; }

// `ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];` and all its kin; `red` and `atom` add.
inline bool ptx_memory(const std::string& text, std::vector<Operand>& ops) {
    const std::string word = text.substr(0, text.find_first_of(" {"));
    const bool load = word.compare(0, 3, "ld.") == 0, store = word.compare(0, 3, "st.") == 0;
    const bool reduce = word.compare(0, 4, "red.") == 0, atom = word.compare(0, 5, "atom.") == 0;
    if (!load && !store && !reduce && !atom) return false;
    const auto g = groups(text);
    const std::vector<int>& where = g[load || atom ? 1 : 0];
    const std::vector<int>& registers = g[load || atom ? 0 : 1];
    const unsigned long long address = ops[where[0]].value;
    unsigned char* at = has(word, ".shared") ? shared_at((unsigned)address) : (unsigned char*)address;
    const int width = width_of(word.substr(word.rfind('.')));
    if (reinterpret_cast<uintptr_t>(at) % (width * registers.size())) give_up("misaligned " + text);
    for (size_t r = 0; r < registers.size(); ++r, at += width) {
        Operand& op = ops[registers[r]];
        if (load || atom) memset(op.to, 0, width), memcpy(op.to, at, width);
        if (store) memcpy(at, &op.value, width);
        if (reduce && has(word, ".f32")) {
            float sum;
            memcpy(&sum, at, 4);
            sum += __uint_as_float((unsigned)op.value);
            memcpy(at, &sum, 4);
        } else if (reduce) give_up(text);
        if (atom) {
            if (!has(word, ".add.u32") || !has(text, "], 1;")) give_up(text);
            unsigned count;
            memcpy(&count, at, 4);
            ++count;
            memcpy(at, &count, 4);
        }
    }
    return true;
}

// cvt: `cvt.rn.f16x2.f32 %0, %1, %2` puts %1 into the upper half.
inline bool ptx_convert(const std::string& text, std::vector<Operand>& ops) {
    const auto starts = [&](const char* word) { return text.compare(0, strlen(word), word) == 0; };
    const auto real = [&](int i) { return __uint_as_float((unsigned)ops[i].value); };
    const auto to_half = [](float x) { return (unsigned)bits_as<unsigned short>((half)x); };
    const auto to_bf16 = [](float x) {
        const unsigned u = __float_as_uint(x);
        return std::isnan(x) ? 0x7fffu : (u + 0x7fff + (u >> 16 & 1)) >> 16;
    };
    unsigned result;
    int bytes = 4;
    if (starts("cvt.f32.f16")) result = __float_as_uint(half_bits((unsigned short)ops[1].value));
    else if (starts("cvt.rn.f16.f32")) result = to_half(real(1)), bytes = 2;
    else if (starts("cvt.rn.f16x2.f32")) result = to_half(real(1)) << 16 | to_half(real(2));
    else if (starts("cvt.rn.bf16x2.f32")) result = to_bf16(real(1)) << 16 | to_bf16(real(2));
    else if (starts("cvt.rn.tf32.f32") || starts("cvt.rna.tf32.f32"))
        result = ((unsigned)ops[1].value + 0x1000u) & ~0x1fffu;
    else return false;
    memcpy(ops[0].to, &result, bytes);
    return true;
}

}  // namespace emulated
