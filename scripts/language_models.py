#!/usr/bin/env python3
"""Writes small language models of each architecture, as a checkpoint and as GGUF, with the logits that transformers computes.

    python3 scripts/language_models.py fixtures/decoders

Needs: pip install torch transformers gguf safetensors. A folder has config.json and model.safetensors (bf16), model.gguf, and the
logits f32[1, tokens, vocabulary] of both for the token ids in `ids.npy`. fixtures/decoders/kinds.gguf has a tensor of each type of
blocks, and kinds.safetensors what the package `gguf` makes of it.
"""

import copy
import sys
from pathlib import Path

import gguf
import numpy as np
import torch
import transformers
from gguf import GGMLQuantizationType as Q
from safetensors.numpy import save_file

IDS = np.array([[3, 17, 90, 41, 7, 7, 62, 11, 55, 28, 80, 4]], dtype=np.int64)

COMMON = dict(
    vocab_size=96,
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=128,
    tie_word_embeddings=False,
    bos_token_id=1,
    eos_token_id=2,
    pad_token_id=0,
)
LONG = dict(
    rope_type="longrope",
    rope_theta=10000.0,
    short_factor=[1.0, 1.1, 1.2, 1.5],
    long_factor=[1.0, 2.0, 3.5, 8.0],
    original_max_position_embeddings=8,
)
LLAMA3 = dict(
    rope_type="llama3",
    rope_theta=500.0,
    factor=8.0,
    low_freq_factor=1.0,
    high_freq_factor=4.0,
    original_max_position_embeddings=64,
)


def config(kind, **more):
    return kind(**{**COMMON, **more})


#: The configuration of each model, its name in GGUF, and the types of its matrices there.
MODELS = {
    "llama": (config(transformers.LlamaConfig, rope_parameters=LLAMA3), "llama", [Q.Q4_0]),
    "llama-tied": (
        config(
            transformers.LlamaConfig,
            tie_word_embeddings=True,
            hidden_size=256,
            intermediate_size=256,
            num_hidden_layers=1,
            vocab_size=64 + 32,
        ),
        "llama",
        [Q.Q4_K, Q.Q6_K, Q.Q5_K, Q.Q3_K, Q.Q2_K],
    ),
    "mistral": (config(transformers.MistralConfig, sliding_window=None, head_dim=16), "llama", [Q.Q5_0]),
    "qwen2": (config(transformers.Qwen2Config), "qwen2", [Q.Q8_0]),
    "qwen3": (config(transformers.Qwen3Config, head_dim=16), "qwen3", [Q.Q5_1]),
    "phi3": (config(transformers.Phi3Config, sliding_window=5), "phi3", [Q.Q4_1]),
    "phi3-long": (
        config(transformers.Phi3Config, rope_parameters=LONG, original_max_position_embeddings=8),
        "phi3",
        [Q.F16],
    ),
    "gemma2": (
        config(transformers.Gemma2Config, tie_word_embeddings=True, head_dim=8, query_pre_attn_scalar=8, sliding_window=5),
        "gemma2",
        [Q.F16],
    ),
    "gemma3": (
        config(
            transformers.Gemma3TextConfig,
            tie_word_embeddings=True,
            head_dim=8,
            query_pre_attn_scalar=8,
            sliding_window=5,
            num_hidden_layers=6,
        ),
        "gemma3",
        [Q.BF16],
    ),
    "smollm3": (config(transformers.SmolLM3Config, num_hidden_layers=4), "smollm3", [Q.F32]),
    "mixtral": (
        config(transformers.MixtralConfig, num_local_experts=4, num_experts_per_tok=2),
        "llama",
        [Q.MXFP4],
    ),
    "qwen3moe": (
        config(
            transformers.Qwen3MoeConfig,
            head_dim=16,
            num_experts=4,
            num_experts_per_tok=2,
            moe_intermediate_size=32,
            norm_topk_prob=True,
        ),
        "qwen3moe",
        [Q.IQ4_NL],
    ),
}


