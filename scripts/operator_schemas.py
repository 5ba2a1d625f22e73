#!/usr/bin/env python3
"""Write the inputs and attributes that ONNX allows for each operator, for the importer's checks:
compiler/src/import/onnx/schemas.txt.

    python3 scripts/operator_schemas.py      (needs: pip install onnx==1.23.2)

There is a line for each operator of `ai.onnx`, `ai.onnx.ml` and `ai.onnx.preview`. It allows everything that any version of the
operator allows.

    NAME TAB INPUTS TAB ATTRIBUTES

INPUTS are separated by spaces; each is a letter and hexadecimal digits. Inputs with the same letter have the same type, that is, the
same type variable in the operator's newest version; `-` stands for no variable. The digits are a mask with a bit for each element type,
at the type's number. A `+` after the last input says that it may be repeated. ATTRIBUTES are separated by spaces: a name, `:`, and the
numbers of its kinds.
"""
from pathlib import Path

import onnx
from onnx.defs import OpSchema

CODES = {name.lower(): code for name, code in onnx.TensorProto.DataType.items()}


def bits(types):
    """A mask with a bit for each element type of tensors. Optional types count as the types that they hold; other types have no
    bit."""
    mask = 0
    for t in types:
        t = t.removeprefix("optional(").rstrip(")")
        if t.startswith("tensor("):
            mask |= 1 << CODES[t.removeprefix("tensor(").rstrip(")")]
        elif t in CODES:
            mask |= 1 << CODES[t]
    return mask


def main():
    versions = {}
    for schema in onnx.defs.get_all_schemas_with_history():
        if schema.domain in ("", "ai.onnx.ml", "ai.onnx.preview"):
            versions.setdefault((schema.domain, schema.name), []).append(schema)
    lines = []
    for (domain, name), all_of in sorted(versions.items()):
        all_of.sort(key=lambda s: s.since_version)
        newest = all_of[-1]
        inputs, letters = [], {}
        for i in range(max(len(s.inputs) for s in all_of)):
            mask = 0
            for s in all_of:
                at = min(i, len(s.inputs) - 1)
                if at < 0 or (at < i and s.inputs[at].option != OpSchema.FormalParameterOption.Variadic):
                    continue
                mask |= bits(s.inputs[at].types)
            letter = "-"
            if i < len(newest.inputs):
                p = newest.inputs[i]
                several = len(p.types) > 1 and p.is_homogeneous and "(" not in p.type_str
                if several:
                    letter = letters.setdefault(p.type_str, chr(ord("a") + len(letters)))
            inputs.append(f"{letter}{mask:x}")
        if newest.inputs and newest.inputs[-1].option == OpSchema.FormalParameterOption.Variadic:
            inputs[-1] += "+"
        kinds = {}
        for s in all_of:
            for a in s.attributes.values():
                kinds.setdefault(a.name, set()).add(int(a.type.value))
        attributes = [f"{a}:{','.join(str(k) for k in sorted(v))}" for a, v in sorted(kinds.items())]
        key = f"{domain}.{name}" if domain else name
        lines.append(f"{key}\t{' '.join(inputs)}\t{' '.join(attributes)}\n")
    path = Path(__file__).parent.parent / "compiler/src/import/onnx/schemas.txt"
    path.write_text("".join(lines))


if __name__ == "__main__":
    main()
