//! The families of models, by the way in which they write tool calls: one row for each. Reading a row is the task of
//! `reply`, enforcing one the task of `grammar`. Must not know the tools of any call.

mod layout;
mod objects;
mod others;
mod tags;

pub(crate) use layout::{
    AnswerMarks, CallLayout, FamilyRow, NamedLayout, NestedLayout, ObjectLayout, TagLayout, TypeAttribute,
};

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
    /// `<function_calls>\nNAME(KEY=VALUE, …)\n</function_calls>`, a call in each line (Olmo 3).
    Olmo,
    /// `functools[{"name": …, "arguments": {…}}, …]` (Phi-4-mini).
    Phi,
    /// `<|START_ACTION|>[{"tool_call_id": …, "tool_name": …, "parameters": {…}}, …]<|END_ACTION|>`, and the answer
    /// between `<|START_RESPONSE|>` and `<|END_RESPONSE|>` (Command R7B, Command A and later).
    Cohere,
    /// `<seed:tool_call>\n<function=NAME>\n<parameter=KEY>VALUE</parameter>\n</function>\n</seed:tool_call>` (Seed-OSS).
    Seed,
    /// Like [`Self::Hermes`], with the answer between `<response>` and `</response>` (ERNIE 4.5).
    Ernie,
    /// `<tool_calls>\n<tool_call>NAME<tool_sep>\n<arg_key>KEY</arg_key>\n<arg_value>VALUE</arg_value>\n</tool_call>\n</tool_calls>`
    /// (Hunyuan 3 and 4).
    Hunyuan,
    /// Like [`Self::Hunyuan`], with `:opensource` in each tag (the published weights of Hunyuan 3).
    HunyuanSuffixed,
    /// `<tool_calls>[{"name": …, "arguments": {…}}, …]</tool_calls>`, and the answer between `<answer>` and `</answer>`
    /// (Hunyuan-A13B).
    HunyuanArray,
    /// Tags with the mark `]<]minimax[>[` before each, also for the values within an argument (MiniMax M3).
    MiniMaxNested,
    /// `<|open|>call tool="NAME" index="1"<|sep|>` with a channel for each argument (Kimi K3).
    KimiXtml,
    /// `<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name="NAME">` with a tag for each argument (Step 3).
    Step,
    /// Like [`Self::QwenXml`], without line breaks around values (MiMo).
    MiMo,
    /// `<|tools_prefix|>[{"NAME": {…}}, …]<|tools_suffix|>` (Apertus).
    Apertus,
    /// `<longcat_tool_call>\n{"name": …, "arguments": {…}}\n</longcat_tool_call>` (LongCat-Flash).
    LongCat,
    /// `<longcat_tool_call>NAME\n<longcat_arg_key>KEY</longcat_arg_key>\n<longcat_arg_value>VALUE</longcat_arg_value>\n`
    /// (LongCat-Flash-Lite and later).
    LongCatPairs,
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

/// The text between a value and its closing tag in templates of Qwen3-Coder's form: a line break, as itself or as Jinja
/// writes it.
const LINE_BREAKS: [&str; 2] = ["\n</parameter>", "\\n</parameter>"];

