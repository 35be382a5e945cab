/* A stub of libnvidia-ml.so.1 for tests, driven by a scenario file that is looked at again at every call.
 *
 * $SENTINEL_STUB_NVML names the file; each line is "key value". A key of a card starts with its index, or with
 * "*" for all cards: "0.temperature 50", "*.power 300000". What the scenario does not name is not supported.
 *   driver TEXT, devices N, init CODE, hang 1, no_root 1
 *   0.pci 0.uuid 0.name 0.vbios 0.inforom 0.gsp TEXT, 0.error CODE (any call on the card answers it), 0.hang 1
 *   0.field230 N, 0.field206@3 N (a field value, of link 3), 0.link3 0|1, 0.processes "PID:BYTES PID:BYTES"
 *   events N, event0 "CARD TYPE DATA" ... : an event set gives those that were added since it was made;
 *   wait_error CODE is what waiting for them answers
 *   every other key is the number that one function returns: see the functions below.
 * With -DOLD_DRIVER the functions that old drivers lack are left out.
 * Signatures and numbers after NVIDIA's public nvml.h; only what Sentinel asks is here.
 */
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

typedef unsigned int u32;
typedef unsigned long long u64;
enum { SUCCESS = 0, INVALID = 2, NOT_SUPPORTED = 3, NO_PERMISSION = 4, INSUFFICIENT_SIZE = 7, TIMEOUT = 10, CORRUPTED = 14 };
#define NONE LLONG_MIN
#define MAX_ROWS 2048

typedef struct { char legacy[16]; u32 domain, bus, device, device_id, subsystem_id; char bus_id[32]; } pci_info;
typedef struct { u32 pid; u64 used; u32 gpu_instance, compute_instance; } process_info;
typedef struct {
    u32 field, scope;
    long long timestamp, latency;
    u32 type, status;
    union { double d; u32 ui; unsigned long ul; u64 ull; long long sll; } value;
} field_value;

/* ---- the scenario, read again when the file was replaced */

static struct { char key[48], text[208]; } rows[MAX_ROWS];
static int row_count;
static struct stat read_as;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void refresh(void) {
    const char *path = getenv("SENTINEL_STUB_NVML");
    struct stat now;
    char line[256];
    if (!path || stat(path, &now)) { row_count = 0; return; }
    if (now.st_ino == read_as.st_ino && now.st_size == read_as.st_size &&
        now.st_mtim.tv_sec == read_as.st_mtim.tv_sec && now.st_mtim.tv_nsec == read_as.st_mtim.tv_nsec) return;
    FILE *file = fopen(path, "r");
    if (!file) return;
    row_count = 0;
    while (row_count < MAX_ROWS && fgets(line, sizeof line, file)) {
        char *space = strchr(line, ' ');
        if (!space) continue;
        *space = 0;
        space[1 + strcspn(space + 1, "\n")] = 0;
        snprintf(rows[row_count].key, sizeof rows->key, "%.47s", line);
        snprintf(rows[row_count++].text, sizeof rows->text, "%.207s", space + 1);
    }
    fclose(file);
    read_as = now;
}

static int lookup(const char *key, char *out, size_t size) {
    int found = 0;
    pthread_mutex_lock(&lock);
    refresh();
    for (int i = 0; i < row_count && !found; i++)
        if ((found = !strcmp(rows[i].key, key))) snprintf(out, size, "%s", rows[i].text);
    pthread_mutex_unlock(&lock);
    return found;
}

static long long number(const char *key, long long otherwise) {
    char text[256];
    return lookup(key, text, sizeof text) ? atoll(text) : otherwise;
}

static int card_lookup(void *card, const char *name, char *out, size_t size) {
    char key[64];
    snprintf(key, sizeof key, "%ld.%s", (long)card - 1, name);
    if (lookup(key, out, size)) return 1;
    snprintf(key, sizeof key, "*.%s", name);
    return lookup(key, out, size);
}

static long long card_number(void *card, const char *name) {
    char text[256];
    return card_lookup(card, name, text, sizeof text) ? atoll(text) : NONE;
}

static void hang_while(const char *key) {
    while (number(key, 0)) usleep(10000);
}

/* What every call on a card does first. */
static int enter(void *card) {
    char key[64];
    hang_while("hang");
    snprintf(key, sizeof key, "%ld.hang", (long)card - 1);
    hang_while(key);
    long long error = card_number(card, "error");
    return error > 0 ? (int)error : SUCCESS;
}

