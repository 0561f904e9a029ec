/* Event sets. "eventN = SECONDS GPU TYPE DATA": at that age of the scenario, one event of that GPU, once. */
#include "sim.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

struct event_set {
    unsigned long long types[MAX_GPUS];
    unsigned next;
};
struct event_data {
    nvmlDevice_t device;
    unsigned long long type, data;
    unsigned gpu_instance, compute_instance;
};

API nvmlReturn_t nvmlEventSetCreate(struct event_set **out) {
    ENTER(NULL);
    *out = calloc(1, sizeof **out);
    return *out ? SUCCESS : UNKNOWN;
}

API nvmlReturn_t nvmlEventSetFree(struct event_set *set) {
    ENTER(NULL);
    free(set);
    return SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetSupportedEventTypes(nvmlDevice_t device, unsigned long long *out) {
    ENTER(device);
    return answer_long(device, "event_types", out);
}

API nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t device, unsigned long long types, struct event_set *set) {
    ENTER(device);
    set->types[device->gpu] = types;
    return SUCCESS;
}

static void sleep_until(double age) {
    double seconds = age - scenario_age();
    struct timespec pause = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};
    if (seconds > 0) nanosleep(&pause, NULL);
}

/* Answers SUCCESS with the next event whose time comes within the wait and for which its GPU is registered. */
API nvmlReturn_t nvmlEventSetWait_v2(struct event_set *set, struct event_data *out, unsigned milliseconds) {
    ENTER(NULL);
    double end = scenario_age() + milliseconds / 1e3, due;
    unsigned gpu;
    char key[24];
    for (;; set->next++) {
        snprintf(key, sizeof key, "event%u", set->next);
        const char *line = scenario_get("", key);
        if (!line || sscanf(line, "%lf %u %llu %llu", &due, &gpu, &out->type, &out->data) != 4 || due > end) {
            sleep_until(end);
            return TIMEOUT;
        }
        if (gpu < MAX_GPUS && set->types[gpu] & out->type) break;
    }
    sleep_until(due);
    set->next++;
    out->device = device_whole(gpu);
    out->gpu_instance = out->compute_instance = 0xffffffff;
    return SUCCESS;
}
