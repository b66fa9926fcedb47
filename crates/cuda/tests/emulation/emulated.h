// The device, on the host: threads of a block are fibers on one thread of the host, blocks come one after another. Everything that
// a kernel can do with its neighbours is a meeting: a fiber that waits lets the next one run. So indexing, barriers, shuffles,
// fragments of the tensor core and asynchronous copies are exercised as they are, and only time is not.
//
// What makes a mistake show: device memory ends at a page that cannot be touched, and begins as no numbers; memory that an
// asynchronous copy was asked for is no number until somebody waits for it; from launch to launch the fibers run in the other
// order, so that who is first is never whom the kernel relies on; a misaligned access ends the program.
#pragma once
#include <cmath>
#include <csetjmp>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>
#include <vector>

typedef uint32_t u32;
typedef uint16_t u16;
typedef uint64_t u64;

struct alignas(8) uint2 {
    u32 x, y;
};
struct alignas(16) uint4 {
    u32 x, y, z, w;
};
struct alignas(8) float2 {
    float x, y;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
static inline uint2 make_uint2(u32 x, u32 y) {
    return {x, y};
}
static inline uint4 make_uint4(u32 x, u32 y, u32 z, u32 w) {
    return {x, y, z, w};
}
static inline float2 make_float2(float x, float y) {
    return {x, y};
}
static inline float4 make_float4(float x, float y, float z, float w) {
    return {x, y, z, w};
}

struct Index {
    u32 x, y, z;
};

namespace emulated {

constexpr int WARP = 32;

// What a lane shows to its warp.
struct Shown {
    u32 words[6];
};

struct Copy {
    void *to;
    const void *from;
};

struct Fiber {
    jmp_buf state;
    Index thread;
    int before, behind;  // the ring of those that have not returned
    int meetings;  // of its warp so far: two boards are used in turn
    std::vector<Copy> copies;
    std::vector<size_t> groups;  // how many copies belong to each group under way
};

struct Meeting {
    int arrived, generation;
};

struct Machine {
    Fiber *fibers;
    int alive, current;
    int alive_of_warp[WARP];
    Meeting block, warps[WARP];
    Shown boards[WARP][2][WARP];
    double products[WARP][2][16][8];
    Index grid, at, threads;
    unsigned char *dynamic;
    void next();
};

// One for each thread of the host; a pointer, because it is looked for all the time.
extern thread_local Machine *here __attribute__((tls_model("initial-exec")));
#define machine (*emulated::here)

[[noreturn]] static inline void wrong(const char *what) {
    fprintf(stderr, "emulated device: %s (block %u,%u,%u thread %d)\n", what, machine.at.x, machine.at.y, machine.at.z, machine.current);
    abort();
}

static inline Fiber &me() {
    return machine.fibers[machine.current];
}

// Waits for all others; who comes last does `last` for all of them.
template <typename Do>
static inline void meet(Meeting &meeting, const int &expected, Do last) {
    int mine = meeting.generation;
    ++meeting.arrived;
    while (meeting.generation == mine) {
        if (meeting.arrived >= expected) {
            meeting.arrived = 0;
            ++meeting.generation;
            last();
            return;
        }
        machine.next();
    }
}

// Shows something to the warp; which of its two boards all have shown it on.
template <typename Do>
static inline int show(const Shown &mine, Do last) {
    int warp = machine.current / WARP;
    if (machine.alive_of_warp[warp] != WARP) wrong("a warp works together, and some of its lanes have returned");
    int board = me().meetings++ % 2;
    machine.boards[warp][board][machine.current % WARP] = mine;
    meet(machine.warps[warp], machine.alive_of_warp[warp], [&] { last(board); });
    return board;
}

static inline u32 shown_by(const Shown &mine, int lane) {
    int board = show(mine, [](int) {});
    return machine.boards[machine.current / WARP][board][lane].words[0];
}

static inline float bf16_value(u32 packed, bool high) {
    u32 bits = high ? packed & 0xffff0000u : packed << 16;
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

}  // namespace emulated

#define DEVICE static inline
#define DEVICE_METHOD inline
#define KERNEL(threads, blocks) extern "C" void
#define DYNAMIC_SHARED(name) unsigned char *name = machine.dynamic
#define __shared__ static thread_local
#define threadIdx (emulated::me().thread)
#define blockIdx (machine.at)
#define gridDim (machine.grid)
#define blockDim (machine.threads)

static inline void __syncthreads() {
    emulated::meet(machine.block, machine.alive, [] {});
}

static inline void __threadfence() {}

static inline u32 atomicAdd(u32 *to, u32 value) {
    u32 before = *to;
    *to = before + value;
    return before;
}

namespace emulated {

// Rows of A: lane / 4 and 8 below it; inputs: 2·(lane % 4), the next, and both 8 further. Columns of B: lane / 4.
static inline void multiply(int board) {
    int warp = machine.current / WARP;
    const Shown *shown = machine.boards[warp][board];
    double a[16][16], b[16][8], sums[16][8] = {};
    for (int lane = 0; lane < WARP; ++lane)
        for (int i = 0; i < 8; ++i) {
            int word = i / 2, k = 2 * (lane % 4) + i % 2 + word / 2 * 8;
            a[lane / 4 + word % 2 * 8][k] = bf16_value(shown[lane].words[word], i % 2);
            if (i < 4) b[2 * (lane % 4) + i % 2 + word * 8][lane / 4] = bf16_value(shown[lane].words[4 + word], i % 2);
        }
    for (int row = 0; row < 16; ++row)
        for (int k = 0; k < 16; ++k)
            for (int column = 0; column < 8; ++column) sums[row][column] += a[row][k] * b[k][column];
    memcpy(machine.products[warp][board], sums, sizeof sums);
}

}  // namespace emulated

static inline void tensor_product(float (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    int board = emulated::show({{a0, a1, a2, a3, b0, b1}}, emulated::multiply);
    int warp = machine.current / emulated::WARP, lane = machine.current % emulated::WARP;
    const double (&sums)[16][8] = machine.products[warp][board];
    for (int i = 0; i < 4; ++i) c[i] = (float)(sums[lane / 4 + i / 2 * 8][lane % 4 * 2 + i % 2] + (double)c[i]);
}

static inline void warp_sync() {
    emulated::shown_by({{0}}, 0);
}

static inline u32 exchange_bits(u32 x, int lane_mask) {
    return emulated::shown_by({{x}}, (machine.current % emulated::WARP) ^ lane_mask);
}

static inline float exchange(float x, int lane_mask) {
    u32 bits;
    memcpy(&bits, &x, 4);
    bits = exchange_bits(bits, lane_mask);
    memcpy(&x, &bits, 4);
    return x;
}

static inline u32 bits_of(float x) {
    u32 bits;
    memcpy(&bits, &x, 4);
    return bits;
}

static inline float float_of(u32 bits) {
    float x;
    memcpy(&x, &bits, 4);
    return x;
}

static inline u32 pack_bf16(float low, float high) {
    u32 halves[2] = {bits_of(low), bits_of(high)};
    for (u32 &half : halves) half = (half & 0x7fffffffu) > 0x7f800000u ? 0x7fff : (half + 0x7fff + (half >> 16 & 1)) >> 16;
    return halves[0] | halves[1] << 16;
}

static inline void copy_async(void *shared, const void *global, bool there) {
    if ((uintptr_t)shared % 16 || (uintptr_t)global % 16) emulated::wrong("an asynchronous copy is not aligned");
    memset(shared, 0xff, 16);
    emulated::me().copies.push_back({shared, there ? global : nullptr});
}

static inline void copies_commit() {
    emulated::Fiber &fiber = emulated::me();
    size_t before = 0;
    for (size_t group : fiber.groups) before += group;
    fiber.groups.push_back(fiber.copies.size() - before);
}

template <int LEFT>
static inline void copies_wait() {
    emulated::Fiber &fiber = emulated::me();
    while (fiber.groups.size() > LEFT) {
        for (size_t i = 0; i < fiber.groups.front(); ++i) {
            const emulated::Copy &copy = fiber.copies[i];
            if (copy.from) memcpy(copy.to, copy.from, 16);
            else memset(copy.to, 0, 16);
        }
        fiber.copies.erase(fiber.copies.begin(), fiber.copies.begin() + (long)fiber.groups.front());
        fiber.groups.erase(fiber.groups.begin());
    }
}

static inline void prefetch(const void *from) {
    volatile char touched = *(const volatile char *)from;
    (void)touched;
}

// An operand of `wgmma`: lines of 128 bytes, whose chunks of 16 are exchanged as the swizzle of 128 bytes does.
struct Operand {
    const uint4 *lines;
    int group;
    double input(int line, int k) const {
        const u16 *chunk = (const u16 *)(lines + line * 8 + ((group * 2 + k / 8) ^ (line & 7)));
        return emulated::bf16_value(chunk[k % 8], false);
    }
};

static inline Operand operand_of(const uint4 *lines, int group) {
    if ((uintptr_t)lines % 1024) emulated::wrong("an operand is not aligned");
    return {lines, group};
}

// Four warps multiply 64 features with 8 · PIECES rows. A thread computes its own sums from shared memory.
template <int PIECES>
static inline void wgmma(float (&c)[PIECES][4], Operand features, Operand rows) {
    int lane = machine.current % emulated::WARP, feature = machine.current / emulated::WARP % 4 * 16 + lane / 4;
    double of_features[2][16], of_row[16];
    for (int k = 0; k < 16; ++k)
        of_features[0][k] = features.input(feature, k), of_features[1][k] = features.input(feature + 8, k);
    for (int row = 0; row < PIECES * 2; ++row) {
        for (int k = 0; k < 16; ++k) of_row[k] = rows.input(row / 2 * 8 + lane % 4 * 2 + row % 2, k);
        for (int f = 0; f < 2; ++f) {
            double sum = 0.0;
            for (int k = 0; k < 16; ++k) sum += of_features[f][k] * of_row[k];
            float &to = c[row / 2][f * 2 + row % 2];
            to = (float)(sum + (double)to);
        }
    }
}

static inline void copies_publish() {}
static inline void wgmma_begin() {}
static inline void wgmma_commit() {}
template <int LEFT>
static inline void wgmma_wait() {}
template <int PIECES>
static inline void pin(float (&)[PIECES][4]) {}

static inline void wait_for_previous() {}
static inline void allow_next() {}

static inline float4 load_fresh(const float4 *from) {
    return *from;
}

static inline float exp2_of(float x) {
    return std::exp2(x);
}

static inline float reciprocal_root(float x) {
    return 1.0f / std::sqrt(x);
}

static inline float tanh_of(float x) {
    return std::tanh(x);
}
