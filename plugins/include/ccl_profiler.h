/* ccl_profiler.h: the contract between ccl and a profiler plugin, version 1.
 *
 * A plugin is a shared library that exports one symbol: a static table named cclProfiler_v1.
 *
 *     const cclProfiler_v1_t cclProfiler_v1 = { sizeof(cclProfiler_v1_t), CCL_PROFILER_VERSION, "mine", ... };
 *
 * This file is enough to write one. It is C11 and C++11, needs no other header of ccl and none of
 * CUDA. plugins/examples/counting_profiler.c is a whole plugin. In Rust, use the crate ccl-plugin.
 *
 * HOW IT GROWS
 *   The table, and every struct that begins with `size`, grows only at its end. Whoever fills such a
 *   struct's `size` says how much of it there is; the other side reads no more than that. New kinds
 *   of events and new states get new numbers: a plugin refuses the kinds it does not know, and
 *   ignores such states. A change of meaning gets a new symbol (cclProfiler_v2).
 *
 * EVENTS
 *   An event is something that lasts: it starts, may record states, and stops. The host starts the
 *   kinds that the mask asks for, and the kinds that these need as parents:
 *
 *     GROUP_API ──> COLL_API, P2P_API       the caller's side: from the call to its return
 *     GROUP ──> COLL, P2P ──> PROXY_OP ──> PROXY_STEP    the work: from its first step to its last
 *     PROXY_CTRL                            what the progress thread does for the communicator
 *
 *   A kind is started if the mask has the bit of one of these:
 *
 *     GROUP_API    all but PROXY_CTRL               GROUP       GROUP, COLL, P2P, PROXY_OP, PROXY_STEP
 *     COLL_API     COLL_API, COLL, PROXY_OP, PROXY_STEP   COLL  COLL, PROXY_OP, PROXY_STEP
 *     P2P_API      P2P_API, P2P, PROXY_OP, PROXY_STEP     P2P   P2P, PROXY_OP, PROXY_STEP
 *     PROXY_OP     PROXY_OP, PROXY_STEP             PROXY_STEP, PROXY_CTRL    its own
 *
 *   Work outlives the call that asked for it where calls are asynchronous, so work is no child of
 *   the call: `call_id` of COLL and P2P is the id of the COLL_API or P2P_API event instead.
 *
 * WHAT THE HOST PROMISES
 *   Every event that was started and not refused is stopped exactly once, also after an error, an
 *   abort, or the death of a peer; at the latest before finalize. Children stop before their parent.
 *   A handle is not used after its stop. Refusing an event does not silence its children: their
 *   parent is then the nearest ancestor that was not refused. Ids are never used twice.
 *
 *     handle:  startEvent ──(null: refused)──> nothing more is heard of it
 *                  │
 *                  └──> open ──recordEventState (any number)──> open ──stopEvent──> dead
 *     context: init ──(error)──> the communicator goes without this profiler
 *                └──> events ──> every open event is stopped ──> finalize ──> dead
 *
 * THREADS AND TIME
 *   init is called by the thread that makes the communicator; mind that several communicators may be
 *   made at once. All other entries are called by one thread of the host, which serves all profilers
 *   of the process: never by a thread that communicates. Calls come a while after what they report,
 *   so take the time that is given: nanoseconds of CLOCK_MONOTONIC, one clock for all events. The
 *   events of one context come in the order in which they were put down. A plugin may take its time:
 *   it cannot hold up an operation. While it does, events gather in a buffer of bounded size, and
 *   those that do not fit are dropped whole, never by half. finalize says how many were. When a
 *   communicator is closed the host waits for finalize, a few seconds at most.
 *
 * ERRORS
 *   init returns 0 or a code: then the host logs it and goes without. Codes of startEvent other than
 *   0 refuse the event; those of the other entries are ignored. Nothing a profiler returns fails an
 *   operation. C++ exceptions and Rust panics must not leave an entry.
 *
 * MEMORY
 *   Each side frees what it made. Structs given to an entry are valid during the call, but for the host
 *   table: until finalize. Strings in events are valid for the life of the process, and so is `mask`.
 *   A handle is the plugin's: any pointer but null. A context's handles end with it.
 */
#ifndef CCL_PROFILER_H
#define CCL_PROFILER_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define CCL_PROFILER_VERSION 1u

#ifndef CCL_HOST_V1 /* the same in every header of a contract */
#define CCL_HOST_V1
/* Log levels. */
enum { CCL_LOG_ERROR = 1, CCL_LOG_WARN = 2, CCL_LOG_INFO = 3, CCL_LOG_DEBUG = 4, CCL_LOG_TRACE = 5 };

