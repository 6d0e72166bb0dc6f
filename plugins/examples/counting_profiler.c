/* counting_profiler: a whole profiler plugin in C. It asks for calls and their work, and says in the
 * log how many of each kind there were and how long they took together.
 *
 *     cc -shared -fPIC -Iplugins/include plugins/examples/counting_profiler.c -o libccl-profiler-counting.so
 *     CCL_PROFILER_PLUGIN=counting CCL_DEBUG=INFO CCL_DEBUG_SUBSYS=ALL my_program
 */
#include "ccl_profiler.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#ifndef COUNTING_VERSION /* tests build plugins of the wrong version */
#define COUNTING_VERSION CCL_PROFILER_VERSION
#endif

enum { KINDS = 16 };

/* One communicator. Calls about it come one at a time, so nothing here needs a lock. */
typedef struct {
  const cclHost_v1_t *host; /* valid until finalize */
  uint32_t rank;
  uint64_t number[KINDS];
  uint64_t time_ns[KINDS];
} context_t;

/* One open event: what its stop needs. */
typedef struct {
  uint32_t kind;
  uint64_t since_ns;
} event_t;

static void say(const cclHost_v1_t *host, const char *line) {
  if (!host->enabled || host->enabled(host->context, CCL_LOG_INFO))
    host->log(host->context, CCL_LOG_INFO, __FILE__, __LINE__, line);
}

static int32_t init(const cclHost_v1_t *host, const cclProfilerComm_v1_t *comm, uint64_t *mask,
                    void **context) {
  context_t *c = calloc(1, sizeof *c);
  if (!c) return 8;
  c->host = host;
  c->rank = comm->rank;
  *context = c;
  /* Parents come without being asked for. */
  __atomic_store_n(mask, CCL_EVENT_BIT(CCL_EVENT_COLL) | CCL_EVENT_BIT(CCL_EVENT_P2P), __ATOMIC_RELAXED);
  return 0;
}

static int32_t startEvent(void *context, const cclProfilerEvent_v1_t *event, void **handle) {
  (void)context;
  if (event->kind >= KINDS) return 0; /* a later kind: refused by leaving the handle null */
  event_t *e = malloc(sizeof *e);
  if (!e) return 8;
  e->kind = event->kind;
  e->since_ns = event->time_ns; /* not the time now: calls come later than what they report */
  *handle = e;
  return 0;
}

static int32_t stopEvent(void *context, void *handle, uint64_t time_ns) {
  context_t *c = context;
  event_t *e = handle;
  c->number[e->kind] += 1;
  c->time_ns[e->kind] += time_ns - e->since_ns;
  free(e); /* nobody names it again: children have stopped before */
  return 0;
}

static int32_t recordEventState(void *context, void *handle, const cclProfilerState_v1_t *state) {
  (void)context, (void)handle, (void)state;
  return 0;
}

static int32_t finalize(void *context, const cclProfilerSummary_v1_t *summary) {
  context_t *c = context;
  char line[160];
  for (int kind = 0; kind < KINDS; kind++)
    if (c->number[kind]) {
      snprintf(line, sizeof line, "rank %" PRIu32 ": %" PRIu64 " events of kind %d took %" PRIu64 " ns",
               c->rank, c->number[kind], kind, c->time_ns[kind]);
      say(c->host, line);
    }
  snprintf(line, sizeof line, "rank %" PRIu32 ": %" PRIu64 " events were dropped", c->rank,
           summary->dropped_events);
  say(c->host, line);
  free(c);
  return 0;
}

__attribute__((visibility("default"))) const cclProfiler_v1_t cclProfiler_v1 = {
    .size = sizeof(cclProfiler_v1_t),
    .version = COUNTING_VERSION,
    .name = "counting",
    .init = init,
    .startEvent = startEvent,
    .stopEvent = stopEvent,
    .recordEventState = recordEventState,
    .finalize = finalize,
};
