//! `headrace audit`: shows, exports and verifies the audit log.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::ExitCode;

use headrace_admin::{AdminCommand, AdminReply, AuditAct, AuditLine, AuditReply, SignedAuditHead};
use headrace_identity::{AuditChecker, AuditSummary};
use headrace_server::audit_heads::{AuditKeys, check_head, heads_file, parse_keys};
use headrace_terminal::output;
use serde_json::Value;

use crate::arguments::ServerArgs;
use crate::arguments::audit::{AuditArgs, AuditCommand};
use crate::commands::{CommandError, ask, data_dir, execute, print, time, unexpected};

/// Rows of one page.
const PAGE: u32 = 1_000;

/// Runs the command.
pub(crate) fn run(args: &AuditArgs) -> ExitCode {
    match &args.command {
        None => show(args),
        Some(AuditCommand::Key) => print(head(&args.at).map(|head| format!("{:#}\n", head.keys))),
        Some(AuditCommand::Export) => match export(&args.at, &mut std::io::stdout().lock()) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => error.exit(),
        },
        Some(AuditCommand::Verify { file, key }) => {
            let keys = key.as_deref().map(read_keys).transpose();
            print(keys.and_then(|keys| match file {
                Some(file) => verify_export(file, keys.as_ref()),
                None => verify_own(&args.at, keys),
            }))
        }
    }
}

/// Prints the newest rows.
fn show(args: &AuditArgs) -> ExitCode {
    execute(&args.at, AdminCommand::ShowAudit { last: args.last, before: None }, |reply| match reply {
        AdminReply::Audit(rows) => {
            let rows = rows.into_iter();
            let rows = rows.map(|row| {
                vec![row.seq.to_string(), time(Some(row.at)), row.actor, row.act, row.subject, row.detail]
            });
            output::table(&["#", "when (UTC)", "who", "what", "to what", "how"], rows.collect())
        }
        other => unexpected(&other),
    })
}

fn audit(at: &ServerArgs, act: AuditAct) -> Result<AuditReply, CommandError> {
    match ask(at, AdminCommand::AuditLog { act })? {
        AdminReply::AuditLog(reply) => Ok(reply),
        other => Err(CommandError::Other(unexpected(&other))),
    }
}

fn head(at: &ServerArgs) -> Result<SignedAuditHead, CommandError> {
    match audit(at, AuditAct::Head)? {
        AuditReply::Head { head } => Ok(head),
        other => Err(CommandError::Other(unexpected(&AdminReply::AuditLog(other)))),
    }
}

/// Passes the rows of the log to `take`, in order.
fn each_row(
    at: &ServerArgs,
    take: &mut dyn FnMut(AuditLine) -> Result<(), CommandError>,
) -> Result<(), CommandError> {
    let mut after = 0;
    loop {
        let rows = match audit(at, AuditAct::Rows { after, limit: PAGE })? {
            AuditReply::Rows { rows } => rows,
            other => return Err(CommandError::Other(unexpected(&AdminReply::AuditLog(other)))),
        };
        let Some(last) = rows.last() else { return Ok(()) };
        after = last.row;
        rows.into_iter().try_for_each(&mut *take)?;
    }
}

/// Writes all rows up to the signed end, and the end.
fn export(at: &ServerArgs, out: &mut dyn Write) -> Result<(), CommandError> {
    let head = head(at)?;
    let failed = |error: std::io::Error| CommandError::Other(format!("cannot write: {error}"));
    let json = |error: serde_json::Error| CommandError::Other(error.to_string());
    each_row(at, &mut |row| {
        if row.row > head.rows {
            // A row from after the signature.
            return Ok(());
        }
        writeln!(out, "{}", serde_json::to_string(&row).map_err(json)?).map_err(failed)
    })?;
    writeln!(out, "{}", serde_json::to_string(&head).map_err(json)?).map_err(failed)?;
    out.flush().map_err(failed)
}

fn read_keys(path: &Path) -> Result<AuditKeys, CommandError> {
    let fault = |why: String| CommandError::Other(format!("{}: {why}", path.display()));
    let document = std::fs::read(path).map_err(|error| fault(error.to_string()))?;
    parse_keys(&document).map_err(|error| fault(error.to_string()))
}

