// Attention of rows over paged keys and values, causal, with grouped queries: the rows that share a key head (a token's queries of
// its group, token by token) stand below each other in one product.
//
// Same bits. Positions are read in tiles of 64, four of which are a split of 256, both at multiples from the sequence's start. A
// tile is computed from nothing: its scores, their greatest, the exponentials, their sum, and what they weigh, in one chain of
// products in ascending order. Tiles are merged into their split in ascending order, splits into the whole likewise, by one and the
// same `merge`. Whether a warp goes through all of them (`many`) or each has a warp of its own (`few`, then `join`) changes no
// operation. What a row must not see weighs exactly nothing, so it does not matter how many rows share its tiles either. In a
// layer with a window, what is before the window weighs nothing likewise, and merging a tile or split without any key that a row
// sees changes nothing: so it does not matter at which tile a row begins.

#define TILE 64
#define SPLIT_TILES 4
#define ROWS 16
// Dimensions of values that a warp sums. For wider heads several blocks compute the same scores, each for its part of the values.
#define VALUES(DIMS) (DIMS < 128 ? DIMS : 128)
#define PARTS(DIMS) (DIMS / VALUES(DIMS))

struct Pages {
    const bf16 *keys;    // block, head, token, dimension
    const bf16 *values;  // block, head, dimension, token
    const int *blocks;   // tables, one behind the other
};

// Rows of one sequence that are computed together: the group's queries of `tokens` tokens.
struct Entry {
    int first_row;  // of the batch: the first token's
    int from;       // which of the group's rows come here first
    int rows;       // tokens · group, over the whole sequence's chunk
    int start;      // position of the first token
    int table;      // where in `blocks` the sequence's table begins
    int pad[3];
};

// What a thread knows of 16 rows: rows g and g + 8, and of every eight dimensions of values two.
template <int DIMS>
struct State {
    float greatest[2];
    float sum[2];
    float weighed[VALUES(DIMS) / 8][4];

    DEVICE_METHOD void clear() {
        for (int r = 0; r < 2; ++r) greatest[r] = -INFINITY, sum[r] = 0.0f;
#pragma unroll
        for (int d = 0; d < VALUES(DIMS) / 8; ++d)
#pragma unroll
            for (int i = 0; i < 4; ++i) weighed[d][i] = 0.0f;
    }
};

// Factors by which a part and what is merged into it are weighed; the greatest of both is left in `greatest`.
struct Merge {
    float kept, added;
    bool changes;

    DEVICE_METHOD Merge(float &greatest, float other) {
        changes = other != -INFINITY;
        float both = greatest > other ? greatest : other;
        kept = changes ? exp2_of(greatest - both) : 1.0f;
        added = changes ? exp2_of(other - both) : 0.0f;
        if (changes) greatest = both;
    }

    DEVICE_METHOD float of(float mine, float other) const {
        return changes ? fmaf(other, added, mine * kept) : mine;
    }
};

template <int DIMS>
DEVICE void merge(State<DIMS> &into, const State<DIMS> &other) {
    Merge first(into.greatest[0], other.greatest[0]), second(into.greatest[1], other.greatest[1]);
    into.sum[0] = first.of(into.sum[0], other.sum[0]);
    into.sum[1] = second.of(into.sum[1], other.sum[1]);
#pragma unroll
    for (int d = 0; d < VALUES(DIMS) / 8; ++d) {
        into.weighed[d][0] = first.of(into.weighed[d][0], other.weighed[d][0]);
        into.weighed[d][1] = first.of(into.weighed[d][1], other.weighed[d][1]);
        into.weighed[d][2] = second.of(into.weighed[d][2], other.weighed[d][2]);
        into.weighed[d][3] = second.of(into.weighed[d][3], other.weighed[d][3]);
    }
}

DEVICE float of_four(float x, bool greatest) {
    for (int mask = 1; mask <= 2; mask <<= 1) {
        float other = exchange(x, mask);
        x = greatest ? (x > other ? x : other) : x + other;
    }
    return x;
}

