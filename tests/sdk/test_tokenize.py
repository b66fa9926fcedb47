"""`/tokenize` and `/detokenize` as vLLM has them, beside the tokenizer that other people read the same file with."""

import random

import httpx
import pytest
from conftest import CASES, KEY, MODEL, ROOT, say
from tokenizers import Tokenizer

FILE = ROOT / "demo-model" / "checkpoint" / "tokenizer.json"
TEXTS = [
    "Hello, world!",
    "",
    " ",
    "\n\n  indented\r\n\ttabbed",
    "naïve Ünïcödé ﬁ ligature e\u0301",
    "漢字かな混じり 🦊👩‍👩‍👧 \u200d\u2028",
    "1234567890 0.5e-7",
    "it's we'll THEY'RE",
    "def f(x):\n    return x ** 2  # done",
    "<|im_start|>user\nhi<|im_end|>",
    "\x00\x7f\ufffd",
]


@pytest.fixture(scope="module")
def theirs():
    tokenizer = Tokenizer.from_file(str(FILE))
    # What a caller writes is text: it never becomes a control token.
    tokenizer.encode_special_tokens = True
    return tokenizer


@pytest.fixture(scope="module")
def ours(relayed):
    server = relayed.far

    def post(path, expect=200, key=KEY, **body):
        headers = {"authorization": f"Bearer {key}"} if key else {}
        answer = httpx.post(server.url + path, json=body, headers=headers, timeout=60)
        assert answer.status_code == expect, f"{answer.status_code}: {answer.text[:500]}"
        return answer.json()

    return post


def seeded_texts():
    chance = random.Random(12)
    ranges = [(32, 127), (0xA0, 0x17F), (0x370, 0x3FF), (0x4E00, 0x4FFF), (0x1F600, 0x1F64F), (9, 14)]
    for _ in range(60):
        spans = [chance.choice(ranges) for _ in range(chance.randrange(1, 40))]
        yield "".join(chr(chance.randrange(*span)) for span in spans)


@pytest.mark.parametrize("special", [True, False])
def test_texts_become_the_tokens_that_others_make_of_them(ours, theirs, special):
    for text in [*TEXTS, *seeded_texts()]:
        told = ours("/tokenize", model=MODEL, prompt=text, add_special_tokens=special, return_token_strs=True)
        expected = theirs.encode(text, add_special_tokens=special)
        assert set(told) == {"count", "max_model_len", "tokens", "token_strs"}
        assert told["tokens"] == expected.ids, repr(text)
        assert told["token_strs"] == expected.tokens, repr(text)
        assert told["count"] == len(expected.ids)
    assert ours("/tokenize", model=MODEL, prompt="x")["token_strs"] is None


def test_markup_in_a_text_stays_text(ours, theirs):
    # Added tokens that are not special, too: a text that spells one is none, and theirs makes one of it.
    text = "a <tool_call> b"
    tokens = ours("/tokenize", model=MODEL, prompt=text)["tokens"]
    mark = theirs.token_to_id("<tool_call>")
    assert mark in theirs.encode(text).ids and mark not in tokens
    assert theirs.decode(tokens, skip_special_tokens=False) == text


def test_the_window_is_the_one_in_the_list_of_models(ours, relayed):
    (card,) = [model for model in relayed.far.get("/v1/models")["data"] if model["id"] == MODEL]
    assert ours("/tokenize", model=MODEL, prompt="x")["max_model_len"] == card["max_model_len"]


def test_tokens_become_the_text_that_others_make_of_them(ours, theirs):
    chance = random.Random(7)
    size = theirs.get_vocab_size()
    rows = [theirs.encode(text).ids for text in TEXTS]
    # Tokens that end within a character, and control tokens.
    rows += [[chance.randrange(size) for _ in range(chance.randrange(1, 30))] for _ in range(60)]
    for ids in rows:
        if ids:
            told = ours("/detokenize", model=MODEL, tokens=ids)
            assert told == {"prompt": theirs.decode(ids, skip_special_tokens=False)}, ids
    assert ours("/detokenize", model=MODEL, tokens=[]) == {"prompt": ""}


@pytest.mark.parametrize("case", CASES, ids=[str(at) for at in range(len(CASES))])
def test_a_conversation_becomes_what_transformers_rendered(ours, case):
    more = {"tools": case["tools"]} if case["tools"] else {}
    told = ours("/tokenize", model=MODEL, messages=case["messages"], **more)
    assert told["tokens"] == case["ids"]
    assert ours("/detokenize", model=MODEL, tokens=told["tokens"])["prompt"] == case["rendered"]


