/* Sends prepared HTTP requests over a number of connections at once and measures each answer.
   usage: client PORT CONNECTIONS FILE; FILE holds requests, each behind its length in four bytes, little endian.
   Prints: answers seconds p50_us p99_us max_us status_2xx other. Every request is sent once; an answer has a length. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

struct link { int fd; const char *out; size_t left; char in[65536]; size_t have; double began; };

static const char **requests; static size_t *lengths; static size_t total, next_request, answered, good;
static double *micros;

static double now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec * 1e6 + t.tv_nsec / 1e3; }
static void fail(const char *what) { perror(what); exit(1); }

static void push(struct link *l) {
    while (l->left) {
        ssize_t n = send(l->fd, l->out, l->left, MSG_NOSIGNAL);
        if (n < 0) { if (errno == EAGAIN) return; fail("send"); }
        l->out += n; l->left -= (size_t)n;
    }
}

static int begin(struct link *l) {
    if (next_request == total) return 0;
    l->out = requests[next_request]; l->left = lengths[next_request]; next_request++;
    l->have = 0; l->began = now();
    push(l);
    return 1;
}

/* The length of a whole answer in the buffer, 0 if it is not all there. */
static size_t whole(struct link *l) {
    l->in[l->have] = 0;
    char *end = strstr(l->in, "\r\n\r\n");
    if (!end) return 0;
    char *length = strcasestr(l->in, "\r\ncontent-length:");
    if (!length || length > end) { fprintf(stderr, "an answer without a length\n"); exit(1); }
    size_t size = (size_t)(end + 4 - l->in) + strtoul(length + 17, NULL, 10);
    return l->have >= size ? size : 0;
}

static int order(const void *a, const void *b) { double x = *(double *)a, y = *(double *)b; return (x > y) - (x < y); }

int main(int argc, char **argv) {
    if (argc != 4) { fprintf(stderr, "usage: client PORT CONNECTIONS FILE\n"); return 2; }
    int file = open(argv[3], O_RDONLY); struct stat st;
    if (file < 0 || fstat(file, &st)) fail(argv[3]);
    char *data = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, file, 0);
    if (data == MAP_FAILED) fail("mmap");
    size_t room = 1024;
    requests = malloc(room * sizeof *requests); lengths = malloc(room * sizeof *lengths);
    for (size_t at = 0; at + 4 <= (size_t)st.st_size;) {
        uint32_t size; memcpy(&size, data + at, 4); at += 4;
        if (total == room) { room *= 2; requests = realloc(requests, room * sizeof *requests); lengths = realloc(lengths, room * sizeof *lengths); }
        requests[total] = data + at; lengths[total++] = size; at += size;
    }
    micros = malloc(total * sizeof *micros);
    int count = atoi(argv[2]), poll = epoll_create1(0), one = 1, open_links = 0;
    struct sockaddr_in where = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(argv[1]))};
    where.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    struct link *links = calloc((size_t)count, sizeof *links);
    for (int i = 0; i < count; i++) {
        links[i].fd = socket(AF_INET, SOCK_STREAM, 0);
        if (connect(links[i].fd, (struct sockaddr *)&where, sizeof where)) fail("connect");
        setsockopt(links[i].fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        fcntl(links[i].fd, F_SETFL, O_NONBLOCK);
        struct epoll_event e = {.events = EPOLLIN, .data.ptr = &links[i]};
        epoll_ctl(poll, EPOLL_CTL_ADD, links[i].fd, &e);
    }
    double began = now();
    for (int i = 0; i < count; i++) open_links += begin(&links[i]);
    while (answered < total && open_links) {
        struct epoll_event ready[64];
        int n = epoll_wait(poll, ready, 64, 30000);
        if (n <= 0) { fprintf(stderr, "no answer within 30 s\n"); return 1; }
        for (int i = 0; i < n; i++) {
            struct link *l = ready[i].data.ptr;
            ssize_t got = recv(l->fd, l->in + l->have, sizeof l->in - 1 - l->have, 0);
            if (got <= 0) { if (got < 0 && errno == EAGAIN) continue; fprintf(stderr, "the server hung up\n"); return 1; }
            l->have += (size_t)got;
            push(l);
            if (!whole(l)) continue;
            micros[answered++] = now() - l->began;
            good += l->in[9] == '2';
            if (!begin(l)) open_links--;
        }
    }
    double seconds = (now() - began) / 1e6;
    qsort(micros, answered, sizeof *micros, order);
    printf("%zu %.6f %.1f %.1f %.1f %zu %zu\n", answered, seconds, micros[answered / 2], micros[answered * 99 / 100],
           micros[answered - 1], good, answered - good);
    return 0;
}
