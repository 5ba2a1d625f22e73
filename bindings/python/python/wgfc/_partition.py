"""Partition of a graph into an ordered list of parts that wgfc computes and of operators that stay in torch."""

from __future__ import annotations

import dataclasses
import operator
from typing import Any, Callable, Iterable, Optional, Sequence

import torch
from torch.fx import Graph, GraphModule, Node
from torch.fx.passes.infra.partitioner import CapabilityBasedPartitioner
from torch.fx.passes.operator_support import OperatorSupportBase

from wgfc import _fx


@dataclasses.dataclass(eq=False)
class Part:
    """A part of a graph that one program computes."""

    module: GraphModule
    inputs: list[Node]
    """Nodes of the whole graph that the part reads, in the order of its placeholders."""
    outputs: list[Node]
    """Nodes of the whole graph that the part computes and that are read outside of it."""
    results: list[Node]
    """The nodes of the part that compute ``outputs``, in their order."""
    origin: dict[str, Node]
    """The nodes of the whole graph by the names of the part's nodes."""


STRIDED = {torch.ops.aten.as_strided.default: 2, torch.ops.aten.as_strided_scatter.default: 3}
"""Operators that address memory by strides, with the position of the strides among their arguments."""
SCATTERS = {torch.ops.aten.slice_scatter.default, torch.ops.aten.select_scatter.default, torch.ops.aten.diagonal_scatter.default}
"""Operators that copy their first argument with its strides and replace some elements of the copy."""
COPIES = {*SCATTERS, torch.ops.aten.as_strided_scatter.default}
"""All operators that return a copy of their first argument with some elements replaced."""
_IN_MEMORY = "wgfc_in_memory"
_HAS_BITS_READ = "wgfc_has_bits_read"


def memory_of(node: Node) -> Node:
    """The node that allocates the memory of a view; the node itself if it is no view."""
    return ([node, *bases_of(node)])[-1]


def read_whole_memory(graph: Graph) -> None:
    """Makes ``as_strided`` and ``as_strided_scatter`` of a view read the view's base instead. Their sizes, strides and offset
    refer to the base's memory, but a program's result for a view has only the view's elements. If the base is an argument, only
    torch knows at which offset in its memory it begins, so the views and the operator are marked to stay in torch, which copies
    nothing for views."""
    for node in list(graph.nodes):
        at = STRIDED.get(node.target) if node.op == "call_function" else None
        if at is None:
            continue
        views: list[Node] = []
        base = node.args[0]
        while base.op == "call_function" and getattr(base.target, "is_view", False):
            views.append(base)
            base = base.args[0]
        # A copy of an argument with some elements replaced has the argument's memory layout.
        copies: list[Node] = []
        argument = base
        while argument.target in COPIES:
            copies.append(argument)
            argument = argument.args[0]
        with graph.inserting_before(node):
            if argument.op == "placeholder":
                for copy in copies:
                    copy.meta[_IN_MEMORY] = True
                read = base
                for view in reversed(views):
                    read = graph.node_copy(view, lambda n, view=view, read=read: read if n is view.args[0] else n)
                    read.meta = {**view.meta, _IN_MEMORY: True}
                node.args = (read, *node.args[1:])
                node.meta[_IN_MEMORY] = True
                continue
            if not views:
                continue
            args = [base, *node.args[1:]]
            kwargs = dict(node.kwargs)
            given = kwargs.pop("storage_offset", args[at + 1] if len(args) > at + 1 else None)
            if given is None:
                given = views[0].meta["val"].storage_offset()
                if isinstance(given, torch.SymInt):
                    value, given = given, graph.call_function(torch.ops.aten.sym_storage_offset.default, (views[0],))
                    given.meta["val"] = value
            new = graph.call_function(node.target, tuple(args[: at + 1]), {**kwargs, "storage_offset": given})
            new.meta = dict(node.meta)
            if node.target is torch.ops.aten.as_strided_scatter.default:
                # The operator's result is the updated base; applying the same views to it gives the original result.
                new.meta["val"] = base.meta["val"]
                for view in reversed(views):
                    new = graph.node_copy(view, lambda n, view=view, new=new: new if n is view.args[0] else n)
        node.replace_all_uses_with(new)
        graph.erase_node(node)


