/* Files brought to the device together.
 *
 * A device serves many flushes at once in little more than the time of one, and a file system commits what
 * several files have changed in one go; but fdatasync takes one file and blocks. So the kernel is asked for all
 * of them in one call, and its own workers wait: half as much work for the machine as threads of ours, and
 * nothing that a fork would lose. Where the kernel does not take a file (no such call, no room for another
 * request, a file system that cannot), the caller syncs it by itself. */
#define _GNU_SOURCE /* fdatasync, sync_file_range, syscall */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <string.h>
#include <unistd.h>

#include "oncelog.h"

static int sync_file(int file) {
    int failed;
    do
#ifdef __APPLE__
        failed = fsync(file);
#else
        failed = fdatasync(file);
#endif
    while (failed && errno == EINTR);
    return failed ? errno : 0;
}

#ifdef __linux__
#include <linux/aio_abi.h>
#include <sys/syscall.h>

enum {
    REQUESTS_MAX = 32, /* of one call to the kernel */
    QUEUES_MAX = 8,    /* callers at a time; more of them sync by themselves */
};

/* Queues of requests, of which each has one caller at a time. Making one takes as long as a sync, so they stay. */
static struct {
    aio_context_t context;
    bool is_made, is_taken;
} queues[QUEUES_MAX];
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static bool is_refused; /* the kernel gives us none */

/* A forked child has none of its parent's queues. */
static void forget(void) {
    static const pthread_mutex_t free_mutex = PTHREAD_MUTEX_INITIALIZER;
    mutex = free_mutex;
    memset(queues, 0, sizeof queues);
    is_refused = false;
}

static void prepare(void) { pthread_atfork(NULL, NULL, forget); }

static int take_queue(void) {
    int found = -1;
    pthread_once(&once, prepare);
    pthread_mutex_lock(&mutex);
    for (int i = 0; i < QUEUES_MAX && found < 0 && !is_refused; i++) {
        if (queues[i].is_taken) continue;
        if (!queues[i].is_made) {
            is_refused = syscall(SYS_io_setup, REQUESTS_MAX, &queues[i].context) != 0;
            queues[i].is_made = !is_refused;
        }
        if (queues[i].is_made) queues[i].is_taken = true, found = i;
    }
    pthread_mutex_unlock(&mutex);
    return found;
}

static void give_queue(int queue) {
    pthread_mutex_lock(&mutex);
    queues[queue].is_taken = false;
    pthread_mutex_unlock(&mutex);
}

/* Starts to write what a file has; 0, or what the device says about it, which it may say only once. Where the kernel
 * cannot do so, nothing is lost: FDSYNC writes as well. */
static int start_writing(int file) {
    if (sync_file_range(file, 0, 0, SYNC_FILE_RANGE_WRITE) == 0) return 0;
    return errno == EIO || errno == ENOSPC || errno == EDQUOT ? errno : 0;
}

/* At most REQUESTS_MAX files. False where the kernel does not say how the requests end: they may end at any time. */
static bool sync_some(aio_context_t context, const int *files, int *errors, long count) {
    struct iocb requests[REQUESTS_MAX], *order[REQUESTS_MAX];
    struct io_event done[REQUESTS_MAX];
    int started[REQUESTS_MAX];
    long sent = 0, pending = 0;
    memset(requests, 0, sizeof requests);
    for (long i = 0; i < count; i++) {
        requests[i].aio_data = (uint64_t)i;
        requests[i].aio_fildes = (uint32_t)files[i];
        requests[i].aio_lio_opcode = IOCB_CMD_FDSYNC;
        order[i] = requests + i;
    }
    /* All pages are on their way before the first is waited for, so that the device gets the writes in a row and the
     * flushes together: a quarter less time. */
    for (long i = 0; i < count; i++) started[i] = start_writing(files[i]);
    while (sent < count) {
        long taken = syscall(SYS_io_submit, context, count - sent, order + sent);
        if (taken > 0) {
            /* Until the kernel says otherwise: whoever is not answered must not believe in anything. */
            for (; taken; taken--, pending++) errors[sent++] = EIO;
        } else { /* not this one; those behind it perhaps */
            errors[sent] = sync_file(files[sent]);
            sent++;
        }
    }
    while (pending) {
        long found = syscall(SYS_io_getevents, context, pending, pending, done, NULL);
        if (found < 0 && errno != EINTR) return false;
        for (long i = 0; i < found; i++) errors[done[i].data] = (int)-done[i].res;
        if (found > 0) pending -= found;
    }
    for (long i = 0; i < count; i++)
        if (!errors[i]) errors[i] = started[i];
    return true;
}

void ol_sync_together(const int *files, int *errors, size_t count) {
    int queue = count > 1 ? take_queue() : -1;
    if (queue < 0) {
        for (size_t i = 0; i < count; i++) errors[i] = sync_file(files[i]);
        return;
    }
    bool is_sound = true;
    for (size_t at = 0; at < count; at += REQUESTS_MAX) {
        size_t left = count - at;
        long some = (long)(left < REQUESTS_MAX ? left : REQUESTS_MAX);
        if (is_sound)
            is_sound = sync_some(queues[queue].context, files + at, errors + at, some);
        else
            for (long i = 0; i < some; i++)
                errors[at + (size_t)i] = sync_file(files[at + (size_t)i]);
    }
    if (is_sound)
        give_queue(queue); /* else nobody may have it: late answers would be taken for others' */
}
#else
void ol_sync_together(const int *files, int *errors, size_t count) {
    for (size_t i = 0; i < count; i++) errors[i] = sync_file(files[i]);
}
#endif
