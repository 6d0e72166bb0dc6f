/* A network that keeps the contract, or breaks one clause of it: the one that PLANTED names.
 *
 * The network of plugins/examples/loopback_net.c, with groups of receives, abort, batched tests and one-sided
 * operations, turned connections and descriptors around it, and a place for each breach.
 */
#define _GNU_SOURCE
#include "ccl_net.h"

/* The example's table under another name. */
#define cclNet_v1 inner
#include "../../../../plugins/examples/loopback_net.c"
#undef cclNet_v1

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

/* Whether this breach is asked for. */
static int planted(const char *name) {
  const char *asked = getenv("PLANTED");
  return asked && strcmp(asked, name) == 0;
}

static void sleep_ms(long ms) {
  struct timespec time = {ms / 1000, ms % 1000 * 1000000};
  nanosleep(&time, NULL);
}

/* A send, or a group of receives. */
struct request {
  uint32_t n, seen;
  void *inner[CCL_NET_MAX_RECVS];
  void *data[CCL_NET_MAX_RECVS];
  uint64_t room[CCL_NET_MAX_RECVS], bytes[CCL_NET_MAX_RECVS];
  int done[CCL_NET_MAX_RECVS];
  char *copy; /* of a message to send, if it was changed */
  uint32_t tests;
};

/* What a breach leaves for a thread that comes later. */
static void *held_data;
static uint64_t held_bytes;
static char *held_copy;
static void *late_target;
static int contexts, all_contexts, posted_sends, all_aborted;
static pthread_t first_thread;
static cclError_v1_t shared;

static int32_t p_init(const cclHost_v1_t *host, const cclSetting_v1_t *settings, uint32_t count, void **out) {
  if (planted("second_init") && contexts > 0) return fail(CCL_NET_EXHAUSTED, "one context is enough");
  if (planted("fifty_contexts") && all_contexts >= 50) return fail(CCL_NET_EXHAUSTED, "fifty contexts are enough");
  contexts++;
  all_contexts++;
  first_thread = pthread_self();
  return init(host, settings, count, out);
}

static void *idle(void *unused) {
  (void)unused;
  for (;;) pause();
  return NULL;
}

static int32_t p_finalize(void *context) {
  if (planted("finalize_fails")) return fail(CCL_NET_INTERNAL, "it will not end");
  if (planted("finalize_hangs")) for (;;) pause();
  contexts--;
  return finalize(context);
}

static int32_t p_last_error(cclError_v1_t *error) {
  int32_t code;
  if (planted("last_error_overruns")) {
    memcpy((char *)error + 4, (char *)&last + 4, sizeof last - 4);
    memset(error->message, 'x', 8);
    return CCL_NET_OK;
  }
  if (planted("shared_words")) {
    if (last.code) shared = last;
    last = shared;
  }
  code = last_error(error);
  if (planted("no_words") && error->size > 96) error->message[0] = 0;
  if (planted("other_code") && error->code) error->code = CCL_NET_TIMEOUT;
  if (planted("no_peer") && error->size > 16) error->peer[0] = 0;
  return code;
}

static int32_t p_properties(void *context, uint32_t device, cclNetProperties_v1_t *out) {
  cclNetProperties_v1_t found;
  uint32_t size = out->size < sizeof found ? out->size : (uint32_t)sizeof found;
  int32_t code;
  memset(&found, 0, sizeof found);
  found.size = sizeof found;
  if ((code = properties(context, device, &found))) return planted("device_beyond") ? CCL_NET_OK : code;
  found.max_recvs = planted("max_recvs_lied") ? 8 : 4;
  found.flags = CCL_NET_ONE_SIDED;
  if (planted("few_requests")) found.max_requests = 2;
  if (planted("many_requests")) found.max_requests = 64;
  found.size = out->size;
  memcpy(out, &found, planted("properties_overrun") ? sizeof found : size);
  return CCL_NET_OK;
}

static int32_t p_listen(void *context, uint32_t device, void *handle, void **out) {
  int32_t code;
  if (planted("listen_leaks_thread")) {
    pthread_t thread;
    pthread_create(&thread, NULL, idle, NULL);
    pthread_detach(thread);
  }
  if (planted("short_handle")) {
    unsigned char whole[CCL_NET_HANDLE_BYTES];
    if ((code = listen_on(context, device, whole, out))) return code;
    memcpy(handle, whole, 8);
    return CCL_NET_OK;
  }
  code = listen_on(context, device, handle, out);
  if (code == CCL_NET_OK && planted("long_handle")) memset((char *)handle + CCL_NET_HANDLE_BYTES, 0, 8);
  return code;
}

