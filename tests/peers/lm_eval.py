"""Log-likelihoods by somebody else's harness: lm-eval asks Headrace's `/v1/completions` (`local-completions`) and transformers (`hf`) the same questions
over the same checkpoint, and both must say the same.

    pip install "lm-eval[api]" torch transformers
    cargo build --release
    python tests/peers/lm_eval.py [--model crates/model/tests/data/qwen3] [--program target/release/headrace]

Two local tasks, so that nothing is downloaded: answers to choose from, and texts to be scored as a whole. Each question's log-likelihoods are
compared, and whether the answer is the greedy one. Prompts go once as token ids and once as text; a text that is scored as a whole begins with a
control token, which `parse_special` has read as such.
"""

import argparse
import json
import os
import random
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_DATASETS_OFFLINE", "1")

# Not this file, which has the harness' own name.
HERE = Path(__file__).resolve().parent
sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != HERE]

TOLERANCE = 2e-3
"""How far two sums of log-probabilities may be apart; the checkpoints' own oracles are within 1e-4 a token."""
WORDS = "the prompt of a model is read once and its answer is written token by token while others wait their turn in the batch".split()
CHOICE = """
task: peers_choice
dataset_path: json
dataset_kwargs: {{data_files: {{test: {path}}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{question}}}}"
doc_to_target: "{{{{answer}}}}"
doc_to_choice: "{{{{choices}}}}"
target_delimiter: " "
metric_list: [{{metric: acc}}, {{metric: acc_norm}}]
"""
ROLLING = """
task: peers_rolling
dataset_path: json
dataset_kwargs: {{data_files: {{test: {path}}}}}
test_split: test
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{{{text}}}}"
metric_list: [{{metric: word_perplexity}}, {{metric: byte_perplexity}}]
"""


def tasks(directory, seed=7):
    """The two tasks, with their questions, in a folder."""
    chance = random.Random(seed)
    said = lambda least, most: " ".join(chance.choices(WORDS, k=chance.randint(least, most)))
    rows = {
        "choice": [{"question": said(4, 20), "choices": [said(1, 6) for _ in range(4)], "answer": chance.randrange(4)} for _ in range(12)],
        "rolling": [{"text": said(10, 60)} for _ in range(6)],
    }
    for (name, lines), task in zip(rows.items(), (CHOICE, ROLLING)):
        path = Path(directory) / f"{name}.jsonl"
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        (Path(directory) / f"{name}.yaml").write_text(task.format(path=path))
    return ["peers_choice", "peers_rolling"]


def by_text(arguments):
    """The harness' client, which says that its prompts spell control tokens."""
    from lm_eval.models.openai_completions import LocalCompletionsAPI

    class Spelling(LocalCompletionsAPI):
        def _create_payload(self, *args, **options):
            return {**super()._create_payload(*args, **options), "parse_special": True}

    return Spelling(**arguments)


def asked(model, arguments, directory, names):
    """What the harness finds: its results, and of each question what the model said."""
    import lm_eval
    from lm_eval.tasks import TaskManager

    manager = TaskManager(include_path=str(directory), include_defaults=False)
    found = lm_eval.simple_evaluate(model=model, model_args=arguments, tasks=names, task_manager=manager, log_samples=True, bootstrap_iters=0)
    samples = {name: sorted(rows, key=lambda row: row["doc_id"]) for name, rows in found["samples"].items()}
    return found["results"], samples


def compare(ours, theirs):
    """The greatest difference of any log-likelihood, and how many there were."""
    most, count = 0.0, 0
    for name, rows in theirs.items():
        assert len(rows) == len(ours[name]) > 0, name
        for here, there in zip(ours[name], rows):
            for mine, other in zip(here["filtered_resps"], there["filtered_resps"], strict=True):
                mine, other = (said if isinstance(said, (list, tuple)) else [said] for said in (mine, other))
                most, count = max(most, abs(float(mine[0]) - float(other[0]))), count + 1
                # Whether the answer is the greedy one, where that is told.
                assert [str(said) for said in mine[1:]] == [str(said) for said in other[1:]], (name, here["doc_id"])
    return most, count


def main():
    root = HERE.parents[1]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=root / "crates/model/tests/data/qwen3")
    parser.add_argument("--program", type=Path, default=root / "target/release/headrace")
    options = parser.parse_args()
    sys.path.append(str(HERE))
    from peer import Headrace

    checkpoint = options.model.resolve()
    with tempfile.TemporaryDirectory() as directory:
        names = tasks(directory)
        model = f'[[models]]\nname = "m"\npath = "{checkpoint}"\nparse_special = "all"\n[[prices]]\nmodel = "m"\ninput = "0.10"\noutput = "0.40"\n'
        headrace = Headrace(options.program, directory, model)
        try:
            os.environ["OPENAI_API_KEY"] = headrace.key
            arguments = {
                "model": "m",
                "base_url": f"{headrace.url}/v1/completions",
                "tokenizer": str(checkpoint),
                "tokenizer_backend": "huggingface",
                "max_length": 255,
                "num_concurrent": 4,
                "batch_size": 1,
            }
            results = {}
            results["token ids"] = asked("local-completions", {**arguments, "tokenized_requests": True}, directory, names)
            results["text"] = asked(by_text({**arguments, "tokenized_requests": False}), None, directory, names)
        finally:
            headrace.stop()
        theirs = asked("hf", {"pretrained": str(checkpoint), "dtype": "float32", "device": "cpu", "max_length": 255}, directory, names)
    failed = False
    for way, ours in results.items():
        most, count = compare(ours[1], theirs[1])
        metrics = {name: {key: value for key, value in row.items() if isinstance(value, float)} for name, row in ours[0].items()}
        failed |= most > TOLERANCE
        print(f"{way:9}  {count} log-likelihoods, at most {most:.2e} apart  {metrics}")
    sys.exit("they differ" if failed else 0)


if __name__ == "__main__":
    main()