/// Checks the log of a server, and the statements in its data directory.
fn verify_own(at: &ServerArgs, keys: Option<AuditKeys>) -> Result<String, CommandError> {
    let keys = match keys {
        Some(keys) => keys,
        None => parse_keys(head(at)?.keys.to_string().as_bytes())
            .map_err(|error| CommandError::Other(error.to_string()))?,
    };
    let path = heads_file(&data_dir(at)?);
    let heads = match std::fs::File::open(&path) {
        Ok(file) => read_heads(BufReader::new(file), &path, &keys)?,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Vec::new(),
        Err(error) => return Err(CommandError::Other(format!("{}: {error}", path.display()))),
    };
    let mut states = StatedEnds::new(heads);
    let mut checker = AuditChecker::new();
    let mut last = AuditSummary::EMPTY;
    each_row(at, &mut |line| check_row(line, &mut checker, &mut last, &mut states))?;
    let count = states.finish(last)?;
    Ok(format!(
        "the audit log is whole: {} rows, the last one has hash {}\n{count} signed statements about its end hold\n",
        last.rows, last.head
    ))
}

/// Checks an export: its chain, and its signed end.
fn verify_export(path: &Path, keys: Option<&AuditKeys>) -> Result<String, CommandError> {
    let fault = |why: String| CommandError::Other(format!("{}: {why}", path.display()));
    let file = std::fs::File::open(path).map_err(|error| fault(error.to_string()))?;
    let (mut checker, mut last) = (AuditChecker::new(), AuditSummary::EMPTY);
    let (mut end, mut states) = (None, StatedEnds::new(Vec::new()));
    for (number, line) in (1..).zip(BufReader::new(file).lines()) {
        let line = line.map_err(|error| fault(error.to_string()))?;
        let at_line = |why: String| fault(format!("line {number}: {why}"));
        if end.is_some() {
            return Err(at_line("it follows the signed end".to_owned()));
        }
        let value: Value = serde_json::from_str(&line).map_err(|error| at_line(error.to_string()))?;
        if value.get("jws").is_some() {
            let head: SignedAuditHead =
                serde_json::from_value(value).map_err(|error| at_line(error.to_string()))?;
            end = Some(check_head(&head, keys).map_err(|why| at_line(why.to_string()))?);
        } else {
            let row: AuditLine = serde_json::from_value(value).map_err(|error| at_line(error.to_string()))?;
            check_row(row, &mut checker, &mut last, &mut states)?;
        }
    }
    let end = end.ok_or_else(|| fault("its signed end is missing".to_owned()))?;
    checker.finish(end).map_err(|error| fault(error.to_string()))?;
    let by = match keys {
        Some(_) => "signed by this key",
        None => "signed by the key that it names; --key checks which key that is",
    };
    Ok(format!("the export is whole: {} rows, {by}\n", end.rows))
}

fn check_row(
    line: AuditLine,
    checker: &mut AuditChecker,
    last: &mut AuditSummary,
    states: &mut StatedEnds,
) -> Result<(), CommandError> {
    let number = line.row;
    let bad = || CommandError::Other(format!("audit row {number}: a hash is not hexadecimal"));
    let row = line.into_row().ok_or_else(bad)?;
    checker.check(&row).map_err(|error| CommandError::Other(error.to_string()))?;
    *last = AuditSummary { rows: row.seq, head: row.hash };
    states.check(*last)
}

/// Ends of the log that signed statements name, in order.
struct StatedEnds {
    ends: Vec<AuditSummary>,
    checked: usize,
}

impl StatedEnds {
    fn new(mut ends: Vec<AuditSummary>) -> Self {
        ends.sort_by_key(|end| end.rows);
        Self { ends, checked: 0 }
    }

    /// Compares a row with the statements about it.
    fn check(&mut self, row: AuditSummary) -> Result<(), CommandError> {
        while let Some(end) = self.ends.get(self.checked).filter(|end| end.rows <= row.rows) {
            if end.rows == row.rows && end.head != row.head {
                return Err(CommandError::Other(format!(
                    "audit row {} is not the one that was signed: the log was rewritten",
                    row.rows
                )));
            }
            self.checked += 1;
        }
        Ok(())
    }

    /// Returns the number of statements, if none is about a row beyond the end of the log.
    fn finish(self, last: AuditSummary) -> Result<usize, CommandError> {
        match self.ends.last().filter(|end| end.rows > last.rows) {
            Some(end) => Err(CommandError::Other(format!(
                "the audit log ends at row {}, and row {} was signed: its end is missing",
                last.rows, end.rows
            ))),
            None => Ok(self.ends.len()),
        }
    }
}