/* What the host gives to init. Valid until finalize of that context returns, or until init fails.
 * Both functions may be called from any thread, also from within a call of the host, and never call
 * back. */
typedef struct {
  uint32_t size;    /* bytes of this struct as the host knows it */
  uint32_t version; /* 1 */
  void *context;    /* first argument of both functions */
  /* Whether a line of this level would be kept: 0 or 1. May be null: then yes. */
  int32_t (*enabled)(void *context, int32_t level);
  /* One line, UTF-8, without a newline; copied. file may be null. */
  void (*log)(void *context, int32_t level, const char *file, uint32_t line, const char *message);
} cclHost_v1_t;
#endif

/* Kinds of events; bit k of the mask, CCL_EVENT_BIT(k), asks for kind k. 6 and 7 are kept for what
 * devices and network plugins report; hosts of this version start neither. */
enum {
  CCL_EVENT_GROUP = 0,      /* calls launched together on this communicator; of: group */
  CCL_EVENT_COLL = 1,       /* a collective at work; of: call */
  CCL_EVENT_P2P = 2,        /* a message at work; of: call */
  CCL_EVENT_PROXY_OP = 3,   /* what one operation sends to, or receives from, one peer over a network
                             * in one channel; of: proxyOp */
  CCL_EVENT_PROXY_STEP = 4, /* one message of it; of: proxyStep */
  CCL_EVENT_PROXY_CTRL = 5, /* the progress thread, see the states; of: nothing */
  CCL_EVENT_GROUP_API = 8,  /* a launch, from the call to its return; of: group */
  CCL_EVENT_COLL_API = 9,   /* the call of a collective; of: call */
  CCL_EVENT_P2P_API = 10    /* the call of a send or receive; of: call */
};
#define CCL_EVENT_BIT(kind) (UINT64_C(1) << (kind))

/* States. Numbers left out are used by NCCL for things that do not happen here. */
enum {
  CCL_STATE_SEND_WAIT = 9,          /* PROXY_STEP: the network has the message; bytes */
  CCL_STATE_RECV_WAIT = 10,         /* PROXY_STEP: the message is awaited */
  CCL_STATE_RECV_DONE = 12,         /* PROXY_STEP: it is there; bytes */
  CCL_STATE_CTRL_IDLE = 13,         /* PROXY_CTRL: the thread leaves the communicator alone */
  CCL_STATE_CTRL_ACTIVE = 14,       /* PROXY_CTRL: the thread drives the communicator */
  CCL_STATE_CTRL_SLEEP = 15,        /* PROXY_CTRL: nothing moves; it waits */
  CCL_STATE_CTRL_WAKEUP = 16,       /* PROXY_CTRL: of the same event: it goes on */
  CCL_STATE_CTRL_APPEND = 17,       /* PROXY_CTRL: operations are handed to the thread */
  CCL_STATE_CTRL_APPEND_END = 18,   /* PROXY_CTRL: of the same event; count is how many */
  CCL_STATE_PROXY_OP_PROGRESS = 19, /* PROXY_OP: its first message is under way */
  CCL_STATE_SEND_PEER_WAIT = 20,    /* PROXY_STEP: the data is ready for the network; bytes */
  CCL_STATE_GROUP_START_STOP = 23,  /* GROUP_API: calls are launched from here on */
  CCL_STATE_GROUP_END_START = 24    /* GROUP_API: all are launched; the caller waits */
};

/* The communicator. Strings may be null. */
typedef struct {
  uint32_t size;    /* bytes of this struct as the host knows it */
  uint32_t rank;    /* this process's, or thread's */
  uint32_t nranks;
  uint32_t nnodes;  /* hosts that the ranks are on */
  uint64_t comm_id; /* the same on all ranks, different for other communicators */
  uint64_t process; /* the operating system's id of this process */
  const char *name; /* null in this version */
} cclProfilerComm_v1_t;

