// What is done row by row: embeddings, norms, and heads (norm, rotation, the write to the pages). One row, one fixed shape of
// every sum, whatever else is in the batch.

// The residual stream begins: `stream[row] = scale · table[tokens[row]]`, widened. A block for each row.
KERNEL(256, 1) embed(const bf16 *table, const int *tokens, float *stream, int hidden, int table_stride, float scale) {
    allow_next();
    wait_for_previous();
    size_t row = blockIdx.x;
    const bf16 *from = table + (size_t)tokens[row] * table_stride;
    float *to = stream + row * hidden;
    for (int i = threadIdx.x; i < hidden; i += blockDim.x) to[i] = from_bf16(from[i]) * scale;
}

// One over the root mean square of `x`, by all 256 threads of a block. `fours` says that every row is aligned to 16 bytes and has a
// multiple of four elements. It is the same for all rows of a model, because it selects the shape of the sum.
DEVICE float row_scale(const float *x, int width, float eps, bool fours) {
    __shared__ float of_warps[8];
    __shared__ float scale;
    float sum = 0.0f;
    if (fours) {
#pragma unroll 4
        for (int i = threadIdx.x; i < width / 4; i += 256) {
            float4 v = ((const float4 *)x)[i];
            sum = fmaf(v.w, v.w, fmaf(v.z, v.z, fmaf(v.y, v.y, fmaf(v.x, v.x, sum))));
        }
    } else {
        for (int i = threadIdx.x; i < width; i += 256) sum = fmaf(x[i], x[i], sum);
    }
    sum = warp_sum(sum);
    if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x == 0) {
        float all = of_warps[0];
        for (int warp = 1; warp < 8; ++warp) all = all + of_warps[warp];
        scale = reciprocal_root(all / (float)width + eps);
    }
    __syncthreads();
    return scale;
}

// `out[row] = stream[rows ? rows[row] : row] / rms · weight`, rounded. A block for each row. `stride` elements from one row of `out`
// to the next. Those behind `hidden` are zeros, which no kernel writes.
KERNEL(256, 1) rms_norm(const float *stream, const int *rows, const float *weight, bf16 *out, int hidden, int stride, float eps) {
    allow_next();
    bool fours = hidden % 4 == 0;
    // The weights of this thread, as far as registers hold them. No kernel writes weights.
    constexpr int HELD = 4;
    float4 held[HELD];
#pragma unroll
    for (int n = 0; n < HELD; ++n) {
        int i = threadIdx.x + 256 * n;
        held[n] = fours && i < hidden / 4 ? ((const float4 *)weight)[i] : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    }
    wait_for_previous();
    size_t from = rows ? rows[blockIdx.x] : blockIdx.x;
    const float *x = stream + from * hidden;
    float scale = row_scale(x, hidden, eps, fours);
    bf16 *to = out + (size_t)blockIdx.x * stride;
    if (!fours) {
        for (int i = threadIdx.x; i < hidden; i += 256) to[i] = to_bf16(x[i] * scale * weight[i]);
        return;
    }
    auto write = [&](int i, float4 w) {
        float4 v = ((const float4 *)x)[i];
        ((uint2 *)to)[i] = make_uint2(pack_bf16(v.x * scale * w.x, v.y * scale * w.y), pack_bf16(v.z * scale * w.z, v.w * scale * w.w));
    };
#pragma unroll
    for (int n = 0; n < HELD; ++n)
        if ((int)threadIdx.x + 256 * n < hidden / 4) write(threadIdx.x + 256 * n, held[n]);
    for (int i = threadIdx.x + 256 * HELD; i < hidden / 4; i += 256) write(i, ((const float4 *)weight)[i]);
}

// `stream[row] = stream[row] + factor · (x[row] / rms · weight)`: the norm of a half's output. A block for each row.
KERNEL(256, 1) rms_norm_add(const float *x, const float *weight, float *stream, int hidden, float eps, float factor) {
    allow_next();
    wait_for_previous();
    size_t row = blockIdx.x;
    const float *from = x + row * hidden;
    float scale = row_scale(from, hidden, eps, hidden % 4 == 0);
    float *to = stream + row * hidden;
    for (int i = threadIdx.x; i < hidden; i += 256) to[i] = to[i] + factor * (from[i] * scale * weight[i]);
}

// `rows[row][first .. first + width]` / rms · weight, in place: all query or key heads of a row together. A block for each row.
KERNEL(256, 1) rms_norm_columns(float *rows, const float *weight, int stride, int first, int width, float eps) {
    allow_next();
    wait_for_previous();
    float *x = rows + (size_t)blockIdx.x * stride + first;
    float scale = row_scale(x, width, eps, width % 4 == 0 && first % 4 == 0 && stride % 4 == 0);
    for (int i = threadIdx.x; i < width; i += 256) x[i] = x[i] * scale * weight[i];
}

