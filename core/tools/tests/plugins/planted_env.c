/* An env plugin that keeps the contract, or breaks one clause of it: the one that PLANTED names. */
#define _GNU_SOURCE
#include "ccl_env.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#ifndef PLANTED_GET_ENV
#define PLANTED_GET_ENV get_env
#endif

static char *asked; /* what is to be broken; the environment may be changed by that */
static int inside;

static int planted(const char *name) { return asked && strcmp(asked, name) == 0; }

static void sleep_ms(long ms) {
  struct timespec time = {ms / 1000, ms % 1000 * 1000000};
  nanosleep(&time, NULL);
}

static void *idle(void *unused) {
  (void)unused;
  for (;;) pause();
  return NULL;
}

static int32_t init(const cclHost_v1_t *host, const char *release, void **context) {
  asked = getenv("PLANTED");
  (void)context; /* may stay null */
  if (!release[0]) return 1;
  if (planted("init_fails")) {
    host->log(host->context, CCL_LOG_ERROR, __FILE__, __LINE__, "no vault today");
    return 10;
  }
  while (planted("init_hangs")) pause();
  if (planted("changes_environment")) setenv("PLANTED_HERE", "1", 1);
  if (planted("changes_folder") && chdir("/")) return 2;
  if (planted("leaks_descriptor") && open("/dev/null", O_RDONLY) < 0) return 2;
  pthread_t thread;
  if (planted("leaks_thread") && pthread_create(&thread, NULL, idle, NULL)) return 2;
  return 0;
}

static const char *get_env(void *context, const char *name, const char *found) {
  static char reused[64], long_answer[100 << 10];
  (void)context;
  if (planted("slow")) sleep_ms(60);
  while (planted("hangs")) pause();
  if (planted("one_thread")) {
    if (__atomic_fetch_add(&inside, 1, __ATOMIC_SEQ_CST)) abort();
    sleep_ms(1);
    __atomic_fetch_sub(&inside, 1, __ATOMIC_SEQ_CST);
  }
  if (planted("short_names") && strlen(name) > 1000) abort();
  if (strcmp(name, "CCL_SLOTS") && strcmp(name, "CCL_DEBUG")) return found;
  if (planted("no_text")) return "1\xff\xfe";
  if (planted("two_lines")) return "1\n2";
  if (planted("endless")) return memset(long_answer, '1', sizeof long_answer - 1);
  if (planted("reuses_answers")) {
    snprintf(reused, sizeof reused, "about %s", name);
    return reused;
  }
  return "16";
}

static int32_t finalize(void *context) {
  (void)context;
  while (planted("finalize_hangs")) pause();
  return planted("finalize_fails") ? 10 : 0;
}

const cclEnv_v1_t cclEnv_v1 = {sizeof(cclEnv_v1_t), CCL_ENV_VERSION, "planted", init, PLANTED_GET_ENV, finalize};
