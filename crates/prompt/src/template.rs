//! A model's chat template, compiled once and rendered per request: the entry point of this room.
//! Must not know how its text is tokenized, only which parts of it are whose.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use headrace_domain::{Conversation, UnixNanos};
use headrace_tokenizer::Tokenizer;
use minijinja::Value;

use crate::bounds::{self, Capped, TemplateLimits, TooLong};
use crate::environment::{self, Compiled, Raised};
use crate::error::TemplateError;
use crate::fields::Fields;
use crate::mask::{MaskTable, Masker};
use crate::options::RenderOptions;
use crate::outline::{self, Outline, Outlines};
use crate::rendered::Rendered;
use crate::shown::Shown;
use crate::simple;
use crate::source::Source;
use crate::values::{self, Marks};

/// What templates are called in errors unless a name is given.
const DEFAULT_NAME: &str = "chat_template";

/// A compiled chat template.
///
/// **Whose text is whose.** Control tokens may come out of the template only, never out of a message. The template
/// is ordinary code that trims, splits and joins what it is given, so the origin of its output cannot be read off
/// its input. Instead every character of the request with which a control token could begin is replaced, before
/// rendering, by a private-use character of its own, and put back afterwards as *literal* text: whatever the
/// template does to a message, no control token in the output can begin inside one. Where the template itself
/// writes the beginning of a control token in front of an expression (`'<' ~ name ~ '>'`), the continuations are
/// masked as well. Templates that look into messages (`'</think>' in content`, `content.split('</think>')`,
/// `.startswith(…)`, `== '<…>'`) still see what they look for: string methods compare without regard to masking, and
/// literals that stand before `in` or beside `==` are masked when the template is compiled. A literal kept in a
/// variable and then compared with `in` or `==` is not covered: the comparison fails, nothing else happens.
pub struct ChatTemplate {
    compiled: Compiled,
    /// Where it does nothing with texts but write them.
    pub(crate) outlines: Option<Outlines>,
    name: String,
    masks: Arc<MaskTable>,
    /// `bos_token` and the like, as the template sees them.
    tokens: Vec<(&'static str, Value)>,
    limits: TemplateLimits,
    /// The template mentions `strftime_now`.
    tells_time: bool,
    switches: Switches,
    pub(crate) shown: Shown,
}

/// What a template lets a caller say about thinking, and about the length of answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Switches {
    /// Whether to think: `enable_thinking` or `thinking`.
    pub thinking: bool,
    /// How hard: `reasoning_effort`.
    pub effort: bool,
    /// How much the answer is to say: `verbosity`.
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
    /// Every token text that a message must not turn into ([`Tokenizer::markup_texts`]). Without it only the four
    /// above are kept out of messages.
    pub markup: Vec<String>,
}

impl SpecialTokenTexts {
    /// The four named tokens, and all markup that `tokenizer` knows.
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

    /// As [`ChatTemplate::compile`], with the name that errors use.
    ///
    /// # Errors
    /// [`TemplateError::Compile`] with the line.
    pub fn compile_named(
        name: &str,
        source: &str,
        tokens: &SpecialTokenTexts,
        limits: TemplateLimits,
    ) -> Result<Self, TemplateError> {
        let parsed = Source::read(source);
        let named = [("bos_token", &tokens.bos), ("eos_token", &tokens.eos), ("pad_token", &tokens.pad)];
        let named = named.into_iter().chain([("unk_token", &tokens.unk)]);
        let markup = tokens.markup.iter().chain(named.clone().filter_map(|(_, text)| text.as_ref()));
        let masks = Arc::new(MaskTable::new(markup.map(String::as_str), &parsed));
        let source_of_engine = parsed.rewritten(|c| masks.in_messages(c));
        let compiled = Compiled::new(source_of_engine.clone(), limits, &masks).map_err(|error| {
            TemplateError::Compile {
                template: name.to_owned(),
                line: error.line(),
                reason: error.detail().unwrap_or("not valid Jinja").to_owned(),
            }
        })?;
        let outlines = outline::only_writes(&source_of_engine, compiled.syntax())
            .then(|| {
                Compiled::new(source_of_engine, outline::part_of(limits), &masks).ok().map(Outlines::new)
            })
            .flatten();
        let tokens = named.filter_map(|(key, text)| Some((key, Value::from(text.as_deref()?)))).collect();
        let tells_time = source.contains("strftime_now");
        let template = compiled.template();
        let asked = template.map(|template| template.undeclared_variables(false));
        let asked = asked.unwrap_or_default();
        let switches = Switches {
            thinking: asked.contains("enable_thinking") || asked.contains("thinking"),
            effort: asked.contains("reasoning_effort"),
            verbosity: asked.contains("verbosity"),
        };
        let name = name.to_owned();
        let shown = Shown::default();
        let unknown = Self { compiled, outlines, name, masks, tokens, limits, tells_time, switches, shown };
        let shown = Shown::by(&|conversation| unknown.rendered_or_nothing(conversation));
        Ok(Self { shown, ..unknown })
    }

    /// Whether tools that a call offers leave a trace in the prompt. Where not, the model would never learn of them.
    pub const fn shows_tools(&self) -> bool {
        self.shown.some_of_tools()
    }

    /// What it lets a caller say about thinking.
    pub const fn switches(&self) -> Switches {
        self.switches
    }

    /// The bytes that a prompt rendered from `conversation` has at least, found without rendering it: those of the texts
    /// that this template writes out word for word, white space at their ends left out.
    pub fn least_bytes(&self, conversation: &Conversation) -> usize {
        self.shown.least_bytes(conversation)
    }

