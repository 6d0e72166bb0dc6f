/* A profiler as it is made for NCCL: PROFILER_VERSION says for which version.
 *
 * It is strict: it notes whatever its host does against the contract, and whatever is not balanced. TOY_FAULT makes it
 * behave as some profilers do. toy_wrong and the other functions tell a test what was noted. */
#define _GNU_SOURCE
#include "nccl_profiler.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define NO_FAULT 0
#define LACKS_STOP 1   /* a function is missing */
#define INIT_FAILS 2
#define REFUSES 3      /* every other event, by a null handle */
#define START_FAILS 4  /* every other event, by an error */
#define NO_CONTEXT 5
#ifndef TOY_FAULT
#define TOY_FAULT NO_FAULT
#endif
#ifndef TOY_MASK
#define TOY_MASK (-1)
#endif

#define PASTE_(a, b) a##b
#define PASTE(a, b) PASTE_(a, b)
#define TEXT_(a) #a
#define TEXT(a) TEXT_(a)
#define EXPORT __attribute__((visibility("default")))
#define CALLED(name) PASTE(name, PASTE(_v, PROFILER_VERSION))

enum { BITS = 16, STATES = 32, LASTING_NS = 100000, ALIVE = 0x70F1, DEAD = 0xDEAD };

struct context {
  int alive, rank, n_ranks, open, busy;
  uint64_t starts;
};

struct event {
  int alive, type, children, steps, last_state, is_send;
  struct context *context;
  struct event *parent, *group;
  uint64_t began_ns;
};

static int wrong, inits, live_contexts, live_events, counts[BITS], states[STATES];
static int lasting[BITS];
static char first_words[256];
static int *shared_mask;

