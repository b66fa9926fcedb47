//! `headrace chat`: starts a runtime for the chat client. Must not know the client.

use std::process::ExitCode;

use headrace_chat::arguments::ChatArgs;
use headrace_terminal::output;

/// Runs the command.
pub(crate) fn run(args: ChatArgs) -> ExitCode {
    match tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build() {
        Ok(runtime) => {
            let code = runtime.block_on(headrace_chat::run(args));
            // A read of standard input cannot be interrupted, so the runtime does not wait for it.
            runtime.shutdown_background();
            code
        }
        Err(error) => output::fail(&format!("cannot start the runtime: {error}")),
    }
}
