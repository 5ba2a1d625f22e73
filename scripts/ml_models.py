#!/usr/bin/env python3
"""Makes random models of classical machine learning (`ai.onnx.ml`), their inputs and ONNX Runtime's outputs.

    ml_models.py OUT FROM TO

OUT/SEED holds `model.onnx` and `test_data_set_0`, as for `flow_models.py`. A model has one or a few operators, which the seed
determines. OUT/left_out.tsv lists the seeds whose models ONNX Runtime rejects.
"""
import random

import numpy as np
from onnx import helper, numpy_helper

import generated
from generated import F32, F64, I32, I64, NUMPY, U8

ML = "ai.onnx.ml"
# The values of features, splits and set members, so that equality occurs. All are exact in f32.
GRID = [-2.5, -1.0, -0.25, 0.0, 0.25, 0.5, 1.0, 3.0]
# The values of set members for ONNX Runtime, which accepts only whole numbers.
WHOLE = [-3.0, -1.0, 0.0, 1.0, 2.0, 3.0, 30.0, 33.0, 70.0]


def tensor(values, dtype, name):
    return numpy_helper.from_array(np.array(values, NUMPY[dtype]), name)


class Maker:
    """Makes the model of one seed."""

    def __init__(self, seed):
        self.rng = random.Random(seed)
        self.nodes, self.inputs, self.outputs, self.given = [], [], [], []
        self.version, self.splits = 3, GRID

    # Inputs, outputs and numbers.
    def records(self, dtype=F32, nan=0.0, values=None, features=None):
        r = self.rng
        n, f = r.choice([1, 2, 5, 17]), features or r.choice([1, 3, 4, 7])
        values = values or GRID
        data = [[float("nan") if r.random() < nan else r.choice(values) for _ in range(f)] for _ in range(n)]
        return self.input(np.array(data).astype(NUMPY[dtype]), dtype)

    def input(self, array, dtype):
        name = f"x{len(self.inputs)}"
        self.inputs.append(helper.make_tensor_value_info(name, dtype, array.shape))
        self.given.append(array)
        return name, array

    def node(self, op, inputs, outputs, **attributes):
        names = [f"y{len(self.outputs) + i}" for i in range(len(outputs))]
        self.nodes.append(helper.make_node(op, inputs, names, domain=ML, **attributes))
        self.outputs += [helper.make_tensor_value_info(n, d, s) for n, (d, s) in zip(names, outputs)]

    def weights(self, n, positive=False):
        return [round(self.rng.uniform(0.05 if positive else -2, 2), 3) for _ in range(n)]

    # Trees.
    def tree(self, features, depth):
        """A tree as nested tuples: a leaf is None, a node is (feature, split, yes, no)."""
        r = self.rng
        if depth == 0 or r.random() < 0.2:
            return None
        return (r.randrange(features), r.choice(self.splits), self.tree(features, depth - 1), self.tree(features, depth - 1))

    def forest(self, features):
        r = self.rng
        made = [self.tree(features, r.choice([1, 2, 4])) for _ in range(r.choice([1, 2, 3, 8]))]
        made = [t for t in made if t]
        return made or [(0, self.splits[3], None, None)]

    def ensemble(self):
        r = self.rng
        self.version = 5
        dtype = r.choice([F32, F32, F32, F64])
        nan = r.choice([0, 0, 0.3])
        modes = r.choice([[0], [1], [6], [0, 6], list(range(7))])
        self.splits = WHOLE if 6 in modes else GRID
        x, data = self.records(dtype, nan, self.splits)
        targets = r.choice([1, 1, 2, 3])
        columns = {k: [] for k in ("feature", "split", "mode", "yes", "no", "to_leaf", "else_leaf", "missing")}
        leaves, roots, members = [], [], []

        def leaf():
            leaves.append(r.randrange(targets))
            return len(leaves) - 1

        def add(t):
            i = len(columns["feature"])
            mode = r.choice(modes)
            for k, v in (("feature", t[0]), ("split", t[1]), ("mode", mode), ("missing", r.random() < 0.5)):
                columns[k].append(v)
            for k in ("yes", "no", "to_leaf", "else_leaf"):
                columns[k].append(0)
            if mode == 6:
                members.extend(r.sample(WHOLE, r.randint(1, len(WHOLE))) + [float("nan")])
            for branch, to, flag in ((t[2], "yes", "to_leaf"), (t[3], "no", "else_leaf")):
                columns[flag][i] = int(branch is None)
                columns[to][i] = leaf() if branch is None else add(branch)
            return i

        for t in self.forest(data.shape[1]):
            roots.append(add(t))
        attributes = dict(
            nodes_featureids=columns["feature"], nodes_splits=tensor(columns["split"], dtype, "splits"),
            nodes_modes=tensor(columns["mode"], U8, "modes"), nodes_truenodeids=columns["yes"],
            nodes_falsenodeids=columns["no"], nodes_trueleafs=columns["to_leaf"], nodes_falseleafs=columns["else_leaf"],
            tree_roots=roots, leaf_targetids=leaves, leaf_weights=tensor(self.weights(len(leaves)), dtype, "weights"),
            n_targets=targets, aggregate_function=r.choice([0, 1, 2, 3]),
            post_transform=r.choice([0, 0, 3]) if targets > 1 else 0)
        if members:
            attributes["membership_values"] = tensor(members, dtype, "members")
        if nan or r.random() < 0.3:
            attributes["nodes_missing_value_tracks_true"] = [int(m) for m in columns["missing"]]
        self.node("TreeEnsemble", [x], [(dtype, [len(data), targets])], **attributes)

    def old_forest(self, features, nan):
        """The attributes of nodes in versions before 5, and the leaves as pairs of tree and node."""
        r = self.rng
        modes = r.choice([["BRANCH_LEQ"], ["BRANCH_LT"], ["BRANCH_GT", "BRANCH_GTE"],
                          [f"BRANCH_{m}" for m in ("LEQ", "LT", "GTE", "GT", "EQ", "NEQ")]])
        rows, leaves = [], []
        for number, t in enumerate(self.forest(features)):
            count = [0]

            def add(t):
                node, count[0] = count[0], count[0] + 1
                row = [number, node, "LEAF", 0, 0.0, 0, 0, 0]
                rows.append(row)
                if t is None:
                    leaves.append((number, node))
                else:
                    row[2:5] = [r.choice(modes), t[0], t[1]]
                    row[5], row[6], row[7] = add(t[2]), add(t[3]), int(r.random() < 0.5)
                return node

            add(t)
        names = ["treeids", "nodeids", "modes", "featureids", "values", "truenodeids", "falsenodeids"]
        attributes = {f"nodes_{n}": [row[i] for row in rows] for i, n in enumerate(names)}
        if nan:
            attributes["nodes_missing_value_tracks_true"] = [row[7] for row in rows]
        return attributes, leaves

    def old_ensemble(self, classes):
        r = self.rng
        self.version = r.choice([1, 3])
        nan = r.choice([0, 0, 0.3])
        dtype = r.choice([F32, F32, F32, I64, I32] if classes else [F32])
        x, data = self.records(dtype, nan if dtype == F32 else 0, None if dtype == F32 else [-3, -1, 0, 1, 3])
        attributes, leaves = self.old_forest(data.shape[1], nan)
        n = len(data)
        if classes is None:
            targets = r.choice([1, 1, 2, 3])
            based, how = r.random() < 0.4, r.choice(["SUM", "AVERAGE", "MIN", "MAX"])
            all_given = based or targets == 1 and how in ("MIN", "MAX")
            chosen = [(leaf, t) for leaf in leaves for t in range(targets)
                      if all_given or r.random() < 0.8] or [(leaves[0], 0)]
            attributes |= dict(
                target_treeids=[c[0][0] for c in chosen], target_nodeids=[c[0][1] for c in chosen],
                target_ids=[c[1] for c in chosen], target_weights=self.weights(len(chosen)), n_targets=targets,
                aggregate_function=how,
                post_transform=r.choice(["NONE", "NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO"]) if targets > 1 else "NONE")
            if based:
                attributes["base_values"] = self.weights(targets)
            self.node("TreeEnsembleRegressor", [x], [(F32, [n, targets])], **attributes)
            return
        positive = r.random() < 0.5
        one = classes == 2
        only = r.randrange(2)
        chosen = [(leaf, only if one else c) for leaf in leaves for c in range(1 if one else classes) if one or r.random() < 0.8]
        chosen = chosen or [(leaves[0], 0)]
        attributes |= dict(
            class_treeids=[c[0][0] for c in chosen], class_nodeids=[c[0][1] for c in chosen],
            class_ids=[c[1] for c in chosen], class_weights=self.weights(len(chosen), positive),
            classlabels_int64s=r.sample(range(-5, 20), classes),
            post_transform=r.choice(["NONE", "LOGISTIC"] if one else ["NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO"]))
        if r.random() < 0.3 and not one:
            attributes["base_values"] = self.weights(classes)
        self.node("TreeEnsembleClassifier", [x], [(I64, [n]), (F32, [n, classes])], **attributes)

    # Machines, encoders and the rest.
    def kernel(self):
        r = self.rng
        kind = r.choice(["LINEAR", "RBF", "POLY", "SIGMOID"])
        params = [round(r.uniform(0.05, 0.5), 3), round(r.uniform(0, 1), 3), float(r.choice([1, 2, 3]))]
        return dict(kernel_type=kind, kernel_params=params)

    def machine(self):
        r = self.rng
        self.version = 1
        x, data = self.records()
        n, features = data.shape
        if r.random() < 0.4:
            count = r.choice([1, 4, 9])
            vectors = [r.choice(GRID) for _ in range(count * features)]
            self.node("SVMRegressor", [x], [(F32, [n, 1])], coefficients=self.weights(count), support_vectors=vectors,
                      n_supports=count, rho=self.weights(1), one_class=r.choice([0, 0, 1]), **self.kernel())
            return
        classes = r.choice([2, 3, 4])
        each = [r.choice([1, 2, 5]) for _ in range(classes)]
        total, pairs = sum(each), classes * (classes - 1) // 2
        attributes = dict(coefficients=self.weights(total * (classes - 1)), vectors_per_class=each, rho=self.weights(pairs),
                          support_vectors=[r.choice(GRID) for _ in range(total * features)],
                          classlabels_ints=r.sample(range(-5, 20), classes), **self.kernel())
        probabilities = r.random() < 0.5
        if probabilities:
            attributes |= dict(prob_a=[-abs(v) for v in self.weights(pairs)], prob_b=self.weights(pairs))
        width = classes if probabilities or classes == 2 else pairs
        self.node("SVMClassifier", [x], [(I64, [n]), (F32, [n, width])], **attributes)

    def labels(self):
        r = self.rng
        self.version = r.choice([2, 4])
        of, to = r.choice([(I64, I64), (I64, F32), (F32, I64), (F32, F32)] + ([(F64, F64)] if self.version == 4 else []))
        count = r.choice([1, 2, 5, 70])
        big = [-(1 << 40), 1 << 33] if of == I64 else [0.125, -7.5]
        domain = [float(v) if of != I64 else v for v in [*range(-50, 50), *big]]
        keys = r.sample(domain, count)
        values = [r.randint(-(1 << 40), 1 << 40) if to == I64 else round(r.uniform(-9, 9), 3) for _ in keys]
        if of != I64 and r.random() < 0.3:
            keys[0] = float("nan")
        shape = r.choice([(4,), (3, 2), (2, 3, 2)])
        data = np.array([r.choice(keys) if r.random() < 0.7 else r.choice(domain) for _ in range(int(np.prod(shape)))])
        x, _ = self.input(data.astype(NUMPY[of]).reshape(shape), of)
        name = {I64: "int64s", F32: "floats"}
        if self.version == 4 and (F64 in (of, to) or r.random() < 0.5):
            attributes = dict(keys_tensor=tensor(keys, of, "k"), values_tensor=tensor(values, to, "v"),
                              default_tensor=tensor([values[-1]], to, "d"))
        else:
            attributes = {f"keys_{name[of]}": keys, f"values_{name[to]}": values}
            if r.random() < 0.5:
                attributes |= {"default_int64": 7} if to == I64 else {"default_float": -0.5}
        self.node("LabelEncoder", [x], [(to, shape)], **attributes)

    def features(self):
        r = self.rng
        self.version = 1
        kind = r.randrange(8)
        x, data = self.records(nan=0.3 if kind == 2 else 0)
        n, f = data.shape
        out = [(F32, [n, f])]
        width = r.choice([1, f])
        per = lambda: self.weights(width)
        if kind == 0:
            self.node("Scaler", [x], out, offset=per(), scale=per())
        elif kind == 1:
            self.node("Normalizer", [x], out, norm=r.choice(["MAX", "L1", "L2"]))
        elif kind == 2:
            self.node("Imputer", [x], out, imputed_value_floats=per(), replaced_value_float=float("nan"))
        elif kind == 3:
            self.node("Binarizer", [x], out, threshold=r.choice(GRID))
        elif kind == 4:
            cats = r.sample(range(-3, 9), r.choice([1, 3, 8]))
            d = r.choice([F32, I64])
            x, data = self.input(np.array([[r.randint(-4, 9)] for _ in range(5)]).astype(NUMPY[d]), d)
            self.node("OneHotEncoder", [x], [(F32, [*data.shape, len(cats)])], cats_int64s=cats, zeros=1)
        elif kind == 5:
            more = [self.input(np.array([[r.choice([-2, 0, 3]) for _ in range(w)] for _ in range(n)]).astype(NUMPY[F32]), F32)
                    for w in r.choice([[1], [2, 3]])]
            sizes = [f, *(a.shape[1] for _, a in more)]
            self.node("FeatureVectorizer", [x, *(m for m, _ in more)], [(F32, [n, sum(sizes)])], inputdimensions=sizes)
        elif kind == 6:
            targets = r.choice([1, 3])
            self.node("LinearRegressor", [x], [(F32, [n, targets])], coefficients=self.weights(f * targets),
                      intercepts=self.weights(targets), targets=targets)
        else:
            classes = r.choice([3, 4])
            self.node("LinearClassifier", [x], [(I64, [n]), (F32, [n, classes])], coefficients=self.weights(f * classes),
                      intercepts=self.weights(classes), classlabels_ints=r.sample(range(-5, 20), classes), multi_class=1,
                      post_transform=r.choice(["NONE", "SOFTMAX", "LOGISTIC"]))

    def model(self):
        kinds = [self.ensemble] * 4 + [lambda: self.old_ensemble(None)] * 2
        kinds += [lambda: self.old_ensemble(self.rng.choice([2, 3, 4]))] * 2 + [self.machine, self.labels, self.features]
        self.rng.choice(kinds)()
        graph = helper.make_graph(self.nodes, "random", self.inputs, self.outputs)
        opsets = [helper.make_opsetid("", 21), helper.make_opsetid(ML, self.version)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def make(seed):
    made = Maker(seed)
    model = made.model()
    return model, model, {i.name: v for i, v in zip(made.inputs, made.given)}


if __name__ == "__main__":
    generated.main(__doc__, make)
