/* The fault injection library, preloaded into a service. Its environment configures it:
 *   FAULT_WATCH=DIR         only files in this directory are affected, except those whose name ends in -shm
 *   FAULT_LOG=FILE          record every change to them, with its bytes, in the order in which they were made
 *   FAULT_KILL_BEFORE=N     kill the process just before the N-th change: the log is complete
 *   FAULT_FAIL=CALL:N:E:M   the N-th CALL (pwrite, sync, ...) and those after it, M in all, fail with errno E; the
 *                           first failure is recorded
 *   FAULT_CLOCK=FILE        the wall clock is ahead by the nanoseconds in this file, which may change at any time
 * disk_images.py reads the log. A record is `struct change`, then the name, then the bytes. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { WRITE, TRUNCATE, SYNC, OPEN, UNLINK, RENAME, FAILED, KINDS };
static const char *const names[KINDS] = {"pwrite", "truncate", "sync", "open", "unlink", "rename", ""};

struct change {
    int64_t started, ended; /* monotonic nanoseconds; a sync is effective from its end */
    uint64_t file;          /* inode: does not change with a rename */
    int64_t at;             /* offset of a write, size after a truncation */
    uint32_t kind, name_length, length, unused;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static const char *watched;
static int log_file = -1, failing_kind = KINDS, failure_errno, failures;
static long kill_before, fail_at, fail_count, changes;
static int64_t *clock_offset;

