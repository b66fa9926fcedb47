//! The families that write each argument of a call between tags of its own. Must not know how a row is read.

use super::layout::{AnswerMarks, CallLayout, CallMarkup, FamilyRow, NestedLayout, TagLayout, TypeAttribute};

/// A call in tags without anything else around it.
const CALL: FamilyRow = FamilyRow {
    section: None,
    open: &[],
    bare: &[],
    close: &[],
    written: CallMarkup { all: ("", ""), each: ("", ""), between: "\n" },
    ends_thought: false,
    answer: None,
    body: CallLayout::Lines,
};

/// `<function=NAME>` and `<parameter=KEY>VALUE</parameter>`.
const FUNCTION: TagLayout = TagLayout {
    name_end: ">",
    name_rest: "",
    key: "<parameter=",
    key_end: ">",
    value: "",
    value_end: "</parameter>",
    end: "</function>",
    lines: false,
    apart: "\n",
    types: TypeAttribute::None,
};

/// `NAME` and `<arg_key>KEY</arg_key>` with `<arg_value>VALUE</arg_value>`.
const PAIRS: TagLayout = TagLayout {
    name_end: "\n",
    key: "<arg_key>",
    key_end: "</arg_key>",
    value: "<arg_value>",
    value_end: "</arg_value>",
    end: "</tool_call>",
    ..FUNCTION
};

/// `<invoke name="NAME">` and `<parameter name="KEY">VALUE</parameter>`.
const INVOKE: TagLayout =
    TagLayout { name_end: "\">", key: "<parameter name=\"", key_end: "\">", end: "</invoke>", ..FUNCTION };

pub(super) const QWEN_XML: FamilyRow = FamilyRow {
    section: Some(("<tool_call>", "</tool_call>")),
    open: &["<function="],
    written: CallMarkup { each: ("<tool_call>\n<function=", "\n</tool_call>"), ..CALL.written },
    body: CallLayout::Tagged(TagLayout { lines: true, ..FUNCTION }),
    ..CALL
};

/// The published template of MiMo-V2-Flash and SGLang's `MiMoDetector`: like Qwen3-Coder, but line breaks around a value
/// are part of it.
pub(super) const MIMO: FamilyRow = FamilyRow { body: CallLayout::Tagged(FUNCTION), ..QWEN_XML };

/// The published template of Seed-OSS and vLLM's `SeedOssToolParser`.
pub(super) const SEED: FamilyRow = FamilyRow {
    section: Some(("<seed:tool_call>", "</seed:tool_call>")),
    written: CallMarkup { each: ("<seed:tool_call>\n<function=", "\n</seed:tool_call>"), ..CALL.written },
    ..MIMO
};

pub(super) const DSML: FamilyRow = FamilyRow {
    section: Some(("<｜DSML｜function_calls>", "</｜DSML｜function_calls>")),
    open: &["<｜DSML｜invoke name=\""],
    written: CallMarkup {
        all: ("<｜DSML｜function_calls>\n", "\n</｜DSML｜function_calls>"),
        each: ("<｜DSML｜invoke name=\"", ""),
        between: "\n",
    },
    ends_thought: true,
    body: CallLayout::Tagged(TagLayout {
        key: "<｜DSML｜parameter name=\"",
        key_end: "\"",
        value: ">",
        value_end: "</｜DSML｜parameter>",
        end: "</｜DSML｜invoke>",
        types: TypeAttribute::IsString,
        ..INVOKE
    }),
    ..CALL
};

pub(super) const DEEPSEEK_V4: FamilyRow = FamilyRow {
    section: Some(("<｜DSML｜tool_calls>", "</｜DSML｜tool_calls>")),
    written: CallMarkup { all: ("<｜DSML｜tool_calls>\n", "\n</｜DSML｜tool_calls>"), ..DSML.written },
    ..DSML
};

pub(super) const GLM: FamilyRow = FamilyRow {
    open: &["<tool_call>"],
    written: CallMarkup { each: ("<tool_call>", ""), ..CALL.written },
    body: CallLayout::Tagged(PAIRS),
    ..CALL
};

/// The template of LongCat-Flash-Lite and its successors.
pub(super) const LONGCAT_PAIRS: FamilyRow = FamilyRow {
    open: &["<longcat_tool_call>"],
    written: CallMarkup { each: ("<longcat_tool_call>", ""), ..CALL.written },
    ends_thought: true,
    body: CallLayout::Tagged(TagLayout {
        key: "<longcat_arg_key>",
        key_end: "</longcat_arg_key>",
        value: "<longcat_arg_value>",
        value_end: "</longcat_arg_value>",
        end: "</longcat_tool_call>",
        ..PAIRS
    }),
    ..CALL
};

