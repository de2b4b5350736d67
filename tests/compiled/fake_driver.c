/* Stands in for the CUDA driver: keeps what the last launch was given. A function's handle is its number of parameters. */
#include <string.h>
#include "cuda.h"

unsigned long long seen[64];
int failure;

CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **params, void **extra) {
    if (failure)
        return (CUresult)failure;
    seen[0] = config->gridDimX;
    seen[1] = config->blockDimX;
    seen[2] = config->sharedMemBytes;
    seen[3] = config->numAttrs && config->attrs[0].id == CU_LAUNCH_ATTRIBUTE_COOPERATIVE;
    seen[4] = (unsigned long long)config->hStream;
    seen[5] = config->numAttrs && config->attrs[0].id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
                  ? config->attrs[0].value.clusterDim.x * config->attrs[0].value.clusterDim.y * config->attrs[0].value.clusterDim.z
                  : 1;
    for (unsigned long long i = 0; i < (unsigned long long)function; ++i)
        memcpy(&seen[8 + i], params[i], 8);
    return extra ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice *device, int ordinal) {
    *device = 100 + ordinal;
    return ordinal < 2 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device) {
    *value = attribute == CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH && device == 101;
    return CUDA_SUCCESS;
}

CUresult cuGetErrorString(CUresult error, const char **words) {
    *words = "no such thing";
    return error ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
