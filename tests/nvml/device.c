/* Facts of one GPU. */
#include "sim.h"

#include <stdlib.h>
#include <string.h>

/* A function that answers one unsigned number from one key. */
#define UNSIGNED(function, key)                                     \
    API nvmlReturn_t function(nvmlDevice_t device, unsigned *out) { \
        ENTER(device);                                              \
        return answer_unsigned(device, key, out);                   \
    }

UNSIGNED(nvmlDeviceGetPersistenceMode, "persistence")
UNSIGNED(nvmlDeviceGetCurrPcieLinkGeneration, "pcie.generation")
UNSIGNED(nvmlDeviceGetMaxPcieLinkGeneration, "pcie.max_generation")
UNSIGNED(nvmlDeviceGetCurrPcieLinkWidth, "pcie.width")
UNSIGNED(nvmlDeviceGetMaxPcieLinkWidth, "pcie.max_width")
UNSIGNED(nvmlDeviceGetNumaNodeId, "memory_numa_node")
UNSIGNED(nvmlDeviceGetMaxMigDeviceCount, "mig.max")
UNSIGNED(nvmlDeviceGetGpuInstanceId, "gpu_instance")
UNSIGNED(nvmlDeviceGetComputeInstanceId, "compute_instance")

API nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *out, unsigned size) {
    ENTER(device);
    return answer_text(device, "uuid", out, size);
}

API nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *out, unsigned size) {
    ENTER(device);
    return answer_text(device, "name", out, size);
}

API nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *out) {
    ENTER(device);
    return answer_pci(device, "pci", out);
}

API nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor) {
    ENTER(device);
    char text[16];
    nvmlReturn_t result = answer_text(device, "compute_capability", text, sizeof text);
    if (result != SUCCESS) return result;
    char *dot;
    *major = (int)strtol(text, &dot, 10);
    *minor = *dot == '.' ? (int)strtol(dot + 1, NULL, 10) : 0;
    return SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, unsigned long long memory[3]) {
    ENTER(device);
    memset(memory, 0, 3 * sizeof *memory);
    return answer_long(device, "memory_bytes", &memory[0]);
}

API nvmlReturn_t nvmlDeviceGetBAR1MemoryInfo(nvmlDevice_t device, unsigned long long memory[3]) {
    ENTER(device);
    memset(memory, 0, 3 * sizeof *memory);
    return answer_long(device, "bar1_bytes", &memory[0]);
}

API nvmlReturn_t nvmlDeviceGetCpuAffinity(nvmlDevice_t device, unsigned words, unsigned long *out) {
    ENTER(device);
    return answer_mask(device, "cpus", words, out);
}

API nvmlReturn_t nvmlDeviceGetMemoryAffinity(nvmlDevice_t device, unsigned words, unsigned long *out, unsigned scope) {
    ENTER(device);
    if (scope > 1) return INVALID_ARGUMENT;
    return answer_mask(device, "numa", words, out);
}

API nvmlReturn_t nvmlDeviceGetEccMode(nvmlDevice_t device, unsigned *current, unsigned *pending) {
    ENTER(device);
    *pending = 0;
    return answer_unsigned(device, "ecc.mode", current);
}

API nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, unsigned type, unsigned counter,
                                             unsigned long long *out) {
    ENTER(device);
    if (type > 1 || counter > 1) return INVALID_ARGUMENT;
    return answer_long(device, type ? "ecc.uncorrected" : "ecc.corrected", out);
}

API nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned *current, unsigned *pending) {
    ENTER(device);
    *pending = 0;
    return answer_unsigned(device, "mig.mode", current);
}

/* nvmlDeviceAttributes_t: eight counts, then the memory of a MIG device in MiB. */
API nvmlReturn_t nvmlDeviceGetAttributes_v2(nvmlDevice_t device, unsigned *out) {
    ENTER(device);
    memset(out, 0, 8 * sizeof *out);
    return answer_long(device, "memory_mib", (unsigned long long *)(void *)(out + 8));
}

/* Fabric registration. Version 1 has no version number in front; 2 adds the health mask, 3 the health summary. */
static nvmlReturn_t fabric(nvmlDevice_t device, unsigned char *uuid, unsigned char *status_clique_state) {
    char text[40];
    nvmlReturn_t result = answer_text(device, "fabric.cluster", text, sizeof text);
    if (result != SUCCESS) return result;
    const char *digit = text;
    for (int i = 0; i < 16; i++) {
        while (*digit == '-') digit++;
        char pair[3] = {digit[0], digit[0] ? digit[1] : '\0', '\0'};
        uuid[i] = (unsigned char)strtoul(pair, NULL, 16);
        digit += strlen(pair);
    }
    unsigned values[3] = {0, 0, 0};
    answer_unsigned(device, "fabric.status", &values[0]);
    answer_unsigned(device, "fabric.clique", &values[1]);
    answer_unsigned(device, "fabric.state", &values[2]);
    memcpy(status_clique_state, values, 2 * sizeof *values);
    status_clique_state[8] = (unsigned char)values[2];
    return SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetGpuFabricInfo(nvmlDevice_t device, unsigned char *out) {
    ENTER(device);
    memset(out + 24, 0, 4);
    return fabric(device, out, out + 16);
}

API nvmlReturn_t nvmlDeviceGetGpuFabricInfoV(nvmlDevice_t device, unsigned char *out) {
    ENTER(device);
    unsigned version, newest = 3;
    memcpy(&version, out, sizeof version);
    answer_unsigned(NULL, "fabric_version", &newest);
    if (version >> 24 < 2 || version >> 24 > newest) return ARGUMENT_VERSION_MISMATCH;
    memset(out + 28, 0, 4);
    nvmlReturn_t result = fabric(device, out + 4, out + 20);
    if (result != SUCCESS) return result;
    unsigned mask = 0, summary = 0;
    answer_unsigned(device, "fabric.health_mask", &mask);
    memcpy(out + 32, &mask, sizeof mask);
    if (version >> 24 >= 3 && answer_unsigned(device, "fabric.health_summary", &summary) == SUCCESS)
        out[36] = (unsigned char)summary;
    return SUCCESS;
}
