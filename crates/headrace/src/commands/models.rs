//! `headrace models`: what a checkpoint holds, what its arithmetic costs, and random ones to measure with. Needs no server and no data directory.

mod inspect;
mod make;
mod noise;
mod perplexity;
mod plan;
mod words;

use std::process::ExitCode;

use headrace_quant::BlockType;

use crate::cli::{ModelsArgs, ModelsCommand};
use crate::config::arithmetic::QUANTIZED;
use crate::output;

/// Does it.
pub(crate) fn run(args: &ModelsArgs) -> ExitCode {
    let done = match &args.command {
        ModelsCommand::Inspect(args) => inspect::run(args),
        ModelsCommand::Make(args) => make::run(args),
        ModelsCommand::Perplexity(args) => perplexity::run(args),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => output::fail(&why),
    }
}

/// The type that `--quantize` names.
fn quantized(name: Option<&str>) -> Result<Option<BlockType>, String> {
    let Some(name) = name.filter(|name| !name.eq_ignore_ascii_case("none")) else { return Ok(None) };
    let kind = BlockType::from_name(name);
    let unknown = || format!("`--quantize` cannot be `{name}`; there are {}", QUANTIZED.join(", "));
    kind.map(Some).ok_or_else(unknown)
}
