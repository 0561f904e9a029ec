/* Starting, stopping, versions, and handles. */
#include "sim.h"

#include <stdio.h>

static struct device whole[MAX_GPUS], parts[MAX_GPUS][MAX_MIG];

struct device *device_whole(unsigned gpu) {
    unsigned gpus = 0;
    if (answer_unsigned(NULL, "count", &gpus) != SUCCESS || gpu >= gpus || gpu >= MAX_GPUS) return NULL;
    struct device *device = &whole[gpu];
    snprintf(device->prefix, sizeof device->prefix, "gpu%u.", gpu);
    device->gpu = (int)gpu;
    device->mig = -1;
    return device;
}

struct device *device_mig(int gpu, unsigned index) {
    if (index >= MAX_MIG) return NULL;
    struct device *device = &parts[gpu][index];
    snprintf(device->prefix, sizeof device->prefix, "gpu%d.mig%u.", gpu, index);
    device->gpu = gpu;
    device->mig = (int)index;
    return device;
}

API nvmlReturn_t nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    nvmlReturn_t result = scenario_load();
    if (result != SUCCESS) return result;
    ENTER(NULL);
    const char *noise = scenario_get("", "noise");
    if (noise) puts(noise);
    return SUCCESS;
}

API nvmlReturn_t nvmlShutdown(void) {
    ENTER(NULL);
    scenario_close();
    return SUCCESS;
}

API const char *nvmlErrorString(nvmlReturn_t result) {
    (void)result;
    return "error of the simulated NVML";
}

API nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned size) {
    ENTER(NULL);
    return answer_text(NULL, "driver", version, size);
}

API nvmlReturn_t nvmlSystemGetNVMLVersion(char *version, unsigned size) {
    ENTER(NULL);
    return answer_text(NULL, "nvml", version, size);
}

API nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version) {
    ENTER(NULL);
    return answer_unsigned(NULL, "cuda", (unsigned *)version);
}

API nvmlReturn_t nvmlDeviceGetCount_v2(unsigned *out) {
    ENTER(NULL);
    return answer_unsigned(NULL, "count", out);
}

API nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t *out) {
    struct device *device = device_whole(index);
    ENTER(device);
    *out = device;
    return device ? SUCCESS : INVALID_ARGUMENT;
}

API nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned index, nvmlDevice_t *out) {
    ENTER(device);
    struct device *part = device->mig < 0 ? device_mig(device->gpu, index) : NULL;
    if (!part) return INVALID_ARGUMENT;
    *out = part;
    return scenario_get(part->prefix, "uuid") ? SUCCESS : NOT_FOUND;
}
