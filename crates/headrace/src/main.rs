//! The binary: parses the command line, dispatches, and turns the outcome into an exit code. The codes are 0 for
//! success, 1 for failure, 2 for wrong usage or configuration, and 130 for an interruption.

mod admin_data;
mod admin_listener;
mod banner;
mod batches;
mod ca;
mod caches;
mod call_log;
mod call_records;
mod caller;
mod canaries;
mod chat;
mod check;
mod cli;
mod commands;
mod config;
mod datadir;
mod descriptors;
mod doors;
mod encoders;
mod engines;
mod exporters;
mod first_start;
mod gauges;
mod geo;
mod gpu;
mod hardening;
mod health;
mod history;
mod key_names;
mod key_text;
mod live_stats;
mod local_engine;
mod local_server;
mod log;
mod machine;
mod models;
mod newest;
mod objects;
mod output;
mod playground;
mod port_holder;
mod progress;
mod prompt_reports;
mod prompts;
mod records;
mod reload;
mod running_model;
mod server;
mod session_file;
mod signals;
mod spending;
mod stored;
mod tokenizer_assets;
mod upstreams;
mod worker_offers;
mod workers;

use std::process::ExitCode;

use cli::{ProgramArgs, ProgramCommand};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let cli = match ProgramArgs::read() {
        Ok(cli) => cli,
        Err(code) => return code,
    };
    match cli.command {
        ProgramCommand::Up(args) => server::up(&args),
        ProgramCommand::Serve(args) => server::serve(&args),
        ProgramCommand::Config(args) => commands::config(&args),
        ProgramCommand::Keys(args) => commands::keys::run(args),
        ProgramCommand::Operators(args) => commands::operators::run(args),
        ProgramCommand::Orgs(args) => commands::places::orgs(args),
        ProgramCommand::Projects(args) => commands::places::projects(args),
        ProgramCommand::Credit(args) => commands::money::credit(args),
        ProgramCommand::Budget(args) => commands::money::budget(args),
        ProgramCommand::Ledger(args) => commands::money::ledger(&args),
        ProgramCommand::Trace(args) => commands::trace::run(&args),
        ProgramCommand::Errors(args) => commands::errors::run(&args),
        ProgramCommand::Requests(args) => commands::requests::run(&args),
        ProgramCommand::Usage(args) => commands::usage::usage(&args),
        ProgramCommand::Statement(args) => commands::usage::statement(&args),
        ProgramCommand::Cache(args) => commands::cache::run(&args),
        ProgramCommand::Margin(args) => commands::margin::run(&args),
        ProgramCommand::Status(at) => commands::status::run(&at),
        ProgramCommand::Now(at) => commands::now::run(&at),
        ProgramCommand::Reload(at) => commands::status::reload(&at),
        ProgramCommand::Upstreams(args) => commands::upstreams::run(args),
        ProgramCommand::Routes(args) => commands::routes::run(args),
        ProgramCommand::Shadow(args) => commands::shadow::run(&args),
        ProgramCommand::Backup(args) => commands::backup::run(&args),
        ProgramCommand::Audit(args) => commands::status::audit(&args),
        ProgramCommand::Chat(args) => talk(args),
        ProgramCommand::Batches(args) => batches::run(&args),
        ProgramCommand::Bench(args) => commands::bench::run(&args),
        ProgramCommand::Ping(args) => commands::ping::run(&args),
        ProgramCommand::Models(args) => commands::models::run(&args),
        ProgramCommand::Render(args) => commands::lens::render(&args),
        ProgramCommand::Tokenize(args) => commands::lens::tokenize(&args),
        ProgramCommand::Doctor(args) => commands::lens::doctor(&args),
        ProgramCommand::Completions(args) => commands::shells::completions(&args),
        ProgramCommand::Man(args) => commands::shells::man(&args),
    }
}

fn talk(args: cli::chat::ChatArgs) -> ExitCode {
    match tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build() {
        Ok(runtime) => {
            let code = runtime.block_on(chat::run(args));
            // A read of standard input cannot be interrupted, so the runtime does not wait for it.
            runtime.shutdown_background();
            code
        }
        Err(error) => output::fail(&format!("cannot start the runtime: {error}")),
    }
}