def test_a_conversation_may_end_without_an_answers_beginning_or_within_one(ours):
    asked = say("What is prefill?")
    whole = ours("/tokenize", model=MODEL, messages=asked)["tokens"]
    bare = ours("/tokenize", model=MODEL, messages=asked, add_generation_prompt=False, add_special_tokens=False)["tokens"]
    assert whole[: len(bare)] == bare and len(bare) < len(whole)
    begun = [*asked, {"role": "assistant", "content": "It is"}]
    open_ended = ours("/tokenize", model=MODEL, messages=begun, add_generation_prompt=False, continue_final_message=True)
    assert open_ended["tokens"][: len(whole)] == whole
    assert ours("/detokenize", model=MODEL, tokens=open_ended["tokens"])["prompt"].endswith("It is")


BAD = [
    ("/tokenize", {}, 400, "prompt"),
    ("/tokenize", {"prompt": None}, 400, "prompt"),
    ("/tokenize", {"prompt": 7}, 400, "prompt"),
    ("/tokenize", {"prompt": ["a"]}, 400, "prompt"),
    ("/tokenize", {"prompt": "a", "messages": say("a")}, 400, "prompt"),
    ("/tokenize", {"messages": []}, 400, "messages"),
    ("/tokenize", {"messages": [{"role": "wizard", "content": "a"}]}, 400, "messages[0].role"),
    ("/tokenize", {"messages": say("a"), "add_special_tokens": True}, 400, "add_special_tokens"),
    ("/tokenize", {"messages": say("a"), "continue_final_message": True}, 400, "continue_final_message"),
    ("/tokenize", {"prompt": "a", "add_special_tokens": "yes"}, 400, "add_special_tokens"),
    ("/tokenize", {"prompt": "a", "return_token_strs": 1}, 400, "return_token_strs"),
    ("/tokenize", {"prompt": "a", "chat_template": "{{ x }}"}, 400, "chat_template"),
    ("/tokenize", {"prompt": "a", "stream": True}, 400, "stream"),
    ("/tokenize", {"prompt": "word " * 50_000}, 400, "prompt"),
    ("/tokenize", {"prompt": "a", "model": "no-such"}, 404, "model"),
    ("/detokenize", {}, 400, "tokens"),
    ("/detokenize", {"tokens": "1,2"}, 400, "tokens"),
    ("/detokenize", {"tokens": [-1]}, 400, "tokens[0]"),
    ("/detokenize", {"tokens": [1.5]}, 400, "tokens[0]"),
    ("/detokenize", {"tokens": [1, "2"]}, 400, "tokens[1]"),
    ("/detokenize", {"tokens": [2**32]}, 400, "tokens[0]"),
    ("/detokenize", {"tokens": [10**9]}, 400, "tokens"),
    ("/detokenize", {"tokens": [1], "model": "no-such"}, 404, "model"),
]


@pytest.mark.parametrize(("path", "body", "status", "param"), BAD, ids=[f"{row[0]} {row[1]}"[:50] for row in BAD])
def test_bad_input_is_refused_by_its_name(ours, path, body, status, param):
    error = ours(path, expect=status, **{"model": MODEL, **body})["error"]
    assert error["param"] == param, error
    assert error["message"] and error["code"]


@pytest.mark.parametrize("path", ["/tokenize", "/detokenize"])
def test_no_key_no_model_no_json_and_a_server_that_has_no_words(relayed, path):
    body = {"prompt": "a"} if path == "/tokenize" else {"tokens": [1]}
    known = {"authorization": f"Bearer {KEY}"}
    far = relayed.far.url + path
    assert httpx.post(far, json={"model": MODEL, **body}).status_code == 401
    nameless = httpx.post(far, json=body, headers=known)
    assert (nameless.status_code, nameless.json()["error"]["param"]) == (400, "model")
    assert httpx.post(far, content=b"{", headers=known).json()["error"]["code"] == "invalid_json"
    assert httpx.get(far, headers=known).status_code == 405
    # Somebody else has the tokenizer.
    elsewhere = httpx.post(relayed.fronts["openai"].url + path, json={"model": MODEL, **body}, headers=known)
    assert (elsewhere.status_code, elsewhere.json()["error"]["param"]) == (400, "model")
