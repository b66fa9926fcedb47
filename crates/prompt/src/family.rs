//! The families of models, by the way in which they write tool calls: one row for each. Reading a row is the task of
//! `reply`, enforcing one the task of `grammar`. Must not know the tools of any call.

use crate::marks::HARMONY;
use crate::thought::{ANALYSIS, ReasoningMarks, ThoughtBounds};

/// A family of models that write tool calls in the same way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum ReplyFamily {
    /// No calls: everything is text.
    #[default]
    Plain,
    /// `<tool_call>\n{"name": …, "arguments": {…}}\n</tool_call>` (Hermes, Qwen, Granite 4, the demo model).
    Hermes,
    /// `<tool_call>\n<function=NAME>\n<parameter=KEY>\nVALUE\n</parameter>\n</function>\n</tool_call>` (Qwen3-Coder, Nemotron).
    QwenXml,
    /// `{"name": …, "parameters": {…}}` as the whole answer (Llama 3).
    LlamaJson,
    /// `[NAME(KEY=VALUE, …), …]` in Python's words (Llama 3.2 and 4, LFM2).
    Pythonic,
    /// `[TOOL_CALLS][{"name": …, "arguments": {…}, "id": …}, …]` (Mistral before tokenizer 11).
    MistralArray,
    /// `[TOOL_CALLS]NAME[ARGS]{…}` (Mistral from tokenizer 11 on).
    Mistral,
    /// `<｜tool▁call▁begin｜>function<｜tool▁sep｜>NAME` and JSON in a fence (DeepSeek V3, R1).
    DeepSeekV3,
    /// `<｜tool▁call▁begin｜>NAME<｜tool▁sep｜>{…}<｜tool▁call▁end｜>` (DeepSeek V3.1).
    DeepSeekV31,
    /// `<｜DSML｜invoke name="NAME">` with a tag for each parameter (DeepSeek V3.2).
    DeepSeekDsml,
    /// Like [`Self::DeepSeekDsml`], but within `<｜DSML｜tool_calls>` (DeepSeek V4).
    DeepSeekV4,
    /// Channels and recipients: `<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{…}<|call|>` (GPT-OSS).
    Harmony,
    /// `<|tool_call|>[{"name": …, "arguments": {…}}, …]` (Granite 3).
    Granite,
    /// `<tool_call>NAME\n<arg_key>KEY</arg_key>\n<arg_value>VALUE</arg_value>\n</tool_call>` (GLM-4.5 and later).
    Glm,
    /// `<|tool_call_begin|>functions.NAME:0<|tool_call_argument_begin|>{…}<|tool_call_end|>` (Kimi K2). Its ids are kept.
    Kimi,
    /// `<minimax:tool_call>` with `<invoke name="NAME">` and `<parameter name="KEY">VALUE</parameter>` (MiniMax M2).
    MiniMax,
    /// `<start_function_call>call:NAME{KEY:<escape>TEXT<escape>}<end_function_call>` (FunctionGemma).
    FunctionGemma,
    /// `<|tool_call>call:NAME{KEY:<|"|>TEXT<|"|>}<tool_call|>` (Gemma 4).
    Gemma,
    /// A JSON object of name and arguments, or an array of such objects, at the beginning of a line.
    Json,
}

/// The way in which a model writes its replies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ReplyStyle {
    /// The way in which calls are written.
    pub family: ReplyFamily,
    /// The marks around reasoning, if the model uses any.
    pub thought: Option<ReasoningMarks>,
}

impl ReplyStyle {
    /// The style of a model that writes only text.
    pub const PLAIN: Self = Self { family: ReplyFamily::Plain, thought: None };

    /// Returns the style that a chat template teaches.
    pub fn detect(template: &str) -> Self {
        let family = ReplyFamily::detect(template);
        let thought = ReasoningMarks::detect(template).filter(|_| family != ReplyFamily::Harmony);
        Self { family, thought }
    }

    /// Whether the model separates its reasoning from its answer.
    pub fn thinks(&self) -> bool {
        self.thought.is_some() || self.family == ReplyFamily::Harmony
    }

