"""Cases of ONNX Runtime's fused and quantised operators, for scripts/contrib_cases.py."""
import numpy as np

from contrib_harness import F16, F32, LOW, case, integers, numbers, widened


def octets(name, dtype, *shape):
    """Random weights of 8 bits. i8 weights have only 7 bits, because on processors without VNNI ONNX Runtime adds two products
    with u8 in 16 bits with saturation."""
    return integers(name, *((0, 256) if dtype == np.uint8 else (-64, 65)), *shape, dtype=dtype)


def packed_attention():
    n, b, s, d, p = 3, 2, 5, 20, 4

    def make(name, rest=(), outputs=1, dtype=F32, sizes=(24, 24, 24), dims=None, bias=True, **attributes):
        total = sum(sizes)
        inputs = [numbers("x", b, s, d), [numbers("w", d, total, scale=0.3)], [numbers("b", total)] if bias else None, *rest]
        narrow = widened(inputs, dtype)
        # ONNX Runtime crashes if there is no bias.
        like = None if bias else [*inputs[:2], np.zeros(total, F32)]
        case("attention_" + name, "Attention", narrow, outputs, dims or {0: ["batch", "seq", d]}, num_heads=n, like=like, **attributes)

    past = numbers("past", 2, b, n, p, 8)
    keys = (np.arange(s)[None, :] < np.array([[s], [3]])).astype(np.int32)
    for dtype, t in [(F32, ""), (F16, "_f16")]:
        make("plain" + t, dtype=dtype)
        make("causal" + t, dtype=dtype, unidirectional=1)
        make("past" + t, [None, past], 2, dtype=dtype, dims={0: ["batch", "seq", d], 4: [2, "batch", n, "past", 8]}, unidirectional=1)
    make("no_bias", bias=False)
    make("scale", scale=0.3)
    make("sizes", sizes=(24, 24, 30), qkv_hidden_sizes=[24, 24, 30])
    make("present", outputs=2, unidirectional=1)
    make("mask_lengths", [np.array([5, 3], np.int32)])
    make("mask_no_keys", [np.array([5, 0], np.int32)])
    make("mask_ends_starts", [np.array([5, 4, 2, 0], np.int32)], dims={0: [b, "seq", d]})
    make("mask_keys", [keys])
    make("mask_filter", [keys], mask_filter_value=-2.5)
    make("mask_causal", [keys], unidirectional=1)
    make("mask_full", [integers("m", 0, 2, b, s, s, dtype=np.int32)])
    make("mask_past", [(np.arange(p + s)[None, :] >= np.array([[0], [2]])).astype(np.int32), past], 2)
    make("scores", [None, None, numbers("scores", b, n, s, s)])
    make("scores_broadcast", [keys, None, numbers("scores", 1, n, s, s)], unidirectional=1)

    def whole(name, dtype, weights, per_column=False, zero=True, rest=(), outputs=1, **attributes):
        inputs = [
            integers(name + "x", LOW[dtype], LOW[dtype] + 256, b, s, d, dtype=dtype), [octets(name + "w", weights, d, 72)],
            [numbers("b", 72)], np.array(0.02, F32), [np.abs(numbers("s", 72, scale=0.01)) + F32(0.005)] if per_column else [np.array(0.01, F32)],
            None, np.array(LOW[dtype] + 117, dtype) if zero else None,
            [(integers("z", -20, 20, 72) + LOW[weights] + 128).astype(weights) if per_column else np.array(LOW[weights] + 121, weights)] if zero else None, *rest,
        ]
        case("qattention_" + name, "QAttention", inputs, outputs, num_heads=n, **attributes)

    whole("u8", np.uint8, np.uint8)
    whole("i8_weights", np.uint8, np.int8)
    whole("columns", np.uint8, np.int8, per_column=True, unidirectional=1)
    whole("symmetric", np.uint8, np.int8, zero=False)
    whole("past", np.uint8, np.int8, rest=[past], outputs=2, unidirectional=1)


