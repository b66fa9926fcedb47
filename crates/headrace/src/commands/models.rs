//! `headrace models`: what a checkpoint holds, what its arithmetic costs, and random ones to measure with. Needs no server and no data directory.

mod inspect;
mod make;
mod noise;
mod perplexity;
mod plan;
mod quantized;
mod words;

use std::process::ExitCode;

use crate::cli::{ModelsArgs, ModelsCommand};
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