    /// Returns the bounds of the model's reasoning. `None` if the model has no reasoning.
    pub fn bounds(&self) -> Option<ThoughtBounds> {
        match (self.thought, self.family) {
            (_, ReplyFamily::Harmony) => Some(ANALYSIS),
            (Some(ReasoningMarks { open, close }), _) => Some(ThoughtBounds { open, close, onward: "" }),
            (None, _) => None,
        }
    }

    /// Whether replies are searched for the special token `token`. If so, decoded text must contain it.
    pub fn reads(&self, token: &str) -> bool {
        let thought = self.thought.map(|thought| [thought.open, thought.close]);
        let thought = thought.into_iter().flatten().any(|mark| mark.contains(token));
        let calls = match self.family {
            ReplyFamily::Harmony => HARMONY.contains(&token),
            family => family.row().is_some_and(|row| row.texts().any(|text| text.contains(token))),
        };
        !token.is_empty() && (thought || calls)
    }
}

/// The way in which a family writes calls.
#[derive(Debug)]
pub(crate) struct FamilyRow {
    /// Marks around all calls of an answer together. A call without them is still a call.
    pub(crate) section: Option<(&'static str, &'static str)>,
    /// The marks that open a call. Templates write the first one.
    pub(crate) open: &'static [&'static str],
    /// Characters that begin a call without an opening mark, at the beginning of a line.
    pub(crate) bare: &'static [char],
    /// Marks that may follow the text of a call, in this order and apart from white space. Each of them may be missing.
    pub(crate) close: &'static [&'static str],
    /// The exact text around calls in templates.
    pub(crate) written: CallMarkup,
    /// Whether an opening mark ends the reasoning, because the mark is not a word that a model would write in its
    /// reasoning.
    pub(crate) ends_thought: bool,
    pub(crate) body: CallLayout,
}

impl FamilyRow {
    /// Returns every text of the template that occurs in a call.
    fn texts(&self) -> impl Iterator<Item = &'static str> {
        let body: Vec<&'static str> = match &self.body {
            CallLayout::Object { .. } | CallLayout::Pythonic => Vec::new(),
            CallLayout::Named(named) => {
                [named.before, named.id].into_iter().chain(named.after.iter().copied()).collect()
            }
            CallLayout::Tagged(tagged) => {
                vec![tagged.name_end, tagged.key, tagged.key_end, tagged.value, tagged.value_end, tagged.end]
            }
            CallLayout::Gemma { quote } => vec![*quote],
        };
        let section = self.section.into_iter().flat_map(|(open, close)| [open, close]);
        section.chain(self.open.iter().copied()).chain(self.close.iter().copied()).chain(body)
    }
}

/// The text that templates write around calls.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CallMarkup {
    /// Before and after all calls.
    pub(crate) all: (&'static str, &'static str),
    /// Before and after each call.
    pub(crate) each: (&'static str, &'static str),
    /// Between two calls.
    pub(crate) between: &'static str,
}

/// The way in which a call is written between its marks.
#[derive(Debug, Clone, Copy)]
pub(crate) enum CallLayout {
    /// A JSON object of a name and arguments. With `array`, an array of such objects is also accepted.
    Object {
        /// The key of the arguments.
        arguments: &'static str,
        array: bool,
    },
    /// A name, then the arguments as a JSON object.
    Named(NamedLayout),
    /// A name, then a tag for each argument.
    Tagged(TagLayout),
    /// Calls as Python writes them, in a list.
    Pythonic,
    /// `call:NAME{KEY:VALUE}`, with texts between these quotes.
    Gemma { quote: &'static str },
}

/// A name between marks, then a JSON object.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NamedLayout {
    /// The text before the name.
    pub(crate) before: &'static str,
    /// The marks that end the name. Templates write the first one. An opening brace always ends the name.
    pub(crate) after: &'static [&'static str],
    /// The mark that begins an id after the name.
    pub(crate) id: &'static str,
    /// Whether the name is part of an id: `functions.NAME:0`.
    pub(crate) in_id: bool,
    /// Whether an array of objects is accepted in place of a name.
    pub(crate) or_array: bool,
}

