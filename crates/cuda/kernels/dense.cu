// Products with weights: `out[row][feature] = Σ_k weights[feature][k] · rows[row][k]`, bf16 in, f32 sums.
//
// Same bits. Every output has one shape of reduction, whichever kernel computes it and however many rows there are: the inputs
// are parted into four quarters (at whole steps of 64); a quarter is one chain of tensor-core products in ascending order,
// begun at zero, each over the 16 inputs that `product_of_32` says; the quarters are added to zero in ascending order. Weights are always
// the left operand and rows the right one, and no output's sum looks at another column of the product. Three kernels share
// that shape: `few` has a warp for each
// quarter, `whole` goes through all four, `part` leaves each to a block of its own.

#define QUARTERS 4
#define STEP 64
#define FEW_FEATURES 16
#define TILE_FEATURES 128

// What becomes of a sum.
enum Finish {
    STORE = 0,  // out f32 = sum + bias
    ADD = 1,    // out f32 = out + factor · (sum + bias): the residual stream
    GATE = 2,   // out bf16 = silu(gate + bias) · (up + bias); gates and ups alternate by eights among the features
    GATE_TANH = 3,  // the same with the approximation of GELU by tanh
};

struct Product {
    const bf16 *weights;  // features × k
    const bf16 *rows;     // count × k
    const float *bias;    // features, or none
    void *out;            // count × stride
    int features, k, count, stride, finish;
    float factor;
};

DEVICE int quarter_begins(int quarter, int k) {
    int steps = (k + STEP - 1) / STEP;
    return smaller(quarter * steps / QUARTERS * STEP, k);
}

// x · σ(2 · √(2/π) · (x + 0.044715 x³)), which is GELU as tanh approximates it.
DEVICE float gelu_tanh(float x) {
    float inner = 1.5957691216057308f * (x + 0.044715f * (x * x * x));
    return x / (1.0f + exp2_of(-inner * LOG2_E));
}

// One row's sums of features f and f + 8, of which the second is the up of the first one's gate.
DEVICE void finish(const Product &p, int row, int f, float first, float second) {
    if (row >= p.count) return;
    if (p.bias) {
        if (f < p.features) first = first + p.bias[f];
        if (f + 8 < p.features) second = second + p.bias[f + 8];
    }
    if (p.finish == GATE || p.finish == GATE_TANH) {
        if (f + 8 >= p.features) return;
        float gate = p.finish == GATE ? first / (1.0f + exp2_of(-first * LOG2_E)) : gelu_tanh(first);
        ((bf16 *)p.out)[(size_t)row * p.stride + (f / 16 * 8 + f % 8)] = to_bf16(gate * second);
        return;
    }
    float *out = (float *)p.out + (size_t)row * p.stride;
    bool adds = p.finish == ADD;
    if (f < p.features) out[f] = adds ? out[f] + p.factor * first : first;
    if (f + 8 < p.features) out[f + 8] = adds ? out[f + 8] + p.factor * second : second;
}