// The 16 rows of a warp: where their queries stand and what they see.
template <int DIMS>
struct Rows {
    uint4 queries[DIMS / 32][2];
    int positions[2];  // of rows g and g + 8; below zero: no such row

    DEVICE_METHOD void read(const Entry &e, const bf16 *rows, int first, int heads, int group, int kv_head) {
        int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            int row = first + g + 8 * r;
            bool there = row < e.rows;
            positions[r] = there ? e.start + row / group : -1;
            size_t at = (size_t)(e.first_row + (there ? row / group : 0)) * heads + kv_head * group + (there ? row % group : 0);
#pragma unroll
            for (int j = 0; j < DIMS / 32; ++j)
                queries[j][r] = there ? *(const uint4 *)(rows + at * DIMS + 32 * j + 8 * t) : make_uint4(0, 0, 0, 0);
        }
    }
};

// The first position that a row of an entry sees. Earlier rows see none before it.
DEVICE int first_seen(const Entry &e, int row, int group, int window) {
    int position = e.start + row / group - window + 1;
    return position > 0 ? position : 0;
}

// What the rows of a warp see: positions from `begin` to before `end`. Blocks wholly before or behind that are not read: their
// pages may hold anything, and their entries in the table may be no blocks. Each row sees only the last `window` positions. Every row
// of a full warp sees the positions from `all_begin` to before `all_end`. A score is the product of query and key times `scale`; with
// a cap above zero, cap · tanh(score / cap). Both count in powers of two, as the exponentials do.
struct Seen {
    int begin, end, all_begin, all_end, window;
    float scale, cap;

    // What `count` rows of an entry see, beginning with its row `first`. Nothing if there are none.
    static DEVICE_METHOD Seen of(const Entry &e, int first, int count, int group, int window, float scale, float cap) {
        Seen seen = {0, 0, 0, 0, window, scale, cap};
        if (count <= 0) return seen;
        int last_position = e.start + (first + count - 1) / group;
        seen.begin = first_seen(e, first, group, window);
        seen.end = last_position + 1;
        if (count < ROWS) return seen;
        seen.all_begin = first_seen(e, first + count - 1, group, window);
        seen.all_end = e.start + first / group + 1;
        return seen;
    }

    DEVICE_METHOD bool has(int first, int count) const {
        return first < end && first + count > begin;
    }

    // Whether every row sees all of these positions.
    DEVICE_METHOD bool all_see(int first, int count) const {
        return first >= all_begin && first + count <= all_end;
    }
};

// Where a key head's pages are in memory. `first_value` is the first dimension of the values that a warp sums.
template <int DIMS>
struct PagesInMemory {
    const Pages &pages;
    const int *table;
    int kv_heads, kv_head, first_value;

    // The page of the 16 positions from `first` on: tokens of DIMS elements.
    DEVICE_METHOD const bf16 *keys(int first) const {
        return pages.keys + ((size_t)table[first / 16] * kv_heads + kv_head) * 16 * DIMS;
    }

    // Dimensions of 16 tokens.
    DEVICE_METHOD const bf16 *values(int first) const {
        return pages.values + (((size_t)table[first / 16] * kv_heads + kv_head) * DIMS + first_value) * 16;
    }

    // Elements 8 · chunk to 8 · chunk + 7 of a token's key.
    DEVICE_METHOD uint4 key(int first, int token, int chunk) const {
        return *(const uint4 *)(keys(first) + token * DIMS + 8 * chunk);
    }

    // Tokens 4t to 4t + 3 of a dimension.
    DEVICE_METHOD uint2 value(int first, int dimension, int t) const {
        return *(const uint2 *)(values(first) + dimension * 16 + 4 * t);
    }
};

