/* Stands in for the CUDA driver: keeps what the last launch was given. A function's handle is its number of parameters,
 * which is what its binary says in its first byte. A thread has no context until one is set.
 */
#include <string.h>
#include "cuda.h"

unsigned long long seen[64];
int failure, launched;
/* What a loaded function was allowed, and whether it was given a preference. */
int allowed, preferred;
static __thread CUcontext current;

CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **params, void **extra) {
    if (failure)
        return (CUresult)failure;
    if (current == NULL)
        return CUDA_ERROR_INVALID_CONTEXT;
    ++launched;
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
    *value = attribute == CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN
                 ? 232448
                 : attribute == CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH && device == 101;
    return CUDA_SUCCESS;
}

CUresult cuGetErrorString(CUresult error, const char **words) {
    *words = "no such thing";
    return error ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
    *context = (CUcontext)(unsigned long long)device;
    return CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext *context) {
    *context = current;
    return CUDA_SUCCESS;
}

CUresult cuCtxSetCurrent(CUcontext context) {
    current = context;
    return CUDA_SUCCESS;
}

CUresult cuModuleLoadData(CUmodule *module, const void *binary) {
    *module = (CUmodule)(unsigned long long)*(const unsigned char *)binary;
    return *module ? CUDA_SUCCESS : CUDA_ERROR_INVALID_IMAGE;
}

CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name) {
    *function = (CUfunction)module;
    return strcmp(name, "known") ? CUDA_ERROR_NOT_FOUND : CUDA_SUCCESS;
}

CUresult cuFuncGetAttribute(int *value, CUfunction_attribute attribute, CUfunction function) {
    *value = attribute == CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES ? 16 : 0;
    return CUDA_SUCCESS;
}

CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value) {
    if (attribute == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES)
        allowed = value;
    return CUDA_SUCCESS;
}

CUresult cuFuncSetCacheConfig(CUfunction function, CUfunc_cache config) {
    preferred = config == CU_FUNC_CACHE_PREFER_SHARED;
    return CUDA_SUCCESS;
}
