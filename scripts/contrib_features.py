"""Cases of scripts/contrib_cases.py: array operators of ai.onnx.ml."""
import numpy as np

from contrib_harness import F32, case, integers, numbers

NAMED = {0: ["n", 5]}


def features():
    def make(name, op, x, outputs=1, dims=None, **attributes):
        case(f"ml_{name}", op, [x], outputs, dims or {}, "ai.onnx.ml", **attributes)

    x, whole = numbers("ml", 7, 5), integers("ml", -4, 5, 7, 5)
    each = lambda tag, n=5: numbers(tag, n).tolist()
    make("scaler", "Scaler", x, dims=NAMED, offset=each("offset"), scale=each("scale"))
    make("scaler_one", "Scaler", whole, offset=[1.5], scale=[-0.25])
    make("scaler_vector", "Scaler", x[0], offset=each("offset"), scale=each("scale"))
    zero = np.concatenate([x, np.zeros((1, 5), F32), -np.abs(x[:2])])
    for norm in ["MAX", "L1", "L2"]:
        make(f"normalizer_{norm.lower()}", "Normalizer", zero, dims=NAMED, norm=norm)
    make("normalizer_vector", "Normalizer", whole[0], norm="L2")
    make("binarizer", "Binarizer", x, dims=NAMED, threshold=0.25)
    gaps = np.where(np.abs(x) > 1, F32(np.nan), x)
    make("imputer", "Imputer", gaps, dims=NAMED, imputed_value_floats=each("imputed"), replaced_value_float=float("nan"))
    make("imputer_one", "Imputer", np.round(x), imputed_value_floats=[7.5], replaced_value_float=1.0)
    make("imputer_ints", "Imputer", whole, imputed_value_int64s=[9, 8, 7, 6, 5], replaced_value_int64=-1)
    for i, index in enumerate([[3], [4, 0, 0, 2]]):
        case(f"ml_array_feature_extractor_{i}", "ArrayFeatureExtractor", [x, np.array(index)], 1, NAMED, "ai.onnx.ml")
    case("ml_array_feature_extractor_vector", "ArrayFeatureExtractor", [whole[0], np.array([1, 4])], 1, {}, "ai.onnx.ml")
    make("linear_regressor", "LinearRegressor", x, dims=NAMED, coefficients=each("w"), intercepts=[0.5])
    for post in ["NONE", "LOGISTIC", "SOFTMAX"]:
        more = {"coefficients": each("w", 15), "intercepts": each("b", 3), "post_transform": post}
        make(f"linear_regressor_{post.lower()}", "LinearRegressor", x, dims=NAMED, targets=3, **more)
        make(f"linear_classifier_{post.lower()}", "LinearClassifier", x, 2, NAMED, classlabels_ints=[4, -1, 9], **more)
    for post in ["NONE", "LOGISTIC"]:
        make(f"linear_classifier_two_{post.lower()}", "LinearClassifier", x, 2, NAMED, coefficients=each("w"), intercepts=[0.1], classlabels_ints=[3, 8], post_transform=post)