// The pages of one tile in shared memory: four pages of keys, then four of values.
template <int DIMS>
struct PagesInShared {
    static constexpr int KEY_CHUNKS = 2 * DIMS, VALUE_CHUNKS = 2 * VALUES(DIMS);  // of 16 bytes in a page
    static constexpr int CHUNKS = TILE / 16 * (KEY_CHUNKS + VALUE_CHUNKS);

    const uint4 *tile;

    // Neighbouring tokens use different banks.
    static DEVICE_METHOD int key_chunk(int token, int chunk) {
        return token * (DIMS / 8) + (DIMS % 64 == 0 ? chunk ^ ((token & 1) << 2) : chunk);
    }

    DEVICE_METHOD uint4 key(int first, int token, int chunk) const {
        return tile[first / 16 % (TILE / 16) * KEY_CHUNKS + key_chunk(token, chunk)];
    }

    DEVICE_METHOD uint2 value(int first, int dimension, int t) const {
        const uint4 *page = tile + TILE / 16 * KEY_CHUNKS + first / 16 % (TILE / 16) * VALUE_CHUNKS;
        return ((const uint2 *)page)[dimension * 4 + t];
    }

    // Requests CHUNKS_OF_PAGE chunks with all 128 threads of a block. `place_of` is a chunk's place.
    template <int CHUNKS_OF_PAGE, typename PlaceOf>
    static DEVICE_METHOD void copy_page(uint4 *to, const bf16 *from, PlaceOf place_of) {
#pragma unroll
        for (int n = 0; n < CHUNKS_OF_PAGE; n += 128) {
            int i = n + threadIdx.x;
            if (CHUNKS_OF_PAGE % 128 == 0 || i < CHUNKS_OF_PAGE) copy_async(to + place_of(i), (const uint4 *)from + i, true);
        }
    }

    // Requests the pages of a tile that are seen, with all 128 threads of a block.
    static DEVICE_METHOD void request(uint4 *to, const PagesInMemory<DIMS> &from, int tile, const Seen &seen) {
        const bf16 *keys[TILE / 16], *values[TILE / 16];
#pragma unroll
        for (int page = 0; page < TILE / 16; ++page) {
            // A page that is not seen has no entry in the table, and another one stands for its address.
            int first = tile * TILE + page * 16, seen_one = seen.has(first, 16) ? first : seen.begin;
            keys[page] = from.keys(seen_one), values[page] = from.values(seen_one);
        }
#pragma unroll
        for (int page = 0; page < TILE / 16; ++page) {
            if (!seen.has(tile * TILE + page * 16, 16)) continue;
            copy_page<KEY_CHUNKS>(to + page * KEY_CHUNKS, keys[page], [](int i) { return key_chunk(i / (DIMS / 8), i % (DIMS / 8)); });
            copy_page<VALUE_CHUNKS>(to + TILE / 16 * KEY_CHUNKS + page * VALUE_CHUNKS, values[page], [](int i) { return i; });
        }
    }
};

