/* A thin layer between a core and its host, preloaded by the tortures. What it does is told by its environment:
 *   SHIM_WATCH=DIR        only files in this directory are meant, and none whose name ends in -shm
 *   SHIM_LOG=FILE         every change to them is written down, with its bytes, in the order in which they were made
 *   SHIM_DIE=N            the process is killed just before the N-th change: the log then has all there was, no more
 *   SHIM_FAIL=CALL:N:E:M  the N-th CALL (pwrite, sync, ...) and those after it, M in all, fail with errno E; the first
 *                         is written down
 *   SHIM_CLOCK=FILE       the wall clock is ahead by the nanoseconds in this file, which may change at any time
 * recording.py reads the log; its record is `struct change`, then the name, then the bytes. */
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
    int64_t begun, ended; /* monotonic nanoseconds; a sync holds from its end on */
    uint64_t file;        /* inode: a file keeps it when it is renamed */
    int64_t at;           /* offset of a write, size after a truncation */
    uint32_t kind, name_length, length, unused;
};

static pthread_mutex_t one_at_a_time = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static const char *watched;
static int log_file = -1, fails = KINDS, failure, has_failed;
static long die_at, fail_at, fail_times, changes;
static int64_t *ahead;

#define REAL(result, name, ...)                                                                                      \
    static result (*real_##name)(__VA_ARGS__);                                                                       \
    if (!real_##name)                                                                                                \
        real_##name = (result (*)(__VA_ARGS__))dlsym(RTLD_NEXT, #name)

static void wake(void)
{
    const char *text;
    watched = getenv("SHIM_WATCH");
    if ((text = getenv("SHIM_LOG")))
        log_file = open(text, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    if ((text = getenv("SHIM_DIE")))
        die_at = atol(text);
    if ((text = getenv("SHIM_FAIL"))) {
        char call[16];
        if (sscanf(text, "%15[^:]:%ld:%d:%ld", call, &fail_at, &failure, &fail_times) == 4)
            for (fails = 0; fails < KINDS && strcmp(call, names[fails]); fails++)
                ;
    }
    if ((text = getenv("SHIM_CLOCK"))) {
        int file = open(text, O_RDONLY | O_CLOEXEC);
        ahead = mmap(NULL, sizeof *ahead, PROT_READ, MAP_SHARED, file, 0);
        if (file < 0 || ahead == MAP_FAILED)
            _exit(70);
        close(file);
    }
}

static int64_t now(void)
{
    struct timespec moment;
    clock_gettime(CLOCK_MONOTONIC, &moment);
    return (int64_t)moment.tv_sec * 1000000000 + moment.tv_nsec;
}

/* The name of a watched file below the directory, "" for the directory itself; NULL for any other. */
static const char *inside(const char *path)
{
    size_t length = watched ? strlen(watched) : 0, whole = strlen(path);
    if (!length || strncmp(path, watched, length) || (path[length] && path[length] != '/'))
        return NULL;
    if (whole > 4 && !strcmp(path + whole - 4, "-shm"))
        return NULL;
    return path[length] ? path + length + 1 : "";
}

static const char *named(int file, char *room)
{
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t length = readlink(link, room, PATH_MAX - 1);
    room[length < 0 ? 0 : length] = 0;
    return inside(room);
}

static void write_down(uint32_t kind, const char *name, uint64_t file, int64_t at, const void *bytes, uint32_t length,
                       int64_t begun)
{
    struct change change = {begun, now(), file, at, kind, strlen(name), length, 0};
    struct iovec parts[] = {
        {&change, sizeof change}, {(void *)name, change.name_length}, {(void *)bytes, bytes ? length : 0}};
    if (log_file >= 0 && writev(log_file, parts, 3) < 0)
        _exit(70);
}

/* Before a change, with the lock held: non-zero if it must fail instead. */
static int forbidden(uint32_t kind, const char *name)
{
    if (die_at && ++changes == die_at)
        kill(getpid(), SIGKILL);
    if (kind != (uint32_t)fails || !*name) /* SQLite does not care whether the directory could be synced */
        return 0;
    if (--fail_at > 0 || fail_times-- <= 0)
        return 0;
    if (!has_failed++)
        write_down(FAILED, name, 0, 0, NULL, 0, now());
    errno = failure;
    return 1;
}

static uint64_t inode(int file)
{
    struct stat seen;
    return fstat(file, &seen) ? 0 : seen.st_ino;
}

#define CHANGE(kind, name, file, at, bytes, length, call)                                                             \
    pthread_mutex_lock(&one_at_a_time);                                                                              \
    int64_t begun = now();                                                                                            \
    ssize_t done = forbidden(kind, name) ? -1 : (call);                                                                     \
    int error = errno;                                                                                                \
    if (done >= 0)                                                                                                    \
        write_down(kind, name, file, at, bytes, length, begun);                                                       \
    errno = error;                                                                                                    \
    pthread_mutex_unlock(&one_at_a_time);                                                                            \
    return done

#define ON_FILE(file, real)                                                                                           \
    char room[PATH_MAX];                                                                                              \
    pthread_once(&once, wake);                                                                                        \
    const char *name = watched ? named(file, room) : NULL;                                                            \
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
    pthread_once(&once, wake);
    const char *name = inside(path);
    if (!name)
        return real_unlink(path);
    CHANGE(UNLINK, name, 0, 0, NULL, 0, real_unlink(path));
}

int rename(const char *from, const char *to)
{
    REAL(int, rename, const char *, const char *);
    pthread_once(&once, wake);
    const char *name = inside(from), *other = inside(to);
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
    pthread_once(&once, wake);
    const char *name = flags & O_CREAT ? inside(path) : NULL;
    if (!name)
        return real_open64(path, flags, mode);
    CHANGE(OPEN, name, inode((int)done), flags & O_TRUNC ? 0 : -1, NULL, 0, real_open64(path, flags, mode));
}

int clock_gettime(clockid_t clock, struct timespec *moment)
{
    REAL(int, clock_gettime, clockid_t, struct timespec *);
    int done = real_clock_gettime(clock, moment);
    if (clock == CLOCK_REALTIME && !done) {
        pthread_once(&once, wake);
        int64_t all = ahead ? moment->tv_nsec + *(volatile int64_t *)ahead % 1000000000 : moment->tv_nsec;
        int64_t carried = all < 0 ? -1 : all / 1000000000;
        moment->tv_sec += (ahead ? *(volatile int64_t *)ahead / 1000000000 : 0) + carried;
        moment->tv_nsec = all - carried * 1000000000;
    }
    return done;
}

int gettimeofday(struct timeval *moment, void *zone)
{
    struct timespec fine;
    (void)zone;
    int done = clock_gettime(CLOCK_REALTIME, &fine);
    moment->tv_sec = fine.tv_sec;
    moment->tv_usec = fine.tv_nsec / 1000;
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
