/*
 * A power cut and a full disk for tests: preloaded into a child process, this keeps an undo log of everything that the
 * child has written under one directory and not yet synced, and at the chosen write takes all of it back (or all but
 * a random part) and ends the process. Compiled by the test that uses it; no part of the shipped program.
 *
 *   HEADRACE_CUT_DIR     the directory (absolute, without symbolic links)
 *   HEADRACE_CUT_AT      cut at this write or truncation, counted from 1; 0 or absent: never
 *   HEADRACE_CUT_KEEP    absent: every unsynced write is lost. A number: seeds which of them reach the disk after all,
 *                        whole or by half, in any order, as a disk's cache may do
 *   HEADRACE_CUT_REPORT  a file outside the directory that receives the number of writes when the process ends well
 *   HEADRACE_CUT_FULL    while this file exists, writes under the directory fail with ENOSPC
 *
 * The model: data is durable when its file was synced, a file's name when its directory was. Shared-memory files
 * ("-shm") are not modelled: SQLite builds them anew. Nor are reserves
 * (".reserve"): their room was set aside before the disk was full. What SQLite does not do (rename, writev) aborts, so that a
 * change there cannot pass unnoticed.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

#define MAX_FDS 4096
#define MAX_FILES 256
#define NOT_TRACKED (-1)
#define THE_DIRECTORY (-2)
#define CUT_EXIT 77

struct file {
    dev_t dev;
    ino_t ino;
    int fd; /* its own, never closed: closing it would drop SQLite's locks */
};

enum kind { WRITE, TRUNCATE, CREATE, UNLINK };

