#!/usr/bin/env python3
"""Writes compiler/src/import/fx/schemas.txt: torch's declarations of its operators.

    aten_schemas.py [DECLARATIONS]

Needs torch, or a file with a declaration on each line as `torch._C._jit_get_all_schemas` prints them. An archive of torch.export
omits arguments that have their default value. Only the declarations have the default values, the results that are views of an
argument, and the arguments that are written.

Omitted are variants that write to an `out` argument, operators that never occur in graphs of tensors (on strings, dictionaries,
lists of Python objects), and kernels of single backends."""
import pathlib, re, sys

TO = pathlib.Path(__file__).parent.parent / "compiler/src/import/fx/schemas.txt"
BACKENDS = re.compile(r"^aten::_?(cudnn|miopen|mkldnn|mps|xpu|sparse|nested|fbgemm|amp|foreach|fused_(adam|sgd|adagrad)|cslt|jagged|thnn|efficientzerotensor|coalesce|csr|to_sparse|quantized|fft_r2c_out|cuda|test)")
ASSERTIONS = re.compile(r"^aten::(_assert_scalar|sym_constrain_range|sym_constrain_range_for_size)\(")
OBJECTS = re.compile(r"\bDict\b|\bt\[\]|\bt\(|\bt\b|\bstr\[\]|\bAny|Future|Stream|Generator\?? [a-z]+\)|__torch__|RRef|ScriptObject|complex\[\]")

def main():
    if len(sys.argv) > 1:
        lines = pathlib.Path(sys.argv[1]).read_text().splitlines()
        version = lines[0].removeprefix("# torch ").split("+")[0]
    else:
        import torch
        version = torch.__version__.split("+")[0]
        lines = [str(s) for s in torch._C._jit_get_all_schemas()]
    keep = []
    for line in lines:
        if not line.startswith(("aten::", "prims::")) or not ("Tensor" in line or ASSERTIONS.match(line)):
            continue
        name, rest = line.split("(", 1)
        if re.search(r"\*, .*Tensor\([a-z]!\)(\[\])? [^)]*\) ->", line) or BACKENDS.match(name) or OBJECTS.search("(" + rest):
            continue
        keep.append(line.replace("aten::", "aten.").replace("prims::", "prims."))
    keep = sorted(set(keep), key=lambda l: l.split("(")[0])
    TO.write_text(f"# torch {version}, scripts/aten_schemas.py\n" + "\n".join(keep) + "\n")
    print(len(keep), "operators")

main()