static int card_text(void *card, const char *name, char *out, u32 size) {
    int status = enter(card);
    if (status) return status;
    return card_lookup(card, name, out, size) ? SUCCESS : NOT_SUPPORTED;
}

static int card_u64(void *card, const char *name, u64 *out) {
    int status = enter(card);
    long long value = status ? NONE : card_number(card, name);
    if (status) return status;
    if (value == NONE) return NOT_SUPPORTED;
    *out = (u64)value;
    return SUCCESS;
}

static int card_u32(void *card, const char *name, u32 *out) {
    u64 value = 0;
    int status = card_u64(card, name, &value);
    if (!status) *out = (u32)value;
    return status;
}

/* ---- the library and its cards */

int nvmlInitWithFlags(u32 flags) { (void)flags; hang_while("hang"); return (int)number("init", SUCCESS); }
int nvmlShutdown(void) { return SUCCESS; }
const char *nvmlErrorString(int code) { (void)code; return "stubbed error"; }
int nvmlDeviceGetCount_v2(u32 *count) { hang_while("hang"); *count = (u32)number("devices", 0); return SUCCESS; }
int nvmlSystemGetDriverVersion(char *out, u32 size) { return lookup("driver", out, size) ? SUCCESS : NOT_SUPPORTED; }

int nvmlDeviceGetHandleByIndex_v2(u32 index, void **card) {
    if (index >= (u32)number("devices", 0)) return INVALID;
    *card = (void *)(long)(index + 1);
    return enter(*card);
}

int nvmlDeviceGetPciInfo_v3(void *card, pci_info *info) {
    memset(info, 0, sizeof *info);
    return card_text(card, "pci", info->bus_id, sizeof info->bus_id);
}

#define TEXT(function, key) int function(void *card, char *out, u32 size) { return card_text(card, key, out, size); }
#define NUMBER(function, key) int function(void *card, u32 *out) { return card_u32(card, key, out); }
TEXT(nvmlDeviceGetUUID, "uuid")
TEXT(nvmlDeviceGetName, "name")
TEXT(nvmlDeviceGetVbiosVersion, "vbios")
TEXT(nvmlDeviceGetInforomImageVersion, "inforom")
NUMBER(nvmlDeviceGetMinorNumber, "minor")
NUMBER(nvmlDeviceGetPersistenceMode, "persistence")
NUMBER(nvmlDeviceGetPowerUsage, "power")
NUMBER(nvmlDeviceGetEnforcedPowerLimit, "power_limit")
NUMBER(nvmlDeviceGetPowerManagementDefaultLimit, "power_default")
NUMBER(nvmlDeviceGetPerformanceState, "pstate")
NUMBER(nvmlDeviceGetCurrPcieLinkGeneration, "pcie_gen")
NUMBER(nvmlDeviceGetCurrPcieLinkWidth, "pcie_width")
NUMBER(nvmlDeviceGetMaxPcieLinkGeneration, "pcie_gen_max")
NUMBER(nvmlDeviceGetMaxPcieLinkWidth, "pcie_width_max")
NUMBER(nvmlDeviceGetPcieReplayCounter, "replays")

int nvmlDeviceGetTemperature(void *card, int sensor, u32 *out) { (void)sensor; return card_u32(card, "temperature", out); }

int nvmlDeviceGetTemperatureThreshold(void *card, int which, u32 *out) {
    return which == 1 ? card_u32(card, "slowdown", out) : which == 2 ? card_u32(card, "memory_max", out) : NOT_SUPPORTED;
}

int nvmlDeviceGetClockInfo(void *card, int type, u32 *out) {
    return card_u32(card, type == 1 ? "sm_clock" : type == 2 ? "mem_clock" : "graphics_clock", out);
}

int nvmlDeviceGetTotalEccErrors(void *card, int type, int counter, u64 *out) {
    return counter == 0 ? card_u64(card, type == 1 ? "ecc" : "ecc_corrected", out) : NOT_SUPPORTED;
}

int nvmlDeviceGetEccMode(void *card, u32 *current, u32 *pending) {
    int status = card_u32(card, "ecc_mode", current);
    return status ? status : card_u32(card, "ecc_mode_pending", pending);
}

int nvmlDeviceGetUtilizationRates(void *card, u32 *out) {
    int status = card_u32(card, "util", out);
    return status ? status : card_u32(card, "mem_util", out + 1);
}

