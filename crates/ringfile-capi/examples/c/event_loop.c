/*
 * One thread, one epoll loop, two kinds of sources: a socket, which receives requests, and a queue, which reads blocks.
 * A request is the number of a block; the answer is the number and the block's sum. Requests are accepted while reads
 * are in flight, and answers are sent in the order in which reads finish. A client in a second process checks each
 * answer.
 *
 * Usage: event_loop [FOLDER], where it makes and removes a file; the current folder by default.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ringfile.h"

enum { BLOCK = 4096, BLOCKS = 256, DEPTH = 16, REQUESTS = 2000 };

struct answer {
    uint64_t number, sum;
};

#define EXPECT(truth) expect(truth, #truth, __LINE__)

static void expect(int truth, const char *what, int line)
{
    if (!truth) {
        fprintf(stderr, "event_loop.c:%d: check failed: %s (last error: %s)\n", line, what, ringfile_last_error());
        exit(1);
    }
}

static unsigned char byte_of(uint64_t number)
{
    return (unsigned char)(number * 31 + 7);
}

static uint64_t sum_of(const unsigned char *block)
{
    uint64_t sum = 0;
    for (size_t at = 0; at < BLOCK; at++) {
        sum += block[at];
    }
    return sum;
}

/* Sends requests, twice as many ahead as the server reads at once, and checks the answers. Messages of a SOCK_SEQPACKET
 * socket come whole. */
static int client(int server)
{
    static unsigned asked[BLOCKS], answered[BLOCKS];
    for (unsigned sent = 0, got = 0; got < REQUESTS;) {
        if (sent < REQUESTS && sent - got < 2 * DEPTH) {
            uint64_t number = sent++ * 37 % BLOCKS;
            asked[number]++;
            EXPECT(send(server, &number, sizeof number, 0) == sizeof number);
            continue;
        }
        struct answer answer;
        EXPECT(recv(server, &answer, sizeof answer, 0) == sizeof answer);
        EXPECT(answer.number < BLOCKS && answer.sum == (uint64_t)byte_of(answer.number) * BLOCK);
        answered[answer.number]++;
        got++;
    }
    EXPECT(memcmp(asked, answered, sizeof asked) == 0);
    return 0;
}

struct server {
    ringfile_queue *queue;
    const ringfile_file *file;
    unsigned char *frames;      /* DEPTH blocks */
    uint64_t numbers[DEPTH];    /* which block each is for */
    unsigned unused[DEPTH];     /* frames that no read has */
    unsigned unused_count;
    int client;
    int is_over;
};

/* Takes requests while there are free frames to read into. */
static void take_requests(struct server *server)
{
    while (server->unused_count > 0) {
        uint64_t number;
        ssize_t got = recv(server->client, &number, sizeof number, MSG_DONTWAIT);
        if (got < 0 && (errno == EAGAIN || errno == EINTR)) {
            break;
        }
        if (got <= 0) {
            server->is_over = 1;
            break;
        }
        EXPECT(got == sizeof number && number < BLOCKS);
        unsigned frame = server->unused[--server->unused_count];
        server->numbers[frame] = number;
        EXPECT(ringfile_queue_add(server->queue,
                                  ringfile_op_read(server->file, server->frames + frame * BLOCK, BLOCK, number * BLOCK),
                                  frame, NULL) == 0);
    }
}

/* Submits what was added, takes results, and answers. Does not wait. Returns how many it answered. */
static int64_t answer(struct server *server)
{
    ringfile_result results[DEPTH];
    int64_t taken = ringfile_queue_wait(server->queue, results, DEPTH, 0, 0);
    EXPECT(taken >= 0);
    for (int64_t at = 0; at < taken; at++) {
        unsigned frame = (unsigned)results[at].user_data;
        EXPECT(results[at].result == BLOCK);
        struct answer answer = {server->numbers[frame], sum_of(server->frames + frame * BLOCK)};
        EXPECT(send(server->client, &answer, sizeof answer, 0) == sizeof answer);
        server->unused[server->unused_count++] = frame;
    }
    return taken;
}

