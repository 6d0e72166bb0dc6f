/* ccl_tuner.h: the contract between ccl and a tuner plugin, version 1.
 *
 * A tuner says which algorithm is best where it knows better than the cost model. A plugin is a shared
 * library that exports one symbol: a static table named cclTuner_v1.
 *
 *     const cclTuner_v1_t cclTuner_v1 = { sizeof(cclTuner_v1_t), CCL_TUNER_VERSION, "mine", ... };
 *
 * This file is enough to write one. It is C11 and C++11, needs no other header of ccl and none of
 * CUDA. plugins/examples/rules_tuner.c is a whole plugin. `ccl plugin check FILE` drives a plugin
 * through the clauses below, one at a time, and says which it breaks. In Rust, use the crate ccl-plugin.
 *
 * HOW IT GROWS
 *   The table, and every struct that begins with `size`, grows only at its end. Whoever fills such a
 *   struct's `size` says how much of it there is; the other side reads and writes no more than that.
 *   New collectives and algorithms get new names: a plugin leaves alone what it does not know. A change
 *   of meaning gets a new symbol (cclTuner_v2).
 *
 * WHAT HAPPENS
 *   When a communicator of two or more ranks is made, rank 0 alone makes a context and asks for advice: for
 *   each collective that has a choice, and each power of two of bytes with the middles between. The
 *   answers go to all ranks before the first collective, so a tuner can never make ranks disagree, and
 *   is never called while data moves. Then the context is finalised. A communicator made by a split has
 *   a rank 0 of its own, and asks anew.
 *
 *     context:  init ──(error)──> the communicator goes without this tuner
 *                 └──> asked ──advise (any number)──> asked ──finalize──> dead
 *                        └──advise: error──> nothing of its advice is taken ──finalize──> dead
 *
 * ADVICE
 *   advise is given the algorithms that may serve the call, each with what the cost model predicts. It
 *   lowers the cost of what it wants (0 will do), raises that of what it does not want, or forbids it
 *   with CCL_TUNER_FORBIDDEN. The least cost is taken, of equal costs what the host prefers. A tuner
 *   that changes nothing has no opinion on that call: the host decides as if it had no tuner. Where all
 *   candidates are forbidden, or a cost is no number, the same. Advice stands above a tuning file and
 *   below what the user forces: what CCL_ALGO or CCL_DETERMINISM rule out is no candidate.
 *
 * THREADS AND TIME
 *   All calls of one context come one at a time and from one thread, which is none of the program's.
 *   Several communicators may be made at the same time: statics need care. The host waits at most ten
 *   seconds for init, all advice and finalize together. A tuner that takes longer is left to itself, the
 *   communicator goes without, and this process does not ask that plugin again.
 *
 * ERRORS
 *   An entry returns 0 or a code, best one of the errors of ccl_net.h. Errors, and what a plugin says
 *   before them through the log, become one warning that names the plugin. They fail nothing. C++
 *   exceptions and Rust panics must not leave an entry.
 *
 * MEMORY
 *   Each side frees what it made. Structs and strings given to an entry are valid during the call, but
 *   for the host table: until finalize. The plugin writes only to the fields marked out, and only to
 *   candidates it was given.
 */
#ifndef CCL_TUNER_H
#define CCL_TUNER_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define CCL_TUNER_VERSION 1u

/* A cost that forbids a candidate; every negative number does. */
#define CCL_TUNER_FORBIDDEN (-1.0)

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

#ifndef CCL_SETTING_V1 /* the same in every header of a contract */
#define CCL_SETTING_V1
/* A setting. Keys the plugin does not know are ignored, better with a line of log. */
typedef struct {
  const char *key;
  const char *value;
} cclSetting_v1_t;
#endif

/* The communicator. */
typedef struct {
  uint32_t size;            /* bytes of this struct as the host knows it */
  uint32_t rank;            /* who asks: 0 in this version */
  uint32_t nranks;
  uint32_t nnodes;          /* hosts that the ranks are on */
  uint64_t comm_id;         /* different for other communicators */
  const char *name;         /* null in this version */
  const char *reach;        /* how the farthest two ranks reach each other: "memory", "memory_direct",
                             * "loopback" (a network that does not leave the host), "network", "devices" (each
                             * rank has one that reaches all others'), "multicast" (and what all ranks are sent
                             * is stored once) */
  uint32_t min_node_ranks;  /* ranks of the host that has the fewest */
  uint32_t max_node_ranks;  /* of the one that has the most */
  uint32_t max_channels;    /* most channels a call may have */
  uint32_t reserved;        /* 0 */
  uint64_t chunk_bytes;     /* how data is cut where nobody advises otherwise */
} cclTunerComm_v1_t;

/* What advice is asked for. The answer is used for calls of least_bytes to most_bytes, all dtypes and
 * reduce ops. */
typedef struct {
  uint32_t size;          /* bytes of this struct as the host knows it */
  uint32_t pipelined;     /* calls of the kind that are launched together: 1 in this version */
  const char *collective; /* "all_reduce", "all_gather", "broadcast", ...: as `ccl plan show` names them */
  const char *dtype;      /* null in this version: any */
  uint64_t bytes;         /* of the vector; of all blocks together where there are blocks */
  uint64_t least_bytes;
  uint64_t most_bytes;    /* UINT64_MAX: any size from least_bytes on */
  uint32_t mapped;        /* 1: ranks may reach the buffers of all others; 0: they do not */
  uint32_t reserved;      /* 0 */
} cclTunerCall_v1_t;

/* One algorithm that may serve the call. */
typedef struct {
  uint32_t size;         /* bytes of this struct as the host knows it */
  uint32_t channels;     /* in, out: over how many channels; 1 to max_channels, others are cut to that */
  const char *algorithm; /* "ring", "double_tree", ...: as `ccl plan show` names them */
  const char *protocol;  /* null in this version: the host chooses */
  double cost_ns;        /* in: predicted nanoseconds, finite, not negative; out: see ADVICE */
  uint64_t chunk_bytes;  /* in: 0, cut as always; out: bytes to cut at, which the host rounds down to
                          * what it can do, or 0 */
} cclTunerCandidate_v1_t;

/* The table. All entries are required. */
typedef struct {
  uint32_t size;    /* sizeof(cclTuner_v1_t) when the plugin was compiled */
  uint32_t version; /* CCL_TUNER_VERSION */
  const char *name; /* 1 to 63 bytes of UTF-8. Valid while loaded */

  /* A context, for each communicator. `settings` are `count` pairs: config_file has what
   * CCL_TUNER_CONFIG_FILE says, if it is set. A failed init leaves nothing behind. */
  int32_t (*init)(const cclHost_v1_t *host, const cclTunerComm_v1_t *comm, const cclSetting_v1_t *settings,
                  uint32_t count, void **context);

  /* Advice on one call: `candidates` are `count` pointers, at least one. Equal questions get equal
   * answers in one context. */
  int32_t (*advise)(void *context, const cclTunerCall_v1_t *call,
                    cclTunerCandidate_v1_t *const *candidates, uint32_t count);

  /* Ends a context, its threads included. The code stays loaded. */
  int32_t (*finalize)(void *context);
} cclTuner_v1_t;

#ifdef __cplusplus
}
#endif

#endif /* CCL_TUNER_H */
