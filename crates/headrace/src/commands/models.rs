//! `headrace models`: lists models, inspects checkpoints, measures what their arithmetic costs, and makes random ones
//! to measure with. Needs no server.

mod inspect;
mod inspect_encoder;
mod list;
mod make;
mod noise;
mod perplexity;
mod plan;
mod quantized;
mod words;

use std::path::Path;
use std::process::ExitCode;

use headrace_checkpoint::EncoderCheckpoint;
use headrace_quant::BlockType;
use serde_json::Value;

use crate::cli::{InspectArgs, ModelsArgs, ModelsCommand};
use crate::output;
use crate::stored::{self, FoundCheckpoint, LocalCheckpoint, ModelFolders};

/// Runs the command.
pub(crate) fn run(args: &ModelsArgs) -> ExitCode {
    let done = match &args.command {
        ModelsCommand::List(at) => return list::run(at),
        ModelsCommand::Inspect(args) if !args.path.exists() && stored::could_be_a_name(&args.path) => {
            match ModelFolders::of_process().find(&args.path.to_string_lossy()) {
                FoundCheckpoint::One(found) => inspected(&found, args),
                FoundCheckpoint::None(why) => Err(why),
            }
        }
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

/// Returns the contents of a checkpoint as JSON. `path` is `None` for the model that is built into the program.
///
/// # Errors
/// A message that says why the checkpoint would be refused.
pub(crate) fn inspect_to_json(path: Option<&Path>, quantize: Option<BlockType>) -> Result<Value, String> {
    match path {
        Some(path) if EncoderCheckpoint::is_one(path).unwrap_or(false) => inspect_encoder::to_json(path),
        path => inspect::to_json(path, quantize),
    }
}

/// Inspects a model that another program has stored.
fn inspected(found: &LocalCheckpoint, args: &InspectArgs) -> Result<(), String> {
    if !args.json {
        output::note(&format!("{} is {}'s, at {}", found.name, found.program, found.path.display()));
    }
    let args = InspectArgs { path: found.path.clone(), ..args.clone() };
    if EncoderCheckpoint::is_one(&args.path).unwrap_or(false) {
        inspect_encoder::run(&args)
    } else {
        inspect::run(&args)
    }
}
