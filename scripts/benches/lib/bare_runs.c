/* The upper limit of this machine: runs PLUGIN COUNT times in WIDTH threads with posix_spawn and three pipes. Each run
 * writes a request of BYTES (default 300), reads both outputs to their end, and waits for the process.
 * usage: bare_runs PLUGIN WIDTH COUNT [BYTES]
 * Prints: runs per second, median microseconds of one run, bytes read per second. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <spawn.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

extern char **environ;
static const char *plugin;
static int total;
static char *request;
static size_t request_size = 300;
static atomic_int next_run;
static atomic_llong bytes_read;
static double *run_seconds;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

static void run_once(char *buffer, size_t size) {
    int in[2], out[2], err[2];
    if (pipe2(in, O_CLOEXEC) || pipe2(out, O_CLOEXEC) || pipe2(err, O_CLOEXEC)) exit(2);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, in[0], 0);
    posix_spawn_file_actions_adddup2(&actions, out[1], 1);
    posix_spawn_file_actions_adddup2(&actions, err[1], 2);
    char *argv[] = {(char *)plugin, NULL};
    pid_t pid;
    if (posix_spawn(&pid, plugin, &actions, NULL, argv, environ)) exit(3);
    posix_spawn_file_actions_destroy(&actions);
    close(in[0]);
    close(out[1]);
    close(err[1]);
    for (size_t sent = 0; sent < request_size;) {
        ssize_t n = write(in[1], request + sent, request_size - sent);
        if (n < 0) exit(4);
        sent += (size_t)n;
    }
    close(in[1]);
    struct pollfd fds[2] = {{out[0], POLLIN, 0}, {err[0], POLLIN, 0}};
    for (int open = 2; open;) {
        poll(fds, 2, -1);
        for (int i = 0; i < 2; i++) {
            if (fds[i].fd < 0 || !fds[i].revents) continue;
            ssize_t n = read(fds[i].fd, buffer, size);
            if (n > 0) {
                atomic_fetch_add(&bytes_read, n);
            } else {
                close(fds[i].fd);
                fds[i].fd = -1;
                open--;
            }
        }
    }
    int status;
    waitpid(pid, &status, 0);
}

static void *work(void *unused) {
    size_t size = 1 << 16;
    char *buffer = malloc(size);
    for (;;) {
        int i = atomic_fetch_add(&next_run, 1);
        if (i >= total) break;
        double begin = now();
        run_once(buffer, size);
        run_seconds[i] = now() - begin;
    }
    free(buffer);
    return unused;
}

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv) {
    if (argc != 4 && argc != 5) return 1;
    plugin = argv[1];
    int width = atoi(argv[2]);
    total = atoi(argv[3]);
    if (argc == 5) request_size = (size_t)atol(argv[4]);
    request = malloc(request_size);
    memset(request, ' ', request_size);
    request[0] = '{';
    request[request_size - 2] = '}';
    request[request_size - 1] = '\n';
    run_seconds = calloc(total, sizeof *run_seconds);
    pthread_t threads[64];
    double begin = now();
    for (int i = 0; i < width; i++) pthread_create(&threads[i], NULL, work, NULL);
    for (int i = 0; i < width; i++) pthread_join(threads[i], NULL);
    double seconds = now() - begin;
    qsort(run_seconds, total, sizeof *run_seconds, compare);
    printf("%.1f %.1f %.0f\n", total / seconds, run_seconds[total / 2] * 1e6, bytes_read / seconds);
    return 0;
}
