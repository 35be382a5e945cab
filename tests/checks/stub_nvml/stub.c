/* A stub of libnvidia-ml.so.1 for tests, driven by a scenario file that is read again at every call.
 *
 * $SENTINEL_STUB_NVML names the file; each line is "key value". Keys of a card start with its index:
 *   driver TEXT, devices N, init CODE, hang 1,
 *   0.pci ADDRESS, 0.uuid TEXT, 0.name TEXT, 0.error CODE (any call on the card answers it), 0.hang 1,
 *   0.temperature C, 0.slowdown C, 0.ecc N, 0.recovery N, 0.pending 0|1, 0.failed 0|1, 0.pid N, 0.pid_bytes N
 * With -DOLD_DRIVER the functions that old drivers lack are left out.
 * Signatures and numbers after NVIDIA's public nvml.h; only what Sentinel asks is here.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef unsigned int u32;
typedef unsigned long long u64;
enum { SUCCESS = 0, INVALID = 2, NOT_SUPPORTED = 3, INSUFFICIENT_SIZE = 7 };

typedef struct { char legacy[16]; u32 domain, bus, device, device_id, subsystem_id; char bus_id[32]; } pci_info;
typedef struct { u32 pid; u64 used; u32 gpu_instance, compute_instance; } process_info;
typedef struct {
    u32 field, scope;
    long long timestamp, latency;
    u32 type, status;
    union { double d; u32 ui; unsigned long ul; u64 ull; long long sll; } value;
} field_value;

static int lookup(const char *key, char *out, size_t size) {
    const char *path = getenv("SENTINEL_STUB_NVML");
    FILE *file = path ? fopen(path, "r") : NULL;
    char line[256];
    int found = 0;
    if (!file) return 0;
    while (!found && fgets(line, sizeof line, file)) {
        char *space = strchr(line, ' ');
        if (!space) continue;
        *space = 0;
        if (strcmp(line, key)) continue;
        space[1 + strcspn(space + 1, "\n")] = 0;
        snprintf(out, size, "%s", space + 1);
        found = 1;
    }
    fclose(file);
    return found;
}

static long long number(const char *key, long long otherwise) {
    char text[256];
    return lookup(key, text, sizeof text) ? atoll(text) : otherwise;
}

/* -1 where the scenario does not name the value */
static long long card_number(void *card, const char *name) {
    char key[64];
    snprintf(key, sizeof key, "%ld.%s", (long)card - 1, name);
    return number(key, -1);
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
    char key[64];
    int status = enter(card);
    if (status) return status;
    snprintf(key, sizeof key, "%ld.%s", (long)card - 1, name);
    return lookup(key, out, size) ? SUCCESS : NOT_SUPPORTED;
}

static int card_u32(void *card, const char *name, u32 *out) {
    int status = enter(card);
    long long value = status ? 0 : card_number(card, name);
    if (status) return status;
    if (value < 0) return NOT_SUPPORTED;
    *out = (u32)value;
    return SUCCESS;
}

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

int nvmlDeviceGetUUID(void *card, char *out, u32 size) { return card_text(card, "uuid", out, size); }
int nvmlDeviceGetName(void *card, char *out, u32 size) { return card_text(card, "name", out, size); }
int nvmlDeviceGetTemperature(void *card, int sensor, u32 *out) { (void)sensor; return card_u32(card, "temperature", out); }

int nvmlDeviceGetTemperatureThreshold(void *card, int which, u32 *out) {
    return which == 1 ? card_u32(card, "slowdown", out) : NOT_SUPPORTED;
}

int nvmlDeviceGetTotalEccErrors(void *card, int type, int counter, u64 *out) {
    u32 value = 0;
    int status = type == 1 && counter == 0 ? card_u32(card, "ecc", &value) : NOT_SUPPORTED;
    *out = value;
    return status;
}

int nvmlDeviceGetComputeRunningProcesses_v3(void *card, u32 *count, process_info *out) {
    int status = enter(card);
    long long pid = card_number(card, "pid");
    if (status) return status;
    if (pid < 0) { *count = 0; return SUCCESS; }
    if (!out || *count < 1) { *count = 1; return INSUFFICIENT_SIZE; }
    memset(out, 0, sizeof *out);
    out->pid = (u32)pid;
    out->used = (u64)card_number(card, "pid_bytes");
    *count = 1;
    return SUCCESS;
}

#ifndef OLD_DRIVER
int nvmlDeviceGetRemappedRows(void *card, u32 *corrected, u32 *uncorrected, u32 *pending, u32 *failed) {
    *corrected = *uncorrected = 0;
    int status = card_u32(card, "pending", pending);
    return status ? status : card_u32(card, "failed", failed);
}

int nvmlDeviceGetFieldValues(void *card, int count, field_value *values) {
    int status = enter(card);
    for (int i = 0; !status && i < count; i++) {
        long long value = values[i].field == 230 ? card_number(card, "recovery") : -1;
        values[i].status = value < 0 ? NOT_SUPPORTED : SUCCESS;
        values[i].value.ull = value < 0 ? 0 : (u64)value;
    }
    return status;
}
#endif
