/* ccl_net.h: the contract between ccl and a network plugin, version 1.
 *
 * A plugin is a shared library that exports one symbol: a static table named cclNet_v1.
 *
 *     const cclNet_v1_t cclNet_v1 = { sizeof(cclNet_v1_t), CCL_NET_VERSION, "mynet", ... };
 *
 * This file is enough to write one. It is C11 and C++11, needs no other header of ccl and none of
 * CUDA. plugins/examples/loopback_net.c is a whole plugin. `ccl plugin check FILE` drives a plugin
 * through the clauses below, one at a time, and says which it breaks; `ccl plugin check --clauses` lists
 * them. In Rust, use the crate ccl-plugin instead.
 *
 * HOW IT GROWS
 *   The table, and every struct that begins with `size`, grows only at its end. Whoever fills such a
 *   struct's `size` says how much of it there is; the other side reads and writes no more than that.
 *   A change of meaning gets a new symbol (cclNet_v2), never a new meaning for an old one.
 *
 * OBJECTS
 *
 *     context ──listen──> listener ──accept──────────> recv comm ──irecv──> request ──test_recv──> end
 *        │                                                ^
 *        └────connect──> connecting ──poll_connect──> send comm ──isend──> request ──test_send──> end
 *
 *   A connection has a sending and a receiving end; data goes one way. To talk both ways, peers make
 *   two connections, or turn one (see turn). A listener may accept any number of connections, from one peer or many. The
 *   host closes everything it opened, once each, in any order but this: a context is finalised after
 *   all that was made from it is closed. A comm outlives the listener or connecting it came from.
 *
 *     connecting:   connect ──> polling ──(comm given | error)──> close_connect
 *     comm:         open ──(error in any call)──> broken ──> close_send / close_recv
 *     request:      posted ──> pending ──test: done = 1, or an error──> dead
 *
 *   On a broken comm the host tests what it has in flight (requests that finished are reported done,
 *   the others fail), and closes it. A request is never tested after it is dead. Requests that are
 *   not dead when their comm is closed end with it.
 *
 * NOTHING BLOCKS
 *   Every entry returns at once: no waiting for a peer, a lock held across a wait, or the network.
 *   "Not yet" is a value: a null pointer from accept, poll_connect, isend, irecv, flush, put, get and
 *   signal; done = 0 from the tests. It is not an error, and the host asks again later, with the same
 *   arguments unless it gave up. Progress happens inside calls, or on threads of the plugin's own,
 *   which finalize ends. The host keeps calling: an entry needs no help but the next call.
 *
 * THREADS
 *   init, and every entry that takes a context, may be called from any thread, several at a time,
 *   also for the same context. A listener, a connecting and a comm are used by one thread at a time,
 *   not always the same one; different objects by different threads at the same time, also the two
 *   ends of one connection. abort may come from any thread during any other call but finalize.
 *   last_error speaks of the calling thread.
 *
 * ERRORS
 *   An entry returns CCL_NET_OK or a code below; out parameters count only after CCL_NET_OK. A host
 *   treats a code it does not know like CCL_NET_INTERNAL. Right after an error the host asks
 *   last_error, on the same thread, for words and the peer's address: users see them. C++ exceptions
 *   and Rust panics must not leave an entry.
 *
 * MEMORY
 *   Each side frees what it made. Pointers given to an entry are valid during the call, unless stated
 *   otherwise: the host table (until finalize), and the bytes of messages (until their request is
 *   dead or the comm is closed; after that the plugin must not touch them, not even from hardware).
 *   The host never changes the bytes of a pending send, and touches those of a pending receive only
 *   after it is done. Bytes of a receive past the end of its message are undefined.
 *
 * ORDER
 *   A message goes to the oldest posted receive of the connection with the same tag, among the
 *   receives of a group also. Messages with one tag arrive in the order sent. A message whose tag has
 *   no posted receive may hold up all later ones of its connection: the host promises to post what it
 *   knows to come, in an order in which waiting for the oldest does not need a younger. Sends may be
 *   done before the peer has posted anything, or only after; the host relies on neither. A receive is
 *   done when all of its bytes are visible to the host (for device memory: see flush).
 */
