// What every kernel stands on: bf16 as bits, 16-byte accesses, the tensor core's product, asynchronous copies, sums over a warp.
// No header of CUDA's is included, so that NVRTC needs none. Where EMULATED is set the same functions come from emulated.h,
// and the same kernels run on the host, thread by thread. Nothing is contracted (--fmad=false): where a product and a sum are
// to be one operation the source says fmaf, so that two kernels that say the same give the same bits.

#ifdef EMULATED
#include "emulated.h"
#else

#define DEVICE static __device__ __forceinline__
#define DEVICE_METHOD __device__ __forceinline__
#define INFINITY __int_as_float(0x7f800000)
#define KERNEL(threads, blocks) extern "C" __global__ void __launch_bounds__(threads, blocks)
#define DYNAMIC_SHARED(name) extern __shared__ __align__(16) unsigned char name[]

typedef unsigned int u32;
typedef unsigned short u16;
typedef unsigned long long u64;

// D = A·B + C of 16 × 8 × 16 in bf16 with f32 sums; fragments as PTX lays them out.
DEVICE void tensor_product(float (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    asm(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\n"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// Two floats, rounded to nearest even, the first in the lower half.
DEVICE u32 pack_bf16(float low, float high) {
    u32 packed;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
    return packed;
}

// 16 bytes into shared memory, later; zeros where `there` is false.
DEVICE void copy_async(void *shared, const void *global, bool there) {
    u32 to = (u32)__cvta_generic_to_shared(shared);
    int bytes = there ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(to), "l"(global), "r"(bytes) : "memory");
}

DEVICE void copies_commit() {
    asm volatile("cp.async.commit_group;\n" ::: "memory");
}

// Until no more than the LEFT latest groups of this thread's copies are under way.
template <int LEFT>
DEVICE void copies_wait() {
    asm volatile("cp.async.wait_group %0;\n" ::"n"(LEFT) : "memory");
}

// Brings the 128 bytes around an address to the second cache, later.
DEVICE void prefetch(const void *from) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(from));
}

// A kernel may be started before the previous one has ended. Every kernel calls `wait_for_previous` before it reads or writes memory
// that another kernel uses, and before any of its threads returns. `allow_next` permits the next kernel to start.
DEVICE void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

DEVICE void allow_next() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}

// What another block of this launch wrote.
DEVICE float4 load_fresh(const float4 *from) {
    float4 v;
    asm volatile("ld.global.cg.v4.f32 {%0,%1,%2,%3}, [%4];" : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "l"(from) : "memory");
    return v;
}

DEVICE float exp2_of(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

DEVICE float reciprocal_root(float x) {
    return 1.0f / sqrtf(x);
}

DEVICE float tanh_of(float x) {
    return tanhf(x);
}

DEVICE float exchange(float x, int lane_mask) {
    return __shfl_xor_sync(0xffffffffu, x, lane_mask);
}

// Waits for all lanes of the warp. What they wrote is then visible to each other.
DEVICE void warp_sync() {
    __syncwarp();
}

DEVICE u32 exchange_bits(u32 x, int lane_mask) {
    return __shfl_xor_sync(0xffffffffu, x, lane_mask);
}

DEVICE u32 bits_of(float x) {
    return __float_as_uint(x);
}

DEVICE float float_of(u32 bits) {
    return __uint_as_float(bits);
}

#endif

#define LOG2_E 1.4426950408889634f
#define BLOCK_TOKENS 16

typedef u16 bf16;

DEVICE float from_bf16(bf16 x) {
    return float_of((u32)x << 16);
}

DEVICE bf16 to_bf16(float x) {
    return (bf16)(pack_bf16(x, 0.0f) & 0xffffu);
}

DEVICE float low_half(u32 packed) {
    return float_of(packed << 16);
}

DEVICE float high_half(u32 packed) {
    return float_of(packed & 0xffff0000u);
}

DEVICE int smaller(int a, int b) {
    return a < b ? a : b;
}

// One shape of sum for every warp that adds.
DEVICE float warp_sum(float x) {
    for (int mask = 16; mask > 0; mask >>= 1) x = x + exchange(x, mask);
    return x;
}

// The product of 16 inputs. A thread holds inputs 4t to 4t+3 for t = lane % 4.
DEVICE void product_of_16(float (&c)[4], uint2 upper, uint2 lower, uint2 b) {
    tensor_product(c, upper.x, lower.x, upper.y, lower.y, b.x, b.y);
}

// The two products of 32 inputs. A thread holds 16 bytes of a row, inputs 8t to 8t+7 for t = lane % 4: the first product takes
// the first four of them, the second the others. A dot product may take its terms in any order, as long as both sides agree
// and the order never changes: so rows are read whole, 16 bytes a thread, and nothing is shuffled.
DEVICE void product_of_32(float (&c)[4], uint4 upper, uint4 lower, uint4 b) {
    tensor_product(c, upper.x, lower.x, upper.y, lower.y, b.x, b.y);
    tensor_product(c, upper.z, lower.z, upper.w, lower.w, b.z, b.w);
}