#define REAL(result, name, ...)                                                                                       \
    static result (*real_##name)(__VA_ARGS__);                                                                        \
    if (!real_##name)                                                                                                 \
        real_##name = (result (*)(__VA_ARGS__))dlsym(RTLD_NEXT, #name)

static void read_environment(void)
{
    const char *text;
    watched = getenv("FAULT_WATCH");
    if ((text = getenv("FAULT_LOG")))
        log_file = open(text, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    if ((text = getenv("FAULT_KILL_BEFORE")))
        kill_before = atol(text);
    if ((text = getenv("FAULT_FAIL"))) {
        char call[16];
        if (sscanf(text, "%15[^:]:%ld:%d:%ld", call, &fail_at, &failure_errno, &fail_count) == 4)
            for (failing_kind = 0; failing_kind < KINDS && strcmp(call, names[failing_kind]); failing_kind++)
                ;
    }
    if ((text = getenv("FAULT_CLOCK"))) {
        int file = open(text, O_RDONLY | O_CLOEXEC);
        clock_offset = mmap(NULL, sizeof *clock_offset, PROT_READ, MAP_SHARED, file, 0);
        if (file < 0 || clock_offset == MAP_FAILED)
            _exit(70);
        close(file);
    }
}

static int64_t now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

/* Returns the name of a watched file in the directory, "" for the directory itself, NULL for any other. */
static const char *watched_name(const char *path)
{
    size_t length = watched ? strlen(watched) : 0, whole = strlen(path);
    if (!length || strncmp(path, watched, length) || (path[length] && path[length] != '/'))
        return NULL;
    if (whole > 4 && !strcmp(path + whole - 4, "-shm"))
        return NULL;
    return path[length] ? path + length + 1 : "";
}

static const char *watched_name_of(int file, char *path)
{
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t length = readlink(link, path, PATH_MAX - 1);
    path[length < 0 ? 0 : length] = 0;
    return watched_name(path);
}

static void record(uint32_t kind, const char *name, uint64_t file, int64_t at, const void *bytes, uint32_t length,
                   int64_t started)
{
    struct change change = {started, now(), file, at, kind, strlen(name), length, 0};
    struct iovec parts[] = {
        {&change, sizeof change}, {(void *)name, change.name_length}, {(void *)bytes, bytes ? length : 0}};
    if (log_file >= 0 && writev(log_file, parts, 3) < 0)
        _exit(70);
}

/* Returns non-zero if the next change must fail. The caller holds the lock. */
static int must_fail(uint32_t kind, const char *name)
{
    if (kill_before && ++changes == kill_before)
        kill(getpid(), SIGKILL);
    if (kind != (uint32_t)failing_kind || !*name) /* SQLite ignores a failed sync of the directory */
        return 0;
    if (--fail_at > 0 || fail_count-- <= 0)
        return 0;
    if (!failures++)
        record(FAILED, name, 0, 0, NULL, 0, now());
    errno = failure_errno;
    return 1;
}

static uint64_t inode(int file)
{
    struct stat seen;
    return fstat(file, &seen) ? 0 : seen.st_ino;
}

#define CHANGE(kind, name, file, at, bytes, length, call)                                                             \
    pthread_mutex_lock(&lock);                                                                                        \
    int64_t started = now();                                                                                          \
    ssize_t done = must_fail(kind, name) ? -1 : (call);                                                               \
    int error = errno;                                                                                                \
    if (done >= 0)                                                                                                    \
        record(kind, name, file, at, bytes, length, started);                                                         \
    errno = error;                                                                                                    \
    pthread_mutex_unlock(&lock);                                                                                      \
    return done

#define ON_FILE(file, real)                                                                                           \
    char path[PATH_MAX];                                                                                              \
    pthread_once(&once, read_environment);                                                                            \
    const char *name = watched ? watched_name_of(file, path) : NULL;                                                  \
    if (!name)                                                                                                        \
        return real

ssize_t pwrite64(int file, const void *bytes, size_t length, off64_t at)
{
    REAL(ssize_t, pwrite64, int, const void *, size_t, off64_t);
    ON_FILE(file, real_pwrite64(file, bytes, length, at));
    CHANGE(WRITE, name, inode(file), at, bytes, (uint32_t)done, real_pwrite64(file, bytes, length, at));
}

int ftruncate64(int file, off64_t size)
{
    REAL(int, ftruncate64, int, off64_t);
    ON_FILE(file, real_ftruncate64(file, size));
    CHANGE(TRUNCATE, name, inode(file), size, NULL, 0, real_ftruncate64(file, size));
}

int fdatasync(int file)
{
    REAL(int, fdatasync, int);
    ON_FILE(file, real_fdatasync(file));
    CHANGE(SYNC, name, inode(file), 0, NULL, 0, real_fdatasync(file));
}

int fsync(int file)
{
    REAL(int, fsync, int);
    ON_FILE(file, real_fsync(file));
    CHANGE(SYNC, name, inode(file), 0, NULL, 0, real_fsync(file));
}

int unlink(const char *path)
{
    REAL(int, unlink, const char *);
    pthread_once(&once, read_environment);
    const char *name = watched_name(path);
    if (!name)
        return real_unlink(path);
    CHANGE(UNLINK, name, 0, 0, NULL, 0, real_unlink(path));
}

int rename(const char *from, const char *to)
{
    REAL(int, rename, const char *, const char *);
    pthread_once(&once, read_environment);
    const char *name = watched_name(from), *other = watched_name(to);
    if (!name || !other)
        return real_rename(from, to);
    CHANGE(RENAME, name, 0, 0, other, (uint32_t)strlen(other), real_rename(from, to));
}

int open64(const char *path, int flags, ...)
{
    REAL(int, open64, const char *, int, ...);
    va_list more;
    va_start(more, flags);
    mode_t mode = va_arg(more, mode_t);
    va_end(more);
    pthread_once(&once, read_environment);
    const char *name = flags & O_CREAT ? watched_name(path) : NULL;
    if (!name)
        return real_open64(path, flags, mode);
    CHANGE(OPEN, name, inode((int)done), flags & O_TRUNC ? 0 : -1, NULL, 0, real_open64(path, flags, mode));
}

int clock_gettime(clockid_t clock, struct timespec *time)
{
    REAL(int, clock_gettime, clockid_t, struct timespec *);
    int done = real_clock_gettime(clock, time);
    if (clock == CLOCK_REALTIME && !done) {
        pthread_once(&once, read_environment);
        int64_t all = clock_offset ? time->tv_nsec + *(volatile int64_t *)clock_offset % 1000000000 : time->tv_nsec;
        int64_t carried = all < 0 ? -1 : all / 1000000000;
        time->tv_sec += (clock_offset ? *(volatile int64_t *)clock_offset / 1000000000 : 0) + carried;
        time->tv_nsec = all - carried * 1000000000;
    }
    return done;
}

int gettimeofday(struct timeval *time, void *zone)
{
    struct timespec fine;
    (void)zone;
    int done = clock_gettime(CLOCK_REALTIME, &fine);
    time->tv_sec = fine.tv_sec;
    time->tv_usec = fine.tv_nsec / 1000;
    return done;
}

time_t time(time_t *into)
{
    struct timespec fine;
    clock_gettime(CLOCK_REALTIME, &fine);
    if (into)
        *into = fine.tv_sec;
    return fine.tv_sec;
}