/* A call: COLL, P2P and their API events. */
typedef struct {
  const char *func;      /* "all_reduce", "send", ... */
  const char *dtype;     /* "float32", ... */
  const char *op;        /* "sum", ...; null where nothing is reduced */
  const char *algorithm; /* the plan that was chosen, "all_reduce.ring"; null in API events */
  const char *protocol;  /* how data passes from rank to rank, "slots"; null in API events */
  const char *path;      /* of a message: "shm", "net", "loopback"; else null */
  uint64_t count;        /* elements, as the caller gave them */
  uint64_t bytes;        /* of the vector: of all blocks together where there are blocks */
  uint64_t sequence;     /* number of the collective in its communicator, the same on all ranks; of a
                          * message 0; in API events 0 */
  uint64_t call_id;      /* of COLL and P2P: id of the API event, 0 if that was not recorded */
  uint64_t send;         /* addresses; 0 where there is no such buffer, or it is not known */
  uint64_t recv;
  uint64_t chunk_bytes;  /* what one step of a channel moves; 0 in API events */
  int32_t root;          /* of rooted collectives; else -1 */
  int32_t peer;          /* of messages; else -1 */
  uint32_t channels;     /* 0 in API events */
  uint32_t in_place;     /* 0 or 1 */
} cclProfilerCall_v1_t;

/* GROUP and GROUP_API. */
typedef struct {
  uint32_t depth; /* 0: one call by itself; 1: calls collected in a group */
  uint32_t reserved; /* 0 */
} cclProfilerGroup_v1_t;

/* PROXY_OP. */
typedef struct {
  const char *path;     /* "net" */
  uint64_t chunk_bytes; /* of the first message */
  uint32_t channel;
  int32_t peer;
  uint32_t is_send; /* 1: to the peer; 0: from it */
  uint32_t process; /* the operating system's id of the process that does it */
} cclProfilerProxyOp_v1_t;

/* PROXY_STEP. */
typedef struct {
  uint64_t step;  /* number of the message in its PROXY_OP, from 0 */
  uint64_t bytes; /* of a send; 0 of a receive: see CCL_STATE_RECV_DONE */
} cclProfilerProxyStep_v1_t;

/* The start of an event. */
typedef struct {
  uint32_t size;        /* bytes of this struct as the host knows it */
  uint32_t kind;
  uint64_t id;          /* never 0; different from all others of the context */
  uint64_t time_ns;
  void *parent;         /* the plugin's handle of the nearest ancestor it took; null: none */
  uint64_t parent_id;   /* the event's own parent, refused or not; 0: none */
  uint32_t parent_kind; /* of `parent`; 0 with null */
  uint32_t rank;
  union {
    cclProfilerCall_v1_t call;
    cclProfilerGroup_v1_t group;
    cclProfilerProxyOp_v1_t proxyOp;
    cclProfilerProxyStep_v1_t proxyStep;
  } of; /* by kind */
} cclProfilerEvent_v1_t;

/* A state of an event. */
typedef struct {
  uint32_t size;    /* bytes of this struct as the host knows it */
  uint32_t state;
  uint64_t time_ns;
  uint64_t bytes;   /* where the state says so; else 0 */
  uint64_t count;   /* likewise */
} cclProfilerState_v1_t;

/* What became of all events of a context. */
typedef struct {
  uint32_t size;           /* bytes of this struct as the host knows it */
  uint32_t reserved;       /* 0 */
  uint64_t time_ns;        /* when the communicator was closed */
  uint64_t started;        /* events that startEvent was called for, also those it refused */
  uint64_t refused;        /* of these */
  uint64_t dropped_events; /* events that were not reported for want of room */
  uint64_t dropped_states; /* states of reported events, likewise */
} cclProfilerSummary_v1_t;

/* The table. All entries are required. */
typedef struct {
  uint32_t size;    /* sizeof(cclProfiler_v1_t) when the plugin was compiled */
  uint32_t version; /* CCL_PROFILER_VERSION */
  const char *name; /* 1 to 63 bytes of UTF-8. Valid while loaded */

  /* A context, for each communicator. *mask is 0, no events: the plugin stores what it wants to hear
   * of, here or later, from any thread, with an atomic store (relaxed will do). The host looks once
   * for each launch; PROXY_CTRL is looked for each time. A failed init leaves nothing behind. */
  int32_t (*init)(const cclHost_v1_t *host, const cclProfilerComm_v1_t *comm, uint64_t *mask,
                  void **context);

  /* An event starts. *handle is null; left null, or with a code other than 0, it is refused. */
  int32_t (*startEvent)(void *context, const cclProfilerEvent_v1_t *event, void **handle);

  /* It stops. The handle is dead when this returns. */
  int32_t (*stopEvent)(void *context, void *handle, uint64_t time_ns);

  /* Something happened to an open event. */
  int32_t (*recordEventState)(void *context, void *handle, const cclProfilerState_v1_t *state);

  /* Ends a context, its threads included. No event is open. The code stays loaded. */
  int32_t (*finalize)(void *context, const cclProfilerSummary_v1_t *summary);
} cclProfiler_v1_t;

#ifdef __cplusplus
}
#endif

#endif /* CCL_PROFILER_H */
