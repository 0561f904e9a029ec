/* NVLinks, field values, and what one GPU is to another. */
#include "sim.h"

#include <stdio.h>

static nvmlReturn_t link_unsigned(nvmlDevice_t device, unsigned link, const char *name, unsigned *out) {
    char key[64];
    unsigned links = 0;
    nvmlReturn_t result = answer_unsigned(device, "links", &links);
    if (result != SUCCESS) return result;
    if (link >= links) return INVALID_ARGUMENT;
    snprintf(key, sizeof key, "link%u.%s", link, name);
    return answer_unsigned(device, key, out);
}

API nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t device, unsigned link, unsigned *out) {
    ENTER(device);
    return link_unsigned(device, link, "state", out);
}

API nvmlReturn_t nvmlDeviceGetNvLinkVersion(nvmlDevice_t device, unsigned link, unsigned *out) {
    ENTER(device);
    return link_unsigned(device, link, "version", out);
}

API nvmlReturn_t nvmlDeviceGetNvLinkCapability(nvmlDevice_t device, unsigned link, unsigned capability, unsigned *out) {
    ENTER(device);
    char name[16];
    snprintf(name, sizeof name, "capability%u", capability);
    return link_unsigned(device, link, name, out);
}

API nvmlReturn_t nvmlDeviceGetNvLinkRemoteDeviceType(nvmlDevice_t device, unsigned link, unsigned *out) {
    ENTER(device);
    return link_unsigned(device, link, "remote_type", out);
}

API nvmlReturn_t nvmlDeviceGetNvLinkErrorCounter(nvmlDevice_t device, unsigned link, unsigned counter,
                                                 unsigned long long *out) {
    ENTER(device);
    static const char *const names[] = {"replay", "recovery", "crc_flit", "crc_data"};
    if (counter >= sizeof names / sizeof *names) return INVALID_ARGUMENT;
    unsigned narrow = 0;
    nvmlReturn_t result = link_unsigned(device, link, names[counter], &narrow);
    *out = narrow;
    return result;
}

API nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo_v2(nvmlDevice_t device, unsigned link, nvmlPciInfo_t *out) {
    ENTER(device);
    char key[64];
    snprintf(key, sizeof key, "link%u.remote_pci", link);
    return answer_pci(device, key, out);
}

/* Fields with a link as their scope, and the key of the link that holds the answer. */
static const struct {
    unsigned id;
    const char *name;
} link_fields[] = {
    {146, "remote_link"},  {161, "replay"},        {162, "recovery"},     {163, "crc"},
    {164, "speed_mbps"},   {165, "state"},         {166, "version"},      {206, "malformed_packets"},
    {207, "overruns"},     {208, "receive_errors"}, {209, "remote_errors"}, {210, "general_errors"},
    {211, "integrity_errors"}, {212, "discards"},
};

static nvmlReturn_t field(nvmlDevice_t device, unsigned id, unsigned scope, unsigned *out) {
    unsigned newest = 0;
    char key[32];
    if (answer_unsigned(NULL, "newest_field", &newest) == SUCCESS && id > newest) return NOT_SUPPORTED;
    if (id == 91) return answer_unsigned(device, "links", out);
    if (id == 170) return answer_unsigned(device, "c2c.links", out);
    if (id == 171 || id == 172) {
        snprintf(key, sizeof key, "c2c.link%u.%s", scope, id == 171 ? "state" : "max_mbps");
        return answer_unsigned(device, key, out);
    }
    if (id >= 84 && id <= 89) return link_unsigned(device, id - 84, "speed_mbps", out);
    if (id >= 132 && id <= 137) return link_unsigned(device, id - 132 + 6, "speed_mbps", out);
    for (size_t i = 0; i < sizeof link_fields / sizeof *link_fields; i++)
        if (link_fields[i].id == id) return link_unsigned(device, scope, link_fields[i].name, out);
    return INVALID_ARGUMENT;
}

API nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, nvmlFieldValue_t *values) {
    ENTER(device);
    for (int i = 0; i < count; i++) {
        values[i].value.ull = 0;
        values[i].value_type = 1; /* unsigned int */
        values[i].result = field(device, values[i].field_id, values[i].scope_id, &values[i].value.u);
    }
    return SUCCESS;
}

static nvmlReturn_t peer(nvmlDevice_t device, nvmlDevice_t other, const char *name, unsigned *out) {
    char key[48];
    if (!other || device == other) return INVALID_ARGUMENT;
    snprintf(key, sizeof key, "peer%d.%s", other->gpu, name);
    return answer_unsigned(device, key, out);
}

API nvmlReturn_t nvmlDeviceGetP2PStatus(nvmlDevice_t device, nvmlDevice_t other, unsigned index, unsigned *out) {
    ENTER(device);
    static const char *const names[] = {"read", "write", "nvlink", "atomics"};
    if (index >= sizeof names / sizeof *names) return INVALID_ARGUMENT;
    return peer(device, other, names[index], out);
}

API nvmlReturn_t nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t device, nvmlDevice_t other, unsigned *out) {
    ENTER(device);
    return peer(device, other, "topology", out);
}
