"""Makes the encoders of random weights that are not among the others' oracles, and transformers' answers for them.

Run with transformers 5.23, torch 2.9 and numpy: `python make_encoders.py`, in this folder. Answers are computed in float32 from the
stored bfloat16 weights, each sequence alone, with eager attention.
"""

import json
import pathlib
import shutil

import tokenizers
import torch
from transformers import (
    BertConfig, BertForSequenceClassification, ModernBertConfig, ModernBertForSequenceClassification, ModernBertModel,
    RobertaConfig, RobertaModel, XLMRobertaConfig, XLMRobertaForSequenceClassification,
)

SIZES = dict(vocab_size=256, hidden_size=64, num_attention_heads=4, intermediate_size=96, attn_implementation="eager")


def randomize(model, seed):
    random = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            noise = torch.randn(weight.shape, generator=random)
            if "norm" in name.lower() and name.endswith("weight"):
                weight.copy_(1 + 0.1 * noise)
            elif weight.dim() == 1:
                weight.copy_(0.1 * noise)
            else:
                weight.copy_(noise * (0.5 if "embeddings" in name else 1.2 / weight.shape[1] ** 0.5))


def old_spelling(config):
    """The keys that were used on the hub before transformers 5."""
    config = dict(config)
    config["torch_dtype"] = config.pop("dtype")
    ropes = config.pop("rope_parameters", None)
    if ropes:
        config["global_rope_theta"] = ropes["full_attention"]["rope_theta"]
        config["local_rope_theta"] = ropes["sliding_attention"]["rope_theta"]
        config.pop("layer_types")
    return config


def save(name, kind, config, seed):
    folder = pathlib.Path(name)
    shutil.rmtree(folder, ignore_errors=True)
    model = kind(config).eval()
    randomize(model, seed)
    model.to(torch.bfloat16).save_pretrained(folder)
    new = json.loads((folder / "config.json").read_text())
    (folder / "config.v5.json").write_text(json.dumps(new, indent=1))
    (folder / "config.json").write_text(json.dumps(old_spelling(new), indent=1))
    shutil.copy(pathlib.Path("bert-embed/tokenizer.json"), folder / "tokenizer.json")
    (folder / "tokenizer_config.json").write_text(json.dumps({"pad_token": "[PAD]"}))
    # Of the tokenizer's vocabulary the first 256 ids have rows; these checkpoints are asked by ids.
    return kind.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()


def digits(values):
    return [float(f"{value:.6g}") for value in values]


def embed(name, kind, config, seed, sequences):
    model, out = save(name, kind, config, seed), []
    for ids in sequences:
        with torch.no_grad():
            states = model(input_ids=torch.tensor([ids]), attention_mask=torch.ones(1, len(ids))).last_hidden_state[0]
        pooled = {"mean": states.mean(0), "cls": states[0], "last": states[-1]}
        answers = {key: digits(value) for key, value in pooled.items()}
        answers |= {key + "_l2": digits(value / value.norm()) for key, value in pooled.items()}
        out.append(answers)
    pathlib.Path(name, "expected.json").write_text(json.dumps({"ids": sequences, "out": out}))


def rank(name, kind, config, seed, pairs, typed):
    model, logits = save(name, kind, config, seed), []
    for ids, second in pairs:
        types = [int(typed and at >= second) for at in range(len(ids))]
        given = {"token_type_ids": torch.tensor([types])} if typed else {}
        with torch.no_grad():
            answer = model(input_ids=torch.tensor([ids]), attention_mask=torch.ones(1, len(ids)), **given)
        logits += digits(answer.logits[0].tolist())
    pathlib.Path(name, "expected.json").write_text(json.dumps({"pairs": pairs, "logits": logits}))


QUERY = "Which server answers every request?"
DOCUMENTS = ["The quick server answers every request.", "Hello", "été 日本 🙂", "Licensed under the Apache License, Version 2.0"]


def texts_as_pairs():
    """The query with each document, as the tokenizer's library has it: ids, and where the second text begins."""
    tokenizer = tokenizers.Tokenizer.from_file("bert-embed/tokenizer.json")
    pairs = [tokenizer.encode(QUERY, document) for document in DOCUMENTS]
    return [(pair.ids, pair.type_ids.index(1)) for pair in pairs]


def sequences(seed, lengths, least=2):
    random = torch.Generator().manual_seed(seed)
    return [torch.randint(least, 256, (length,), generator=random).tolist() for length in lengths]


def main():
    roberta = dict(SIZES, num_hidden_layers=2, max_position_embeddings=130, pad_token_id=1, type_vocab_size=1, layer_norm_eps=1e-5)
    texts = sequences(1, [3, 20, 128])
    # Padding within a text does not count as a position.
    texts[1][5] = texts[1][6] = 1
    embed("roberta-embed", RobertaModel, RobertaConfig(hidden_act="gelu_new", **roberta), 11, texts)

    modern = dict(SIZES, num_hidden_layers=5, max_position_embeddings=512, local_attention=24, pad_token_id=0, bos_token_id=1, eos_token_id=2,
                  cls_token_id=1, sep_token_id=2, global_attn_every_n_layers=3)
    embed("modernbert-embed", ModernBertModel, ModernBertConfig(**modern), 12, sequences(2, [4, 40, 400]))

    pairs = [(ids, second) for ids, second in zip(sequences(3, [7, 21, 100, 2]), [3, 20, 40, 1])]
    # With the tokenizer's whole vocabulary, for texts.
    bert = dict(SIZES, vocab_size=1024, num_hidden_layers=2, max_position_embeddings=128, num_labels=1)
    rank("bert-rank", BertForSequenceClassification, BertConfig(**bert), 13, [*pairs, *texts_as_pairs()], True)
    rank("xlmr-rank", XLMRobertaForSequenceClassification, XLMRobertaConfig(num_labels=1, **roberta), 14, pairs, False)
    odd = dict(modern, norm_bias=True, attention_bias=True, mlp_bias=True, classifier_bias=True, classifier_pooling="mean", num_labels=1)
    rank("modernbert-rank", ModernBertForSequenceClassification, ModernBertConfig(**odd), 15, pairs, False)


main()
