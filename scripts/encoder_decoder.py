#!/usr/bin/env python3
"""Writes the decoder of a small model shaped as Whisper, what its encoder made of an input, and the tokens of transformers.

    python3 scripts/encoder_decoder.py fixtures/torch/whisper

Needs: pip install torch transformers onnx. `encoder.onnx` takes `input_features` f32[1, 8, 40], of which `input_features.npy` are some;
`decoder.onnx` takes one token a run, the encoder's result, and past keys and values, with names as optimum gives them. `tokens.npy` are the
tokens that greedy decoding gives behind the token 1.
"""

import sys
import warnings
from pathlib import Path

import numpy as np
import torch
import transformers
from transformers import DynamicCache, EncoderDecoderCache

CONFIG = transformers.WhisperConfig(
    vocab_size=96,
    d_model=32,
    encoder_layers=1,
    decoder_layers=1,
    encoder_attention_heads=2,
    decoder_attention_heads=2,
    encoder_ffn_dim=48,
    decoder_ffn_dim=48,
    num_mel_bins=8,
    max_source_positions=20,
    max_target_positions=24,
    pad_token_id=0,
    bos_token_id=1,
    eos_token_id=2,
    decoder_start_token_id=1,
)
TOKENS = 10


class Encoder(torch.nn.Module):
    def __init__(self, model):
        super().__init__()
        self.encoder = model.model.encoder

    def forward(self, input_features):
        return self.encoder(input_features, return_dict=False)[0]


class Decoder(torch.nn.Module):
    def __init__(self, model):
        super().__init__()
        self.decoder, self.head = model.model.decoder, model.proj_out

    def forward(self, input_ids, encoder_hidden_states, key, value):
        cache = EncoderDecoderCache(DynamicCache(), DynamicCache())
        cache.self_attention_cache.update(key, value, 0)
        out = self.decoder(
            input_ids=input_ids,
            encoder_hidden_states=encoder_hidden_states,
            past_key_values=cache,
            use_cache=True,
            position_ids=(torch.arange(1) + key.shape[2])[None],
        )
        layer = cache.self_attention_cache.layers[0]
        return self.head(out.last_hidden_state), layer.keys, layer.values


def main():
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = transformers.WhisperForConditionalGeneration(CONFIG).float().eval()
    for value in model.state_dict().values():
        if value.dim() > 1:
            value.copy_(torch.randn_like(value) / value[0].numel() ** 0.5)
    features = torch.randn(1, CONFIG.num_mel_bins, 40)
    with torch.no_grad():
        encoded = Encoder(model)(features)
        ids = torch.tensor([[1]])
        for _ in range(TOKENS):
            logits = model(encoder_outputs=(encoded,), decoder_input_ids=ids).logits
            ids = torch.cat([ids, logits[:, -1].argmax(-1, keepdim=True)], 1)
    np.save(folder / "input_features.npy", features.numpy())
    np.save(folder / "tokens.npy", ids[0, 1:].numpy())
    options = dict(dynamo=False, opset_version=17)
    torch.onnx.export(
        Encoder(model),
        (features,),
        folder / "encoder.onnx",
        input_names=["input_features"],
        output_names=["last_hidden_state"],
        **options,
    )
    past = torch.randn(1, 2, 3, 16)
    names = ["decoder.key", "decoder.value"]
    torch.onnx.export(
        Decoder(model),
        (torch.tensor([[5]]), encoded, past, past),
        folder / "decoder.onnx",
        input_names=["input_ids", "encoder_hidden_states", *(f"past_key_values.0.{n}" for n in names)],
        output_names=["logits", *(f"present.0.{n}" for n in names)],
        dynamic_axes={"encoder_hidden_states": {1: "frames"}, **{f"past_key_values.0.{n}": {2: "past"} for n in names}},
        **options,
    )
    print(ids)


if __name__ == "__main__":
    main()
