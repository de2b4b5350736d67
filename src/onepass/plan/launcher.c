/* Kernels loaded, launches with all that does not change between calls put down beforehand, and calls made of them.
 *
 * load(name, binary, shared, ordinal) gives the driver's handle of a kernel, for the GPU that is current.
 *
 * prepare(function, programs, threads, shared, cooperative, cluster, pointers, scalars) gives a Launch; calling it with
 * the stream and `pointers` addresses launches, in clusters of so many programs. `scalars` has eight bytes for each
 * argument behind the pointers, in order. Triton's own launcher reads every argument anew at each call, and is compiled
 * for each kernel; this one, once.
 *
 * call(launches, tensors, inputs, outputs, returned, ordinal, torch) gives a Call; calling it with `inputs` tensors, or
 * None for those that are absent, makes the outputs and launches. It knows `tensors` of them, both kinds together, and
 * `launches` has pairs of a Launch and the places of its tensors among those that are there. `outputs` has for each one
 * the arguments that it is made with, or None for one that is absent. `returned` has the places of those that come back.
 * `torch` has the function that makes them, on the current GPU, and those that say which GPU is current, and which of
 * its streams. A Call answers None, and launches nothing, where another GPU is current or a tensor does not begin on 16
 * bytes: then the caller sees to it.
 *
 * has_clusters(ordinal) says whether that GPU groups programs into clusters.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <structmember.h>
#include "cuda.h"

#define MAX_POINTERS 16
#define MAX_SCALARS 32
#define MAX_LAUNCHES 4
/* Triton's kernels end with the addresses of two scratch buffers, which ours do not use. */
#define SCRATCH 2
/* What no address of a call may have. */
#define UNALIGNED 15
/* A kernel that takes more shared memory has to ask for it. */
#define UNASKED_SHARED 49152

/* Of the driver, which is looked for where this module is loaded: it must not be linked to. */
#define DRIVER(X)                                                                                                      \
    X(cuLaunchKernelEx, (const CUlaunchConfig *, CUfunction, void **, void **))                                        \
    X(cuGetErrorString, (CUresult, const char **))                                                                     \
    X(cuDeviceGet, (CUdevice *, int))                                                                                  \
    X(cuDeviceGetAttribute, (int *, CUdevice_attribute, CUdevice))                                                     \
    X(cuDevicePrimaryCtxRetain, (CUcontext *, CUdevice))                                                               \
    X(cuCtxGetCurrent, (CUcontext *))                                                                                  \
    X(cuCtxSetCurrent, (CUcontext))                                                                                    \
    X(cuModuleLoadData, (CUmodule *, const void *))                                                                    \
    X(cuModuleGetFunction, (CUfunction *, CUmodule, const char *))                                                     \
    X(cuFuncGetAttribute, (int *, CUfunction_attribute, CUfunction))                                                   \
    X(cuFuncSetAttribute, (CUfunction, CUfunction_attribute, int))                                                     \
    X(cuFuncSetCacheConfig, (CUfunction, CUfunc_cache))

static struct {
#define FIELD(name, parameters) CUresult(*name) parameters;
    DRIVER(FIELD)
} driver;

static PyObject *refused(const char *what, CUresult result) {
    const char *words = NULL;
    driver.cuGetErrorString(result, &words);
    return PyErr_Format(PyExc_RuntimeError, "the CUDA driver refused %s: %s", what, words ? words : "unknown error");
}

static CUresult load_function(CUfunction *function, const char *name, const void *binary, int shared, int ordinal) {
    CUdevice device;
    CUcontext context = NULL;
    CUmodule module;
    CUresult result;
    int most, fixed;
#define TRY(call)                                                                                                      \
    if ((result = driver.call) != CUDA_SUCCESS)                                                                        \
    return result
    TRY(cuDeviceGet(&device, ordinal));
    TRY(cuCtxGetCurrent(&context));
    if (context == NULL) { /* a thread that has done nothing with the GPU so far */
        TRY(cuDevicePrimaryCtxRetain(&context, device));
        TRY(cuCtxSetCurrent(context));
    }
    TRY(cuModuleLoadData(&module, binary));
    TRY(cuModuleGetFunction(function, module, name));
    if (shared > UNASKED_SHARED) {
        TRY(cuFuncSetCacheConfig(*function, CU_FUNC_CACHE_PREFER_SHARED));
        TRY(cuDeviceGetAttribute(&most, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, device));
        TRY(cuFuncGetAttribute(&fixed, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, *function));
        TRY(cuFuncSetAttribute(*function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, most - fixed));
    }
#undef TRY
    return CUDA_SUCCESS;
}

