"""Makes stories.onnx and its tokenizer.json: a language model of 166,000 parameters that tells very short stories.

    pip install torch tokenizers onnx onnxruntime numpy
    python stories.py

The text is made up by the rules below, so that there is no other licence than ours. A story has a hero, a friend, a thing and a place, which have
to stay the same to its end: that is what the model learns. It is a decoder as others are (RMS norms, rotary positions, SwiGLU, a cache of keys and
values), 3 layers of 64 columns, with 384 tokens. Two cores train it in about ten minutes. Weights are stored as f16."""

import argparse
import json
import math
import random
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[2] / "scripts"))

HEROES = {
    "girl": ["Lily", "Mia", "Anna", "Ella", "Nora"],
    "boy": ["Tom", "Ben", "Max", "Leo", "Sam"],
}
ANIMALS = ["fox", "bear", "mouse", "rabbit", "owl", "duck", "frog", "hedgehog", "squirrel", "cat"]
ADJECTIVES = ["little", "small", "brave", "shy", "curious", "clever", "sleepy", "kind"]
COLOURS = ["red", "blue", "green", "yellow", "white", "golden"]
THINGS = ["ball", "boat", "kite", "hat", "key", "bell", "lamp", "shell", "stone", "book", "drum", "scarf"]
PLACES = {
    "in the forest": ["under a big tree", "behind a bush", "between the roots"],
    "by the sea": ["in the sand", "under an old boat", "behind a rock"],
    "on a farm": ["in the hay", "behind the barn", "next to the well"],
    "near a river": ["in the tall grass", "under the bridge", "on a wet stone"],
    "in a small village": ["on the wall", "behind the school", "under a bench"],
    "on a hill": ["in the flowers", "under a stone", "next to the path"],
}
WEATHER = ["sunny", "windy", "rainy", "cold", "warm", "foggy"]
FOOD = ["soup", "bread", "berries", "cake", "apples", "honey", "pancakes"]