/* The loop: it sleeps only in epoll_wait, for either source. */
static uint64_t serve(struct server *server)
{
    enum { SOCKET, QUEUE };
    int loop = epoll_create1(EPOLL_CLOEXEC), reads = ringfile_queue_descriptor(server->queue);
    struct epoll_event of_socket = {.events = EPOLLIN, .data.u32 = SOCKET};
    struct epoll_event of_queue = {.events = EPOLLIN, .data.u32 = QUEUE};
    uint64_t answered = 0;
    int is_listening = 1;
    EXPECT(loop >= 0 && reads >= 0);
    EXPECT(epoll_ctl(loop, EPOLL_CTL_ADD, server->client, &of_socket) == 0);
    EXPECT(epoll_ctl(loop, EPOLL_CTL_ADD, reads, &of_queue) == 0);
    while (!server->is_over || ringfile_queue_len(server->queue) > 0) {
        struct epoll_event events[2];
        int count = epoll_wait(loop, events, 2, -1);
        EXPECT(count > 0 || errno == EINTR);
        take_requests(server);
        /* Again if a frame has become free, because a request may be waiting for it. */
        for (int64_t taken; (taken = answer(server)) > 0; answered += (uint64_t)taken) {
            take_requests(server);
        }
        /* Without a free frame, the socket would be readable although nobody could read it. */
        int listens = server->unused_count > 0 && !server->is_over;
        if (listens != is_listening) {
            of_socket.events = listens ? EPOLLIN : 0;
            EXPECT(epoll_ctl(loop, listens || !server->is_over ? EPOLL_CTL_MOD : EPOLL_CTL_DEL, server->client,
                             &of_socket) == 0);
            is_listening = listens;
        }
    }
    EXPECT(close(reads) == 0 && close(loop) == 0);
    return answered;
}

int main(int argc, char **argv)
{
    char path[4096];
    int sockets[2];
    snprintf(path, sizeof path, "%s/ringfile-loop-%ld", argc > 1 ? argv[1] : ".", (long)getpid());
    int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    EXPECT(fd >= 0 && socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets) == 0);
    unsigned char *frames = aligned_alloc(BLOCK, DEPTH * BLOCK);
    EXPECT(frames != NULL);
    for (uint64_t number = 0; number < BLOCKS; number++) {
        memset(frames, byte_of(number), BLOCK);
        EXPECT(pwrite(fd, frames, BLOCK, (off_t)(number * BLOCK)) == BLOCK);
    }

    /* Before the library is used: see FORK in the header. */
    pid_t child = fork();
    EXPECT(child >= 0);
    if (child == 0) {
        close(sockets[0]);
        free(frames);
        _exit(client(sockets[1]));
    }
    close(sockets[1]);

    struct server server = {.frames = frames, .client = sockets[0], .unused_count = DEPTH};
    ringfile_file *file;
    for (unsigned frame = 0; frame < DEPTH; frame++) {
        server.unused[frame] = frame;
    }
    EXPECT(ringfile_open_fd(fd, NULL, &file) == 0);
    server.file = file;
    EXPECT(ringfile_queue_create(DEPTH, 0, &server.queue) == 0);
    memset(frames, 0, DEPTH * BLOCK); /* valgrind does not see what a ring writes */
    uint64_t answered = serve(&server);
    EXPECT(answered == REQUESTS);

    int status;
    EXPECT(waitpid(child, &status, 0) == child && status == 0);
    EXPECT(ringfile_queue_free(server.queue) == 0 && ringfile_close(file) == 0);
    EXPECT(close(sockets[0]) == 0 && close(fd) == 0 && unlink(path) == 0);
    free(frames);
    printf("%" PRIu64 " requests answered\n", answered);
    puts("ok");
    return 0;
}