static PyObject *load(PyObject *Py_UNUSED(module), PyObject *args) {
    const char *name, *binary;
    Py_ssize_t size;
    int shared, ordinal;
    if (!PyArg_ParseTuple(args, "sy#ii", &name, &binary, &size, &shared, &ordinal))
        return NULL;
    CUfunction function = NULL;
    CUresult result;
    Py_BEGIN_ALLOW_THREADS
    result = load_function(&function, name, binary, shared, ordinal);
    Py_END_ALLOW_THREADS
    return result == CUDA_SUCCESS ? PyLong_FromUnsignedLongLong((uintptr_t)function) : refused("a kernel", result);
}

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    CUfunction function;
    CUcontext context;
    CUlaunchConfig config;
    CUlaunchAttribute attribute;
    Py_ssize_t pointers, scalars;
    unsigned long long values[MAX_SCALARS];
} Launch;

static PyTypeObject *launch_type;

/* With as many addresses as it has pointers. */
static int launch_at(Launch *prepared, CUstream stream, unsigned long long *addresses) {
    unsigned long long scratch = 0;
    void *params[MAX_POINTERS + MAX_SCALARS + SCRATCH], **next = params;
    CUlaunchConfig config = prepared->config;
    config.hStream = stream;
    for (Py_ssize_t i = 0; i < prepared->pointers; ++i)
        *next++ = &addresses[i];
    for (Py_ssize_t i = 0; i < prepared->scalars; ++i)
        *next++ = &prepared->values[i];
    for (int i = 0; i < SCRATCH; ++i)
        *next++ = &scratch;
    CUresult result;
    Py_BEGIN_ALLOW_THREADS
    result = driver.cuLaunchKernelEx(&config, prepared->function, params, NULL);
    if (result == CUDA_ERROR_INVALID_CONTEXT && driver.cuCtxSetCurrent(prepared->context) == CUDA_SUCCESS)
        /* This thread has done nothing with the GPU so far. */
        result = driver.cuLaunchKernelEx(&config, prepared->function, params, NULL);
    Py_END_ALLOW_THREADS
    if (result == CUDA_SUCCESS)
        return 0;
    refused("a launch", result);
    return -1;
}

static PyObject *launch(PyObject *self, PyObject *const *args, size_t nargsf, PyObject *keywords) {
    Launch *prepared = (Launch *)self;
    if (keywords != NULL || PyVectorcall_NARGS(nargsf) != prepared->pointers + 1)
        return PyErr_Format(PyExc_TypeError, "a launch takes a stream and %zd addresses", prepared->pointers);
    unsigned long long addresses[MAX_POINTERS];
    CUstream stream = (CUstream)(uintptr_t)PyLong_AsUnsignedLongLong(args[0]);
    for (Py_ssize_t i = 0; i < prepared->pointers; ++i)
        addresses[i] = PyLong_AsUnsignedLongLong(args[i + 1]);
    if (PyErr_Occurred() || launch_at(prepared, stream, addresses) < 0)
        return NULL;
    Py_RETURN_NONE;
}

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
    prepared->context = NULL;
    driver.cuCtxGetCurrent(&prepared->context);
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

typedef struct {
    Launch *launch;
    Py_ssize_t places[MAX_POINTERS];
} Part;

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    Py_ssize_t tensors, inputs, outputs, returned, launches;
    PyObject *kinds[MAX_POINTERS]; /* of each output: what it is made with, or None */
    Py_ssize_t back[MAX_POINTERS];
    Part parts[MAX_LAUNCHES];
    long ordinal;
    PyObject *number; /* the same, for Python */
    PyObject *make, *current_device, *current_stream;
} Call;

static PyTypeObject *call_type;
static PyObject *data_ptr;

static void call_dealloc(PyObject *self) {
    Call *call = (Call *)self;
    PyTypeObject *type = Py_TYPE(self);
    for (Py_ssize_t i = 0; i < call->outputs; ++i)
        Py_XDECREF(call->kinds[i]);
    for (Py_ssize_t i = 0; i < call->launches; ++i)
        Py_XDECREF(call->parts[i].launch);
    Py_XDECREF(call->number);
    Py_XDECREF(call->make);
    Py_XDECREF(call->current_device);
    Py_XDECREF(call->current_stream);
    PyObject_Free(self);
    Py_DECREF(type);
}

/* Appends a tensor's address; -1 with an exception where it has none. */
static int note_address(PyObject *tensor, unsigned long long *addresses, Py_ssize_t *count, unsigned long long *bits) {
    PyObject *address = PyObject_CallMethodNoArgs(tensor, data_ptr);
    if (address == NULL)
        return -1;
    addresses[*count] = PyLong_AsUnsignedLongLong(address);
    *bits |= addresses[(*count)++];
    Py_DECREF(address);
    return PyErr_Occurred() ? -1 : 0;
}

