"""PyTorch's own operator tests (`op_db` in `torch.testing._internal`), compiled by the backend and compared with eager PyTorch.

    python opinfo.py [--modes MODE ...] [--samples 3] [--shard I/N] [--deadline 120] [OPERATOR ...]
    python opinfo.py --list-from LOG ...        adds what passes in these logs to opinfo.txt

A line for each operator and mode comes as soon as it is known: what is right, right with operators that stay in torch, wrong, an error, or
past the deadline. `none` has no samples; of `torch` PyTorch cannot make graphs, or its own ones (`aot_eager`) differ from eager as ours
do. `opinfo.txt` lists what passes: a mode alone where nothing stays in torch, `MODE:torch` otherwise. The command fails where
something that is listed does not pass.

Modes are a type of the samples, `-grad` for gradients, `-strided` for inputs that are not contiguous, and `-dynamic` for sizes that
are symbols: samples of an operator then share programs. A worker process runs operators; one that takes too long or too much memory is ended, and
the next begins a new one. The package `expecttest` must be installed.

Integers and bools must be equal to eager's. A float must be within PyTorch's tolerance of eager, or as near to what float64 gives as eager
is, times a factor.
"""

import argparse
import json
import os
import pathlib
import queue
import random
import subprocess
import sys
import threading
import time
import warnings

LIST = pathlib.Path(__file__).with_name("opinfo.txt")
FACTOR = 16
MEMORY = 6 << 30
"""Bytes that a worker may take."""
FORMS = ("", "-grad", "-strided", "-dynamic", "-grad-dynamic", "-grad-strided")
MODES = [
    *(f"float32{f}" for f in FORMS),
    *("float16", "float16-grad", "float16-dynamic", "bfloat16", "int64", "int64-dynamic", "int32", "uint8", "uint8-dynamic", "bool", "bool-dynamic"),
]
PASSED = ("right", "stays")
UNSET = ("empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided")
"""Operators whose elements may be anything."""
ORDERS = {"argsort": 0, "sort": 0, "topk": 1}
"""Operators that put equal elements in any order, and where the axis is among the arguments behind the input."""


def database():
    warnings.simplefilter("ignore")
    from torch.testing._internal import common_methods_invocations as every

    # Dynamo cannot trace the seeding of a generator, so `Call` sets the seed instead.
    every.wrapper_set_seed = lambda op, *args, **kwargs: op(*args, **kwargs)
    return {name_of(o): o for o in every.op_db}


def name_of(operator):
    return f"{operator.name}.{operator.variant_test_name}" if operator.variant_test_name else operator.name


class Mode:
    def __init__(self, text):
        import torch

        kind, *forms = text.split("-")
        self.dtype = getattr(torch, kind)
        self.grad, self.strided, self.dynamic = ("grad" in forms), ("strided" in forms), ("dynamic" in forms)