// One tile, from nothing.
template <int DIMS, typename From>
DEVICE void attend_tile(State<DIMS> &out, const Rows<DIMS> &rows, const From &from, int tile, const Seen &seen) {
    int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    float scores[TILE / 8][4];
#pragma unroll
    for (int half = 0; half < TILE / 8; ++half)
#pragma unroll
        for (int i = 0; i < 4; ++i) scores[half][i] = 0.0f;
    bool all = seen.all_see(tile * TILE, TILE);
    // Whether every page holds a position that is seen, so that it may be read.
    bool all_pages = seen.has(tile * TILE, 16) && seen.has(tile * TILE + TILE - 16, 16);
    // The chains of all halves advance together, so that their latencies overlap.
    auto multiply = [&](int j, int half) {
        // Column n of the first half is token 4·(n / 2) + n % 2 of the block, of the second half the one two behind it: so the
        // weights come out as the next product takes them, four neighbouring tokens to a thread.
        int token = 4 * (g / 2) + g % 2 + 2 * (half % 2);
        uint4 key = from.key(tile * TILE + half / 2 * 16, token, 4 * j + t);
        product_of_32(scores[half], rows.queries[j][0], rows.queries[j][1], key);
    };
    if (all_pages) {
#pragma unroll
        for (int j = 0; j < DIMS / 32; ++j)
#pragma unroll
            for (int half = 0; half < TILE / 8; ++half) multiply(j, half);
    } else {
#pragma unroll
        for (int page = 0; page < TILE / 16; ++page) {
            if (!seen.has(tile * TILE + page * 16, 16)) continue;
#pragma unroll
            for (int j = 0; j < DIMS / 32; ++j) {
                multiply(j, 2 * page);
                multiply(j, 2 * page + 1);
            }
        }
    }
#pragma unroll
    for (int half = 0; half < TILE / 8; ++half)
#pragma unroll
        for (int i = 0; i < 4; ++i) scores[half][i] = scores[half][i] * seen.scale;
    if (seen.cap > 0.0f) {
#pragma unroll
        for (int half = 0; half < TILE / 8; ++half)
#pragma unroll
            for (int i = 0; i < 4; ++i) scores[half][i] = seen.cap * tanh_of(scores[half][i] / seen.cap);
    }
    if (!all) {
#pragma unroll
        for (int half = 0; half < TILE / 8; ++half)
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                int position = tile * TILE + half / 2 * 16 + 4 * t + i % 2 + 2 * (half % 2);
                int behind = rows.positions[i / 2] - position;
                if (behind < 0 || behind >= seen.window) scores[half][i] = -INFINITY;
            }
    }
    float greatest[2] = {-INFINITY, -INFINITY}, sum[2] = {0.0f, 0.0f};
#pragma unroll
    for (int half = 0; half < TILE / 8; ++half)
#pragma unroll
        for (int i = 0; i < 4; ++i) greatest[i / 2] = scores[half][i] > greatest[i / 2] ? scores[half][i] : greatest[i / 2];
#pragma unroll
    for (int r = 0; r < 2; ++r) out.greatest[r] = of_four(greatest[r], true);
    u32 weights[TILE / 8][2];
#pragma unroll
    for (int half = 0; half < TILE / 8; ++half)
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            float most = out.greatest[r] == -INFINITY ? 0.0f : out.greatest[r];
            weights[half][r] = pack_bf16(exp2_of(scores[half][2 * r] - most), exp2_of(scores[half][2 * r + 1] - most));
            // What is summed is what weighs: the rounded values.
            sum[r] = sum[r] + (low_half(weights[half][r]) + high_half(weights[half][r]));
        }
#pragma unroll
    for (int r = 0; r < 2; ++r) out.sum[r] = of_four(sum[r], false);
#pragma unroll
    for (int d = 0; d < VALUES(DIMS) / 8; ++d)
#pragma unroll
        for (int i = 0; i < 4; ++i) out.weighed[d][i] = 0.0f;
#pragma unroll
    for (int block = 0; block < TILE / 16; ++block) {
        int first = tile * TILE + block * 16, mine = first + 4 * t;
        if (!all_pages && !seen.has(first, 16)) continue;
#pragma unroll
        for (int d = 0; d < VALUES(DIMS) / 8; ++d) {
            uint2 v = from.value(first, 8 * d + g, t);
            // Nothing times what was never written may be no number.
            if (!all && first + 16 > seen.end) {
                if (mine >= seen.end) v.x = 0;
                else if (mine + 1 >= seen.end) v.x &= 0xffffu;
                if (mine + 2 >= seen.end) v.y = 0;
                else if (mine + 3 >= seen.end) v.y &= 0xffffu;
            }
            tensor_product(out.weighed[d], weights[2 * block][0], weights[2 * block][1], weights[2 * block + 1][0],
                           weights[2 * block + 1][1], v.x, v.y);
        }
    }
}

