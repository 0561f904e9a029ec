/* What an operation does when its turn comes: every rank sends its data straight to whoever needs it. */
#include "shim.h"

#include <stdlib.h>
#include <string.h>

typedef struct {
    Message messages[2 * MAX_RANKS];
    size_t count;
} Exchange;

static void add(Exchange *exchange, Kind kind, int peer, const void *out, void *in, size_t bytes) {
    if (out) {
        exchange->messages[exchange->count++] = (Message){.peer = peer, .kind = (int)kind, .out = out, .bytes = bytes};
    }
    if (in) {
        exchange->messages[exchange->count++] = (Message){.peer = peer, .kind = (int)kind, .in = in, .bytes = bytes};
    }
}

/* Combines the ranks' parts, which lie in `parts` one after another, in the order of the ranks. */
static void combine(ncclComm_t comm, const Operation *operation, char *parts, void *result) {
    size_t bytes = operation->count * type_bytes(operation->type);
    for (int rank = 0; rank < comm->size; rank++) {
        char *part = parts + (size_t)rank * bytes;
        if (operation->op == ncclAvg) {
            average_before(part, operation->count, operation->type, comm->size);
        }
        if (rank > 0) {
            reduce_into(parts, part, operation->count, operation->type, operation->op);
        }
    }
    if (operation->op == ncclAvg) {
        average_after(parts, operation->count, operation->type, comm->size);
    }
    memcpy(result, parts, bytes);
}

/* Reductions; `receives` tells whether this rank gets a result, `stride` how far apart the blocks for the ranks are. */
static ncclResult_t reduction(ncclComm_t comm, const Operation *operation, int receives, size_t stride) {
    size_t bytes = operation->count * type_bytes(operation->type);
    const char *send = operation->send;
    char *parts = malloc((size_t)comm->size * bytes);
    if (!parts) {
        return ncclSystemError;
    }
    Exchange exchange = {.count = 0};
    for (int peer = 0; peer < comm->size; peer++) {
        int wants = operation->kind != REDUCE || operation->root == peer;
        add(&exchange, operation->kind, peer, wants ? send + (size_t)peer * stride : NULL,
            receives ? parts + (size_t)peer * bytes : NULL, bytes);
    }
    ncclResult_t status = links_exchange(comm, exchange.messages, exchange.count);
    if (status == ncclSuccess && receives) {
        combine(comm, operation, parts, operation->receive);
    }
    free(parts);
    return status;
}

static ncclResult_t all_gather(ncclComm_t comm, const Operation *operation) {
    size_t bytes = operation->count * type_bytes(operation->type);
    Exchange exchange = {.count = 0};
    for (int peer = 0; peer < comm->size; peer++) {
        add(&exchange, ALL_GATHER, peer, operation->send, (char *)operation->receive + (size_t)peer * bytes, bytes);
    }
    return links_exchange(comm, exchange.messages, exchange.count);
}

static ncclResult_t broadcast(ncclComm_t comm, const Operation *operation) {
    size_t bytes = operation->count * type_bytes(operation->type);
    Exchange exchange = {.count = 0};
    for (int peer = 0; peer < comm->size && comm->rank == operation->root; peer++) {
        add(&exchange, BROADCAST, peer, operation->send, peer == comm->rank ? operation->receive : NULL, bytes);
    }
    if (comm->rank != operation->root) {
        add(&exchange, BROADCAST, operation->root, NULL, operation->receive, bytes);
    }
    return links_exchange(comm, exchange.messages, exchange.count);
}

ncclResult_t run_collective(ncclComm_t comm, const Operation *operation) {
    switch (operation->kind) {
    case ALL_REDUCE:
        return reduction(comm, operation, 1, 0);
    case REDUCE:
        return reduction(comm, operation, comm->rank == operation->root, 0);
    case REDUCE_SCATTER:
        return reduction(comm, operation, 1, operation->count * type_bytes(operation->type));
    case ALL_GATHER:
        return all_gather(comm, operation);
    case BROADCAST:
        return broadcast(comm, operation);
    default:
        return ncclInternalError;
    }
}

ncclResult_t run_messages(ncclComm_t comm, const Operation *operations, size_t count) {
    Message *messages = calloc(count, sizeof *messages);
    if (!messages) {
        return ncclSystemError;
    }
    for (size_t i = 0; i < count; i++) {
        const Operation *one = &operations[i];
        messages[i] = (Message){
            .peer = one->root,
            .kind = SEND,
            .out = one->kind == SEND ? one->send : NULL,
            .in = one->kind == RECEIVE ? one->receive : NULL,
            .bytes = one->count * type_bytes(one->type),
        };
    }
    ncclResult_t status = links_exchange(comm, messages, count);
    free(messages);
    return status;
}
