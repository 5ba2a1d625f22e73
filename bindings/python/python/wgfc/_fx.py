"""Conversion of AOTAutograd's graphs of ATen operators to the form that the importer reads."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import io
import math
import operator
import threading
from typing import Any, Iterator, Optional, Sequence

import sympy
import torch
import torch._export.serde.serialize
from torch._functorch._aot_autograd.functional_utils import gen_alias_from_base
from torch.export import exported_program as ep
from torch.export import graph_signature as sig
from torch.fx import Graph, GraphModule, Node
from torch.fx._lazy_graph_module import _make_graph_module, _use_lazy_graph_module
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.fx.node import map_arg
from torch.utils._sympy.numbers import int_oo
from torch.utils._sympy.value_ranges import ValueRanges


def is_size(value: Any) -> bool:
    """Whether it is a plain or symbolic number, such as a size or a value computed from sizes."""
    return isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool, int, float, bool))


def expression(value: Any) -> Any:
    """The sympy expression of a symbolic number; a plain number is returned unchanged."""
    return value.node.expr if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)) else value


def free_symbols(value: Any) -> set[Any]:
    """The symbols in the sizes of a tensor, or in a symbolic number."""
    if isinstance(value, torch.Tensor):
        return set().union(*(free_symbols(d) for d in value.shape))
    if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return set(value.node.expr.free_symbols)
    return set()


def stride_order(value: torch.Tensor) -> Optional[list[int]]:
    """The axes ordered from the largest to the smallest stride; ``None`` if that is their own order, or if it cannot be
    determined."""

    def hint(x: Any) -> int:
        return int(x.node.hint) if isinstance(x, torch.SymInt) and x.node.hint is not None else int(x)

    try:
        sizes, strides = [hint(n) for n in value.shape], [hint(s) for s in value.stride()]
    except Exception:  # a size that only the run knows
        return None
    axes = [a for a in range(len(sizes)) if sizes[a] != 1]
    # The order of expanded axes, whose stride is 0, is undefined.
    if any(strides[a] == 0 for a in axes):
        return None
    order = sorted(axes, key=lambda a: -strides[a])
    if order == axes:
        return None
    rest = iter(order)
    return [next(rest) if sizes[a] != 1 else a for a in range(len(sizes))]


def overlaps(value: torch.Tensor) -> bool:
    """Whether several elements may have the same address in memory. Expanded axes, whose stride is 0, do not count."""

    def hint(x: Any) -> int:
        return int(x.node.hint) if isinstance(x, torch.SymInt) and x.node.hint is not None else int(x)

    try:
        axes = sorted((hint(s), hint(n)) for n, s in zip(value.shape, value.stride()))
    except Exception:  # a size that only the run knows
        return False
    reach = 0
    for stride, size in axes:
        if size > 1 and stride > 0:
            if stride <= reach:
                return True
            reach += (size - 1) * stride
    return False


def in_order(tensor: torch.Tensor, order: Optional[Sequence[int]]) -> torch.Tensor:
    """A copy of a tensor whose axes are laid out in memory in ``order``; the tensor itself for ``None``."""
    if order is None:
        return tensor
    back = sorted(range(len(order)), key=lambda a: order[a])
    return tensor.permute(*order).contiguous().permute(*back)


@functools.cache
def offsets_are_from_the_base() -> bool:
    """Whether AOTAutograd, which makes a view of an input from the strides and the offset of a graph's result, takes the offset
    as relative to the input's first element, as torch does from 2.15 on, rather than to the beginning of its memory."""
    base, result = torch.arange(3)[1:], torch.zeros(1, dtype=torch.int64)
    return int(gen_alias_from_base(base, result, False, replay_views=False)) == 1


