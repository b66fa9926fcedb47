// Products by `wgmma`, which compute capability 9.0 alone has, for more than 16 rows. `products.cuh` describes the shape of their sums.
// Four warps multiply 64 features with up to 192 rows, straight from shared memory. The products of a step run while the copies of
// later steps are under way, and for many rows the products of the previous step.

#ifndef EMULATED
#ifdef __CUDA_ARCH_FEAT_SM90_ALL

typedef u64 Operand;

// An operand's descriptor: lines of 128 bytes, swizzled, eight of them 1,024 bytes apart. `group` counts groups of 16 inputs.
DEVICE Operand operand_of(const uint4 *lines, int group) {
    u64 at = (u64)__cvta_generic_to_shared(lines) + group * 32;
    return (at & 0x3ffff) >> 4 | (u64)1 << 16 | (u64)(1024 >> 4) << 32 | (u64)1 << 62;
}

// Makes shared memory that this thread's copies wrote visible to `wgmma`.
DEVICE void copies_publish() {
    asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory");
}

DEVICE void wgmma_begin() {
    asm volatile("wgmma.fence.sync.aligned;\n" ::: "memory");
}

DEVICE void wgmma_commit() {
    asm volatile("wgmma.commit_group.sync.aligned;\n" ::: "memory");
}

// Waits until at most LEFT committed groups of products are under way.
template <int LEFT>
DEVICE void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;\n" ::"n"(LEFT) : "memory");
}

// Keeps the compiler from moving accesses to the sums across this point.
template <int PIECES>
DEVICE void pin(float (&c)[PIECES][4]) {
#pragma unroll
    for (int n = 0; n < PIECES; ++n) asm volatile("" : "+f"(c[n][0]), "+f"(c[n][1]), "+f"(c[n][2]), "+f"(c[n][3])::"memory");
}

#define F4(n) "+f"(c[n][0]), "+f"(c[n][1]), "+f"(c[n][2]), "+f"(c[n][3])
#define F16(n) F4(n), F4(n + 1), F4(n + 2), F4(n + 3)
#define F32(n) F16(n), F16(n + 4)

DEVICE void wgmma(float (&c)[2][4], Operand features, Operand rows) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7}, "
        "%8, %9, 1, 1, 1, 0, 0;\n"
        : F4(0), F4(1)
        : "l"(features), "l"(rows));
}

DEVICE void wgmma(float (&c)[4][4], Operand features, Operand rows) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, "
        "%16, %17, 1, 1, 1, 0, 0;\n"
        : F16(0)
        : "l"(features), "l"(rows));
}

DEVICE void wgmma(float (&c)[8][4], Operand features, Operand rows) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
        "%32, %33, 1, 1, 1, 0, 0;\n"
        : F32(0)
        : "l"(features), "l"(rows));
}

DEVICE void wgmma(float (&c)[16][4], Operand features, Operand rows) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
        "%64, %65, 1, 1, 1, 0, 0;\n"
        : F32(0), F32(8)
        : "l"(features), "l"(rows));
}

DEVICE void wgmma(float (&c)[24][4], Operand features, Operand rows) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n192k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
        "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
        "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95}, "
        "%96, %97, 1, 1, 1, 0, 0;\n"
        : F32(0), F32(8), F32(16)
        : "l"(features), "l"(rows));
}

#undef F4
#undef F16
#undef F32

#endif
#endif

#if defined(EMULATED) || defined(__CUDA_ARCH_FEAT_SM90_ALL)

// A tile of 128 features × TILE_ROWS rows, by two groups of four warps with 64 features each.
template <int TILE_ROWS, int STAGES>
struct WideTile {
    static constexpr int THREADS = 256;
    static constexpr int PIECES = TILE_ROWS / 8;  // of which a thread has four sums each
    static constexpr int STAGE_CHUNKS = (TILE_FEATURES + TILE_ROWS) * 8;
    // Steps whose products may be under way when the next step begins. For few rows the copies take longer, so that a stage more for
    // them is worth more.
    static constexpr int UNDER_WAY = TILE_ROWS > 64 ? 1 : 0;
    // Stages that are requested before they are multiplied.
    static constexpr int AHEAD = STAGES - 1 - UNDER_WAY;

    // Requests inputs `at` to `at + 63` of LINES lines, beginning with line `first` of `count`, 16 bytes a thread.
    template <int LINES>
    DEVICE void request(uint4 *to, const bf16 *from, int first, int count, int at, int inputs) {
        int line = threadIdx.x / 8, chunk = threadIdx.x % 8, k = at + chunk * 8;
#pragma unroll
        for (int i = 0; i < LINES; i += THREADS / 8) {
            if (LINES % (THREADS / 8) != 0 && line + i >= LINES) break;
            bool there = k < inputs && first + line + i < count;
            copy_async(to + (line + i) * 8 + (chunk ^ (line & 7)), from + (there ? (size_t)(first + line + i) * inputs + k : 0), there);
        }
    }

    DEVICE void request_features(const Product &p, uint4 *stage, int feature, int step) {
        request<TILE_FEATURES>(stage, p.weights, feature, p.features, step * STEP, p.k);
    }

    DEVICE void request_rows(const Product &p, uint4 *stage, int row, int step) {
        request<TILE_ROWS>(stage + TILE_FEATURES * 8, p.rows, row, p.count, step * STEP, p.k);
    }

