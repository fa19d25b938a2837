/* The plugin under torture: says in the effect ledger that it began, does what its environment asks, says that it ended.
 * actor.py is the same in Python, for hosts without a compiler; the comment there explains the variables. */
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

static void find(const char *key, char *into, size_t room)
{
    const char *at = strstr(request, key);
    if (!at)
        return;
    at += strlen(key);
    while (*at == ' ' || *at == ':' || *at == '"')
        at++;
    size_t length = strcspn(at, "\",} ");
    if (length >= room)
        length = room - 1;
    memcpy(into, at, length);
    into[length] = 0;
}

static void testify(const char *what)
{
    struct timespec now;
    char line[512];
    const char *path = getenv("ACTOR_EFFECTS");
    clock_gettime(CLOCK_MONOTONIC, &now);
    int length = snprintf(line, sizeof line, "%s %s %s %s %s %d %lld\n", what, job, attempt, event, part,
                          (int)getpid(), (long long)now.tv_sec * 1000000000 + now.tv_nsec);
    int file = open(path ? path : "effects", O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    if (file < 0 || write(file, line, length) != length || fsync(file) != 0)
        _exit(70);
    close(file);
}

static int number(const char *name, int otherwise)
{
    const char *text = getenv(name);
    return text ? atoi(text) : otherwise;
}

static uint32_t chance(void)
{
    uint32_t hash = 2166136261u;
    for (const char *c = job; *c; c++)
        hash = (hash ^ (unsigned char)*c) * 16777619u;
    for (const char *c = attempt; *c; c++)
        hash = (hash ^ (unsigned char)*c) * 16777619u;
    return hash ^ (hash >> 15);
}

static void leave_a_daemon(void)
{
    if (fork() == 0) {
        setsid();
        for (int file = 0; file < 3; file++)
            close(file);
        for (;;)
            pause();
    }
}

static void be_alone(const char *path)
{
    int file = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    if (file < 0 || flock(file, LOCK_EX | LOCK_NB) != 0)
        testify("crowd");
}

static void leave(int signal)
{
    (void)signal;
    usleep(1000 * number("ACTOR_LINGERS_MS", 0));
    testify("gone");
    _exit(0);
}

static void say(const char *text)
{
    size_t length = strlen(text);
    while (length) {
        ssize_t sent = write(1, text, length);
        if (sent <= 0)
            _exit(71);
        text += sent, length -= sent;
    }
}

static char *itemize(char *at, uint32_t luck)
{
    int most = number("ACTOR_ITEMS", 0), count = luck / 4900 % (most + 1);
    if (!most)
        return at;
    at += sprintf(at, ",\"even\":%s,\"items\":[", luck >> 20 & 1 ? "false" : "true");
    for (int item = 0; item < count; item++)
        at += sprintf(at, "%s%d", item ? "," : "", 100 + item);
    return at + sprintf(at, "]");
}

static void succeed(uint32_t luck)
{
    static char answer[1 << 16];
    char *at = answer;
    const char *emits = getenv("ACTOR_EMITS");
    int count = number("ACTOR_COUNT", 1);
    at += sprintf(at, "{\"status\":\"ok\",\"result\":\"%s-%s\",\"state_updates\":{\"last\":\"%s-%s\"},\"events\":[", job,
                  attempt, job, attempt);
    for (int n = 0; emits && n < count; n++) {
        at += sprintf(at, "%s{\"type\":\"%s\",\"payload\":{\"n\":%d", n ? "," : "", emits, n);
        at = itemize(at, luck);
        at += sprintf(at, "}}");
    }
    sprintf(at, "]}\n");
    say(answer);
}

static int misbehave(uint32_t kind)
{
    switch (kind) {
    case 0:
        say("{\"status\":\"error\",\"error\":\"as asked\"}\n");
        return 0;
    case 1:
        return 1;
    case 2:
        say("this is no JSON\n");
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
        say("{\"status\":\"ok\",\"result\":\"but\"}\n");
        return 3;
    }
}

int main(void)
{
    size_t length = 0;
    ssize_t got;
    while (length < sizeof request - 1 && (got = read(0, request + length, sizeof request - 1 - length)) > 0)
        length += got;
    find("\"job_id\"", job, sizeof job);
    find("\"attempt\"", attempt, sizeof attempt);
    find("\"event_id\"", event, sizeof event);
    find("\"part\"", part, sizeof part);
    testify("start");
    if (number("ACTOR_LINGERS_MS", 0))
        signal(SIGTERM, leave);
    if (getenv("ACTOR_ALONE"))
        be_alone(getenv("ACTOR_ALONE"));
    if (number("ACTOR_DAEMON", 0))
        leave_a_daemon();
    uint32_t luck = chance();
    if (number("ACTOR_NAP_MS", 0))
        usleep(1000 * (luck / 700 % number("ACTOR_NAP_MS", 0)));
    if ((int)(luck % 100) < number("ACTOR_TROUBLE", 0))
        return misbehave(luck / 100 % 7);
    testify("end");
    succeed(luck);
    return 0;
}
