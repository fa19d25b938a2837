/* The plugin of the workload: logs its start, does what its environment requests, and logs a successful end.
 * workload_plugin.py is the same in Python, for hosts without a compiler; it documents the variables. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

static char request[1 << 20];
static char job[128] = "-", attempt[32] = "0", event[128] = "-", part[32] = "-";

static void copy_value(const char *key, char *value, size_t capacity)
{
    const char *at = strstr(request, key);
    if (!at)
        return;
    at += strlen(key);
    while (*at == ' ' || *at == ':' || *at == '"')
        at++;
    size_t length = strcspn(at, "\",} ");
    if (length >= capacity)
        length = capacity - 1;
    memcpy(value, at, length);
    value[length] = 0;
}

static void log_effect(const char *what)
{
    struct timespec now;
    char line[512];
    const char *path = getenv("WORKLOAD_EFFECTS_LOG");
    clock_gettime(CLOCK_MONOTONIC, &now);
    int length = snprintf(line, sizeof line, "%s %s %s %s %s %d %lld\n", what, job, attempt, event, part,
                          (int)getpid(), (long long)now.tv_sec * 1000000000 + now.tv_nsec);
    int file = open(path ? path : "effects", O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    if (file < 0 || write(file, line, length) != length || fsync(file) != 0)
        _exit(70);
    close(file);
}

static int number_from_env(const char *name, int fallback)
{
    const char *text = getenv(name);
    return text ? atoi(text) : fallback;
}

static uint32_t hash_attempt(void)
{
    uint32_t hash = 2166136261u;
    for (const char *c = job; *c; c++)
        hash = (hash ^ (unsigned char)*c) * 16777619u;
    for (const char *c = attempt; *c; c++)
        hash = (hash ^ (unsigned char)*c) * 16777619u;
    return hash ^ (hash >> 15);
}

static void leave_daemon(void)
{
    if (fork() == 0) {
        setsid();
        for (int file = 0; file < 3; file++)
            close(file);
        for (;;)
            pause();
    }
}

static void lock_file(const char *path)
{
    int file = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    if (file < 0 || flock(file, LOCK_EX | LOCK_NB) != 0)
        log_effect("overlap");
}

static void stop(int signal)
{
    (void)signal;
    usleep(1000 * number_from_env("WORKLOAD_SIGTERM_DELAY_MS", 0));
    log_effect("stopped");
    _exit(0);
}

static void print_text(const char *text)
{
    size_t length = strlen(text);
    while (length) {
        ssize_t sent = write(1, text, length);
        if (sent <= 0)
            _exit(71);
        text += sent, length -= sent;
    }
}

static char *append_items(char *at, uint32_t random_bits)
{
    int max_items = number_from_env("WORKLOAD_MAX_ITEMS", 0), count = random_bits / 4900 % (max_items + 1);
    if (!max_items)
        return at;
    at += sprintf(at, ",\"even\":%s,\"items\":[", random_bits >> 20 & 1 ? "false" : "true");
    for (int item = 0; item < count; item++)
        at += sprintf(at, "%s%d", item ? "," : "", 100 + item);
    return at + sprintf(at, "]");
}

static void succeed(uint32_t random_bits)
{
    static char response[1 << 16];
    char *at = response;
    const char *emits = getenv("WORKLOAD_EMITS");
    int count = number_from_env("WORKLOAD_EVENT_COUNT", 1);
    at += sprintf(at, "{\"status\":\"ok\",\"result\":\"%s-%s\",\"state_updates\":{\"last\":\"%s-%s\"},\"events\":[", job,
                  attempt, job, attempt);
    for (int n = 0; emits && n < count; n++) {
        at += sprintf(at, "%s{\"type\":\"%s\",\"payload\":{\"n\":%d", n ? "," : "", emits, n);
        at = append_items(at, random_bits);
        at += sprintf(at, "}}");
    }
    sprintf(at, "]}\n");
    print_text(response);
}

static int fail(uint32_t kind)
{
    switch (kind) {
    case 0:
        print_text("{\"status\":\"error\",\"error\":\"requested by the test\"}\n");
        return 0;
    case 1:
        return 1;
    case 2:
        print_text("this is not JSON\n");
        return 0;
    case 3:
        for (;;)
            pause();
    case 4:
        raise(SIGKILL);
        return 1;
    case 5:
        return 78;
    default:
        print_text("{\"status\":\"ok\",\"result\":\"exit code 3\"}\n");
        return 3;
    }
}

int main(void)
{
    size_t length = 0;
    ssize_t got;
    while (length < sizeof request - 1 && (got = read(0, request + length, sizeof request - 1 - length)) > 0)
        length += got;
    copy_value("\"job_id\"", job, sizeof job);
    copy_value("\"attempt\"", attempt, sizeof attempt);
    copy_value("\"event_id\"", event, sizeof event);
    copy_value("\"part\"", part, sizeof part);
    log_effect("start");
    if (number_from_env("WORKLOAD_SIGTERM_DELAY_MS", 0))
        signal(SIGTERM, stop);
    if (getenv("WORKLOAD_LOCK_FILE"))
        lock_file(getenv("WORKLOAD_LOCK_FILE"));
    if (number_from_env("WORKLOAD_LEAVES_DAEMON", 0))
        leave_daemon();
    uint32_t random_bits = hash_attempt();
    if (number_from_env("WORKLOAD_SLEEP_MS", 0))
        usleep(1000 * (random_bits / 700 % number_from_env("WORKLOAD_SLEEP_MS", 0)));
    if ((int)(random_bits % 100) < number_from_env("WORKLOAD_FAILURE_PERCENT", 0))
        return fail(random_bits / 100 % 7);
    log_effect("end");
    succeed(random_bits);
    return 0;
}
