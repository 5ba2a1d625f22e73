"""Seeded inputs for scripts/zoo.py that resemble the data for which the models were made."""
import numpy as np
from PIL import Image, ImageDraw, ImageFont

TEXT = "The quick brown fox jumps over 13 lazy dogs. "


def photo(height, width, seed=1):
    """A photo [height, width, 3] in 0..1: smooth light, some shapes with edges, a little noise."""
    rng = np.random.default_rng(seed)
    small = Image.fromarray(rng.integers(30, 220, (5, 6, 3)).astype(np.uint8))
    picture = small.resize((width, height), Image.Resampling.BICUBIC)
    draw = ImageDraw.Draw(picture)
    for _ in range(8):
        x, y = rng.integers(0, width), rng.integers(0, height)
        w, h = rng.integers(8, max(9, width // 3)), rng.integers(8, max(9, height // 3))
        colour = tuple(int(c) for c in rng.integers(0, 256, 3))
        (draw.ellipse if rng.random() < 0.6 else draw.rectangle)([x - w, y - h, x + w, y + h], fill=colour)
    pixels = np.asarray(picture, np.float32) / 255
    return np.clip(pixels + rng.normal(0, 0.02, pixels.shape), 0, 1).astype(np.float32)


def line(height, width, text=TEXT):
    """A line of text [height, width, 3] in 0..1: dark text on light ground."""
    picture = Image.new("RGB", (width, height), (236, 233, 222))
    font = ImageFont.load_default(size=height * 0.6)
    ImageDraw.Draw(picture).text((height // 6, height // 8), text, fill=(30, 32, 48), font=font)
    return np.asarray(picture, np.float32) / 255


def page(height, width):
    """A page [height, width, 3] in 0..1: lines of text below each other."""
    rows = [line(min(32, height - y), width, TEXT[y % 19 :]) for y in range(0, height, 32)]
    return np.concatenate(rows)


def planes(pixels, mean=0.5, deviation=0.5, batch=1):
    """Pictures [batch, 3, height, width], normalised. Those after the first are darker."""
    one = ((pixels - np.float32(mean)) / np.float32(deviation)).transpose(2, 0, 1)
    return np.stack([one * np.float32(1 - 0.2 * i) for i in range(batch)]).astype(np.float32)


def speech(samples, rate=16000, seed=1):
    """Speech [samples] in -1..1: voiced syllables with formants and pauses over faint noise."""
    rng = np.random.default_rng(seed)
    t = np.arange(samples) / rate
    pitch = 120 + 25 * np.sin(2 * np.pi * 0.9 * t + seed)
    phase = 2 * np.pi * np.cumsum(pitch) / rate
    loud = np.clip(np.sin(2 * np.pi * 2.3 * t + 0.4 * seed), 0, 1) ** 0.5
    sound = np.zeros(samples)
    for k in range(1, 30):
        frequency = 130 * k
        gain = sum(np.exp(-(((frequency - f) / w) ** 2)) for f, w in [(600, 150), (1300, 200), (2600, 300)])
        sound += (gain + 0.02) * np.sin(k * phase)
    return (0.1 * loud * sound + rng.normal(0, 0.003, samples)).astype(np.float32)


def spectrogram(frames, bands, seed=1):
    """A log spectrogram [frames, bands] that is smooth along both axes."""
    rng = np.random.default_rng(seed)
    small = Image.fromarray(rng.normal(-4, 2.5, (max(2, frames // 6), max(2, bands // 6))).astype(np.float32))
    smooth = np.asarray(small.resize((bands, frames), Image.Resampling.BICUBIC), np.float32)
    return smooth + rng.normal(0, 0.3, smooth.shape).astype(np.float32)


def normal(*shape, seed=1, scale=1.0):
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(np.float32)


def ids(below, *shape, seed=1, dtype=np.int64):
    """Ids from 1 to `below` - 1, small ones more often, like those of words."""
    u = np.random.default_rng(seed).random(shape)
    return np.minimum(1 + (u * u * (below - 1)).astype(np.int64), below - 1).astype(dtype)


def zeros(*shape, dtype=np.float32):
    return np.zeros(shape, dtype)


def source(length, seed=1):
    """The bytes of a text file as i32 [length]."""
    text = (TEXT + "def f(x):\n    return [x + 1 for x in range(10)]\n") * (1 + length // 40)
    at = seed * 7
    return np.frombuffer(text.encode()[at : at + length], np.uint8).astype(np.int32)


def molecule(atoms, edges, residues):
    """The atoms of a protein along a random walk, and edges between neighbours, in the format of caustic-nmr."""
    rng = np.random.default_rng(atoms)
    place = np.cumsum(rng.normal(0, 0.8, (atoms, 3)), 0).astype(np.float32)
    a = rng.integers(0, atoms, edges)
    b = (a + rng.integers(1, 8, edges)) % atoms
    distance = np.linalg.norm(place[a] - place[b], axis=1).astype(np.float32)
    unit = rng.standard_normal((atoms, 3))
    f = lambda *shape: rng.random(shape).astype(np.float32)
    return {
        "element": rng.integers(0, 5, atoms),
        "amino_acid": rng.integers(0, 20, atoms),
        "atom_role": rng.integers(0, 13, atoms),
        "bfactor": f(atoms),
        "edge_index": np.stack([a, b]),
        "edge_dist": distance,
        "seq_sep": rng.integers(0, 33, edges),
        "same_residue": (f(edges) < 0.3).astype(np.float32),
        "target_indices": rng.integers(0, atoms, (residues, 6)),
        "target_mask": f(residues, 6) < 0.9,
        "residue_types": rng.integers(0, 20, residues),
        "residue_geometry": f(residues, 52),
        "target_environment": f(residues, 6, 15),
        "temperature_feature": f(residues, 1),
        "target_atom_rsasa": f(residues, 6),
        "pos": place,
        "node_normal": (unit / np.linalg.norm(unit, axis=1, keepdims=True)).astype(np.float32),
        "is_hbond": (f(edges) < 0.1).astype(np.float32),
        "hb_cos": f(edges),
    }