    /// A conversation's text in the year 1970; nothing where the template refuses it.
    pub(crate) fn rendered_or_nothing(&self, conversation: &Conversation) -> String {
        let options = RenderOptions { add_generation_prompt: true, now: UnixNanos::new(0), reasoning: None };
        self.render(conversation, &options).map(Rendered::into_text).unwrap_or_default()
    }

    /// Renders a conversation. Tools are left out where the caller forbids their use
    /// ([`headrace_domain::ToolChoice::None`]): not to offer them is the only way to keep a model from them.
    ///
    /// # Errors
    /// See [`TemplateError`].
    pub fn render(
        &self,
        conversation: &Conversation,
        options: &RenderOptions<'_>,
    ) -> Result<Rendered, TemplateError> {
        match self.outlined(conversation, options) {
            Some(rendered) => rendered,
            None => self.render_conversation(conversation, options, Marks::None),
        }
    }

    /// A conversation's texts within what the template writes around texts of such roles; nothing where that cannot be known.
    fn outlined(
        &self,
        conversation: &Conversation,
        options: &RenderOptions<'_>,
    ) -> Option<Result<Rendered, TemplateError>> {
        let outlines = self.outlines.as_ref()?;
        let key = outline::Key::of(conversation, options)?;
        let outline = outlines.get(&key, || {
            let (rendered, masker) = self
                .render_marked_by(&outlines.compiled, &outline::stand_in(conversation), options, Marks::Texts)
                .ok()?;
            Outline::read(&rendered, &masker)
        })?;
        let texts = conversation.messages.iter().filter_map(|message| message.content.as_deref());
        let masker = Masker::new(&self.masks, texts);
        Some(masker.map(|masker| masker.unmask(outline.fill(conversation, &masker))))
    }

    /// Renders a conversation whose last message is the beginning of the answer: the text ends where that message
    /// does. No beginning of an assistant's message is added.
    ///
    /// # Errors
    /// See [`TemplateError`]; [`TemplateError::Render`] also where the template does not show the message.
    pub fn render_to_continue(
        &self,
        conversation: &Conversation,
        options: &RenderOptions<'_>,
    ) -> Result<Rendered, TemplateError> {
        self.render_conversation(
            conversation,
            &RenderOptions { add_generation_prompt: false, ..*options },
            Marks::End,
        )
    }

    pub(crate) fn render_conversation(
        &self,
        conversation: &Conversation,
        options: &RenderOptions<'_>,
        marks: Marks,
    ) -> Result<Rendered, TemplateError> {
        let (rendered, masker) = self.render_marked(conversation, options, marks)?;
        self.finish(rendered, marks == Marks::End, &masker)
    }

    /// A conversation as the template writes it, masks and marks in place, and what takes them off.
    pub(crate) fn render_marked(
        &self,
        conversation: &Conversation,
        options: &RenderOptions<'_>,
        marks: Marks,
    ) -> Result<(String, Masker<'_>), TemplateError> {
        self.render_marked_by(&self.compiled, conversation, options, marks)
    }

    fn render_marked_by(
        &self,
        compiled: &Compiled,
        conversation: &Conversation,
        options: &RenderOptions<'_>,
        marks: Marks,
    ) -> Result<(String, Masker<'_>), TemplateError> {
        if conversation.messages.is_empty() {
            return Err(TemplateError::NoMessages);
        }
        let mut strings = values::strings(conversation);
        strings.extend(options.reasoning.and_then(|wish| wish.effort.as_deref()));
        let masker = Masker::new(&self.masks, strings)?;
        let messages = values::messages(conversation, marks, &masker);
        let tools = values::tools(conversation, &conversation.tools, marks, &masker);
        let offers_tools = !tools.is_none();
        let extra = values::variables(conversation, options.reasoning, &masker);
        let context = |tools| self.context(messages.clone(), tools, extra.clone(), options);
        let rendered = match self.run(compiled, context(tools)) {
            // The template may need types and descriptions that generated schemas do not have.
            Err(error @ (TemplateError::Render { .. } | TemplateError::Raised { .. })) if offers_tools => {
                let simple = simple::tools(&conversation.tools);
                let tools = values::tools(conversation, &simple, marks, &masker);
                // A second failure has another cause, which the first one names better.
                self.run(compiled, context(tools)).map_err(|_| error)?
            }
            rendered => rendered?,
        };
        Ok((rendered, masker))
    }

    /// Renders messages, tools and further template variables given as JSON, as `apply_chat_template` takes them.
    /// `extra` is an object; all its strings count as message text. As there, a `continue_final_message` of `true`
    /// among them ends the text where the last message does.
    ///
    /// # Errors
    /// See [`TemplateError`].
    pub fn render_values(
        &self,
        messages: &serde_json::Value,
        tools: Option<&serde_json::Value>,
        extra: &serde_json::Value,
        options: &RenderOptions<'_>,
    ) -> Result<Rendered, TemplateError> {
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

    fn finish(&self, rendered: String, end: bool, masker: &Masker<'_>) -> Result<Rendered, TemplateError> {
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
    ) -> Fields {
        let mut context = Fields::with_capacity(10);
        context.put("messages", messages);
        context.put("tools", tools);
        context.put("documents", Value::from(()));
        context.put("add_generation_prompt", Value::from(options.add_generation_prompt));
        if self.tells_time {
            context.put("strftime_now", environment::strftime_now(options.now));
        }
        self.tokens.iter().for_each(|(name, value)| context.put(*name, value.clone()));
        extra.into_iter().for_each(|(name, value)| context.put(name, value));
        context
    }

    fn run(&self, compiled: &Compiled, context: Fields) -> Result<String, TemplateError> {
        let template = compiled.template().map_err(|error| self.error(&error, false))?;
        bounds::start_counting();
        let mut output = Capped::new(compiled.max_output_bytes);
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
