/* rules_tuner: a whole tuner plugin in C. It reads rules from a file, one for each line, the first that fits wins:
 *
 *     # collective  up to so many bytes  algorithm    channels
 *     all_reduce    65536                double_tree
 *     all_reduce    1073741824           ring         4
 *
 *     cc -shared -fPIC -Iplugins/include plugins/examples/rules_tuner.c -o libccl-tuner-rules.so
 *     CCL_TUNER_PLUGIN=rules CCL_TUNER_CONFIG_FILE=rules.txt my_program
 */
#include "ccl_tuner.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifndef RULES_VERSION /* tests build plugins of the wrong version */
#define RULES_VERSION CCL_TUNER_VERSION
#endif

enum { NAME = 32, MOST_RULES = 1000, INVALID = 1, SYSTEM = 2, EXHAUSTED = 8 };

typedef struct {
  char collective[NAME], algorithm[NAME];
  uint64_t up_to;
  uint32_t channels; /* 0: as the host likes */
} rule_t;

/* One communicator. Calls about it come one at a time, so nothing here needs a lock. */
typedef struct {
  const cclHost_v1_t *host; /* valid until finalize */
  size_t count;
  rule_t rules[MOST_RULES];
} context_t;

static void say(const cclHost_v1_t *host, int32_t level, const char *line) {
  if (!host->enabled || host->enabled(host->context, level))
    host->log(host->context, level, __FILE__, __LINE__, line);
}

/* Reads a line; 0 if it is empty or a comment, 1 with a rule, -1 if it is neither. */
static int parse(const char *line, rule_t *rule) {
  char first[2];
  if (sscanf(line, "%1s", first) != 1 || first[0] == '#') return 0;
  rule->channels = 0;
  int fields = sscanf(line, "%31s %" SCNu64 " %31s %" SCNu32, rule->collective, &rule->up_to,
                      rule->algorithm, &rule->channels);
  return fields >= 3 ? 1 : -1;
}

static int32_t read_rules(context_t *c, const char *name) {
  char line[256], words[400];
  FILE *file = fopen(name, "r");
  if (!file) {
    snprintf(words, sizeof words, "expected rules in %s, found no file that can be read", name);
    say(c->host, CCL_LOG_WARN, words);
    return SYSTEM;
  }
  int found = 0;
  while (found >= 0 && c->count < MOST_RULES && fgets(line, sizeof line, file)) {
    found = parse(line, &c->rules[c->count]);
    if (found > 0) c->count++;
  }
  fclose(file);
  if (found >= 0) return 0;
  line[strcspn(line, "\n")] = 0;
  snprintf(words, sizeof words, "expected a collective, bytes and an algorithm, found: %.200s", line);
  say(c->host, CCL_LOG_WARN, words);
  return INVALID;
}

static int32_t init(const cclHost_v1_t *host, const cclTunerComm_v1_t *comm, const cclSetting_v1_t *settings,
                    uint32_t count, void **context) {
  char words[80];
  context_t *c = calloc(1, sizeof *c);
  if (!c) return EXHAUSTED;
  c->host = host;
  for (uint32_t i = 0; i < count; i++) {
    if (strcmp(settings[i].key, "config_file") != 0) continue;
    int32_t code = read_rules(c, settings[i].value);
    if (code) {
      free(c); /* a failed init leaves nothing behind */
      return code;
    }
  }
  snprintf(words, sizeof words, "%zu rules for %" PRIu32 " ranks", c->count, comm->nranks);
  say(host, CCL_LOG_INFO, words);
  *context = c;
  return 0;
}

static int32_t advise(void *context, const cclTunerCall_v1_t *call, cclTunerCandidate_v1_t *const *candidates,
                      uint32_t count) {
  const context_t *c = context;
  for (size_t r = 0; r < c->count; r++) {
    const rule_t *rule = &c->rules[r];
    if (call->bytes > rule->up_to || strcmp(call->collective, rule->collective) != 0) continue;
    for (uint32_t i = 0; i < count; i++) {
      if (strcmp(candidates[i]->algorithm, rule->algorithm) != 0) continue;
      candidates[i]->cost_ns = 0;
      if (rule->channels) candidates[i]->channels = rule->channels;
    }
    return 0;
  }
  return 0; /* no opinion: nothing was changed */
}

static int32_t finalize(void *context) {
  free(context);
  return 0;
}

const cclTuner_v1_t cclTuner_v1 = {sizeof(cclTuner_v1_t), RULES_VERSION, "rules", init, advise, finalize};