def laid_out(value: torch.Tensor, strides: Sequence[int], offset: int) -> torch.Tensor:
    """Copies a tensor to memory with these strides and this offset."""
    if value.numel() == 0 or (value.stride() == tuple(strides) and value.storage_offset() == offset):
        return value
    reach = offset + sum((n - 1) * s for n, s in zip(value.shape, strides)) + 1
    whole = torch.empty(reach, dtype=value.dtype, device=value.device)
    # ``set_`` makes a tensor that torch does not take for a view of ``whole``. Of a view, torch would replay the view's operators
    # on the base of the graph's result.
    made = torch.empty(0, dtype=value.dtype, device=value.device)
    made.set_(whole.untyped_storage(), offset, value.shape, tuple(strides))
    to, source = made, value
    for axis, stride in enumerate(strides):
        if stride == 0:
            to, source = to.narrow(axis, 0, 1), source.narrow(axis, 0, 1)
    to.copy_(source)
    return made


def attributes(module: GraphModule) -> dict[str, Any]:
    """The attributes that nodes of a graph refer to, by name: tensors, and inner graphs of control flow."""
    found = {}
    for node in module.graph.nodes:
        if node.op == "get_attr":
            value: Any = module
            for part in node.target.split("."):
                value = getattr(value, part)
            found[node.target] = value.detach() if isinstance(value, torch.Tensor) else value
    return found


def constants(module: GraphModule) -> dict[str, torch.Tensor]:
    """The constant tensors that nodes of a graph refer to, by name."""
    return {name: value for name, value in attributes(module).items() if isinstance(value, torch.Tensor)}


def inner(node: Node) -> list[GraphModule]:
    """The inner graphs among a node's arguments."""
    read = [getattr(node.graph.owning_module, n.target, None) for n in node.all_input_nodes if n.op == "get_attr"]
    return [m for m in read if isinstance(m, GraphModule)]


def places(nodes: Sequence[Node], memory: bool = False) -> list[tuple[Any, Node, Any]]:
    """The nodes and places from which the symbols' values can be read. A place is ``None`` for a node that is a number, an axis
    for an extent of a tensor, and with ``memory`` also ``("stride", axis)`` or ``("offset", 0)``, because strides and offsets of
    inputs that are views have their own symbols."""
    found: dict[Any, tuple[Node, Any]] = {}

    def see(node: Node, numbers: Any) -> None:
        for place, number in numbers:
            expr = expression(number)
            if getattr(expr, "is_symbol", False):
                found.setdefault(expr, (node, place))

    for node in nodes:
        value = node.meta.get("val")
        see(node, enumerate(value.shape) if isinstance(value, torch.Tensor) else [(None, value)])
    for node in nodes if memory else ():
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor):
            strides = ((("stride", a), n) for a, n in enumerate(value.stride()))
            see(node, [*strides, (("offset", 0), value.storage_offset())])
    return [(symbol, node, place) for symbol, (node, place) in found.items()]