    // The chains of `quarters` quarters, beginning with `quarter`, in `c`. `ended()` takes each.
    template <typename Ended>
    DEVICE void chains(const Product &p, float (&c)[PIECES][4], int feature, int row, int quarter, int quarters, Ended ended) {
        DYNAMIC_SHARED(memory);
        uint4 *stages = (uint4 *)(((size_t)memory + 1023) / 1024 * 1024);
        int steps = (p.k + STEP - 1) / STEP, first = quarter * steps / QUARTERS, last = (quarter + quarters) * steps / QUARTERS;
        int group = threadIdx.x / 128;
        auto stage_of = [&](int step) { return stages + (step - first) % STAGES * STAGE_CHUNKS; };
        allow_next();
        // The previous kernel does not write weights.
#pragma unroll
        for (int s = 0; s < AHEAD; ++s)
            if (first + s < last) request_features(p, stage_of(first + s), feature, first + s);
        wait_for_previous();
#pragma unroll
        for (int s = 0; s < AHEAD; ++s) {
            if (first + s < last) request_rows(p, stage_of(first + s), row, first + s);
            copies_commit();
        }
        int step = first;
        for (int q = quarter; q < quarter + quarters; ++q) {
#pragma unroll
            for (int i = 0; i < PIECES * 4; ++i) c[i / 4][i % 4] = 0.0f;
            for (int end = (q + 1) * steps / QUARTERS; step < end; ++step) {
                copies_wait<AHEAD - 1>();
                copies_publish();
                // The inputs of this step are there for all threads. The products of the stage that is requested next have ended.
                __syncthreads();
                int next = step + AHEAD;
                if (next < last) {
                    request_features(p, stage_of(next), feature, next);
                    request_rows(p, stage_of(next), row, next);
                }
                copies_commit();
                const uint4 *stage = stage_of(step);
                pin(c);
                wgmma_begin();
                // Inputs behind the last one are zeros on both sides.
#pragma unroll
                for (int k = 0; k < STEP / 16; ++k)
                    wgmma(c, operand_of(stage + group * 64 * 8, k), operand_of(stage + TILE_FEATURES * 8, k));
                wgmma_commit();
                wgmma_wait<UNDER_WAY>();
            }
            wgmma_wait<0>();
            pin(c);
            ended();
        }
        copies_wait<0>();
    }

    // All quarters in one block.
    DEVICE void whole(const Product &p) {
        WholeTile tile(p, TILE_ROWS);
        float c[PIECES][4], total[PIECES][4];
#pragma unroll
        for (int i = 0; i < PIECES * 4; ++i) total[i / 4][i % 4] = 0.0f;
        chains(p, c, tile.feature, tile.row, 0, QUARTERS, [&]() {
#pragma unroll
            for (int i = 0; i < PIECES * 4; ++i) total[i / 4][i % 4] = total[i / 4][i % 4] + c[i / 4][i % 4];
        });
        finish_pieces<PIECES>(p, row_of(tile.row), feature_of(tile.feature), total);
    }

    // The quarter blockIdx.z of a tile. The last of the four blocks adds them.
    DEVICE void part(const Product &p, float4 *parts, u32 *arrived) {
        int feature = blockIdx.y * TILE_FEATURES, row = blockIdx.x * TILE_ROWS, quarter = blockIdx.z;
        float c[PIECES][4];
        chains(p, c, feature, row, quarter, 1, []() {});
        size_t tile = (size_t)blockIdx.y * gridDim.x + blockIdx.x;
        if (!add_quarters<PIECES, THREADS>(c, parts, arrived, tile, quarter)) return;
        finish_pieces<PIECES>(p, row_of(row), feature_of(feature), c);
    }

    // The feature and the row of this thread's first sum.
    DEVICE int feature_of(int feature) {
        return feature + threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4;
    }

    DEVICE int row_of(int row) {
        return row + threadIdx.x % 4 * 2;
    }
};

#define WHOLE(TILE_ROWS, STAGES, BLOCKS)                    \
    KERNEL(256, BLOCKS) wgmma_whole_##TILE_ROWS(Product p) { \
        WideTile<TILE_ROWS, STAGES>::whole(p);              \
    }

#define PART(TILE_ROWS, STAGES, BLOCKS)                                                    \
    KERNEL(256, BLOCKS) wgmma_part_##TILE_ROWS(Product p, float4 *parts, u32 *arrived) {   \
        WideTile<TILE_ROWS, STAGES>::part(p, parts, arrived);                              \
    }

// The same with more stages, for products that have at most one block for each multiprocessor.
#define DEEP(TILE_ROWS, STAGES)                                                        \
    KERNEL(256, 1) wgmma_deep_##TILE_ROWS(Product p, float4 *parts, u32 *arrived) {    \
        WideTile<TILE_ROWS, STAGES>::part(p, parts, arrived);                          \
    }

WHOLE(16, 6, 2)
WHOLE(32, 5, 2)
WHOLE(64, 4, 2)
WHOLE(128, 6, 1)
WHOLE(192, 5, 1)
PART(16, 6, 2)
PART(32, 5, 2)
PART(64, 4, 2)
PART(128, 6, 1)
PART(192, 5, 1)
DEEP(16, 10)
DEEP(32, 9)
DEEP(64, 8)

#endif