// `out[row] = stream[row]`, rounded, for a half that reads the stream as it is. A block for each row; `stride` as in `rms_norm`.
KERNEL(256, 1) round_rows(const float *stream, bf16 *out, int hidden, int stride) {
    allow_next();
    wait_for_previous();
    const float *from = stream + (size_t)blockIdx.x * hidden;
    bf16 *to = out + (size_t)blockIdx.x * stride;
    for (int i = threadIdx.x; i < hidden; i += 256) to[i] = to_bf16(from[i]);
}

// `x = scale · x`, then `x = cap · tanh(x / cap)` where there is a cap, for all x of the rows. A block for each row and 4096 of
// its columns.
KERNEL(256, 1) scale_and_cap(float *rows, int width, float scale, float cap) {
    allow_next();
    wait_for_previous();
    float *x = rows + (size_t)blockIdx.x * width;
    int first = blockIdx.y * 4096, end = smaller(first + 4096, width);
    for (int i = first + threadIdx.x; i < end; i += 256) {
        float scaled = x[i] * scale;
        x[i] = cap > 0.0f ? cap * tanh_of(scaled / cap) : scaled;
    }
}

// Heads of a row as the product left them, `qkv[row]`: queries and keys normalized (where there are weights for it) and
// rotated in their first `rotated` elements; queries to `queries`, keys and values to their pages. Where there is `growth`, a
// query is then multiplied by that of its position. A warp for each head. A head takes `padded` elements in `queries` and
// pages, zeros behind `head_dim`. In a page keys stand token by token, values dimension by dimension, as
// attention multiplies them. `slots[row]` is the token's place in the pool, block · 16 + offset, or below zero for a row that
// only fills up its batch.
KERNEL(128, 1) write_heads(const float *qkv, const int *positions, const int *slots, const float *query_norm, const float *key_norm,
                           const float *cos_table, const float *sin_table, const float *growth, bf16 *queries, bf16 *keys,
                           bf16 *values, int heads, int kv_heads, int head_dim, int padded, int rotated, float eps) {
    allow_next();
    wait_for_previous();
    int row = blockIdx.x;
    int head = blockIdx.y * 4 + threadIdx.x / 32;
    int lane = threadIdx.x % 32;
    int all = heads + 2 * kv_heads;
    if (head >= all) return;
    const float *x = qkv + ((size_t)row * all + head) * head_dim;
    int slot = slots[row];
    size_t block = slot < 0 ? 0 : slot / BLOCK_TOKENS, offset = slot < 0 ? 0 : slot % BLOCK_TOKENS;
    if (head >= heads + kv_heads) {
        if (slot < 0) return;
        bf16 *to = values + (block * kv_heads + (head - heads - kv_heads)) * padded * BLOCK_TOKENS + offset;
        for (int d = lane; d < padded; d += 32) to[(size_t)d * BLOCK_TOKENS] = d < head_dim ? to_bf16(x[d]) : (bf16)0;
        return;
    }
    bool is_key = head >= heads;
    const float *weight = is_key ? key_norm : query_norm;
    float scale = 1.0f;
    if (weight) {
        float sum = 0.0f;
        for (int d = lane; d < head_dim; d += 32) sum = fmaf(x[d], x[d], sum);
        scale = reciprocal_root(warp_sum(sum) / (float)head_dim + eps);
    }
    if (is_key && slot < 0) return;
    bf16 *to = is_key ? keys + ((block * kv_heads + (head - heads)) * BLOCK_TOKENS + offset) * padded
                      : queries + ((size_t)row * heads + head) * padded;
    float grown = growth && !is_key ? growth[positions[row]] : 1.0f;
    int half = rotated / 2;
    const float *cosines = cos_table + (size_t)positions[row] * half, *sines = sin_table + (size_t)positions[row] * half;
    for (int i = lane; i < half; i += 32) {
        float a = x[i], b = x[i + half];
        if (weight) {
            a = a * scale * weight[i];
            b = b * scale * weight[i + half];
        }
        to[i] = to_bf16((a * cosines[i] - b * sines[i]) * grown);
        to[i + half] = to_bf16((b * cosines[i] + a * sines[i]) * grown);
    }
    for (int d = rotated + lane; d < head_dim; d += 32) to[d] = to_bf16((weight ? x[d] * scale * weight[d] : x[d]) * grown);
    for (int d = head_dim + lane; d < padded; d += 32) to[d] = 0;
}
