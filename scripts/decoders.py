"""Decoders for scripts/make_fixtures.py: models with key-value caches."""
import numpy as np
from onnx import TensorProto

from onnx_models import BOOL, FIXTURES, FLOAT, INT32, INT64, Model

LEAST = np.float32(np.finfo(np.float32).min)


def cached(layers):
    return [f"{i}.{which}" for i in range(layers) for which in ["key", "value"]]


def causal(m, output):
    """The causal mask: true at positions up to the query's own."""
    m.op("Range", ["zero", "total", "one"], "columns")
    m.op("Range", ["past_length", "total", "one"], "places")
    m.op("Unsqueeze", ["places", "axis1"], "rows")
    m.op("LessOrEqual", ["columns", "rows"], output)


def angles(m, width, base):
    """Computes `cos` and `sin` of the rotary angles of the positions, for heads of this width."""
    m.op("Cast", ["position_ids"], "positions", to=FLOAT)
    m.op("Unsqueeze", ["positions", "axis2"], "positions3")
    m.constant("frequencies", (base ** (-np.arange(width // 2) / (width // 2))).astype(np.float32))
    m.op("Mul", ["positions3", "frequencies"], "half_angles")
    m.op("Concat", ["half_angles", "half_angles"], "angles3", axis=-1)
    m.op("Unsqueeze", ["angles3", "axis1"], "angles")
    m.op("Cos", ["angles"], "cos")
    m.op("Sin", ["angles"], "sin")


def rotary(m, x, begin, half, end):
    m.op("Slice", [x, begin, half, "axis3"], f"{x}/left")
    m.op("Slice", [x, half, end, "axis3"], f"{x}/right")
    m.op("Neg", [f"{x}/right"], f"{x}/negative")
    m.op("Concat", [f"{x}/negative", f"{x}/left"], f"{x}/turned", axis=-1)
    m.op("Mul", [x, "cos"], f"{x}/cos")
    m.op("Mul", [f"{x}/turned", "sin"], f"{x}/sin")
    return m.op("Add", [f"{x}/cos", f"{x}/sin"], f"{x}/rotated")


def deviation(m, x, at, square, last, epsilon):
    """The root mean square along the last axis."""
    m.op("Pow", [x, square], f"{at}/square")
    m.op("ReduceMean", [f"{at}/square", last], f"{at}/mean")
    m.op("Add", [f"{at}/mean", epsilon], f"{at}/variance")
    return m.op("Sqrt", [f"{at}/variance"], f"{at}/deviation")


def heads_of(m, x, shape, out):
    m.op("Reshape", [x, shape], f"{out}/rows")
    return m.op("Transpose", [f"{out}/rows"], out, perm=[0, 2, 1, 3])


def appended(m, i, k, v):
    """Appends to the caches of layer `i`."""
    for which, new in [("key", k), ("value", v)]:
        m.op("Concat", [f"past_key_values.{i}.{which}", new], f"present.{i}.{which}", axis=2)


def weights(m, q, keys, at="", *, scale=None, least):
    """The attention weights of the queries over their visible keys. The last axis is the key positions."""
    scores = m.op("MatMul", [q, keys], f"{at}products")
    if scale:
        scores = m.op("Mul", [scores, scale], f"{at}scaled")
    m.op("Where", ["visible", scores, least], f"{at}scores")
    return m.op("Softmax", [f"{at}scores"], f"{at}weights", axis=-1)


def context(m, values, at=""):
    """The attention output of all heads, concatenated for each position."""
    m.op("MatMul", [f"{at}weights", values], f"{at}context")
    return m.op("Transpose", [f"{at}context"], f"{at}context_rows", perm=[0, 2, 1, 3])


def decoder(name="decoder", batch=1):
    """Two layers of a decoder with a growing cache: RMS norms, rotary positions, 4 query heads on 2 key heads, SwiGLU."""
    d, heads, kv, hd, vocab, layers = 24, 4, 2, 6, 37, 2
    past_shape, present_shape = [batch, kv, "past", hd], [batch, kv, "past + seq", hd]
    caches = cached(layers)
    m = Model(
        name,
        [
            ("input_ids", INT64, [batch, "seq"]),
            ("attention_mask", INT64, [batch, "past + seq"]),
            ("position_ids", INT64, [batch, "seq"]),
        ]
        + [(f"past_key_values.{c}", FLOAT, past_shape) for c in caches],
        [("logits", FLOAT, [batch, "seq", vocab])] + [(f"present.{c}", FLOAT, present_shape) for c in caches],
    )
    for name, value in [("zero", 0), ("one", 1)]:
        m.constant(name, np.int64(value))
    for axis in [1, 2, 3]:
        m.constant(f"axis{axis}", [axis])

    # True at keys up to the query's own position that the mask does not hide.
    m.op("Shape", ["attention_mask"], "mask_shape")
    m.op("Gather", ["mask_shape", "one"], "total")
    m.op("Shape", ["past_key_values.0.key"], "past_key_shape")
    m.op("Gather", ["past_key_shape", m.constant("two", np.int64(2))], "past_length")
    causal(m, "causal")
    m.op("Cast", ["attention_mask"], "wanted", to=BOOL)
    m.op("Unsqueeze", ["wanted", m.constant("axes12", [1, 2])], "wanted4")
    m.op("And", ["causal", "wanted4"], "visible")

    angles(m, hd, 100.0)

    def norm(x, out):
        square, last = m.constant(f"{out}/exponent", np.float32(2)), m.constant(f"{out}/axes", [-1])
        epsilon = m.constant(f"{out}/epsilon", np.float32(1e-6))
        m.op("Div", [x, deviation(m, x, out, square, last, epsilon)], f"{out}/normal")
        gain = m.constant(f"{out}/gain", (1 + 0.1 * m.rng.standard_normal(d)).astype(np.float32))
        return m.op("Mul", [f"{out}/normal", gain], out)

    def projected(x, which, n, at):
        out = f"{at}/{which}"
        m.op("MatMul", [x, m.weight(f"{out}/w", d, n * hd)], f"{out}/product")
        m.op("Add", [f"{out}/product", m.weight(f"{out}/b", n * hd)], f"{out}/biased")
        return heads_of(m, f"{out}/biased", m.constant(f"{out}/split", [0, 0, n, hd]), out)

    def turned(x):
        return rotary(m, x, m.constant(f"{x}/0", [0]), m.constant(f"{x}/half", [hd // 2]), m.constant(f"{x}/all", [hd]))

    def repeat(x):
        m.op("Unsqueeze", [x, "axis2"], f"{x}/grouped")
        m.op("Expand", [f"{x}/grouped", m.constant(f"{x}/times", [1, 1, heads // kv, 1, 1])], f"{x}/repeated")
        return m.op("Reshape", [f"{x}/repeated", m.constant(f"{x}/flat", [1 if batch == 1 else 0, heads, -1, hd])], f"{x}/heads")

    m.op("Gather", [m.weight("embedding", vocab, d, scale=1), "input_ids"], "x0")
    x = "x0"
    for i in range(layers):
        at = f"layer{i}"
        h = norm(x, f"{at}/norm")
        q = turned(projected(h, "q", heads, at))
        k = turned(projected(h, "k", kv, at))
        appended(m, i, k, projected(h, "v", kv, at))
        m.op("Transpose", [repeat(f"present.{i}.key")], f"{at}/keys", perm=[0, 1, 3, 2])
        scale, least = m.constant(f"{at}/scale", np.float32(hd**-0.5)), m.constant(f"{at}/least", LEAST)
        weights(m, q, f"{at}/keys", f"{at}/", scale=scale, least=least)
        rows = context(m, repeat(f"present.{i}.value"), f"{at}/")
        m.op("Reshape", [rows, m.constant(f"{at}/joined", [0, 0, heads * hd])], f"{at}/joined_rows")
        m.op("MatMul", [f"{at}/joined_rows", m.weight(f"{at}/o", heads * hd, d)], f"{at}/attention")
        x = m.op("Add", [x, f"{at}/attention"], f"{at}/middle")
        h = norm(x, f"{at}/norm2")
        m.op("MatMul", [h, m.weight(f"{at}/gate/w", d, 41)], f"{at}/gate")
        m.op("MatMul", [h, m.weight(f"{at}/up/w", d, 41)], f"{at}/up")
        m.op("Sigmoid", [f"{at}/gate"], f"{at}/sigmoid")
        m.op("Mul", [f"{at}/gate", f"{at}/sigmoid"], f"{at}/silu")
        m.op("Mul", [f"{at}/silu", f"{at}/up"], f"{at}/product")
        m.op("MatMul", [f"{at}/product", m.weight(f"{at}/down", 41, d)], f"{at}/mlp")
        x = m.op("Add", [x, f"{at}/mlp"], f"{at}/out")
    m.op("MatMul", [norm(x, "last"), m.weight("head", d, vocab)], "logits")

    def feed(past, seq, rows=1):
        cache = {f"past_key_values.{c}": m.rng.standard_normal((rows, kv, past, hd), dtype=np.float32) for c in caches}
        return cache | {
            "input_ids": m.rng.integers(0, vocab, (rows, seq)),
            "attention_mask": np.ones((rows, past + seq), np.int64),
            "position_ids": np.repeat(np.arange(past, past + seq)[None], rows, 0),
        }

    hidden = feed(4, 3, rows=1 if batch == 1 else 2)
    hidden["attention_mask"][0, :2] = 0
    m.save(feed(0, 5), feed(5, 1), hidden)


def decoder_of_several():
    """The decoder for any number of sequences."""
    decoder("decoder-batch", "batch")


def decoder_ragged():
    """A layer around GroupQueryAttention, as exported for ONNX Runtime: each sequence has its own length."""
    heads, kv, hd, vocab, room = 4, 2, 16, 37, 64
    d = heads * hd
    caches = ["key", "value"]
    m = Model(
        "decoder-ragged",
        [("input_ids", INT64, ["batch", "seq"]), ("attention_mask", INT64, ["batch", "total"])]
        + [(f"past_key_values.0.{c}", FLOAT, ["batch", kv, "past", hd]) for c in caches],
        [("logits", FLOAT, ["batch", "seq", vocab])]
        + [(f"present.0.{c}", FLOAT, ["batch", kv, "total", hd]) for c in caches],
    )
    # The last position of each sequence, and the length of the longest.
    m.op("ReduceSum", ["attention_mask", m.constant("axis1", [1])], "counts", keepdims=0)
    m.op("Sub", ["counts", m.constant("one", np.int64(1))], "last")
    m.op("Cast", ["last"], "seqlens", to=INT32)
    m.op("Shape", ["attention_mask"], "mask_shape")
    m.op("Gather", ["mask_shape", "one"], "longest")
    m.op("Cast", ["longest"], "total", to=INT32)
    turns = np.arange(room)[:, None] * 100.0 ** (-np.arange(hd // 2) / (hd // 2))
    m.constant("cos", np.cos(turns).astype(np.float32))
    m.constant("sin", np.sin(turns).astype(np.float32))
    m.op("Gather", [m.weight("embedding", vocab, d, scale=1), "input_ids"], "x")
    for name, width in [("q", d), ("k", kv * hd), ("v", kv * hd)]:
        m.op("MatMul", ["x", m.weight(f"{name}/w", d, width, scale=0.2)], name)
    m.op(
        "GroupQueryAttention",
        ["q", "k", "v", "past_key_values.0.key", "past_key_values.0.value", "seqlens", "total", "cos", "sin"],
        ["context", "present.0.key", "present.0.value"],
        domain="com.microsoft",
        num_heads=heads,
        kv_num_heads=kv,
        do_rotary=1,
    )
    m.op("MatMul", ["context", m.weight("o", d, d, scale=0.2)], "attention")
    m.op("Add", ["x", "attention"], "y")
    m.op("MatMul", ["y", m.weight("head", d, vocab, scale=0.2)], "logits")

    def feed(past, seq, lengths):
        """`lengths` are the numbers of tokens of each sequence, the new ones included."""
        rows, total = len(lengths), past + seq
        shape = (rows, kv, past, hd)
        return {f"past_key_values.0.{c}": m.rng.standard_normal(shape, dtype=np.float32) for c in caches} | {
            "input_ids": m.rng.integers(0, vocab, (rows, seq)),
            "attention_mask": (np.arange(total)[None] < np.array(lengths)[:, None]).astype(np.int64),
        }

    m.save(feed(0, 5, [5, 5]), feed(6, 1, [7, 4, 2]), feed(4, 3, [7]))


def cache(kind):
    """An attention layer with a cache of some kind.

    `static`: a cache of fixed size into which new positions are scattered. `where`: a cache of fixed size into which `Where`
    writes one position at a time. `window`: a cache of fixed size from which the oldest positions are dropped. `sliding`: a
    growing cache from which the oldest positions are dropped beyond a fixed size.
    """
    heads, hd, size = 2, 4, {"static": 11, "where": 11, "window": 5, "sliding": 5}[kind]
    d, seq = heads * hd, 1 if kind == "where" else "seq"
    past = "past" if kind == "sliding" else size
    after = "after" if kind == "sliding" else size
    caches = ["key", "value"]
    m = Model(
        f"cache-{kind}",
        [("x", FLOAT, [1, seq, d]), ("position", INT64, [seq])]
        + [(f"past_{c}", FLOAT, [1, heads, past, hd]) for c in caches],
        [("y", FLOAT, [1, seq, d])] + [(f"present_{c}", FLOAT, [1, heads, after, hd]) for c in caches],
    )
    m.constant("zero", np.int64(0))
    m.constant("one", np.int64(1))
    for axis in [1, 2]:
        m.constant(f"axis{axis}", [axis])
    m.op("Unsqueeze", ["position", "axis1"], "rows")
    for which in ["q", "k", "v"]:
        m.op("MatMul", ["x", m.weight(f"{which}/w", d, d)], f"{which}/product")
        m.op("Reshape", [f"{which}/product", m.constant(f"{which}/split", [1, -1, heads, hd])], f"{which}/heads")
        m.op("Transpose", [f"{which}/heads"], which, perm=[0, 2, 1, 3])
    if kind == "static":
        # Keys are written with positions as the first axis, values with indices of the shape of the new values.
        m.op("Transpose", ["past_key"], "key_in_front", perm=[2, 0, 1, 3])
        m.op("Transpose", ["k"], "k_in_front", perm=[2, 0, 1, 3])
        m.op("ScatterND", ["key_in_front", "rows", "k_in_front"], "key_written")
        m.op("Transpose", ["key_written"], "present_key", perm=[1, 2, 0, 3])
        m.op("Shape", ["v"], "v_shape")
        m.op("Reshape", ["position", m.constant("along", [1, 1, -1, 1])], "position4")
        m.op("Expand", ["position4", "v_shape"], "places")
        m.op("ScatterElements", ["past_value", "places", "v"], "present_value", axis=2)
        keys, values = "present_key", "present_value"
    elif kind == "where":
        m.constant("all", np.arange(size).reshape(1, 1, size, 1))
        m.op("Equal", ["all", "position"], "here")
        m.op("Where", ["here", "k", "past_key"], "present_key")
        m.op("Not", ["here"], "elsewhere")
        m.op("Where", ["elsewhere", "past_value", "v"], "present_value")
        keys, values = "present_key", "present_value"
    else:
        keys = m.op("Concat", ["past_key", "k"], "keys", axis=2)
        values = m.op("Concat", ["past_value", "v"], "values", axis=2)
        m.constant("from", [-size])
        m.constant("to", [np.iinfo(np.int64).max])
        for c in caches:
            m.op("Slice", [f"{c}s", "from", "to", "axis2"], f"present_{c}")
    m.op("Shape", [keys], "keys_shape")
    m.op("Gather", ["keys_shape", m.constant("two", np.int64(2))], "count")
    m.op("Range", ["zero", "count", "one"], "columns")
    if kind in ["window", "sliding"]:
        # The last column is the last position.
        m.op("ReduceMax", ["position"], "newest", keepdims=0)
        m.op("Sub", ["columns", "count"], "back")
        m.op("Add", ["back", "newest"], "before_one")
        m.op("Add", ["before_one", "one"], "places_of_columns")
    else:
        m.op("Identity", ["columns"], "places_of_columns")
    m.op("LessOrEqual", ["places_of_columns", "rows"], "causal")
    m.op("Sub", ["rows", m.constant("window", np.int64(size))], "oldest")
    m.op("Greater", ["places_of_columns", "oldest"], "near")
    m.op("GreaterOrEqual", ["places_of_columns", "zero"], "there")
    m.op("And", ["causal", "near"], "seen")
    m.op("And", ["seen", "there"], "visible")
    m.op("Transpose", [keys], "columns_of_keys", perm=[0, 1, 3, 2])
    weights(m, "q", "columns_of_keys", least=m.constant("least", LEAST))
    m.op("Reshape", [context(m, values), m.constant("joined", [0, 0, d])], "y")

    def feed(begin, n, held):
        return {f"past_{c}": m.rng.standard_normal((1, heads, held, hd), dtype=np.float32) for c in caches} | {
            "x": m.rng.standard_normal((1, n, d), dtype=np.float32),
            "position": np.arange(begin, begin + n),
        }

    if kind == "where":
        m.save(feed(0, 1, size), feed(7, 1, size))
    elif kind == "sliding":
        m.save(feed(0, 3, 0), feed(3, 4, 3), feed(9, 1, 5))
    else:
        m.save(feed(0, 3, size), feed(7, 1, size))


def caches():
    for kind in ["static", "where", "window", "sliding"]:
        cache(kind)


class GraphOnly(Model):
    """A model whose weights are missing external data, which fixtures/weights.py fills with random values."""

    offset = 0

    def op(self, operator, inputs, output, name=None, **attributes):
        return super().op(operator, inputs, output, name or f"{output}/{operator}", **attributes)

    def weight(self, name, *shape):
        t = TensorProto(name=name, data_type=FLOAT, dims=shape, data_location=TensorProto.EXTERNAL)
        size = 4 * int(np.prod(shape))
        for key, value in [("location", f"{self.name}.data"), ("offset", self.offset), ("length", size)]:
            t.external_data.add(key=key, value=str(value))
        self.offset += size
        self.constants.append(t)
        return name


def phi3_shaped():
    """A decoder of Phi-3-mini's shape, graph only.

    It has 32 layers of width 3072: RMS norms, one matrix product for queries, keys and values of 32 heads of width 96, rotary
    positions, causal attention over a growing cache, and one matrix product for the gate and the input of SwiGLU with 8192
    columns. The vocabulary has 32,064 tokens.
    """
    layers, d, heads, hd, hidden, vocab = 32, 3072, 32, 96, 8192, 32064
    m = GraphOnly(
        "phi3-shaped",
        [(n, INT64, [1, "seq"]) for n in ["input_ids", "position_ids"]]
        + [(f"past_key_values.{c}", FLOAT, [1, heads, "past", hd]) for c in cached(layers)],
        [("logits", FLOAT, [1, "seq", vocab])]
        + [(f"present.{c}", FLOAT, [1, heads, "past + seq", hd]) for c in cached(layers)],
        opset=18,
    )
    for axis in [1, 2, 3]:
        m.constant(f"axis{axis}", [axis])
    for name, value in [("zero", 0), ("one", 1), ("two", 2)]:
        m.constant(name, np.int64(value))
    for name, value in {
        "from": [0], "half": [hd // 2], "all": [hd], "split": [0, 0, heads, hd], "joined": [0, 0, d], "thirds": [d] * 3, "halves": [hidden] * 2,
        "scale": np.float32(hd**-0.5), "least": LEAST, "epsilon": np.float32(1e-5), "square": np.float32(2), "last": [-1],
    }.items():
        m.constant(name, value)
    m.op("Shape", ["past_key_values.0.key"], "past_shape")
    m.op("Gather", ["past_shape", "two"], "past_length")
    m.op("Shape", ["input_ids"], "ids_shape")
    m.op("Gather", ["ids_shape", "one"], "length")
    m.op("Add", ["past_length", "length"], "total")
    causal(m, "visible")
    angles(m, hd, 10000.0)

    def norm(x, at):
        m.op("Reciprocal", [deviation(m, x, at, "square", "last", "epsilon")], f"{at}/scale")
        m.op("Mul", [x, f"{at}/scale"], f"{at}/normal")
        return m.op("Mul", [m.weight(f"{at}.weight", d), f"{at}/normal"], at)

    x = m.op("Gather", [m.weight("embedding", vocab, d), "input_ids"], "x")
    for i in range(layers):
        at = f"layer{i}"
        h = norm(x, f"{at}/norm")
        m.op("MatMul", [h, m.weight(f"{at}/qkv.weight", d, 3 * d)], f"{at}/qkv")
        parts = m.op("Split", [f"{at}/qkv", "thirds"], [f"{at}/{p}" for p in "qkv"], name=f"{at}/split", axis=-1)
        q, k, v = [heads_of(m, p, "split", f"{p}/heads") for p in parts]
        q, k = (rotary(m, y, "from", "half", "all") for y in (q, k))
        appended(m, i, k, v)
        m.op("Transpose", [f"present.{i}.key"], f"{at}/keys", perm=[0, 1, 3, 2])
        weights(m, q, f"{at}/keys", f"{at}/", scale="scale", least="least")
        m.op("Reshape", [context(m, f"present.{i}.value", f"{at}/"), "joined"], f"{at}/joined")
        m.op("MatMul", [f"{at}/joined", m.weight(f"{at}/o.weight", d, d)], f"{at}/attention")
        x = m.op("Add", [x, f"{at}/attention"], f"{at}/middle")
        h = norm(x, f"{at}/norm2")
        m.op("MatMul", [h, m.weight(f"{at}/gate_up.weight", d, 2 * hidden)], f"{at}/gate_up")
        m.op("Split", [f"{at}/gate_up", "halves"], [f"{at}/gate", f"{at}/up"], name=f"{at}/split2", axis=-1)
        m.op("Sigmoid", [f"{at}/gate"], f"{at}/sigmoid")
        m.op("Mul", [f"{at}/gate", f"{at}/sigmoid"], f"{at}/silu")
        m.op("Mul", [f"{at}/up", f"{at}/silu"], f"{at}/product")
        m.op("MatMul", [f"{at}/product", m.weight(f"{at}/down.weight", hidden, d)], f"{at}/mlp")
        x = m.op("Add", [x, f"{at}/mlp"], f"{at}/out")
    m.op("MatMul", [norm(x, "norm"), m.weight("head.weight", d, vocab)], "logits")
    (FIXTURES / f"{m.name}.onnx").write_bytes(m.build(check=False).SerializeToString())
