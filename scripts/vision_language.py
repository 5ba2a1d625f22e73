#!/usr/bin/env python3
"""Writes small vision-language models as folders of the Hugging Face Hub have them, and what transformers make of a picture with them.

    python3 scripts/vision_language.py fixtures/torch/vision-language

Needs: pip install torch torchvision transformers onnx pillow. One folder for each of the architectures Idefics3 (SmolVLM) and LLaVA, with `onnx/vision_encoder.onnx`,
`onnx/embed_tokens.onnx` and `onnx/decoder_model_merged.onnx` as optimum names their inputs and outputs, and the files of the processor. Weights are random.
`picture.png` is read by both, `picture.url` is the same as a URL. `expected.json` holds greedy tokens, `*.npy` the pixels and features.
"""

import base64
import json
import sys
import warnings
from pathlib import Path

import numpy as np
import torch
import transformers
from PIL import Image
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import DynamicCache, PreTrainedTokenizerFast

SPECIAL = ["<pad>", "<s>", "</s>", "<unk>", "<image>", "<fake_token_around_image>", "<global-img>", "<end_of_utterance>"]
WORDS = "User : Assistant what is in this picture a the sea sky blue red and two it compare describe me of".split()
VOCABULARY = 64
SIZE, PATCH = 32, 8
IMAGE = SPECIAL.index("<image>")
TOKENS = 10
TEMPLATE = (
    "<s>{% for message in messages %}{{ message.role | capitalize }} : "
    "{% if message.content is string %}{{ message.content }}{% else %}"
    "{% for part in message.content %}{% if part.type == 'image' %}<image>{% else %}{{ part.text }}{% endif %}{% endfor %}{% endif %}"
    " <end_of_utterance> {% endfor %}{% if add_generation_prompt %}Assistant :{% endif %}"
)
TEXT = dict(
    vocab_size=VOCABULARY,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=256,
    rope_theta=10000.0,
    pad_token_id=0,
    bos_token_id=1,
    eos_token_id=2,
)
VISION = dict(hidden_size=24, intermediate_size=40, num_hidden_layers=1, num_attention_heads=2, image_size=SIZE, patch_size=PATCH)


