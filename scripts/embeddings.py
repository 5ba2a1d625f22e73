#!/usr/bin/env python3
"""Writes what transformers makes of small models whose hidden states become embeddings.

    python3 scripts/embeddings.py fixtures

Needs: pip install torch transformers onnx onnxscript. `decoders/NAME/hidden.npy` are the last hidden states of the token ids in
decoders/ids.npy. `encoder/` has a BERT as ONNX, `ids.npy` and the mean of the hidden states of its first 2, 5, 9 and 9 tokens,
`embeddings.npy` f32[4, width], each of a run of its own.
"""

import sys
from pathlib import Path

import numpy as np
import onnx
import torch
import transformers

LENGTHS = [2, 5, 9, 9]
#: The implementation that caps scores of attention.
EAGER = dict(attn_implementation="eager")


def hidden(model, ids, **more):
    with torch.no_grad():
        return model(input_ids=torch.from_numpy(ids)[None], **more).last_hidden_state[0]


def write_encoder(folder):
    folder.mkdir(exist_ok=True)
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=50,
        hidden_size=24,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=40,
        max_position_embeddings=16,
        initializer_range=0.3,
        **EAGER,
    )
    model = transformers.BertModel(config, add_pooling_layer=False).eval()
    ids = np.random.default_rng(0).integers(0, 50, (len(LENGTHS), max(LENGTHS)), dtype=np.int64)
    means = [hidden(model, row[:n]).mean(0).numpy() for row, n in zip(ids, LENGTHS)]
    np.save(folder / "ids.npy", ids)
    np.save(folder / "embeddings.npy", np.stack(means))
    example = torch.from_numpy(ids)
    axes = {0: torch.export.Dim("batch"), 1: torch.export.Dim("seq", max=16)}
    torch.onnx.export(
        model,
        kwargs={"input_ids": example, "attention_mask": torch.ones_like(example), "token_type_ids": torch.zeros_like(example)},
        f=folder / "model.onnx",
        input_names=["input_ids", "attention_mask", "token_type_ids"],
        output_names=["last_hidden_state"],
        dynamic_shapes={"input_ids": axes, "attention_mask": axes, "token_type_ids": axes},
        external_data=False,
        dynamo=True,
    )
    without_notes(folder / "model.onnx")


def without_notes(path):
    """Removes what the exporter notes of each node, such as the lines of Python that made it."""
    model = onnx.load(path)
    functions = [node for f in model.functions for node in f.node]
    graph = model.graph
    for part in [model, graph, *graph.node, *graph.value_info, *graph.input, *graph.output, *graph.initializer, *functions]:
        part.ClearField("doc_string")
        del part.metadata_props[:]
    onnx.save(model, path)


def main():
    folder = Path(sys.argv[1])
    ids = np.load(folder / "decoders/ids.npy").reshape(-1)
    for name in ["gemma2", "qwen3"]:
        model = transformers.AutoModel.from_pretrained(folder / "decoders" / name, dtype=torch.float32, **EAGER).eval()
        np.save(folder / "decoders" / name / "hidden.npy", hidden(model, ids).numpy())
    write_encoder(folder / "encoder")


if __name__ == "__main__":
    main()