def quantised():
    def q(name, dtype, *shape):
        return integers(name, LOW[dtype], LOW[dtype] + 256, *shape, dtype=dtype)

    def point(scale, zero, dtype):
        """A scale and a zero point; without a zero point the quantisation is symmetric. Scales are not round numbers, so that
        results are not halfway between two quantised values."""
        return [np.array(scale**1.0131, F32), None if zero is None else np.array(zero + LOW[dtype] + 128, dtype)]

    for dtype, t in [(np.uint8, "_u8"), (np.int8, "_i8")]:
        for zeros, u in [((-11, 23, 4), ""), ((None, None, None), "_symmetric")]:
            za, zb, zc = zeros
            a, b = q("a", dtype, 3, 5, 11), q("b", dtype, 5, 1)
            for op, tag, scale in [("QLinearAdd", "add", 0.041), ("QLinearMul", "mul", 0.0173)]:
                inputs = [a, *point(0.023, za, dtype), b, *point(0.0177, zb, dtype), *point(scale, zc, dtype)]
                # ONNX Runtime infers the types from zero points, so it gets them explicitly.
                like = [np.array(0, dtype) if v is None else v for v in inputs]
                case(f"qlinear_{tag}{t}{u}", op, inputs, dims={0: ["n", 5, "k"]}, like=like)
            for op, tag, scale, more in [("QLinearSigmoid", "sigmoid", 0.0041, {}), ("QLinearLeakyRelu", "leaky_relu", 0.031, {"alpha": 0.17})]:
                case(f"qlinear_{tag}{t}{u}", op, [a, *point(0.031, za, dtype), *point(scale, zc, dtype)], dims={0: ["n", 5, "k"]}, **more)
        x = q("x", dtype, 2, 3, 7, 5)
        near, far = point(0.021, 9, dtype), point(0.0157, -6, dtype)
        case(f"qlinear_global_average_pool{t}", "QLinearGlobalAveragePool", [x, *near, *far], dims={0: ["n", 3, "h", "w"]})
        case(f"qlinear_global_average_pool_last{t}", "QLinearGlobalAveragePool", [x, *near, *far], channels_last=1)
        case(f"qlinear_average_pool{t}", "QLinearAveragePool", [x, *near, *far], kernel_shape=[3, 2], strides=[2, 1], pads=[1, 0, 1, 1])
        case(f"qlinear_average_pool_last{t}", "QLinearAveragePool", [x, *near, *far], kernel_shape=[2, 2], channels_last=1)
        parts = [v for i, z in enumerate([5, -9, 0]) for v in [q(f"part{i}", dtype, 2, 1 + 2 * i, 3), *point(0.02 + 0.003 * i, z, dtype)]]
        case(f"qlinear_concat{t}", "QLinearConcat", [*point(0.025, 3, dtype), *parts], axis=1)
        inputs = [q("s", dtype, 3, 4, 13), *point(0.04, 7, dtype), np.array(1 / 256, F32), np.array(LOW[dtype], dtype)]
        case(f"qlinear_softmax{t}", "QLinearSoftmax", inputs, axis=-1, also={"opset": 13})
        case(f"qlinear_softmax_12{t}", "QLinearSoftmax", inputs, axis=1, also={"opset": 12})
        choose = integers("choose", 0, 2, 5, 1).astype(bool)
        constant = [[v] for v in [*point(0.03, 2, dtype), *point(0.02, -7, dtype), *point(0.028, 1, dtype)]]
        case(f"qlinear_where{t}", "QLinearWhere", [choose, q("a", dtype, 3, 5, 4), *constant[:2], q("b", dtype, 5, 4), *constant[2:]])
        for weights, v in [(np.uint8, ""), (np.int8, "_i8_weights")]:
            if dtype == np.int8 and weights == np.uint8:
                continue
            w = octets("w", weights, 19, 7)
            columns = np.abs(numbers("s", 7, scale=0.02)) + F32(0.01)
            points = (integers("z", -20, 20, 7) + LOW[weights] + 128).astype(weights)
            za = np.array(LOW[dtype] + 131, dtype)
            if dtype == np.uint8:
                x = numbers("x", 3, 5, 19)
                bias = numbers("bias", 7)
                case(f"dynamic_quantize_matmul{v}", "DynamicQuantizeMatMul", [x, [w], [np.array(0.02, F32)]], dims={0: ["n", "m", 19]})
                case(f"dynamic_quantize_matmul_bias{v}", "DynamicQuantizeMatMul", [x, [w], [columns], [points], [bias]])
            a = q("a", dtype, 3, 5, 19)
            case(f"matmul_integer_to_float{t}{v}", "MatMulIntegerToFloat", [a, [w], np.array(0.03, F32), [np.array(0.02, F32)]], dims={0: ["n", "m", 19]})
            case(f"matmul_integer_to_float_columns{t}{v}", "MatMulIntegerToFloat", [a, [w], np.array(0.03, F32), [columns], za, [points], [numbers("bias", 7)]])
            a, c = q("a", dtype, 5, 19), integers("c", -900, 900, 7, dtype=np.int32)
            one, many = [np.array(0.02, F32), np.array(LOW[weights] + 120, weights)], [columns, points]
            out = [np.array(0.9, F32), np.array(LOW[dtype] + 125, dtype)]
            case(f"qgemm{t}{v}", "QGemm", [a, np.array(0.03, F32), za, w, *one, c, *out], alpha=1.5)
            case(f"qgemm_columns{t}{v}", "QGemm", [a.T.copy(), np.array(0.03, F32), za, w.T.copy(), *many, c, *out], transA=1, transB=1)
            case(f"qgemm_float{t}{v}", "QGemm", [a, np.array(0.03, F32), za, w, *many, c])
    for dtype, t in [(np.uint8, "u8"), (np.int8, "i8"), (np.uint16, "u16"), (np.int16, "i16")]:
        info = np.iinfo(dtype)
        x = numbers("x", 3, 5, 4, scale=3)
        scale, zero = np.abs(numbers("s", 5, scale=0.01)) + F32(0.02), integers("z", info.min, info.max, 5, dtype=dtype)
        case(f"quantize_linear_{t}", "QuantizeLinear", [x, np.array(0.02, F32), zero[:1].reshape(())])
        case(f"quantize_linear_axis_{t}", "QuantizeLinear", [x, scale, zero], axis=1)
        values = integers("q", info.min, info.max, 3, 5, 4, dtype=dtype)
        case(f"dequantize_linear_{t}", "DequantizeLinear", [values, np.array(0.02, F32), zero[:1].reshape(())])
        case(f"dequantize_linear_axis_{t}", "DequantizeLinear", [values, scale, zero], axis=1)


