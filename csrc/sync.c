/* Files brought to the device together.
 *
 * A device serves many flushes at once in little more than the time of one, and a file system commits what
 * several files have changed in one go; but fdatasync takes one file and blocks. So a few threads of our own
 * wait, which know nothing of Python, and the caller's thread is one of those who work: where no thread can be
 * had it does everything by itself. */
#define _GNU_SOURCE /* fdatasync, pthread_sigmask */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <unistd.h>

#include "oncelog.h"

enum { HELPERS_MAX = 15 };

/* Files of one call; lives on the stack of its caller, who leaves last. */
typedef struct batch {
    const int *files;
    int *errors;
    size_t count, taken, done;
    struct batch *next; /* of those with files that nobody has taken */
    pthread_cond_t all_done;
} batch;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t arrived = PTHREAD_COND_INITIALIZER;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static batch *first, **last = &first;
static size_t helpers, idle;

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

/* Under the mutex, which is given up meanwhile: one file of the oldest batch, or of this one. */
static void sync_next(batch *of) {
    size_t index = of->taken++;
    if (of->taken == of->count) {
        batch **link = &first;
        while (*link != of) link = &(*link)->next;
        *link = of->next;
        if (last == &of->next) last = link;
    }
    pthread_mutex_unlock(&mutex);
    int error = sync_file(of->files[index]);
    pthread_mutex_lock(&mutex);
    of->errors[index] = error;
    if (++of->done == of->count) pthread_cond_signal(&of->all_done);
}

static void *help(void *unused) {
    (void)unused;
    pthread_mutex_lock(&mutex);
    for (;;) {
        while (first) sync_next(first);
        idle++;
        pthread_cond_wait(&arrived, &mutex);
        idle--;
    }
    return NULL;
}

/* In a forked child nobody helps any more, and what the parent waits for is not its own. */
static void forget(void) {
    static const pthread_mutex_t free_mutex = PTHREAD_MUTEX_INITIALIZER;
    static const pthread_cond_t free_condition = PTHREAD_COND_INITIALIZER;
    mutex = free_mutex;
    arrived = free_condition;
    first = NULL;
    last = &first;
    helpers = idle = 0;
}

static void prepare(void) { pthread_atfork(NULL, NULL, forget); }

/* Under the mutex. Signals are for the threads of the program. */
static void hire(size_t wanted) {
    if (wanted > HELPERS_MAX) wanted = HELPERS_MAX;
    if (helpers >= wanted) return;
    pthread_attr_t attributes;
    if (pthread_attr_init(&attributes)) return;
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&attributes, 64 * 1024);
    pthread_t thread;
    while (helpers < wanted && !pthread_create(&thread, &attributes, help, NULL)) helpers++;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
}

void ol_sync_together(const int *files, int *errors, size_t count) {
    if (count == 1) {
        errors[0] = sync_file(files[0]);
        return;
    }
    if (!count) return;
    pthread_once(&once, prepare);
    batch ours = {.files = files, .errors = errors, .count = count};
    pthread_cond_init(&ours.all_done, NULL);
    pthread_mutex_lock(&mutex);
    *last = &ours;
    last = &ours.next;
    hire(count - 1);
    size_t calls = idle < count - 1 ? idle : count - 1;
    while (calls--) pthread_cond_signal(&arrived);
    while (ours.taken < count) sync_next(&ours);
    while (ours.done < count) pthread_cond_wait(&ours.all_done, &mutex);
    pthread_mutex_unlock(&mutex);
    pthread_cond_destroy(&ours.all_done);
}