// The end of a row: what was weighed, over the sum. Adding zero makes the two zeros one.
DEVICE bf16 ended(float weighed, float sum) {
    return to_bf16(weighed / sum + 0.0f);
}

// A block for a split of a key head, a part of its values, and 16 rows of an entry, a warp for each of its tiles. `partial`: for each (entry, key head,
// split) 16 · (DIMS + 2) floats. The first split is the one in which the entry's first row begins to see. Splits behind the
// entry's last position are left as they are, and `join` reads none of them.
template <int DIMS>
DEVICE void attend_few(const bf16 *queries, Pages pages, const Entry *entries, float *partial, int heads, int kv_heads, int window,
                       float scale, float cap) {
    __shared__ float greatest[SPLIT_TILES][ROWS], sums[SPLIT_TILES][ROWS];
    // Rows are a little longer, so that neighbouring ones use different banks.
    __shared__ float weighed[SPLIT_TILES][ROWS][VALUES(DIMS) + 8];
    allow_next();
    // No kernel writes entries or tables.
    Entry e = entries[blockIdx.z];
    int group = heads / kv_heads, kv_head = blockIdx.y / PARTS(DIMS), warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    int first_value = blockIdx.y % PARTS(DIMS) * VALUES(DIMS), here = smaller(e.rows - e.from, ROWS);
    Seen seen = Seen::of(e, e.from, here, group, window, scale, cap);
    int end = seen.end, split = seen.begin / (SPLIT_TILES * TILE) + blockIdx.x;
    int tile = split * SPLIT_TILES + warp;
    PagesInMemory<DIMS> from = {pages, pages.blocks + e.table, kv_heads, kv_head, first_value};
    bool sees = seen.has(tile * TILE, TILE);
    if (sees) {
        // All pages are requested before the first is needed, and before the previous kernel has written the newest tokens.
#pragma unroll
        for (int page = 0; page < TILE / 16; ++page) {
            int first = tile * TILE + page * 16;
            if (!seen.has(first, 16)) continue;
            for (int i = lane * 64; i < 16 * DIMS; i += 32 * 64) prefetch(from.keys(first) + i);
            for (int i = lane * 64; i < 16 * VALUES(DIMS); i += 32 * 64) prefetch(from.values(first) + i);
        }
    }
    wait_for_previous();
    if (split * SPLIT_TILES * TILE >= end) return;
    State<DIMS> state;
    if (sees) {
        Rows<DIMS> rows;
        rows.read(e, queries, e.from, heads, group, kv_head);
        attend_tile<DIMS>(state, rows, from, tile, seen);
    } else {
        state.clear();
    }
    int g = lane / 4, t = lane % 4;
    for (int r = 0; r < 2; ++r) {
        if (g + 8 * r >= here) break;
        if (t == 0) greatest[warp][g + 8 * r] = state.greatest[r], sums[warp][g + 8 * r] = state.sum[r];
#pragma unroll
        for (int d = 0; d < VALUES(DIMS) / 8; ++d)
            *(float2 *)&weighed[warp][g + 8 * r][8 * d + 2 * t] = make_float2(state.weighed[d][2 * r], state.weighed[d][2 * r + 1]);
    }
    __syncthreads();
    float *out = partial + (((size_t)blockIdx.z * kv_heads + kv_head) * gridDim.x + blockIdx.x) * ROWS * (DIMS + 2);
    for (int row = warp; row < here; row += 4) {
        float most = -INFINITY, sum = 0.0f, mine[VALUES(DIMS) / 32];
        for (int i = 0; i < VALUES(DIMS) / 32; ++i) mine[i] = 0.0f;
        for (int w = 0; w < SPLIT_TILES; ++w) {
            Merge with(most, greatest[w][row]);
            sum = with.of(sum, sums[w][row]);
            for (int i = 0; i < VALUES(DIMS) / 32; ++i) mine[i] = with.of(mine[i], weighed[w][row][lane + 32 * i]);
        }
        float *to = out + (size_t)row * (DIMS + 2);
        for (int i = 0; i < VALUES(DIMS) / 32; ++i) to[first_value + lane + 32 * i] = mine[i];
        if (lane == 0 && first_value == 0) to[DIMS] = most, to[DIMS + 1] = sum;
    }
}