def leave_what_has_its_bits_read(graph: Graph) -> None:
    """Leaves to torch each f64 tensor whose bits are viewed as another type, and the f64 tensors from which it is computed: a
    program would compute them in f32, whose bits differ."""

    def is_double(node: Node) -> bool:
        value = node.meta.get("val")
        return isinstance(value, torch.Tensor) and value.dtype in (torch.float64, torch.complex128)

    found = [n.args[0] for n in graph.nodes if n.target is torch.ops.aten.view.dtype and is_double(n.args[0]) and not is_double(n)]
    while found:
        node = found.pop()
        if node.op == "call_function" and not node.meta.get(_HAS_BITS_READ):
            node.meta[_HAS_BITS_READ] = True
            found += [n for n in node.all_input_nodes if is_double(n) or isinstance(n.meta.get("val"), (list, tuple))]


def leave_views(graph: Graph, returned: Optional[int]) -> set[Node]:
    """Leaves two kinds of results that are views to torch: views whose strides or offset depend on a number read from a tensor,
    from which AOTAutograd makes views of an argument or of another result; and those that share memory, which the graph allocates,
    with one of the first ``returned`` results, since later writes to one must be visible in the others. Returns the nodes that
    allocate such shared memory."""
    out = graph.output_node()
    of: dict[Node, set[Node]] = {}
    for node in out.args[0]:
        if isinstance(node, Node):
            of.setdefault(memory_of(node), set()).add(node)
    written = {memory_of(node) for node in out.args[0][:returned] if isinstance(node, Node)}
    bases = {base for base, nodes in of.items() if base in written and base.op == "call_function" and len(nodes) > 1}
    shared = {n for base in bases for n in of[base]}
    given = [n for n in graph.nodes if n.op == "placeholder"]
    known = {symbol for nodes, memory in ((given, True), (graph.nodes, False)) for symbol, _, _ in _fx.places(nodes, memory)}
    made: dict[Node, Node] = {}

    def in_torch(node: Node) -> Node:
        if not is_view(node):
            return node
        if node not in made:
            with graph.inserting_before(out):
                made[node] = graph.node_copy(node, lambda n: in_torch(n) if n is node.args[0] else n)
            made[node].meta = {**node.meta, _IN_MEMORY: True}
        return made[node]

    def result(node: Any) -> Any:
        value = node.meta.get("val") if isinstance(node, Node) else None
        if not isinstance(value, torch.Tensor) or value.layout != torch.strided:
            return node
        if node in shared:
            return in_torch(node)
        numbers = (*value.stride(), value.storage_offset())
        return node if set().union(*map(_fx.free_symbols, numbers)) <= known else in_torch(node)

    out.args = (tuple(map(result, out.args[0])),)
    return bases


def is_view(node: Node) -> bool:
    """Whether a node's result shares its first argument's memory."""
    if node.op != "call_function":
        return False
    if node.target is operator.getitem:
        return is_view(node.args[0])
    return bool(getattr(node.target, "is_view", False))


def _may_overlap(node: Node) -> bool:
    """Whether several elements of a tensor may have the same address. Expanded axes do not count."""
    view = node
    while is_view(view):
        if view.target in (torch.ops.aten.unfold.default, torch.ops.aten.as_strided.default):
            return True
        view = view.args[0]
    return _fx.overlaps(node.meta["val"])


def copied(nodes: Iterable[Node]) -> set[Node]:
    """The graph's arguments that operators of ``SCATTERS`` copy with their strides."""
    read = (memory_of(n.args[0]) for n in nodes if n.op == "call_function" and n.target in SCATTERS)
    return {n for n in read if n.op == "placeholder"}


