/* What the benchmarks of C share: memory, a clock, turns, and the words of the command line.
 *
 * Every contestant is a function of its own, so that its instructions can be counted where the machine is
 * noisy (benches/counting.py does):
 *   valgrind --tool=callgrind --toggle-collect=NAME bench_X --only NAME --rounds 20
 */
#ifndef ONCELOG_BENCH_CONTEST_H
#define ONCELOG_BENCH_CONTEST_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif

#define CONTESTANT static __attribute__((noinline)) void

typedef struct contestant {
    const char *name;
    void (*run)(void);
    int64_t work; /* records, batches or lookups of one run */
    int floor;    /* index of what it is measured against, -1: nothing */
    double best;
} contestant;

typedef struct contest {
    const char *only; /* NULL: all */
    int64_t rounds;
} contest;

static void fail(const char *what) {
    fprintf(stderr, "%s\n", what);
    exit(1);
}

static void *room(size_t size) {
    void *data = aligned_alloc(4096, (size + 4095) / 4096 * 4096);
    if (!data) fail("out of memory");
    memset(data, 0xff, size); /* touched, and every validity bit set */
    return data;
}

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* Takes the option at words[*at], if it is one that every benchmark has. */
static bool contest_option(contest *made, int count, char **words, int *at) {
    if (*at + 1 >= count) return false;
    if (strcmp(words[*at], "--only") == 0)
        made->only = words[++*at];
    else if (strcmp(words[*at], "--rounds") == 0)
        made->rounds = atoll(words[++*at]);
    else
        return false;
    return true;
}

/* Lets them take turns, and prints the best of each; `bytes` is what one run handles, 0: not told. */
static void contest_run(const contest *made, contestant *all, int count, int64_t bytes) {
#ifdef __GLIBC__
    /* Freed memory stays with the process, as in one that lives: else every call of ours would fault
     * its pages in anew, and the time would be the kernel's. */
    mallopt(M_MMAP_THRESHOLD, 1 << 28);
    mallopt(M_TRIM_THRESHOLD, 1 << 28);
#endif
    for (int i = 0; i < count; i++) all[i].best = 1e9;
    for (int64_t round = 0; round < made->rounds; round++)
        for (int i = 0; i < count; i++) {
            contestant *one = all + i;
            if (made->only && strcmp(made->only, one->name) != 0) continue;
            double start = seconds();
            one->run();
            double taken = seconds() - start;
            if (taken < one->best) one->best = taken;
        }
    printf("best of %lld rounds\n", (long long)made->rounds);
    for (int i = 0; i < count; i++) {
        contestant *one = all + i;
        if (one->best == 1e9) continue;
        printf("%-24s %8.2f ns each", one->name, one->best * 1e9 / (double)one->work);
        if (bytes) printf(" %7.2f GB/s", (double)bytes / one->best / 1e9);
        if (one->floor >= 0 && all[one->floor].best < 1e9)
            printf("   %.2f x the floor", one->best / all[one->floor].best);
        printf("\n");
    }
}

#endif
