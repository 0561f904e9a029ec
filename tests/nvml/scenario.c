/* The scenario file: reading it, looking keys up, faults, and counting calls. */
#include "sim.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

struct entry {
    char *key, *value;
};
struct counter {
    const char *function;
    unsigned long count;
};

static struct entry *entries;
static size_t entry_count, entry_room;
static struct counter counters[128];
static struct timespec loaded_at;

static const struct {
    const char *name;
    nvmlReturn_t code;
} errors[] = {
    {"UNINITIALIZED", 1},        {"INVALID_ARGUMENT", 2},
    {"NOT_SUPPORTED", 3},        {"NO_PERMISSION", 4},
    {"NOT_FOUND", 6},            {"DRIVER_NOT_LOADED", 9},
    {"TIMEOUT", 10},             {"FUNCTION_NOT_FOUND", 13},
    {"GPU_IS_LOST", 15},         {"RESET_REQUIRED", 16},
    {"OPERATING_SYSTEM", 17},    {"LIB_RM_VERSION_MISMATCH", 18},
    {"ARGUMENT_VERSION_MISMATCH", 25}, {"UNKNOWN", 999},
};

nvmlReturn_t error_named(const char *text) {
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
        if (strcmp(text, errors[i].name) == 0) return errors[i].code;
    return SUCCESS;
}

static int by_key(const void *a, const void *b) {
    return strcmp(((const struct entry *)a)->key, ((const struct entry *)b)->key);
}

static char *trimmed(char *text) {
    while (*text == ' ' || *text == '\t') text++;
    size_t length = strlen(text);
    while (length && strchr(" \t\n", text[length - 1])) text[--length] = '\0';
    return text;
}

static void add(const char *key, const char *value) {
    if (entry_count == entry_room) {
        entry_room = entry_room ? 2 * entry_room : 1024;
        entries = realloc(entries, entry_room * sizeof *entries);
        if (!entries) abort();
    }
    entries[entry_count].key = strdup(key);
    entries[entry_count++].value = strdup(value);
}

nvmlReturn_t scenario_load(void) {
    const char *path = getenv("NVML_SIM_SCENARIO");
    FILE *file = path ? fopen(path, "r") : NULL;
    if (!file) {
        fprintf(stderr, "nvml simulator: NVML_SIM_SCENARIO names no readable file\n");
        return UNKNOWN;
    }
    char line[4096];
    scenario_close();
    while (fgets(line, sizeof line, file)) {
        char *comment = strchr(line, '#');
        if (comment) *comment = '\0';
        char *separator = strchr(line, '=');
        if (!separator) continue;
        *separator = '\0';
        add(trimmed(line), trimmed(separator + 1));
    }
    fclose(file);
    qsort(entries, entry_count, sizeof *entries, by_key);
    clock_gettime(CLOCK_MONOTONIC, &loaded_at);
    return SUCCESS;
}

void scenario_close(void) {
    for (size_t i = 0; i < entry_count; i++) {
        free(entries[i].key);
        free(entries[i].value);
    }
    entry_count = 0;
}

const char *scenario_get(const char *prefix, const char *key) {
    char full[160];
    snprintf(full, sizeof full, "%s%s", prefix, key);
    struct entry wanted = {full, NULL};
    struct entry *found = bsearch(&wanted, entries, entry_count, sizeof *entries, by_key);
    return found ? found->value : NULL;
}

double scenario_age(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)(now.tv_sec - loaded_at.tv_sec) + (double)(now.tv_nsec - loaded_at.tv_nsec) / 1e9;
}

static nvmlReturn_t suffer(const char *fault) {
    if (strcmp(fault, "hang") == 0)
        for (;;) pause();
    if (strcmp(fault, "crash") == 0) *(volatile int *)1 = 0;
    if (strcmp(fault, "exit") == 0) _exit(3);
    return error_named(fault);
}

