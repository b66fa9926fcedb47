"""Writes families.json: small tokenizers in the form of each family's published tokenizer.json, and the ids that Hugging Face's library gives.

    pip install tokenizers==0.23.3 && python make.py

One byte-level vocabulary serves all byte-level families. Its merges were learnt from text that was not cut into words, so they cross
every boundary: two families that cut a text differently give different ids. Gemma 4 has a vocabulary of its own.

Where the expressions are from: the `tokenizer.json` of each family (Qwen3.5, GLM-4.5, Llama 4, MiniMax-M2, Ling, DBRX, Smaug-Llama-3,
OLMo2-SuperBPE, Command R), `tokenization_kimi.py` (Kimi K2), and llama.cpp's `src/llama-vocab.cpp` and `src/unicode.cpp` for the families whose
file was not at hand (Youtu, AFMoE, Granite Docling). AFMoE's groups of digits are a function there; the expression says the same.
"""

import itertools
import json
import pathlib
import random

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

HERE = pathlib.Path(__file__).resolve().parent
CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
LLAMA3 = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN35 = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
HIGH, LOW = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}", r"\p{Ll}\p{Lm}\p{Lo}\p{M}"
CASED = r"[^\r\n\p{{L}}\p{{N}}]?[{high}]*[{low}]+{end}|[^\r\n\p{{L}}\p{{N}}]?[{high}]+[{low}]*{end}"
SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
GPT4O = CASED.format(high=HIGH, low=LOW, end=CONTRACTIONS + "?") + r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|" + SPACES
YOUTU = CASED.format(high=HIGH, low=LOW, end=CONTRACTIONS + "?") + r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|" + SPACES
NOT_HAN = r"&&[^\p{Han}]"
KIMI = (
    r"[\p{Han}]+|"
    + CASED.format(high=HIGH + NOT_HAN, low=LOW + NOT_HAN, end=CONTRACTIONS + "?")
    + r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
    + SPACES
)
LING = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
YOUTU_SCRIPTS = (
    "[\uac00-\ud7a3\u3131-\u318e]+|[\uff01\u2026\u201c\u201d\u2018\u2019\u2014\uff1a\uff1b\uff0c\u3001-\u303f\ufe30-\ufe4f]+"
    "|[\u3105-\u312f]+|[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
)
AFMOE_DIGITS = r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))"
AFMOE_SCRIPTS = (
    "[\u4e00-\u9fff\u3400-\u4dbf\uf900-\ufaff\u3040-\u309f\u30a0-\u30ff\uff65-\uff9f\u2f00-\u2fdf\u0e40-\u0e7f\u0e80-\u0eff"
    "\u1780-\u17ff\u1000-\u109f\uaa60-\uaa7f\ua9e0-\ua9ff\uac00-\ud7af\u1100-\u11ff]+"
)
AFMOE = (
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|"""
    + SPACES
)

ALPHABET = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
GPT2 = ALPHABET | {"use_regex": True}


def split(regex):
    return {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False}


# Names in GGUF -> steps before the model, whether text is composed, whether a word that is a token needs no merges.
FAMILIES = {
    "qwen35": ([split(QWEN35), ALPHABET], True, False),
    "llama4": ([split(GPT4O), ALPHABET], False, False),
    "minimax-m2": ([split(GPT4O), ALPHABET], True, False),
    "glm4 chatglm-bpe dbrx smaug-bpe": ([split(LLAMA3), ALPHABET], False, False),
    "kimi-k2": ([split(KIMI), ALPHABET], False, False),
    "superbpe": ([split(r"\p{N}+"), split(r"(?=(\d{3})+(?!\d))"), ALPHABET], False, False),
    "granite-docling": ([GPT2], False, False),
    "bailingmoe2": ([split(LING), ALPHABET], True, False),
    "youtu": ([split(YOUTU_SCRIPTS), split(YOUTU), ALPHABET], False, True),
    "afmoe": ([split(AFMOE_DIGITS), split(AFMOE_SCRIPTS), split(AFMOE), ALPHABET], False, False),
    "command-r": ([{"type": "Digits", "individual_digits": True}, GPT2], True, False),
}

PARTS = [
    "the people", "World's", "DON'T", "I'll", "we\u2019re", "camelCaseWord", "HTTPServer", "na\u00efve", "e\u0301te\u0301", "\u01c5ural",
    "\u4f60\u597d\u4e16\u754c", "\u6771\u4eac\u30bf\u30ef\u30fc", "\u3053\u3093\u306b\u3061\u306f", "\u3005\u3007", "\ud55c\uad6d\uc5b4 \ud14d\uc2a4\ud2b8", "\u3131\u3134", "\u3105\u3106",
    "\u0645\u0631\u062d\u0628\u0627 \u0628\u0643", "\u0628\u0650\u0633\u0652\u0645\u0650", "\u05e9\u05dc\u05d5\u05dd", "\u0928\u092e\u0938\u094d\u0924\u0947", "\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35", "\u1000\u103b\u1031\u1038", "\u0e81\u0eb2\u0e99", "\u1781\u17d2\u1798",
    "\u041f\u0440\u0438\u0432\u0435\u0442, \u043c\u0438\u0440", "\u0393\u03b5\u03b9\u03ac", "12345", "1234567890", "3.14", "1,000,000", "\u00b2\u00b3", "\u2167", "\u0663\u0664\u0665\u0666", "abc123def", "v2.0.1",
    "\U0001f642", "\U0001f468\u200d\U0001f469\u200d\U0001f467", "\U0001f1eb\U0001f1f7", "\u2764\ufe0f", "!!!", "...", "\u2026", "\uff01\uff0c\u3002", "\u201cquoted\u201d", "()", "<tag/>", "https://a.b/c?d=e", "a_b-c", "#include",
    "c!\u0301?", "a\u0301\u0302b", "\u0301x", "\ufb01n", "\u212bngstr\u00f6m", "\u1e9b\u0323", "\u2f00\u2e80", "\uff76\uff80",
]
SPACES_BETWEEN = [" ", " ", "", "", "  ", "\n", "\n\n", " \n", "\r\n", "\t", "   ", "\u00a0", "\u3000", "/\n", "\n  "]
CONTROL, OWN = "<|im_end|>", "<tool_call>"


def texts():
    """The table: each part by itself, and mixtures of them."""
    fixed = ["", " ", "  ", "\n", "\n\n\n", "\r\n\r\n", "\t\t", " a", "a ", "  a  ", f"a{CONTROL}b", f"x {OWN} y", "<|im_", "\u25811\u2581", "\ufffd", "a\u0000b"]
    chosen = random.Random(7)
    mixed = ["".join(chosen.choice(PARTS) + chosen.choice(SPACES_BETWEEN) for _ in range(6)) for _ in range(40)]
    return fixed + PARTS + mixed


def corpus():
    chosen = random.Random(3)
    return ["".join(chosen.choice(PARTS) + chosen.choice(SPACES_BETWEEN) for _ in range(12)) for _ in range(400)]


def learn():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=900, initial_alphabet=alphabet, show_progress=False, max_token_length=12)
    tokenizer.train_from_iterator(corpus(), trainer)
    model = json.loads(tokenizer.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].get)
    return tokens, model["merges"]


def added(texts, first, special):
    rest = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return [{"id": first + at, "content": text, **rest, "special": text in special} for at, text in enumerate(texts)]


def file(model, normalizer, steps, tokens, decoder):
    return {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": tokens, "normalizer": normalizer,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": steps} if len(steps) > 1 else steps[0],
        "post_processor": None, "decoder": decoder, "model": model,
    }


def bpe(tokens, merges, **fields):
    plain = {
        "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
        "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
    }
    return plain | fields | {"vocab": {text: at for at, text in enumerate(tokens)}, "merges": merges}


def ids(document, table):
    tokenizer = Tokenizer.from_str(json.dumps(document))
    return [tokenizer.encode(text, add_special_tokens=False).ids for text in table]


def gemma4(table):
    """The model `gemma4`: no byte alphabet, spaces are marks, a run of line breaks is one token if there is such a token."""
    marked = [line.replace(" ", "\u2581") for text in corpus() for line in text.split("\n") if line]
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    alphabet = sorted({c for line in marked for c in line if c.isascii() or c in "\u2581\u00e9\u041f\u4f60\u597d\U0001f642"})
    trainer = trainers.BpeTrainer(vocab_size=330, initial_alphabet=alphabet, limit_alphabet=len(alphabet), show_progress=False, max_token_length=10)
    tokenizer.train_from_iterator(marked, trainer)
    model = json.loads(tokenizer.to_str())["model"]
    learnt = sorted(model["vocab"], key=model["vocab"].get)
    control = ["<pad>", "<eos>", "<bos>", "<unk>"]
    marks = ["<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>", "<|tool_response>", "<tool_response|>", '<|"|>']
    breaks = ["\n", "\n\n", "\n\n\n"]
    tokens = control + [f"<0x{byte:02X}>" for byte in range(256)] + breaks + learnt + marks + ["<turn|>", CONTROL]
    special = set(control + marks + ["<turn|>", CONTROL])
    entries = [entry for text in control + breaks + marks + ["<turn|>", CONTROL] for entry in added([text], tokens.index(text), special)]
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}
    back = {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "}
    decoder = {"type": "Sequence", "decoders": [back, {"type": "ByteFallback"}, {"type": "Fuse"}]}
    cut = {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False}
    fields = {"unk_token": "<unk>", "fuse_unk": True, "byte_fallback": True}
    document = file(bpe(tokens, model["merges"], **fields), replace, [cut], entries, decoder)
    table = table + ["x/y\n\n  end", "a\n\n\n\nb", "\n" * 8, "<0x41>", "<|channel>thought\nHm<channel|>Yes<turn|>\n", '<|tool_call>call:f{a:<|"|>b<|"|>}<tool_call|>']
    kinds = {text: 3 for text in control + ["<turn|>", CONTROL]} | {text: 4 for text in marks} | {"<unk>": 2}
    types = [6 if text.startswith("<0x") and len(text) == 6 else kinds.get(text, 1) for text in tokens]
    return {"texts": table, "file": document, "types": types, "ids": ids(document, table)}


def main():
    table = texts()
    tokens, merges = learn()
    entries = added([CONTROL, OWN], len(tokens), {CONTROL})
    decoder = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
    families = []
    for names, (steps, composes, ignores) in FAMILIES.items():
        normalizer = {"type": "NFC"} if composes else None
        document = file(bpe(tokens, merges, ignore_merges=ignores), normalizer, steps, entries, decoder)
        families.append({"pre": names.split(), "normalizer": normalizer, "pre_tokenizer": document["pre_tokenizer"], "ignore_merges": ignores, "ids": ids(document, table)})
    for one, other in itertools.combinations(families, 2):
        assert one["ids"] != other["ids"], f"no text of the table distinguishes {one['pre']} from {other['pre']}"
    document = {"tokens": tokens, "merges": [" ".join(pair) for pair in merges], "added": entries, "texts": table, "families": families, "gemma4": gemma4(table)}
    lines = json.dumps(document, ensure_ascii=True, separators=(",", ":")).replace('{"pre"', '\n{"pre"').replace('"gemma4":', '\n"gemma4":')
    (HERE / "families.json").write_text(lines + "\n")
    print(len(lines), "bytes,", len(table), "texts,", len(families), "families")


main()
