//! `headrace models`: lists models, inspects checkpoints, measures what their arithmetic costs, and makes random ones
//! to measure with. Needs no server.

mod families;
mod list;
mod make;
mod noise;
mod perplexity;
mod plan;
mod quantized;
#[cfg(test)]
mod same_model;
mod words;

use std::process::ExitCode;

use headrace_config::stored::{self, FoundCheckpoint, LocalCheckpoint, ModelFolders};
use headrace_server::model_facts;
use headrace_terminal::output;
use serde_json::json;

use self::quantized::quantized;
use crate::arguments::{InspectArgs, ModelsArgs, ModelsCommand};

/// Runs the command.
pub(crate) fn run(args: &ModelsArgs) -> ExitCode {
    let done = match &args.command {
        ModelsCommand::List(at) => return list::run(at),
        ModelsCommand::Families => {
            families::run();
            Ok(ExitCode::SUCCESS)
        }
        ModelsCommand::Inspect(args) if !args.path.exists() && stored::could_be_a_name(&args.path) => {
            match ModelFolders::of_process().find(&args.path.to_string_lossy()) {
                FoundCheckpoint::One(found) => inspected(&found, args),
                FoundCheckpoint::None(why) => Err(why),
            }
        }
        ModelsCommand::Inspect(args) => inspect(args),
        ModelsCommand::Make(args) => make::run(args).map(|()| ExitCode::SUCCESS),
        ModelsCommand::Perplexity(args) => perplexity::run(args).map(|()| ExitCode::SUCCESS),
    };
    done.unwrap_or_else(|why| output::fail(&why))
}

/// Prints the facts of a checkpoint, or why it is refused and what to do.
fn inspect(args: &InspectArgs) -> Result<ExitCode, String> {
    // Encoders have no option to quantize.
    let quantize =
        if model_facts::is_encoder(&args.path) { None } else { quantized(args.quantize.as_deref())? };
    if !args.json {
        output::say(&model_facts::to_text(&args.path, quantize).map_err(|refusal| refusal.to_string())?);
        return Ok(ExitCode::SUCCESS);
    }
    match model_facts::to_json(Some(&args.path), quantize) {
        Ok(facts) => {
            output::say(&format!("{facts:#}\n"));
            Ok(ExitCode::SUCCESS)
        }
        Err(refusal) => {
            output::say(&format!("{:#}\n", json!({ "path": args.path, "refused": refusal })));
            Ok(ExitCode::FAILURE)
        }
    }
}

/// Inspects a model that another program has stored.
fn inspected(found: &LocalCheckpoint, args: &InspectArgs) -> Result<ExitCode, String> {
    if !args.json {
        output::note(&format!("{} is {}'s, at {}", found.name, found.program, found.path.display()));
    }
    inspect(&InspectArgs { path: found.path.clone(), ..args.clone() })
}