def digest(module: GraphModule, results: Sequence[Node], options: Any) -> str:
    """A hash that is equal for graphs that compute the same from inputs of the same types, whatever the names of their nodes and
    symbols."""
    number: dict[Node, int] = {}
    sizes: dict[str, int] = {}
    hash = hashlib.sha256(repr((torch.__version__, options)).encode())

    def size(x: Any) -> str:
        text = expression(x)
        if not hasattr(text, "free_symbols"):
            return repr(text)
        renamed = {s: f"s{sizes.setdefault(s.name, len(sizes))}" for s in sorted(text.free_symbols, key=lambda s: s.name)}
        return sympy.srepr(text.xreplace({s: sympy.Symbol(n, integer=True) for s, n in renamed.items()}))

    def kind(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            numbers = ([size(n) for n in part] for part in (value.shape, value.stride(), [value.storage_offset()]))
            return f"{value.dtype}{list(numbers)}"
        if isinstance(value, (list, tuple)):
            return [kind(v) for v in value]
        return size(value) if is_size(value) else repr(value)

    def argument(x: Any) -> Any:
        if isinstance(x, Node):
            return f"%{number[x]}"
        if isinstance(x, (list, tuple)):
            return [argument(v) for v in x]
        if isinstance(x, dict):
            return [(k, argument(v)) for k, v in x.items()]
        return repr(x)

    held = constants(module)
    for node in module.graph.nodes:
        if node.op == "output":
            break
        number[node] = len(number)
        line: list[Any] = [node.op, argument(node.args), argument(node.kwargs), kind(node.meta.get("val"))]
        if node.op == "call_function":
            line.append(str(node.target))
        inner = getattr(module, node.target, None) if node.op == "get_attr" else None
        if isinstance(inner, GraphModule):
            made = torch.utils._pytree.tree_leaves(inner.graph.output_node().args)
            line.append(digest(inner, [n for n in made if isinstance(n, Node)], [n if not isinstance(n, Node) else None for n in made]))
        if node.op == "get_attr" and node.target in held:
            t = held[node.target].cpu().contiguous()
            line.append([str(t.dtype), list(t.shape)])
            hash.update(t.reshape(-1).view(torch.uint8).numpy().tobytes() if t.numel() else b"")
        elif node.op == "get_attr" and isinstance(graph := getattr(module, node.target, None), GraphModule):
            line.append([digest(graph, graph.graph.output_node().all_input_nodes, None), str(graph.graph.output_node().args)])
        hash.update(repr(line).encode())
    hash.update(repr([number[r] for r in results]).encode())
    hash.update(repr(sorted((sizes[s.name], n) for s, n in least(module).items() if s.name in sizes)).encode())
    return hash.hexdigest()


@dataclasses.dataclass(eq=False)
class Numbers:
    """Numbers that are passed to a program by value, as the elements of a tensor of integers and of a tensor of floats."""

    integers: list[Node]
    floats: list[Node]
    uses: dict[Node, set[Any]]
    """For each node that reads such numbers, the positions and names of the arguments that are such numbers."""
    alone: set[Node]
    """Numbers that are only used by value."""


_VALUES = ("Tensor", "Optional[Tensor]", "number", "Optional[number]")
_PLAIN = {"Add", "Mul", "FloorDiv", "CleanDiv", "Mod", "PythonMod", "Max", "Min"}


def _is_plain(expr: Any) -> bool:
    """Whether kernels can compute an expression of sizes in 32 bits. Products of different extents are accepted, as they usually
    count elements; powers are not."""

    def known(e: Any) -> bool:
        return e.is_Symbol or (e.is_Integer and abs(e) < 1 << 15) or type(e).__name__ in _PLAIN

    return all(map(known, sympy.preorder_traversal(sympy.sympify(expr))))


def numbers(module: GraphModule) -> Numbers:
    """The arguments of a part that are passed to its program by value: all floats, and all integers that the program cannot
    compute from the extents of its tensors."""
    given = [n for n in module.graph.nodes if n.op == "placeholder"]
    extents = _extents(n.meta["val"] for n in given)
    found = Numbers([], [], {}, set())
    for node in given:
        value = node.meta["val"]
        if not isinstance(value, (torch.SymInt, torch.SymFloat)):
            continue
        real = isinstance(value, torch.SymFloat)
        if not real and free_symbols(value) <= extents and _is_plain(expression(value)):
            continue
        alone = True
        for user in node.users:
            places = _places_of(user, node, free_symbols(value) - extents)
            alone = alone and places is not None
            found.uses.setdefault(user, set()).update(places or ())
        if any(node in user.all_input_nodes and found.uses.get(user) for user in node.users):
            (found.floats if real else found.integers).append(node)
            if alone:
                found.alone.add(node)
    return found


def _places_of(user: Node, node: Node, symbols: set[Any]) -> Optional[list[Any]]:
    """The positions and names of a node's arguments that are ``node`` used by value; ``None`` if one of ``symbols`` is in the
    result's shape, or if some use is not known to be by value."""
    if not isinstance(user.target, torch._ops.OpOverload) or user.op != "call_function":
        return None
    made = user.meta.get("val")
    for value in made if isinstance(made, (list, tuple)) else [made]:
        if free_symbols(value) & symbols:
            return None
    schema = user.target._schema.arguments
    kinds = {**dict(enumerate(str(a.type) for a in schema)), **{a.name: str(a.type) for a in schema}}
    arguments = [*enumerate(user.args), *user.kwargs.items()]
    places = [key for key, value in arguments if value is node and kinds.get(key) in _VALUES]
    read: list[Node] = []
    map_arg((user.args, user.kwargs), read.append)
    return places if read.count(node) == len(places) else None


def _extents(inputs: Any) -> set[Any]:
    """The symbols that are extents of tensors."""
    tensors = [v for v in inputs if isinstance(v, torch.Tensor)]
    return {e for v in tensors for e in map(expression, v.shape) if getattr(e, "is_symbol", False)}


def least(module: GraphModule) -> dict[Any, int]:
    """The lower bounds above 1 of the inputs' symbolic extents, as guards state them."""
    env = getattr(_mode(module), "shape_env", None)
    found = {}
    if env is not None:
        given = (n.meta["val"] for n in module.graph.nodes if n.op == "placeholder")
        for symbol in sorted(_extents(given), key=lambda s: s.name):
            lower = env.bound_sympy(symbol).lower
            if lower.is_Integer and lower > 1:
                found[symbol] = int(lower)
    return found


def carriers(module: GraphModule) -> list[Any]:
    """The symbols that the program needs and that are no input tensor's extent by themselves, in the order in which ``digest``
    numbers them."""
    given = [n for n in module.graph.nodes if n.op == "placeholder"]
    values = numbers(module).alone
    needed: set[Any] = set()
    order: dict[Any, None] = {}
    for node in given:
        value = node.meta["val"]
        if node not in values:
            needed |= free_symbols(value)
        for part in map(expression, [*value.shape, *value.stride()] if isinstance(value, torch.Tensor) else [value]):
            if hasattr(part, "free_symbols"):
                order.update(dict.fromkeys(sorted(part.free_symbols, key=lambda s: s.name)))
    return [s for s in order if s in needed - _extents(n.meta["val"] for n in given)]


def negative(module: GraphModule) -> dict[Node, Any]:
    """Nodes that read a size with a carried symbol that is negative, always or in the run that torch compiles for, and that
    symbol. An extent cannot carry a negative value."""
    env = getattr(_mode(module), "shape_env", None)
    below = {s for s in carriers(module) if env is not None and (env.bound_sympy(s).upper < 0 or _first(env, s) < 0)}
    values = numbers(module)
    found: dict[Node, Any] = {}
    for node in module.graph.nodes:
        if node.op == "placeholder" and node not in values.alone:
            for symbol in free_symbols(node.meta["val"]) & below:
                found.update({user: symbol for user in node.users})
    return found


def _first(env: ShapeEnv, symbol: Any) -> int:
    """The value of a symbol in the run that torch compiles for; 0 if it is not known."""
    for name in ("backed_var_to_val", "var_to_val"):
        known = getattr(env, name, {})
        if symbol in known:
            return int(known[symbol])
    return 0


def _rounded(graph: Graph, node: Node, made: dict[Node, Node]) -> Optional[Node]:
    """Replaces ``math.floor`` and ``math.ceil`` by floor divisions; ``None`` for other nodes."""
    given = node.args[0] if len(node.args) == 1 else None
    if not isinstance(given, Node) or node.target not in (math.floor, math.ceil):
        return None
    if node.target is math.floor:
        return graph.create_node("call_function", operator.floordiv, (made[given], 1), {}, node.name)
    below = graph.call_function(operator.neg, (made[given],))
    below.meta["val"] = -given.meta["val"]
    down = graph.call_function(operator.floordiv, (below, 1))
    down.meta["val"] = -node.meta["val"]
    return graph.create_node("call_function", operator.neg, (down,), {}, node.name)


def readable(module: GraphModule) -> GraphModule:
    """The module with substitutes for operators on sizes that torch's serializer does not know, also in inner graphs; the module
    itself if there are none. The importer reads only the expressions of such nodes' results, which are kept."""
    known: Any = getattr(torch._export.serde.serialize, "_SYM_OPS", None)

    def other(node: Node) -> bool:
        value = node.meta.get("val")
        number = isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool))
        return node.op == "call_function" and number and not isinstance(node.target, torch._ops.OpOverload) and node.target not in known

    inner = {n: m for n, m in module.named_children() if isinstance(m, GraphModule)}
    replaced = {n: r for n, m in inner.items() if (r := readable(m)) is not m}
    if known is None or not (replaced or any(map(other, module.graph.nodes))):
        return module
    graph = Graph()
    made: dict[Node, Node] = {}
    for node in module.graph.nodes:
        if other(node):
            new = _rounded(graph, node, made) or graph.create_node("call_function", operator.neg, (1,), {}, node.name)
            new.meta = dict(node.meta)
        else:
            new = graph.node_copy(node, made.__getitem__)
        made[node] = new
    new = GraphModule(module, graph)
    new.meta.update(module.meta)
    for name, r in replaced.items():
        setattr(new, name, r)
    return new


