// What all products share: their arguments, the shape of their sums, and what becomes of a sum.
//
// A product is `out[row][feature] = Σ_k weights[feature][k] · rows[row][k]`, with bf16 inputs and f32 sums. Every output has one
// shape of reduction, whichever kernel computes it and however many rows there are. The inputs are divided into four quarters, at
// multiples of 64. A quarter is one chain of tensor-core products in ascending order that begins at zero. Each product takes 16
// neighbouring inputs. The quarters are added to zero in ascending order. Weights are always the left operand, rows the right one.
//
// The kernels rely on two properties of the tensor cores, which a test on a device checks: the bits of a sum do not depend on the
// position of an input among the 16, and `mma.sync` and `wgmma` give the same bits.
#ifndef PRODUCTS
#define PRODUCTS

#define QUARTERS 4
#define STEP 64
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

// Finishes PIECES pieces of eight rows. A thread has four sums of each: rows r and r + 1 of feature f, then those of feature f + 8.
// Outputs that are added to are read several at a time, so that their latencies overlap.
template <int PIECES>
DEVICE void finish_pieces(const Product &p, int r, int f, const float (*sums)[4]) {
    if (p.finish != ADD) {
#pragma unroll
        for (int n = 0; n < PIECES; ++n) {
            finish(p, r + 8 * n, f, sums[n][0], sums[n][2]);
            finish(p, r + 8 * n + 1, f, sums[n][1], sums[n][3]);
        }
        return;
    }
    float *out = (float *)p.out + f;
    bool has_first = f < p.features, has_second = f + 8 < p.features;
    float biases[2] = {p.bias && has_first ? p.bias[f] : 0.0f, p.bias && has_second ? p.bias[f + 8] : 0.0f};
    constexpr int AT_ONCE = PIECES % 4 == 0 ? 4 : PIECES % 2 == 0 ? 2 : 1;
#pragma unroll
    for (int first = 0; first < PIECES; first += AT_ONCE) {
        float before[AT_ONCE][4];
#pragma unroll
        for (int n = 0; n < AT_ONCE; ++n)
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                int row = r + 8 * (first + n) + i % 2;
                bool there = row < p.count && (i < 2 ? has_first : has_second);
                before[n][i] = there ? out[(size_t)row * p.stride + i / 2 * 8] : 0.0f;
            }
#pragma unroll
        for (int n = 0; n < AT_ONCE; ++n)
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                int row = r + 8 * (first + n) + i % 2;
                bool there = row < p.count && (i < 2 ? has_first : has_second);
                float sum = sums[first + n][i];
                if (p.bias) sum = sum + biases[i / 2];
                if (there) out[(size_t)row * p.stride + i / 2 * 8] = before[n][i] + p.factor * sum;
            }
    }
}

// The first feature and row of the tile that a block computes whole. Blocks that run at the same time share few rows and few features,
// so that both stay in the cache: eight tiles of rows come with one of features, then with the next.
struct WholeTile {
    int feature, row;

    DEVICE_METHOD WholeTile(const Product &p, int tile_rows) {
        int down = (p.features + TILE_FEATURES - 1) / TILE_FEATURES, across = (p.count + tile_rows - 1) / tile_rows;
        int group = blockIdx.x / (8 * down), within = blockIdx.x % (8 * down), width = smaller(8, across - 8 * group);
        feature = within / width * TILE_FEATURES, row = (8 * group + within % width) * tile_rows;
    }
};

// Exchanges the quarters of a tile between four blocks of THREADS threads. Returns true to the last block that arrives, whose `sums` are
// then those of all quarters, added in ascending order. `parts` has 4 · PIECES · THREADS entries for each tile, `arrived` one count.
template <int PIECES, int THREADS>
DEVICE bool add_quarters(float (&sums)[PIECES][4], float4 *parts, u32 *arrived, size_t tile, int quarter) {
    __shared__ bool last;
    float4 *mine = parts + tile * (QUARTERS * PIECES * THREADS) + threadIdx.x;
#pragma unroll
    for (int n = 0; n < PIECES; ++n)
        mine[(quarter * PIECES + n) * THREADS] = make_float4(sums[n][0], sums[n][1], sums[n][2], sums[n][3]);
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) last = atomicAdd(&arrived[tile], 1u) == QUARTERS - 1;
    __syncthreads();
    if (!last) return false;
    __threadfence();
    // For the next product. No other block reads this count any more.
    if (threadIdx.x == 0) arrived[tile] = 0;
#pragma unroll
    for (int n = 0; n < PIECES; ++n) {
        float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
        for (int q = 0; q < QUARTERS; ++q) {
            float4 next = load_fresh(mine + (q * PIECES + n) * THREADS);
            sum.x = sum.x + next.x, sum.y = sum.y + next.y, sum.z = sum.z + next.z, sum.w = sum.w + next.w;
        }
        sums[n][0] = sum.x, sums[n][1] = sum.y, sums[n][2] = sum.z, sums[n][3] = sum.w;
    }
    return true;
}

#endif
