//! `headrace render`: shows exactly what a model sees of a call, and its cost. Must not know how either is computed.

use std::process::ExitCode;

use headrace_domain::NanoDollars;
use headrace_inspect::{DrawOptions, PromptReport, draw_prompt};
use headrace_server::found_model::FoundModel;
use headrace_server::prompt_reports::{PromptCost, RenderReport, cost, seen};
use headrace_terminal::output;

use super::input::RenderInput;
use super::which::{find, knows};
use crate::arguments::inspection::{OfModel, RenderArgs};
use crate::commands;

pub(crate) fn run(args: &RenderArgs) -> ExitCode {
    match report(args) {
        Ok(report) if args.of.json => super::say_json(&report),
        Ok(report) => {
            let (width, color) = output::terminal();
            let options = DrawOptions { width, color, bounds: args.bounds };
            output::say_drawn(&draw_prompt(&report.prompt_report, &options));
            output::say(&last_line(&report));
            ExitCode::SUCCESS
        }
        Err(why) => output::fail(&why),
    }
}

fn report(args: &RenderArgs) -> Result<RenderReport, String> {
    let limits = commands::configuration_of(args.of.config.as_deref())?.gateway.wire;
    let asked = RenderInput::read(&args.prompt, args.system.as_deref(), args.body, &limits)?;
    let found = model(&args.of, asked.model.as_deref())?;
    let words = found.words()?;
    let see = |asked: &RenderInput, before: Option<&PromptReport>| {
        seen(&words, found.tools_order, &asked.call, before).map_err(|why| format!("{}: {why}", found.name))
    };
    let before = match &args.after {
        None => None,
        Some(after) => Some(see(&RenderInput::read(after, None, args.body, &limits)?, None)?),
    };
    let prompt_report = see(&asked, before.as_ref())?;
    let cost = cost(found.quote.as_ref(), &prompt_report);
    Ok(RenderReport { context: found.wording.max_positions(), cost, prompt_report, model: found.name })
}

/// Finds the model: the one named by option, otherwise the body's if the configuration has it, otherwise the first.
fn model(of: &OfModel, body: Option<&str>) -> Result<FoundModel, String> {
    let config = of.config.as_deref();
    let body = body.filter(|name| knows(config, name));
    find(config, of.model.as_deref().or(body))
}

fn last_line(report: &RenderReport) -> String {
    let prompt_report = &report.prompt_report;
    let mut line = format!(
        "{}: {} tokens, {} of them marks; {} bytes",
        report.model,
        prompt_report.count,
        prompt_report.special_tokens,
        prompt_report.text.len()
    );
    if let Some(context) = report.context {
        line.push_str(&format!(
            "; {} of {context} positions are left",
            context.saturating_sub(prompt_report.count)
        ));
    }
    line.push('\n');
    let dollars = |nanos: i64| NanoDollars::new(nanos);
    let cached = prompt_report.cached_tokens.unwrap_or(prompt_report.cacheable_tokens);
    match report.cost {
        None => line.push_str("cost: its tokens have no configured price (--config)\n"),
        Some(PromptCost { uncached_nano_dollars: whole, .. }) if cached == 0 => {
            line.push_str(&format!("cost: {}\n", dollars(whole)));
        }
        Some(PromptCost { uncached_nano_dollars: whole, cached_nano_dollars: part }) => line.push_str(
            &format!("cost: {}, or {} with {cached} tokens from a cache\n", dollars(whole), dollars(part)),
        ),
    }
    line
}