int nvmlDeviceGetMemoryInfo(void *card, u64 *out) {
    int status = card_u64(card, "memory", out);
    if (status || (status = card_u64(card, "memory_used", out + 2))) return status;
    out[1] = out[0] - out[2];
    return SUCCESS;
}

int nvmlDeviceValidateInforom(void *card) {
    int status = enter(card);
    if (number("no_root", 0)) return NO_PERMISSION;
    return status ? status : card_number(card, "inforom_corrupt") > 0 ? CORRUPTED : SUCCESS;
}

int nvmlDeviceGetNvLinkState(void *card, u32 link, u32 *out) {
    char key[16];
    snprintf(key, sizeof key, "link%u", link);
    return link < 18 ? card_u32(card, key, out) : INVALID;
}

/* ---- processes: the same list for the three kinds, under its key */

static int processes(void *card, const char *key, u32 *count, process_info *out) {
    char text[256], *at = text;
    int status = enter(card), used = 0;
    u32 room = *count, n = 0;
    if (status) return status;
    if (!card_lookup(card, key, text, sizeof text)) text[0] = 0;
    for (u32 pid; sscanf(at, "%u:%*u%n", &pid, &used) == 1; at += used, n++)
        if (out && n < room) {
            memset(out + n, 0, sizeof *out);
            sscanf(at, "%u:%llu", &out[n].pid, &out[n].used);
        }
    *count = n;
    return n > room || (n && !out) ? INSUFFICIENT_SIZE : SUCCESS;
}

#ifdef OLD_DRIVER
int nvmlDeviceGetComputeRunningProcesses_v2(void *c, u32 *n, process_info *o) { return processes(c, "processes", n, o); }
int nvmlDeviceGetCurrentClocksThrottleReasons(void *card, u64 *out) { return card_u64(card, "reasons", out); }
#else
NUMBER(nvmlDeviceGetNumaNodeId, "numa_node")
int nvmlDeviceGetComputeRunningProcesses_v3(void *c, u32 *n, process_info *o) { return processes(c, "processes", n, o); }
int nvmlDeviceGetGraphicsRunningProcesses_v3(void *c, u32 *n, process_info *o) { return processes(c, "graphics", n, o); }
int nvmlDeviceGetMPSComputeRunningProcesses_v3(void *c, u32 *n, process_info *o) { return processes(c, "mps", n, o); }
int nvmlDeviceGetCurrentClocksEventReasons(void *card, u64 *out) { return card_u64(card, "reasons", out); }
int nvmlDeviceGetGspFirmwareVersion(void *card, char *out) { return card_text(card, "gsp", out, 64); }

int nvmlDeviceGetMigMode(void *card, u32 *current, u32 *pending) {
    int status = card_u32(card, "mig", current);
    *pending = *current;
    return status;
}

int nvmlDeviceGetMarginTemperature(void *card, u32 *versioned) { return card_u32(card, "margin", versioned + 1); }

int nvmlDeviceGetRemappedRows(void *card, u32 *corrected, u32 *uncorrected, u32 *pending, u32 *failed) {
    *corrected = *uncorrected = 0;
    card_u32(card, "rows_corrected", corrected);
    card_u32(card, "rows_uncorrected", uncorrected);
    int status = card_u32(card, "pending", pending);
    return status ? status : card_u32(card, "failed", failed);
}

int nvmlDeviceGetMemoryInfo_v2(void *card, u64 *out) { /* version, total, reserved, free, used */
    int status = card_u64(card, "memory", out + 1);
    if (status || (status = card_u64(card, "memory_used", out + 4))) return status;
    out[2] = 0;
    out[3] = out[1] - out[4];
    return SUCCESS;
}

int nvmlDeviceGetSramEccErrorStatus(void *card, u64 *out) { /* version, eleven counters, bThresholdExceeded */
    return card_u32(card, "sram_exceeded", (u32 *)(out + 12));
}

typedef struct { u32 version; unsigned char cluster[16]; u32 status, clique; unsigned char state; u32 mask; unsigned char summary; } fabric_info;

int nvmlDeviceGetGpuFabricInfoV(void *card, fabric_info *out) {
    u32 state = 0, status = 0, mask = 0, summary = 0;
    int answer = card_u32(card, "fabric_state", &state);
    if (answer) return answer;
    if ((out->version >> 24) > (u32)number("fabric_version", 3)) return 25; /* ARGUMENT_VERSION_MISMATCH */
    card_u32(card, "fabric_status", &status);
    card_u32(card, "fabric_mask", &mask);
    card_u32(card, "fabric_summary", &summary);
    out->state = (unsigned char)state;
    out->status = status;
    out->mask = mask;
    if ((out->version >> 24) >= 3) out->summary = (unsigned char)summary;
    return SUCCESS;
}

