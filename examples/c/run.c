/*
 * Runs a compiled model from C: lists its inputs and outputs, fills each input with a ramp, and prints the outputs.
 *
 *     wgfc compile model.onnx -o FOLDER
 *     cc run.c -I ../../bindings/c/include -L LIBRARY -lwgfc_c -o run
 *     ./run FOLDER [OPEN-EXTENT]
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <wgfc.h>

enum { MOST_INPUTS = 16, MOST_EXTENTS = 8 };

/* Prints an error, frees it, and gives its code: 0 without one. */
static int failed(wgfc_error *error) {
    int code = wgfc_error_code(error);
    if (code != WGFC_OK)
        fprintf(stderr, "%s\n", wgfc_error_message(error));
    wgfc_error_free(error);
    return code;
}

static void show(const char *what, const wgfc_port *port) {
    printf("%s %s: type %d, [", what, port->name, (int)port->dtype);
    for (uint32_t i = 0; i < port->rank; i++)
        printf("%s%s", i ? ", " : "", port->extents[i]);
    printf("]%s\n", port->optional ? ", optional" : "");
}

int main(int argc, char **argv) {
    if (argc < 2 || wgfc_abi() != WGFC_ABI) {
        fprintf(stderr, "usage: run FOLDER [OPEN-EXTENT], with a library of the same interface\n");
        return 1;
    }
    const int64_t open_extent = argc > 2 ? atoll(argv[2]) : 1;

    wgfc_model *model;
    int code = failed(wgfc_open(argv[1], NULL, &model));
    if (code)
        return code;
    fprintf(stderr, "wgfc %s on %s\n", wgfc_version(), wgfc_adapter(model));
    for (size_t i = 0; i < wgfc_output_count(model); i++)
        show("output", wgfc_output(model, i));

    wgfc_tensor inputs[MOST_INPUTS];
    int64_t shapes[MOST_INPUTS][MOST_EXTENTS];
    size_t count = 0;
    for (size_t i = 0; i < wgfc_input_count(model); i++) {
        const wgfc_port *port = wgfc_input(model, i);
        show("input", port);
        if (port->optional)
            continue;
        if (count == MOST_INPUTS || port->rank > MOST_EXTENTS || port->dtype != WGFC_F32) {
            fprintf(stderr, "this example fills a few inputs of f32 only\n");
            return 1;
        }
        size_t n = 1;
        for (uint32_t d = 0; d < port->rank; d++) {
            shapes[count][d] = port->shape[d] < 0 ? open_extent : port->shape[d];
            n *= (size_t)shapes[count][d];
        }
        float *data = malloc(n * sizeof(float) + 1);
        for (size_t k = 0; data && k < n; k++)
            data[k] = 0.125f * (float)(k % 17) - 1.0f;
        inputs[count] = (wgfc_tensor){port->name, WGFC_F32, port->rank, shapes[count], data, n * sizeof(float)};
        count++;
    }

    wgfc_results *results;
    code = failed(wgfc_run(model, inputs, count, &results));
    for (size_t i = 0; !code && i < wgfc_result_count(results); i++) {
        const wgfc_tensor *t = wgfc_result(results, i);
        printf("%s:", t->name);
        if (t->dtype == WGFC_F32)
            for (size_t k = 0; k < t->bytes / sizeof(float); k++)
                printf(" %.6f", ((const float *)t->data)[k]);
        printf("\n");
    }
    for (size_t i = 0; i < count; i++)
        free((void *)inputs[i].data);
    if (!code)
        wgfc_results_free(results);
    wgfc_model_free(model);
    return code;
}