def drawn(operator, mode, count):
    """A subset of an operator's samples, spread over all of them."""
    import numpy
    import torch

    if mode.dtype not in operator.dtypes or (mode.grad and not (operator.supports_autograd and mode.dtype in operator.backward_dtypes)):
        return []
    torch.manual_seed(0)
    numpy.random.seed(0)
    random.seed(0)
    every = list(operator.sample_inputs("cpu", mode.dtype, requires_grad=mode.grad))
    if len(every) <= count:
        return every
    return [every[i * len(every) // count] for i in range(count)]


class Call:
    """An operator's sample."""

    def __init__(self, operator, sample, mode):
        self.operator, self.sample, self.mode = operator, sample, mode
        self.function = operator.op

    def arguments(self, wide=False):
        """A copy of the arguments with the memory layout of the mode, in 64 bits if ``wide``."""
        import torch
        from torch.testing._internal.common_utils import noncontiguous_like

        def copy(t):
            made = t.detach().clone()
            if wide and (t.is_floating_point() or t.is_complex()):
                made = made.to(torch.complex128 if t.is_complex() else torch.float64)
            if self.mode.strided and made.layout == torch.strided:
                made = noncontiguous_like(made)
            return made.requires_grad_(t.requires_grad)

        tree = (self.sample.input, *self.sample.args), dict(self.sample.kwargs)
        return torch.utils._pytree.tree_map_only(torch.Tensor, copy, tree)

    def outcome(self, run, wide=False):
        """The results, the inputs after the call, and the gradients."""
        import torch

        args, kwargs = self.arguments(wide)
        inputs = [t for t in torch.utils._pytree.tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
        torch.manual_seed(1)
        made = torch.utils._pytree.tree_leaves(run(*args, **kwargs))
        found = {f"result {i}": v.detach() if isinstance(v, torch.Tensor) else v for i, v in enumerate(made)}
        found = self.comparable(found)
        found |= {f"input {i} after": t.detach() for i, t in enumerate(inputs)}
        if self.mode.grad:
            leaves = [t for t in inputs if t.requires_grad]
            given = self.sample.output_process_fn_grad
            results = [v for v in torch.utils._pytree.tree_leaves(given(made if len(made) > 1 else made[0])) if isinstance(v, torch.Tensor) and v.requires_grad]
            if results and leaves:
                even = self.operator.name in ORDERS
                weights = [torch.ones_like(v) if even else torch.cos(torch.arange(v.numel(), dtype=torch.float64)).reshape(v.shape).to(v.dtype) for v in results]
                grads = torch.autograd.grad(results, leaves, weights, allow_unused=True)
                found |= {f"gradient {i}": g.detach() for i, g in enumerate(grads) if g is not None}
        return found


    def comparable(self, results):
        """The results, with parts that torch does not define replaced by comparable values."""
        import torch

        name, given, more = self.operator.name, self.sample.args, self.sample.kwargs
        if name in UNSET:
            return {k: torch.zeros_like(v) for k, v in results.items()}
        if name in ORDERS and not more.get("stable"):
            at = ORDERS[name]
            axis = more.get("dim", given[at] if len(given) > at else -1)
            for k, v in results.items():
                if v.dtype == torch.int64 and k == f"result {len(results) - 1}" and v.ndim:
                    results[k] = torch.take_along_dim(self.sample.input.detach(), v, axis)
        return results


def differences(got, want, wide):
    """Descriptions of the values that differ."""
    import torch

    wrong = []
    for name, w in want.items():
        if name not in got:
            wrong.append(f"{name} is missing")
            continue
        g = got[name]
        if not isinstance(w, torch.Tensor):
            if g != w and not (g != g and w != w):
                wrong.append(f"{name} is {g} instead of {w}")
            continue
        if w.layout != torch.strided:
            continue
        if g.shape != w.shape or g.dtype != w.dtype:
            wrong.append(f"{name} is {g.dtype} {tuple(g.shape)} instead of {w.dtype} {tuple(w.shape)}")
            continue
        how = of_tensor(g, w, (wide or {}).get(name))
        if how:
            wrong.append(f"{name} {how}")
    return wrong


def of_tensor(g, w, r):
    """A description of how a tensor is wrong, or None; ``r`` is the result in 64 bits."""
    import torch

    g, w = g.resolve_conj().resolve_neg(), w.resolve_conj().resolve_neg()
    if torch.equal(g, w):
        return None
    r = r if isinstance(r, torch.Tensor) and r.shape == w.shape else None
    if r is not None:
        r = r.resolve_conj().resolve_neg()
    if not (w.is_floating_point() or w.is_complex()):
        bad = g != w
        if r is not None:
            bad &= g != r.to(w.dtype)
        return f"differs in {int(bad.sum())} of {w.numel()}: {w[bad][:3].tolist()} became {g[bad][:3].tolist()}" if bad.any() else None
    if w.is_complex():
        g, w = torch.view_as_real(g), torch.view_as_real(w)
        r = None if r is None else torch.view_as_real(r) if r.is_complex() else None
    # The backend computes f64 values in f32.
    eps = max(torch.finfo(w.dtype).eps, torch.finfo(torch.float32).eps)
    rest = 1024 if w.dtype == torch.float64 else 64
    rtol, atol = {torch.float16: (1e-3, 1e-5), torch.bfloat16: (1.6e-2, 1e-5)}.get(w.dtype, (1.3e-6, 1e-5))
    bad = ~torch.isclose(g.double(), w.double(), rtol=rtol, atol=atol, equal_nan=True)
    if r is not None:
        r = r.double()
        finite = r.isfinite() & w.isfinite()
        size = r[finite].abs().max() if finite.any() else r.new_zeros(())
        most = (w.double() - r).abs()[finite].max() if finite.any() else r.new_zeros(())
        near = (g.double() - r).abs() <= FACTOR * most + rest * eps * size
        bad &= ~((finite & near) | (g.double() == r) | (g.isnan() & r.isnan()))
        # Elements for which an intermediate value of eager exceeded the range of the type, or for which the result itself does.
        rough = (g.double() - r).abs() <= FACTOR * eps * r.abs()
        bad &= ~(r.isfinite() & ~w.isfinite() & rough)
        bad &= ~(g.isinf() & (r.abs() * (1 + 4 * eps) > min(torch.finfo(w.dtype).max, torch.finfo(torch.float32).max)) & (g.sign() == r.sign()))
    if not bad.any():
        return None
    i = bad.flatten().nonzero()[:3].flatten()
    more = "" if r is None else f" (in 64 bits {r.flatten()[i].tolist()})"
    return f"differs in {int(bad.sum())} of {w.numel()}: {w.flatten()[i].tolist()} became {g.flatten()[i].tolist()}{more}"


class Attempt:
    """A sample compiled by a backend."""

    def __init__(self, call, want, wide, backend, whole=True):
        from wgfc import _partition, _plan

        self.wrong, self.error, self.stays, self.programs = [], None, [], 0
        told = []
        before = _plan._tell
        _plan._tell = lambda stay, _: told.extend((_partition.name(n), d.kind, d.message) for n, d in stay)
        _plan._WARNED.clear()
        programs = _plan.STATISTICS.programs
        try:
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always")
                got = call.outcome(compile(call, backend, whole))
            told.extend(("a part", "unsupported", str(w.message)) for w in said if str(w.message).startswith("torch computes a part"))
            self.wrong = differences(got, want, wide)
        except Exception as e:
            inner = getattr(e, "inner_exception", None) or e
            lines = [line.strip() for line in str(inner).splitlines() if line.strip()]
            self.error = f"{type(inner).__name__}: {' '.join(lines[:3])[:300]}"
        finally:
            _plan._tell = before
        self.programs = _plan.STATISTICS.programs - programs
        self.stays = [(name, f"{name}: {message}", kind) for name, kind, message in told]

    def failed(self):
        return bool(self.wrong or self.error)

    def text(self):
        return self.error or "; ".join(self.wrong[:2])


def compile(call, backend, whole):
    """The compiled call, as a single graph if ``whole``. Dynamic samples share the compiled function."""
    import torch

    function, shared = call.function, call.mode.dynamic and backend == "wgfc" and whole
    if not shared or call.function not in _RUNS:
        torch._dynamo.reset()
        _RUNS.clear()
        # A number read from a tensor becomes a symbol if ``whole``; otherwise the graph is split there.
        torch._dynamo.config.capture_scalar_outputs = torch._dynamo.config.capture_dynamic_output_shape_ops = whole
        run = torch.compile(lambda *args, **kwargs: function(*args, **kwargs), backend=backend, fullgraph=whole, dynamic=call.mode.dynamic or False)
        if not shared:
            return run
        _RUNS[call.function] = run
    return _RUNS[call.function]


_RUNS = {}


def check(operator, mode, count):
    """The outcome of an operator in a mode."""
    import torch

    found = {"status": "none", "right": 0, "samples": 0, "notes": []}
    stays, ours = {}, 0
    for sample in drawn(operator, mode, count):
        call = Call(operator, sample, mode)
        try:
            want = call.outcome(call.function)
        except Exception as e:
            found["notes"].append(f"eager: {type(e).__name__}: {str(e)[:100]}")
            continue
        try:
            wide = call.outcome(call.function, True) if mode.dtype.is_floating_point else None
        except Exception:
            wide = None
        found["samples"] += 1
        attempt = Attempt(call, want, wide, "wgfc")
        if attempt.failed():
            text, kind = attempt.text(), "error" if attempt.error else "wrong"
            _RUNS.clear()
            other = Attempt(call, want, wide, "aot_eager")
            if other.failed():
                # PyTorch may still compile parts of it.
                text, kind = other.text(), "torch"
                attempt = Attempt(call, want, wide, "wgfc", False)
                if attempt.failed() and not Attempt(call, want, wide, "aot_eager", False).failed():
                    text, kind = attempt.text(), "error" if attempt.error else "wrong"
        if attempt.failed():
            found.setdefault(kind, 0)
            found[kind] += 1
            found["notes"].append(f"{kind}: {sample_text(sample)}: {text}")
            continue
        found["right"] += 1
        ours += attempt.programs
        stays.update({name: text for name, text, kind in attempt.stays})
        internal = [text for _, text, kind in attempt.stays if kind not in ("unsupported",)]
        if internal:
            found["internal"] = found.get("internal", 0) + 1
            found["notes"].append(f"internal: {sample_text(sample)}: {internal[0][:300]}")
    _RUNS.clear()
    for status in ("wrong", "internal", "error"):
        if found.get(status):
            found["status"] = status
            break
    else:
        if found["right"]:
            found["status"] = "stays" if stays else "right"
        elif found["samples"]:
            found["status"] = "torch"
        if found["status"] == "right" and not ours and found["samples"]:
            # No program was needed, for instance because there are only views.
            found["notes"].append("none: no program was needed")
    found["stays"] = sorted(stays)
    found["notes"] += [f"stays: {text}" for text in stays.values()]
    found["programs"] = ours
    return found


def sample_text(sample):
    import torch

    def show(x):
        if isinstance(x, torch.Tensor):
            return f"{list(x.shape)}" if x.dtype == torch.float32 else f"{str(x.dtype)[6:]}{list(x.shape)}"
        if isinstance(x, (list, tuple)):
            return "(" + ", ".join(map(show, x)) + ")"
        return repr(x)

    kwargs = [f"{k}={show(v)}" for k, v in sample.kwargs.items()]
    return ", ".join([*map(show, [sample.input, *sample.args]), *kwargs])[:200]


def work():
    """Reads tasks, one per line, and writes their outcomes."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    operators = database()
    import torch
    from wgfc import torch_backend  # noqa: F401

    torch.set_num_threads(1)
    torch._dynamo.config.recompile_limit = 256
    torch._dynamo.config.accumulated_recompile_limit = 4096
    print(json.dumps({"ready": sorted(operators)}), file=out, flush=True)
    for line in sys.stdin:
        name, mode, count = json.loads(line)
        try:
            found = check(operators[name], Mode(mode), count)
        except Exception as e:
            found = {"status": "error", "right": 0, "samples": 0, "notes": [f"error: {type(e).__name__}: {str(e)[:300]}"], "stays": []}
        found["resident"] = resident("self")
        print(json.dumps(found), file=out, flush=True)


def resident(pid):
    try:
        return int(pathlib.Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


class Worker:
    def __init__(self):
        self.process = subprocess.Popen([sys.executable, __file__, "--work"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.lines = queue.Queue()
        threading.Thread(target=self.read, daemon=True).start()
        self.operators = (self.answer(900) or {}).get("ready")

    def read(self):
        for line in self.process.stdout:
            self.lines.put(line)
        self.lines.put(None)

    def answer(self, seconds):
        """The worker's answer, or why there is none."""
        end = time.time() + seconds
        while time.time() < end:
            try:
                line = self.lines.get(timeout=1)
            except queue.Empty:
                if resident(self.process.pid) > MEMORY:
                    return {"status": "memory"}
                continue
            return {"status": "crash"} if line is None else json.loads(line)
        return {"status": "deadline"}

    def ask(self, task, seconds):
        try:
            self.process.stdin.write(json.dumps(task) + "\n")
            self.process.stdin.flush()
        except OSError:
            return {"status": "crash"}
        return self.answer(seconds)

    def end(self):
        self.process.kill()
        self.process.wait()


def listed():
    """The content of ``opinfo.txt``: for each operator the modes that pass, and whether something stays in torch."""
    if not LIST.exists():
        return {}
    lines = [line.split() for line in LIST.read_text().splitlines() if line and not line.startswith("#")]
    return {name.rstrip(":"): {m.split(":")[0]: m.endswith(":torch") for m in modes} for name, *modes in lines}


def add(logs):
    """Adds the modes that pass in these logs to the list."""
    known = listed()
    for path in logs:
        for line in pathlib.Path(path).read_text().splitlines():
            words = line.split()
            if len(words) < 3 or line[0] in "# " or words[2] not in PASSED:
                continue
            name, mode, status = words[:3]
            modes = known.setdefault(name, {})
            modes[mode] = modes.get(mode, True) and status == "stays"
    order = {m: i for i, m in enumerate(MODES)}
    text = "".join(
        f"{name}: {' '.join(m + ':torch' * modes[m] for m in sorted(modes, key=lambda m: order.get(m, 99)))}\n" for name, modes in sorted(known.items())
    )
    LIST.write_text("# Operators and modes of opinfo.py that pass: the list only grows.\n" + text)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("operators", nargs="*")
    parser.add_argument("--modes", nargs="*", default=MODES)
    parser.add_argument("--samples", type=int, default=3)
    parser.add_argument("--shard", default="0/1", help="I/N: every N-th operator, from I on")
    parser.add_argument("--deadline", type=float, default=120, help="seconds for an operator in a mode")
    parser.add_argument("--listed", action="store_true", help="only what is in opinfo.txt")
    parser.add_argument("--list-from", nargs="+", metavar="LOG")
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.work:
        return work()
    if given.list_from:
        return add(given.list_from)
    known = listed()
    shard, shards = map(int, given.shard.split("/"))
    worker = Worker()
    names = given.operators or worker.operators
    counts, lost = {}, []
    for name in names[shard::shards]:
        for mode in given.modes:
            if given.listed and mode not in known.get(name, {}):
                continue
            start = time.time()
            worker = worker or Worker()
            found = {"right": 0, "samples": 0, "notes": [], "stays": [], **worker.ask([name, mode, given.samples], given.deadline)}
            status = found["status"]
            counts[status] = counts.get(status, 0) + 1
            stays = ", ".join(found["stays"])
            print(f"{name} {mode} {status} {found['right']}/{found['samples']} {time.time() - start:.0f} s {stays}".rstrip(), flush=True)
            for note in found["notes"]:
                print(f"    {note}", flush=True)
            if mode in known.get(name, {}) and status not in (PASSED if known[name][mode] else PASSED[:1]):
                lost.append(f"{name} {mode}: {status}")
            if status in ("deadline", "memory", "crash") or found.get("resident", 0) > MEMORY // 2:
                worker.end()
                worker = None
    if worker:
        worker.end()
    print("# " + ", ".join(f"{n} {status}" for status, n in sorted(counts.items())))
    for line in lost:
        print(f"# listed, and does not pass: {line}")
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main())