def take_writes(module: GraphModule) -> list[int]:
    """Takes the writes to arguments out of a graph, whose first results then are the values to write. Returns the positions of the
    arguments, in that order."""
    graph, (output,) = module.graph, module.graph.find_nodes(op="output")
    position = {n: i for i, n in enumerate(graph.find_nodes(op="placeholder"))}
    writes = [n for n in graph.find_nodes(op="call_function", target=torch.ops.aten.copy_.default) if n.args[0] in position]
    for write in writes:
        write.replace_all_uses_with(write.args[1])
    output.args = ([*(w.args[1] for w in writes), *output.args[0]],)
    arguments = [position[w.args[0]] for w in writes]
    for write in writes:
        graph.erase_node(write)
    module.recompile()
    return arguments


def bases_of(node: Node) -> Iterable[Node]:
    """The chain of nodes of which a node is a view, the nearest first."""
    while is_view(node):
        node = node.args[0]
        yield node


def copies_nothing(node: Node) -> bool:
    """Whether a node is a view of an argument, which torch makes without copying."""
    return bool(node.meta.get(_IN_MEMORY)) and getattr(node.target, "is_view", False)


def sizes_as_inputs(module: GraphModule) -> dict[Node, Any]:
    """Replaces nodes that compute symbolic sizes by placeholders, and returns these with their expressions. The host computes the
    sizes before the graph runs, so that no part of the graph waits for them."""
    graph = module.graph
    known: set[Any] = set()
    for node in graph.nodes:
        if node.op == "placeholder":
            known |= _fx.free_symbols(node.meta.get("val"))
    first = next(iter(graph.nodes))
    made: dict[Node, Any] = {}
    by_expression: dict[Any, Node] = {}
    for node in list(graph.nodes):
        value = node.meta.get("val")
        if node.op != "call_function" or not _fx.is_size(value) or _fx.free_symbols(value) - known:
            continue
        if isinstance(value, (torch.SymFloat, torch.SymBool, float, bool)):
            continue
        expr = _fx.expression(value)
        if expr not in by_expression:
            with graph.inserting_before(first):
                new = graph.placeholder(f"computed_{len(made)}")
            new.meta["val"] = value
            made[new] = expr
            by_expression[expr] = new
        node.replace_all_uses_with(by_expression[expr])
        graph.erase_node(node)
    graph.eliminate_dead_code(_impure)
    graph.lint()
    return made


def _impure(node: Node) -> bool:
    return node.op in ("placeholder", "output") or node.is_impure()


_AROUND = {
    torch.ops.higher_order.with_effects: (1, "it does more than computing its results"),
    torch.ops.higher_order.auto_functionalized: (0, "it writes its arguments"),
    torch.ops.higher_order.auto_functionalized_v2: (0, "it writes its arguments"),
}
"""Operators that call another operator, with its position among their arguments and the reason for which they stay in torch."""


def name(node: Node) -> str:
    """The name of a node's operator, for messages."""
    at, _ = _AROUND.get(node.target, (len(node.args), ""))
    return str(node.args[at] if at < len(node.args) else node.target)