def _branches_without_sizes(graph: Graph, module: torch.nn.Module) -> None:
    """Removes sizes from the operands of conditionals, as the serializer accepts only tensors there. In the branches, nodes with
    the same expressions take their place: the importer reads only these."""
    for node in list(graph.nodes):
        if node.target is not torch.ops.higher_order.cond:
            continue
        condition, *branches, operands = node.args
        sizes = {i for i, o in enumerate(operands) if isinstance(o, Node) and isinstance(o.meta.get("val"), torch.SymInt)}
        if not sizes:
            continue
        for i, of in enumerate(branches):
            name = f"{of.target}_{node.name}"
            module.add_module(name, _without_sizes(getattr(module, of.target), sizes))
            with graph.inserting_before(node):
                branches[i] = graph.get_attr(name)
            branches[i].meta = dict(of.meta)
        node.args = (condition, *branches, tuple(o for i, o in enumerate(operands) if i not in sizes))


def _without_sizes(module: GraphModule, sizes: set[int]) -> GraphModule:
    """A branch without the arguments at these positions, which nodes with the same expressions replace."""
    graph = Graph()
    given = [n for n in module.graph.nodes if n.op == "placeholder"]
    made = {n: graph.node_copy(n) for i, n in enumerate(given) if i not in sizes}
    for i in sizes:
        made[given[i]] = graph.call_function(operator.neg, (1,))
        made[given[i]].meta = dict(given[i].meta)
    for node in module.graph.nodes:
        if node not in made:
            made[node] = graph.node_copy(node, made.__getitem__)
    new = GraphModule(module, graph)
    _branches_without_sizes(graph, new)
    return new


