/* Between a process and the files of one store, by LD_PRELOAD: records every write, cut and sync in order, and fails
 * a chosen one with EIO, or lets its syncs stall. Other files are not touched.
 *
 * KEDGE_DISK_STORE is the path of the store; its log, mark and acknowledgements have that path and a suffix.
 * KEDGE_DISK_TRACE is the file of the records; without it nothing is recorded. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

enum kind { WRITE = 1, CUT = 2, SYNC = 3 };

struct record {
    uint8_t kind;
    uint8_t file;
    uint16_t unused;
    uint32_t length;
    uint64_t offset;
};

static const char *const SUFFIXES[] = {"", "-wal", "-mark", "-acks"};
static int trace = -2;
static char store[4096];
static int fail_kind, fail_file, fail_after, fail_always, failures;

/* Fail the call of this kind on this file that follows `after` others, and all after it if `always`. 0 disarms. */
void kedge_disk_arm(int kind, int file, int after, int always) {
    fail_kind = kind;
    fail_file = file;
    fail_after = after;
    fail_always = always;
    failures = 0;
}

int kedge_disk_failures(void) { return failures; }

/* Syncs of the store take this much longer; a negative number of milliseconds is for ever, until the next call. */
static volatile int stall_ms;

void kedge_disk_stall(int ms) { stall_ms = ms; }

static void stall(void) {
    for (int waited = 0; stall_ms < 0 || waited < stall_ms; waited++)
        usleep(1000);
}

static void prepare(void) {
    if (trace != -2)
        return;
    const char *path = getenv("KEDGE_DISK_TRACE"), *of = getenv("KEDGE_DISK_STORE");
    snprintf(store, sizeof store, "%s", of ? of : "");
    trace = path ? (int)syscall(SYS_openat, AT_FDCWD, path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600) : -1;
}

/* The number of the store's file behind a descriptor, or -1. */
static int file_of(int fd) {
    prepare();
    if (!store[0])
        return -1;
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = syscall(SYS_readlinkat, AT_FDCWD, link, path, sizeof path - 1);
    size_t prefix = strlen(store);
    if (length < (ssize_t)prefix || strncmp(path, store, prefix) != 0)
        return -1;
    path[length] = 0;
    for (int i = 0; i < 4; i++)
        if (strcmp(path + prefix, SUFFIXES[i]) == 0)
            return i;
    return -1;
}

static void put(const void *data, size_t length) {
    const char *at = data;
    while (length) {
        ssize_t written = syscall(SYS_write, trace, at, length);
        if (written < 0)
            abort(); /* a trace with a hole proves nothing */
        at += written;
        length -= written;
    }
}

static void note(enum kind kind, int file, uint64_t offset, const void *data, size_t length) {
    if (trace < 0)
        return;
    struct record record = {kind, file, 0, length, offset};
    put(&record, sizeof record);
    if (data)
        put(data, length);
}

static int fails(enum kind kind, int file) {
    if (fail_kind != (int)kind || fail_file != file)
        return 0;
    if (fail_after-- > 0)
        return 0;
    if (!fail_always)
        fail_kind = 0;
    failures++;
    errno = EIO;
    return 1;
}

ssize_t pwrite64(int fd, const void *data, size_t length, off64_t offset) {
    int file = file_of(fd);
    if (file >= 0 && fails(WRITE, file))
        return -1;
    ssize_t written = syscall(SYS_pwrite64, fd, data, length, offset);
    if (file >= 0 && written > 0)
        note(WRITE, file, offset, data, written);
    return written;
}

ssize_t pwrite(int fd, const void *data, size_t length, off_t offset) { return pwrite64(fd, data, length, offset); }

ssize_t write(int fd, const void *data, size_t length) {
    int file = file_of(fd);
    if (file >= 0 && fails(WRITE, file))
        return -1;
    off64_t offset = file >= 0 ? lseek64(fd, 0, SEEK_CUR) : 0;
    ssize_t written = syscall(SYS_write, fd, data, length);
    if (file >= 0 && written > 0)
        note(WRITE, file, offset, data, written);
    return written;
}

int ftruncate64(int fd, off64_t length) {
    int file = file_of(fd);
    if (file >= 0 && fails(CUT, file))
        return -1;
    int done = syscall(SYS_ftruncate, fd, length);
    if (file >= 0 && done == 0)
        note(CUT, file, length, NULL, 0);
    return done;
}

int ftruncate(int fd, off_t length) { return ftruncate64(fd, length); }

static int synced(int fd, long call) {
    int file = file_of(fd);
    if (file >= 0 && fails(SYNC, file))
        return -1;
    if (file >= 0)
        stall();
    int done = syscall(call, fd);
    if (file >= 0 && done == 0)
        note(SYNC, file, 0, NULL, 0);
    return done;
}

int fsync(int fd) { return synced(fd, SYS_fsync); }

int fdatasync(int fd) { return synced(fd, SYS_fdatasync); }
