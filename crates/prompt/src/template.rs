//! A model's chat template, compiled once and rendered per request: the entry point of this crate. Must not know how
//! the text is tokenized, only which parts of it come from messages.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use headrace_domain::{Conversation, Message, Role, UnixNanos};
use headrace_tokenizer::Tokenizer;
use minijinja::Value;

use crate::bounds::{self, CappedWriter, TemplateLimits, TooLong};
use crate::environment::{self, CompiledTemplate, Raised};
use crate::error::TemplateError;
use crate::fields::FieldList;
use crate::mask::{MaskTable, Masker};
use crate::options::RenderOptions;
use crate::outline::{self, OutlineCache, TextOutline};
use crate::rendered::RenderedPrompt;
use crate::shown::ShownParts;
use crate::simple;
use crate::source::TemplateSource;
use crate::values::{self, ContentForm, MarkedTexts};

/// A text that shows whether a template writes out the content of messages.
const PROBE: &str = "Is this text shown?";
/// The beginning of a part in a list that a template writes out: as Python shows it, and as JSON.
const WRITTEN_PARTS: [&str; 3] = ["'type': 'text'", "\"type\": \"text\"", "\"type\":\"text\""];
/// The name of templates in errors if none is given.
const DEFAULT_NAME: &str = "chat_template";

/// A compiled chat template.
///
/// **Origin of the text.** Control tokens may come only from the template, never from a message. The template is
/// ordinary code that trims, splits and joins its input, so its output does not show where a character came from.
/// Therefore every character of the request that could begin a control token is replaced by a private-use character
/// before rendering. After rendering, the character is restored as *literal* text. No operation of the template can
/// then make a control token begin inside a message.
///
/// If the template itself writes the beginning of a control token in front of an expression (`'<' ~ name ~ '>'`), the
/// continuations are masked as well. Templates that look into messages (`'</think>' in content`,
/// `content.split('</think>')`, `.startswith(…)`, `== '<…>'`) still find what they search for. String methods compare
/// without regard to masks, and literals before `in` or beside `==` are masked when the template is compiled. A literal
/// that is kept in a variable and then compared with `in` or `==` is not covered: the comparison fails, with no other
/// effect.
pub struct ChatTemplate {
    compiled: CompiledTemplate,
    /// The outlines, if the template only writes out the texts of messages.
    pub(crate) outlines: Option<OutlineCache>,
    name: String,
    masks: Arc<MaskTable>,
    /// `bos_token` and the like, as the template sees them.
    tokens: Vec<(&'static str, Value)>,
    limits: TemplateLimits,
    /// Whether the template mentions `strftime_now`.
    uses_time: bool,
    switches: TemplateSwitches,
    /// How the template reads the content of messages.
    content: ContentForm,
    pub(crate) shown: ShownParts,
}

/// The switches that a template offers for reasoning and for the length of answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TemplateSwitches {
    /// Whether to reason: `enable_thinking` or `thinking`.
    pub thinking: bool,
    /// How much to reason: `reasoning_effort`.
    pub effort: bool,
    /// How detailed the answer should be: `verbosity`.
    pub verbosity: bool,
}

/// The special tokens as text: those that a template may name, and all that message text must not become.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SpecialTokenTexts {
    /// Template variable `bos_token`.
    pub bos: Option<String>,
    /// Template variable `eos_token`.
    pub eos: Option<String>,
    /// Template variable `pad_token`.
    pub pad: Option<String>,
    /// Template variable `unk_token`.
    pub unk: Option<String>,
    /// The texts of all tokens that a message must not turn into ([`Tokenizer::markup_texts`]). If this list is empty,
    /// only the four tokens above are kept out of messages.
    pub markup: Vec<String>,
}

impl SpecialTokenTexts {
    /// Creates the texts from the four named tokens and all markup that `tokenizer` knows.
    pub fn new(
        tokenizer: &Tokenizer,
        bos: Option<String>,
        eos: Option<String>,
        pad: Option<String>,
        unk: Option<String>,
    ) -> Self {
        Self { bos, eos, pad, unk, markup: tokenizer.markup_texts() }
    }
}

impl fmt::Debug for ChatTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChatTemplate")
            .field("name", &self.name)
            .field("limits", &self.limits)
            .finish_non_exhaustive()
    }
}