static void note(int line, const char *format, ...) {
  va_list arguments;
  if (__atomic_fetch_add(&wrong, 1, __ATOMIC_SEQ_CST)) return;
  int used = snprintf(first_words, sizeof first_words, "line %d: ", line);
  va_start(arguments, format);
  vsnprintf(first_words + used, sizeof first_words - used, format, arguments);
  va_end(arguments);
}
#define EXPECT(condition) \
  do {                    \
    if (!(condition)) note(__LINE__, "%s does not hold", #condition); \
  } while (0)

static int loaded(int *number) { return __atomic_load_n(number, __ATOMIC_SEQ_CST); }
static void add(int *number, int more) { __atomic_add_fetch(number, more, __ATOMIC_SEQ_CST); }

/* What was noted: how much, and the first of it. */
EXPORT int CALLED(toy_wrong)(void) { return loaded(&wrong); }
EXPORT const char *CALLED(toy_words)(void) { return first_words; }
/* Calls of init; contexts and events that were made and not ended. */
EXPORT int CALLED(toy_inits)(void) { return loaded(&inits); }
EXPORT int CALLED(toy_live)(void) { return loaded(&live_contexts) + loaded(&live_events); }
/* Events of the type of this bit, states of this number, and events of the type that lasted a while. */
EXPORT int CALLED(toy_events)(int bit) { return loaded(&counts[bit]); }
EXPORT int CALLED(toy_states)(int state) { return loaded(&states[state]); }
EXPORT int CALLED(toy_lasting)(int bit) { return loaded(&lasting[bit]); }
/* Changes the mask, and forgets what was counted. */
EXPORT int CALLED(toy_ask)(int mask) {
  if (shared_mask) __atomic_store_n(shared_mask, mask, __ATOMIC_RELAXED);
  for (int bit = 0; bit < BITS; bit++) __atomic_store_n(&counts[bit], 0, __ATOMIC_SEQ_CST);
  return shared_mask != NULL;
}

static uint64_t now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void enter(struct context *context) { EXPECT(__atomic_exchange_n(&context->busy, 1, __ATOMIC_SEQ_CST) == 0); }
static void leave(struct context *context) { __atomic_store_n(&context->busy, 0, __ATOMIC_SEQ_CST); }

static ncclResult_t toy_init(INIT_PARAMETERS) {
  add(&inits, 1);
#if PROFILER_VERSION >= 4
  if (TOY_FAULT == INIT_FAILS) logger(LOG_WARN, SUBSYSTEM_PROFILE, __FILE__, __LINE__, "toy: no licence for %d ranks", n_ranks);
#endif
  if (TOY_FAULT == INIT_FAILS) return ncclSystemError;
  if (TOY_FAULT == NO_CONTEXT) return ncclSuccess;
  struct context *context = calloc(1, sizeof *context);
  context->alive = ALIVE;
  context->rank = -1;
  /* One mask for all communicators: written once. */
  int *before = NULL;
  if (__atomic_compare_exchange_n(&shared_mask, &before, mask, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
    __atomic_store_n(mask, TOY_MASK, __ATOMIC_RELAXED);
  EXPECT(shared_mask == mask);
#if PROFILER_VERSION >= 4
  EXPECT(hash != 0 && n_nodes >= 1 && rank >= 0 && rank < n_ranks && (!name || *name));
  context->rank = rank;
  context->n_ranks = n_ranks;
  logger(LOG_INFO, SUBSYSTEM_PROFILE, __FILE__, __LINE__, "toy: rank %d of %d is heard of", rank, n_ranks);
#endif
  add(&live_contexts, 1);
  *out = context;
  return ncclSuccess;
}

static int bit_of(uint64_t type) {
  for (int bit = 0; bit < BITS; bit++)
    if (type == (uint64_t)1 << bit) return bit;
  note(__LINE__, "%llu is no type", (unsigned long long)type);
  return 15;
}

static int is_called(word_t word, const char *const *names, int known) {
#if PROFILER_VERSION == 1
  (void)names;
  return word < known;
#else
  for (int i = 0; word && i < known; i++)
    if (!strcmp(word, names[i])) return 1;
  return 0;
#endif
}

static void check_words(word_t func, word_t datatype) {
  static const char *const functions[] = {"Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce", "AlltoAll",
                                          "Send", "Recv", "Barrier"};
  static const char *const datatypes[] = {"ncclInt8", "ncclUint8", "ncclInt32", "ncclUint32", "ncclInt64", "ncclFloat32"};
  if (!is_called(func, functions, 9)) note(__LINE__, "an unknown function");
  if (!is_called(datatype, datatypes, PROFILER_VERSION == 1 ? 12 : 6)) note(__LINE__, "an unknown type");
}

static void check_coll(const coll_t *coll) {
  static const char *const protocols[] = {"LL", "LL128", "SIMPLE"};
  check_words(coll->func, coll->datatype);
  EXPECT(is_called(coll->proto, protocols, 3));
  EXPECT(coll->root >= 0 && coll->n_channels >= 1 && coll->n_warps >= 1 && coll->seq_number >= 1);
  EXPECT(coll->count == 0 || (coll->send_buff && coll->recv_buff));
#if PROFILER_VERSION == 1
  EXPECT(coll->algo < 7 && coll->op <= 4 && !coll->is_collnet && !coll->is_nvls);
#else
  EXPECT(coll->algo && *coll->algo);
#endif
#if PROFILER_VERSION <= 3
  EXPECT(coll->comm_hash != 0);
#endif
}

static void check_p2p(const p2p_t *p2p, const struct context *context) {
  check_words(p2p->func, p2p->datatype);
  EXPECT(p2p->peer >= 0 && p2p->peer != context->rank && p2p->buff && p2p->count > 0);
#if PROFILER_VERSION >= 4
  EXPECT(p2p->peer < context->n_ranks);
#endif
}

static void check_op(const proxy_op_t *op, const struct context *context) {
  EXPECT(op->pid == getpid() && op->peer >= 0 && op->peer != context->rank);
  EXPECT(op->n_steps >= 1 && op->chunk_size >= 0 && (op->is_send == 0 || op->is_send == 1));
}

/* A handle of ours that is open and of one of these types; null where events are refused. */
static struct event *open_parent(void *handle, int types, const struct context *context) {
  struct event *parent = handle;
  if (!parent) {
    EXPECT(types == 0 || TOY_FAULT == REFUSES || TOY_FAULT == START_FAILS);
    return NULL;
  }
  if (!(parent->type & types)) note(__LINE__, "a parent of type %d where one of %d belongs", parent->type, types);
  EXPECT(parent->alive == ALIVE && parent->context == context);
  parent->children++;
  return parent;
}

static ncclResult_t toy_start(void *raw, void **handle, event_t *told) {
  struct context *context = raw;
  int bit = bit_of(told->type), parents = 0;
  EXPECT(context && context->alive == ALIVE && *handle == NULL);
  enter(context);
  if (context->rank < 0) context->rank = told->rank;
  EXPECT(told->rank == context->rank);
  add(&counts[bit], 1);
  switch (told->type) {
  case GROUP:
  case PROXY_CTRL:
    break;
  case COLL:
    check_coll(&told->coll);
    parents = PROFILER_VERSION >= 5 ? COLL_API : GROUP;
    break;
  case P2P:
    check_p2p(&told->p2p, context);
    parents = PROFILER_VERSION >= 5 ? P2P_API : GROUP;
    break;
  case PROXY_OP:
    check_op(&told->proxy_op, context);
    parents = COLL | P2P;
    break;
  case PROXY_STEP:
    parents = PROXY_OP;
    break;
#if PROFILER_VERSION >= 5
  case GROUP_API:
    EXPECT(!told->group_api.graph_captured && told->group_api.group_depth >= 0);
    break;
  case COLL_API:
    check_words(told->coll_api.func, told->coll_api.datatype);
    EXPECT(!told->coll_api.stream && !told->coll_api.graph_captured && told->coll_api.root >= 0);
    parents = GROUP_API;
    break;
  case P2P_API:
    check_words(told->p2p_api.func, told->p2p_api.datatype);
    parents = GROUP_API;
    break;
#endif
  default:
    note(__LINE__, "type %llu does not exist in this version", (unsigned long long)told->type);
  }
  struct event *event = calloc(1, sizeof *event);
  event->alive = ALIVE;
  event->type = (int)told->type;
  event->context = context;
  int refuses = (TOY_FAULT == REFUSES || TOY_FAULT == START_FAILS) && context->starts++ % 2 == 0;
  if (refuses) {
    free(event);
    if (TOY_FAULT == START_FAILS) *handle = &wrong; /* which nobody may use */
    leave(context);
    return TOY_FAULT == START_FAILS ? ncclInternalError : ncclSuccess;
  }
  event->parent = open_parent(told->parent, parents, context);
#if PROFILER_VERSION >= 5
  if (told->type == COLL) event->group = open_parent(told->coll.parent_group, GROUP, context);
  if (told->type == P2P) event->group = open_parent(told->p2p.parent_group, GROUP, context);
#endif
  if (told->type == PROXY_OP) event->is_send = told->proxy_op.is_send;
  if (told->type == PROXY_STEP && event->parent) {
    EXPECT(told->proxy_step.step >= event->parent->steps);
    event->parent->steps = told->proxy_step.step + 1;
    event->is_send = event->parent->is_send;
  }
  event->began_ns = now_ns();
  context->open++;
  add(&live_events, 1);
  *handle = event;
  leave(context);
  return ncclSuccess;
}

__attribute__((unused)) static ncclResult_t toy_stop(void *handle) {
  struct event *event = handle;
  if (handle == &wrong || event->alive != ALIVE) {
    note(__LINE__, "a stop of what is not open");
    return ncclInvalidUsage;
  }
  enter(event->context);
  EXPECT(event->children == 0);
  event->alive = DEAD; /* never freed, so that a second stop is seen */
  if (event->parent) event->parent->children--;
  if (event->group) event->group->children--;
  if (now_ns() - event->began_ns >= LASTING_NS) add(&lasting[bit_of((uint64_t)event->type)], 1);
  event->context->open--;
  add(&live_events, -1);
  leave(event->context);
  return ncclSuccess;
}

static ncclResult_t toy_record(void *handle, int state, state_args_t *args) {
  struct event *event = handle;
  if (handle == &wrong || event->alive != ALIVE) {
    note(__LINE__, "state %d of what is not open", state);
    return ncclInvalidUsage;
  }
  enter(event->context);
  if (state < 0 || state >= STATES) note(__LINE__, "state %d", state);
  else add(&states[state], 1);
  switch (event->type) {
  case PROXY_STEP:
    /* In order: 8, 20, 9 of a send; 10, 11, 12 of a receive. */
    EXPECT((state >= SEND_GPU_WAIT && state <= RECV_GPU_WAIT) || (state == SEND_PEER_WAIT && PROFILER_VERSION >= 4));
    int place = state == SEND_PEER_WAIT ? 2 * SEND_GPU_WAIT + 1 : 2 * state;
    EXPECT(place > event->last_state);
    event->last_state = place;
    EXPECT(!event->parent || (event->is_send == (state < RECV_WAIT || state == SEND_PEER_WAIT)));
    EXPECT(args);
#if PROFILER_VERSION <= 3
    EXPECT(args->proxy_op.trans_size == 0 && args->proxy_op.steps == 0);
#else
    if (state == SEND_WAIT) EXPECT(args->proxy_step.trans_size > 0);
    if (state == RECV_GPU_WAIT) EXPECT(args->proxy_step.trans_size > 0);
#endif
    break;
  case PROXY_OP:
    EXPECT(state == OP_IN_PROGRESS && PROFILER_VERSION >= 4);
    break;
  case PROXY_CTRL:
    EXPECT(state >= CTRL_IDLE && state <= CTRL_APPEND_END && args);
    if (state == CTRL_APPEND_END) EXPECT(args->proxy_ctrl.appended >= 0);
    break;
  case GROUP_API:
    EXPECT((state == GROUP_START_STOP || state == GROUP_END_START) && !args);
    break;
  default:
    note(__LINE__, "state %d of an event of type %d", state, event->type);
  }
  leave(event->context);
  return ncclSuccess;
}

static ncclResult_t toy_finalize(void *raw) {
  struct context *context = raw;
  EXPECT(context && context->alive == ALIVE && context->open == 0);
  context->alive = DEAD;
  add(&live_contexts, -1);
  return ncclSuccess;
}

EXPORT const profiler_t CALLED(ncclProfiler) = {
    .name = "Toy" TEXT(PROFILER_VERSION),
    .init = toy_init,
    .start_event = toy_start,
#if TOY_FAULT != LACKS_STOP
    .stop_event = toy_stop,
#endif
    .record_event_state = toy_record,
    .finalize = toy_finalize,
};
