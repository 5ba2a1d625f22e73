"""Maps a dataset through a model on every adapter of a Ray cluster: an actor with a session for each of them.

    pip install ray ./bindings/python
    python examples/ray_batch.py model.onnx x.npy y.npy
    python examples/ray_batch.py model.pt2 x.npy y.npy --batch 256 --workers 8 --dim seq=128
    python examples/ray_batch.py model.onnx x.npy y.npy --workers 2 --adapter llvmpipe --check

The model has one input whose first dimension is the batch, by its name or fixed, and x.npy has the samples along its first axis. The
first output (or `--output NAME`) of all of them is written to y.npy in the same order. The model is compiled once, here; the actors get
the compiled program, from Ray's object store, and batches one by one. Without `--workers` each node of the cluster gets as many actors
as it has adapters that are no software."""

import argparse
import collections
import io
import pathlib
import sys
import tempfile
import time
import zipfile

import numpy as np
import ray
import wgfc
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

# The number of batches per actor: one is computed while the next is sent.
IN_FLIGHT = 2


def packed(program):
    """A compiled program as bytes: its folder in a zip file."""
    out = io.BytesIO()
    with tempfile.TemporaryDirectory() as folder:
        program.save(folder, force=True)
        with zipfile.ZipFile(out, "w") as z:
            for path in sorted(pathlib.Path(folder).rglob("*")):
                z.write(path, path.relative_to(folder))
    return out.getvalue()


def usable():
    """The indices of the hardware adapters of this machine, or of a software adapter if there are none."""
    found = wgfc.adapters()
    return [a.index for a in found if not a.is_software] or [a.index for a in found[:1]]


@ray.remote
def adapters_here():
    return len(usable())


@ray.remote
class Worker:
    """A session on one adapter."""

    def __init__(self, archive):
        with tempfile.TemporaryDirectory() as folder:
            zipfile.ZipFile(io.BytesIO(archive)).extractall(folder)
            self.program = wgfc.load(folder)

    def node(self):
        return ray.get_runtime_context().get_node_id()

    def start(self, adapter, rank):
        """Makes the session on the given adapter, or on the machine's adapter for this rank."""
        if adapter is None:
            here = usable()
            adapter = here[rank % len(here)]
        self.session = wgfc.Session(self.program, adapter=adapter)

    def run(self, name, batch, output):
        return self.session.run({name: batch}, outputs=[output])[output]


def start(a, archive):
    """The actors, each on an adapter of its node."""
    spread = {"scheduling_strategy": "SPREAD"}
    if a.workers:
        workers = [Worker.options(**spread).remote(archive) for _ in range(a.workers)]
    else:
        nodes = [NodeAffinitySchedulingStrategy(n["NodeID"], soft=False) for n in ray.nodes() if n["Alive"]]
        counts = ray.get([adapters_here.options(scheduling_strategy=n).remote() for n in nodes])
        workers = [
            Worker.options(scheduling_strategy=n).remote(archive) for n, c in zip(nodes, counts) for _ in range(c)
        ]
    ranks = collections.Counter()
    started = []
    for worker, node in zip(workers, ray.get([w.node.remote() for w in workers])):
        started.append(worker.start.remote(a.adapter, ranks[node]))
        ranks[node] += 1
    ray.get(started)
    return workers


def mapped(workers, name, output, batches):
    """Yields (number, result) for each (number, batch), in the order of completion."""
    idle = [w for w in workers for _ in range(IN_FLIGHT)]
    pending = {}
    for number, batch in batches:
        if not idle:
            yield from one(pending, idle)
        worker = idle.pop(0)
        pending[worker.run.remote(name, batch, output)] = (worker, number)
    while pending:
        yield from one(pending, idle)


def one(pending, idle):
    (done,), _ = ray.wait(list(pending), num_returns=1)
    worker, number = pending.pop(done)
    idle.append(worker)
    yield number, ray.get(done)


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("model", type=pathlib.Path)
    p.add_argument("data", type=pathlib.Path)
    p.add_argument("results", type=pathlib.Path)
    p.add_argument("--batch", type=int, default=64, help="samples of a batch, where the model has any number (default 64)")
    p.add_argument("--workers", type=int, help="actors; one for each adapter if left out")
    p.add_argument("--adapter", help="part of the adapter's name, for all of them")
    p.add_argument("--output", help="the name of the output that is kept; the first if left out")
    p.add_argument("--dim", action="append", default=[], metavar="NAME=VALUE", help="fixes another dimension")
    p.add_argument("--check", action="store_true", help="compares with a single session here")
    return p.parse_args()


def main():
    a = arguments()
    dims = {name: int(value) for name, value in (d.split("=", 1) for d in a.dim)}
    program = wgfc.compile(a.model, dims=dims)
    needed = [i for i in program.inputs if not i.optional]
    if len(needed) != 1 or not needed[0].shape:
        sys.exit(f"{a.model} has the inputs {[str(i.name) for i in needed]}: this example maps models of one with a batch dimension")
    name, size = needed[0].name, needed[0].shape[0]
    output = a.output or program.outputs[0].name
    fixed = isinstance(size, int)
    size = size if fixed else a.batch
    data = np.load(a.data, mmap_mode="r")

    def batches():
        for number, first in enumerate(range(0, len(data), size)):
            batch = np.asarray(data[first : first + size])
            if fixed and len(batch) < size:
                # A batch of a fixed size is padded with its last sample; the results of the padding are cut off below.
                batch = np.concatenate([batch, np.repeat(batch[-1:], size - len(batch), axis=0)])
            yield number, batch

    ray.init(ignore_reinit_error=True, log_to_driver=False)
    workers = start(a, ray.put(packed(program)))
    begun, results, done = time.perf_counter(), None, 0
    for number, result in mapped(workers, name, output, batches()):
        if results is None:
            shape = (len(data), *result.shape[1:])
            results = np.lib.format.open_memmap(a.results, "w+", dtype=result.dtype, shape=shape)
        first = number * size
        results[first : first + size] = result[: len(data) - first]
        done += min(size, len(data) - first)
        print(f"\r{done} of {len(data)} samples", end="", file=sys.stderr)
    seconds = time.perf_counter() - begun
    print(f"\n{len(data)} samples on {len(workers)} workers: {len(data) / seconds:.0f} a second; {output} is in {a.results}")
    if results is not None:
        results.flush()
    if a.check:
        session = wgfc.Session(program, adapter=a.adapter)
        for number, batch in batches():
            want = session.run({name: batch}, outputs=[output])[output]
            got = results[number * size : (number + 1) * size]
            np.testing.assert_array_equal(got, want[: len(got)])
        print("a single session gives the same")


if __name__ == "__main__":
    main()
