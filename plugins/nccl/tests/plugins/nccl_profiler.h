/* The contract of NCCL's profiler plugins, versions 1 to 6: what a plugin for tests needs of it.
 *
 * PROFILER_VERSION says which; every type is that version's. */
#ifndef NCCL_PROFILER_H
#define NCCL_PROFILER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#if PROFILER_VERSION < 1 || PROFILER_VERSION > 6
#error "PROFILER_VERSION is 1 to 6"
#endif

typedef enum { ncclSuccess = 0, ncclSystemError = 2, ncclInternalError = 3, ncclInvalidUsage = 5 } ncclResult_t;

enum { LOG_WARN = 2, LOG_INFO = 3 };
enum { SUBSYSTEM_PROFILE = 0x4000 };
typedef void (*logger_t)(int level, unsigned long flags, const char *file, int line, const char *format, ...);

/* Bits of the mask, and types of events. */
enum {
  GROUP = 1 << 0,
  COLL = 1 << 1,
  P2P = 1 << 2,
  PROXY_OP = 1 << 3,
  PROXY_STEP = 1 << 4,
  PROXY_CTRL = 1 << 5,
  GROUP_API = 1 << 8,
  COLL_API = 1 << 9,
  P2P_API = 1 << 10
};

/* States. */
enum {
  SEND_GPU_WAIT = 8,
  SEND_WAIT = 9,
  RECV_WAIT = 10,
  RECV_FLUSH_WAIT = 11,
  RECV_GPU_WAIT = 12,
  CTRL_IDLE = 13,
  CTRL_APPEND_END = 18,
  OP_IN_PROGRESS = 19,
  SEND_PEER_WAIT = 20,
  GROUP_START_STOP = 23,
  GROUP_END_START = 24
};

/* Strings are numbers in version 1. */
#if PROFILER_VERSION == 1
typedef uint8_t word_t;
#else
typedef const char *word_t;
#endif

typedef struct {
#if PROFILER_VERSION <= 3
  const char *name;
  uint64_t comm_hash;
#endif
  uint64_t seq_number;
  word_t func;
  const void *send_buff;
  void *recv_buff;
  size_t count;
  int root;
  word_t datatype;
#if PROFILER_VERSION == 1
  uint32_t op;
#endif
#if PROFILER_VERSION <= 2
  size_t traffic_bytes;
#endif
  uint8_t n_channels;
  uint8_t n_warps;
  word_t algo;
  word_t proto;
#if PROFILER_VERSION == 1
  int is_collnet;
  int is_nvls;
#endif
#if PROFILER_VERSION >= 5
  void *parent_group;
#endif
} coll_t;

typedef struct {
#if PROFILER_VERSION <= 3
  const char *name;
  uint64_t comm_hash;
#endif
  word_t func;
  void *buff;
  word_t datatype;
  size_t count;
  int peer;
#if PROFILER_VERSION >= 4
  uint8_t n_channels;
#endif
#if PROFILER_VERSION >= 5
  void *parent_group;
#endif
} p2p_t;

typedef struct {
  int pid;
  uint8_t channel_id;
  int peer;
  int n_steps;
  int chunk_size;
  int is_send;
} proxy_op_t;

typedef struct {
#if PROFILER_VERSION >= 5
  uint64_t type;
#else
  uint8_t type;
#endif
  void *parent;
  int rank;
  union {
#if PROFILER_VERSION >= 5
    struct {
      bool graph_captured;
      int group_depth;
    } group_api;
    struct {
      const char *func;
      size_t count;
      const char *datatype;
      int root;
      void *stream;
      bool graph_captured;
    } coll_api;
    struct {
      const char *func;
      size_t count;
      const char *datatype;
      void *stream;
      bool graph_captured;
    } p2p_api;
#endif
    coll_t coll;
    p2p_t p2p;
    proxy_op_t proxy_op;
    struct {
      int step;
    } proxy_step;
#if PROFILER_VERSION == 6
    uint64_t longest[11]; /* what a copy engine does */
#endif
  };
} event_t;

typedef union {
#if PROFILER_VERSION <= 3
  struct {
    size_t trans_size;
    int steps;
  } proxy_op;
#else
  struct {
    size_t trans_size;
  } proxy_step;
#endif
  struct {
    int appended;
  } proxy_ctrl;
} state_args_t;

#if PROFILER_VERSION == 1
_Static_assert(sizeof(event_t) == 120 && offsetof(event_t, coll.is_nvls) == 112, "version 1");
_Static_assert(offsetof(event_t, coll.traffic_bytes) == 96 && offsetof(event_t, coll.algo) == 106, "version 1");
_Static_assert(offsetof(event_t, p2p.peer) == 72, "version 1");
#elif PROFILER_VERSION == 2
_Static_assert(sizeof(event_t) == 128 && offsetof(event_t, coll.proto) == 120, "version 2");
#elif PROFILER_VERSION == 3
_Static_assert(sizeof(event_t) == 120 && offsetof(event_t, coll.algo) == 104, "version 3");
#elif PROFILER_VERSION == 4
_Static_assert(sizeof(event_t) == 104 && offsetof(event_t, coll.proto) == 96, "version 4");
_Static_assert(offsetof(event_t, p2p.n_channels) == 60, "version 4");
#else
_Static_assert(sizeof(event_t) == 112 && offsetof(event_t, coll.parent_group) == 104, "versions 5 and 6");
_Static_assert(offsetof(event_t, p2p.parent_group) == 64, "versions 5 and 6");
_Static_assert(offsetof(event_t, coll_api.graph_captured) == 64, "versions 5 and 6");
#endif
_Static_assert(offsetof(event_t, rank) == 16 && offsetof(event_t, proxy_op.is_send) == 44, "all versions");
_Static_assert(sizeof(state_args_t) == (PROFILER_VERSION <= 3 ? 16 : 8), "all versions");

#if PROFILER_VERSION <= 3
#define INIT_PARAMETERS void **out, int *mask
#elif PROFILER_VERSION == 4
#define INIT_PARAMETERS \
  void **out, int *mask, const char *name, uint64_t hash, int n_nodes, int n_ranks, int rank, logger_t logger
#else
#define INIT_PARAMETERS \
  void **out, uint64_t hash, int *mask, const char *name, int n_nodes, int n_ranks, int rank, logger_t logger
#endif

typedef struct {
  const char *name;
  ncclResult_t (*init)(INIT_PARAMETERS);
  ncclResult_t (*start_event)(void *context, void **handle, event_t *event);
  ncclResult_t (*stop_event)(void *handle);
  ncclResult_t (*record_event_state)(void *handle, int state, state_args_t *args);
  ncclResult_t (*finalize)(void *context);
} profiler_t;

#endif
