/* The functions of nccl.h that CuPy's binding needs. */
#include "shim.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define VERSION 23004

/* Operations that run together: one collective, or the messages of a group. */
typedef struct {
    ncclComm_t comm;
    unsigned long ticket;
    Fault fault;
    ncclResult_t fault_status;
    size_t count;
    Operation operations[];
} Batch;

typedef struct {
    ncclComm_t comm;
    Stream *stream;
    Operation operation;
} Waiting;

static _Thread_local struct {
    int depth;
    size_t count, room;
    Waiting *waiting;
} group;

static _Thread_local int device;

EXPORT void shim_set_device(int index) { device = index; }

static void until_aborted(ncclComm_t comm) {
    while (!atomic_load(&comm->aborted)) {
        nap();
    }
}

static void await_turn(ncclComm_t comm, unsigned long ticket) {
    pthread_mutex_lock(&comm->lock);
    while (comm->done != ticket) {
        pthread_cond_wait(&comm->changed, &comm->lock);
    }
    pthread_mutex_unlock(&comm->lock);
}

static void end_turn(ncclComm_t comm) {
    pthread_mutex_lock(&comm->lock);
    comm->done++;
    pthread_cond_broadcast(&comm->changed);
    pthread_mutex_unlock(&comm->lock);
}

static void await_all(ncclComm_t comm) {
    pthread_mutex_lock(&comm->lock);
    while (comm->done != comm->issued) {
        pthread_cond_wait(&comm->changed, &comm->lock);
    }
    pthread_mutex_unlock(&comm->lock);
}

/* An operation that failed stays where it is until the communicator is aborted, as NCCL's kernels do. */
static void run_batch(void *context) {
    Batch *batch = context;
    ncclComm_t comm = batch->comm;
    await_turn(comm, batch->ticket);
    ncclResult_t status = ncclSuccess;
    if (batch->fault == FAULT_ASYNC) {
        status = batch->fault_status;
    } else if (batch->fault == FAULT_HANG) {
        until_aborted(comm);
    } else if (!atomic_load(&comm->aborted)) {
        const Operation *first = &batch->operations[0];
        status = first->kind == SEND || first->kind == RECEIVE ? run_messages(comm, first, batch->count)
                                                               : run_collective(comm, first);
    }
    if (status != ncclSuccess) {
        int none = ncclSuccess;
        atomic_compare_exchange_strong(&comm->async_error, &none, (int)status);
        until_aborted(comm);
    }
    end_turn(comm);
    free(batch);
}

static unsigned long take_ticket(ncclComm_t comm) {
    pthread_mutex_lock(&comm->lock);
    unsigned long ticket = comm->issued++;
    pthread_mutex_unlock(&comm->lock);
    return ticket;
}

static ncclResult_t issue(const Waiting *waiting, size_t count) {
    ncclComm_t comm = waiting->comm;
    ncclResult_t status = ncclSuccess;
    Fault fault = fault_of_operation(&status);
    if (fault == FAULT_CALL) {
        return status;
    }
    if (fault == FAULT_BLOCK) {
        until_aborted(comm);
        return ncclInternalError;
    }
    Batch *batch = malloc(sizeof *batch + count * sizeof batch->operations[0]);
    if (!batch) {
        return ncclSystemError;
    }
    *batch = (Batch){.comm = comm, .fault = fault, .fault_status = status, .count = count};
    for (size_t i = 0; i < count; i++) {
        batch->operations[i] = waiting[i].operation;
    }
    batch->ticket = take_ticket(comm);
    stream_add(waiting->stream, run_batch, batch);
    return ncclSuccess;
}

static ncclResult_t add(ncclComm_t comm, void *stream, Operation operation) {
    if (!comm || type_bytes(operation.type) == 0 || (unsigned)operation.op >= ncclNumOps || operation.root < 0 ||
        operation.root >= comm->size) {
        return ncclInvalidArgument;
    }
    int sends = operation.kind != RECEIVE && (operation.kind != BROADCAST || comm->rank == operation.root);
    int receives = operation.kind != SEND && (operation.kind != REDUCE || comm->rank == operation.root);
    if (operation.count > 0 && ((sends && !operation.send) || (receives && !operation.receive))) {
        return ncclInvalidArgument;
    }
    if (operation.count == 0) {
        return ncclSuccess;
    }
    Waiting waiting = {.comm = comm, .stream = stream, .operation = operation};
    if (group.depth == 0) {
        return issue(&waiting, 1);
    }
    if (group.count == group.room) {
        size_t room = group.room ? 2 * group.room : 16;
        Waiting *grown = realloc(group.waiting, room * sizeof *grown);
        if (!grown) {
            return ncclSystemError;
        }
        group.waiting = grown;
        group.room = room;
    }
    group.waiting[group.count++] = waiting;
    return ncclSuccess;
}