static void count(const char *function) {
    struct counter *counter = counters;
    while (counter->function && strcmp(counter->function, function) != 0) counter++;
    counter->function = function;
    counter->count++;
}

static void write_counts(void) {
    const char *path = getenv("NVML_SIM_CALLS");
    FILE *file = path ? fopen(path, "a") : NULL;
    if (!file) return;
    for (struct counter *counter = counters; counter->function; counter++)
        fprintf(file, "%s %lu\n", counter->function, counter->count);
    fclose(file);
    memset(counters, 0, sizeof counters);
}

nvmlReturn_t enter(const char *function, nvmlDevice_t device) {
    count(function);
    if (!entry_count && strcmp(function, "nvmlInitWithFlags") != 0) return UNINITIALIZED;
    if (strcmp(function, "nvmlShutdown") == 0) write_counts();
    char key[96];
    snprintf(key, sizeof key, "fault.%s", function);
    const char *fault = scenario_get("", key);
    if (!fault && device) fault = scenario_get(device->prefix, key);
    if (!fault && device) fault = scenario_get(device->prefix, "fault");
    return fault ? suffer(fault) : SUCCESS;
}

static nvmlReturn_t value_of(nvmlDevice_t device, const char *key, const char **value) {
    *value = scenario_get(device ? device->prefix : "", key);
    return *value ? error_named(*value) : NOT_SUPPORTED;
}

nvmlReturn_t answer_long(nvmlDevice_t device, const char *key, unsigned long long *out) {
    const char *value;
    nvmlReturn_t result = value_of(device, key, &value);
    if (result == SUCCESS) *out = strtoull(value, NULL, 0);
    return result;
}

nvmlReturn_t answer_unsigned(nvmlDevice_t device, const char *key, unsigned *out) {
    unsigned long long wide = 0;
    nvmlReturn_t result = answer_long(device, key, &wide);
    if (result == SUCCESS) *out = (unsigned)wide;
    return result;
}

nvmlReturn_t answer_text(nvmlDevice_t device, const char *key, char *out, unsigned size) {
    const char *value;
    nvmlReturn_t result = value_of(device, key, &value);
    if (result != SUCCESS) return result;
    if (strlen(value) >= size) return INSUFFICIENT_SIZE;
    memcpy(out, value, strlen(value) + 1);
    return SUCCESS;
}

nvmlReturn_t answer_mask(nvmlDevice_t device, const char *key, unsigned words, unsigned long *out) {
    const char *value;
    nvmlReturn_t result = value_of(device, key, &value);
    if (result != SUCCESS) return result;
    memset(out, 0, words * sizeof *out);
    while (*value) {
        char *end;
        unsigned long first = strtoul(value, &end, 10), last = first;
        if (*end == '-') last = strtoul(end + 1, &end, 10);
        for (unsigned long bit = first; bit <= last && bit < 64UL * words; bit++) out[bit / 64] |= 1UL << (bit % 64);
        value = *end == ',' ? end + 1 : end;
        if (*end && *end != ',') return UNKNOWN;
    }
    return SUCCESS;
}

nvmlReturn_t answer_pci(nvmlDevice_t device, const char *key, nvmlPciInfo_t *out) {
    const char *value;
    nvmlReturn_t result = value_of(device, key, &value);
    if (result != SUCCESS) return result;
    memset(out, 0, sizeof *out);
    unsigned function = 0;
    if (sscanf(value, "%x:%x:%x.%u", &out->domain, &out->bus, &out->device, &function) < 3) return UNKNOWN;
    snprintf(out->bus_id, sizeof out->bus_id, "%08X:%02X:%02X.%u", out->domain, out->bus & 0xff, out->device & 0xff,
             function & 7);
    snprintf(out->bus_id_legacy, sizeof out->bus_id_legacy, "%04X:%02X:%02X.0", out->domain & 0xffff, out->bus & 0xff,
             out->device & 0xff);
    return SUCCESS;
}