/// Hunyuan 3 and 4: SGLang's `HunyuanDetector`. Hunyuan 4 writes no `<tool_sep>`.
pub(super) const HUNYUAN: FamilyRow = FamilyRow {
    section: Some(("<tool_calls>", "</tool_calls>")),
    open: &["<tool_call>"],
    written: CallMarkup {
        all: ("<tool_calls>\n", "\n</tool_calls>"),
        each: ("<tool_call>", ""),
        between: "\n",
    },
    body: CallLayout::Tagged(TagLayout { name_end: "<tool_sep>", ..PAIRS }),
    ..CALL
};

/// Like [`HUNYUAN`], with the suffix that the tags have in the published vocabulary.
pub(super) const HUNYUAN_SUFFIXED: FamilyRow = FamilyRow {
    section: Some(("<tool_calls:opensource>", "</tool_calls:opensource>")),
    open: &["<tool_call:opensource>"],
    written: CallMarkup {
        all: ("<tool_calls:opensource>\n", "\n</tool_calls:opensource>"),
        each: ("<tool_call:opensource>", ""),
        between: "\n",
    },
    ends_thought: true,
    body: CallLayout::Tagged(TagLayout {
        name_end: "<tool_sep:opensource>",
        key: "<arg_key:opensource>",
        key_end: "</arg_key:opensource>",
        value: "<arg_value:opensource>",
        value_end: "</arg_value:opensource>",
        end: "</tool_call:opensource>",
        ..PAIRS
    }),
    ..CALL
};

pub(super) const MINIMAX: FamilyRow = FamilyRow {
    section: Some(("<minimax:tool_call>", "</minimax:tool_call>")),
    open: &["<invoke name=\""],
    written: CallMarkup {
        all: ("<minimax:tool_call>\n", "\n</minimax:tool_call>"),
        each: ("<invoke name=\"", ""),
        between: "\n",
    },
    body: CallLayout::Tagged(INVOKE),
    ..CALL
};

/// SGLang's `MinimaxM3Detector`.
pub(super) const MINIMAX_NESTED: FamilyRow = FamilyRow {
    section: Some(("]<]minimax[>[<tool_call>", "]<]minimax[>[</tool_call>")),
    open: &["]<]minimax[>[<invoke name=\""],
    written: CallMarkup {
        all: ("]<]minimax[>[<tool_call>\n", "\n]<]minimax[>[</tool_call>"),
        each: ("]<]minimax[>[<invoke name=\"", ""),
        between: "\n",
    },
    ends_thought: true,
    body: CallLayout::Nested(NestedLayout {
        mark: "]<]minimax[>[",
        name_end: "\">",
        end: "</invoke>",
        item: "item",
    }),
    ..CALL
};

/// The published template of Step 3 and SGLang's `Step3Detector`.
pub(super) const STEP: FamilyRow = FamilyRow {
    section: Some(("<｜tool_calls_begin｜>", "<｜tool_calls_end｜>")),
    open: &["<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name=\"", "<steptml:invoke name=\""],
    close: &["<｜tool_call_end｜>"],
    written: CallMarkup {
        all: ("<｜tool_calls_begin｜>\n", "\n<｜tool_calls_end｜>"),
        each: ("<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name=\"", "<｜tool_call_end｜>"),
        between: "\n",
    },
    ends_thought: true,
    body: CallLayout::Tagged(TagLayout {
        key: "<steptml:parameter name=\"",
        value_end: "</steptml:parameter>",
        end: "</steptml:invoke>",
        ..INVOKE
    }),
    ..CALL
};

/// The published template of Kimi K3 and SGLang's `KimiK3Detector`.
pub(super) const KIMI_XTML: FamilyRow = FamilyRow {
    section: Some(("<|open|>tools<|sep|>", "<|close|>tools<|sep|>")),
    open: &["<|open|>call tool=\""],
    written: CallMarkup {
        all: ("<|open|>tools<|sep|>", "<|close|>tools<|sep|>"),
        each: ("<|open|>call tool=\"", ""),
        between: "",
    },
    ends_thought: true,
    answer: Some(AnswerMarks {
        open: &["<|open|>response<|sep|>"],
        close: &["<|close|>response<|sep|>", "<|close|>message<|sep|>"],
        are_words: false,
    }),
    body: CallLayout::Tagged(TagLayout {
        name_end: "\"",
        name_rest: "<|sep|>",
        key: "<|open|>argument key=\"",
        key_end: "\"",
        value: "<|sep|>",
        value_end: "<|close|>argument<|sep|>",
        end: "<|close|>call<|sep|>",
        lines: false,
        apart: "",
        types: TypeAttribute::Name,
    }),
    ..CALL
};
