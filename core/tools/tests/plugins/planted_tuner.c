/* A tuner that keeps the contract, or breaks one clause of it: the one that PLANTED names.
 *
 * The tuner of plugins/examples/rules_tuner.c, which wants a ring where it has no rules, and a place for each breach.
 */
#define _GNU_SOURCE
#include "ccl_tuner.h"

/* The example's table under another name. */
#define cclTuner_v1 inner
#include "../../../../plugins/examples/rules_tuner.c"
#undef cclTuner_v1

#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <time.h>
#include <unistd.h>

/* Whether this breach is asked for. */
static int planted(const char *name) {
  const char *asked = getenv("PLANTED");
  return asked && strcmp(asked, name) == 0;
}

static int contexts, answers;
static uint32_t last_ranks;

static void *idle(void *unused) {
  (void)unused;
  for (;;) pause();
  return NULL;
}

static int32_t p_init(const cclHost_v1_t *host, const cclTunerComm_v1_t *comm, const cclSetting_v1_t *settings,
                      uint32_t count, void **context) {
  if (planted("second_init") && contexts > 0) return EXHAUSTED;
  if (planted("leaks_descriptor") && open("/dev/null", O_RDONLY) < 0) return SYSTEM;
  if (planted("leaks_thread")) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, idle, NULL)) return SYSTEM;
    pthread_detach(thread);
  }
  if (planted("two_lines")) say(host, CCL_LOG_INFO, "one\ntwo");
  __atomic_add_fetch(&contexts, 1, __ATOMIC_SEQ_CST);
  __atomic_store_n(&last_ranks, comm->nranks, __ATOMIC_SEQ_CST);
  return init(host, comm, settings, count, context);
}

static int known(const char *name) {
  static const char *names[] = {"all_reduce", "reduce", "broadcast", "all_gather", "reduce_scatter", "gather"};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++)
    if (strcmp(names[i], name) == 0) return 1;
  return 0;
}

__attribute__((unused)) static int32_t p_advise(void *context, const cclTunerCall_v1_t *call, cclTunerCandidate_v1_t *const *candidates,
                        uint32_t count) {
  if (planted("fails_on_gather") && strcmp(call->collective, "gather") == 0) {
    say(((context_t *)context)->host, CCL_LOG_WARN, "no idea of gather");
    return INVALID;
  }
  if (planted("fails_on_zero") && call->bytes == 0) return INVALID;
  if (planted("crashes_on_names") && strlen(call->collective) > 40) __builtin_trap();
  if (planted("six_at_most") && count > 6) return INVALID;
  if (planted("slow")) usleep(50000);
  if (planted("not_a_number")) candidates[0]->cost_ns = (double)NAN;
  if (planted("past_the_end")) ((char *)(candidates[count - 1] + 1))[3] = 0;
  if (planted("renames")) candidates[0]->algorithm = "mine";
  if (planted("shuffles")) ((cclTunerCandidate_v1_t **)(uintptr_t)candidates)[0] = candidates[1];
  if (planted("throws_dice") && ++answers % 3 == 0) candidates[0]->channels = 7;
  if (planted("one_for_all")) candidates[0]->channels = __atomic_load_n(&last_ranks, __ATOMIC_SEQ_CST);
  for (uint32_t i = 0; i < count; i++)
    if (strcmp(candidates[i]->algorithm, "ring") == 0 && (known(call->collective) || planted("knows_everything")))
      candidates[i]->cost_ns = 0;
  return advise(context, call, candidates, count);
}

static int32_t p_finalize(void *context) {
  if (planted("finalize_hangs")) for (;;) pause();
  __atomic_sub_fetch(&contexts, 1, __ATOMIC_SEQ_CST);
  return finalize(context);
}

#ifndef PLANTED_ADVISE
#define PLANTED_ADVISE p_advise
#endif

const cclTuner_v1_t cclTuner_v1 = {sizeof(cclTuner_v1_t), RULES_VERSION, "planted", p_init, PLANTED_ADVISE, p_finalize};