def fused():
    x, w = numbers("x", 2, 6, 9, 7), numbers("w", 4, 3, 3, 2, scale=0.4)
    z = numbers("z", 2, 4, 9, 7)
    conv = dict(group=2, pads=[1, 0, 1, 1], kernel_shape=[3, 2])
    for name, parameters in [("Relu", []), ("Tanh", []), ("Sigmoid", []), ("LeakyRelu", [0.2]), ("Clip", [-0.5, 1.25]), ("HardSigmoid", [0.3, 0.4])]:
        parameters = {"activation_params": parameters} if parameters else {}
        case(f"fused_conv_{name.lower()}", "FusedConv", [x, w, numbers("b", 4)], activation=name, dims={0: ["n", 6, "h", "w"]}, **conv, **parameters)
    case("fused_conv_sum", "FusedConv", [x, w, None, z], activation="Relu", **conv)
    case("fused_conv_sum_only", "FusedConv", [x, w, numbers("b", 4), z], **conv)
    a, b, c = numbers("a", 5, 11), numbers("b", 11, 7), numbers("c", 5, 1)
    for name, more in [("Relu", {}), ("LeakyRelu", {"activation_alpha": 0.3}), ("Sigmoid", {}), ("Tanh", {}), ("HardSigmoid", {"activation_alpha": 0.3, "activation_beta": 0.4}),
                       ("Elu", {"activation_alpha": 0.7}), ("Softplus", {}), ("Softsign", {}), ("ThresholdedRelu", {"activation_alpha": 0.5})]:
        case(f"fused_gemm_{name.lower()}", "FusedGemm", [a, b, c], activation=name, alpha=0.5, beta=2.0, dims={0: ["m", 11], 2: ["m", 1]}, **more)
    case("fused_gemm_transposed", "FusedGemm", [a.T.copy(), b.T.copy()], activation="Relu", transA=1, transB=1)
    ids, segments = integers("ids", 0, 31, 3, 7, dtype=np.int32), integers("segments", 0, 2, 3, 7, dtype=np.int32)
    tables = [[numbers("words", 31, 12)], [numbers("places", 9, 12)], [numbers("kinds", 2, 12)], [numbers("g", 12)], [numbers("beta", 12)]]
    dims = {0: ["n", "s"], 1: ["n", "s"], 7: ["n", "s"]}
    mask = (np.arange(7)[None, :] < np.array([[7], [3], [5]])).astype(np.int32)
    case("embed_layer_norm", "EmbedLayerNormalization", [ids, segments, *tables, mask], 2, dims)
    case("embed_layer_norm_sum", "EmbedLayerNormalization", [ids, segments, *tables], 3, dims)
    case("embed_layer_norm_no_segments", "EmbedLayerNormalization", [ids, None, *tables[:2], None, *tables[3:]], 2, dims)
    case("embed_layer_norm_positions", "EmbedLayerNormalization", [ids, segments, *tables, None, integers("at", 0, 9, 3, 7, dtype=np.int32)], 2)


def quantised_lstm():
    def make(name, dtype, columns=False, ways=1, zero=True, rest=(), outputs=3, **attributes):
        s, b, i, h = 6, 1, 7, 5
        low = LOW[dtype]
        each = (ways, 4 * h) if columns else (ways,)
        w, r = (octets(name + tag, dtype, ways, n, 4 * h) for tag, n in [("w", i), ("r", h)])
        scales = [np.abs(numbers(name + tag, *each, scale=0.002)) + F32(0.002) for tag in "sr"]
        points = [(integers(name + tag, -9, 9, *each) + low + 128).astype(dtype) if zero else np.full(each, low + 128, dtype) for tag in "ab"]
        parts = [None, None, None, None, None, *rest][-5:]
        more = [[p] for p in (scales[0], points[0], scales[1], points[1])]
        case("dynamic_quantize_lstm_" + name, "DynamicQuantizeLSTM", [numbers("x", s, b, i), [w], [r], *parts, *more], outputs,
             dims={0: ["seq", b, i]}, hidden_size=h, direction="bidirectional" if ways == 2 else "forward", **attributes)

    bias, state = [numbers("bias", 2, 40)], numbers("state", 2, 1, 5)
    make("u8", np.uint8)
    make("i8", np.int8, zero=False)
    make("columns", np.int8, columns=True, ways=2, zero=False)
    make("all", np.uint8, ways=2, rest=[bias, np.array([4], np.int32), state, state * F32(0.5), None])
