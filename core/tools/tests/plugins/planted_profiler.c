/* A profiler that keeps its contract, but for the one breach that PLANTED names. */
#define _GNU_SOURCE
#include "ccl_profiler.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifndef PLANTED_SIZE
#define PLANTED_SIZE sizeof(cclProfiler_v1_t)
#endif
#ifndef PLANTED_NAME
#define PLANTED_NAME "planted"
#endif
#ifndef PLANTED_STOP
#define PLANTED_STOP stopEvent
#endif

typedef struct context {
  uint64_t *mask;
  int open, file, heard;
  void *last; /* the youngest open event */
} context_t;

typedef struct {
  context_t *context;
  void *before;
  uint32_t kind;
} event_t;

static context_t *shared;
static int inits, inside;

static int planted(const char *name) {
  const char *chosen = getenv("PLANTED");
  return chosen && !strcmp(chosen, name);
}

static void name_file(char *name, size_t bytes, int number) {
  snprintf(name, bytes, "/tmp/ccl-planted-%d-%d", (int)getpid(), number);
}

/* What is planted must not outlive the test. */
__attribute__((destructor)) static void remove_files(void) {
  char name[64];
  for (int number = 1; number <= inits; number++) {
    name_file(name, sizeof name, number);
    unlink(name);
  }
}

static void *sleeper(void *none) {
  for (;;) pause();
  return none;
}

static int32_t init(const cclHost_v1_t *host, const cclProfilerComm_v1_t *comm, uint64_t *mask, void **context) {
  (void)host;
  pthread_t thread;
  int number = __atomic_add_fetch(&inits, 1, __ATOMIC_SEQ_CST);
  if (planted("fifty_contexts") && number > 50) return 8;
  if (planted("exact_comm") && comm->size != sizeof *comm) return 1;
  if (planted("only_context") && shared) return 2;
  if (planted("init_alone")) {
    if (__atomic_add_fetch(&inside, 1, __ATOMIC_SEQ_CST) > 1) abort();
    usleep(2000);
    __atomic_sub_fetch(&inside, 1, __ATOMIC_SEQ_CST);
  }
  if (planted("hang_in_init")) sleeper(NULL);
  context_t *c = calloc(1, sizeof *c);
  if (!c) return 8;
  c->mask = mask;
  c->file = -1;
  if (planted("open_descriptor")) c->file = open("/dev/null", O_RDONLY | O_CLOEXEC);
  if (planted("open_file") || planted("empty_file")) {
    char name[64];
    name_file(name, sizeof name, number);
    c->file = open(name, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (planted("open_file") && write(c->file, "x", 1) != 1) abort();
  }
  if (planted("thread") && pthread_create(&thread, NULL, sleeper, NULL)) abort();
  uint64_t asked = planted("no_mask") ? 0 : planted("empty_mask") ? CCL_EVENT_BIT(40) : UINT64_MAX;
  if (planted("ctrl_mask")) asked = CCL_EVENT_BIT(CCL_EVENT_PROXY_CTRL);
  __atomic_store_n(mask, asked, __ATOMIC_RELAXED);
  if (planted("wide_mask")) mask[1] = 0;
  shared = c;
  *context = c;
  return 0;
}

static int32_t startEvent(void *context, const cclProfilerEvent_v1_t *event, void **handle) {
  context_t *c = context;
  if (planted("hang_in_start")) sleeper(NULL);
  if (planted("exact_event") && event->size != sizeof *event) return 1;
  if (planted("known_kinds") && event->kind > CCL_EVENT_P2P_API) abort();
  if (event->kind > CCL_EVENT_P2P_API) return 0;
  if (planted("parent") && event->kind == CCL_EVENT_PROXY_STEP && ((event_t *)event->parent)->kind != CCL_EVENT_PROXY_OP)
    abort();
  if (planted("few") && c->open >= 1024) abort();
  if (planted("words") && event->kind == CCL_EVENT_COLL_API && strlen(event->of.call.algorithm) > 99) abort();
  event_t *e = calloc(1, sizeof *e);
  if (!e) return 8;
  e->context = planted("statics") ? shared : c;
  if (e->context != c) abort();
  e->before = c->last;
  e->kind = event->kind;
  c->last = e;
  c->open++;
  c->heard++;
  *handle = e;
  return 0;
}

__attribute__((unused)) static int32_t stopEvent(void *context, void *handle, uint64_t time_ns) {
  context_t *c = context;
  event_t *e = handle;
  (void)time_ns;
  if (planted("stack") && c->last != e) abort();
  c->last = c->last == e ? e->before : NULL;
  c->open--;
  free(e);
  return 0;
}

static int32_t recordEventState(void *context, void *handle, const cclProfilerState_v1_t *state) {
  (void)context, (void)handle;
  if (planted("known_states") && state->state > CCL_STATE_GROUP_END_START) abort();
  return 0;
}

static int32_t finalize(void *context, const cclProfilerSummary_v1_t *summary) {
  context_t *c = context;
  (void)summary;
  if (planted("unused") && !c->heard) abort();
  if (planted("shared_end")) __atomic_store_n(shared->mask, 0, __ATOMIC_RELAXED);
  if (c->file >= 0 && !planted("open_descriptor") && !planted("open_file")) close(c->file);
  if (planted("only_context")) shared = NULL;
  free(c);
  return 0;
}

__attribute__((visibility("default"))) const cclProfiler_v1_t cclProfiler_v1 = {
    .size = PLANTED_SIZE,
    .version = CCL_PROFILER_VERSION,
    .name = PLANTED_NAME,
    .init = init,
    .startEvent = startEvent,
    .stopEvent = PLANTED_STOP,
    .recordEventState = recordEventState,
    .finalize = finalize,
};
