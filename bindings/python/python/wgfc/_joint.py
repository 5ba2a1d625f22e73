"""Partition of AOTAutograd's joint graph into a forward and a backward graph."""

from __future__ import annotations

import operator
from typing import Any, Callable, Collection, Iterable

import torch
from torch._functorch.partitioners import get_default_op_list, min_cut_rematerialization_partition
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_arg
from torch.utils.checkpoint import CheckpointPolicy

_ATEN = torch.ops.aten
_COMPARISONS = {_ATEN.eq, _ATEN.ne, _ATEN.lt, _ATEN.le, _ATEN.gt, _ATEN.ge}
_STEPS = {
    *(_ATEN.floor, _ATEN.ceil, _ATEN.round, _ATEN.trunc, _ATEN.frac, _ATEN.sign, _ATEN.sgn, _ATEN.floor_divide),
    *(_ATEN.remainder, _ATEN.fmod, _ATEN.bucketize, _ATEN.searchsorted, _ATEN.argmax, _ATEN.argmin),
}


def partition(joint: GraphModule, inputs: Any, **options: Any) -> tuple[GraphModule, GraphModule]:
    """Partitions the graph at a minimum cut, so that as little as possible is saved. The backward program may recompute values of
    the forward pass with different rounding. Discontinuous operators, such as ``x == x.amax()``, could then give entirely
    different results, so the values that they need are saved instead of recomputed."""
    keep(joint, options["num_fwd_outputs"])
    return min_cut_rematerialization_partition(joint, inputs, **options)


def keep(joint: GraphModule, forward_outputs: int) -> None:
    """Marks the nodes to save: the results of discontinuous operators of the forward pass, and the forward values that
    discontinuous operators of the backward pass read. Comparisons with a constant in the backward pass alone, such as that of a
    ReLU, are not marked: if a value is within rounding of the constant, either result is right."""
    graph = joint.graph
    late = _closure([n for n in graph.nodes if n.op == "placeholder" and str(n.target).startswith("tangents")], lambda n: n.users)
    results = list(graph.output_node().args[0])[:forward_outputs]
    forward = _closure([r for r in results if isinstance(r, Node)], lambda n: n.all_input_nodes)
    is_view = get_default_op_list().is_view
    equal = _equal(graph)
    saved: set[int] = set()
    for node in graph.nodes:
        if node in late or not _jumps(node, node in forward):
            continue
        # A view is recomputed from its base, so the base is saved.
        passed = _closure([node], lambda n: n.all_input_nodes if n not in forward or is_view(n) else ())
        for read in passed:
            if read in forward and read.op == "call_function" and not is_view(read):
                saved.add(equal[read])
    # The partitioner merges nodes that compute the same, so all of them are marked.
    for node in graph.nodes:
        if equal[node] in saved:
            node.meta["recompute"] = CheckpointPolicy.MUST_SAVE
            # For operators with several results the partitioner reads only the mark on the operator.
            if node.target is operator.getitem:
                node.args[0].meta["recompute"] = CheckpointPolicy.MUST_SAVE


def _jumps(node: Node, forward: bool) -> bool:
    """Whether an operator is discontinuous: different rounding of the operands can change the result by more than rounding."""
    packet = getattr(node.target, "overloadpacket", None)
    operands = [n for n in node.all_input_nodes if isinstance(n.meta.get("val"), torch.Tensor)]
    if packet is None or not any(n.meta["val"].is_floating_point() for n in operands):
        return False
    if packet in _COMPARISONS:
        return forward or sum(not _constant(n) for n in operands) > 1
    value = node.meta.get("val")
    return packet in _STEPS or (packet is _ATEN._to_copy and not (value.is_floating_point() or value.is_complex()))


def _equal(graph: Graph) -> dict[Node, int]:
    """A number for each node; nodes that compute the same have the same number."""
    numbers: dict[Node, int] = {}
    known: dict[str, int] = {}
    for node in graph.nodes:
        line: Any = node.name
        if node.op == "call_function":
            line = (str(node.target), map_arg((node.args, node.kwargs), lambda n: f"%{numbers[n]}"))
        numbers[node] = known.setdefault(repr(line), len(known))
    return numbers


def _constant(node: Node) -> bool:
    """Whether a value does not depend on inputs."""
    if node.op != "call_function":
        return node.op == "get_attr"
    return all(map(_constant, node.all_input_nodes))


def _closure(start: Collection[Node], following: Callable[[Node], Iterable[Node]]) -> set[Node]:
    found, left = set(start), list(start)
    while left:
        new = [n for n in following(left.pop()) if n not in found]
        found.update(new)
        left.extend(new)
    return found
