/* A libnccl.so.2 that moves host memory between processes, by TCP on the interface that NCCL_SOCKET_IFNAME names.
 *
 * CuPy's real binding runs on it, so counts, dtypes, layouts, group calls, order and what happens on failure are those of
 * the real interface. It says nothing about speed. Where NCCL would hang or return garbage because the ranks' calls do
 * not fit together, this library reports ncclInvalidUsage.
 *
 * Results and their numbers, types and operators: NCCL 2.30, nccl.h.
 *
 * What CUDA is to NCCL, the shim_* functions are to this library: streams that work in order in the background, events
 * that tell how far they are, and copies. Stream 0 exists always.
 *
 * Environment:
 *   NCCL_SHIM_FAULT  KIND[:STATUS[:N]]: at this process's N-th operation (1 by default)
 *                      call   the call returns STATUS
 *                      async  the operation never ends, and ncclCommGetAsyncError says STATUS
 *                      hang   the operation never ends
 *                      block  the call does not return before the communicator is aborted
 *                    or, when the communicator is made,
 *                      init   that call returns STATUS
 *                      inithang  that call does not return
 *   NCCL_SHIM_VIA    what its log says that connections go by, e.g. "IB/0/GDRDMA"; without it they are not in the log
 */
#ifndef NCCL_SHIM_H
#define NCCL_SHIM_H

#include <netinet/in.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#define EXPORT __attribute__((visibility("default")))

typedef enum {
    ncclSuccess,
    ncclUnhandledCudaError,
    ncclSystemError,
    ncclInternalError,
    ncclInvalidArgument,
    ncclInvalidUsage,
    ncclRemoteError,
    ncclInProgress,
    ncclTimeout,
    ncclNumResults
} ncclResult_t;

typedef enum { ncclSum, ncclProd, ncclMax, ncclMin, ncclAvg, ncclNumOps } ncclRedOp_t;

typedef enum {
    ncclInt8,
    ncclUint8,
    ncclInt32,
    ncclUint32,
    ncclInt64,
    ncclUint64,
    ncclFloat16,
    ncclFloat32,
    ncclFloat64,
    ncclBfloat16,
    ncclNumTypes
} ncclDataType_t;

typedef struct {
    char internal[128];
} ncclUniqueId;

#define MAX_RANKS 64
typedef struct sockaddr_in Address;

typedef struct ncclComm {
    int rank, size, device;
    int links[MAX_RANKS]; /* sockets to the other ranks */
    atomic_int aborted;
    atomic_int async_error;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    unsigned long issued, done; /* operations run in the order in which they were issued */
} *ncclComm_t;

/* One message of an exchange; what both ends say of it must agree. */
typedef struct {
    int peer;
    int kind;
    const char *out; /* sent from here, or NULL */
    char *in;        /* received into, or NULL */
    size_t bytes;
} Message;

/* link.c: sockets between the ranks. */
/* Makes an id by which ranks meet, and waits for them in the background. */
ncclResult_t links_invite(ncclUniqueId *id);
/* Tells one's own address, and learns those of all ranks: MAX_RANKS places. */
ncclResult_t links_meet(const ncclUniqueId *id, int rank, int size, const Address *own, Address *table);
/* Returns a socket that others may connect to, and its address; -1 for none. */
int links_listen(Address *address);
ncclResult_t links_open(ncclComm_t comm, int door, const Address *table);
void links_close(ncclComm_t comm);
/* Runs all messages at once; messages of one pair are in order. */
ncclResult_t links_exchange(ncclComm_t comm, const Message *messages, size_t count);

/* reduce.c */
size_t type_bytes(ncclDataType_t type); /* 0: no such type here */
/* target = target op source; for ncclAvg both were scaled before. */
void reduce_into(void *target, const void *source, size_t count, ncclDataType_t type, ncclRedOp_t op);
/* What ncclAvg does to floats before they are summed, and to integers afterwards. */
void average_before(void *target, size_t count, ncclDataType_t type, int ranks);
void average_after(void *target, size_t count, ncclDataType_t type, int ranks);

/* stream.c */
typedef struct Stream Stream;
/* Runs work(context) behind all that the stream was given before. */
void stream_add(Stream *stream, void (*work)(void *), void *context);

/* collective.c: what an operation does when its turn comes. */
typedef enum { ALL_REDUCE = 1, REDUCE, BROADCAST, REDUCE_SCATTER, ALL_GATHER, SEND, RECEIVE, SPLIT } Kind;

typedef struct {
    Kind kind;
    const void *send;
    void *receive;
    size_t count;
    ncclDataType_t type;
    ncclRedOp_t op;
    int root; /* or peer */
} Operation;

ncclResult_t run_collective(ncclComm_t comm, const Operation *operation);
ncclResult_t run_messages(ncclComm_t comm, const Operation *operations, size_t count);

/* fault.c */
typedef enum { NO_FAULT, FAULT_CALL, FAULT_ASYNC, FAULT_HANG, FAULT_BLOCK, FAULT_INIT, FAULT_INIT_HANG } Fault;
Fault fault_of_operation(ncclResult_t *status); /* counts */
Fault fault_of_init(ncclResult_t *status);
void environment_seen(void); /* keeps what NCCL would read when it starts */

/* log.c */
void log_connection(ncclComm_t comm, int peer);

void nap(void); /* a millisecond */

#endif
