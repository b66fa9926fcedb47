// The emulated device as a library: memory, and launches by name. See emulated.h.
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include "emulated.h"

namespace emulated {

thread_local Machine *here;

constexpr size_t STACK_BYTES = 256 << 10;
thread_local jmp_buf launcher;
thread_local ucontext_t creator;
thread_local void (*kernel)(void **);
thread_local void **arguments;
thread_local int launches;

void Machine::next() {
    int to = me().behind;
    if (to == current) wrong("a thread waits for others, and all have returned");
    if (_setjmp(me().state) == 0) {
        current = to;
        _longjmp(fibers[to].state, 1);
    }
}

static void life() {
    // The first time it only remembers where it begins.
    if (_setjmp(me().state) == 0) setcontext(&creator);
    for (;;) {
        kernel(arguments);
        Fiber &fiber = me();
        if (!fiber.copies.empty()) {
            wrong("a thread returned while its copies were under way");
        }
        fiber.groups.clear();
        machine.fibers[fiber.before].behind = fiber.behind;
        machine.fibers[fiber.behind].before = fiber.before;
        --machine.alive;
        --machine.alive_of_warp[machine.current / WARP];
        if (_setjmp(fiber.state) == 0) {
            if (machine.alive == 0) _longjmp(launcher, 1);
            machine.current = fiber.behind;
            _longjmp(me().state, 1);
        }
    }
}

static void create(int count) {
    static thread_local int created;
    if (!here) {
        here = new Machine();
        machine.fibers = new Fiber[WARP * WARP]();
    }
    for (; created < count; ++created) {
        ucontext_t context;
        getcontext(&context);
        context.uc_stack.ss_sp = mmap(nullptr, STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        context.uc_stack.ss_size = STACK_BYTES;
        context.uc_link = nullptr;
        makecontext(&context, life, 0);
        machine.current = created;
        swapcontext(&creator, &context);
    }
}

// In the order of `direction`, 1 or -1.
static void run_block(int count, size_t shared, int direction) {
    static thread_local std::vector<uint4> memory;
    memory.assign(shared / 16 + 1, make_uint4(~0u, ~0u, ~0u, ~0u));
    machine.dynamic = (unsigned char *)memory.data();
    machine.alive = count;
    machine.block = {0, 0};
    for (int warp = 0; warp < count / WARP; ++warp) machine.alive_of_warp[warp] = WARP, machine.warps[warp] = {0, 0};
    for (int i = 0; i < count; ++i) {
        Fiber &fiber = machine.fibers[i];
        fiber.thread = {(u32)i, 0, 0};
        fiber.behind = (i + count + direction) % count;
        fiber.before = (i + count - direction) % count;
        fiber.meetings = 0;
    }
    if (_setjmp(launcher) == 0) {
        machine.current = direction > 0 ? 0 : count - 1;
        _longjmp(me().state, 1);
    }
}

// Calls a kernel with what its arguments point to.
template <typename... Of>
struct Typed {
    template <void (*FUNCTION)(Of...)>
    static void call(void **from) {
        call_each<FUNCTION>(from, std::index_sequence_for<Of...>());
    }
    template <void (*FUNCTION)(Of...), size_t... AT>
    static void call_each(void **from, std::index_sequence<AT...>) {
        FUNCTION(*(Of *)from[AT]...);
    }
};

template <typename... Of>
static Typed<Of...> typed(void (*)(Of...)) {
    return {};
}

}  // namespace emulated

#include "all.cu"

struct Named {
    const char *name;
    void (*call)(void **);
};

#define NAMED(function) {#function, &decltype(emulated::typed(function))::call<function>}

static const Named KERNELS[] = {
    NAMED(embed), NAMED(rms_norm), NAMED(rms_norm_add), NAMED(rms_norm_columns), NAMED(round_rows), NAMED(scale_and_cap),
    NAMED(write_heads),
    NAMED(dense_few_8), NAMED(dense_few_16), NAMED(dense_whole_64), NAMED(dense_whole_128), NAMED(dense_part_64), NAMED(dense_part_128),
    NAMED(wgmma_whole_16), NAMED(wgmma_whole_32), NAMED(wgmma_whole_64), NAMED(wgmma_whole_128), NAMED(wgmma_whole_192),
    NAMED(wgmma_deep_16), NAMED(wgmma_deep_32), NAMED(wgmma_deep_64),
    NAMED(wgmma_part_16), NAMED(wgmma_part_32), NAMED(wgmma_part_64), NAMED(wgmma_part_128), NAMED(wgmma_part_192),
    NAMED(attend_few_32), NAMED(attend_few_64), NAMED(attend_few_96), NAMED(attend_few_128), NAMED(attend_few_256),
    NAMED(join_32), NAMED(join_64), NAMED(join_96), NAMED(join_128), NAMED(join_256),
    NAMED(attend_many_32), NAMED(attend_many_64), NAMED(attend_many_96), NAMED(attend_many_128), NAMED(attend_many_256),
};

extern "C" {

// Memory that ends at a page nobody may touch, full of what is no number; null if there is none.
void *device_allocate(size_t bytes) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE), padded = (bytes + 15) / 16 * 16, pages = (padded + page - 1) / page * page;
    char *at = (char *)mmap(nullptr, pages + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) return nullptr;
    mprotect(at + pages, page, PROT_NONE);
    memset(at, 0xff, pages);
    return at + pages - padded;
}

void device_free(void *memory, size_t bytes) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE), padded = (bytes + 15) / 16 * 16, pages = (padded + page - 1) / page * page;
    munmap((char *)memory + padded - pages, pages + page);
}

int device_knows(const char *name) {
    for (const Named &named : KERNELS)
        if (!strcmp(named.name, name)) return 1;
    return 0;
}

// 0, or 1 where there is no such kernel or its block is not of whole warps.
int device_launch(const char *name, const u32 *grid, u32 threads, size_t shared, void **arguments) {
    using namespace emulated;
    if (threads == 0 || threads % WARP || threads > WARP * WARP) return 1;
    for (const Named &named : KERNELS) {
        if (strcmp(named.name, name)) continue;
        create((int)threads);
        kernel = named.call;
        emulated::arguments = arguments;
        int direction = launches++ % 2 ? -1 : 1;
        machine.grid = {grid[0], grid[1], grid[2]};
        machine.threads = {threads, 1, 1};
        for (u32 z = 0; z < grid[2]; ++z)
            for (u32 y = 0; y < grid[1]; ++y)
                for (u32 x = 0; x < grid[0]; ++x) {
                    machine.at = {x, y, z};
                    run_block((int)threads, shared, direction);
                }
        return 0;
    }
    return 1;
}
}