/* All but what is made: 1 when it is launched, 0 when it is the caller's, -1 with an exception. */
static int call_with(Call *call, PyObject *const *args, PyObject **made) {
    unsigned long long addresses[2 * MAX_POINTERS], bits = 0;
    Py_ssize_t count = 0;
    PyObject *current = PyObject_CallNoArgs(call->current_device);
    if (current == NULL)
        return -1;
    long device = PyLong_AsLong(current);
    Py_DECREF(current);
    if (device != call->ordinal)
        return PyErr_Occurred() ? -1 : 0;
    for (Py_ssize_t i = 0; i < call->inputs; ++i)
        if (args[i] != Py_None && note_address(args[i], addresses, &count, &bits) < 0)
            return -1;
    for (Py_ssize_t i = 0; i < call->outputs && !(bits & UNALIGNED); ++i) {
        if (call->kinds[i] == Py_None) {
            made[i] = Py_NewRef(Py_None);
            continue;
        }
        made[i] = PyObject_CallObject(call->make, call->kinds[i]);
        if (made[i] == NULL || note_address(made[i], addresses, &count, &bits) < 0)
            return -1;
    }
    if (bits & UNALIGNED)
        return 0;
    if (count != call->tensors) {
        PyErr_Format(PyExc_TypeError, "a call was made for %zd tensors, and has %zd", call->tensors, count);
        return -1;
    }
    PyObject *number = PyObject_CallOneArg(call->current_stream, call->number);
    if (number == NULL)
        return -1;
    CUstream stream = (CUstream)(uintptr_t)PyLong_AsUnsignedLongLong(number);
    Py_DECREF(number);
    if (PyErr_Occurred())
        return -1;
    for (Py_ssize_t i = 0; i < call->launches; ++i) {
        Part *part = &call->parts[i];
        unsigned long long chosen[MAX_POINTERS];
        for (Py_ssize_t j = 0; j < part->launch->pointers; ++j)
            chosen[j] = addresses[part->places[j]];
        if (launch_at(part->launch, stream, chosen) < 0)
            return -1;
    }
    return 1;
}

static PyObject *call_tensors(PyObject *self, PyObject *const *args, size_t nargsf, PyObject *keywords) {
    Call *call = (Call *)self;
    if (keywords != NULL || PyVectorcall_NARGS(nargsf) != call->inputs)
        return PyErr_Format(PyExc_TypeError, "a call takes %zd tensors, or None for some", call->inputs);
    PyObject *made[MAX_POINTERS] = {NULL}, *results = NULL;
    int done = call_with(call, args, made);
    if (done == 0)
        results = Py_NewRef(Py_None);
    else if (done > 0 && (results = PyTuple_New(call->returned)) != NULL)
        for (Py_ssize_t i = 0; i < call->returned; ++i)
            PyTuple_SET_ITEM(results, i, Py_NewRef(made[call->back[i]]));
    for (Py_ssize_t i = 0; i < call->outputs; ++i)
        Py_XDECREF(made[i]);
    return results;
}

/* `tuple`'s numbers, each of them below `below`; their count, or -1 with an exception. */
static Py_ssize_t read_places(PyObject *tuple, Py_ssize_t below, Py_ssize_t *places) {
    Py_ssize_t count = PyTuple_Check(tuple) ? PyTuple_GET_SIZE(tuple) : -1;
    for (Py_ssize_t i = 0; 0 <= count && i < count; ++i) {
        Py_ssize_t place = count > MAX_POINTERS ? -1 : PyLong_AsSsize_t(PyTuple_GET_ITEM(tuple, i));
        if (place < 0 || place >= below)
            count = -1;
        else
            places[i] = place;
    }
    return count;
}

static int fill_call(Call *call, PyObject *launches, PyObject *outputs, PyObject *returned) {
    if (call->tensors > 2 * MAX_POINTERS || call->inputs > MAX_POINTERS ||
        PyTuple_GET_SIZE(outputs) > MAX_POINTERS || PyTuple_GET_SIZE(launches) > MAX_LAUNCHES)
        return -1;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(outputs); ++i, ++call->outputs) {
        PyObject *kind = PyTuple_GET_ITEM(outputs, i);
        if (kind != Py_None && !PyTuple_Check(kind))
            return -1;
        call->kinds[i] = Py_NewRef(kind);
    }
    call->returned = read_places(returned, call->outputs, call->back);
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(launches); ++i, ++call->launches) {
        PyObject *pair = PyTuple_GET_ITEM(launches, i);
        if (!PyTuple_Check(pair) || PyTuple_GET_SIZE(pair) != 2 || Py_TYPE(PyTuple_GET_ITEM(pair, 0)) != launch_type)
            return -1;
        Part *part = &call->parts[i];
        Launch *prepared = (Launch *)PyTuple_GET_ITEM(pair, 0);
        if (read_places(PyTuple_GET_ITEM(pair, 1), call->tensors, part->places) != prepared->pointers)
            return -1;
        part->launch = (Launch *)Py_NewRef((PyObject *)prepared);
    }
    return call->returned < 0 ? -1 : 0;
}

