// Runs a compiled model from C++, where destructors free what C frees by hand and an error is an exception: a classifier from
// f32[batch, 13] to probabilities, such as fixtures/small/mlp.
//
//     wgfc compile fixtures/small/mlp/model.onnx -o FOLDER
//     c++ -std=c++17 run.cpp -I ../../bindings/c/include -L LIBRARY -lwgfc_c -o run
//     ./run FOLDER
#include <cstdio>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>
#include <wgfc.h>

namespace wgfc {

struct Error : std::runtime_error {
    wgfc_code code;
    Error(wgfc_code code, const char *message) : std::runtime_error(message), code(code) {}
};

inline void check(wgfc_error *error) {
    if (!error)
        return;
    Error e(wgfc_error_code(error), wgfc_error_message(error));
    wgfc_error_free(error);
    throw e;
}

struct Free {
    void operator()(wgfc_model *m) const { wgfc_model_free(m); }
    void operator()(wgfc_results *r) const { wgfc_results_free(r); }
};

struct Floats {
    std::string name;
    std::vector<int64_t> shape;
    std::vector<float> values;
};

class Model {
    std::unique_ptr<wgfc_model, Free> model;

  public:
    explicit Model(const std::string &path) {
        wgfc_model *m = nullptr;
        check(wgfc_open(path.c_str(), nullptr, &m));
        model.reset(m);
    }

    std::vector<Floats> run(const std::vector<Floats> &inputs) {
        std::vector<wgfc_tensor> given;
        for (const Floats &i : inputs)
            given.push_back({i.name.c_str(), WGFC_F32, static_cast<uint32_t>(i.shape.size()), i.shape.data(), i.values.data(),
                             i.values.size() * sizeof(float)});
        wgfc_results *r = nullptr;
        check(wgfc_run(model.get(), given.data(), given.size(), &r));
        std::unique_ptr<wgfc_results, Free> results(r);
        std::vector<Floats> outputs;
        for (size_t i = 0; i < wgfc_result_count(r); i++) {
            const wgfc_tensor *t = wgfc_result(r, i);
            const float *data = static_cast<const float *>(t->data);
            outputs.push_back({t->name, {t->shape, t->shape + t->rank}, {data, data + t->bytes / sizeof(float)}});
        }
        return outputs;
    }
};

} // namespace wgfc

int main(int argc, char **argv) try {
    if (argc < 2)
        throw std::invalid_argument("usage: run FOLDER");
    wgfc::Model model(argv[1]);
    std::vector<float> x(2 * 13, 0.5f);
    for (const wgfc::Floats &out : model.run({{"x", {2, 13}, x}})) {
        std::printf("%s:", out.name.c_str());
        for (float v : out.values)
            std::printf(" %.6f", v);
        std::printf("\n");
    }
    // The library says what does not fit.
    try {
        model.run({{"x", {2, 12}, std::vector<float>(24)}});
    } catch (const wgfc::Error &e) {
        std::printf("code %d\n", static_cast<int>(e.code));
        std::fprintf(stderr, "%s\n", e.what());
    }
    return 0;
} catch (const std::exception &e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
}
