/* Streams, events and copies: what CUDA gives to users of NCCL, for host memory. */
#include "shim.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct Task {
    void (*work)(void *);
    void *context;
    struct Task *next;
} Task;

struct Stream {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    Task *first, *last;
};

typedef struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int reached;
} Event;

typedef struct {
    void *target;
    const void *source;
    size_t bytes;
} Copy;

static void *run(void *argument) {
    Stream *stream = argument;
    for (;;) {
        pthread_mutex_lock(&stream->lock);
        while (!stream->first) {
            pthread_cond_wait(&stream->changed, &stream->lock);
        }
        Task *task = stream->first;
        stream->first = task->next;
        pthread_mutex_unlock(&stream->lock);
        task->work(task->context);
        free(task);
    }
    return NULL;
}

/* Streams live as long as the process. */
EXPORT void *shim_stream_create(void) {
    Stream *stream = calloc(1, sizeof *stream);
    pthread_t thread;
    if (!stream) {
        return NULL;
    }
    pthread_mutex_init(&stream->lock, NULL);
    pthread_cond_init(&stream->changed, NULL);
    if (pthread_create(&thread, NULL, run, stream) != 0) {
        free(stream);
        return NULL;
    }
    pthread_detach(thread);
    return stream;
}

static Stream *default_stream;
static pthread_once_t default_once = PTHREAD_ONCE_INIT;

static void make_default(void) { default_stream = shim_stream_create(); }

void stream_add(Stream *stream, void (*work)(void *), void *context) {
    Task *task = calloc(1, sizeof *task);
    if (!task) {
        abort();
    }
    pthread_once(&default_once, make_default);
    stream = stream ? stream : default_stream;
    *task = (Task){.work = work, .context = context};
    pthread_mutex_lock(&stream->lock);
    if (stream->first) {
        stream->last->next = task;
    } else {
        stream->first = task;
    }
    stream->last = task;
    pthread_cond_signal(&stream->changed);
    pthread_mutex_unlock(&stream->lock);
}

static void reach(void *context) {
    Event *event = context;
    pthread_mutex_lock(&event->lock);
    event->reached = 1;
    pthread_cond_broadcast(&event->changed);
    pthread_mutex_unlock(&event->lock);
}

/* Events live as long as the process. */
EXPORT void *shim_event_record(void *stream) {
    Event *event = calloc(1, sizeof *event);
    if (event) {
        pthread_mutex_init(&event->lock, NULL);
        pthread_cond_init(&event->changed, NULL);
        stream_add(stream, reach, event);
    }
    return event;
}

/* Tells whether a stream has come to an event, after at most so many nanoseconds. */
EXPORT int shim_event_query(void *context, long nanoseconds) {
    Event *event = context;
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += nanoseconds;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    pthread_mutex_lock(&event->lock);
    while (!event->reached && pthread_cond_timedwait(&event->changed, &event->lock, &until) == 0) {
    }
    int reached = event->reached;
    pthread_mutex_unlock(&event->lock);
    return reached;
}

static void copy(void *context) {
    Copy *what = context;
    memmove(what->target, what->source, what->bytes);
    free(what);
}

EXPORT int shim_copy(void *target, const void *source, size_t bytes, void *stream) {
    Copy *what = malloc(sizeof *what);
    if (!what) {
        return -1;
    }
    *what = (Copy){.target = target, .source = source, .bytes = bytes};
    stream_add(stream, copy, what);
    return 0;
}

static void linger(void *context) {
    for (long left = (long)(intptr_t)context; left > 0; left--) {
        nap();
    }
}

/* Keeps a stream busy, as a kernel does. */
EXPORT void shim_compute(long milliseconds, void *stream) { stream_add(stream, linger, (void *)(intptr_t)milliseconds); }
