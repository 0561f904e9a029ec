/* A stand-in for NVIDIA's libnvidia-ml.so.1 that answers from a scenario file.
 *
 * The real Python binding (nvidia-ml-py) loads it by name, so that every line of the probe runs: types, structure
 * versions, unsupported fields, symbols that an older driver lacks, lost GPUs, crashes and hangs.
 * Layouts follow NVIDIA's published NVML API reference; only what the probe calls is here.
 *
 * The scenario is the file named by NVML_SIM_SCENARIO, read at each nvmlInit: lines "key = value", '#' begins a
 * comment. A key that is absent answers NOT_SUPPORTED; a value that is the name of an NVML error answers that error.
 * "fault.FUNCTION", "gpuN.fault.FUNCTION" and "gpuN.fault" (every function on that GPU) hold the name of an error,
 * or "hang", "crash" (SIGSEGV), "exit". "noise" is printed to standard output. NVML_SIM_CALLS names a file to which nvmlShutdown appends the calls counted.
 */
#ifndef NVML_SIM_H
#define NVML_SIM_H

#include <stddef.h>
#include <stdint.h>

typedef int nvmlReturn_t;
enum {
    SUCCESS = 0,
    UNINITIALIZED = 1,
    INVALID_ARGUMENT = 2,
    NOT_SUPPORTED = 3,
    NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7,
    TIMEOUT = 10,
    ARGUMENT_VERSION_MISMATCH = 25,
    UNKNOWN = 999,
};

#define MAX_GPUS 32
#define MAX_MIG 8
#define MAX_LINKS 36

/* What a handle points to. */
struct device {
    char prefix[24]; /* "gpu3." or "gpu3.mig1." */
    int gpu;
    int mig; /* -1 for a whole GPU */
};
typedef struct device *nvmlDevice_t;

typedef struct {
    char bus_id_legacy[16];
    unsigned domain, bus, device, pci_device_id, pci_subsystem_id;
    char bus_id[32];
} nvmlPciInfo_t;

typedef struct {
    uint32_t field_id, scope_id;
    int64_t timestamp, latency_usec;
    uint32_t value_type;
    nvmlReturn_t result;
    union {
        double d;
        unsigned u;
        unsigned long long ull;
    } value;
} nvmlFieldValue_t;

/* Scenario (scenario.c). */
nvmlReturn_t scenario_load(void);
void scenario_close(void);
const char *scenario_get(const char *prefix, const char *key); /* NULL: no such key */
double scenario_age(void);                                     /* seconds since the scenario was loaded */

/* Counts the call, then answers SUCCESS, a fault, or UNINITIALIZED. The device may be NULL: a system function. */
nvmlReturn_t enter(const char *function, nvmlDevice_t device);
nvmlReturn_t error_named(const char *text); /* SUCCESS when the text names no error */

/* Answers from one key of the device (or of the system, with NULL). */
nvmlReturn_t answer_unsigned(nvmlDevice_t device, const char *key, unsigned *out);
nvmlReturn_t answer_long(nvmlDevice_t device, const char *key, unsigned long long *out);
nvmlReturn_t answer_text(nvmlDevice_t device, const char *key, char *out, unsigned size);
nvmlReturn_t answer_mask(nvmlDevice_t device, const char *key, unsigned words, unsigned long *out); /* "0-3,8" */
nvmlReturn_t answer_pci(nvmlDevice_t device, const char *key, nvmlPciInfo_t *out);

struct device *device_whole(unsigned gpu);          /* NULL beyond the count */
struct device *device_mig(int gpu, unsigned index); /* NULL beyond MAX_MIG */

#define API __attribute__((visibility("default")))
#define ENTER(device)                                        \
    do {                                                     \
        nvmlReturn_t fault_ = enter(__func__, device);       \
        if (fault_ != SUCCESS) return fault_;                \
    } while (0)

#endif
