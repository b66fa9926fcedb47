//! `headrace render`: exactly what a model sees of a call, and what that costs. Must not know how it is found out.

use std::borrow::Cow;
use std::process::ExitCode;

use headrace_domain::{Clock, Conversation, NanoDollars, PriceTier, SystemClock, Usage};
use headrace_gateway::ToolsOrder;
use headrace_lens::{DrawOptions, PromptSight, Words, draw_prompt, sight};
use headrace_prompt::RenderOptions;
use serde::Serialize;

use super::input::Asked;
use super::which::{Found, find, knows};
use crate::cli::lens::{OfModel, RenderArgs};
use crate::output;

/// What is printed.
#[derive(Serialize)]
struct Report {
    model: String,
    /// Longest context, in positions.
    context: Option<usize>,
    /// What the prompt costs; `None`: nobody has said.
    cost: Option<Cost>,
    #[serde(flatten)]
    sight: PromptSight,
}

/// Of a prompt, in nano-dollars.
#[derive(Clone, Copy, Serialize)]
struct Cost {
    /// Where nothing of it comes from a cache.
    uncached_nano_dollars: i64,
    /// Where as much of it as can be comes from there.
    cached_nano_dollars: i64,
}

pub(crate) fn run(args: &RenderArgs) -> ExitCode {
    match report(args) {
        Ok(report) if args.of.json => super::say_json(&report),
        Ok(report) => {
            let (width, color) = output::terminal();
            let options = DrawOptions { width, color, bounds: args.bounds };
            output::say(&draw_prompt(&report.sight, &options));
            output::say(&last_line(&report));
            ExitCode::SUCCESS
        }
        Err(why) => output::fail(&why),
    }
}

fn report(args: &RenderArgs) -> Result<Report, String> {
    let asked = Asked::read(&args.prompt, args.system.as_deref(), args.body)?;
    let found = model(&args.of, asked.model.as_deref())?;
    let words = found.words()?;
    let before = match &args.after {
        None => None,
        Some(after) => Some(seen(&found, &words, &Asked::read(after, None, args.body)?, None)?),
    };
    let sight = seen(&found, &words, &asked, before.as_ref())?;
    let cost = cost(&found, &sight);
    Ok(Report { context: found.wording.max_positions(), cost, sight, model: found.name })
}

/// The model that is named; or else the body's, where the configuration has it; or else the first.
fn model(of: &OfModel, body: Option<&str>) -> Result<Found, String> {
    let config = of.config.as_deref();
    let body = body.filter(|name| knows(config, name));
    find(config, of.model.as_deref().or(body))
}

fn seen(
    found: &Found,
    words: &Words,
    asked: &Asked,
    before: Option<&PromptSight>,
) -> Result<PromptSight, String> {
    let conversation = shown(found, asked.conversation()?);
    let now = SystemClock::new().now();
    let options = RenderOptions { add_generation_prompt: true, now, reasoning: Some(&asked.call.reasoning) };
    sight(words, &conversation, &options, before).map_err(|error| format!("{}: {error}", found.name))
}

/// The conversation as the server gives it to the template.
fn shown<'c>(found: &Found, conversation: &'c Conversation) -> Cow<'c, Conversation> {
    if found.tools_order == ToolsOrder::AsSent || conversation.tools.is_empty() {
        return Cow::Borrowed(conversation);
    }
    let mut sorted = conversation.clone();
    for tool in &mut sorted.tools {
        tool.parameters = tool.parameters.take().map(headrace_wire::canonical::value);
    }
    Cow::Owned(sorted)
}

fn cost(found: &Found, sight: &PromptSight) -> Option<Cost> {
    let quote = found.quote.as_ref()?;
    let all = u64::try_from(sight.count).ok()?;
    let cached = u64::try_from(sight.cached_tokens.unwrap_or(sight.cacheable_tokens)).ok()?;
    let rates = quote.rates(PriceTier::Standard, all);
    let whole = rates.cost(&Usage { input: all, ..Usage::default() }).ok()?;
    let usage = Usage { input: all.saturating_sub(cached), cached_input: cached, ..Usage::default() };
    let cached = rates.cost(&usage).ok()?;
    Some(Cost { uncached_nano_dollars: whole.get(), cached_nano_dollars: cached.get() })
}

fn last_line(report: &Report) -> String {
    let sight = &report.sight;
    let mut line = format!(
        "{}: {} tokens, {} of them marks; {} bytes",
        report.model,
        sight.count,
        sight.special_tokens,
        sight.text.len()
    );
    if let Some(context) = report.context {
        line.push_str(&format!("; {} of {context} positions are left", context.saturating_sub(sight.count)));
    }
    line.push('\n');
    let dollars = |nanos: i64| NanoDollars::new(nanos);
    let cached = sight.cached_tokens.unwrap_or(sight.cacheable_tokens);
    match report.cost {
        None => line.push_str("cost: nobody has said what its tokens cost (--config)\n"),
        Some(Cost { uncached_nano_dollars: whole, .. }) if cached == 0 => {
            line.push_str(&format!("cost: {}\n", dollars(whole)));
        }
        Some(Cost { uncached_nano_dollars: whole, cached_nano_dollars: part }) => line.push_str(&format!(
            "cost: {}, or {} with {cached} tokens from a cache\n",
            dollars(whole),
            dollars(part)
        )),
    }
    line
}