def tokenizer():
    names = SPECIAL + WORDS
    inner = Tokenizer(models.WordLevel({t: i for i, t in enumerate(names)}, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=inner,
        bos_token="<s>",
        eos_token="</s>",
        unk_token="<unk>",
        pad_token="<pad>",
        additional_special_tokens=SPECIAL[4:],
    )


def idefics3():
    config = transformers.Idefics3Config(
        text_config=transformers.LlamaConfig(**TEXT),
        vision_config=dict(VISION, model_type="idefics3_vision"),
        scale_factor=2,
        image_token_id=IMAGE,
        pad_token_id=0,
        tie_word_embeddings=False,
    )
    images = transformers.Idefics3ImageProcessor(
        size={"longest_edge": 4 * SIZE}, max_image_size={"longest_edge": SIZE}, do_image_splitting=False
    )
    features = (SIZE // PATCH) ** 2 // 4
    processor = transformers.Idefics3Processor(images, tokenizer(), image_seq_len=features, chat_template=TEMPLATE)
    return transformers.Idefics3ForConditionalGeneration(config), processor


def llava():
    config = transformers.LlavaConfig(
        text_config=transformers.LlamaConfig(**TEXT),
        vision_config=transformers.CLIPVisionConfig(**VISION, projection_dim=24),
        image_token_index=IMAGE,
        image_seq_length=(SIZE // PATCH) ** 2,
        vision_feature_layer=-1,
        tie_word_embeddings=False,
    )
    images = transformers.CLIPImageProcessor(size={"shortest_edge": SIZE}, crop_size={"height": SIZE, "width": SIZE})
    processor = transformers.LlavaProcessor(
        images,
        tokenizer(),
        patch_size=PATCH,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template=TEMPLATE,
    )
    return transformers.LlavaForConditionalGeneration(config), processor


class Vision(torch.nn.Module):
    """The encoder of pictures with its projection: for Idefics3 `get_image_features` without the removal of pictures that are padding."""

    def __init__(self, model):
        super().__init__()
        self.model = model.model

    def forward(self, pixel_values, pixel_attention_mask=None):
        if pixel_attention_mask is None:
            return torch.stack(list(self.model.get_image_features(pixel_values, return_dict=True).pooler_output))
        pixels, mask = pixel_values.flatten(0, 1), pixel_attention_mask.flatten(0, 1)
        patches = mask.unflatten(2, (-1, PATCH)).unflatten(1, (-1, PATCH)).sum((2, 4)) > 0
        hidden = self.model.vision_model(pixel_values=pixels, patch_attention_mask=patches, return_dict=True)
        return self.model.connector(hidden.last_hidden_state)


class Embedding(torch.nn.Module):
    def __init__(self, model):
        super().__init__()
        self.embedding = model.get_input_embeddings()

    def forward(self, input_ids):
        return self.embedding(input_ids)


class Decoder(torch.nn.Module):
    def __init__(self, model):
        super().__init__()
        inner = model.model
        self.decoder, self.head = getattr(inner, "text_model", None) or inner.language_model, model.lm_head

    def forward(self, inputs_embeds, attention_mask, position_ids, *past):
        cache = DynamicCache()
        for layer in range(len(past) // 2):
            cache.update(past[2 * layer], past[2 * layer + 1], layer)
        out = self.decoder(
            inputs_embeds=inputs_embeds,
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_values=cache,
            use_cache=True,
        )
        present = [t for layer in cache.layers for t in (layer.keys, layer.values)]
        return self.head(out.last_hidden_state), *present


def export(model, inputs, folder):
    options = dict(dynamo=False, opset_version=17)
    pixels = (inputs["pixel_values"], *([inputs["pixel_attention_mask"] != 0] if "pixel_attention_mask" in inputs else []))
    names = ["pixel_values", "pixel_attention_mask"][: len(pixels)]
    with torch.no_grad():
        features = Vision(model)(*pixels)
    # The exporter makes floats of a tensor that is filled with an integer and has no type.
    full = torch.full
    torch.full = lambda *size, **named: full(*size, **({"dtype": torch.int64} | named))
    torch.onnx.export(
        Vision(model),
        pixels,
        folder / "vision_encoder.onnx",
        input_names=names,
        output_names=["image_features"],
        dynamic_axes={n: {0: "batch_size"} | ({1: "num_images"} if len(names) > 1 else {}) for n in names},
        **options,
    )
    torch.full = full
    torch.onnx.export(
        Embedding(model),
        (torch.tensor([[1, 5, 7]]),),
        folder / "embed_tokens.onnx",
        input_names=["input_ids"],
        output_names=["inputs_embeds"],
        dynamic_axes={n: {0: "batch_size", 1: "sequence_length"} for n in ("input_ids", "inputs_embeds")},
        **options,
    )
    layers, heads = TEXT["num_hidden_layers"], TEXT["num_key_value_heads"]
    past = [torch.randn(1, heads, 3, 8) for _ in range(2 * layers)]
    ports = [f"{i}.{kind}" for i in range(layers) for kind in ("key", "value")]
    step = {0: "batch_size", 1: "sequence_length"}
    torch.onnx.export(
        Decoder(model),
        (torch.randn(1, 2, 32), torch.ones(1, 5, dtype=torch.int64), torch.tensor([[3, 4]]), *past),
        folder / "decoder_model_merged.onnx",
        input_names=["inputs_embeds", "attention_mask", "position_ids", *(f"past_key_values.{p}" for p in ports)],
        output_names=["logits", *(f"present.{p}" for p in ports)],
        dynamic_axes={
            "inputs_embeds": step,
            "position_ids": step,
            "logits": step,
            "attention_mask": {0: "batch_size", 1: "total_sequence_length"},
            **{f"past_key_values.{p}": {0: "batch_size", 2: "past_sequence_length"} for p in ports},
            **{f"present.{p}": {0: "batch_size", 2: "total_sequence_length"} for p in ports},
        },
        **options,
    )
    return features


def generated(model, inputs, **how):
    with torch.no_grad():
        out = model.generate(
            **inputs,
            max_new_tokens=TOKENS,
            do_sample=False,
            output_logits=True,
            return_dict_in_generate=True,
            eos_token_id=VOCABULARY,
            **how,
        )
    start = inputs["input_ids"].shape[1]
    return out.sequences[0, start:].tolist(), torch.stack(out.logits)[:, 0]


def picture():
    """A picture of smooth colours and a few edges, 50 by 37."""
    y, x = np.mgrid[0:37, 0:50] / 50.0
    rgb = np.stack([0.5 + 0.5 * np.sin(9 * x + 2 * y), x * y * 1.9, 0.5 + 0.5 * np.cos(7 * y)], -1)
    rgb[10:20, 30:40] = [0.9, 0.1, 0.2]
    return Image.fromarray((rgb * 255).clip(0, 255).astype(np.uint8))


def main():
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    image = picture()
    image.save(folder / "picture.png")
    (folder / "picture.url").write_text("data:image/png;base64," + base64.b64encode((folder / "picture.png").read_bytes()).decode())
    image.rotate(180).save(folder / "other.png")
    for make in (idefics3, llava):
        torch.manual_seed(0)
        model, processor = make()
        model = model.float().eval()
        for value in model.state_dict().values():
            if value.dim() > 1:
                value.copy_(torch.randn_like(value) / value[0].numel() ** 0.5)
        own = folder / make.__name__
        (own / "onnx").mkdir(parents=True, exist_ok=True)
        processor.save_pretrained(own)
        model.config.save_pretrained(own)
        (own / "generation_config.json").write_text(json.dumps({"bos_token_id": 1, "eos_token_id": 2}) + "\n")
        messages = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": " what is this ?"}]}]
        prompt = processor.apply_chat_template(messages, add_generation_prompt=True)
        inputs = processor(images=[image], text=prompt, return_tensors="pt")
        features = export(model, inputs, own / "onnx")
        tokens, logits = generated(model, inputs)
        words = processor(text="<s> the sea is", return_tensors="pt")
        two = processor(images=[image, image.rotate(180)], text="<s> compare <image> and <image> :", return_tensors="pt")
        same = processor(images=[image, image], text="<s> compare <image> and <image> :", return_tensors="pt")
        expected = {
            "prompt": prompt,
            "input_ids": inputs["input_ids"][0].tolist(),
            "tokens": tokens,
            "text_ids": words["input_ids"][0].tolist(),
            "text_tokens": generated(model, words)[0],
            "two_ids": two["input_ids"][0].tolist(),
            "two_tokens": generated(model, two)[0],
            "penalised_tokens": generated(model, two, repetition_penalty=1.3)[0],
            "same_tokens": generated(model, same)[0],
        }
        (own / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")
        np.save(own / "pixel_values.npy", inputs["pixel_values"].numpy())
        np.save(own / "image_features.npy", features.numpy())
        np.save(own / "logits.npy", logits.numpy())
        print(make.__name__, inputs["pixel_values"].shape, features.shape, expected)


if __name__ == "__main__":
    main()