def stays(node: Node) -> Optional[str]:
    """The reason for which a node stays in torch whatever the importer supports; ``None`` if there is none."""
    if node.meta.get(_HAS_BITS_READ):
        return "its elements are f64 whose bits are read, where wgfc computes f64 in f32"
    if node.target is operator.getitem:
        return None if not node.meta.get(_IN_MEMORY) else "it depends on where in its memory an argument begins"
    if node.target in (torch.ops.higher_order.cond, torch.ops.higher_order.while_loop):
        for graph in _fx.inner(node):
            for n in graph.graph.nodes:
                of_sizes = not isinstance(n.target, torch._ops.OpOverload) and _fx.is_size(n.meta.get("val"))
                if n.op == "call_function" and not of_sizes and (why := stays(n)):
                    return f"in one of its graphs {n.target} does: {why}"
    elif node.target in _AROUND:
        return _AROUND[node.target][1]
    elif not isinstance(node.target, torch._ops.OpOverload):
        return "it is not an operator on tensors"
    if node.meta.get(_IN_MEMORY):
        return "it depends on where in its memory an argument begins"
    if node.target in SCATTERS and _may_overlap(node.args[0]):
        return "elements of its first argument may share memory, in which PyTorch replaces all of them"
    if isinstance(node.target, torch._ops.OpOverload) and torch.Tag.nondeterministic_seeded in node.target.tags:
        return "its numbers come from torch's generator"
    values = node.meta.get("val")
    for value in values if isinstance(values, (list, tuple)) else [values]:
        if value is not None and not isinstance(value, torch.Tensor):
            return "its result is not a tensor"
        if isinstance(value, torch.Tensor) and value.layout != torch.strided:
            return "its result is sparse"
    return None


def parts(module: GraphModule, supported: Callable[[Node], bool]) -> list[Any]:
    """The graph as a list of ``Part``s and single nodes in topological order."""

    class Support(OperatorSupportBase):
        def is_node_supported(self, submodules: Any, node: Node) -> bool:
            if node.op != "call_function":
                return False
            if node.target is operator.getitem:
                return self.is_node_supported(submodules, node.args[0])
            return supported(node)

    partitioner = CapabilityBasedPartitioner(module, Support(), allows_single_node_partition=True)
    of: dict[Node, int] = {}
    for i, found in enumerate(partitioner.propose_partitions()):
        for node in found.nodes:
            of[node] = i
    # A `getitem` belongs to the part of its operator.
    for node in module.graph.nodes:
        if node.op == "call_function" and node.target is operator.getitem:
            of.pop(node, None)
            if node.args[0] in of:
                of[node] = of[node.args[0]]
    order = {n: i for i, n in enumerate(module.graph.nodes)}
    units: dict[Any, list[Node]] = {}
    for node in module.graph.nodes:
        if node.op == "call_function":
            units.setdefault(of.get(node, node), []).append(node)
    # A topological order of the units: a unit is ready when all units that it reads are done, and ready units are taken in the
    # graph's order.
    home = {n: u for u, nodes in units.items() for n in nodes}
    needs = {
        u: {home[i] for n in nodes for i in n.all_input_nodes if i in home and home[i] != u} for u, nodes in units.items()
    }
    made: list[Any] = []
    done: set[Any] = set()
    while len(done) < len(units):
        ready = [u for u in units if u not in done and needs[u] <= done]
        if not ready:
            raise RuntimeError("the parts of the graph need one another")
        for u in ready:
            nodes = sorted(units[u], key=order.__getitem__)
            made.append(_part(module, nodes) if not isinstance(u, Node) else u)
            done.add(u)
    return made


def _part(module: GraphModule, nodes: Sequence[Node]) -> Part:
    inside = set(nodes)
    graph = Graph()
    copied: dict[Node, Node] = {}
    reads = dict.fromkeys(i for n in nodes for i in n.all_input_nodes if i not in inside)
    inputs = [n for n in reads if n.op != "get_attr"]
    for node in inputs:
        new = graph.placeholder(node.name)
        new.meta = dict(node.meta)
        copied[node] = new
    for node in [n for n in reads if n.op == "get_attr"] + list(nodes):
        copied[node] = graph.node_copy(node, copied.__getitem__)
    outputs = [
        n for n in nodes if any(u not in inside for u in n.users) and isinstance(n.meta.get("val"), torch.Tensor)
    ]
    results = [copied[n] for n in outputs]
    graph.output(tuple(results))
    origin = {new.name: old for old, new in copied.items()}
    return Part(GraphModule(module, graph), inputs, outputs, results, origin)
