/* Preloaded into a command, makes calls on files below a path fail or fall short, and the clock jump.
 *
 * FAULT_PATH    only files whose path begins so
 * FAULT_CALLS   some of the letters r (read), w (write), s (sync), n (rename), o (open)
 * FAULT_AFTER   how many such calls of a process succeed first
 * FAULT_TIMES   how many of them fail then
 * FAULT_ERRNO   with what; 0: reads and writes do half of what they are asked for, which is no error
 * FAULT_CLOCK   the clock of the day is wrong by that many seconds, and by as many more with every 16th look at it
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

static long seen = 0;

static long number(const char *name, long otherwise) {
    const char *value = getenv(name);
    return value ? atol(value) : otherwise;
}

static int below(const char *path) {
    const char *wanted = getenv("FAULT_PATH");
    return wanted && strncmp(path, wanted, strlen(wanted)) == 0;
}

/* 0: let it pass; 1: fail, errno is set; 2: do half of it. */
static int verdict(char call, const char *path) {
    const char *calls = getenv("FAULT_CALLS");
    if (!calls || !strchr(calls, call) || !below(path)) return 0;
    long place = __sync_fetch_and_add(&seen, 1) - number("FAULT_AFTER", 0);
    if (place < 0 || place >= number("FAULT_TIMES", 1)) return 0;
    long code = number("FAULT_ERRNO", EIO);
    if (!code) return 2;
    errno = (int)code;
    return 1;
}

static int verdict_of(char call, int descriptor) {
    const char *calls = getenv("FAULT_CALLS");
    if (!calls || !strchr(calls, call)) return 0;
    char link[64], path[4096];
    int before = errno;
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    ssize_t length = readlink(link, path, sizeof path - 1);
    errno = before;
    if (length < 0) return 0;
    path[length] = 0;
    return verdict(call, path);
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

#define TRANSFER(name, letter, buffer)                                                 \
    ssize_t name(int descriptor, buffer data, size_t count) {                          \
        int fault = verdict_of(letter, descriptor);                                    \
        if (fault == 1) return -1;                                                     \
        return REAL(name)(descriptor, data, fault == 2 && count > 1 ? count / 2 : count); \
    }
TRANSFER(read, 'r', void *)
TRANSFER(write, 'w', const void *)

#define TRANSFER_AT(name, letter, buffer, offset)                                      \
    ssize_t name(int descriptor, buffer data, size_t count, offset place) {            \
        int fault = verdict_of(letter, descriptor);                                    \
        if (fault == 1) return -1;                                                     \
        return REAL(name)(descriptor, data, fault == 2 && count > 1 ? count / 2 : count, place); \
    }
TRANSFER_AT(pread, 'r', void *, off_t)
TRANSFER_AT(pread64, 'r', void *, off64_t)
TRANSFER_AT(pwrite, 'w', const void *, off_t)
TRANSFER_AT(pwrite64, 'w', const void *, off64_t)

#define SYNC(name)                                     \
    int name(int descriptor) {                         \
        if (verdict_of('s', descriptor) == 1) return -1; \
        return REAL(name)(descriptor);                 \
    }
SYNC(fsync)
SYNC(fdatasync)

int rename(const char *from, const char *to) {
    if (verdict('n', to) == 1) return -1;
    return REAL(rename)(from, to);
}

#define OPEN(name)                                                   \
    int name(const char *path, int flags, ...) {                     \
        mode_t mode = 0;                                             \
        if (flags & (O_CREAT | O_TMPFILE)) {                         \
            va_list rest;                                            \
            va_start(rest, flags);                                   \
            mode = va_arg(rest, mode_t);                             \
            va_end(rest);                                            \
        }                                                            \
        if (verdict('o', path) == 1) return -1;                      \
        return REAL(name)(path, flags, mode);                        \
    }
OPEN(open)
OPEN(open64)

static time_t wrong_by(void) {
    static long looks = 0;
    long seconds = number("FAULT_CLOCK", 0);
    return seconds ? seconds * (1 + __sync_fetch_and_add(&looks, 1) / 16) : 0;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    int result = REAL(clock_gettime)(clock, now);
    if (!result && clock == CLOCK_REALTIME) now->tv_sec += wrong_by();
    return result;
}

time_t time(time_t *now) {
    time_t found = REAL(time)(NULL) + wrong_by();
    if (now) *now = found;
    return found;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    int result = REAL(gettimeofday)(now, zone);
    if (!result) now->tv_sec += wrong_by();
    return result;
}
