//! A newcomer's first five minutes, automated: starts `headrace up`, asks the demo model, reads the trace, stops the
//! server with SIGTERM, and verifies the ledger. Runs once for each instruction set of this machine.

use std::path::Path;
use std::time::Instant;

use serde_json::{Value, json};

use crate::server::{KEY, Server, free_address, header, wrong};
use crate::shell::{Done, Failure, Place, capture, read};

/// Runs the step.
pub(crate) fn run(place: &Place) -> Result<Done, Failure> {
    for isa in &instruction_sets(place)? {
        let started = Instant::now();
        once(place, isa).map_err(|failure| {
            failure.with_remedy(format!(
                "start it by hand and look: HEADRACE_ISA={isa} HEADRACE_BOOTSTRAP_KEY={KEY} target/release/headrace up"
            ))
        })?;
        println!(
            "{isa}: answered as recorded, billed, traced, stopped and verified in {:.1} s",
            started.elapsed().as_secs_f64()
        );
    }
    Ok(Done::Passed)
}

/// The instruction sets that `HEADRACE_ISA` can select on this machine, slowest first, according to the program itself.
pub(crate) fn instruction_sets(place: &Place) -> Result<Vec<String>, Failure> {
    let said =
        capture(place.command(place.headrace()).arg("--version"), "target/release/headrace --version")?;
    sets(&said).ok_or_else(|| {
        Failure::new(
            format!("`headrace --version` names no instruction sets:\n{said}"),
            "see VERSION in crates/cli/src/arguments.rs",
        )
    })
}

fn sets(said: &str) -> Option<Vec<String>> {
    let line = said.lines().find_map(|line| line.strip_prefix("instruction sets: "))?;
    Some(line.split(", ").map(str::to_owned).collect())
}

fn once(place: &Place, isa: &str) -> Result<(), Failure> {
    let data = place.target.join("smoke").join(isa);
    if data.exists() {
        std::fs::remove_dir_all(&data).map_err(|error| wrong(format!("{}: {error}", data.display())))?;
    }
    std::fs::create_dir_all(&data).map_err(|error| wrong(format!("{}: {error}", data.display())))?;
    let address = free_address()?;
    let mut command = place.command(place.headrace());
    command.args(["up", "--listen", &address, "--data-dir"]).arg(&data);
    command.env("HEADRACE_ISA", isa).env("HEADRACE_BOOTSTRAP_KEY", KEY);
    let mut server = Server::start(command, address, &data.join("server.log"))?;
    server.wait_until_ready()?;

    let expected = recorded(place)?;
    let models = server.get("/v1/models")?;
    let model = text(&models, "/data/0/id")?;
    // The length of the recording, which was cut off if the answer was longer.
    let length = expected.get("greedy").and_then(Value::as_array).map_or(0, Vec::len);
    let request = json!({
        "model": model, "messages": expected.get("messages"), "temperature": 0, "max_tokens": length,
    });
    let (status, headers, answer) = server.ask("POST", "/v1/chat/completions", Some(&request))?;
    if status != 200 {
        return Err(wrong(format!("the demo model answered {status}: {answer}")));
    }
    let wanted = text(&expected, "/greedy_text")?.trim_end_matches("<|im_end|>").trim_end().to_owned();
    let found = text(&answer, "/choices/0/message/content")?;
    if found.trim_end() != wanted {
        return Err(wrong(format!(
            "on {isa} the demo model said\n{found}\ninstead of what was recorded:\n{wanted}"
        )));
    }
    let id =
        header(&headers, "x-request-id").ok_or_else(|| wrong("the answer has no x-request-id".to_owned()))?;
    server.traced(&id)?;
    server.stop()?;
    verified(place, &data)
}

/// The first recorded conversation of the demo model that needs no tools.
fn recorded(place: &Place) -> Result<Value, Failure> {
    let all: Value = serde_json::from_str(&read(&place.root.join("demo-model/checkpoint/expected.json"))?)
        .map_err(|error| wrong(format!("demo-model/checkpoint/expected.json: {error}")))?;
    let rows = all.as_array().map_or(&[][..], Vec::as_slice);
    let row = rows.iter().find(|row| row.get("tools").is_some_and(Value::is_null));
    row.cloned().ok_or_else(|| wrong("expected.json has no conversation without tools".to_owned()))
}

/// Checks the data after the server has ended: the ledger balances, and the trace can still be drawn.
fn verified(place: &Place, data: &Path) -> Result<(), Failure> {
    for arguments in [&["ledger", "verify"][..], &["trace", "--last"][..]] {
        let line = format!("headrace {} --data-dir {}", arguments.join(" "), data.display());
        let printed =
            capture(place.command(place.headrace()).args(arguments).arg("--data-dir").arg(data), &line)?;
        if printed.trim().is_empty() {
            return Err(wrong(format!("`{line}` printed nothing")));
        }
    }
    Ok(())
}

fn text(value: &Value, pointer: &str) -> Result<String, Failure> {
    let found = value.pointer(pointer).and_then(Value::as_str);
    found.map(str::to_owned).ok_or_else(|| wrong(format!("no text at {pointer} in {value}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instruction_sets_are_read_from_what_the_program_says() {
        let said = "headrace 1.2.3\ninstruction sets: scalar, avx2\nkernels: 2\n";
        assert_eq!(sets(said), Some(vec!["scalar".to_owned(), "avx2".to_owned()]));
        assert_eq!(sets("headrace 1.2.3\n"), None);
    }
}