static int is_message(const Waiting *waiting) {
    return waiting->operation.kind == SEND || waiting->operation.kind == RECEIVE;
}

EXPORT ncclResult_t ncclGroupStart(void) {
    group.depth++;
    return ncclSuccess;
}

/* Messages that follow one another in a group run together, collectives one by one. One communicator a group. */
EXPORT ncclResult_t ncclGroupEnd(void) {
    if (group.depth == 0) {
        return ncclInvalidUsage;
    }
    if (--group.depth > 0) {
        return ncclSuccess;
    }
    ncclResult_t status = ncclSuccess;
    for (size_t at = 0, next; at < group.count && status == ncclSuccess; at = next) {
        const Waiting *first = &group.waiting[at];
        for (next = at + 1; next < group.count && is_message(first) && is_message(&group.waiting[next]); next++) {
            if (group.waiting[next].comm != first->comm || group.waiting[next].stream != first->stream) {
                status = ncclInvalidUsage;
            }
        }
        status = status == ncclSuccess ? issue(first, next - at) : status;
    }
    group.count = 0;
    return status;
}

EXPORT ncclResult_t ncclAllReduce(const void *send, void *receive, size_t count, ncclDataType_t type, ncclRedOp_t op,
                                  ncclComm_t comm, void *stream) {
    return add(comm, stream, (Operation){ALL_REDUCE, send, receive, count, type, op, 0});
}

EXPORT ncclResult_t ncclReduce(const void *send, void *receive, size_t count, ncclDataType_t type, ncclRedOp_t op,
                               int root, ncclComm_t comm, void *stream) {
    return add(comm, stream, (Operation){REDUCE, send, receive, count, type, op, root});
}

EXPORT ncclResult_t ncclBroadcast(const void *send, void *receive, size_t count, ncclDataType_t type, int root,
                                  ncclComm_t comm, void *stream) {
    return add(comm, stream, (Operation){BROADCAST, send, receive, count, type, ncclSum, root});
}

EXPORT ncclResult_t ncclBcast(void *data, size_t count, ncclDataType_t type, int root, ncclComm_t comm, void *stream) {
    return ncclBroadcast(data, data, count, type, root, comm, stream);
}

EXPORT ncclResult_t ncclReduceScatter(const void *send, void *receive, size_t count, ncclDataType_t type,
                                      ncclRedOp_t op, ncclComm_t comm, void *stream) {
    return add(comm, stream, (Operation){REDUCE_SCATTER, send, receive, count, type, op, 0});
}

EXPORT ncclResult_t ncclAllGather(const void *send, void *receive, size_t count, ncclDataType_t type, ncclComm_t comm,
                                  void *stream) {
    return add(comm, stream, (Operation){ALL_GATHER, send, receive, count, type, ncclSum, 0});
}

EXPORT ncclResult_t ncclSend(const void *send, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                             void *stream) {
    return add(comm, stream, (Operation){SEND, send, NULL, count, type, ncclSum, peer});
}

EXPORT ncclResult_t ncclRecv(void *receive, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                             void *stream) {
    return add(comm, stream, (Operation){RECEIVE, NULL, receive, count, type, ncclSum, peer});
}

static ncclResult_t make(ncclComm_t *made, int door, const Address *table, int size, int rank) {
    ncclComm_t comm = calloc(1, sizeof *comm);
    if (!comm) {
        return ncclSystemError;
    }
    comm->rank = rank;
    comm->size = size;
    comm->device = device;
    pthread_mutex_init(&comm->lock, NULL);
    pthread_cond_init(&comm->changed, NULL);
    ncclResult_t status = links_open(comm, door, table);
    if (status != ncclSuccess) {
        links_close(comm);
        free(comm);
        return status;
    }
    *made = comm;
    return ncclSuccess;
}

EXPORT ncclResult_t ncclGetUniqueId(ncclUniqueId *id) { return links_invite(id); }