def story(r):
    sex = r.choice(["girl", "boy"])
    name = r.choice(HEROES[sex])
    animal = r.random() < 0.6
    kind = r.choice(ANIMALS) if animal else sex
    he, him, his = ("she", "her", "her") if sex == "girl" else ("he", "him", "his")
    He = he.capitalize()
    friend_sex = r.choice(["girl", "boy"])
    friend = r.choice([n for n in HEROES[friend_sex] if n != name])
    friend_kind = r.choice([a for a in ANIMALS if a != kind])
    fhe, fhim = ("she", "her") if friend_sex == "girl" else ("he", "him")
    adjective, colour, thing = r.choice(ADJECTIVES), r.choice(COLOURS), r.choice(THINGS)
    place = r.choice(list(PLACES))
    spot = r.choice(PLACES[place])
    weather, food = r.choice(WEATHER), r.choice(FOOD)
    it = f"{colour} {thing}"
    s = []
    s.append(r.choice([
        f"Once upon a time there was a {adjective} {kind} named {name}. {He} lived {place}.",
        f"{name} was a {adjective} {kind} who lived {place}.",
        f"There once was a {adjective} {kind}. {He} lived {place}, and {his} name was {name}.",
        f"A {adjective} {kind} named {name} lived {place}.",
    ]))
    if r.random() < 0.5:
        s.append(r.choice([
            f"{name} loved {food}.",
            f"Every day {he} went for a long walk.",
            f"{He} had a friend, a {friend_kind} named {friend}.",
            f"{He} liked to play and to sing.",
        ]))
    plot = r.choice(["lost", "found", "stuck", "share"])
    s.append(r.choice([f"One {weather} day", f"One {weather} morning", f"On a {weather} evening"]))
    if plot == "lost":
        s[-1] += r.choice([f" {name} lost {his} {it}.", f" {he} could not find {his} {it}."])
        s.append(r.choice([f"{He} was very sad.", f"{name} began to cry.", f"{He} looked everywhere, but it was gone."]))
        s.append(r.choice([
            f"\"Have you seen my {it}?\" {he} asked a {friend_kind} named {friend}.",
            f"\"I want my {thing} back,\" {he} said to {friend} the {friend_kind}.",
        ]))
        s.append(r.choice([
            f"\"Let us look together,\" said {friend}.",
            f"\"Do not worry,\" said {friend}. \"I will help you.\"",
            f"{friend} wanted to help {him}.",
        ]))
        s.append(r.choice([
            f"They looked and looked. At last {friend} saw the {thing} {spot}!",
            f"They found the {it} {spot}.",
            f"And there it was, {spot}: the {it}!",
        ]))
    elif plot == "found":
        s[-1] += r.choice([f" {he} found a {it} {spot}.", f" {name} saw a {it} {spot}."])
        s.append(r.choice([f"\"What a nice {thing}!\" {he} said.", f"\"Whose {thing} is this?\" {he} asked.", f"{He} had never seen such a {thing}."]))
        s.append(r.choice([
            f"Then {he} met a {friend_kind} named {friend}, who was sad.",
            f"A {friend_kind} named {friend} came along. {fhe.capitalize()} was looking for something.",
        ]))
        s.append(r.choice([
            f"\"That is my {thing},\" said {friend}.",
            f"\"I lost my {it},\" {fhe} said.",
        ]))
        s.append(r.choice([
            f"{name} gave {fhim} the {thing} at once.",
            f"\"Here it is,\" said {name}, and gave {fhim} the {it}.",
        ]))
    elif plot == "stuck":
        s[-1] += r.choice([f" {name} heard somebody cry.", f" {he} heard a strange sound."])
        s.append(r.choice([f"It was {friend} the {friend_kind}.", f"It was a {friend_kind} named {friend}."]))
        s.append(r.choice([
            f"\"Help! My {it} is stuck {spot},\" said {friend}.",
            f"\"I cannot reach my {it},\" said {friend}. It was {spot}.",
        ]))
        s.append(r.choice([
            f"{name} was small, but {he} pulled and pulled.",
            f"{name} was afraid, but {he} wanted to help {fhim}.",
            f"\"I know what to do,\" said {name}.",
        ]))
        s.append(r.choice([f"Soon {friend} had the {thing} back.", f"And out came the {it}!"]))
    else:
        s[-1] += r.choice([f" {name} made {food}.", f" {he} had a lot of {food}."])
        s.append(r.choice([
            f"A hungry {friend_kind} named {friend} came to {his} door.",
            f"{friend} the {friend_kind} had nothing to eat.",
        ]))
        s.append(r.choice([f"\"May I have some {food}?\" {fhe} asked.", f"\"I am so hungry,\" {fhe} said."]))
        s.append(r.choice([f"{name} smiled and shared {his} {food} with {fhim}.", f"\"Of course,\" said {name}, and they ate the {food} together."]))
        s.append(r.choice([f"{friend} gave {him} a {it} to say thank you.", f"The next day {friend} brought {him} a {it}."]))
    s.append(r.choice([
        f"{name} and {friend} were very happy.",
        f"\"Thank you, {friend if plot == 'lost' else name}!\"" + (f" said {name}." if plot == "lost" else f" said {friend}."),
        f"From that day on they were best friends.",
        f"Then they went home and ate {food}.",
        f"They played with the {thing} all day.",
    ]))
    if r.random() < 0.4:
        s.append(r.choice([f"And that night {name} slept well.", "It was a good day.", "And they were friends for ever."]))
    return " ".join(s)


def corpus(stories, seed):
    r = random.Random(seed)
    return [story(r) for _ in range(stories)]


# Width, layers, heads, columns of a head, columns of the feed-forward, tokens.
D, LAYERS, HEADS, HD, FF, VOCAB = 64, 3, 4, 16, 160, 384
BASE, END, CONTEXT = 1000.0, "<|end|>", 192


def tokenizer(texts):
    import tokenizers
    from tokenizers import decoders, models, pre_tokenizers, trainers

    t = tokenizers.Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    t.decoder = decoders.ByteLevel()
    # All 256 bytes would be two thirds of the tokens: what is no letter of these texts is left out, and ignored in prompts.
    t.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=VOCAB, special_tokens=[END], show_progress=False))
    return t