static int32_t p_accept(void *listener, void **recv_comm) {
  int32_t code;
  if (planted("slow_accept")) sleep_ms(100);
  if (planted("accept_hangs")) for (;;) pause();
  code = accept_one(listener, recv_comm);
  if (planted("leaks_descriptor") && code == CCL_NET_OK && *recv_comm) (void)!open("/dev/null", O_RDONLY);
  return code;
}

static int32_t p_close_listen(void *self) {
  if (planted("no_refusal")) {
    /* Whoever waits is never told. */
    struct listener *listener = self;
    pthread_mutex_lock(&lock);
    listener->waiting = NULL;
    pthread_mutex_unlock(&lock);
  }
  return close_listen(self);
}

static int32_t p_connect(void *context, uint32_t device, const void *handle, void **out) {
  uint64_t secret = 0;
  if (planted("connect_waits")) sleep_ms(80);
  if (planted("wrong_listener")) {
    /* Whichever listener is youngest. */
    pthread_mutex_lock(&lock);
    for (int i = 0; i < MAX_LISTENERS; i++)
      if (listeners[i]) secret = listeners[i]->secret;
    pthread_mutex_unlock(&lock);
    return connect_to(context, device, &secret, out);
  }
  return connect_to(context, device, handle, out);
}

static int32_t p_poll_connect(void *connecting, void **send_comm) {
  return poll_connect(connecting, send_comm);
}

static int32_t p_reg_mr(void *comm, uint32_t side, const cclMemory_v1_t *memory, void **mr) {
  static int registered;
  if (planted("register_once") && registered++ > 4) return fail(CCL_NET_EXHAUSTED, "five are enough");
  if (planted("any_kind") && memory->kind != CCL_NET_HOST) return *mr = NULL, CCL_NET_OK;
  cclMemory_v1_t *known;
  int32_t code = reg_mr(comm, side, memory, mr);
  if (code) return code;
  if (!(known = malloc(sizeof *known))) return fail(CCL_NET_EXHAUSTED, "out of memory");
  *known = *memory;
  *mr = known;
  return CCL_NET_OK;
}

static int32_t p_dereg_mr(void *comm, uint32_t side, void *mr) {
  (void)comm, (void)side;
  free(mr);
  return CCL_NET_OK;
}

static struct request *made(uint32_t n) {
  struct request *request = calloc(1, sizeof *request);
  request->n = n;
  return request;
}

static int32_t p_isend(void *comm, const void *data, uint64_t bytes, uint32_t tag, void *mr, void **out) {
  struct request *request = made(1);
  struct connection *c = comm;
  int32_t code;
  request->room[0] = bytes;
  if (planted("crashes")) __builtin_trap();
  if (all_aborted) return fail(CCL_NET_ABORTED, "everything was aborted");
  if (planted("isend_waits")) sleep_ms(80);
  if (planted("one_thread") && !pthread_equal(first_thread, pthread_self()))
    return fail(CCL_NET_INVALID, "not on the thread of init");
  if (planted("wants_room")) {
    int found = 0;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < SLOTS; i++) found |= c->recvs[i].state == POSTED;
    pthread_mutex_unlock(&lock);
    if (!found) return fail(CCL_NET_INVALID, "no receive is posted");
  }
  if (planted("fails_on_zero") && bytes == 0) return fail(CCL_NET_INVALID, "a message of 0 bytes");
  if (planted("ignores_tags")) tag = 0;
  if (planted("drops_last_byte") && bytes > 1) bytes--;
  if (planted("not_now_posts") && posted_sends++ % 8 == 3) {
    /* Posted all the same. */
    void *unused;
    if ((code = isend(comm, data, bytes, tag, mr, &unused))) return code;
    *out = NULL;
    free(request);
    return CCL_NET_OK;
  }
  if (planted("flips_a_byte") && bytes > 1000) {
    request->copy = malloc(bytes);
    memcpy(request->copy, data, bytes);
    request->copy[bytes / 2] ^= 1;
    data = request->copy;
  }
  if (planted("scribbles") && bytes > 1000) ((char *)(uintptr_t)data)[bytes - 1] ^= 1;
  code = isend(comm, data, bytes, tag, mr, &request->inner[0]);
  *out = code == CCL_NET_OK && request->inner[0] ? request : NULL;
  if (*out && planted("reorders") && bytes > 0) {
    /* The youngest of a tag changes places with the one before. */
    struct slot *mine = request->inner[0], *before = NULL;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < SLOTS; i++)
      if (c->sends[i].state == POSTED && &c->sends[i] != mine && c->sends[i].tag == tag &&
          (!before || c->sends[i].order > before->order))
        before = &c->sends[i];
    if (before) {
      uint64_t order = before->order;
      before->order = mine->order;
      mine->order = order;
    }
    pthread_mutex_unlock(&lock);
  }
  if (!*out) free(request);
  return code;
}

