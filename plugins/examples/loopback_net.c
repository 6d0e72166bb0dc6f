/* A network within one process, in C, from ccl_net.h alone: an example to start from.
 *
 * A listener is found by the number in its handle. A connection is one struct that both ends share;
 * posted sends and receives lie in two rings, and test_recv copies straight from the sender's bytes
 * to the receiver's. One lock guards everything; it is never held across a wait.
 */
#include "ccl_net.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SLOTS 32
#define MAX_LISTENERS 64

enum state { FREE, POSTED, DONE };

struct slot {
  enum state state;
  char *data;
  uint64_t bytes;
  uint32_t tag;
  uint64_t order; /* posted when */
};

struct connection {
  struct slot sends[SLOTS];
  struct slot recvs[SLOTS];
  uint64_t next_order;
  int open_ends;
  int send_closed, recv_closed;
  struct context *sender, *receiver;
  struct connection *next; /* in its listener's queue */
};

struct context {
  const cclHost_v1_t *host;
  int aborted;
};

struct listener {
  uint64_t secret;
  struct context *context;
  struct connection *waiting;
};

struct connecting {
  struct connection *connection; /* null once given */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct listener *listeners[MAX_LISTENERS];
static uint64_t next_secret = 0x9e3779b97f4a7c15u;
static _Thread_local cclError_v1_t last;

/* Remembers the words and returns the code. */
static int32_t fail(int32_t code, const char *format, ...) {
  va_list arguments;
  memset(&last, 0, sizeof last);
  last.code = code;
  if (code == CCL_NET_REMOTE) snprintf(last.peer, sizeof last.peer, "loopback");
  va_start(arguments, format);
  vsnprintf(last.message, sizeof last.message, format, arguments);
  va_end(arguments);
  return code;
}

/* Leaves the lock and returns the code. */
static int32_t leave(int32_t code) {
  pthread_mutex_unlock(&lock);
  return code;
}

static int32_t aborted(void) { return leave(fail(CCL_NET_ABORTED, "the context was aborted")); }

static int32_t init(const cclHost_v1_t *host, const cclSetting_v1_t *settings, uint32_t count, void **out) {
  struct context *context = calloc(1, sizeof *context);
  if (!context) return fail(CCL_NET_EXHAUSTED, "out of memory");
  context->host = host;
  for (uint32_t i = 0; i < count; i++) {
    if (strcmp(settings[i].key, "fail") == 0) {
      free(context);
      return fail(CCL_NET_INVALID, "setting fail: expected none, found \"%s\"", settings[i].value);
    }
  }
  if (host && host->log) host->log(host->context, CCL_LOG_INFO, __FILE__, __LINE__, "loopback is ready");
  *out = context;
  return CCL_NET_OK;
}

static int32_t finalize(void *context) {
  free(context);
  return CCL_NET_OK;
}

static int32_t last_error(cclError_v1_t *error) {
  uint32_t size = error->size < sizeof last ? error->size : (uint32_t)sizeof last;
  memcpy(error, &last, size);
  error->size = size;
  return CCL_NET_OK;
}

static int32_t devices(void *context, uint32_t *count) {
  (void)context;
  *count = 1;
  return CCL_NET_OK;
}

static int32_t properties(void *context, uint32_t device, cclNetProperties_v1_t *out) {
  cclNetProperties_v1_t found;
  uint32_t size = out->size < sizeof found ? out->size : (uint32_t)sizeof found;
  (void)context;
  if (device != 0) return fail(CCL_NET_NO_DEVICE, "there is no device %u", device);
  memset(&found, 0, sizeof found);
  found.size = size;
  found.memory_kinds = CCL_NET_HOST;
  found.max_message_bytes = UINT64_C(1) << 40;
  found.speed_mbps = 100000;
  found.max_recvs = 1;
  found.max_requests = SLOTS;
  found.rail = found.plane = -1;
  strcpy(found.name, "loopback0");
  memcpy(out, &found, size);
  return CCL_NET_OK;
}

static int32_t listen_on(void *context, uint32_t device, void *handle, void **out) {
  struct listener *listener = calloc(1, sizeof *listener);
  if (device != 0) {
    free(listener);
    return fail(CCL_NET_NO_DEVICE, "there is no device %u", device);
  }
  if (!listener) return fail(CCL_NET_EXHAUSTED, "out of memory");
  pthread_mutex_lock(&lock);
  if (((struct context *)context)->aborted) {
    free(listener);
    return aborted();
  }
  for (int i = 0; i < MAX_LISTENERS; i++) {
    if (listeners[i]) continue;
    listener->context = context;
    listener->secret = next_secret = next_secret * 6364136223846793005u + 1442695040888963407u;
    memset(handle, 0, CCL_NET_HANDLE_BYTES);
    memcpy(handle, &listener->secret, sizeof listener->secret);
    listeners[i] = listener;
    *out = listener;
    return leave(CCL_NET_OK);
  }
  free(listener);
  return leave(fail(CCL_NET_EXHAUSTED, "more than %d listeners", MAX_LISTENERS));
}

static int32_t accept_one(void *self, void **recv_comm) {
  struct listener *listener = self;
  pthread_mutex_lock(&lock);
  if (listener->context->aborted) return aborted();
  struct connection *connection = listener->waiting;
  *recv_comm = connection;
  if (connection) {
    listener->waiting = connection->next;
    connection->receiver = listener->context;
  }
  return leave(CCL_NET_OK);
}

/* One end less; the last one frees. Called with the lock. */
static void end(struct connection *connection) {
  if (--connection->open_ends == 0) free(connection);
}

static int32_t close_listen(void *self) {
  struct listener *listener = self;
  pthread_mutex_lock(&lock);
  for (int i = 0; i < MAX_LISTENERS; i++)
    if (listeners[i] == listener) listeners[i] = NULL;
  while (listener->waiting) {
    struct connection *connection = listener->waiting;
    listener->waiting = connection->next;
    connection->recv_closed = 1;
    end(connection);
  }
  free(listener);
  return leave(CCL_NET_OK);
}

static int32_t connect_to(void *context, uint32_t device, const void *handle, void **out) {
  uint64_t secret;
  memcpy(&secret, handle, sizeof secret);
  if (device != 0) return fail(CCL_NET_NO_DEVICE, "there is no device %u", device);
  struct connecting *connecting = calloc(1, sizeof *connecting);
  struct connection *connection = calloc(1, sizeof *connection);
  pthread_mutex_lock(&lock);
  for (int i = 0; connecting && connection && i < MAX_LISTENERS; i++) {
    struct connection **last_waiting;
    if (!listeners[i] || listeners[i]->secret != secret) continue;
    connection->sender = context;
    connection->open_ends = 2;
    last_waiting = &listeners[i]->waiting;
    while (*last_waiting) last_waiting = &(*last_waiting)->next;
    *last_waiting = connection;
    connecting->connection = connection;
    *out = connecting;
    return leave(CCL_NET_OK);
  }
  free(connecting);
  free(connection);
  return leave(fail(CCL_NET_REMOTE, "no listener has this handle"));
}

static int32_t poll_connect(void *self, void **send_comm) {
  struct connecting *connecting = self;
  pthread_mutex_lock(&lock);
  *send_comm = NULL;
  if (connecting->connection->sender->aborted) return aborted();
  if (connecting->connection->recv_closed) return leave(fail(CCL_NET_REMOTE, "the listener is gone"));
  if (connecting->connection->receiver) {
    *send_comm = connecting->connection;
    connecting->connection = NULL;
  }
  return leave(CCL_NET_OK);
}

static int32_t close_connect(void *self) {
  struct connecting *connecting = self;
  pthread_mutex_lock(&lock);
  if (connecting->connection) {
    connecting->connection->send_closed = 1;
    end(connecting->connection);
  }
  free(connecting);
  return leave(CCL_NET_OK);
}

static int32_t reg_mr(void *comm, uint32_t side, const cclMemory_v1_t *memory, void **mr) {
  (void)comm, (void)side;
  if (memory->kind != CCL_NET_HOST)
    return fail(CCL_NET_UNSUPPORTED, "expected host memory, found kind %u", memory->kind);
  *mr = NULL;
  return CCL_NET_OK;
}

static int32_t dereg_mr(void *comm, uint32_t side, void *mr) {
  (void)comm, (void)side, (void)mr;
  return CCL_NET_OK;
}

/* Takes a free slot, or none: not now. Called with the lock. */
static struct slot *post(struct connection *c, struct slot *ring, const void *data, uint64_t bytes, uint32_t tag) {
  for (int i = 0; i < SLOTS; i++) {
    if (ring[i].state != FREE) continue;
    ring[i] = (struct slot){POSTED, (char *)data, bytes, tag, c->next_order++};
    return &ring[i];
  }
  return NULL;
}

/* The oldest posted slot, with this tag unless any will do. Called with the lock. */
static struct slot *oldest(struct slot *ring, const uint32_t *tag) {
  struct slot *found = NULL;
  for (int i = 0; i < SLOTS; i++) {
    if (ring[i].state != POSTED || (tag && ring[i].tag != *tag)) continue;
    if (!found || ring[i].order < found->order) found = &ring[i];
  }
  return found;
}

/* Gives messages to receives, oldest message first. Called with the lock. */
static int32_t match(struct connection *c) {
  struct slot *send, *recv;
  while ((send = oldest(c->sends, NULL)) && (recv = oldest(c->recvs, &send->tag))) {
    if (send->bytes > recv->bytes)
      return fail(CCL_NET_TOO_LONG, "a message of %llu bytes is longer than the %llu bytes posted for it",
                  (unsigned long long)send->bytes, (unsigned long long)recv->bytes);
    if (send->bytes) memcpy(recv->data, send->data, send->bytes);
    recv->bytes = send->bytes;
    send->state = recv->state = DONE;
  }
  return CCL_NET_OK;
}

static int32_t isend(void *comm, const void *data, uint64_t bytes, uint32_t tag, void *mr, void **request) {
  struct connection *c = comm;
  (void)mr;
  pthread_mutex_lock(&lock);
  if (c->sender->aborted) return aborted();
  if (c->recv_closed) return leave(fail(CCL_NET_REMOTE, "the receiving end is closed"));
  *request = post(c, c->sends, data, bytes, tag);
  return leave(CCL_NET_OK);
}

static int32_t irecv(void *comm, uint32_t n, void *const *data, const uint64_t *bytes, const uint32_t *tags,
                     void *const *mrs, void **request) {
  struct connection *c = comm;
  (void)mrs;
  if (n != 1) return fail(CCL_NET_INVALID, "expected 1 buffer, found %u", n);
  pthread_mutex_lock(&lock);
  if (c->receiver->aborted) return aborted();
  *request = post(c, c->recvs, data[0], bytes[0], tags[0]);
  return leave(CCL_NET_OK);
}

static int32_t test_send(void *comm, void *request, uint32_t *done) {
  struct connection *c = comm;
  struct slot *slot = request;
  pthread_mutex_lock(&lock);
  *done = slot->state == DONE;
  if (*done) slot->state = FREE;
  else if (c->sender->aborted) return aborted();
  else if (c->recv_closed) return leave(fail(CCL_NET_REMOTE, "the receiving end is closed"));
  return leave(CCL_NET_OK);
}

static int32_t test_recv(void *comm, void *request, uint32_t *done, uint64_t *bytes) {
  struct connection *c = comm;
  struct slot *slot = request;
  int32_t code;
  pthread_mutex_lock(&lock);
  if (c->receiver->aborted) return aborted();
  code = match(c);
  *done = slot->state == DONE;
  if (*done) {
    bytes[0] = slot->bytes;
    slot->state = FREE;
    code = CCL_NET_OK;
  } else if (code == CCL_NET_OK && c->send_closed) {
    code = fail(CCL_NET_REMOTE, "the sending end is closed");
  }
  return leave(code);
}

/* Sends that nobody took are gone with the sender: their bytes are the host's again. */
static int32_t close_send(void *comm) {
  struct connection *c = comm;
  pthread_mutex_lock(&lock);
  memset(c->sends, 0, sizeof c->sends);
  c->send_closed = 1;
  end(c);
  return leave(CCL_NET_OK);
}

static int32_t close_recv(void *comm) {
  struct connection *c = comm;
  pthread_mutex_lock(&lock);
  memset(c->recvs, 0, sizeof c->recvs);
  c->recv_closed = 1;
  end(c);
  return leave(CCL_NET_OK);
}

static int32_t abort_all(void *context) {
  pthread_mutex_lock(&lock);
  ((struct context *)context)->aborted = 1;
  return leave(CCL_NET_OK);
}

#ifndef LOOPBACK_VERSION
#define LOOPBACK_VERSION CCL_NET_VERSION
#endif

#if defined(__GNUC__)
__attribute__((visibility("default")))
#endif
const cclNet_v1_t cclNet_v1 = {
    .size = sizeof(cclNet_v1_t),
    .version = LOOPBACK_VERSION,
    .name = "loopback-c",
    .init = init,
    .finalize = finalize,
    .last_error = last_error,
    .devices = devices,
    .properties = properties,
    .listen = listen_on,
    .accept = accept_one,
    .close_listen = close_listen,
    .connect = connect_to,
    .poll_connect = poll_connect,
    .close_connect = close_connect,
    .reg_mr = reg_mr,
    .dereg_mr = dereg_mr,
    .isend = isend,
    .irecv = irecv,
    .test_send = test_send,
    .test_recv = test_recv,
    .close_send = close_send,
    .close_recv = close_recv,
    .abort = abort_all,
};