def network():
    import torch
    from torch import nn
    from torch.nn import functional as F

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm1, self.norm2 = nn.Parameter(torch.ones(D)), nn.Parameter(torch.ones(D))
            self.qkv, self.out = nn.Linear(D, 3 * HEADS * HD, bias=False), nn.Linear(HEADS * HD, D, bias=False)
            self.up, self.down = nn.Linear(D, 2 * FF, bias=False), nn.Linear(FF, D, bias=False)

        def forward(self, x, cos, sin):
            b, t, _ = x.shape
            q, k, v = self.qkv(norm(x, self.norm1)).view(b, t, 3, HEADS, HD).permute(2, 0, 3, 1, 4)
            turned = lambda y: y * cos + torch.cat([-y[..., HD // 2 :], y[..., : HD // 2]], -1) * sin
            y = F.scaled_dot_product_attention(turned(q), turned(k), v, is_causal=True)
            x = x + self.out(y.transpose(1, 2).reshape(b, t, HEADS * HD))
            gate, up = self.up(norm(x, self.norm2)).chunk(2, -1)
            return x + self.down(F.silu(gate) * up)

    def norm(x, gain):
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * gain

    class Decoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Parameter(torch.randn(VOCAB, D) * D**-0.5)
            self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
            self.norm = nn.Parameter(torch.ones(D))

        def forward(self, ids):
            angles = torch.arange(ids.shape[1])[:, None] * frequencies()
            angles = torch.cat([angles, angles], -1)
            x = self.embedding[ids]
            for block in self.blocks:
                x = block(x, angles.cos(), angles.sin())
            return norm(x, self.norm) @ self.embedding.T

    def frequencies():
        return BASE ** (-torch.arange(HD // 2) / (HD // 2))

    return Decoder()


def train(ids, steps, batch, rate):
    import torch
    from torch.nn import functional as F

    torch.manual_seed(1)
    model = network()
    data = torch.tensor(ids)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, betas=(0.9, 0.98), weight_decay=0.01)
    for step in range(steps):
        for group in optimizer.param_groups:
            warm, left = min(1, (step + 1) / 100), 0.5 + 0.5 * math.cos(math.pi * step / steps)
            group["lr"] = rate * warm * (0.02 + 0.98 * left)
        starts = torch.randint(len(data) - CONTEXT - 1, (batch,))
        rows = torch.stack([data[s : s + CONTEXT + 1] for s in starts])
        loss = F.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 100 == 99:
            print(f"step {step + 1}: loss {loss.item():.4f}", flush=True)
    return {k: v.detach().numpy() for k, v in model.state_dict().items()}


def export(weights, path):
    import numpy as np
    import onnx
    from onnx_expressions import Graph, Value, op
    from onnx_models import FLOAT, INT64

    caches = [f"{i}.{which}" for i in range(LAYERS) for which in ["key", "value"]]
    ids = ("input_ids", INT64, [1, "seq"])
    past = [(f"past_key_values.{c}", FLOAT, [1, HEADS, "past", HD]) for c in caches]
    with Graph("stories", [ids, ("position_ids", INT64, [1, "seq"]), *past]) as g:
        tokens, places, *pasts = g.values

        def weight(name, transposed=False):
            w = weights[name].T if transposed else weights[name]
            return op("Cast", w.astype(np.float16), to=FLOAT)

        def norm(x, gain):
            scale = op("Sqrt", op("ReduceMean", x * x, [-1]) + 1e-6)
            return x / scale * weights[gain].astype(np.float32)

        def heads(x):
            return op("Transpose", op("Reshape", x, [1, -1, HEADS, HD]), perm=[0, 2, 1, 3])

        def turned(x):
            left, right = op("Split", x, outputs=2, axis=-1, num_outputs=2)
            return x * cos + op("Concat", -right, left, axis=-1) * sin

        frequencies = (BASE ** (-np.arange(HD // 2) / (HD // 2))).astype(np.float32)
        half = op("Unsqueeze", op("Cast", places, to=FLOAT), [2]) * frequencies
        angles = op("Unsqueeze", op("Concat", half, half, axis=-1), [1])
        cos, sin = op("Cos", angles), op("Sin", angles)
        before = op("Squeeze", op("Shape", pasts[0], start=2, end=3), [0])
        total = before + op("Squeeze", op("Shape", tokens, start=1, end=2), [0])
        seen = op("LessOrEqual", op("Range", 0, total, 1), op("Unsqueeze", op("Range", before, total, 1), [1]))
        embedding = weight("embedding")
        x = op("Gather", embedding, tokens)
        presents = []
        for i in range(LAYERS):
            at = f"blocks.{i}"
            h = norm(x, f"{at}.norm1")
            q, k, v = (heads(y) for y in op("Split", op("MatMul", h, weight(f"{at}.qkv.weight", True)), outputs=3, axis=-1, num_outputs=3))
            keys = op("Concat", pasts[2 * i], turned(k), axis=2)
            values = op("Concat", pasts[2 * i + 1], v, axis=2)
            presents += [keys, values]
            scores = op("MatMul", turned(q), op("Transpose", keys, perm=[0, 1, 3, 2])) * HD**-0.5
            shares = op("Softmax", op("Where", seen, scores, float(np.finfo(np.float32).min)), axis=-1)
            y = op("Reshape", op("Transpose", op("MatMul", shares, values), perm=[0, 2, 1, 3]), [1, -1, HEADS * HD])
            x = x + op("MatMul", y, weight(f"{at}.out.weight", True))
            gate, up = op("Split", op("MatMul", norm(x, f"{at}.norm2"), weight(f"{at}.up.weight", True)), outputs=2, axis=-1, num_outputs=2)
            x = x + op("MatMul", gate * op("Sigmoid", gate) * up, weight(f"{at}.down.weight", True))
        logits = op("MatMul", norm(x, "norm"), op("Transpose", embedding, perm=[1, 0]))
        outputs = [("logits", FLOAT, [1, "seq", VOCAB], logits)]
        outputs += [(f"present.{c}", FLOAT, [1, HEADS, "past + seq", HD], v) for c, v in zip(caches, presents)]
        onnx.save(g.model(outputs), path)


def sample(path, t, prompt, n=150):
    """Greedy text from ONNX Runtime, to look at."""
    import numpy as np
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    empty = np.zeros((1, HEADS, 0, HD), np.float32)
    cache = {i.name: empty for i in session.get_inputs()[2:]}
    ids, feed = t.encode(prompt).ids, None
    feed, past = ids, 0
    rng = np.random.default_rng(2)
    for _ in range(n):
        given = {"input_ids": np.array([feed]), "position_ids": np.arange(past, past + len(feed))[None], **cache}
        logits, *present = session.run(None, given)
        past += len(feed)
        cache = dict(zip(cache, present))
        z = logits[0, -1] / 0.7
        p = np.exp(z - z.max())
        token = int(rng.choice(len(p), p=p / p.sum()))
        if token == t.token_to_id(END):
            break
        ids.append(token)
        feed = [token]
    return t.decode(ids)


if __name__ == "__main__":
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--stories", type=int, default=60_000)
    p.add_argument("--steps", type=int, default=4000)
    p.add_argument("--batch", type=int, default=16)
    p.add_argument("--rate", type=float, default=3e-3)
    p.add_argument("--show", action="store_true", help="prints some of the text and ends")
    p.add_argument("--out", type=Path, default=HERE / "stories")
    a = p.parse_args()
    texts = corpus(a.stories, 7)
    if a.show:
        print("\n\n".join(texts[:8]))
        sys.exit()
    a.out.mkdir(parents=True, exist_ok=True)
    t = tokenizer(texts[:5000])
    t.save(str(a.out / "tokenizer.json"), pretty=False)
    (a.out / "generation_config.json").write_text(json.dumps({"eos_token_id": t.token_to_id(END), "do_sample": True, "temperature": 0.7}) + "\n")
    ids = [i for e in t.encode_batch([x + END for x in texts]) for i in e.ids]
    print(f"{len(ids)} tokens, {len(ids) / len(texts):.0f} a story")
    export(train(ids, a.steps, a.batch, a.rate), a.out / "model.onnx")
    for begin in ["Once upon a time", "One rainy day", "Tom was a"]:
        print("-", sample(a.out / "model.onnx", t, begin))