impl ReplyFamily {
    /// Every family.
    pub const ALL: [Self; 34] = [
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
        Self::Olmo,
        Self::Phi,
        Self::Cohere,
        Self::Seed,
        Self::Ernie,
        Self::Hunyuan,
        Self::HunyuanSuffixed,
        Self::HunyuanArray,
        Self::MiniMaxNested,
        Self::KimiXtml,
        Self::Step,
        Self::MiMo,
        Self::Apertus,
        Self::LongCat,
        Self::LongCatPairs,
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
            Self::Olmo => "olmo3",
            Self::Phi => "phi4mini",
            Self::Cohere => "cohere_command",
            Self::Seed => "seed_oss",
            Self::Ernie => "ernie45",
            Self::Hunyuan => "hunyuan",
            Self::HunyuanSuffixed => "hunyuan_opensource",
            Self::HunyuanArray => "hunyuan_a13b",
            Self::MiniMaxNested => "minimax_m3",
            Self::KimiXtml => "kimi_k3",
            Self::Step => "step3",
            Self::MiMo => "mimo",
            Self::Apertus => "apertus",
            Self::LongCat => "longcat",
            Self::LongCatPairs => "longcat_pairs",
            Self::Json => "json",
        }
    }

    /// Returns well-known models that write calls in this way, for people.
    pub const fn models(self) -> &'static str {
        match self {
            Self::Plain => "models without tool calls",
            Self::Hermes => "Qwen2.5, Qwen3, Hermes, Granite 4, SmolLM3",
            Self::QwenXml => "Qwen3-Coder, Qwen3.5, Nemotron 3",
            Self::LlamaJson => "Llama 3.1 to 3.3",
            Self::Pythonic => "Llama 3.2 and 4, LFM2",
            Self::MistralArray => "Mistral before tokenizer version 11",
            Self::Mistral => "Mistral from tokenizer version 11 on",
            Self::DeepSeekV3 => "DeepSeek V3 and R1",
            Self::DeepSeekV31 => "DeepSeek V3.1",
            Self::DeepSeekDsml => "DeepSeek V3.2",
            Self::DeepSeekV4 => "DeepSeek V4",
            Self::Harmony => "gpt-oss",
            Self::Granite => "Granite 3",
            Self::Glm => "GLM-4.5 to 4.7",
            Self::Kimi => "Kimi K2",
            Self::MiniMax => "MiniMax M2",
            Self::FunctionGemma => "FunctionGemma",
            Self::Gemma => "Gemma 4",
            Self::Olmo => "OLMo 3",
            Self::Phi => "Phi-4-mini",
            Self::Cohere => "Command R7B, Command A and later",
            Self::Seed => "Seed-OSS",
            Self::Ernie => "ERNIE 4.5",
            Self::Hunyuan => "Hunyuan 3 and 4",
            Self::HunyuanSuffixed => "the published weights of Hunyuan 3",
            Self::HunyuanArray => "Hunyuan-A13B",
            Self::MiniMaxNested => "MiniMax M3",
            Self::KimiXtml => "Kimi K3",
            Self::Step => "Step 3",
            Self::MiMo => "MiMo",
            Self::Apertus => "Apertus",
            Self::LongCat => "LongCat-Flash",
            Self::LongCatPairs => "LongCat-Flash-Lite and later",
            Self::Json => "models that write plain JSON, if configured",
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
        let arguments = has("\"arguments\"") || has("\\\"arguments\\\"");
        let functions = has("<function=") && has("<parameter=");
        // The first match wins. The template of an earlier family may contain the marks of a later one, but not the
        // other way round.
        let tests = [
            (Self::Harmony, has("<|channel|>") && (has("to=functions.") || has("<|channel|>commentary"))),
            (Self::Kimi, has("<|tool_call_begin|>") && has("<|tool_call_argument_begin|>")),
            (Self::KimiXtml, has("<|open|>") && has("<|close|>") && has("<|sep|>")),
            (Self::DeepSeekV4, has("｜DSML｜") && has("｜tool_calls")),
            (Self::DeepSeekDsml, has("｜DSML｜")),
            (Self::DeepSeekV3, has("<｜tool▁call▁begin｜>") && has("```json")),
            (Self::DeepSeekV31, has("<｜tool▁call▁begin｜>")),
            (Self::Step, has("<steptml:invoke")),
            (Self::MiniMaxNested, has("]<]minimax[>[")),
            (Self::MiniMax, has("<minimax:tool_call>")),
            (Self::FunctionGemma, has("<start_function_call>")),
            (Self::Gemma, has("<|tool_call>") && has("<tool_call|>")),
            (Self::Cohere, has("<|START_ACTION|>") && has("tool_name")),
            (Self::Apertus, has("<|tools_prefix|>") && has("<|tools_suffix|>")),
            (Self::Olmo, has("<function_calls>") && has("</function_calls>")),
            (Self::Seed, has("<seed:tool_call>")),
            (Self::LongCatPairs, has("<longcat_tool_call>") && has("<longcat_arg_key>")),
            (Self::LongCat, has("<longcat_tool_call>")),
            // The published template of Hunyuan 3 writes the suffix of its tags as a variable.
            (Self::HunyuanSuffixed, has("HYTK") || has("<tool_calls:opensource>")),
            (Self::Hunyuan, has("<tool_calls>") && has("<arg_key>")),
            (Self::HunyuanArray, has("<tool_calls>") && arguments),
            (Self::Glm, has("<arg_key>") && marks),
            (Self::MiMo, functions && !LINE_BREAKS.iter().any(|text| has(text))),
            (Self::QwenXml, functions),
            (Self::Ernie, marks && has("<response>") && arguments),
            (Self::Hermes, marks && !has("<function=") && arguments),
            (Self::Mistral, has("[TOOL_CALLS]") && has("[ARGS]")),
            (Self::MistralArray, has("[TOOL_CALLS]")),
            (Self::Phi, has("functools[") || has("<|/tool_call|>") || has("<|/tool|>")),
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
        Some(match self {
            Self::Plain | Self::Harmony => return None,
            Self::Hermes => &objects::HERMES,
            Self::QwenXml => &tags::QWEN_XML,
            Self::LlamaJson => &objects::LLAMA_JSON,
            Self::Pythonic => &others::PYTHONIC,
            Self::MistralArray => &objects::MISTRAL_ARRAY,
            Self::Mistral => &objects::MISTRAL,
            Self::DeepSeekV3 => &objects::DEEPSEEK_V3,
            Self::DeepSeekV31 => &objects::DEEPSEEK_V31,
            Self::DeepSeekDsml => &tags::DSML,
            Self::DeepSeekV4 => &tags::DEEPSEEK_V4,
            Self::Granite => &objects::GRANITE,
            Self::Glm => &tags::GLM,
            Self::Kimi => &objects::KIMI,
            Self::MiniMax => &tags::MINIMAX,
            Self::FunctionGemma => &others::FUNCTION_GEMMA,
            Self::Gemma => &others::GEMMA,
            Self::Olmo => &others::OLMO,
            Self::Phi => &objects::PHI,
            Self::Cohere => &objects::COHERE,
            Self::Seed => &tags::SEED,
            Self::Ernie => &objects::ERNIE,
            Self::Hunyuan => &tags::HUNYUAN,
            Self::HunyuanSuffixed => &tags::HUNYUAN_SUFFIXED,
            Self::HunyuanArray => &objects::HUNYUAN_ARRAY,
            Self::MiniMaxNested => &tags::MINIMAX_NESTED,
            Self::KimiXtml => &tags::KIMI_XTML,
            Self::Step => &tags::STEP,
            Self::MiMo => &tags::MIMO,
            Self::Apertus => &objects::APERTUS,
            Self::LongCat => &objects::LONGCAT,
            Self::LongCatPairs => &tags::LONGCAT_PAIRS,
            Self::Json => &objects::JSON,
        })
    }

    /// Returns the marks around an answer of the family.
    pub(crate) fn answer(self) -> Option<AnswerMarks> {
        self.row().and_then(|row| row.answer)
    }
}
