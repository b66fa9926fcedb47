// Products by `mma.sync`, which every GPU from compute capability 8.0 on has. `products.cuh` describes the shape of their sums. Three
// kinds of kernels share it: `few` has a warp for each quarter, `whole` computes all four in one block, `part` has a block for each.

#define FEW_FEATURES 16

// The place in shared memory of 16 bytes of a row of 64 inputs. Pairs of them in four neighbouring rows use different banks.
DEVICE int chunk_of(int row, int chunk) {
    return row * 8 + (chunk ^ ((row & 3) << 1));
}

// The four of 16 inputs that this thread multiplies. `group` counts the row's groups of 16.
DEVICE uint2 inputs_of(const uint4 *stage, int row, int group) {
    int t = threadIdx.x % 4;
    return *((const uint2 *)(stage + chunk_of(row, group * 2 + t / 2)) + t % 2);
}

// Up to 8·COLUMNS rows: a block for 16 features, a warp for each quarter. Each warp copies its weights to shared memory, several steps
// ahead, and reads the rows from the caches.
template <int COLUMNS>
DEVICE void few(const Product &p) {
    DYNAMIC_SHARED(memory);
    __shared__ float sums[QUARTERS][COLUMNS][32][4];
    constexpr int STAGES = 8, STAGE_CHUNKS = FEW_FEATURES * 8;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    int feature = blockIdx.x * FEW_FEATURES;
    uint4 *stages = (uint4 *)memory + warp * STAGES * STAGE_CHUNKS;
    int steps = (p.k + STEP - 1) / STEP, first = warp * steps / QUARTERS, last = (warp + 1) * steps / QUARTERS;
    // The weights of a step. A feature or input that does not exist is zero.
    auto request = [&](int step) {
        uint4 *to = stages + (step - first) % STAGES * STAGE_CHUNKS;
        int chunk = lane % 8, k = step * STEP + chunk * 8;
#pragma unroll
        for (int i = 0; i < FEW_FEATURES; i += 4) {
            int line = lane / 8 + i;
            bool there = k < p.k && feature + line < p.features;
            copy_async(to + chunk_of(line, chunk), p.weights + (there ? (size_t)(feature + line) * p.k + k : 0), there);
        }
    };
    allow_next();
    // The previous kernel does not write weights.
#pragma unroll
    for (int s = 0; s < STAGES - 1; ++s) {
        if (first + s < last) request(first + s);
        copies_commit();
    }
    // A row that does not exist is read as the last one, and its sum is dropped.
    const bf16 *row[COLUMNS];
    for (int n = 0; n < COLUMNS; ++n) row[n] = p.rows + (size_t)smaller(8 * n + g, p.count - 1) * p.k + 4 * t;
    float c[COLUMNS][4];
    for (int n = 0; n < COLUMNS; ++n)
        for (int i = 0; i < 4; ++i) c[n][i] = 0.0f;
    uint2 b[COLUMNS][STEP / 16], next[COLUMNS][STEP / 16];
    auto read_rows = [&](uint2(&to)[COLUMNS][STEP / 16], int step) {
#pragma unroll
        for (int k = 0; k < STEP / 16; ++k)
#pragma unroll
            for (int n = 0; n < COLUMNS; ++n) {
                int at = step * STEP + k * 16;
                to[n][k] = step < last && at < p.k ? *(const uint2 *)(row[n] + at) : make_uint2(0, 0);
            }
    };
    wait_for_previous();
    read_rows(b, first);
    for (int step = first; step < last; ++step) {
        read_rows(next, step + 1);
        copies_wait<STAGES - 2>();
        warp_sync();
        const uint4 *stage = stages + (step - first) % STAGES * STAGE_CHUNKS;
#pragma unroll
        for (int k = 0; k < STEP / 16; ++k) {
            uint2 upper = inputs_of(stage, g, k), lower = inputs_of(stage, g + 8, k);
#pragma unroll
            for (int n = 0; n < COLUMNS; ++n) product_of_16(c[n], upper, lower, b[n][k]);
        }
        // The next request overwrites the stage of the previous step, which all lanes have read before the last `warp_sync`.
        if (step + STAGES - 1 < last) request(step + STAGES - 1);
        copies_commit();
#pragma unroll
        for (int k = 0; k < STEP / 16; ++k)
#pragma unroll
            for (int n = 0; n < COLUMNS; ++n) b[n][k] = next[n][k];
    }
    copies_wait<0>();
    for (int n = 0; n < COLUMNS; ++n)
        for (int i = 0; i < 4; ++i) sums[warp][n][lane][i] = c[n][i];
    __syncthreads();
    for (int n = warp; n < COLUMNS; n += QUARTERS) {
        float total[1][4];
        for (int i = 0; i < 4; ++i) {
            total[0][i] = 0.0f;
            for (int q = 0; q < QUARTERS; ++q) total[0][i] = total[0][i] + sums[q][n][lane][i];
        }
        finish_pieces<1>(p, 8 * n + 2 * t, feature + g, total);
    }
}