static int32_t p_isend_more(void *comm, const void *data, uint64_t bytes, uint32_t tag, void *mr, void **out) {
  static char lost[1];
  int32_t code;
  if (!planted("loses_held")) return p_isend(comm, data, bytes, tag, mr, out);
  code = p_isend(comm, lost, 0, 0xffff, mr, out);
  return code;
}

static int32_t p_isend_from(void *comm, void *message, uint64_t bytes, uint32_t tag, void *mr, uint64_t head_bytes,
                            const void *data, void **out) {
  static int declined;
  if (planted("writes_and_declines") && declined++ % 4 == 0) return memset(message, 0, bytes), *out = NULL, CCL_NET_OK;
  if (!planted("sends_unfilled")) memcpy((char *)message + head_bytes, data, bytes - head_bytes);
  return p_isend(comm, message, bytes, tag, mr, out);
}

static int32_t p_test_send(void *comm, void *self, uint32_t *done) {
  struct request *request = self;
  int32_t code;
  if (planted("never_done")) return *done = 0, CCL_NET_OK;
  if (planted("done_early") && !request->copy) {
    /* Reported sent, and lost if the comm is closed before there is a receive. */
    return *done = 1, CCL_NET_OK;
  }
  code = test_send(comm, request->inner[0], done);
  if (code == CCL_NET_OK && *done) {
    free(request->copy);
    free(request);
  }
  return code;
}

static int32_t p_irecv(void *comm, uint32_t n, void *const *data, const uint64_t *bytes, const uint32_t *tags,
                       void *const *mrs, void **out) {
  struct connection *c = comm;
  uint32_t most = planted("max_recvs_lied") ? 1 : 4, free_slots = 0;
  int32_t code = CCL_NET_OK;
  if (n > most) return fail(CCL_NET_INVALID, "expected at most %u buffers, found %u", most, n);
  if (planted("irecv_waits")) sleep_ms(80);
  pthread_mutex_lock(&lock);
  for (int i = 0; i < SLOTS; i++) free_slots += c->recvs[i].state == FREE;
  pthread_mutex_unlock(&lock);
  *out = NULL;
  if (free_slots < n && !c->receiver->aborted) return CCL_NET_OK;
  struct request *request = made(n);
  for (uint32_t i = 0; i < n && code == CCL_NET_OK; i++) {
    request->data[i] = data[i];
    request->room[i] = bytes[i];
    uint32_t tag = planted("ignores_tags") ? 0 : tags[i];
    code = irecv(comm, 1, &data[i], &bytes[i], &tag, &mrs[i], &request->inner[i]);
  }
  if (code == CCL_NET_OK) *out = request;
  return code;
}

/* Writes what was received a little after it was reported. */
static void *later(void *unused) {
  (void)unused;
  sleep_ms(30);
  memcpy(held_data, held_copy, held_bytes);
  return NULL;
}

static int32_t p_test_recv(void *comm, void *self, uint32_t *done, uint64_t *bytes) {
  struct request *request = self;
  struct connection *c = comm;
  *done = 0;
  if (planted("done_unasked") && request->tests++ > 3) return *done = 1, bytes[0] = 0, CCL_NET_OK;
  if (planted("oldest_first"))
    for (int i = 0; i < SLOTS; i++)
      if (c->recvs[i].state != FREE && c->recvs[i].order < ((struct slot *)request->inner[0])->order) return CCL_NET_OK;
  for (uint32_t i = 0; i < request->n; i++) {
    uint32_t this_done = 0;
    int32_t code;
    if (request->done[i]) continue;
    code = test_recv(comm, request->inner[i], &this_done, &request->bytes[i]);
    if (code == CCL_NET_TOO_LONG && planted("too_long_cut")) return *done = 1, bytes[0] = request->room[0], CCL_NET_OK;
    if (code == CCL_NET_TOO_LONG && planted("too_long_unsaid")) return fail(code, "it is too long");
    if (planted("silent_death") && code == CCL_NET_REMOTE) return CCL_NET_OK;
    if (planted("abort_ignored") && code == CCL_NET_ABORTED) return CCL_NET_OK;
    if (code) return code;
    if (!this_done) {
      continue;
    }
    request->done[i] = 1;
    request->seen++;
  }
  if (planted("half_a_group") && request->n > 1 && request->seen >= 1) request->seen = request->n;
  if (request->seen < request->n) return CCL_NET_OK;
  *done = 1;
  for (uint32_t i = 0; i < request->n; i++) bytes[i] = request->bytes[i];
  if (planted("wrong_size")) bytes[0] = request->room[0];
  if (planted("sizes_backwards") && request->n > 1)
    for (uint32_t i = 0; i < request->n; i++) bytes[i] = request->bytes[request->n - 1 - i];
  if (planted("past_the_end") && request->room[0]) ((char *)request->data[0])[request->room[0]] = 1;
  if (planted("bytes_come_later") && bytes[0] > 4000) {
    pthread_t thread;
    held_data = request->data[0], held_bytes = bytes[0];
    held_copy = malloc(held_bytes);
    memcpy(held_copy, held_data, held_bytes);
    memset(held_data, 0, held_bytes);
    pthread_create(&thread, NULL, later, NULL);
    pthread_detach(thread);
  }
  if (planted("completes_twice")) {
    /* The next receive gets the same message once more. */
    pthread_mutex_lock(&lock);
    for (int i = 0; i < SLOTS; i++)
      if (c->recvs[i].state == POSTED) {
        c->recvs[i].state = DONE;
        c->recvs[i].bytes = bytes[0];
        break;
      }
    pthread_mutex_unlock(&lock);
  }
  free(request);
  return CCL_NET_OK;
}

