/* Steps the wall clock of one process: LD_PRELOAD it, and write nanoseconds (8 bytes) to the file KEDGE_CLOCK_STEP.
 * The monotonic clock is left alone, as a step of the system's clock leaves it. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile int64_t *step;
static int64_t no_step;

__attribute__((constructor)) static void open_step(void) {
    const char *path = getenv("KEDGE_CLOCK_STEP");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    void *found = file < 0 ? MAP_FAILED : mmap(NULL, 8, PROT_READ, MAP_SHARED, file, 0);
    if (file >= 0) close(file);
    step = found == MAP_FAILED ? &no_step : (int64_t *)found;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int done = real(clock, now);
    if (done == 0 && clock == CLOCK_REALTIME && step && *step) {
        int64_t at = (int64_t)now->tv_sec * 1000000000 + now->tv_nsec + *step;
        now->tv_sec = at / 1000000000;
        now->tv_nsec = at % 1000000000;
    }
    return done;
}

time_t time(time_t *out) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (out) *out = now.tv_sec;
    return now.tv_sec;
}

int gettimeofday(struct timeval *restrict out, void *restrict zone) {
    struct timespec now;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &now);
    out->tv_sec = now.tv_sec;
    out->tv_usec = now.tv_nsec / 1000;
    return 0;
}