KERNEL(128, 3) dense_few_8(Product p) {
    few<1>(p);
}

KERNEL(128, 3) dense_few_16(Product p) {
    few<2>(p);
}

// A tile of 128 features × ROWS rows, by 8 warps of (128 / WARPS_DOWN) features × (ROWS / (8 / WARPS_DOWN)) rows each.
template <int ROWS, int WARPS_DOWN, int STAGES>
struct Tile {
    static constexpr int THREADS = 256;
    static constexpr int WARPS_ACROSS = 8 / WARPS_DOWN;
    static constexpr int DOWN = TILE_FEATURES / WARPS_DOWN / 16;  // pieces of 16 features
    static constexpr int ACROSS = ROWS / WARPS_ACROSS / 8;        // pieces of 8 rows
    static constexpr int PIECES = DOWN * ACROSS;                  // of which a thread has four sums each
    static constexpr int STAGE_CHUNKS = (TILE_FEATURES + ROWS) * 8;

    // Asks for inputs `at` to `at + 63` of the tile's features and rows.
    DEVICE void ask(const Product &p, uint4 *stage, int feature, int row, int at) {
        for (int i = threadIdx.x; i < STAGE_CHUNKS; i += THREADS) {
            int line = i / 8, chunk = i % 8, k = at + chunk * 8;
            bool is_feature = line < TILE_FEATURES;
            int index = is_feature ? feature + line : row + line - TILE_FEATURES;
            bool there = k < p.k && index < (is_feature ? p.features : p.count);
            const bf16 *from = (is_feature ? p.weights : p.rows) + (there ? (size_t)index * p.k + k : 0);
            copy_async(stage + chunk_of(line, chunk), from, there);
        }
    }

    DEVICE void multiply(float (&c)[PIECES][4], const uint4 *stage, int group) {
        int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4;
        int feature = warp / WARPS_ACROSS * DOWN * 16, row = TILE_FEATURES + warp % WARPS_ACROSS * ACROSS * 8;
        uint2 b[ACROSS];
#pragma unroll
        for (int n = 0; n < ACROSS; ++n) b[n] = inputs_of(stage, row + n * 8 + g, group);
#pragma unroll
        for (int m = 0; m < DOWN; ++m) {
            uint2 upper = inputs_of(stage, feature + m * 16 + g, group), lower = inputs_of(stage, feature + m * 16 + 8 + g, group);
#pragma unroll
            for (int n = 0; n < ACROSS; ++n) product_of_16(c[m * ACROSS + n], upper, lower, b[n]);
        }
    }

    DEVICE void clear(float (&c)[PIECES][4]) {
#pragma unroll
        for (int i = 0; i < PIECES * 4; ++i) c[i / 4][i % 4] = 0.0f;
    }