impl ChatTemplate {
    /// Compiles the Jinja `source` as `transformers` would: blocks trimmed, no loading of other templates.
    ///
    /// # Errors
    /// [`TemplateError::Compile`] with the line.
    pub fn compile(
        source: &str,
        tokens: &SpecialTokenTexts,
        limits: TemplateLimits,
    ) -> Result<Self, TemplateError> {
        Self::compile_named(DEFAULT_NAME, source, tokens, limits)
    }

    /// Like [`ChatTemplate::compile`], with the name that errors use.
    ///
    /// # Errors
    /// [`TemplateError::Compile`] with the line.
    pub fn compile_named(
        name: &str,
        source: &str,
        tokens: &SpecialTokenTexts,
        limits: TemplateLimits,
    ) -> Result<Self, TemplateError> {
        let parsed = TemplateSource::read(source);
        let named = [("bos_token", &tokens.bos), ("eos_token", &tokens.eos), ("pad_token", &tokens.pad)];
        let named = named.into_iter().chain([("unk_token", &tokens.unk)]);
        let markup = tokens.markup.iter().chain(named.clone().filter_map(|(_, text)| text.as_ref()));
        let masks = Arc::new(MaskTable::new(markup.map(String::as_str), &parsed));
        let source_of_engine = parsed.rewritten(|c| masks.in_messages(c));
        let compiled = CompiledTemplate::new(source_of_engine.clone(), limits, &masks).map_err(|error| {
            TemplateError::Compile {
                template: name.to_owned(),
                line: error.line(),
                reason: error.detail().unwrap_or("not valid Jinja").to_owned(),
            }
        })?;
        let outlines = outline::only_writes(&source_of_engine, compiled.syntax())
            .then(|| {
                CompiledTemplate::new(source_of_engine, outline::part_of(limits), &masks)
                    .ok()
                    .map(OutlineCache::new)
            })
            .flatten();
        let tokens = named.filter_map(|(key, text)| Some((key, Value::from(text.as_deref()?)))).collect();
        let uses_time = source.contains("strftime_now");
        let template = compiled.template();
        let asked = template.map(|template| template.undeclared_variables(false));
        let asked = asked.unwrap_or_default();
        let switches = TemplateSwitches {
            thinking: asked.contains("enable_thinking") || asked.contains("thinking"),
            effort: asked.contains("reasoning_effort"),
            verbosity: asked.contains("verbosity"),
        };
        let name = name.to_owned();
        let shown = ShownParts::default();
        let content = ContentForm::Text;
        let mut unknown =
            Self { compiled, outlines, name, masks, tokens, limits, uses_time, switches, content, shown };
        unknown.find_content_form();
        let shown = ShownParts::by(&|conversation| unknown.rendered_or_nothing(conversation));
        Ok(Self { shown, ..unknown })
    }

    /// Finds out whether the template reads contents as lists of parts only. Such a template writes nothing of a text,
    /// or rejects it.
    fn find_content_form(&mut self) {
        let messages = vec![Message::text(Role::User, PROBE)];
        let conversation = Conversation { messages, ..Conversation::default() };
        if self.rendered_or_nothing(&conversation).contains(PROBE) {
            return;
        }
        let outlines = self.outlines.take();
        self.content = ContentForm::Parts;
        let rendered = self.rendered_or_nothing(&conversation);
        // A template that changes texts would write the list out.
        let is_written_out = WRITTEN_PARTS.iter().any(|part| rendered.contains(part));
        if is_written_out || !rendered.contains(PROBE) {
            (self.outlines, self.content) = (outlines, ContentForm::Text);
        }
    }

    /// Whether offered tools change the prompt. If not, the model would never learn of them.
    pub const fn shows_tools(&self) -> bool {
        self.shown.some_of_tools()
    }

    /// The switches that the template offers for reasoning and for the length of answers.
    pub const fn switches(&self) -> TemplateSwitches {
        self.switches
    }

    /// Returns the minimum size of a prompt rendered from `conversation`, in bytes, without rendering it. It is the
    /// size of the texts that this template writes out unchanged, without white space at their ends.
    pub fn least_bytes(&self, conversation: &Conversation) -> usize {
        self.shown.least_bytes(conversation)
    }

    /// Returns the rendered text of a conversation in the year 1970, or an empty text if the template rejects the
    /// conversation.
    pub(crate) fn rendered_or_nothing(&self, conversation: &Conversation) -> String {
        let options = RenderOptions { add_generation_prompt: true, now: UnixNanos::new(0), reasoning: None };
        self.render(conversation, &options).map(RenderedPrompt::into_text).unwrap_or_default()
    }