/// A name, then a tag for each argument.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TagLayout {
    /// The mark that ends the name.
    pub(crate) name_end: &'static str,
    /// The mark that opens an argument, before its key.
    pub(crate) key: &'static str,
    /// The mark that ends the key.
    pub(crate) key_end: &'static str,
    /// The mark that opens the value. Empty if there is none.
    pub(crate) value: &'static str,
    pub(crate) value_end: &'static str,
    /// The mark that ends the call.
    pub(crate) end: &'static str,
    /// Whether templates write a line break after each tag. If so, line breaks around a value are not part of the
    /// value.
    pub(crate) lines: bool,
}

const HERMES: FamilyRow = FamilyRow {
    section: None,
    open: &["<tool_call>"],
    bare: &[],
    close: &["</tool_call>"],
    written: CallMarkup { all: ("", ""), each: ("<tool_call>\n", "\n</tool_call>"), between: "\n" },
    ends_thought: false,
    body: CallLayout::Object { arguments: "arguments", array: false },
};

const QWEN_XML: FamilyRow = FamilyRow {
    section: Some(("<tool_call>", "</tool_call>")),
    open: &["<function="],
    bare: &[],
    close: &[],
    written: CallMarkup { all: ("", ""), each: ("<tool_call>\n<function=", "\n</tool_call>"), between: "\n" },
    ends_thought: false,
    body: CallLayout::Tagged(TagLayout {
        name_end: ">",
        key: "<parameter=",
        key_end: ">",
        value: "",
        value_end: "</parameter>",
        end: "</function>",
        lines: true,
    }),
};

const LLAMA_JSON: FamilyRow = FamilyRow {
    section: None,
    open: &["<|python_tag|>"],
    bare: &['{'],
    close: &[],
    written: CallMarkup { all: ("", ""), each: ("", ""), between: "; " },
    ends_thought: false,
    body: CallLayout::Object { arguments: "parameters", array: false },
};

const PYTHONIC: FamilyRow = FamilyRow {
    section: None,
    open: &["<|python_start|>", "<|tool_call_start|>", "<|python_tag|>"],
    bare: &['['],
    close: &["<|python_end|>", "<|tool_call_end|>"],
    written: CallMarkup { all: ("[", "]"), each: ("", ""), between: ", " },
    ends_thought: false,
    body: CallLayout::Pythonic,
};

const MISTRAL: FamilyRow = FamilyRow {
    written: CallMarkup { all: ("", ""), each: ("[TOOL_CALLS]", ""), between: "" },
    body: CallLayout::Named(NamedLayout {
        before: "",
        after: &["[ARGS]"],
        id: "[CALL_ID]",
        in_id: false,
        or_array: true,
    }),
    ..MISTRAL_ARRAY
};

const MISTRAL_ARRAY: FamilyRow = FamilyRow {
    section: None,
    open: &["[TOOL_CALLS]"],
    bare: &[],
    close: &["[/TOOL_CALLS]"],
    written: CallMarkup { all: ("[TOOL_CALLS][", "]"), each: ("", ""), between: ", " },
    ends_thought: true,
    body: CallLayout::Object { arguments: "arguments", array: true },
};

const DEEPSEEK_V3: FamilyRow = FamilyRow {
    section: Some(("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>")),
    open: &["<｜tool▁call▁begin｜>"],
    bare: &[],
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
        id: "",
        in_id: false,
        or_array: false,
    }),
};

const DEEPSEEK_V31: FamilyRow = FamilyRow {
    close: &["<｜tool▁call▁end｜>"],
    written: CallMarkup {
        all: ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
        each: ("<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"),
        between: "",
    },
    body: CallLayout::Named(NamedLayout {
        before: "",
        after: &["<｜tool▁sep｜>"],
        id: "",
        in_id: false,
        or_array: false,
    }),
    ..DEEPSEEK_V3
};

const DSML: FamilyRow = FamilyRow {
    section: Some(("<｜DSML｜function_calls>", "</｜DSML｜function_calls>")),
    open: &["<｜DSML｜invoke name=\""],
    bare: &[],
    close: &[],
    written: CallMarkup {
        all: ("<｜DSML｜function_calls>\n", "\n</｜DSML｜function_calls>"),
        each: ("<｜DSML｜invoke name=\"", ""),
        between: "\n",
    },
    ends_thought: true,
    body: CallLayout::Tagged(TagLayout {
        name_end: "\">",
        key: "<｜DSML｜parameter name=\"",
        key_end: "\"",
        value: ">",
        value_end: "</｜DSML｜parameter>",
        end: "</｜DSML｜invoke>",
        lines: false,
    }),
};

