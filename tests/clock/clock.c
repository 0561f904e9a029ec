/* A wall clock that can be set: adds the seconds in the file TEST_CLOCK_FILE (a double) to what the kernel tells. The
 * monotonic clocks stay as they are, as when an administrator or NTP sets the time. */
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define SHOWN __attribute__((visibility("default")))

static const volatile double *shift;

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("TEST_CLOCK_FILE");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0)
        return;
    void *map = mmap(NULL, sizeof(double), PROT_READ, MAP_SHARED, file, 0);
    close(file);
    if (map != MAP_FAILED)
        shift = map;
}

SHOWN int clock_gettime(clockid_t clock, struct timespec *now) {
    int status = (int)syscall(SYS_clock_gettime, clock, now);
    if (status == 0 && shift && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        now->tv_sec += (time_t)*shift;
    return status;
}

SHOWN time_t time(time_t *out) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (out)
        *out = now.tv_sec;
    return now.tv_sec;
}

SHOWN int gettimeofday(struct timeval *restrict out, void *restrict zone) {
    struct timespec now;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &now);
    out->tv_sec = now.tv_sec;
    out->tv_usec = now.tv_nsec / 1000;
    return 0;
}
