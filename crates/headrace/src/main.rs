//! The binary: parses the command line, dispatches, and turns the outcome into an exit code. The codes are 0 for
//! success, 1 for failure, 2 for wrong usage or configuration, and 130 for an interruption.

mod admin_door;
mod batches;
mod ca;
mod caches;
mod call_log;
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
mod earth;
mod encoders;
mod engines;
mod first_start;
mod gauges;
mod gpu;
mod hardening;
mod health;
mod history;
mod hosted;
mod house;
mod inside;
mod insight;
mod key_names;
mod key_text;
mod known_calls;
mod log;
mod machine;
mod models;
mod newest;
mod objects;
mod offers;
mod output;
mod outward;
mod playground;
mod port_holder;
mod progress;
mod prompts;
mod records;
mod reload;
mod running;
mod server;
mod session_file;
mod sights;
mod signals;
mod spending;
mod stored;
mod upstreams;
mod welcome;
mod wordbooks;
mod workers;

use std::process::ExitCode;

use cli::{Cli, Command};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let cli = match Cli::read() {
        Ok(cli) => cli,
        Err(code) => return code,
    };
    match cli.command {
        Command::Up(args) => server::up(&args),
        Command::Serve(args) => server::serve(&args),
        Command::Config(args) => commands::config(&args),
        Command::Keys(args) => commands::keys::run(args),
        Command::Operators(args) => commands::operators::run(args),
        Command::Orgs(args) => commands::places::orgs(args),
        Command::Projects(args) => commands::places::projects(args),
        Command::Credit(args) => commands::money::credit(args),
        Command::Budget(args) => commands::money::budget(args),
        Command::Ledger(args) => commands::money::ledger(&args),
        Command::Trace(args) => commands::trace::run(&args),
        Command::Errors(args) => commands::errors::run(&args),
        Command::Requests(args) => commands::requests::run(&args),
        Command::Usage(args) => commands::usage::usage(&args),
        Command::Statement(args) => commands::usage::statement(&args),
        Command::Cache(args) => commands::cache::run(&args),
        Command::Margin(args) => commands::margin::run(&args),
        Command::Status(at) => commands::status::run(&at),
        Command::Now(at) => commands::now::run(&at),
        Command::Reload(at) => commands::status::reload(&at),
        Command::Upstreams(args) => commands::upstreams::run(args),
        Command::Routes(args) => commands::routes::run(args),
        Command::Shadow(args) => commands::shadow::run(&args),
        Command::Backup(args) => commands::backup::run(&args),
        Command::Audit(args) => commands::status::audit(&args),
        Command::Chat(args) => talk(args),
        Command::Batches(args) => batches::run(&args),
        Command::Bench(args) => commands::bench::run(&args),
        Command::Ping(args) => commands::ping::run(&args),
        Command::Models(args) => commands::models::run(&args),
        Command::Render(args) => commands::lens::render(&args),
        Command::Tokenize(args) => commands::lens::tokenize(&args),
        Command::Doctor(args) => commands::lens::doctor(&args),
        Command::Completions(args) => commands::shells::completions(&args),
        Command::Man(args) => commands::shells::man(&args),
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