def archive(module: GraphModule, results: Sequence[Node]) -> bytes:
    """The bytes of a ``.pt2`` file that computes ``results``. Inputs are named ``input_N`` in the graph's order. In addition,
    each symbol of ``carriers`` has an input ``size_N`` without elements whose first extent is the symbol's value, and the values
    of ``numbers`` are the elements of the inputs ``integers`` and ``floats``."""
    graph = Graph()
    made: dict[Node, Node] = {}
    inputs: list[sig.InputSpec] = []
    held = constants(module)
    kept: dict[str, torch.Tensor] = {}
    given = [n for n in module.graph.nodes if n.op == "placeholder"]
    # Floats and bools that sizes determine are no inputs, as the importer reads only their expressions.
    values = numbers(module)
    decided = {n for n in given if isinstance(n.meta["val"], (torch.SymFloat, torch.SymBool))} - values.alone
    tensors = [n for n in module.graph.nodes if n.op == "get_attr" and n.target in held]
    for i, node in enumerate(tensors):
        # Placeholders must come first, and those of constants before those of user inputs.
        name = f"constant_{i}"
        new = graph.placeholder(name)
        new.meta["val"] = node.meta["val"] if "val" in node.meta else _fake(module, held[node.target])
        made[node] = new
        kept[name] = held[node.target].cpu()
        inputs.append(sig.InputSpec(sig.InputKind.CONSTANT_TENSOR, sig.TensorArgument(name=new.name), name))
    for i, node in enumerate(given):
        if node in decided or node in values.alone:
            continue
        new = graph.placeholder(f"input_{i}")
        value = new.meta["val"] = node.meta["val"]
        made[node] = new
        argument = sig.TensorArgument(name=new.name)
        if not isinstance(value, torch.Tensor):
            # The importer reads only the expression of a size.
            argument = sig.ConstantArgument(name=new.name, value=None)
        inputs.append(sig.InputSpec(sig.InputKind.USER_INPUT, argument, None))
    for i, symbol in enumerate(carriers(module)):
        new = graph.placeholder(f"size_{i}")
        new.meta["val"] = _carrier(module, symbol)
        inputs.append(sig.InputSpec(sig.InputKind.USER_INPUT, sig.TensorArgument(name=new.name), None))
    lists = [("integers", torch.int64, values.integers), ("floats", torch.float32, values.floats)]
    held_in: list[tuple[Node, list[Node]]] = []
    for name, dtype, nodes in lists:
        if nodes:
            new = graph.placeholder(name)
            with _mode(module):
                new.meta["val"] = torch.empty(len(nodes), dtype=dtype)
            inputs.append(sig.InputSpec(sig.InputKind.USER_INPUT, sig.TensorArgument(name=new.name), None))
            held_in.append((new, nodes))
    taken = {n: _element(module, graph, list_, i) for list_, nodes in held_in for i, n in enumerate(nodes)}
    for node in given:
        if node in decided:
            new = made[node] = graph.call_function(operator.neg, (1,))
            new.meta["val"] = node.meta["val"]
    for node in module.graph.nodes:
        if node in made or node in values.alone or node.op == "output":
            continue
        places = values.uses.get(node, set())
        if places:
            args = [taken[a] if i in places else map_arg(a, made.__getitem__) for i, a in enumerate(node.args)]
            kwargs = {k: taken[a] if k in places else map_arg(a, made.__getitem__) for k, a in node.kwargs.items()}
            new = graph.create_node(node.op, node.target, tuple(args), kwargs, node.name)
        else:
            new = graph.node_copy(node, lambda n: made[n])
        new.meta = {k: node.meta[k] for k in ("val", "stack_trace") if k in node.meta}
        if isinstance(new.meta.get("val"), list) and not isinstance(node.target, torch._ops.OpOverload):
            # The serializer accepts several results of a higher-order operator only as a tuple.
            new.meta["val"] = tuple(new.meta["val"])
        made[node] = new
    outputs = [made[r] for r in results]
    graph.output(tuple(outputs))
    specs = [sig.OutputSpec(sig.OutputKind.USER_OUTPUT, sig.TensorArgument(name=o.name), None) for o in outputs]
    whole = torch.nn.Module()
    for name, graph_of in module.named_children():
        if isinstance(graph_of, GraphModule):
            whole.add_module(name, graph_of)
    _branches_without_sizes(graph, whole)
    with _use_lazy_graph_module(True):
        root = readable(_make_graph_module(whole, graph))
    graph = root.graph
    file = io.BytesIO()
    with _without_what_nobody_reads():
        program = ep.ExportedProgram(
            root=root,
            graph=graph,
            graph_signature=sig.ExportGraphSignature(inputs, specs),
            state_dict={},
            range_constraints={s: ValueRanges(n, int_oo) for s, n in least(module).items()},
            module_call_graph=[ep.ModuleCallEntry(fqn="", signature=None)],
            constants=kept,
        )
        # No guards are needed, as Dynamo checks its guards on the inputs of the whole graph.
        program._guards_code = []
        torch.export.save(program, file)
    return file.getvalue()


