/*
 * wgfc: runs models that `wgfc compile` has written, on any GPU (Vulkan, Metal, DirectX 12) or on a driver for the CPU.
 *
 * Link with `-lwgfc_c`, shared or static. The library has no operators: kernels, buffers and sizes of a compiled model are all it
 * sees. Compile models with the command line (`wgfc compile model.onnx -o FOLDER`, or `-o model.wgfc` for one file), or with
 * wgfc_compile() where the library was built with the feature `compile`.
 *
 * Errors. A function that can fail returns an error, NULL where it succeeds. The caller frees it. What the function would
 * have made is NULL then. No panic of the library crosses this interface: it is an error of the code WGFC_INTERNAL.
 *
 * Ownership. Whatever a function returns or stores through a `**` belongs to the caller until it is given to the `_free` of its type,
 * once. NULL may be freed. A `const` pointer that a function returns points into its first argument and lives as long as that. What
 * the caller gives is read during the call and never kept.
 *
 * Threads. All functions may be called on any thread, and what they return may be used on another one. Several models run at
 * the same time; calls that run, reset or size one model wait for each other. While an object is being freed, no other call may use it.
 *
 * Text is UTF-8 and ends with NUL.
 */
#ifndef WGFC_H
#define WGFC_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(_WIN32) && !defined(WGFC_STATIC)
#define WGFC_API __declspec(dllimport)
#else
#define WGFC_API
#endif

/* The version of this interface. A library of another one does not fit this header. */
#define WGFC_ABI 1

/* Why a call failed: the answer of wgfc_error_code(). */
typedef int32_t wgfc_code;
enum {
    WGFC_OK = 0,
    /* The file, an input or an argument is wrong. */
    WGFC_WRONG = 1,
    /* The model is fine, and wgfc does not support it. */
    WGFC_UNSUPPORTED = 2,
    /* There is no adapter, its limits are too small, its memory is exhausted, or the device was lost. */
    WGFC_DEVICE = 3,
    /* A bug in wgfc: please report it. */
    WGFC_INTERNAL = 4
};

/* Types of elements. Those of 4 and 2 bits are packed, the first element in the low bits; a bool is a byte, 0 or 1. */
typedef int32_t wgfc_dtype;
enum {
    WGFC_F32 = 0,
    WGFC_F16 = 1,
    WGFC_BF16 = 2,
    WGFC_F64 = 3,
    WGFC_I64 = 4,
    WGFC_I32 = 5,
    WGFC_I16 = 6,
    WGFC_I8 = 7,
    WGFC_U64 = 8,
    WGFC_U32 = 9,
    WGFC_U16 = 10,
    WGFC_U8 = 11,
    WGFC_BOOL = 12,
    WGFC_F8E4M3 = 13,
    WGFC_F8E4M3UZ = 14,
    WGFC_F8E5M2 = 15,
    WGFC_F8E5M2UZ = 16,
    WGFC_F8E8M0 = 17,
    WGFC_F4E2M1 = 18,
    WGFC_I4 = 19,
    WGFC_I2 = 20,
    WGFC_U4 = 21,
    WGFC_U2 = 22
};

typedef struct wgfc_error wgfc_error;
typedef struct wgfc_model wgfc_model;
typedef struct wgfc_results wgfc_results;

/* A dense tensor in the host's memory, row by row, in the host's byte order. */
typedef struct wgfc_tensor {
    /* The name of the input or output. */
    const char *name;
    wgfc_dtype dtype;
    /* How many extents it has; 0 for a scalar. */
    uint32_t rank;
    /* The extents, outermost first. */
    const int64_t *shape;
    /* The elements. Those of results are aligned to 8 bytes; those of inputs need no alignment. */
    const void *data;
    /* How many bytes they are, exactly. */
    size_t bytes;
} wgfc_tensor;

/* An input or output of a model. */
typedef struct wgfc_port {
    const char *name;
    wgfc_dtype dtype;
    uint32_t rank;
    /* The extents, outermost first; -1 for one that each run may choose. */
    const int64_t *shape;
    /* The extents as text: "224", "batch", "past + seq". Equal names are equal sizes. */
    const char *const *extents;
    /* 1 for an input that a run may leave out. */
    int32_t optional;
} wgfc_port;

/* The library's WGFC_ABI. */
WGFC_API uint32_t wgfc_abi(void);
/* The library's version, such as "0.1.0". */
WGFC_API const char *wgfc_version(void);

/* The code of an error; WGFC_OK of NULL. */
WGFC_API wgfc_code wgfc_error_code(const wgfc_error *error);
/* The error in words: its place, its reason, and advice, on one or several lines; "" of NULL. */
WGFC_API const char *wgfc_error_message(const wgfc_error *error);
WGFC_API void wgfc_error_free(wgfc_error *error);

/*
 * Opens a compiled model, a folder or a file of the ending .wgfc, and puts its weights and kernels on a device. The files may be
 * removed afterwards.
 *
 * `adapter` is a part of the adapter's name, or its number, or "software"; NULL for the one that the environment variable
 * WGFC_ADAPTER names, else the most capable.
 */
WGFC_API wgfc_error *wgfc_open(const char *path, const char *adapter, wgfc_model **model);
WGFC_API void wgfc_model_free(wgfc_model *model);

/* The name of the adapter that the model runs on. */
WGFC_API const char *wgfc_adapter(const wgfc_model *model);

/* The model's inputs and outputs, in its order; NULL for an index beyond them. */
WGFC_API size_t wgfc_input_count(const wgfc_model *model);
WGFC_API const wgfc_port *wgfc_input(const wgfc_model *model, size_t index);
WGFC_API size_t wgfc_output_count(const wgfc_model *model);
WGFC_API const wgfc_port *wgfc_output(const wgfc_model *model, size_t index);

/* Gives a size that no input's shape determines its value, for the runs to come. */
WGFC_API wgfc_error *wgfc_set_size(wgfc_model *model, const char *name, int64_t value);
/* Has the model forget what earlier runs left in its states, such as the keys and values of a decoder. */
WGFC_API wgfc_error *wgfc_reset(wgfc_model *model);

/* Runs the model with `count` inputs in any order, waits, and gives all outputs, in the model's order. */
WGFC_API wgfc_error *wgfc_run(wgfc_model *model, const wgfc_tensor *inputs, size_t count, wgfc_results **results);

WGFC_API size_t wgfc_result_count(const wgfc_results *results);
/* An output by its place, or by its name; NULL where there is none. Its shape is that of this run. */
WGFC_API const wgfc_tensor *wgfc_result(const wgfc_results *results, size_t index);
WGFC_API const wgfc_tensor *wgfc_result_named(const wgfc_results *results, const char *name);
WGFC_API void wgfc_results_free(wgfc_results *results);

#ifdef WGFC_COMPILE
/*
 * Compiles the ONNX model at `model`, for any device, and writes it as the folder `output`, or as one file where that ends in .wgfc.
 * Only in a library that was built with the feature `compile`; define WGFC_COMPILE before including this header.
 */
WGFC_API wgfc_error *wgfc_compile(const char *model, const char *output);
#endif

#ifdef __cplusplus
}
#endif

#endif