// Up to 8·COLUMNS rows: a block for 16 features, a warp for each quarter. Weights come straight from memory, as many in flight
// as registers hold, and rows from the caches.
template <int COLUMNS>
DEVICE void few(const Product &p) {
    __shared__ float sums[QUARTERS][COLUMNS][32][4];
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    int feature = blockIdx.x * FEW_FEATURES;
    // A feature or row that is not there is read as the last one, and its sum dropped.
    const bf16 *upper = p.weights + (size_t)smaller(feature + g, p.features - 1) * p.k + 8 * t;
    const bf16 *lower = p.weights + (size_t)smaller(feature + g + 8, p.features - 1) * p.k + 8 * t;
    const bf16 *row[COLUMNS];
    for (int n = 0; n < COLUMNS; ++n) row[n] = p.rows + (size_t)smaller(8 * n + g, p.count - 1) * p.k + 8 * t;
    float c[COLUMNS][4];
    for (int n = 0; n < COLUMNS; ++n)
        for (int i = 0; i < 4; ++i) c[n][i] = 0.0f;
    int at = quarter_begins(warp, p.k), end = quarter_begins(warp + 1, p.k);
    // The next weights are asked for before these are multiplied, so that some are always on their way.
    constexpr int AHEAD = 4, STRIDE = 32 * AHEAD;
    uint4 a[AHEAD], b[AHEAD], next_a[AHEAD], next_b[AHEAD];
    auto ask = [&](uint4(&to_a)[AHEAD], uint4(&to_b)[AHEAD], int from) {
#pragma unroll
        for (int i = 0; i < AHEAD; ++i) {
            to_a[i] = load_once(upper + from + 32 * i);
            to_b[i] = load_once(lower + from + 32 * i);
        }
    };
    if (at + STRIDE <= end) ask(a, b, at);
    for (; at + STRIDE <= end; at += STRIDE) {
        bool more = at + 2 * STRIDE <= end;
        if (more) ask(next_a, next_b, at + STRIDE);
#pragma unroll
        for (int i = 0; i < AHEAD; ++i)
#pragma unroll
            for (int n = 0; n < COLUMNS; ++n) product_of_32(c[n], a[i], b[i], *(const uint4 *)(row[n] + at + 32 * i));
        if (!more) continue;
#pragma unroll
        for (int i = 0; i < AHEAD; ++i) a[i] = next_a[i], b[i] = next_b[i];
    }
    for (; at < end; at += 32) {
        uint4 a = load_once(upper + at), b = load_once(lower + at);
#pragma unroll
        for (int n = 0; n < COLUMNS; ++n) product_of_32(c[n], a, b, *(const uint4 *)(row[n] + at));
    }
    for (int n = 0; n < COLUMNS; ++n)
        for (int i = 0; i < 4; ++i) sums[warp][n][lane][i] = c[n][i];
    __syncthreads();
    for (int n = warp; n < COLUMNS; n += QUARTERS) {
        float total[4];
        for (int i = 0; i < 4; ++i) {
            total[i] = 0.0f;
            for (int q = 0; q < QUARTERS; ++q) total[i] = total[i] + sums[q][n][lane][i];
        }
        finish(p, 8 * n + 2 * t, feature + g, total[0], total[2]);
        finish(p, 8 * n + 2 * t + 1, feature + g, total[1], total[3]);
    }
}

KERNEL(128, 4) dense_few_8(Product p) {
    few<1>(p);
}

KERNEL(128, 4) dense_few_16(Product p) {
    few<2>(p);
}

// Which 16 bytes of a row of 64 inputs stand where in shared memory: neighbouring rows use different banks.
DEVICE int chunk_of(int row, int chunk) {
    return row * 8 + (chunk ^ ((row & 1) << 2));
}

// A tile of 128 features × ROWS rows, by 8 warps of (128 / WARPS_DOWN) features × (ROWS / (8 / WARPS_DOWN)) rows each.
template <int ROWS, int WARPS_DOWN, int STAGES>
struct Tile {
    static constexpr int THREADS = 256;
    static constexpr int WARPS_ACROSS = 8 / WARPS_DOWN;
    static constexpr int DOWN = TILE_FEATURES / WARPS_DOWN / 16;  // pieces of 16 features
    static constexpr int ACROSS = ROWS / WARPS_ACROSS / 8;        // pieces of 8 rows
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

    DEVICE void multiply(float (&c)[DOWN][ACROSS][4], const uint4 *stage, int group) {
        int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
        int feature = warp / WARPS_ACROSS * DOWN * 16, row = TILE_FEATURES + warp % WARPS_ACROSS * ACROSS * 8;
        uint4 b[ACROSS];
#pragma unroll
        for (int n = 0; n < ACROSS; ++n) b[n] = stage[chunk_of(row + n * 8 + g, group * 4 + t)];
#pragma unroll
        for (int m = 0; m < DOWN; ++m) {
            uint4 upper = stage[chunk_of(feature + m * 16 + g, group * 4 + t)];
            uint4 lower = stage[chunk_of(feature + m * 16 + 8 + g, group * 4 + t)];
#pragma unroll
            for (int n = 0; n < ACROSS; ++n) product_of_32(c[m][n], upper, lower, b[n]);
        }
    }

    DEVICE void clear(float (&c)[DOWN][ACROSS][4]) {
#pragma unroll
        for (int m = 0; m < DOWN; ++m)
#pragma unroll
            for (int n = 0; n < ACROSS; ++n)
#pragma unroll
                for (int i = 0; i < 4; ++i) c[m][n][i] = 0.0f;
    }