    /// Renders a conversation. Tools are left out if the caller forbids their use
    /// ([`headrace_domain::ToolChoice::None`]). If a grammar forbids calls
    /// ([`crate::ReplyFamily::no_calls_as_grammar`]), pass the conversation with
    /// [`Auto`](headrace_domain::ToolChoice::Auto) instead: the prompt then keeps the prefix that a cache has.
    ///
    /// # Errors
    /// See [`TemplateError`].
    pub fn render(
        &self,
        conversation: &Conversation,
        options: &RenderOptions<'_>,
    ) -> Result<RenderedPrompt, TemplateError> {
        match self.outlined(conversation, options) {
            Some(rendered) => rendered,
            None => self.render_conversation(conversation, options, MarkedTexts::None),
        }
    }

    /// Fills the conversation's texts into the outline for its roles. Returns `None` if no outline can be used.
    fn outlined(
        &self,
        conversation: &Conversation,
        options: &RenderOptions<'_>,
    ) -> Option<Result<RenderedPrompt, TemplateError>> {
        let outlines = self.outlines.as_ref()?;
        let key = outline::OutlineKey::of(conversation, options)?;
        let outline = outlines.get(&key, || {
            let (rendered, masker) = self
                .render_marked_by(
                    &outlines.compiled,
                    &outline::stand_in(conversation),
                    options,
                    MarkedTexts::Texts,
                )
                .ok()?;
            TextOutline::read(&rendered, &masker)
        })?;
        let texts = conversation.messages.iter().filter_map(|message| message.content.as_deref());
        let masker = Masker::new(&self.masks, texts);
        Some(masker.map(|masker| masker.unmask(outline.fill(conversation, &masker))))
    }

    /// Renders a conversation whose last message is the beginning of the answer. The text ends with that message, and
    /// no beginning of an assistant's message is added.
    ///
    /// # Errors
    /// See [`TemplateError`]. Also returns [`TemplateError::Render`] if the template does not show the message.
    pub fn render_to_continue(
        &self,
        conversation: &Conversation,
        options: &RenderOptions<'_>,
    ) -> Result<RenderedPrompt, TemplateError> {
        self.render_conversation(
            conversation,
            &RenderOptions { add_generation_prompt: false, ..*options },
            MarkedTexts::End,
        )
    }

    pub(crate) fn render_conversation(
        &self,
        conversation: &Conversation,
        options: &RenderOptions<'_>,
        marks: MarkedTexts,
    ) -> Result<RenderedPrompt, TemplateError> {
        let (rendered, masker) = self.render_marked(conversation, options, marks)?;
        self.finish(rendered, marks == MarkedTexts::End, &masker)
    }

    /// Renders a conversation with masks and marks still in the text. Also returns the masker that removes them.
    pub(crate) fn render_marked(
        &self,
        conversation: &Conversation,
        options: &RenderOptions<'_>,
        marks: MarkedTexts,
    ) -> Result<(String, Masker<'_>), TemplateError> {
        self.render_marked_by(&self.compiled, conversation, options, marks)
    }

    fn render_marked_by(
        &self,
        compiled: &CompiledTemplate,
        conversation: &Conversation,
        options: &RenderOptions<'_>,
        marks: MarkedTexts,
    ) -> Result<(String, Masker<'_>), TemplateError> {
        if conversation.messages.is_empty() {
            return Err(TemplateError::NoMessages);
        }
        let mut strings = values::strings(conversation);
        strings.extend(options.reasoning.and_then(|wish| wish.effort.as_deref()));
        let masker = Masker::new(&self.masks, strings)?;
        let messages = values::messages(conversation, self.content, marks, &masker);
        let tools = values::tools(conversation, &conversation.tools, marks, &masker);
        let offers_tools = !tools.is_none();
        let extra = values::variables(conversation, options.reasoning, &masker);
        let context = |tools| self.context(messages.clone(), tools, extra.clone(), options);
        let rendered = match self.run(compiled, context(tools)) {
            // The template may need types and descriptions that generated schemas do not have.
            Err(error @ (TemplateError::Render { .. } | TemplateError::Raised { .. })) if offers_tools => {
                let simple = simple::tools(&conversation.tools);
                let tools = values::tools(conversation, &simple, marks, &masker);
                // A second failure has another cause. The first error describes that cause better.
                self.run(compiled, context(tools)).map_err(|_| error)?
            }
            rendered => rendered?,
        };
        Ok((rendered, masker))
    }