struct undo {
    enum kind kind;
    int file;
    off_t offset, old_size, new_size;
    char *old_bytes, *new_bytes;
    size_t old_length, new_length;
    char *path, *hidden;
    struct undo *before, *after;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static const char *dir;
static size_t dir_length;
static long cut_at, writes, unlinks;
static const char *keep, *full_flag;
static uint64_t random_state;
static int fds[MAX_FDS];
static struct file files[MAX_FILES];
static int file_count;
static struct undo *first, *last;

static int (*real_open)(const char *, int, ...);
static int (*real_openat)(int, const char *, int, ...);
static int (*real_close)(int);
static ssize_t (*real_write)(int, const void *, size_t);
static ssize_t (*real_pwrite)(int, const void *, size_t, off_t);
static int (*real_ftruncate)(int, off_t);
static int (*real_fsync)(int);
static int (*real_fdatasync)(int);
static int (*real_unlink)(const char *);

static void fail(const char *what) {
    fprintf(stderr, "powercut: %s\n", what);
    abort();
}

static void *next(const char *name) {
    void *symbol = dlsym(RTLD_NEXT, name);
    if (!symbol) fail(name);
    return symbol;
}

static void set_up(void) {
    real_open = next("open");
    real_openat = next("openat");
    real_close = next("close");
    real_write = next("write");
    real_pwrite = next("pwrite");
    real_ftruncate = next("ftruncate");
    real_fsync = next("fsync");
    real_fdatasync = next("fdatasync");
    real_unlink = next("unlink");
    for (int fd = 0; fd < MAX_FDS; fd++) fds[fd] = NOT_TRACKED;
    dir = getenv("HEADRACE_CUT_DIR");
    dir_length = dir ? strlen(dir) : 0;
    const char *at = getenv("HEADRACE_CUT_AT");
    cut_at = at ? atol(at) : 0;
    keep = getenv("HEADRACE_CUT_KEEP");
    random_state = (keep ? strtoull(keep, NULL, 10) : 0) * 2654435761u + 88172645463325252u;
    full_flag = getenv("HEADRACE_CUT_FULL");
}

static void begin(void) {
    pthread_once(&once, set_up);
    pthread_mutex_lock(&lock);
}

static void end(void) { pthread_mutex_unlock(&lock); }

static uint64_t next_random(void) { /* xorshift64 */
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state;
}

static int is_inside(const char *path) {
    if (!dir || !path || strncmp(path, dir, dir_length) != 0 || path[dir_length] != '/') return 0;
    size_t length = strlen(path);
    if (length > 8 && strcmp(path + length - 8, ".reserve") == 0) return 0;
    return !(length > 4 && strcmp(path + length - 4, "-shm") == 0);
}

static int tracked(int fd) { return fd >= 0 && fd < MAX_FDS ? fds[fd] : NOT_TRACKED; }

static struct undo *append(enum kind kind, int file) {
    struct undo *undo = calloc(1, sizeof *undo);
    if (!undo) fail("no memory");
    undo->kind = kind;
    undo->file = file;
    undo->before = last;
    if (last) last->after = undo; else first = undo;
    last = undo;
    return undo;
}

static void forget(struct undo *undo) {
    if (undo->before) undo->before->after = undo->after; else first = undo->after;
    if (undo->after) undo->after->before = undo->before; else last = undo->before;
    free(undo->old_bytes);
    free(undo->new_bytes);
    free(undo->path);
    free(undo->hidden);
    free(undo);
}

static off_t size_of(int fd) {
    struct stat status;
    if (fstat(fd, &status) != 0) fail("fstat");
    return status.st_size;
}

static char *bytes_at(int fd, off_t offset, size_t length) {
    char *bytes = malloc(length ? length : 1);
    if (!bytes) fail("no memory");
    for (size_t done = 0; done < length;) {
        ssize_t got = pread(fd, bytes + done, length - done, offset + (off_t)done);
        if (got <= 0) fail("pread");
        done += (size_t)got;
    }
    return bytes;
}

static void put(int fd, const char *bytes, size_t length, off_t offset) {
    for (size_t done = 0; done < length;) {
        ssize_t put = real_pwrite(fd, bytes + done, length - done, offset + (off_t)done);
        if (put <= 0) fail("pwrite while cutting");
        done += (size_t)put;
    }
}

/* The power is gone: what was not synced was never there, but for what the disk's cache had already let through. */
static void cut(void) {
    for (struct undo *undo = last; undo; undo = undo->before) {
        int fd = undo->kind == WRITE || undo->kind == TRUNCATE ? files[undo->file].fd : -1;
        switch (undo->kind) {
        case WRITE:
        case TRUNCATE:
            if (real_ftruncate(fd, undo->old_size) != 0) fail("ftruncate while cutting");
            put(fd, undo->old_bytes, undo->old_length, undo->offset);
            break;
        case CREATE:
            if (!keep) real_unlink(undo->path);
            break;
        case UNLINK:
            if (rename(undo->hidden, undo->path) != 0) fail("rename while cutting");
            break;
        }
    }
    for (struct undo *undo = first; keep && undo; undo = undo->after) {
        uint64_t chance = next_random() % 4;
        int fd = files[undo->file].fd;
        if (chance == 0) continue;
        if (undo->kind == WRITE) {
            put(fd, undo->new_bytes, chance == 1 ? undo->new_length / 2 : undo->new_length, undo->offset);
        } else if (undo->kind == TRUNCATE && undo->new_size < size_of(fd)) {
            if (real_ftruncate(fd, undo->new_size) != 0) fail("ftruncate while cutting");
        }
    }
    _exit(CUT_EXIT);
}

static int disk_is_full(void) { return full_flag && access(full_flag, F_OK) == 0; }

/* Notes a write and does it; the chosen one is noted and then lost with the rest. */
static ssize_t noted_write(int fd, const void *bytes, size_t length, off_t offset) {
    int file = tracked(fd);
    int own = files[file].fd;
    struct undo *undo = append(WRITE, file);
    undo->offset = offset;
    undo->old_size = size_of(own);
    if (offset < undo->old_size) {
        off_t overlap = undo->old_size - offset;
        undo->old_length = (size_t)overlap < length ? (size_t)overlap : length;
        undo->old_bytes = bytes_at(own, offset, undo->old_length);
    }
    undo->new_length = length;
    undo->new_bytes = malloc(length ? length : 1);
    if (!undo->new_bytes) fail("no memory");
    memcpy(undo->new_bytes, bytes, length);
    if (++writes == cut_at) cut();
    return real_pwrite(fd, bytes, length, offset);
}

static int noted_truncate(int fd, off_t size) {
    int file = tracked(fd);
    int own = files[file].fd;
    struct undo *undo = append(TRUNCATE, file);
    undo->old_size = size_of(own);
    undo->new_size = size;
    undo->offset = size;
    if (size < undo->old_size) {
        undo->old_length = (size_t)(undo->old_size - size);
        undo->old_bytes = bytes_at(own, size, undo->old_length);
    }
    if (++writes == cut_at) cut();
    return real_ftruncate(fd, size);
}

static void synced(int fd) {
    int file = tracked(fd);
    for (struct undo *undo = first, *after; undo; undo = after) {
        after = undo->after;
        int names = undo->kind == CREATE || undo->kind == UNLINK;
        if (names ? file == THE_DIRECTORY : undo->file == file) {
            if (undo->kind == UNLINK) real_unlink(undo->hidden);
            forget(undo);
        }
    }
}

static void track(int fd, const char *path, int existed) {
    struct stat status;
    if (fd >= MAX_FDS) fail("too many file descriptors");
    if (fstat(fd, &status) != 0) fail("fstat");
    if (S_ISDIR(status.st_mode)) {
        fds[fd] = THE_DIRECTORY;
        return;
    }
    int file = 0;
    while (file < file_count && !(files[file].dev == status.st_dev && files[file].ino == status.st_ino)) file++;
    if (file == file_count) {
        if (file_count == MAX_FILES) fail("too many files");
        files[file].dev = status.st_dev;
        files[file].ino = status.st_ino;
        files[file].fd = real_open(path, O_RDWR | O_CLOEXEC);
        if (files[file].fd < 0) fail("open for undoing");
        file_count++;
    }
    fds[fd] = file;
    if (!existed) append(CREATE, file)->path = strdup(path);
}

static int opened(int at, const char *path, int flags, mode_t mode) {
    begin();
    int inside = is_inside(path) || (dir && path && strcmp(path, dir) == 0);
    int existed = inside ? access(path, F_OK) == 0 : 1;
    int fd = at == AT_FDCWD ? real_open(path, flags, mode) : real_openat(at, path, flags, mode);
    if (fd >= 0 && fd < MAX_FDS) fds[fd] = NOT_TRACKED;
    int may_write = (flags & O_ACCMODE) != O_RDONLY;
    if (fd >= 0 && inside && (may_write || strcmp(path, dir) == 0)) track(fd, path, existed);
    end();
    return fd;
}

#define MODE_OF(flags, last)                                                                                         \
    mode_t mode = 0;                                                                                                 \
    if ((flags) & (O_CREAT | __O_TMPFILE)) {                                                                         \
        va_list arguments;                                                                                           \
        va_start(arguments, last);                                                                                   \
        mode = va_arg(arguments, mode_t);                                                                            \
        va_end(arguments);                                                                                           \
    }

int open(const char *path, int flags, ...) { MODE_OF(flags, flags) return opened(AT_FDCWD, path, flags, mode); }
int open64(const char *path, int flags, ...) { MODE_OF(flags, flags) return opened(AT_FDCWD, path, flags | O_LARGEFILE, mode); }
int openat(int at, const char *path, int flags, ...) { MODE_OF(flags, flags) return opened(at, path, flags, mode); }
int openat64(int at, const char *path, int flags, ...) { MODE_OF(flags, flags) return opened(at, path, flags | O_LARGEFILE, mode); }

int close(int fd) {
    begin();
    if (fd >= 0 && fd < MAX_FDS) fds[fd] = NOT_TRACKED;
    int result = real_close(fd);
    end();
    return result;
}

static ssize_t written(int fd, const void *bytes, size_t length, off_t offset, int moves) {
    if (disk_is_full()) {
        errno = ENOSPC;
        return -1;
    }
    if (moves) offset = fcntl(fd, F_GETFL) & O_APPEND ? size_of(fd) : lseek(fd, 0, SEEK_CUR);
    ssize_t done = noted_write(fd, bytes, length, offset);
    if (moves && done > 0) lseek(fd, offset + done, SEEK_SET);
    return done;
}

ssize_t write(int fd, const void *bytes, size_t length) {
    begin();
    int inside = tracked(fd) >= 0;
    ssize_t done = inside ? written(fd, bytes, length, 0, 1) : 0;
    end();
    /* Outside the lock: a pipe may block. */
    return inside ? done : real_write(fd, bytes, length);
}

ssize_t pwrite(int fd, const void *bytes, size_t length, off_t offset) {
    begin();
    int inside = tracked(fd) >= 0;
    ssize_t done = inside ? written(fd, bytes, length, offset, 0) : 0;
    end();
    return inside ? done : real_pwrite(fd, bytes, length, offset);
}

ssize_t pwrite64(int fd, const void *bytes, size_t length, off64_t offset) { return pwrite(fd, bytes, length, offset); }

int ftruncate(int fd, off_t size) {
    begin();
    int result = tracked(fd) >= 0 ? noted_truncate(fd, size) : real_ftruncate(fd, size);
    end();
    return result;
}

int ftruncate64(int fd, off64_t size) { return ftruncate(fd, size); }

/* The real sync is left out: nothing here outlives the machine, and tests are quicker without it. */
int fsync(int fd) {
    begin();
    int result = 0;
    if (tracked(fd) != NOT_TRACKED) synced(fd); else result = real_fsync(fd);
    end();
    return result;
}

int fdatasync(int fd) {
    begin();
    int result = 0;
    if (tracked(fd) != NOT_TRACKED) synced(fd); else result = real_fdatasync(fd);
    end();
    return result;
}

int unlink(const char *path) {
    begin();
    int result;
    if (is_inside(path) && access(path, F_OK) == 0) {
        char hidden[4096];
        snprintf(hidden, sizeof hidden, "%s.unlinked-%ld", path, ++unlinks);
        result = rename(path, hidden);
        if (result == 0) {
            struct undo *undo = append(UNLINK, 0);
            undo->path = strdup(path);
            undo->hidden = strdup(hidden);
        }
    } else {
        result = real_unlink(path);
    }
    end();
    return result;
}

ssize_t writev(int fd, const struct iovec *parts, int count) {
    static ssize_t (*real)(int, const struct iovec *, int);
    begin();
    if (!real) real = next("writev");
    if (tracked(fd) >= 0) fail("writev is not modelled");
    end();
    return real(fd, parts, count);
}

int posix_fallocate(int fd, off_t offset, off_t length) {
    static int (*real)(int, off_t, off_t);
    begin();
    if (!real) real = next("posix_fallocate");
    if (tracked(fd) >= 0) fail("posix_fallocate is not modelled");
    end();
    return real(fd, offset, length);
}

__attribute__((destructor)) static void report(void) {
    const char *path = getenv("HEADRACE_CUT_REPORT");
    if (!path) return;
    FILE *file = fopen(path, "w");
    if (!file) return;
    fprintf(file, "%ld\n", writes);
    fclose(file);
}