@contextlib.contextmanager
def _without_what_nobody_reads() -> Iterator[None]:
    """A context in which torch writes no Python code for the graphs of exported programs, its serializer looks the fields of a class
    up once, and does not test that its result has a canonical form: the test copies the whole graph, takes longer than everything
    else, and leaves the result as it is."""
    serializer = torch._export.serde.serialize
    shorter = [
        (serializer, "canonicalize", lambda program, *_: program),
        (serializer, "_dataclass_to_dict", _as_dict),
        (ep, "_create_graph_module_for_export", _make_graph_module),
    ]
    with _SERIALIZING:
        before = [(module, name, getattr(module, name)) for module, name, _ in shorter]
        for module, name, function in shorter:
            setattr(module, name, function)
        try:
            with _use_lazy_graph_module(True):
                yield
        finally:
            for module, name, function in before:
                setattr(module, name, function)


_FIELDS: dict[type, Any] = {}


def _as_dict(value: Any) -> Any:
    """The dictionaries, lists and plain values of a serialized program, as ``torch._export.serde.serialize._dataclass_to_dict`` makes
    them: a union is a dictionary of its one field, and a float that is not finite its name."""
    kind = type(value)
    if kind is str or kind is int or kind is bool or value is None:
        return value
    if kind is list:
        return [_as_dict(v) for v in value]
    if kind is dict:
        return {k: _as_dict(v) for k, v in value.items()}
    if kind is float:
        return value if math.isfinite(value) else "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if kind not in _FIELDS:
        union = issubclass(kind, torch._export.serde.serialize._Union)
        names = tuple(f.name for f in dataclasses.fields(kind)) if dataclasses.is_dataclass(kind) else None
        _FIELDS[kind] = "union" if union else names
    fields = _FIELDS[kind]
    if fields is None:
        return tuple(map(_as_dict, value)) if isinstance(value, tuple) else value
    if fields == "union":
        own = value.__dict__
        tag = own["_type"]
        return {tag: _as_dict(own[tag])}
    return {name: _as_dict(getattr(value, name)) for name in fields}