#ifndef CCL_NET_H
#define CCL_NET_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define CCL_NET_VERSION 1u
#define CCL_NET_HANDLE_BYTES 128
#define CCL_NET_KEY_BYTES 64
/* Most buffers a host groups in one irecv, whatever max_recvs says. */
#define CCL_NET_MAX_RECVS 8

/* Codes. "Not yet" is none of them. */
enum {
  CCL_NET_OK = 0,
  CCL_NET_INVALID = 1,     /* the host broke this contract, or a setting is wrong */
  CCL_NET_SYSTEM = 2,      /* a call to the system or a driver failed; set os_error */
  CCL_NET_REMOTE = 3,      /* the peer is gone, refused, or broke the wire protocol; set peer */
  CCL_NET_TIMEOUT = 4,     /* a deadline of the plugin's own passed */
  CCL_NET_TOO_LONG = 5,    /* a message is longer than the buffer posted for it; say both sizes */
  CCL_NET_UNSUPPORTED = 6, /* the plugin does not do this */
  CCL_NET_NO_DEVICE = 7,   /* no such device, or none that works */
  CCL_NET_EXHAUSTED = 8,   /* out of memory, queue pairs, ... */
  CCL_NET_ABORTED = 9,     /* the context was aborted */
  CCL_NET_INTERNAL = 10,   /* an invariant of the plugin does not hold */
  CCL_NET_PANIC = 11       /* the plugin threw or panicked; the object can only be closed */
};

/* Kinds of memory; also bits of memory_kinds. */
enum { CCL_NET_HOST = 1, CCL_NET_CUDA = 2, CCL_NET_DMABUF = 4 };

/* Bits of flags. */
enum {
  CCL_NET_NEEDS_FLUSH = 1, /* flush after each receive into device memory */
  CCL_NET_ONE_SIDED = 2,   /* export_mr, put, get and signal are there */
  CCL_NET_ANY_MEMORY = 4   /* registering host memory costs next to nothing: done for one message */
};

/* Which end of a connection `comm` is. */
enum { CCL_NET_SEND = 1, CCL_NET_RECV = 2 };

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

/* Words for a failed call. */
typedef struct {
  uint32_t size;     /* in: bytes of this struct as the host knows it */
  int32_t code;      /* the code that was returned; CCL_NET_OK if this thread had no error */
  int32_t os_error;  /* errno, or 0 */
  uint32_t reserved; /* 0 */
  char peer[80];     /* address of the peer involved, as users know it, or empty; NUL-terminated */
  char message[416]; /* "expected ..., found ..."; NUL-terminated */
} cclError_v1_t;

/* Memory to register. */
typedef struct {
  uint32_t size;          /* bytes of this struct as the host knows it */
  uint32_t kind;          /* CCL_NET_HOST, CCL_NET_CUDA or CCL_NET_DMABUF */
  uint64_t address;       /* what isend and irecv will name; a device address for device memory */
  uint64_t bytes;
  uint64_t dmabuf_offset; /* for DMABUF: where in the exported buffer address lies */
  int32_t dmabuf_fd;      /* for DMABUF: the host's descriptor, open during the call; else -1 */
  int32_t device;         /* CUDA ordinal, -1 for host memory */
} cclMemory_v1_t;

/* What a device is. The host sets size and zeroes the rest; the plugin fills at most size bytes. */
typedef struct {
  uint32_t size;
  uint32_t memory_kinds;      /* bits: what reg_mr takes. HOST is required */
  uint32_t flags;             /* bits */
  uint32_t port;              /* port on the chip, from 1; 0 unknown */
  uint64_t guid;              /* equal for devices that share one chip's bandwidth */
  uint64_t max_message_bytes; /* longest message; the host posts no longer one. 1 MiB and more is well;
                               * less than its slots need is an error that says how much they do */
  uint32_t speed_mbps;        /* 10^6 bits per second; 0 unknown */
  uint32_t latency_ns;        /* one way, added by the network; 0 unknown */
  uint32_t max_comms;         /* connections at a time; 0 no limit */
  uint32_t max_recvs;         /* buffers in one irecv, 1 to CCL_NET_MAX_RECVS */
  uint32_t max_requests;      /* requests in flight per comm, at least 8 */
  int32_t rail;               /* -1 unknown */
  int32_t plane;              /* -1 unknown */
  uint32_t reserved;          /* 0 */
  char name[64];              /* NUL-terminated */
  char pci_path[256];         /* directory in /sys/devices, or empty; NUL-terminated */
} cclNetProperties_v1_t;