    /// Renders messages, tools and further template variables given as JSON, as `apply_chat_template` takes them.
    /// `extra` is an object, and all its strings count as message text. As in `apply_chat_template`, the text ends with
    /// the last message if `extra` contains a `continue_final_message` of `true`.
    ///
    /// # Errors
    /// See [`TemplateError`].
    pub fn render_values(
        &self,
        messages: &serde_json::Value,
        tools: Option<&serde_json::Value>,
        extra: &serde_json::Value,
        options: &RenderOptions<'_>,
    ) -> Result<RenderedPrompt, TemplateError> {
        if messages.as_array().is_none_or(Vec::is_empty) {
            return Err(TemplateError::NoMessages);
        }
        let end = extra.get("continue_final_message").and_then(serde_json::Value::as_bool) == Some(true);
        let mut strings = Vec::new();
        values::json_strings(messages, &mut strings);
        tools.into_iter().chain([extra]).for_each(|json| values::json_strings(json, &mut strings));
        let masker = Masker::new(&self.masks, strings)?;
        let messages = values::json_messages(messages, end, &masker);
        let tools = tools.map_or_else(|| Value::from(()), |tools| values::json(tools, &masker));
        let extra = extra.as_object().into_iter().flatten();
        let extra =
            extra.map(|(key, value)| (Cow::Owned(key.clone()), values::json(value, &masker))).collect();
        let rendered = self.run(&self.compiled, self.context(messages, tools, extra, options))?;
        self.finish(rendered, end, &masker)
    }

    fn finish(
        &self,
        rendered: String,
        end: bool,
        masker: &Masker<'_>,
    ) -> Result<RenderedPrompt, TemplateError> {
        if !end {
            return Ok(masker.unmask(rendered));
        }
        let cut = masker.cut_at_end(rendered).ok_or_else(|| TemplateError::Render {
            template: self.name.clone(),
            line: None,
            reason: "the message to be continued does not appear in the prompt".to_owned(),
        })?;
        Ok(masker.unmask(cut))
    }

    fn context(
        &self,
        messages: Value,
        tools: Value,
        extra: Vec<(Cow<'static, str>, Value)>,
        options: &RenderOptions<'_>,
    ) -> FieldList {
        let mut context = FieldList::with_capacity(10);
        context.put("messages", messages);
        context.put("tools", tools);
        context.put("documents", Value::from(()));
        context.put("add_generation_prompt", Value::from(options.add_generation_prompt));
        if self.uses_time {
            context.put("strftime_now", environment::strftime_now(options.now));
        }
        self.tokens.iter().for_each(|(name, value)| context.put(*name, value.clone()));
        extra.into_iter().for_each(|(name, value)| context.put(name, value));
        context
    }

    fn run(&self, compiled: &CompiledTemplate, context: FieldList) -> Result<String, TemplateError> {
        let template = compiled.template().map_err(|error| self.error(&error, false))?;
        bounds::start_counting();
        let mut output = CappedWriter::new(compiled.max_output_bytes);
        let done = template.render_captured_to(Value::from(context), &mut output).map(|_| ());
        done.map_err(|error| self.error(&error, output.hit))?;
        String::from_utf8(output.bytes).map_err(|_| TemplateError::Render {
            template: self.name.clone(),
            line: None,
            reason: "the output is not UTF-8".to_owned(),
        })
    }

    fn error(&self, error: &minijinja::Error, output_full: bool) -> TemplateError {
        let template = self.name.clone();
        let mut cause: Option<&dyn std::error::Error> = Some(error);
        while let Some(at) = cause {
            if let Some(Raised(message)) = at.downcast_ref() {
                return TemplateError::Raised { template, message: self.masks.fold(message) };
            }
            let fuel = at
                .downcast_ref()
                .is_some_and(|e: &minijinja::Error| e.kind() == minijinja::ErrorKind::OutOfFuel);
            if fuel {
                return TemplateError::OutOfFuel { template, limit: self.limits.fuel };
            }
            if output_full || at.is::<TooLong>() {
                return TemplateError::OutputTooLong { template, limit_bytes: self.limits.max_output_bytes };
            }
            cause = at.source();
        }
        let reason = self.masks.fold(error.detail().unwrap_or("an operation failed"));
        TemplateError::Render { template, line: error.line(), reason }
    }
}
