/* Sockets between the ranks: a full mesh of abstract Unix sockets, named by the unique id. */
#include "shim.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define POLL_MILLISECONDS 5 /* how soon an abort is seen */

typedef struct {
    uint64_t kind, bytes;
} Header;

/* One direction of one link, on its way through the messages that are for it. */
typedef struct {
    size_t next;   /* of the messages */
    size_t moved;  /* bytes of header and data of the one under way */
    Header header; /* as sent or as received */
} Progress;

void nap(void) {
    const struct timespec pause = {.tv_nsec = 1000000};
    nanosleep(&pause, NULL);
}

static socklen_t address_of(struct sockaddr_un *address, const char *name, int rank) {
    memset(address, 0, sizeof *address);
    address->sun_family = AF_UNIX;
    int length = snprintf(address->sun_path + 1, sizeof address->sun_path - 1, "%s-%d", name, rank);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)length);
}

static int whole(int fd, void *data, size_t bytes, int writing) {
    for (char *at = data; bytes > 0;) {
        ssize_t moved = writing ? send(fd, at, bytes, MSG_NOSIGNAL) : recv(fd, at, bytes, 0);
        if (moved <= 0) {
            return -1;
        }
        at += moved;
        bytes -= (size_t)moved;
    }
    return 0;
}

static int connect_to(ncclComm_t comm, int peer) {
    struct sockaddr_un address;
    socklen_t length = address_of(&address, comm->name, peer);
    for (;; nap()) { /* it may not have come yet */
        int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (fd < 0) {
            return -1;
        }
        if (connect(fd, (struct sockaddr *)&address, length) == 0) {
            return whole(fd, &comm->rank, sizeof comm->rank, 1) == 0 ? fd : -1;
        }
        close(fd);
    }
}

ncclResult_t links_open(ncclComm_t comm) {
    struct sockaddr_un address;
    socklen_t length = address_of(&address, comm->name, comm->rank);
    int door = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    for (int rank = 0; rank < comm->size; rank++) {
        comm->links[rank] = -1;
    }
    if (door < 0 || bind(door, (struct sockaddr *)&address, length) != 0 || listen(door, MAX_RANKS) != 0) {
        return ncclSystemError; /* also: two processes with one rank */
    }
    for (int peer = 0; peer < comm->rank; peer++) {
        comm->links[peer] = connect_to(comm, peer);
        if (comm->links[peer] < 0) {
            return ncclSystemError;
        }
    }
    for (int came = comm->rank + 1; came < comm->size; came++) {
        int peer = -1, fd = accept4(door, NULL, NULL, SOCK_CLOEXEC);
        if (fd < 0 || whole(fd, &peer, sizeof peer, 0) != 0 || peer <= comm->rank || peer >= comm->size) {
            return ncclSystemError;
        }
        comm->links[peer] = fd;
    }
    close(door);
    return ncclSuccess;
}

void links_close(ncclComm_t comm) {
    for (int rank = 0; rank < comm->size; rank++) {
        if (comm->links[rank] >= 0) {
            close(comm->links[rank]);
            comm->links[rank] = -1;
        }
    }
}

/* Returns the index of the next message of a peer and direction, from `at` on; `count` if there is none. */
static size_t find(const Message *messages, size_t count, size_t at, int peer, int outward) {
    while (at < count && (messages[at].peer != peer || (messages[at].out != NULL) != outward)) {
        at++;
    }
    return at;
}

/* Moves what can be moved of one direction of a link. */
static ncclResult_t advance(int fd, Progress *progress, const Message *messages, size_t count, int peer, int outward) {
    for (;;) {
        progress->next = find(messages, count, progress->next, peer, outward);
        if (progress->next == count) {
            return ncclSuccess;
        }
        const Message *message = &messages[progress->next];
        if (outward) {
            progress->header = (Header){.kind = (uint64_t)message->kind, .bytes = message->bytes};
        }
        size_t head = sizeof progress->header, moved = progress->moved;
        char *own = (char *)&progress->header;
        ssize_t step;
        if (outward) {
            const char *from = moved < head ? own + moved : message->out + (moved - head);
            step = send(fd, from, moved < head ? head - moved : message->bytes - (moved - head),
                        MSG_NOSIGNAL | MSG_DONTWAIT);
        } else {
            char *to = moved < head ? own + moved : message->in + (moved - head);
            step = recv(fd, to, moved < head ? head - moved : message->bytes - (moved - head), MSG_DONTWAIT);
        }
        if (step < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
            return ncclInProgress;
        }
        if (step <= 0) {
            return ncclRemoteError;
        }
        progress->moved += (size_t)step;
        if (progress->moved >= head &&
            (progress->header.kind != (uint64_t)message->kind || progress->header.bytes != message->bytes)) {
            return ncclInvalidUsage; /* the ranks' calls do not fit together */
        }
        if (progress->moved == head + message->bytes) {
            progress->moved = 0;
            progress->next++;
        }
    }
}

static void to_oneself(ncclComm_t comm, const Message *messages, size_t count) {
    size_t out = 0, in = 0;
    for (;; out++, in++) {
        out = find(messages, count, out, comm->rank, 1);
        in = find(messages, count, in, comm->rank, 0);
        if (out == count || in == count) {
            return;
        }
        memmove(messages[in].in, messages[out].out, messages[in].bytes);
    }
}

ncclResult_t links_exchange(ncclComm_t comm, const Message *messages, size_t count) {
    Progress progress[MAX_RANKS][2] = {0};
    to_oneself(comm, messages, count);
    for (;;) {
        struct pollfd waiting[MAX_RANKS];
        nfds_t links = 0;
        for (int peer = 0; peer < comm->size; peer++) {
            short events = 0;
            for (int outward = 0; outward < 2 && peer != comm->rank; outward++) {
                ncclResult_t now =
                    advance(comm->links[peer], &progress[peer][outward], messages, count, peer, outward);
                if (now != ncclSuccess && now != ncclInProgress) {
                    return now;
                }
                events = (short)(events | (now == ncclInProgress ? (outward ? POLLOUT : POLLIN) : 0));
            }
            if (events) {
                waiting[links++] = (struct pollfd){.fd = comm->links[peer], .events = events};
            }
        }
        if (links == 0) {
            return ncclSuccess;
        }
        if (atomic_load(&comm->aborted)) {
            return ncclInternalError;
        }
        poll(waiting, links, POLL_MILLISECONDS);
    }
}
