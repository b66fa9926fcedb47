//! The families that write calls as code: in Python's words, or in Gemma's. Must not know how a row is read.

use super::layout::{CallLayout, CallMarkup, FamilyRow};

pub(super) const PYTHONIC: FamilyRow = FamilyRow {
    section: None,
    open: &["<|python_start|>", "<|tool_call_start|>", "<|python_tag|>"],
    bare: &['['],
    close: &["<|python_end|>", "<|tool_call_end|>"],
    written: CallMarkup { all: ("[", "]"), each: ("", ""), between: ", " },
    ends_thought: false,
    answer: None,
    body: CallLayout::Pythonic,
};

/// The published template of Olmo 3 and vLLM's `Olmo3PythonicToolParser`.
pub(super) const OLMO: FamilyRow = FamilyRow {
    open: &["<function_calls>"],
    bare: &[],
    close: &["</function_calls>"],
    written: CallMarkup { all: ("<function_calls>\n", "\n</function_calls>"), each: ("", ""), between: "\n" },
    body: CallLayout::Lines,
    ..PYTHONIC
};

pub(super) const FUNCTION_GEMMA: FamilyRow = FamilyRow {
    open: &["<start_function_call>"],
    bare: &[],
    close: &["<end_function_call>"],
    written: CallMarkup {
        all: ("", ""),
        each: ("<start_function_call>", "<end_function_call>"),
        between: "",
    },
    body: CallLayout::Gemma { quote: "<escape>" },
    ..PYTHONIC
};

pub(super) const GEMMA: FamilyRow = FamilyRow {
    open: &["<|tool_call>"],
    close: &["<tool_call|>"],
    written: CallMarkup { each: ("<|tool_call>", "<tool_call|>"), ..FUNCTION_GEMMA.written },
    ends_thought: true,
    body: CallLayout::Gemma { quote: "<|\"|>" },
    ..FUNCTION_GEMMA
};