const DEEPSEEK_V4: FamilyRow = FamilyRow {
    section: Some(("<｜DSML｜tool_calls>", "</｜DSML｜tool_calls>")),
    written: CallMarkup { all: ("<｜DSML｜tool_calls>\n", "\n</｜DSML｜tool_calls>"), ..DSML.written },
    ..DSML
};

const GRANITE: FamilyRow = FamilyRow {
    section: None,
    open: &["<|tool_call|>", "<tool_call>"],
    bare: &[],
    close: &["</tool_call>"],
    written: CallMarkup { all: ("<|tool_call|>[", "]"), each: ("", ""), between: ", " },
    ends_thought: false,
    body: CallLayout::Object { arguments: "arguments", array: true },
};

const GLM: FamilyRow = FamilyRow {
    section: None,
    open: &["<tool_call>"],
    bare: &[],
    close: &[],
    written: CallMarkup { all: ("", ""), each: ("<tool_call>", ""), between: "\n" },
    ends_thought: false,
    body: CallLayout::Tagged(TagLayout {
        name_end: "\n",
        key: "<arg_key>",
        key_end: "</arg_key>",
        value: "<arg_value>",
        value_end: "</arg_value>",
        end: "</tool_call>",
        lines: false,
    }),
};

const KIMI: FamilyRow = FamilyRow {
    section: Some(("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>")),
    open: &["<|tool_call_begin|>"],
    bare: &[],
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
        id: "",
        in_id: true,
        or_array: false,
    }),
};

const MINIMAX: FamilyRow = FamilyRow {
    section: Some(("<minimax:tool_call>", "</minimax:tool_call>")),
    open: &["<invoke name=\""],
    bare: &[],
    close: &[],
    written: CallMarkup {
        all: ("<minimax:tool_call>\n", "\n</minimax:tool_call>"),
        each: ("<invoke name=\"", ""),
        between: "\n",
    },
    ends_thought: false,
    body: CallLayout::Tagged(TagLayout {
        name_end: "\">",
        key: "<parameter name=\"",
        key_end: "\">",
        value: "",
        value_end: "</parameter>",
        end: "</invoke>",
        lines: false,
    }),
};

const FUNCTION_GEMMA: FamilyRow = FamilyRow {
    section: None,
    open: &["<start_function_call>"],
    bare: &[],
    close: &["<end_function_call>"],
    written: CallMarkup {
        all: ("", ""),
        each: ("<start_function_call>", "<end_function_call>"),
        between: "",
    },
    ends_thought: false,
    body: CallLayout::Gemma { quote: "<escape>" },
};

const GEMMA: FamilyRow = FamilyRow {
    open: &["<|tool_call>"],
    close: &["<tool_call|>"],
    written: CallMarkup { each: ("<|tool_call>", "<tool_call|>"), ..FUNCTION_GEMMA.written },
    ends_thought: true,
    body: CallLayout::Gemma { quote: "<|\"|>" },
    ..FUNCTION_GEMMA
};

const JSON: FamilyRow = FamilyRow {
    section: None,
    open: &[],
    bare: &['{', '['],
    close: &[],
    written: CallMarkup { all: ("", ""), each: ("", ""), between: "\n" },
    ends_thought: false,
    body: CallLayout::Object { arguments: "arguments", array: true },
};

impl ReplyFamily {
    /// Every family.
    pub const ALL: [Self; 19] = [
        Self::Plain,
        Self::Hermes,
        Self::QwenXml,
        Self::LlamaJson,
        Self::Pythonic,
        Self::MistralArray,
        Self::Mistral,
        Self::DeepSeekV3,
        Self::DeepSeekV31,
        Self::DeepSeekDsml,
        Self::DeepSeekV4,
        Self::Harmony,
        Self::Granite,
        Self::Glm,
        Self::Kimi,
        Self::MiniMax,
        Self::FunctionGemma,
        Self::Gemma,
        Self::Json,
    ];