static int32_t p_test_sends(void *comm, uint32_t n, void *const *requests, uint32_t *done) {
  for (uint32_t i = 0; i < n; i++) {
    int32_t code = p_test_send(comm, requests[i], &done[i]);
    if (code) return code;
  }
  return CCL_NET_OK;
}

static int32_t p_test_recvs(void *comm, uint32_t n, void *const *requests, uint32_t *done, uint64_t *bytes) {
  for (uint32_t i = 0; i < n; i++) {
    uint64_t sizes[CCL_NET_MAX_RECVS];
    int32_t code = p_test_recv(comm, requests[i], &done[i], sizes);
    if (code) return code;
    bytes[i] = planted("batch_sizes") ? 0 : sizes[0];
  }
  return CCL_NET_OK;
}

static void *write_late(void *unused) {
  (void)unused;
  sleep_ms(20);
  *(char *)late_target ^= 1;
  return NULL;
}

static int32_t p_close_recv(void *comm) {
  struct connection *c = comm;
  if (planted("close_waits_for_pending")) {
    for (int i = 0; i < SLOTS; i++)
      while (c->recvs[i].state == POSTED) sleep_ms(1);
  }
  if (planted("close_fails_pending"))
    for (int i = 0; i < SLOTS; i++)
      if (c->recvs[i].state == POSTED) return close_recv(comm), fail(CCL_NET_INVALID, "receives are pending");
  if (planted("writes_after_close"))
    for (int i = 0; i < SLOTS; i++)
      if (c->recvs[i].state == POSTED && c->recvs[i].bytes > 1000) {
        pthread_t thread;
        late_target = c->recvs[i].data;
        pthread_create(&thread, NULL, write_late, NULL);
        pthread_detach(thread);
        break;
      }
  return close_recv(comm);
}

/* Connections and their other directions, and how many of the ends have asked for it. */
static struct twin {
  struct connection *there, *back;
  int asked;
} twins[64];

/* Called with the lock. */
static struct twin *twin_of(struct connection *there) {
  struct twin *unused = NULL;
  for (int i = 0; i < 64; i++) {
    if (twins[i].there == there) return &twins[i];
    if (!twins[i].there) unused = &twins[i];
  }
  return unused;
}

static int32_t p_turn(void *comm, uint32_t side, void **other) {
  struct connection *there = comm;
  (void)side;
  pthread_mutex_lock(&lock);
  struct twin *twin = twin_of(there);
  if (!twin) return leave(fail(CCL_NET_EXHAUSTED, "more than 64 turned connections"));
  if (!twin->asked || planted("turn_leads_nowhere")) {
    struct connection *back = calloc(1, sizeof *back);
    back->open_ends = 2;
    back->sender = there->receiver;
    back->receiver = there->sender;
    *twin = (struct twin){there, back, twin->asked};
  }
  twin->asked++;
  *other = twin->back;
  return leave(CCL_NET_OK);
}

static int32_t p_close_send(void *comm) {
  struct connection *c = comm;
  pthread_mutex_lock(&lock);
  struct twin *twin = twin_of(c);
  if (twin && twin->there == c) {
    if (planted("turn_closes_both")) twin->back->send_closed = 1;
    *twin = (struct twin){0};
  }
  pthread_mutex_unlock(&lock);
  return close_send(c);
}