static PyObject *make_call(PyObject *Py_UNUSED(module), PyObject *args) {
    PyObject *launches, *outputs, *returned, *make, *current_device, *current_stream;
    Py_ssize_t tensors, inputs;
    long ordinal;
    if (!PyArg_ParseTuple(
            args, "O!nnO!O!l(OOO)", &PyTuple_Type, &launches, &tensors, &inputs, &PyTuple_Type, &outputs, &PyTuple_Type,
            &returned, &ordinal, &make, &current_device, &current_stream))
        return NULL;
    Call *call = PyObject_New(Call, call_type);
    if (call == NULL)
        return NULL;
    memset((char *)call + sizeof(PyObject), 0, sizeof(Call) - sizeof(PyObject));
    call->vectorcall = call_tensors;
    call->tensors = tensors;
    call->inputs = inputs;
    call->ordinal = ordinal;
    call->make = Py_NewRef(make);
    call->current_device = Py_NewRef(current_device);
    call->current_stream = Py_NewRef(current_stream);
    call->number = PyLong_FromLong(ordinal);
    if (fill_call(call, launches, outputs, returned) < 0 || call->number == NULL) {
        Py_DECREF(call);
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_ValueError, "a call's launches and tensors do not go together");
        return NULL;
    }
    return (PyObject *)call;
}

static PyObject *has_clusters(PyObject *Py_UNUSED(module), PyObject *ordinal) {
    CUdevice device;
    int has = 0;
    long number = PyLong_AsLong(ordinal);
    if (number == -1 && PyErr_Occurred())
        return NULL;
    if (driver.cuDeviceGet(&device, (int)number) != CUDA_SUCCESS ||
        driver.cuDeviceGetAttribute(&has, CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH, device) != CUDA_SUCCESS)
        has = 0;
    return PyBool_FromLong(has);
}

static PyMemberDef launch_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Launch, vectorcall), READONLY, NULL},
    {NULL},
};

static PyMemberDef call_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Call, vectorcall), READONLY, NULL},
    {NULL},
};

static PyType_Slot launch_slots[] = {
    {Py_tp_call, PyVectorcall_Call},
    {Py_tp_members, launch_members},
    {0, NULL},
};

static PyType_Slot call_slots[] = {
    {Py_tp_call, PyVectorcall_Call},
    {Py_tp_members, call_members},
    {Py_tp_dealloc, call_dealloc},
    {0, NULL},
};

static PyType_Spec launch_spec = {
    .name = "onepass_launcher.Launch",
    .basicsize = sizeof(Launch),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = launch_slots,
};

static PyType_Spec call_spec = {
    .name = "onepass_launcher.Call",
    .basicsize = sizeof(Call),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = call_slots,
};

static PyMethodDef methods[] = {
    {"load", load, METH_VARARGS, NULL},
    {"prepare", prepare, METH_VARARGS, NULL},
    {"call", make_call, METH_VARARGS, NULL},
    {"has_clusters", has_clusters, METH_O, NULL},
    {NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, .m_name = "onepass_launcher", .m_size = -1, .m_methods = methods};

PyMODINIT_FUNC PyInit_onepass_launcher(void) {
    void *library = dlopen("libcuda.so.1", RTLD_LAZY);
    int found = library != NULL;
#define FIND(name, parameters)                                                                                         \
    found = found && (driver.name = (CUresult(*) parameters)dlsym(library, #name)) != NULL;
    DRIVER(FIND)
    if (!found) {
        PyErr_SetString(PyExc_ImportError, "libcuda.so.1 with cuLaunchKernelEx was not found");
        return NULL;
    }
    data_ptr = PyUnicode_InternFromString("data_ptr");
    launch_type = (PyTypeObject *)PyType_FromSpec(&launch_spec);
    call_type = (PyTypeObject *)PyType_FromSpec(&call_spec);
    PyObject *module = PyModule_Create(&definition);
    if (data_ptr == NULL || launch_type == NULL || call_type == NULL || module == NULL ||
        PyModule_AddObjectRef(module, "Launch", (PyObject *)launch_type) < 0)
        return NULL;
    return module;
}
