/* A kernel launch with all that does not change between calls put down beforehand.
 *
 * prepare(function, programs, threads, shared, cooperative, cluster, pointers, scalars) gives a callable; calling it
 * with the stream and `pointers` addresses launches, in clusters of so many programs. `scalars` has eight bytes for each
 * argument behind the pointers, in order.
 * Triton's own launcher reads every argument anew at each call, and is compiled for each kernel; this one, once.
 *
 * has_clusters(ordinal) says whether that GPU groups programs into clusters.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <dlfcn.h>
#include <stddef.h>
#include <string.h>
#include <structmember.h>
#include "cuda.h"

#define MAX_POINTERS 16
#define MAX_SCALARS 32
/* Triton's kernels end with the addresses of two scratch buffers, which ours do not use. */
#define SCRATCH 2

typedef CUresult (*LaunchKernel)(const CUlaunchConfig *, CUfunction, void **, void **);
typedef CUresult (*ErrorString)(CUresult, const char **);
typedef CUresult (*DeviceGet)(CUdevice *, int);
typedef CUresult (*DeviceGetAttribute)(int *, CUdevice_attribute, CUdevice);

static LaunchKernel launch_kernel;
static ErrorString error_string;
static DeviceGet device_get;
static DeviceGetAttribute device_get_attribute;

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    CUfunction function;
    CUlaunchConfig config;
    CUlaunchAttribute attribute;
    Py_ssize_t pointers, scalars;
    unsigned long long values[MAX_SCALARS];
} Launch;

static PyObject *launch(PyObject *self, PyObject *const *args, size_t nargsf, PyObject *keywords) {
    Launch *prepared = (Launch *)self;
    Py_ssize_t given = PyVectorcall_NARGS(nargsf);
    if (keywords != NULL || given != prepared->pointers + 1) {
        PyErr_Format(PyExc_TypeError, "a launch takes a stream and %zd addresses", prepared->pointers);
        return NULL;
    }
    unsigned long long addresses[MAX_POINTERS], scratch = 0;
    void *params[MAX_POINTERS + MAX_SCALARS + SCRATCH], **next = params;
    CUlaunchConfig config = prepared->config;
    config.hStream = (CUstream)(uintptr_t)PyLong_AsUnsignedLongLong(args[0]);
    for (Py_ssize_t i = 0; i < prepared->pointers; ++i) {
        addresses[i] = PyLong_AsUnsignedLongLong(args[i + 1]);
        *next++ = &addresses[i];
    }
    if (PyErr_Occurred())
        return NULL;
    for (Py_ssize_t i = 0; i < prepared->scalars; ++i)
        *next++ = &prepared->values[i];
    for (int i = 0; i < SCRATCH; ++i)
        *next++ = &scratch;
    CUresult result;
    Py_BEGIN_ALLOW_THREADS
    result = launch_kernel(&config, prepared->function, params, NULL);
    Py_END_ALLOW_THREADS
    if (result != CUDA_SUCCESS) {
        const char *words = NULL;
        error_string(result, &words);
        return PyErr_Format(PyExc_RuntimeError, "the CUDA driver refused a launch: %s", words ? words : "unknown error");
    }
    Py_RETURN_NONE;
}

static PyMemberDef launch_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Launch, vectorcall), READONLY, NULL},
    {NULL},
};

static PyType_Slot launch_slots[] = {
    {Py_tp_call, PyVectorcall_Call},
    {Py_tp_members, launch_members},
    {0, NULL},
};

static PyType_Spec launch_spec = {
    .name = "onepass_launcher.Launch",
    .basicsize = sizeof(Launch),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = launch_slots,
};

static PyTypeObject *launch_type;

static PyObject *prepare(PyObject *Py_UNUSED(module), PyObject *args) {
    unsigned long long function;
    unsigned int programs, threads, shared, cluster;
    int cooperative;
    Py_ssize_t pointers, size;
    const char *scalars;
    if (!PyArg_ParseTuple(
            args, "KIIIpIny#", &function, &programs, &threads, &shared, &cooperative, &cluster, &pointers, &scalars,
            &size))
        return NULL;
    if (pointers < 0 || pointers > MAX_POINTERS || size % 8 || size / 8 > MAX_SCALARS) {
        PyErr_SetString(PyExc_ValueError, "too many arguments for a launch");
        return NULL;
    }
    Launch *prepared = PyObject_New(Launch, launch_type);
    if (prepared == NULL)
        return NULL;
    prepared->vectorcall = launch;
    prepared->function = (CUfunction)(uintptr_t)function;
    prepared->pointers = pointers;
    prepared->scalars = size / 8;
    memcpy(prepared->values, scalars, size);
    memset(&prepared->attribute, 0, sizeof(prepared->attribute));
    if (cluster > 1) {
        prepared->attribute.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
        prepared->attribute.value.clusterDim.x = cluster;
        prepared->attribute.value.clusterDim.y = prepared->attribute.value.clusterDim.z = 1;
    } else {
        prepared->attribute.id = CU_LAUNCH_ATTRIBUTE_COOPERATIVE;
        prepared->attribute.value.cooperative = 1;
    }
    memset(&prepared->config, 0, sizeof(prepared->config));
    prepared->config.gridDimX = programs;
    prepared->config.gridDimY = prepared->config.gridDimZ = 1;
    prepared->config.blockDimX = threads;
    prepared->config.blockDimY = prepared->config.blockDimZ = 1;
    prepared->config.sharedMemBytes = shared;
    prepared->config.attrs = &prepared->attribute;
    prepared->config.numAttrs = cooperative || cluster > 1 ? 1 : 0;
    return (PyObject *)prepared;
}

static PyObject *has_clusters(PyObject *Py_UNUSED(module), PyObject *ordinal) {
    CUdevice device;
    int has = 0;
    long number = PyLong_AsLong(ordinal);
    if (number == -1 && PyErr_Occurred())
        return NULL;
    if (device_get == NULL || device_get_attribute == NULL || device_get(&device, (int)number) != CUDA_SUCCESS ||
        device_get_attribute(&has, CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH, device) != CUDA_SUCCESS)
        has = 0;
    return PyBool_FromLong(has);
}

static PyMethodDef methods[] = {
    {"prepare", prepare, METH_VARARGS, NULL},
    {"has_clusters", has_clusters, METH_O, NULL},
    {NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, .m_name = "onepass_launcher", .m_size = -1, .m_methods = methods};

PyMODINIT_FUNC PyInit_onepass_launcher(void) {
    void *driver = dlopen("libcuda.so.1", RTLD_LAZY);
    if (driver != NULL) {
        launch_kernel = (LaunchKernel)dlsym(driver, "cuLaunchKernelEx");
        error_string = (ErrorString)dlsym(driver, "cuGetErrorString");
        device_get = (DeviceGet)dlsym(driver, "cuDeviceGet");
        device_get_attribute = (DeviceGetAttribute)dlsym(driver, "cuDeviceGetAttribute");
    }
    if (launch_kernel == NULL || error_string == NULL) {
        PyErr_SetString(PyExc_ImportError, "libcuda.so.1 with cuLaunchKernelEx was not found");
        return NULL;
    }
    launch_type = (PyTypeObject *)PyType_FromSpec(&launch_spec);
    return launch_type == NULL ? NULL : PyModule_Create(&definition);
}