/* One descriptor for all, which is always ready: the host looks again at once. */
static int32_t p_watch(void *comm, uint32_t side, uint32_t n, cclWatch_v1_t *watched, uint32_t *count) {
  static int descriptor = -1;
  (void)comm, (void)side;
  pthread_mutex_lock(&lock);
  if (descriptor < 0) descriptor = eventfd(planted("watch_is_silent") ? 0 : 1, EFD_CLOEXEC);
  pthread_mutex_unlock(&lock);
  *count = 1;
  if (n >= 1) watched[0] = (cclWatch_v1_t){.descriptor = descriptor, .events = POLLIN};
  return CCL_NET_OK;
}

static int32_t p_abort(void *context) {
  if (planted("abort_for_all")) all_aborted = 1;
  return abort_all(context);
}

static int32_t p_export_mr(void *comm, void *mr, void *key) {
  cclMemory_v1_t *memory = mr;
  (void)comm;
  memset(key, 0, CCL_NET_KEY_BYTES);
  memcpy(key, &memory->address, 8);
  memcpy((char *)key + 8, &memory->bytes, 8);
  return CCL_NET_OK;
}

/* Where a key and an offset lead; null if out of bounds. */
static char *remote(const void *key, uint64_t offset, uint64_t bytes) {
  uint64_t address, most;
  memcpy(&address, key, 8);
  memcpy(&most, (const char *)key + 8, 8);
  if (!planted("put_anywhere") && (offset > most || bytes > most - offset)) return NULL;
  return (char *)(uintptr_t)address + offset;
}

static int32_t finished(void **out) {
  struct request *request = made(1);
  static struct slot done;
  done.state = DONE;
  request->inner[0] = &done;
  *out = request;
  return CCL_NET_OK;
}

static int32_t p_put(void *comm, const void *data, uint64_t bytes, void *mr, const void *key, uint64_t offset,
                     void **out) {
  char *to = remote(key, offset, bytes);
  (void)comm, (void)mr;
  if (!to) return fail(CCL_NET_INVALID, "%llu bytes at %llu are out of bounds", (unsigned long long)bytes,
                       (unsigned long long)offset);
  memcpy(to, data, bytes);
  return finished(out);
}

static int32_t p_get(void *comm, void *data, uint64_t bytes, void *mr, const void *key, uint64_t offset,
                     void **out) {
  char *from = remote(key, offset, bytes);
  (void)comm, (void)mr;
  if (!from) return fail(CCL_NET_INVALID, "out of bounds");
  memcpy(data, planted("gets_others") ? from - 1 : from, bytes);
  return finished(out);
}

static int32_t p_signal(void *comm, const void *key, uint64_t offset, uint64_t value, void **out) {
  char *at = remote(key, offset, 8);
  uint64_t sum;
  (void)comm;
  if (!at) return fail(CCL_NET_INVALID, "out of bounds");
  memcpy(&sum, at, 8);
  sum = planted("signal_sets") ? value : sum + value;
  memcpy(at, &sum, 8);
  return finished(out);
}

#ifndef PLANTED_SIZE
#define PLANTED_SIZE sizeof(cclNet_v1_t)
#endif
#ifndef PLANTED_NAME
#define PLANTED_NAME "planted"
#endif
#ifndef PLANTED_IRECV
#define PLANTED_IRECV p_irecv
#endif

__attribute__((visibility("default")))
const cclNet_v1_t cclNet_v1 = {
    .size = PLANTED_SIZE,
    .version = CCL_NET_VERSION,
    .name = PLANTED_NAME,
    .init = p_init,
    .finalize = p_finalize,
    .last_error = p_last_error,
    .devices = devices,
    .properties = p_properties,
    .listen = p_listen,
    .accept = p_accept,
    .close_listen = p_close_listen,
    .connect = p_connect,
    .poll_connect = p_poll_connect,
    .close_connect = close_connect,
    .reg_mr = p_reg_mr,
    .dereg_mr = p_dereg_mr,
    .isend = p_isend,
    .irecv = PLANTED_IRECV,
    .test_send = p_test_send,
    .test_recv = p_test_recv,
    .close_send = p_close_send,
    .close_recv = p_close_recv,
    .test_sends = p_test_sends,
    .test_recvs = p_test_recvs,
    .abort = p_abort,
    .export_mr = p_export_mr,
    .put = p_put,
    .get = p_get,
    .signal = p_signal,
    .turn = p_turn,
    .isend_more = p_isend_more,
    .watch = p_watch,
    .isend_from = p_isend_from,
};
