//! The families that write the arguments of a call as one JSON object. Must not know how a row is read.

use super::layout::{AnswerMarks, CallLayout, CallMarkup, FamilyRow, NamedLayout, ObjectLayout};

pub(super) const HERMES: FamilyRow = FamilyRow {
    section: None,
    open: &["<tool_call>"],
    bare: &[],
    close: &["</tool_call>"],
    written: CallMarkup { all: ("", ""), each: ("<tool_call>\n", "\n</tool_call>"), between: "\n" },
    ends_thought: false,
    answer: None,
    body: CallLayout::Object(ObjectLayout::PLAIN),
};

/// ERNIE's template and vLLM's `Ernie45ToolParser` and `Ernie45ReasoningParser`.
pub(super) const ERNIE: FamilyRow = FamilyRow {
    answer: Some(AnswerMarks { open: &["<response>"], close: &["</response>"], are_words: true }),
    ..HERMES
};

/// LongCat-Flash's template and vLLM's `LongcatFlashToolParser`.
pub(super) const LONGCAT: FamilyRow = FamilyRow {
    open: &["<longcat_tool_call>"],
    close: &["</longcat_tool_call>"],
    written: CallMarkup {
        all: ("", ""),
        each: ("<longcat_tool_call>\n", "\n</longcat_tool_call>"),
        between: "\n",
    },
    ends_thought: true,
    ..HERMES
};

pub(super) const LLAMA_JSON: FamilyRow = FamilyRow {
    open: &["<|python_tag|>"],
    bare: &['{'],
    close: &[],
    written: CallMarkup { all: ("", ""), each: ("", ""), between: "; " },
    body: CallLayout::Object(ObjectLayout { arguments: "parameters", ..ObjectLayout::PLAIN }),
    ..HERMES
};

pub(super) const JSON: FamilyRow = FamilyRow {
    open: &[],
    bare: &['{', '['],
    close: &[],
    written: CallMarkup { all: ("", ""), each: ("", ""), between: "\n" },
    body: CallLayout::Object(ObjectLayout::ARRAY),
    ..HERMES
};

pub(super) const GRANITE: FamilyRow = FamilyRow {
    open: &["<|tool_call|>", "<tool_call>"],
    close: &["</tool_call>"],
    written: CallMarkup { all: ("<|tool_call|>[", "]"), each: ("", ""), between: ", " },
    body: CallLayout::Object(ObjectLayout::ARRAY),
    ..HERMES
};

/// vLLM's `Phi4MiniJsonToolParser` for the list, and the published template of Phi-4-mini for the marks.
pub(super) const PHI: FamilyRow = FamilyRow {
    open: &["functools[", "<|tool_call|>"],
    close: &["<|/tool_call|>"],
    written: CallMarkup { all: ("functools[", "]"), each: ("", ""), between: ", " },
    ..GRANITE
};

/// The published template of Hunyuan-A13B and vLLM's `HunyuanA13BToolParser`.
pub(super) const HUNYUAN_ARRAY: FamilyRow = FamilyRow {
    open: &["<tool_calls>"],
    close: &["</tool_calls>"],
    written: CallMarkup { all: ("<tool_calls>[", "]</tool_calls>"), each: ("", ""), between: ", " },
    answer: Some(AnswerMarks { open: &["<answer>"], close: &["</answer>"], are_words: true }),
    ..GRANITE
};

/// The templates of Command R7B and Command A, and SGLang's `CohereCommand4Detector`.
pub(super) const COHERE: FamilyRow = FamilyRow {
    open: &["<|START_ACTION|>"],
    close: &["<|END_ACTION|>"],
    written: CallMarkup {
        all: ("<|START_ACTION|>[\n    ", "\n]<|END_ACTION|>"),
        each: ("", ""),
        between: ",\n    ",
    },
    ends_thought: true,
    answer: Some(AnswerMarks {
        open: &["<|START_RESPONSE|>", "<|START_TEXT|>"],
        close: &["<|END_RESPONSE|>", "<|END_TEXT|>"],
        are_words: false,
    }),
    body: CallLayout::Object(ObjectLayout {
        name: "tool_name",
        arguments: "parameters",
        number: "tool_call_id",
        array: true,
    }),
    ..HERMES
};

/// The published template of Apertus and SGLang's `Apertus2509Detector`.
pub(super) const APERTUS: FamilyRow = FamilyRow {
    open: &["<|tools_prefix|>"],
    close: &["<|tools_suffix|>"],
    written: CallMarkup { all: ("<|tools_prefix|>[", "]<|tools_suffix|>"), each: ("", ""), between: ", " },
    ends_thought: true,
    body: CallLayout::Object(ObjectLayout { name: "", arguments: "", number: "", array: true }),
    ..HERMES
};

pub(super) const MISTRAL_ARRAY: FamilyRow = FamilyRow {
    open: &["[TOOL_CALLS]"],
    close: &["[/TOOL_CALLS]"],
    written: CallMarkup { all: ("[TOOL_CALLS][", "]"), each: ("", ""), between: ", " },
    ends_thought: true,
    body: CallLayout::Object(ObjectLayout::ARRAY),
    ..HERMES
};

pub(super) const MISTRAL: FamilyRow = FamilyRow {
    written: CallMarkup { all: ("", ""), each: ("[TOOL_CALLS]", ""), between: "" },
    body: CallLayout::Named(NamedLayout {
        after: &["[ARGS]"],
        id: "[CALL_ID]",
        or_array: true,
        ..NamedLayout::PLAIN
    }),
    ..MISTRAL_ARRAY
};

pub(super) const DEEPSEEK_V3: FamilyRow = FamilyRow {
    section: Some(("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>")),
    open: &["<｜tool▁call▁begin｜>"],
    close: &["```", "<｜tool▁call▁end｜>"],
    written: CallMarkup {
        all: ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
        each: ("<｜tool▁call▁begin｜>", "\n```<｜tool▁call▁end｜>"),
        between: "\n",
    },
    ends_thought: true,
    body: CallLayout::Named(NamedLayout {
        before: "function<｜tool▁sep｜>",
        after: &["\n```json\n", "\n```\n", "\n"],
        ..NamedLayout::PLAIN
    }),
    ..HERMES
};

pub(super) const DEEPSEEK_V31: FamilyRow = FamilyRow {
    close: &["<｜tool▁call▁end｜>"],
    written: CallMarkup {
        each: ("<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"),
        between: "",
        ..DEEPSEEK_V3.written
    },
    body: CallLayout::Named(NamedLayout { after: &["<｜tool▁sep｜>"], ..NamedLayout::PLAIN }),
    ..DEEPSEEK_V3
};

pub(super) const KIMI: FamilyRow = FamilyRow {
    section: Some(("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>")),
    open: &["<|tool_call_begin|>"],
    close: &["<|tool_call_end|>"],
    written: CallMarkup {
        all: ("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
        each: ("<|tool_call_begin|>", "<|tool_call_end|>"),
        between: "",
    },
    ends_thought: true,
    body: CallLayout::Named(NamedLayout {
        before: "functions.",
        after: &["<|tool_call_argument_begin|>"],
        in_id: true,
        ..NamedLayout::PLAIN
    }),
    ..HERMES
};
