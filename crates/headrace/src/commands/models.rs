//! `headrace models`: what a checkpoint holds, what its arithmetic costs, and random ones to measure with. Needs no server and no data directory.

mod inspect;
mod inspect_encoder;
mod make;
mod noise;
mod perplexity;
mod plan;
mod quantized;
mod words;

use std::process::ExitCode;

use headrace_checkpoint::EncoderCheckpoint;

use crate::cli::{ModelsArgs, ModelsCommand};
use crate::output;

/// Does it.
pub(crate) fn run(args: &ModelsArgs) -> ExitCode {
    let done = match &args.command {
        ModelsCommand::Inspect(args) if EncoderCheckpoint::is_one(&args.path).unwrap_or(false) => {
            inspect_encoder::run(args)
        }
        ModelsCommand::Inspect(args) => inspect::run(args),
        ModelsCommand::Make(args) => make::run(args),
        ModelsCommand::Perplexity(args) => perplexity::run(args),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => output::fail(&why),
    }
}
