/* TCP between the ranks, a full mesh, on the interface that NCCL_SOCKET_IFNAME names ("=name"), else on the loopback. */
#include "shim.h"

#include <errno.h>
#include <ifaddrs.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
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

/* What a unique id holds: where the ranks meet. */
typedef struct {
    Address door;
    char token[16];
} Meeting;

typedef struct {
    int rank, size;
    char token[16];
    Address address;
} Hello;

typedef struct {
    int door;
    char token[16];
} Root;

void nap(void) {
    const struct timespec pause = {.tv_nsec = 1000000};
    nanosleep(&pause, NULL);
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

/* Finds the first IPv4 address of the interface to use. */
static int own_address(Address *address) {
    const char *wanted = getenv("NCCL_SOCKET_IFNAME");
    wanted = wanted ? wanted + (*wanted == '=') : "lo";
    struct ifaddrs *all;
    int found = -1;
    if (getifaddrs(&all) != 0) {
        return -1;
    }
    for (struct ifaddrs *one = all; one && found < 0; one = one->ifa_next) {
        if (one->ifa_addr && one->ifa_addr->sa_family == AF_INET && strcmp(one->ifa_name, wanted) == 0) {
            memcpy(address, one->ifa_addr, sizeof *address);
            address->sin_port = 0;
            found = 0;
        }
    }
    freeifaddrs(all);
    return found;
}

int links_listen(Address *address) {
    socklen_t length = sizeof *address;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) {
        return -1;
    }
    if (own_address(address) != 0 || bind(fd, (struct sockaddr *)address, length) != 0 ||
        listen(fd, MAX_RANKS) != 0 || getsockname(fd, (struct sockaddr *)address, &length) != 0) {
        close(fd);
        return -1;
    }
    return fd;
}

static int connect_to(const Address *peer) {
    Address own;
    int on = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) {
        return -1;
    }
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (own_address(&own) != 0 || bind(fd, (struct sockaddr *)&own, sizeof own) != 0 ||
        connect(fd, (const struct sockaddr *)peer, sizeof *peer) != 0) {
        close(fd);
        return -1;
    }
    return fd;
}

/* Waits for all ranks, and tells each the addresses of all. */
static void *meet_all(void *context) {
    Root *root = context;
    Address table[MAX_RANKS] = {0};
    int ranks[MAX_RANKS], size = 1;
    for (int came = 0; came < size;) {
        Hello hello;
        int fd = accept4(root->door, NULL, NULL, SOCK_CLOEXEC);
        if (fd < 0) {
            break;
        }
        if (whole(fd, &hello, sizeof hello, 0) != 0 || memcmp(hello.token, root->token, sizeof hello.token) != 0 ||
            hello.rank < 0 || hello.rank >= hello.size || hello.size > MAX_RANKS) {
            close(fd);
            continue;
        }
        size = hello.size;
        table[hello.rank] = hello.address;
        ranks[came++] = fd;
        if (came == size) {
            for (int rank = 0; rank < size; rank++) {
                whole(ranks[rank], table, sizeof table, 1);
                close(ranks[rank]);
            }
        }
    }
    close(root->door);
    free(root);
    return NULL;
}

ncclResult_t links_invite(ncclUniqueId *id) {
    Meeting meeting;
    pthread_t thread;
    Root *root = malloc(sizeof *root);
    memset(id, 0, sizeof *id);
    if (!root || getrandom(meeting.token, sizeof meeting.token, 0) != sizeof meeting.token) {
        free(root);
        return ncclSystemError;
    }
    root->door = links_listen(&meeting.door);
    memcpy(root->token, meeting.token, sizeof meeting.token);
    if (root->door < 0 || pthread_create(&thread, NULL, meet_all, root) != 0) {
        free(root);
        return ncclSystemError;
    }
    pthread_detach(thread);
    memcpy(id->internal, &meeting, sizeof meeting);
    return ncclSuccess;
}

ncclResult_t links_meet(const ncclUniqueId *id, int rank, int size, const Address *own, Address *table) {
    Meeting meeting;
    Hello hello = {.rank = rank, .size = size, .address = *own};
    memcpy(&meeting, id->internal, sizeof meeting);
    memcpy(hello.token, meeting.token, sizeof hello.token);
    int fd = connect_to(&meeting.door);
    if (fd < 0) {
        return ncclSystemError;
    }
    int fine = whole(fd, &hello, sizeof hello, 1) == 0 && whole(fd, table, MAX_RANKS * sizeof *table, 0) == 0;
    close(fd);
    return fine ? ncclSuccess : ncclRemoteError;
}

ncclResult_t links_open(ncclComm_t comm, int door, const Address *table) {
    for (int rank = 0; rank < comm->size; rank++) {
        comm->links[rank] = -1;
    }
    for (int peer = 0; peer < comm->rank; peer++) {
        comm->links[peer] = connect_to(&table[peer]);
        if (comm->links[peer] < 0 || whole(comm->links[peer], &comm->rank, sizeof comm->rank, 1) != 0) {
            return ncclRemoteError;
        }
    }
    for (int came = comm->rank + 1; came < comm->size; came++) {
        int peer = -1, on = 1, fd = accept4(door, NULL, NULL, SOCK_CLOEXEC);
        if (fd < 0 || whole(fd, &peer, sizeof peer, 0) != 0 || peer <= comm->rank || peer >= comm->size) {
            return ncclRemoteError;
        }
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        comm->links[peer] = fd;
    }
    for (int peer = 0; peer < comm->size; peer++) {
        if (peer != comm->rank) {
            log_connection(comm, peer);
        }
    }
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
