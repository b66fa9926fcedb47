"""A plugin of pytest's: what the tests of clients came to, kept for docs/compatibility.md (compatibility.py). Knows no client."""

import json

from compatibility import NOTES, SECTIONS

MODULES = {module for module, *_ in SECTIONS}
DIALECTS = {"openai": "OpenAI's dialect", "anthropic": "Anthropic's dialect"}
WORDS = {"langchain": "LangChain", "pydantic": "Pydantic", "ai": "AI", "litellm": "LiteLLM", "llm": "`llm`"}


class Noted:
    """Rows by module, each with its outcomes by place; and which modules were collected whole."""

    def __init__(self):
        self.rows, self.whole = {}, {}

    def pytest_collection_modifyitems(self, items):
        for item in items:
            self.whole.setdefault(item.module.__name__, set()).add(item.nodeid)

    def pytest_deselected(self, items):
        for item in items:
            self.whole[item.module.__name__] = None

    def note(self, item, report):
        module = item.module.__name__
        where = getattr(item, "callspec", None)
        if module not in MODULES or where is None:
            return
        if report.when != "call" and not report.skipped:
            return
        params = dict(where.params)
        place = params.get("place") or params.get("name")
        if place is None:
            return
        outcome = report.outcome
        if hasattr(report, "wasxfail"):
            outcome = report.wasxfail.removeprefix("reason: ") if report.skipped else "failed"
        row = self.named(item, params)
        self.rows.setdefault(module, {}).setdefault(row, {}).setdefault(place, []).append(outcome)

    def named(self, item, params):
        """By the thread or the case that a test is named after, or by its function and dialect."""
        for name in ("thread", "case"):
            if name in params:
                return params[name]
        words = [WORDS.get(word, word) for word in item.originalname.removeprefix("test_").split("_")]
        name = " ".join(words)
        dialects = [DIALECTS[value] for value in params.values() if isinstance(value, str) and value in DIALECTS]
        return ", ".join([name, *dialects])

    def pytest_sessionfinish(self, session):
        NOTES.mkdir(parents=True, exist_ok=True)
        asked = {argument.split("::")[0] for argument in session.config.args if "::" in argument}
        for module, rows in self.rows.items():
            path = NOTES / f"{module}.json"
            failed = any(outcome == "failed" for places in rows.values() for outcomes in places.values() for outcome in outcomes)
            # Only of a module that ran whole, and as expected, is anything known.
            if failed or asked or self.whole.get(module) is None:
                path.unlink(missing_ok=True)
            else:
                path.write_text(json.dumps(rows, indent=1))