    // The chain of the steps from `first` to `last` in `c`. At the end of each quarter `ended(quarter)` may take it.
    template <typename Ended>
    DEVICE void chains(const Product &p, float (&c)[PIECES][4], uint4 *shared, int feature, int row, int first,
                              int last, Ended ended) {
        int steps = (p.k + STEP - 1) / STEP;
#pragma unroll
        for (int s = 0; s < STAGES - 1; ++s) {
            if (first + s < last) ask(p, shared + s * STAGE_CHUNKS, feature, row, (first + s) * STEP);
            copies_commit();
        }
        int quarter = 0;
        while ((quarter + 1) * steps / QUARTERS <= first && quarter < QUARTERS - 1) ++quarter;
        for (int step = first; step < last; ++step) {
            copies_wait<STAGES - 2>();
            // What was asked for is here for all, and what is overwritten next was read by all.
            __syncthreads();
            int next = step + STAGES - 1;
            if (next < last) ask(p, shared + (next - first) % STAGES * STAGE_CHUNKS, feature, row, next * STEP);
            copies_commit();
            const uint4 *stage = shared + (step - first) % STAGES * STAGE_CHUNKS;
#pragma unroll
            for (int group = 0; group < STEP / 16; ++group)
                if (step * STEP + group * 16 < p.k) multiply(c, stage, group);
            while (quarter < QUARTERS && step + 1 == (quarter + 1) * steps / QUARTERS) {
                ended(quarter);
                ++quarter;
            }
        }
        copies_wait<0>();
    }

    // All quarters in one block.
    DEVICE void whole(const Product &p) {
        DYNAMIC_SHARED(memory);
        WholeTile tile(p, ROWS);
        float c[PIECES][4], total[PIECES][4];
        clear(c);
        clear(total);
        allow_next();
        wait_for_previous();
        auto ended = [&](int) {
#pragma unroll
            for (int i = 0; i < PIECES * 4; ++i) {
                total[i / 4][i % 4] = total[i / 4][i % 4] + c[i / 4][i % 4];
                c[i / 4][i % 4] = 0.0f;
            }
        };
        chains(p, c, (uint4 *)memory, tile.feature, tile.row, 0, (p.k + STEP - 1) / STEP, ended);
        finish_tile(p, tile.feature, tile.row, total);
    }

    // The quarter blockIdx.z of a tile. The last of the four blocks adds them.
    DEVICE void part(const Product &p, float4 *parts, u32 *arrived) {
        DYNAMIC_SHARED(memory);
        int feature = blockIdx.y * TILE_FEATURES, row = blockIdx.x * ROWS, steps = (p.k + STEP - 1) / STEP, quarter = blockIdx.z;
        float c[PIECES][4];
        clear(c);
        allow_next();
        wait_for_previous();
        chains(p, c, (uint4 *)memory, feature, row, quarter * steps / QUARTERS, (quarter + 1) * steps / QUARTERS, [](int) {});
        size_t tile = (size_t)blockIdx.y * gridDim.x + blockIdx.x;
        if (add_quarters<PIECES, THREADS>(c, parts, arrived, tile, quarter)) finish_tile(p, feature, row, c);
    }

    // Finishes what this thread has of the tile: for every 16 features ACROSS pieces of eight rows.
    DEVICE void finish_tile(const Product &p, int feature, int row, const float (&sums)[PIECES][4]) {
        int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        int f = feature + warp / WARPS_ACROSS * DOWN * 16 + lane / 4, r = row + warp % WARPS_ACROSS * ACROSS * 8 + lane % 4 * 2;
#pragma unroll
        for (int m = 0; m < DOWN; ++m) finish_pieces<ACROSS>(p, r, f + 16 * m, sums + m * ACROSS);
    }
};

typedef Tile<64, 4, 3> Tile64;
typedef Tile<128, 2, 3> Tile128;

KERNEL(256, 2) dense_whole_64(Product p) {
    Tile64::whole(p);
}

KERNEL(256, 1) dense_whole_128(Product p) {
    Tile128::whole(p);
}

KERNEL(256, 2) dense_part_64(Product p, float4 *parts, u32 *arrived) {
    Tile64::part(p, parts, arrived);
}

KERNEL(256, 1) dense_part_128(Product p, float4 *parts, u32 *arrived) {
    Tile128::part(p, parts, arrived);
}
