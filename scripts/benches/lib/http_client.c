/* Sends prepared HTTP requests over several connections at once and measures each response.
   usage: http_client PORT CONNECTIONS FILE; FILE has requests, each preceded by its length in four bytes, little endian.
   Prints: responses seconds p50_us p99_us max_us status_2xx other. Each request is sent once. Responses need a
   Content-Length. */
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

struct connection { int fd; const char *out; size_t left; char in[65536]; size_t have; double begin_time; };

static const char **requests; static size_t *lengths; static size_t total, next_request, received, successes;
static double *micros;

static double now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec * 1e6 + t.tv_nsec / 1e3; }
static void fail(const char *what) { perror(what); exit(1); }

static void send_pending(struct connection *c) {
    while (c->left) {
        ssize_t n = send(c->fd, c->out, c->left, MSG_NOSIGNAL);
        if (n < 0) { if (errno == EAGAIN) return; fail("send"); }
        c->out += n; c->left -= (size_t)n;
    }
}

static int send_next(struct connection *c) {
    if (next_request == total) return 0;
    c->out = requests[next_request]; c->left = lengths[next_request]; next_request++;
    c->have = 0; c->begin_time = now();
    send_pending(c);
    return 1;
}

/* Returns the length of the response in the buffer, or 0 if it is incomplete. */
static size_t response_length(struct connection *c) {
    c->in[c->have] = 0;
    char *end = strstr(c->in, "\r\n\r\n");
    if (!end) return 0;
    char *length = strcasestr(c->in, "\r\ncontent-length:");
    if (!length || length > end) { fprintf(stderr, "a response without Content-Length\n"); exit(1); }
    size_t size = (size_t)(end + 4 - c->in) + strtoul(length + 17, NULL, 10);
    return c->have >= size ? size : 0;
}

static int compare(const void *a, const void *b) { double x = *(double *)a, y = *(double *)b; return (x > y) - (x < y); }

int main(int argc, char **argv) {
    if (argc != 4) { fprintf(stderr, "usage: http_client PORT CONNECTIONS FILE\n"); return 2; }
    int file = open(argv[3], O_RDONLY); struct stat st;
    if (file < 0 || fstat(file, &st)) fail(argv[3]);
    char *data = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, file, 0);
    if (data == MAP_FAILED) fail("mmap");
    size_t capacity = 1024;
    requests = malloc(capacity * sizeof *requests); lengths = malloc(capacity * sizeof *lengths);
    for (size_t at = 0; at + 4 <= (size_t)st.st_size;) {
        uint32_t size; memcpy(&size, data + at, 4); at += 4;
        if (total == capacity) { capacity *= 2; requests = realloc(requests, capacity * sizeof *requests); lengths = realloc(lengths, capacity * sizeof *lengths); }
        requests[total] = data + at; lengths[total++] = size; at += size;
    }
    micros = malloc(total * sizeof *micros);
    int count = atoi(argv[2]), poll = epoll_create1(0), one = 1, open_count = 0;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(argv[1]))};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    struct connection *connections = calloc((size_t)count, sizeof *connections);
    for (int i = 0; i < count; i++) {
        connections[i].fd = socket(AF_INET, SOCK_STREAM, 0);
        if (connect(connections[i].fd, (struct sockaddr *)&address, sizeof address)) fail("connect");
        setsockopt(connections[i].fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        fcntl(connections[i].fd, F_SETFL, O_NONBLOCK);
        struct epoll_event e = {.events = EPOLLIN, .data.ptr = &connections[i]};
        epoll_ctl(poll, EPOLL_CTL_ADD, connections[i].fd, &e);
    }
    double begin_time = now();
    for (int i = 0; i < count; i++) open_count += send_next(&connections[i]);
    while (received < total && open_count) {
        struct epoll_event ready[64];
        int n = epoll_wait(poll, ready, 64, 30000);
        if (n <= 0) { fprintf(stderr, "no response within 30 s\n"); return 1; }
        for (int i = 0; i < n; i++) {
            struct connection *c = ready[i].data.ptr;
            ssize_t got = recv(c->fd, c->in + c->have, sizeof c->in - 1 - c->have, 0);
            if (got <= 0) { if (got < 0 && errno == EAGAIN) continue; fprintf(stderr, "the server closed the connection\n"); return 1; }
            c->have += (size_t)got;
            send_pending(c);
            if (!response_length(c)) continue;
            micros[received++] = now() - c->begin_time;
            successes += c->in[9] == '2';
            if (!send_next(c)) open_count--;
        }
    }
    double seconds = (now() - begin_time) / 1e6;
    qsort(micros, received, sizeof *micros, compare);
    printf("%zu %.6f %.1f %.1f %.1f %zu %zu\n", received, seconds, micros[received / 2], micros[received * 99 / 100],
           micros[received - 1], successes, received - successes);
    return 0;
}