    // The chain of the steps from `first` to `last` in `c`. At the end of each quarter `ended(quarter)` may take it.
    template <typename Ended>
    DEVICE void chains(const Product &p, float (&c)[DOWN][ACROSS][4], uint4 *shared, int feature, int row, int first,
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
            multiply(c, stage, 0);
            if (step * STEP + 32 < p.k) multiply(c, stage, 1);
            while (quarter < QUARTERS && step + 1 == (quarter + 1) * steps / QUARTERS) {
                ended(quarter);
                ++quarter;
            }
        }
        copies_wait<0>();
    }

    // All quarters in one block. Blocks that run at once share few rows and few features, so that both stay in the cache: eight
    // tiles of rows come with one of features, then with the next.
    DEVICE void whole(const Product &p) {
        DYNAMIC_SHARED(memory);
        int down = (p.features + TILE_FEATURES - 1) / TILE_FEATURES, across = (p.count + ROWS - 1) / ROWS;
        int group = blockIdx.x / (8 * down), within = blockIdx.x % (8 * down), width = smaller(8, across - 8 * group);
        int feature = within / width * TILE_FEATURES, row = (8 * group + within % width) * ROWS;
        float c[DOWN][ACROSS][4], total[DOWN][ACROSS][4];
        clear(c);
        clear(total);
        auto ended = [&](int) {
#pragma unroll
            for (int m = 0; m < DOWN; ++m)
#pragma unroll
                for (int n = 0; n < ACROSS; ++n)
#pragma unroll
                    for (int i = 0; i < 4; ++i) {
                        total[m][n][i] = total[m][n][i] + c[m][n][i];
                        c[m][n][i] = 0.0f;
                    }
        };
        chains(p, c, (uint4 *)memory, feature, row, 0, (p.k + STEP - 1) / STEP, ended);
        each(feature, row, [&](int m, int n, int f, int r) {
            finish(p, r, f, total[m][n][0], total[m][n][2]);
            finish(p, r + 1, f, total[m][n][1], total[m][n][3]);
        });
    }

    // The quarter blockIdx.z of a tile; whoever is the last of the four adds them.
    DEVICE void part(const Product &p, float4 *parts, u32 *arrived) {
        DYNAMIC_SHARED(memory);
        __shared__ bool last;
        int feature = blockIdx.y * TILE_FEATURES, row = blockIdx.x * ROWS, steps = (p.k + STEP - 1) / STEP;
        float c[DOWN][ACROSS][4];
        clear(c);
        int quarter = blockIdx.z;
        chains(p, c, (uint4 *)memory, feature, row, quarter * steps / QUARTERS, (quarter + 1) * steps / QUARTERS, [](int) {});
        constexpr size_t PIECES = DOWN * ACROSS;
        size_t tile = (size_t)blockIdx.y * gridDim.x + blockIdx.x;
        float4 *mine = parts + tile * QUARTERS * PIECES * THREADS + threadIdx.x;
#pragma unroll
        for (int m = 0; m < DOWN; ++m)
#pragma unroll
            for (int n = 0; n < ACROSS; ++n)
                mine[(quarter * PIECES + m * ACROSS + n) * THREADS] =
                    make_float4(c[m][n][0], c[m][n][1], c[m][n][2], c[m][n][3]);
        __threadfence();
        __syncthreads();
        if (threadIdx.x == 0) last = atomicAdd(&arrived[tile], 1u) == QUARTERS - 1;
        __syncthreads();
        if (!last) return;
        __threadfence();
        // For the next product: nobody else looks at this count any more.
        if (threadIdx.x == 0) arrived[tile] = 0;
        each(feature, row, [&](int m, int n, int f, int r) {
            float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            for (int q = 0; q < QUARTERS; ++q) {
                float4 next = load_fresh(mine + (q * PIECES + m * ACROSS + n) * THREADS);
                sum.x = sum.x + next.x, sum.y = sum.y + next.y, sum.z = sum.z + next.z, sum.w = sum.w + next.w;
            }
            finish(p, r, f, sum.x, sum.z);
            finish(p, r + 1, f, sum.y, sum.w);
        });
    }

    // What of the tile this thread holds: piece (m, n), the feature and row of its first sum.
    template <typename Do>
    DEVICE void each(int feature, int row, Do of) {
        int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        int f = feature + warp / WARPS_ACROSS * DOWN * 16 + lane / 4, r = row + warp % WARPS_ACROSS * ACROSS * 8 + lane % 4 * 2;
#pragma unroll
        for (int m = 0; m < DOWN; ++m)
#pragma unroll
            for (int n = 0; n < ACROSS; ++n) of(m, n, f + m * 16, r + n * 8);
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