int nvmlDeviceGetFieldValues(void *card, int count, field_value *values) {
    int status = enter(card);
    for (int i = 0; !status && i < count; i++) {
        char key[32];
        snprintf(key, sizeof key, "field%u@%u", values[i].field, values[i].scope);
        long long value = card_number(card, key);
        if (value == NONE && !values[i].scope) {
            snprintf(key, sizeof key, "field%u", values[i].field);
            value = card_number(card, key);
        }
        values[i].status = value == NONE ? NOT_SUPPORTED : SUCCESS;
        values[i].type = value < 0 ? 4 : 3; /* signed or unsigned long long */
        values[i].value.sll = value == NONE ? 0 : value;
    }
    return status;
}

/* ---- GPM: what two samples are worth is what the scenario says at the second */

typedef struct { u32 version, supported; } gpm_support;
typedef struct { u32 id; int status; double value; char *names[3]; } gpm_metric;
typedef struct { u32 version, count; void *first, *second; gpm_metric metrics[]; } gpm_request;

int nvmlGpmQueryDeviceSupport(void *card, gpm_support *out) {
    out->supported = card_number(card, "gpm5") != NONE;
    return SUCCESS;
}
int nvmlGpmSampleAlloc(void **out) { return (*out = calloc(1, sizeof(void *))) ? SUCCESS : NOT_SUPPORTED; }
int nvmlGpmSampleFree(void *sample) { free(sample); return SUCCESS; }
int nvmlGpmSampleGet(void *card, void **sample) { *sample = card; return enter(card); }

int nvmlGpmMetricsGet(gpm_request *request) {
    for (u32 i = 0; i < request->count; i++) {
        char key[16];
        snprintf(key, sizeof key, "gpm%u", request->metrics[i].id);
        long long value = card_number(*(void **)request->second, key);
        request->metrics[i].status = value == NONE ? NOT_SUPPORTED : SUCCESS;
        request->metrics[i].value = (double)value;
    }
    return SUCCESS;
}
#endif

/* ---- events */

typedef struct { void *card; u64 type, data; u32 gpu_instance, compute_instance; } event_data;
typedef struct { long long given; u64 types[64]; } event_set;

int nvmlDeviceGetSupportedEventTypes(void *card, u64 *out) {
    u64 bits = 0;
    int status = card_u64(card, "event_types", &bits);
    *out = bits;
    return status;
}

int nvmlEventSetCreate(event_set **out) {
    *out = calloc(1, sizeof **out);
    (*out)->given = number("events", 0);
    return SUCCESS;
}

int nvmlEventSetFree(event_set *set) { free(set); return SUCCESS; }

int nvmlDeviceRegisterEvents(void *card, u64 types, event_set *set) {
    u64 supported = 0;
    int status = nvmlDeviceGetSupportedEventTypes(card, &supported);
    if (status) return status;
    if (types & ~supported) return NOT_SUPPORTED;
    set->types[(long)card] = types;
    return SUCCESS;
}

int nvmlEventSetWait_v2(event_set *set, event_data *out, u32 timeout_ms) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    u64 until = (u64)now.tv_sec * 1000 + (u64)now.tv_nsec / 1000000 + timeout_ms;
    /* A driver blocks until there is an event; this polls the scenario, as often as a bench can afford. */
    const char *poll_us = getenv("SENTINEL_STUB_NVML_POLL_US");
    for (;;) {
        while (set->given < number("events", 0)) {
            char key[32], text[256];
            long card = 0;
            snprintf(key, sizeof key, "event%lld", set->given++);
            memset(out, 0, sizeof *out);
            if (!lookup(key, text, sizeof text)) continue;
            if (sscanf(text, "%ld %llu %llu", &card, &out->type, &out->data) != 3) continue;
            out->card = (void *)(card + 1);
            if (set->types[card + 1] & out->type) return SUCCESS;
        }
        if (number("wait_error", 0)) return (int)number("wait_error", 0);
        clock_gettime(CLOCK_MONOTONIC, &now);
        if ((u64)now.tv_sec * 1000 + (u64)now.tv_nsec / 1000000 >= until) return TIMEOUT;
        usleep(poll_us ? (u32)atoi(poll_us) : 20000);
    }
}