// The splits of an entry's rows, merged in ascending order: a block for each entry and key head, a warp for every fourth row.
template <int DIMS>
DEVICE void join(const Entry *entries, const float *partial, bf16 *out, int heads, int kv_heads, int head_dim, int stride, int splits,
                 int window) {
    allow_next();
    wait_for_previous();
    Entry e = entries[blockIdx.y];
    int group = heads / kv_heads, kv_head = blockIdx.x, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    int here = smaller(e.rows - e.from, ROWS);
    const float *from = partial + ((size_t)blockIdx.y * kv_heads + kv_head) * splits * ROWS * (DIMS + 2);
    int first = first_seen(e, e.from, group, window) / (SPLIT_TILES * TILE);
    for (int i = warp; i < here; i += 4) {
        int row = e.from + i, position = e.start + row / group;
        float most = -INFINITY, sum = 0.0f, mine[DIMS / 32];
        for (int j = 0; j < DIMS / 32; ++j) mine[j] = 0.0f;
        for (int split = first; split * SPLIT_TILES * TILE <= position; ++split) {
            const float *part = from + ((size_t)(split - first) * ROWS + i) * (DIMS + 2);
            Merge with(most, part[DIMS]);
            sum = with.of(sum, part[DIMS + 1]);
            for (int j = 0; j < DIMS / 32; ++j) mine[j] = with.of(mine[j], part[lane + 32 * j]);
        }
        bf16 *to = out + (size_t)(e.first_row + row / group) * stride + (kv_head * group + row % group) * head_dim;
        for (int j = 0; j < DIMS / 32; ++j)
            if (lane + 32 * j < head_dim) to[lane + 32 * j] = ended(mine[j], sum);
    }
}

