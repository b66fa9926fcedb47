//! The commands of the program. Parses the command line, dispatches, and turns the outcome into an exit code. The codes
//! are 0 for success, 1 for failure, 2 for wrong usage or configuration, and 130 for an interruption.

mod arguments;
mod batches;
mod commands;
mod geo;

use std::process::ExitCode;

use arguments::{ProgramArgs, ProgramCommand};

/// Runs the command that the command line names, and returns the exit code of the process.
pub fn run() -> ExitCode {
    let cli = match ProgramArgs::read() {
        Ok(cli) => cli,
        Err(code) => return code,
    };
    match cli.command {
        ProgramCommand::Up(args) => commands::serve::up(&args),
        ProgramCommand::Serve(args) => commands::serve::serve(&args),
        ProgramCommand::Config(args) => commands::config(&args),
        ProgramCommand::Keys(args) => commands::keys::run(args),
        ProgramCommand::Tiers(args) => commands::tiers::run(args),
        ProgramCommand::Budgets(args) => commands::budgets::run(args),
        ProgramCommand::Invoices(args) => commands::invoices::run(args),
        ProgramCommand::Webhooks(args) => commands::webhooks::run(args),
        ProgramCommand::Users(args) => commands::accounts::users(args),
        ProgramCommand::ServiceAccounts(args) => commands::accounts::service_accounts(args),
        ProgramCommand::Groups(args) => commands::accounts::groups(args),
        ProgramCommand::Scim(args) => commands::accounts::scim(args),
        ProgramCommand::Operators(args) => commands::operators::run(args),
        ProgramCommand::Orgs(args) => commands::places::orgs(args),
        ProgramCommand::Projects(args) => commands::places::projects(args),
        ProgramCommand::Credit(args) => commands::money::credit(args),
        ProgramCommand::Lots(args) => commands::lots::lots(args),
        ProgramCommand::FreeTiers(args) => commands::lots::free_tiers(args),
        ProgramCommand::Refund(args) => commands::refund::run(args),
        ProgramCommand::Budget(args) => commands::money::budget(args),
        ProgramCommand::Ledger(args) => commands::money::ledger(&args),
        ProgramCommand::Trace(args) => commands::trace::run(&args),
        ProgramCommand::Errors(args) => commands::errors::run(&args),
        ProgramCommand::Receipt(args) => commands::receipts::run(args),
        ProgramCommand::Requests(args) => commands::requests::run(&args),
        ProgramCommand::Datasets(args) => commands::contents::datasets(&args),
        ProgramCommand::Forget(args) => commands::contents::forget(args),
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
        ProgramCommand::Move(args) => commands::transfer::run(&args),
        ProgramCommand::Secrets(args) => commands::secrets::run(&args),
        ProgramCommand::Audit(args) => commands::audit::run(&args),
        ProgramCommand::Chat(args) => commands::chat::run(args),
        ProgramCommand::Batches(args) => batches::run(&args),
        ProgramCommand::Bench(args) => commands::bench::run(&args),
        ProgramCommand::Ping(args) => commands::ping::run(&args),
        ProgramCommand::Models(args) => commands::models::run(&args),
        ProgramCommand::Render(args) => commands::inspection::render(&args),
        ProgramCommand::Tokenize(args) => commands::inspection::tokenize(&args),
        ProgramCommand::Doctor(args) => commands::inspection::doctor(&args),
        ProgramCommand::Completions(args) => commands::shells::completions(&args),
        ProgramCommand::Man(args) => commands::shells::man(&args),
    }
}
