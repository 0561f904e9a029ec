/* Faults on demand, and what of the environment was there when the library started. */
#include "shim.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

extern char **environ;

static atomic_int operations;
static char **seen;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static Fault wanted(ncclResult_t *status, int *at) {
    static const char *const names[] = {
        [FAULT_CALL] = "call", [FAULT_ASYNC] = "async", [FAULT_HANG] = "hang",
        [FAULT_BLOCK] = "block", [FAULT_INIT] = "init", [FAULT_INIT_HANG] = "inithang",
    };
    const char *text = getenv("NCCL_SHIM_FAULT");
    char kind[16] = "";
    int number = ncclSystemError;
    *at = 1;
    if (!text || sscanf(text, "%15[a-z]:%d:%d", kind, &number, at) < 1) {
        return NO_FAULT;
    }
    *status = (ncclResult_t)number;
    for (int fault = FAULT_CALL; fault <= FAULT_INIT_HANG; fault++) {
        if (strcmp(names[fault], kind) == 0) {
            return (Fault)fault;
        }
    }
    return NO_FAULT;
}

Fault fault_of_operation(ncclResult_t *status) {
    int at, number = atomic_fetch_add(&operations, 1) + 1;
    Fault fault = wanted(status, &at);
    return number == at && fault < FAULT_INIT ? fault : NO_FAULT;
}

Fault fault_of_init(ncclResult_t *status) {
    int at;
    Fault fault = wanted(status, &at);
    return fault >= FAULT_INIT ? fault : NO_FAULT;
}

static void keep(void) {
    size_t count = 0;
    while (environ[count]) {
        count++;
    }
    seen = calloc(count + 1, sizeof *seen);
    for (size_t i = 0; seen && i < count; i++) {
        seen[i] = strdup(environ[i]);
    }
}

/* Counts operations from here on. */
EXPORT void shim_count_anew(void) { atomic_store(&operations, 0); }

void environment_seen(void) { pthread_once(&once, keep); }

/* Returns a variable as it was when the first communicator was made; NULL for none. */
EXPORT const char *shim_environment(const char *name) {
    size_t length = strlen(name);
    for (size_t i = 0; seen && seen[i]; i++) {
        if (strncmp(seen[i], name, length) == 0 && seen[i][length] == '=') {
            return seen[i] + length + 1;
        }
    }
    return NULL;
}