_SERIALIZING = threading.Lock()


def _mode(module: GraphModule) -> Any:
    for node in module.graph.nodes:
        value = node.meta.get("val")
        if isinstance(value, torch._subclasses.FakeTensor):
            return value.fake_mode
    return torch._subclasses.FakeTensorMode()


def _fake(module: GraphModule, tensor: torch.Tensor) -> Any:
    return _mode(module).from_tensor(tensor, static_shapes=True)


def _element(module: GraphModule, graph: Graph, of: Node, i: int) -> Node:
    """The element of a tensor at index ``i`` as a number with a new symbol."""
    element = graph.call_function(torch.ops.aten.select.int, (of, 0, i))
    with _mode(module):
        element.meta["val"] = torch.empty((), dtype=of.meta["val"].dtype)
    number = graph.call_function(torch.ops.aten.item.default, (element,))
    env = ShapeEnv()
    if element.meta["val"].dtype.is_floating_point:
        symbol = sympy.Symbol(f"float_{i}", real=True)
        env.var_to_range[symbol] = ValueRanges.unknown()
        number.meta["val"] = env.create_symfloatnode(symbol, hint=None)
    else:
        symbol = sympy.Symbol(f"integer_{i}", integer=True)
        env.var_to_range[symbol] = ValueRanges.unknown_int()
        number.meta["val"] = env.create_symintnode(symbol, hint=None)
    return number


def _carrier(module: GraphModule, symbol: Any) -> Any:
    mode = _mode(module)
    size = mode.shape_env.create_symintnode(symbol, hint=None)
    with mode:
        return torch.empty(size, 0, dtype=torch.uint8)