/* What to look at to hear of news: laid out as struct pollfd is on POSIX systems. */
typedef struct {
  int32_t descriptor;
  int16_t events; /* as for poll(2) */
  int16_t reserved; /* 0 */
} cclWatch_v1_t;

/* The table. Entries up to close_recv are required, those after it may be null. */
typedef struct {
  uint32_t size;    /* sizeof(cclNet_v1_t) when the plugin was compiled */
  uint32_t version; /* CCL_NET_VERSION */
  const char *name; /* 1 to 63 bytes of UTF-8; what CCL_NET names. Valid while loaded */

  /* A context. Called for every communicator. A failed init leaves nothing behind and does not use
   * host after it returns. Without any device init may succeed: devices then says 0. */
  int32_t (*init)(const cclHost_v1_t *host, const cclSetting_v1_t *settings, uint32_t setting_count,
                  void **context);

  /* Ends a context, its threads included. The code stays loaded for the life of the process. */
  int32_t (*finalize)(void *context);

  /* Words for the last call of this thread that failed. Fills at most error->size bytes. */
  int32_t (*last_error)(cclError_v1_t *error);

  /* Number of devices; the same for the life of the context. */
  int32_t (*devices)(void *context, uint32_t *count);

  int32_t (*properties)(void *context, uint32_t device, cclNetProperties_v1_t *properties);

  /* Fills all CCL_NET_HANDLE_BYTES of handle (zeros where it needs fewer). The host carries them to
   * peers. A handle may be used any number of times while the listener is open; keep a secret in it,
   * and admit nobody who does not know it. */
  int32_t (*listen)(void *context, uint32_t device, void *handle, void **listener);

  /* The next connection, or null: not yet. Strangers at the port, or a peer that vanished while
   * connecting, are not errors. */
  int32_t (*accept)(void *listener, void **recv_comm);

  /* Connections that were not accepted are refused. */
  int32_t (*close_listen)(void *listener);

  /* Starts connecting. handle is valid during the call only: copy it. */
  int32_t (*connect)(void *context, uint32_t device, const void *handle, void **connecting);

  /* The sending end, once; or null: not yet. May need the peer to call accept, and no more than
   * that. After a comm or an error it is not called again. */
  int32_t (*poll_connect)(void *connecting, void **send_comm);

  /* Gives up if the comm was not given yet. */
  int32_t (*close_connect)(void *connecting);

  /* Makes memory usable in calls on this comm, all of it or parts; the same memory may be registered
   * several times. mr is the plugin's, and may be null if it needs none. Slow is fine. */
  int32_t (*reg_mr)(void *comm, uint32_t side, const cclMemory_v1_t *memory, void **mr);

  /* No pending request uses it. Closing a comm ends the registrations it still has. */
  int32_t (*dereg_mr)(void *comm, uint32_t side, void *mr);

  /* Posts a message; *request null: not now. bytes may be 0, then data may be null. */
  int32_t (*isend)(void *send_comm, const void *data, uint64_t bytes, uint32_t tag, void *mr,
                   void **request);

  /* Posts n receives, 1 to max_recvs, that are one request: done when all n messages are there.
   * *request null: not now, and none of the n was posted. The arrays are valid during the call only: copy
   * them; data[i] is written to until the request is dead. bytes[i] is its room, and may be 0. */
  int32_t (*irecv)(void *recv_comm, uint32_t n, void *const *data, const uint64_t *bytes,
                   const uint32_t *tags, void *const *mrs, void **request);

  /* For requests of isend, put, get and signal. Writes 0 or 1 to *done. A request whose test fails is dead. */
  int32_t (*test_send)(void *send_comm, void *request, uint32_t *done);

  /* For requests of irecv and flush. When done, the n lengths received, in the order of the buffers;
   * bytes has room for CCL_NET_MAX_RECVS. */
  int32_t (*test_recv)(void *recv_comm, void *request, uint32_t *done, uint64_t *bytes);

  /* Ends the comm, whatever is pending. What was reported done still reaches the peer. */
  int32_t (*close_send)(void *send_comm);
  int32_t (*close_recv)(void *recv_comm);

  /* --- optional from here --- */

  /* test_send of n requests of one comm. An error is about the first request that is not done. */
  int32_t (*test_sends)(void *send_comm, uint32_t n, void *const *requests, uint32_t *done);

  /* test_recv of n requests of one buffer each; bytes has n entries. */
  int32_t (*test_recvs)(void *recv_comm, uint32_t n, void *const *requests, uint32_t *done,
                        uint64_t *bytes);

  /* Makes bytes that were received visible to the device they are on; required if NEEDS_FLUSH is
   * set. *request null: they are visible already. */
  int32_t (*flush)(void *recv_comm, uint32_t n, void *const *data, const uint64_t *bytes,
                   void *const *mrs, void **request);

  /* Every later call on the context's objects but closing fails with CCL_NET_ABORTED, and none is
   * held up any more. May be called more than once. Without this entry the host closes what it has,
   * as soon as the calls that are running return. */
  int32_t (*abort)(void *context);

  /* One-sided: fills CCL_NET_KEY_BYTES by which the other end of this connection names the memory. */
  int32_t (*export_mr)(void *recv_comm, void *mr, void *key);

  /* One-sided: writes to, and reads from, the peer's memory at offset_bytes from its beginning. Done
   * when the local bytes may be reused, or are there. Out of bounds is CCL_NET_INVALID. */
  int32_t (*put)(void *send_comm, const void *data, uint64_t bytes, void *mr, const void *key,
                 uint64_t offset_bytes, void **request);
  int32_t (*get)(void *send_comm, void *data, uint64_t bytes, void *mr, const void *key,
                 uint64_t offset_bytes, void **request);

  /* One-sided: atomically adds value to a uint64_t of the peer, aligned to 8 bytes, which sees it
   * after all bytes of earlier puts on this comm. */
  int32_t (*signal)(void *send_comm, const void *key, uint64_t offset_bytes, uint64_t value,
                    void **request);

  /* The other direction of a connection, once for each of its ends: of a send comm the comm that
   * receives what the peer sends, of a recv comm the one that sends to the peer. A plugin that has
   * this entry has it for all connections, and the host then makes one where it would make two.
   *
   * The host may ask at any time, at both ends, in any order; the new direction carries messages once
   * both ends have been asked. From then on a side has two objects, each with threads, registrations,
   * requests, errors and a close of its own. Closing a send comm ends its direction for the peer,
   * after all that was reported done. Closing a recv comm whose other one is open need not reach the
   * peer, whose sends may stay pending until both are closed. A peer that goes on sending after that
   * may miss some of what was sent to it. */
  int32_t (*turn)(void *comm, uint32_t side, void **other);

  /* isend of a message that the host follows up at once: it may be held until the next isend or
   * test_send on this comm, so that both leave together. Without this entry the host calls isend. */
  int32_t (*isend_more)(void *send_comm, const void *data, uint64_t bytes, uint32_t tag, void *mr,
                        void **request);

  /* Where news of what is pending on the comm comes from: a host that has nothing else to do sleeps
   * in poll(2) on these, of all its comms, and then tests again. *count is how many there are, of
   * which the first n are filled in; 0, or more than n: the host wakes up by itself, and more often.
   * Asked right after tests that found nothing done. What is pending must not become done without
   * one of them being ready; one that is ready for nothing costs time. The host only ever polls them,
   * for a moment that may outlive the comm. */
  int32_t (*watch)(void *comm, uint32_t side, uint32_t n, cclWatch_v1_t *watched, uint32_t *count);

  /* isend of a message of which only the first head_bytes, fewer than bytes, are at message; the others
   * are at data, in host memory that need not be registered. A plugin that can send them from there
   * before it returns does; what is not sent by then it copies to its place in message, which is
   * writable, and sends from there. It does not use data after this call. Null request: not now, and
   * nothing of message was written. */
  int32_t (*isend_from)(void *send_comm, void *message, uint64_t bytes, uint32_t tag, void *mr,
                        uint64_t head_bytes, const void *data, void **request);
} cclNet_v1_t;

#ifdef __cplusplus
}
#endif

#endif /* CCL_NET_H */
