/* What NCCL's log says of connections, for those who ask for it as they ask NCCL: NCCL_DEBUG=INFO, NCCL_DEBUG_SUBSYS
 * with NET, NCCL_DEBUG_FILE; all read once. The form is that of NCCL 2.30, transport/net.cc. */
#include "shim.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

static FILE *file;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void open_log(void) {
    const char *level = getenv("NCCL_DEBUG"), *parts = getenv("NCCL_DEBUG_SUBSYS"), *path = getenv("NCCL_DEBUG_FILE");
    if (level && strcasecmp(level, "INFO") == 0 && parts && strstr(parts, "NET") && path) {
        file = fopen(path, "w");
        if (file) {
            setlinebuf(file);
        }
    }
}

void log_connection(ncclComm_t comm, int peer) {
    pthread_once(&once, open_log);
    const char *network = getenv("NCCL_SHIM_VIA");
    if (file && network) {
        fprintf(file, "host:%d:%d [%d] NCCL INFO Channel 00/0 : %d[%d] -> %d[%d] [send] via NET/%s\n", (int)getpid(),
                (int)getpid(), comm->device, comm->rank, comm->device, peer, comm->device, network);
    }
}