fn read_heads(from: impl BufRead, path: &Path, keys: &AuditKeys) -> Result<Vec<AuditSummary>, CommandError> {
    let mut ends = Vec::new();
    for (number, line) in (1..).zip(from.lines()) {
        let fault = |why: String| CommandError::Other(format!("{} line {number}: {why}", path.display()));
        let line = line.map_err(|error| fault(error.to_string()))?;
        let head: SignedAuditHead = serde_json::from_str(&line).map_err(|error| fault(error.to_string()))?;
        ends.push(check_head(&head, Some(keys)).map_err(|error| fault(error.to_string()))?);
    }
    Ok(ends)
}

#[cfg(test)]
mod tests {
    use headrace_domain::UnixNanos;
    use headrace_identity::AuditEntry;
    use headrace_server::audit_heads::signer;

    use super::*;

    /// An export of three rows, and its signed end.
    fn export() -> (Vec<AuditLine>, SignedAuditHead) {
        let (mut rows, mut end) = (Vec::new(), AuditSummary::EMPTY);
        for number in 1..=3 {
            let entry = AuditEntry {
                at: UnixNanos::new(number),
                actor: "ops".to_owned(),
                act: "key.create".to_owned(),
                subject: format!("key_{number}"),
                detail: String::new(),
            };
            let row = entry.chained(&end);
            end = AuditSummary { rows: row.seq, head: row.hash };
            rows.push(AuditLine::from(row));
        }
        let head = signer(&[7; 32]).unwrap()(UnixNanos::new(9), &end);
        (rows, head)
    }

    fn lines((rows, head): &(Vec<AuditLine>, SignedAuditHead)) -> Vec<String> {
        let mut lines: Vec<String> = rows.iter().map(|row| serde_json::to_string(row).unwrap()).collect();
        lines.push(serde_json::to_string(head).unwrap());
        lines
    }

    fn verified(lines: &[String], keys: Option<&AuditKeys>) -> String {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), lines.join("\n") + "\n").unwrap();
        match verify_export(file.path(), keys) {
            Ok(text) | Err(CommandError::Other(text)) => text,
            Err(_) => panic!("another kind of error"),
        }
    }

    #[test]
    fn a_whole_export_is_verified_and_each_change_of_it_is_named() {
        let good = export();
        let keys = parse_keys(good.1.keys.to_string().as_bytes()).unwrap();
        assert_eq!(verified(&lines(&good), Some(&keys)), "the export is whole: 3 rows, signed by this key\n");
        assert!(verified(&lines(&good), None).contains("3 rows, signed by the key that it names"));
        let other = signer(&[8; 32]).unwrap()(UnixNanos::new(9), &AuditSummary::EMPTY);
        let others = parse_keys(other.keys.to_string().as_bytes()).unwrap();
        assert!(verified(&lines(&good), Some(&others)).contains("line 4: another key signed it"));
        type Change = fn(&mut (Vec<AuditLine>, SignedAuditHead));
        let changes: [(&str, Change, &str); 7] = [
            ("a value", |export| export.0[1].detail = "x".to_owned(), "audit row 2"),
            ("a hash", |export| export.0[1].hash = "zz".to_owned(), "audit row 2: a hash is not hexadecimal"),
            ("a row in the middle", |export| drop(export.0.remove(1)), "audit row"),
            ("the last row", |export| drop(export.0.pop()), "audit"),
            (
                "the stated rows",
                |export| export.1.rows = 2,
                "line 4: its `rows` is not the one that was signed",
            ),
            ("the stated hash", |export| export.1.head = "0".repeat(64), "line 4: its `head` is not"),
            ("the signature", |export| export.1.jws.truncate(40), "line 4: it is not a signed text"),
        ];
        for (what, change, part) in changes {
            let mut changed = export();
            change(&mut changed);
            let why = verified(&lines(&changed), Some(&keys));
            assert!(why.contains(part) && !why.contains("is whole"), "{what}: {why}");
        }
        let mut without = lines(&good);
        let end = without.pop().unwrap();
        assert!(verified(&without, None).contains("its signed end is missing"));
        without.extend([end.clone(), end]);
        assert!(verified(&without, None).contains("line 5: it follows the signed end"));
    }

    #[test]
    fn a_file_without_keys_is_refused_by_its_name() {
        let file = tempfile::NamedTempFile::new().unwrap();
        for text in ["", "00", "{\"keys\":[]}"] {
            std::fs::write(file.path(), text).unwrap();
            let Err(CommandError::Other(why)) = read_keys(file.path()) else {
                panic!("{text}: it was accepted")
            };
            assert!(why.contains(&file.path().display().to_string()) && why.contains("set of keys"), "{why}");
        }
    }
}