EXPORT ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int size, ncclUniqueId id, int rank, void *config) {
    (void)config;
    ncclResult_t status = ncclSuccess;
    environment_seen();
    switch (fault_of_init(&status)) {
    case FAULT_INIT:
        return status;
    case FAULT_INIT_HANG:
        for (;;) {
            nap();
        }
    default:
        break;
    }
    if (size < 1 || size > MAX_RANKS || rank < 0 || rank >= size) {
        return ncclInvalidArgument;
    }
    Address own, table[MAX_RANKS];
    int door = links_listen(&own);
    status = door < 0 ? ncclSystemError : links_meet(&id, rank, size, &own, table);
    status = status == ncclSuccess ? make(comm, door, table, size, rank) : status;
    close(door);
    return status;
}

EXPORT ncclResult_t ncclCommInitRank(ncclComm_t *comm, int size, ncclUniqueId id, int rank) {
    return ncclCommInitRankConfig(comm, size, id, rank, NULL);
}

/* One process is one rank here. */
EXPORT ncclResult_t ncclCommInitAll(ncclComm_t *comms, int count, const int *devices) {
    (void)comms, (void)count, (void)devices;
    return ncclInvalidUsage;
}

typedef struct {
    int color, key;
    Address address;
} Choice;

/* Returns the rank that a rank has among those of its color, by keys and then by ranks. */
static int rank_in_color(const Choice *all, int size, int rank) {
    int before = 0;
    for (int other = 0; other < size; other++) {
        int first = all[other].key < all[rank].key || (all[other].key == all[rank].key && other < rank);
        before += all[other].color == all[rank].color && first;
    }
    return before;
}

EXPORT ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t *made, void *config) {
    (void)config;
    Choice mine = {.color = color, .key = key}, all[MAX_RANKS];
    Message messages[2 * MAX_RANKS];
    size_t count = 0;
    *made = NULL;
    int door = links_listen(&mine.address);
    if (door < 0) {
        return ncclSystemError;
    }
    for (int peer = 0; peer < comm->size; peer++) {
        messages[count++] = (Message){.peer = peer, .kind = SPLIT, .out = (char *)&mine, .bytes = sizeof mine};
        messages[count++] = (Message){.peer = peer, .kind = SPLIT, .in = (char *)&all[peer], .bytes = sizeof mine};
    }
    await_turn(comm, take_ticket(comm));
    ncclResult_t status = links_exchange(comm, messages, count);
    end_turn(comm);
    if (status == ncclSuccess && color >= 0) {
        Address table[MAX_RANKS];
        int size = 0;
        for (int peer = 0; peer < comm->size; peer++) {
            if (all[peer].color == color) {
                table[rank_in_color(all, comm->size, peer)] = all[peer].address;
                size++;
            }
        }
        status = make(made, door, table, size, rank_in_color(all, comm->size, comm->rank));
    }
    close(door);
    return status;
}

EXPORT ncclResult_t ncclCommDestroy(ncclComm_t comm) {
    await_all(comm);
    links_close(comm);
    free(comm);
    return ncclSuccess;
}

/* Leaves the memory behind: another thread may be in a call with it. */
EXPORT ncclResult_t ncclCommAbort(ncclComm_t comm) {
    atomic_store(&comm->aborted, 1);
    await_all(comm);
    links_close(comm);
    return ncclSuccess;
}

EXPORT ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *error) {
    *error = (ncclResult_t)atomic_load(&comm->async_error);
    return ncclSuccess;
}

EXPORT ncclResult_t ncclCommCount(ncclComm_t comm, int *count) {
    *count = comm->size;
    return ncclSuccess;
}

EXPORT ncclResult_t ncclCommCuDevice(ncclComm_t comm, int *index) {
    *index = comm->device;
    return ncclSuccess;
}

EXPORT ncclResult_t ncclCommUserRank(ncclComm_t comm, int *rank) {
    *rank = comm->rank;
    return ncclSuccess;
}

EXPORT ncclResult_t ncclGetVersion(int *version) {
    *version = VERSION;
    return ncclSuccess;
}

EXPORT const char *ncclGetErrorString(ncclResult_t status) {
    static const char *const texts[ncclNumResults] = {
        "no error",
        "unhandled cuda error",
        "unhandled system error",
        "internal error",
        "invalid argument",
        "invalid usage",
        "remote process exited or there was a network error",
        "in progress",
        "timeout",
    };
    return (unsigned)status < ncclNumResults ? texts[status] : "unknown result code";
}
