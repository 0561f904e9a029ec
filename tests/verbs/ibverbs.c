/*
 * Stands in for a part of libibverbs.so.1, to be preloaded: devices come from FABRICD_TEST_VERBS instead of the kernel.
 *
 *     name[,ports=N][,mtu=ENUM][,dmabuf=ERRNO][,open=ERRNO][,query=ERRNO][,hang=1];name...
 *
 * Only what pyverbs calls for a list of devices, a query and a registration is here. Layouts are libibverbs' stable ABI
 * (infiniband/verbs.h); of large structures only the beginning is declared.
 */
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))
#define MAX_DEVICES 16

struct ibv_device {
    void *ops[2];
    int node_type;
    int transport_type;
    char name[64];
    char dev_name[64];
    char dev_path[256];
    char ibdev_path[256];
    /* The scenario, behind what libibverbs declares. */
    int ports, mtu, dmabuf, open_error, query_error, hang;
};

struct ibv_context {
    struct ibv_device *device;
    char rest[4096]; /* operations, descriptors, a mutex; all zero: no extended operations */
};

struct ibv_pd {
    struct ibv_context *context;
    uint32_t handle;
};

struct ibv_device_attr {
    char fw_ver[64];
    uint64_t node_guid, sys_image_guid, max_mr_size, page_size_cap;
    uint32_t vendor_id, vendor_part_id, hw_ver;
    int max_qp, max_qp_wr;
    unsigned int device_cap_flags;
    int from_max_sge_to_max_srq_sge[26];
    uint16_t max_pkeys;
    uint8_t local_ca_ack_delay, phys_port_cnt;
};

struct ibv_port_attr {
    int state, max_mtu, active_mtu;
};

static struct ibv_device devices[MAX_DEVICES];
static int device_count;

static void set(struct ibv_device *device, const char *key, int value)
{
    if (strcmp(key, "ports") == 0)
        device->ports = value;
    else if (strcmp(key, "mtu") == 0)
        device->mtu = value;
    else if (strcmp(key, "dmabuf") == 0)
        device->dmabuf = value;
    else if (strcmp(key, "open") == 0)
        device->open_error = value;
    else if (strcmp(key, "query") == 0)
        device->query_error = value;
    else if (strcmp(key, "hang") == 0)
        device->hang = value;
    else
        abort();
}

static void read_scenario(void)
{
    char *text = strdup(getenv("FABRICD_TEST_VERBS") ? getenv("FABRICD_TEST_VERBS") : "");
    char *rest = text, *entry, *pair;

    for (device_count = 0; (entry = strsep(&rest, ";")) && *entry && device_count < MAX_DEVICES; device_count++) {
        struct ibv_device *device = &devices[device_count];
        memset(device, 0, sizeof *device);
        strncpy(device->name, strsep(&entry, ","), sizeof device->name - 1);
        device->node_type = 1;
        device->ports = 1;
        device->mtu = 5;
        while ((pair = strsep(&entry, ","))) {
            char *key = strsep(&pair, "=");
            set(device, key, atoi(pair));
        }
    }
    free(text);
}

EXPORT struct ibv_device **ibv_get_device_list(int *count)
{
    struct ibv_device **list = calloc(MAX_DEVICES + 1, sizeof *list);

    if (getenv("FABRICD_TEST_VERBS_ERROR")) {
        errno = atoi(getenv("FABRICD_TEST_VERBS_ERROR"));
        free(list);
        return NULL;
    }
    read_scenario();
    for (int index = 0; index < device_count; index++)
        list[index] = &devices[index];
    if (count)
        *count = device_count;
    return list;
}

EXPORT void ibv_free_device_list(struct ibv_device **list)
{
    free(list);
}

EXPORT const char *ibv_get_device_name(struct ibv_device *device)
{
    return device->name;
}

EXPORT uint64_t ibv_get_device_guid(struct ibv_device *device)
{
    (void)device;
    return 0;
}

EXPORT int ibv_get_device_index(struct ibv_device *device)
{
    return (int)(device - devices);
}

EXPORT struct ibv_context *ibv_open_device(struct ibv_device *device)
{
    struct ibv_context *context;

    while (device->hang)
        pause();
    if (device->open_error) {
        errno = device->open_error;
        return NULL;
    }
    context = calloc(1, sizeof *context);
    context->device = device;
    return context;
}

EXPORT int ibv_close_device(struct ibv_context *context)
{
    free(context);
    return 0;
}

EXPORT int ibv_query_device(struct ibv_context *context, struct ibv_device_attr *attributes)
{
    if (context->device->query_error)
        return context->device->query_error;
    attributes->max_mr_size = UINT64_MAX;
    attributes->max_qp = 131072;
    attributes->phys_port_cnt = (uint8_t)context->device->ports;
    return 0;
}

EXPORT int ibv_query_port(struct ibv_context *context, uint8_t port, struct ibv_port_attr *attributes)
{
    (void)port;
    attributes->state = 4;
    attributes->max_mtu = 5;
    attributes->active_mtu = context->device->mtu;
    return 0;
}

EXPORT struct ibv_pd *ibv_alloc_pd(struct ibv_context *context)
{
    struct ibv_pd *domain = calloc(1, sizeof *domain);

    domain->context = context;
    return domain;
}

EXPORT int ibv_dealloc_pd(struct ibv_pd *domain)
{
    free(domain);
    return 0;
}

EXPORT void *ibv_reg_dmabuf_mr(struct ibv_pd *domain, uint64_t offset, size_t length, uint64_t iova, int fd, int access)
{
    (void)offset, (void)length, (void)iova, (void)access;
    if (fd != -1)
        abort();
    errno = domain->context->device->dmabuf;
    return NULL;
}
