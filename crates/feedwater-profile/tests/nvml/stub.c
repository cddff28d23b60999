/* A stand-in for NVIDIA's management library: GPUs 0 and 1 work, GPU 2 fell off the bus.
 *
 * The tests compile it and load it as the real one is loaded, so that all of our code runs on machines without a GPU. What
 * differs between tests is defined on the compiler's command line:
 *   GPUS      how many there are (3)
 *   TOPOLOGY  what lies between them: 10 PIX, 20 PXB, 30 PHB, 40 NODE, 50 SYS (40)
 *   NVLINKS   how many NVLinks join GPUs 0 and 1 (0)
 *   INIT      what nvmlInit answers (0: all is well)
 * Struct layouts are those of nvml.h.
 */
#include <string.h>

#ifndef GPUS
#define GPUS 3
#endif
#ifndef TOPOLOGY
#define TOPOLOGY 40
#endif
#ifndef NVLINKS
#define NVLINKS 0
#endif
#ifndef INIT
#define INIT 0
#endif

enum { OK = 0, INVALID = 2, NOT_SUPPORTED = 3, LOST = 15 };
enum { LOST_GPU = 2 };

typedef struct gpu { unsigned index; unsigned asked; } *device;
static struct gpu gpus[8];

typedef struct { unsigned gpu, memory; } utilization;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } memory_v2;
typedef struct {
    char bus_id_legacy[16];
    unsigned domain, bus, device, pci_device_id, pci_sub_system_id;
    char bus_id[32];
} pci_info;

#define ALIVE(d) do { if ((d)->index == LOST_GPU) return LOST; } while (0)

static int text(char *to, unsigned length, const char *from) {
    strncpy(to, from, length);
    return OK;
}

int nvmlInit_v2(void) { return INIT; }
int nvmlShutdown(void) { return OK; }
int nvmlSystemGetDriverVersion(char *to, unsigned length) { return text(to, length, "580.65.06"); }
int nvmlSystemGetCudaDriverVersion_v2(int *version) { *version = 13000; return OK; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = GPUS; return OK; }

int nvmlDeviceGetHandleByIndex_v2(unsigned index, device *to) {
    if (index >= GPUS) return INVALID;
    gpus[index].index = index;
    *to = &gpus[index];
    return OK;
}

int nvmlDeviceGetIndex(device d, unsigned *index) { *index = d->index; return OK; }

int nvmlDeviceGetName(device d, char *to, unsigned length) {
    ALIVE(d);
    return text(to, length, "NVIDIA Stub 4090");
}

int nvmlDeviceGetUUID(device d, char *to, unsigned length) {
    ALIVE(d);
    return text(to, length, d->index ? "GPU-00000000-0000-0000-0000-000000000001"
                                     : "GPU-00000000-0000-0000-0000-000000000000");
}

int nvmlDeviceGetMemoryInfo_v2(device d, memory_v2 *to) {
    ALIVE(d);
    to->total = 24ULL << 30;
    to->reserved = 0;
    to->used = (d->index + 1ULL) << 30;
    to->free = to->total - to->used;
    return OK;
}

/* Another figure at each question: 10, 20, ... 100, 10, ... */
int nvmlDeviceGetUtilizationRates(device d, utilization *to) {
    ALIVE(d);
    unsigned asked = __atomic_fetch_add(&d->asked, 1, __ATOMIC_RELAXED);
    to->gpu = asked % 10 * 10 + 10;
    to->memory = to->gpu / 2;
    return OK;
}

int nvmlDeviceGetPowerUsage(device d, unsigned *milliwatts) {
    ALIVE(d);
    if (d->index == 1) return NOT_SUPPORTED;
    *milliwatts = 215500;
    return OK;
}

int nvmlDeviceGetEnforcedPowerLimit(device d, unsigned *milliwatts) {
    ALIVE(d);
    *milliwatts = 450000;
    return OK;
}

int nvmlDeviceGetTemperature(device d, int sensor, unsigned *celsius) {
    ALIVE(d);
    if (sensor != 0) return INVALID;
    *celsius = 61;
    return OK;
}

int nvmlDeviceGetClockInfo(device d, int kind, unsigned *mhz) {
    ALIVE(d);
    if (kind == 1) *mhz = 2520;
    else if (kind == 2) *mhz = 10501;
    else return INVALID;
    return OK;
}

int nvmlDeviceGetPcieThroughput(device d, int way, unsigned *kilobytes) {
    ALIVE(d);
    *kilobytes = way == 0 ? 120 : 8400; /* 0: sent, 1: received */
    return OK;
}

int nvmlDeviceGetTopologyCommonAncestor(device one, device other, int *level) {
    ALIVE(one);
    ALIVE(other);
    *level = TOPOLOGY;
    return OK;
}

static int pci(unsigned index, pci_info *to) {
    memset(to, 0, sizeof *to);
    to->bus = index + 1;
    strcpy(to->bus_id, "00000000:00:00.0");
    to->bus_id[10] = (char)('1' + index);
    return OK;
}

int nvmlDeviceGetPciInfo_v3(device d, pci_info *to) {
    ALIVE(d);
    return pci(d->index, to);
}

int nvmlDeviceGetNvLinkState(device d, unsigned link, int *active) {
    ALIVE(d);
    if (NVLINKS == 0) return NOT_SUPPORTED;
    if (link >= NVLINKS) return INVALID;
    *active = 1;
    return OK;
}

int nvmlDeviceGetNvLinkRemotePciInfo_v2(device d, unsigned link, pci_info *to) {
    ALIVE(d);
    if (link >= NVLINKS) return INVALID;
    return pci(1 - d->index, to);
}