// A block for 64 rows of an entry, a key head and a part of its values, a warp for 16 of the rows. The block reads tile after tile into
// shared memory, and each warp takes those that its rows see. The sums over whole splits are needed once in 256 positions, so they are
// kept in shared memory, where each thread has places of its own.
template <int DIMS>
DEVICE void attend_many(const bf16 *queries, Pages pages, const Entry *entries, bf16 *out, int heads, int kv_heads, int head_dim,
                        int stride, int window, float scale, float cap) {
    DYNAMIC_SHARED(memory);
    // Tiles that are read ahead. Wide heads leave room for none.
    constexpr int STAGES = DIMS > 128 ? 1 : 2;
    allow_next();
    wait_for_previous();
    Entry e = entries[blockIdx.x];
    int group = heads / kv_heads, kv_head = blockIdx.y / PARTS(DIMS), warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    int first_value = blockIdx.y % PARTS(DIMS) * VALUES(DIMS);
    int first = e.from + ROWS * warp, here = smaller(e.rows - first, ROWS);
    Seen seen = Seen::of(e, first, here, group, window, scale, cap);
    Seen of_block = Seen::of(e, e.from, smaller(e.rows - e.from, 4 * ROWS), group, window, scale, cap);
    PagesInMemory<DIMS> from = {pages, pages.blocks + e.table, kv_heads, kv_head, first_value};
    Rows<DIMS> rows;
    rows.read(e, queries, first, heads, group, kv_head);
    float4(*whole)[128] = (float4(*)[128])memory;
    uint4 *stages = (uint4 *)(memory + VALUES(DIMS) / 8 * 128 * sizeof(float4));
    State<DIMS> split, one;
    float most[2] = {-INFINITY, -INFINITY}, sum[2] = {0.0f, 0.0f};
    for (int d = 0; d < VALUES(DIMS) / 8; ++d) whole[d][threadIdx.x] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    split.clear();
    int tile = of_block.begin / TILE, last = (of_block.end + TILE - 1) / TILE;
    if (STAGES > 1) PagesInShared<DIMS>::request(stages, from, tile, of_block);
    copies_commit();
    for (int count = 0; tile < last; ++tile, ++count) {
        if (STAGES > 1) {
            if (tile + 1 < last)
                PagesInShared<DIMS>::request(stages + (count + 1) % STAGES * PagesInShared<DIMS>::CHUNKS, from, tile + 1, of_block);
            copies_commit();
            copies_wait<1>();
        } else {
            PagesInShared<DIMS>::request(stages, from, tile, of_block);
            copies_commit();
            copies_wait<0>();
        }
        __syncthreads();
        if (seen.has(tile * TILE, TILE)) {
            if (tile % SPLIT_TILES == 0) split.clear();
            PagesInShared<DIMS> pages_of_tile = {stages + count % STAGES * PagesInShared<DIMS>::CHUNKS};
            attend_tile<DIMS>(one, rows, pages_of_tile, tile, seen);
            merge(split, one);
            if (tile % SPLIT_TILES == SPLIT_TILES - 1 || (tile + 1) * TILE >= seen.end) {
                Merge upper(most[0], split.greatest[0]), lower(most[1], split.greatest[1]);
                sum[0] = upper.of(sum[0], split.sum[0]);
                sum[1] = lower.of(sum[1], split.sum[1]);
#pragma unroll
                for (int d = 0; d < VALUES(DIMS) / 8; ++d) {
                    float4 w = whole[d][threadIdx.x];
                    whole[d][threadIdx.x] =
                        make_float4(upper.of(w.x, split.weighed[d][0]), upper.of(w.y, split.weighed[d][1]),
                                    lower.of(w.z, split.weighed[d][2]), lower.of(w.w, split.weighed[d][3]));
                }
            }
        }
        // The tile's place is written again by the next request.
        __syncthreads();
    }
    copies_wait<0>();
    if (here <= 0) return;
    for (int r = 0; r < 2; ++r) {
        int row = first + lane / 4 + 8 * r;
        if (row >= e.rows) continue;
        bf16 *to = out + (size_t)(e.first_row + row / group) * stride + (kv_head * group + row % group) * head_dim;
        for (int d = 0; d < VALUES(DIMS) / 8; ++d) {
            float4 w = whole[d][threadIdx.x];
            int dim = first_value + 8 * d + 2 * (lane % 4);
            if (dim < head_dim) to[dim] = ended(r ? w.z : w.x, sum[r]);
            if (dim + 1 < head_dim) to[dim + 1] = ended(r ? w.w : w.y, sum[r]);
        }
    }
}

#define ATTENTION(DIMS)                                                                                                              \
    KERNEL(128, 3) attend_few_##DIMS(const bf16 *queries, Pages pages, const Entry *entries, float *partial, int heads, int kv_heads, \
                                     int window, float scale, float cap) {                                                           \
        attend_few<DIMS>(queries, pages, entries, partial, heads, kv_heads, window, scale, cap);                                     \
    }                                                                                                                                \
    KERNEL(128, 1) join_##DIMS(const Entry *entries, const float *partial, bf16 *out, int heads, int kv_heads, int head_dim,          \
                               int stride, int splits, int window) {                                                                 \
        join<DIMS>(entries, partial, out, heads, kv_heads, head_dim, stride, splits, window);                                        \
    }                                                                                                                                \
    KERNEL(128, 1) attend_many_##DIMS(const bf16 *queries, Pages pages, const Entry *entries, bf16 *out, int heads, int kv_heads,     \
                                      int head_dim, int stride, int window, float scale, float cap) {                                \
        attend_many<DIMS>(queries, pages, entries, out, heads, kv_heads, head_dim, stride, window, scale, cap);                      \
    }

ATTENTION(32)
ATTENTION(64)
ATTENTION(96)
ATTENTION(128)
ATTENTION(256)