    /// Returns the name in configuration and listings.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Hermes => "hermes",
            Self::QwenXml => "qwen3_coder",
            Self::LlamaJson => "llama3_json",
            Self::Pythonic => "pythonic",
            Self::MistralArray => "mistral_array",
            Self::Mistral => "mistral",
            Self::DeepSeekV3 => "deepseek_v3",
            Self::DeepSeekV31 => "deepseek_v31",
            Self::DeepSeekDsml => "deepseek_v32",
            Self::DeepSeekV4 => "deepseek_v4",
            Self::Harmony => "harmony",
            Self::Granite => "granite",
            Self::Glm => "glm45",
            Self::Kimi => "kimi_k2",
            Self::MiniMax => "minimax_m2",
            Self::FunctionGemma => "functiongemma",
            Self::Gemma => "gemma4",
            Self::Json => "json",
        }
    }

    /// Returns the family with this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|family| family.name() == name)
    }

    /// Returns the family that a chat template teaches. The marks that the template writes around past calls identify
    /// it.
    pub fn detect(template: &str) -> Self {
        let has = |text: &str| template.contains(text);
        let marks = has("<tool_call>") && has("</tool_call>");
        // The first match wins. The template of an earlier family may contain the marks of a later one, but not the
        // other way round.
        let tests: [(Self, bool); 17] = [
            (Self::Harmony, has("<|channel|>") && (has("to=functions.") || has("<|channel|>commentary"))),
            (Self::Kimi, has("<|tool_call_begin|>") && has("<|tool_call_argument_begin|>")),
            (Self::DeepSeekV4, has("｜DSML｜") && has("｜tool_calls")),
            (Self::DeepSeekDsml, has("｜DSML｜")),
            (Self::DeepSeekV3, has("<｜tool▁call▁begin｜>") && has("```json")),
            (Self::DeepSeekV31, has("<｜tool▁call▁begin｜>")),
            (Self::MiniMax, has("<minimax:tool_call>")),
            (Self::FunctionGemma, has("<start_function_call>")),
            (Self::Gemma, has("<|tool_call>") && has("<tool_call|>")),
            (Self::Glm, has("<arg_key>") && marks),
            (Self::QwenXml, has("<function=") && has("<parameter=")),
            (Self::Hermes, marks && !has("<function=") && (has("\"arguments\"") || has("\\\"arguments\\\""))),
            (Self::Mistral, has("[TOOL_CALLS]") && has("[ARGS]")),
            (Self::MistralArray, has("[TOOL_CALLS]")),
            (Self::Granite, has("<|tool_call|>")),
            (
                Self::Pythonic,
                has("<|python_start|>") || has("<|tool_call_start|>") || has("func_name1(params_name1"),
            ),
            (Self::LlamaJson, has("<|python_tag|>") || (has("\"parameters\": ") && has("ipython"))),
        ];
        tests.into_iter().find(|(_, fits)| *fits).map_or(Self::Plain, |(family, _)| family)
    }

    /// Returns the row that describes the family's calls. `None` if the family writes no calls, or uses a form of its
    /// own.
    pub(crate) const fn row(self) -> Option<&'static FamilyRow> {
        match self {
            Self::Plain | Self::Harmony => None,
            Self::Hermes => Some(&HERMES),
            Self::QwenXml => Some(&QWEN_XML),
            Self::LlamaJson => Some(&LLAMA_JSON),
            Self::Pythonic => Some(&PYTHONIC),
            Self::MistralArray => Some(&MISTRAL_ARRAY),
            Self::Mistral => Some(&MISTRAL),
            Self::DeepSeekV3 => Some(&DEEPSEEK_V3),
            Self::DeepSeekV31 => Some(&DEEPSEEK_V31),
            Self::DeepSeekDsml => Some(&DSML),
            Self::DeepSeekV4 => Some(&DEEPSEEK_V4),
            Self::Granite => Some(&GRANITE),
            Self::Glm => Some(&GLM),
            Self::Kimi => Some(&KIMI),
            Self::MiniMax => Some(&MINIMAX),
            Self::FunctionGemma => Some(&FUNCTION_GEMMA),
            Self::Gemma => Some(&GEMMA),
            Self::Json => Some(&JSON),
        }
    }
}
