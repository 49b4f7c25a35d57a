/* Files on their way to the device: all of them, whoever else is at it, and after a fork. */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "oncelog.h"

enum { FILES = 40, CALLERS = 8, CALLS = 50 };

static int temporary(void) {
    char name[] = "/tmp/oncelog-sync-XXXXXX";
    int file = mkstemp(name);
    unlink(name);
    return file;
}

static void each_file_has_its_own_answer(void) {
    int files[FILES], errors[FILES];
    for (int i = 0; i < FILES; i++) files[i] = i % 3 ? temporary() : -1;
    ol_sync_together(files, errors, FILES);
    for (int i = 0; i < FILES; i++) {
        CHECK_INT(errors[i], i % 3 ? 0 : EBADF);
        if (files[i] >= 0) close(files[i]);
    }
    ol_sync_together(files, errors, 0);
    int closed = -1, error = 0;
    ol_sync_together(&closed, &error, 1);
    CHECK_INT(error, EBADF);
}

static void *call(void *answers) {
    int files[FILES], errors[FILES];
    for (int i = 0; i < FILES; i++) files[i] = i % 2 ? temporary() : -1;
    int wrong = 0;
    for (int round = 0; round < CALLS; round++) {
        size_t count = (size_t)(round % FILES) + 1;
        for (int i = 0; i < FILES; i++) errors[i] = -1;
        ol_sync_together(files, errors, count);
        for (int i = 0; i < FILES; i++) {
            int expected = (size_t)i >= count ? -1 : i % 2 ? 0 : EBADF;
            wrong += errors[i] != expected;
        }
    }
    for (int i = 1; i < FILES; i += 2) close(files[i]);
    *(int *)answers = wrong;
    return NULL;
}

static void callers_do_not_mix_up_their_files(void) {
    pthread_t threads[CALLERS];
    int wrong[CALLERS];
    for (int i = 0; i < CALLERS; i++)
        CHECK_INT(pthread_create(threads + i, NULL, call, wrong + i), 0);
    for (int i = 0; i < CALLERS; i++) {
        pthread_join(threads[i], NULL);
        CHECK_INT(wrong[i], 0);
    }
}

static void a_forked_child_does_not_use_what_its_parent_has(void) {
    pid_t child = fork();
    if (!child) {
        int wrong = 0;
        alarm(60);
        call(&wrong);
        _exit(wrong != 0);
    }
    int status = -1;
    waitpid(child, &status, 0);
    CHECK_INT(status, 0);
}

int main(void) {
    each_file_has_its_own_answer();
    callers_do_not_mix_up_their_files();
    a_forked_child_does_not_use_what_its_parent_has();
    return check_result();
}