def blocks(values, kind, random):
    """The bytes of `values` in blocks of a type. Types that the package cannot make are random bytes with usual scales."""
    try:
        return gguf.quantize(values, kind)
    except NotImplementedError:
        pass
    size, width = gguf.GGML_QUANT_SIZES[kind]
    shape = (*values.shape[:-1], values.shape[-1] // size, width)
    out = random.integers(0, 256, shape, dtype=np.uint8)
    #: The places of the scales of a type, and the largest integer that they multiply.
    places = {
        Q.Q2_K: ([80, 82], 3 * 15),
        Q.Q3_K: ([108], 4 * 32),
        Q.Q4_K: ([0, 2], 15 * 63),
        Q.Q5_K: ([0, 2], 31 * 63),
        Q.Q6_K: ([208], 32 * 128),
        Q.IQ4_NL: ([0], 127),
    }[kind]
    for at in places[0]:
        scale = random.uniform(0.5, 1.0, shape[:-1]) * np.abs(values).mean() * 4 / places[1]
        out[..., at : at + 2] = scale.astype(np.float16)[..., None].view(np.uint8)
    return out.reshape(*values.shape[:-1], -1)


def permuted(weight, heads):
    """Rows of queries or keys in the order of llama.cpp's rotary embedding: the elements of a pair are adjacent."""
    shape = weight.shape
    return weight.reshape(heads, 2, shape[0] // heads // 2, *shape[1:]).swapaxes(1, 2).reshape(shape)


def restored(weight, heads):
    shape = weight.shape
    return weight.reshape(heads, shape[0] // heads // 2, 2, *shape[1:]).swapaxes(1, 2).reshape(shape)


def metadata(writer, name, c):
    writer.add_block_count(c.num_hidden_layers)
    writer.add_context_length(c.max_position_embeddings)
    writer.add_embedding_length(c.hidden_size)
    writer.add_feed_forward_length(c.intermediate_size)
    writer.add_head_count(c.num_attention_heads)
    writer.add_head_count_kv(c.num_key_value_heads)
    writer.add_layer_norm_rms_eps(c.rms_norm_eps)
    head = getattr(c, "head_dim", None) or c.hidden_size // c.num_attention_heads
    writer.add_rope_dimension_count(head)
    writer.add_key_length(head)
    writer.add_value_length(head)
    rope = c.rope_parameters.get("full_attention", c.rope_parameters)
    writer.add_rope_freq_base(rope["rope_theta"])
    if getattr(c, "sliding_window", None):
        writer.add_sliding_window(c.sliding_window)
    if name in ("gemma2",):
        writer.add_attn_logit_softcapping(c.attn_logit_softcapping)
        writer.add_final_logit_softcapping(c.final_logit_softcapping)
    experts = getattr(c, "num_local_experts", None) or getattr(c, "num_experts", None)
    if experts:
        writer.add_expert_count(experts)
        writer.add_expert_used_count(c.num_experts_per_tok)
        if getattr(c, "moe_intermediate_size", None):
            writer.add_expert_feed_forward_length(c.moe_intermediate_size)
    if rope["rope_type"] == "longrope":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LONGROPE)
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
        for which in ("long", "short"):
            factors = np.array(rope[f"{which}_factor"], dtype=np.float32)
            writer.add_tensor(f"rope_factors_{which}.weight", factors)
    if rope["rope_type"] == "llama3":
        writer.add_tensor("rope_freqs.weight", wavelengths(rope, head))


def wavelengths(rope, head):
    """The divisors of the frequencies of Llama 3.1."""
    frequencies = 1.0 / rope["rope_theta"] ** (np.arange(0, head, 2, dtype=np.float64) / head)
    length = 2 * np.pi / frequencies
    original, low, high = (rope[k] for k in ("original_max_position_embeddings", "low_freq_factor", "high_freq_factor"))
    smooth = np.clip((original / length - low) / (high - low), 0, 1)
    return (1 / ((1 - smooth) / rope["factor"] + smooth)).astype(np.float32)


def tensors(state, name, c):
    """The names in GGUF of the weights of a model, with a function each that changes them as converters do, and its inverse."""
    names = gguf.get_tensor_name_map(getattr(gguf.MODEL_ARCH, name.upper()), c.num_hidden_layers)
    same = (lambda w: w, lambda w: w)
    for key, value in state.items():
        if key == "lm_head.weight" and c.tie_word_embeddings:
            continue
        if key.endswith("experts.gate_up_proj"):
            layer = key.split(".")[2]
            half = value.shape[1] // 2
            yield key, slice(0, half), f"blk.{layer}.ffn_gate_exps.weight", same
            yield key, slice(half, None), f"blk.{layer}.ffn_up_exps.weight", same
            continue
        if key.endswith("experts.down_proj"):
            yield key, slice(None), f"blk.{key.split('.')[2]}.ffn_down_exps.weight", same
            continue
        base, _, ending = key.rpartition(".")
        if name.startswith("gemma") and base.endswith("post_attention_layernorm"):
            new = f"blk.{key.split('.')[2]}.post_attention_norm"
        else:
            new = names.get_name(base)
        change = same
        if name == "llama" or name == "smollm3":
            for proj, heads in (("q_proj", c.num_attention_heads), ("k_proj", c.num_key_value_heads)):
                if proj in base:
                    change = (lambda w, h=heads: permuted(w, h), lambda w, h=heads: restored(w, h))
        if name.startswith("gemma") and "norm" in base:
            change = (lambda w: w + 1, lambda w: w - 1)
        yield key, slice(None), f"{new}.{ending}", change


def logits(model):
    with torch.no_grad():
        return model(torch.from_numpy(IDS)).logits.float().numpy()


def write(folder, name, c, kinds, random):
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(c, attn_implementation="eager").float().eval()
    gemma = name.startswith("gemma")
    state = model.state_dict()
    for key, value in state.items():
        if value.dim() == 1:
            one = 0.0 if gemma or "bias" in key else 1.0
            new = one + 0.2 * torch.randn_like(value)
        else:
            new = torch.randn_like(value) / value.shape[-1] ** 0.5
        value.copy_(new.bfloat16().float())
    model.tie_weights()
    #: A copy, as the frequencies of the rotary embedding would be rounded, too.
    copy.deepcopy(model).bfloat16().save_pretrained(folder)
    np.save(folder / "logits.npy", logits(model))

    writer = gguf.GGUFWriter(folder / "model.gguf", name)
    metadata(writer, name, c)
    plain = {k: v.numpy() for k, v in model.state_dict().items()}
    for i, (key, rows, new, (change, back)) in enumerate(tensors(plain, name, c)):
        whole = plain[key]
        part = whole[:, rows] if "experts" in key else whole
        value = change(np.ascontiguousarray(part)).astype(np.float32)
        kind = Q.F32 if value.ndim == 1 or "ffn_gate_inp" in new else kinds[i % len(kinds)]
        data = blocks(value, kind, random)
        writer.add_tensor(new, data, raw_dtype=kind)
        value = back(gguf.dequantize(data, kind)).astype(np.float32)
        if "experts" in key:
            whole[:, rows] = value
        else:
            whole[...] = value
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    model.load_state_dict({k: torch.from_numpy(v) for k, v in plain.items()})
    model.tie_weights()
    np.save(folder / "gguf_logits.npy", logits(model))


def write_kinds(folder, random):
    """A tensor of every type, and its values."""
    writer = gguf.GGUFWriter(folder / "kinds.gguf", "llama")
    values = {}
    kinds = [
        *(Q.F32, Q.F16, Q.BF16, Q.Q4_0, Q.Q4_1, Q.Q5_0, Q.Q5_1, Q.Q8_0),
        *(Q.Q2_K, Q.Q3_K, Q.Q4_K, Q.Q5_K, Q.Q6_K, Q.IQ4_NL, Q.MXFP4),
    ]
    for kind in kinds:
        size, width = gguf.GGML_QUANT_SIZES[kind]
        columns = max(size * 3, 96)
        value = random.standard_normal((5, columns)).astype(np.float32)
        data = blocks(value, kind, random)
        writer.add_tensor(kind.name, data, raw_dtype=kind)
        values[kind.name] = gguf.dequantize(data, kind).astype(np.float32).reshape(5, columns)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    save_file(values, folder / "kinds.safetensors")


def main():
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(7)
    np.save(folder / "ids.npy", IDS)
    write_kinds(folder, random)
    for model, (c, name, kinds) in MODELS.items():
        write(folder / model, name, c, kinds, random)
        print(model)


if __name__ == "__main__":
    main()
