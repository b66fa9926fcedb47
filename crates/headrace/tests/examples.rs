//! Checks that every printed command and sample is correct. Covers the fenced blocks of README, CONTRIBUTING and docs,
//! the examples of every `--help`, and the commands that `up` prints. They run in order against a server that was
//! started as the README describes.
//!
//! A comment before a block gives its type: `<!-- not run: REASON -->`, `<!-- output of: COMMAND -->` for a sample, or
//! `<!-- file: NAME -->` for a file that later commands read. A server on a port of its own runs until the end of its
//! page.
//! Python examples run in tests/sdk, with the official SDKs.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic, reason = "a test")]

#[path = "common/server.rs"]
mod common;

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use common::{PATIENCE, Server, program, said};
use serde_json::Value;

const QUESTION: &str = "What happens when I call an LLM API?";
/// Questions of the examples, and a part of each correct answer.
const RIGHT: &[(&str, &str)] = &[("What is a KV cache?", "stores the attention keys and values")];

/// The batch id in examples.
const ANY_BATCH: &str = "batch_0192...";

/// Foreign servers and models in the examples, and their replacements: the reader's first server and its model.
const ELSEWHERE: [(&str, &str); 5] = [
    ("https://api.openai.com", "http://127.0.0.1:8000"),
    ("https://api.anthropic.com", "http://127.0.0.1:8000"),
    ("/gpt-5", "/headrace-demo"),
    ("/claude-sonnet-4-5", "/headrace-demo"),
    ("/Qwen/Qwen3-32B", "/headrace-demo"),
];

/// A fenced block of a page.
struct Block {
    /// File and line, for messages.
    at: String,
    language: String,
    /// The comment before it.
    note: String,
    text: String,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

fn blocks(page: &str) -> Vec<Block> {
    let text = std::fs::read_to_string(root().join(page)).unwrap();
    let (mut found, mut note) = (Vec::new(), String::new());
    let mut lines = text.lines().enumerate();
    while let Some((number, line)) = lines.next() {
        if let Some(language) = line.strip_prefix("```") {
            let body: Vec<&str> =
                lines.by_ref().map(|(_, line)| line).take_while(|line| *line != "```").collect();
            let at = format!("{page}:{}", number + 1);
            let language = language.to_owned();
            found.push(Block { at, language, note: std::mem::take(&mut note), text: body.join("\n") });
        } else if let Some(comment) = line.strip_prefix("<!-- ").and_then(|rest| rest.strip_suffix(" -->")) {
            note = comment.to_owned();
        } else if !line.is_empty() {
            note.clear();
        }
    }
    found
}

/// The commands of a block, without comments and empty lines. Lines that end in `\` are joined.
fn commands(text: &str) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    let mut continues = false;
    for line in text.lines().map(str::trim) {
        if !continues && (line.is_empty() || line.starts_with('#')) {
            continue;
        }
        let line = line.split("  #").next().unwrap_or(line).trim_end();
        let (part, more) = line.strip_suffix('\\').map_or((line, false), |part| (part, true));
        match found.last_mut() {
            Some(last) if continues => last.push_str(part),
            _ => found.push(part.to_owned()),
        }
        continues = more;
    }
    found
}

/// A reader's environment: home and current directory, and the program on the path.
struct ReaderEnvironment {
    dir: tempfile::TempDir,
    /// `NAME=VALUE` of every `export` so far.
    exports: Vec<(String, String)>,
    server: Option<Server>,
    /// Servers on ports of their own: the address that the page uses, and the server.
    others: Vec<(String, Server)>,
}

impl ReaderEnvironment {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let environment = Self { dir, exports: Vec::new(), server: None, others: Vec::new() };
        let path = environment.path();
        std::fs::create_dir(path.join("bin")).unwrap();
        std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_headrace"), path.join("bin/headrace")).unwrap();
        // A page of text to read, and small versions of the models that the examples name.
        let readme = std::fs::read_to_string(root().join("README.md")).unwrap();
        let text: String = readme.chars().take(3_000).collect();
        std::fs::write(path.join("README.md"), &text).unwrap();
        std::fs::write(path.join("book.txt"), &text).unwrap();
        std::fs::write(path.join("headrace.toml"), "[gateway]\ndefault_max_tokens = 900\n").unwrap();
        let make = "mkdir -p ~/models && headrace models make --type q8_0 ~/models/Qwen3-0.6B-Q8_0.gguf \
                    && headrace models make --format safetensors ~/models/Qwen3-0.6B \
                    && cp -r ~/models/Qwen3-0.6B .";
        environment.succeeds(make, "the models of the examples");
        environment
    }

    fn path(&self) -> &Path {
        self.dir.path()
    }

    fn address(&self) -> String {
        self.server.as_ref().map_or_else(|| "127.0.0.1:1".to_owned(), |server| server.address().to_string())
    }

    /// Sets the environment of a reader's shell.
    fn dress(&self, command: &mut Command) {
        let path = format!("{}:{}", self.path().join("bin").display(), std::env::var("PATH").unwrap());
        command.env("PATH", path).env("HOME", self.path()).env("COLUMNS", "200").current_dir(self.path());
        command.env("HEADRACE_BASE_URL", format!("http://{}", self.address()));
        command.envs(self.exports.iter().map(|(name, value)| (name, value)));
        // The keys of foreign servers. The first server here replaces them all, so they are its first key.
        let first = self.exports.iter().find(|(name, _)| name == "HEADRACE_BOOTSTRAP_KEY");
        let names = ["GPU", "GPU1", "GPU2", "OPENAI", "CLAUDE", "FAR"];
        command
            .envs(names.iter().filter_map(|name| Some((format!("HEADRACE_UPSTREAM_{name}_KEY"), &first?.1))));
    }

    /// A line with foreign addresses replaced by those of this machine.
    fn here(&self, line: &str) -> String {
        let mut line = line.to_owned();
        for (there, here) in ELSEWHERE {
            line = line.replace(there, here);
        }
        for (name, server) in &self.others {
            line = line.replace(name, &server.address().to_string());
        }
        line.replace("127.0.0.1:8080", &self.address()).replace("127.0.0.1:8000", &self.address())
    }

    /// Runs a line as a shell would. Replaces only what cannot be the same here: ports, sizes, times.
    fn shell(&self, line: &str) -> Output {
        let mut command = Command::new("sh");
        for (name, _) in program().get_envs() {
            command.env_remove(name);
        }
        command
            .args(["-c", &self.here(line)])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        self.dress(&mut command);
        let mut child = command.spawn().unwrap();
        // The first message of a conversation. Other commands do not read it.
        let _ = std::io::Write::write_all(&mut child.stdin.take().unwrap(), QUESTION.as_bytes());
        child.wait_with_output().unwrap()
    }

    fn succeeds(&self, line: &str, at: &str) -> String {
        if line.starts_with("curl ") && !self.shell("command -v curl").status.success() {
            return String::new();
        }
        let output = self.shell(line);
        assert!(output.status.success(), "{at}: {line}\n{}", said(&output));
        let said = said(&output);
        assert!(!said.contains("ended at its length limit"), "{at}: {line}: an answer is cut off\n{said}");
        let out = String::from_utf8_lossy(&output.stdout).into_owned();
        // These commands show a question without asking a model.
        let shows = ["headrace render ", "headrace tokenize "].iter().any(|start| line.starts_with(start));
        for (_, right) in RIGHT.iter().filter(|(question, _)| !shows && line.contains(question)) {
            assert!(out.contains(right), "{at}: {line}: the model answers wrongly\n{out}");
        }
        if let Some(reason) = serde_json::from_str(&out).ok().and_then(finish_reason) {
            assert_eq!(reason, "stop", "{at}: {line}: an answer is cut off\n{out}");
        }
        out
    }

    /// Runs one command of a page or a help text.
    fn run(&mut self, line: &str, at: &str) {
        let line = line.replace("cargo run --release -- ", "headrace ");
        if let Some(export) = line.strip_prefix("export ") {
            let (name, value) = export.split_once('=').unwrap();
            self.exports.push((name.to_owned(), value.to_owned()));
        } else if line.starts_with("alias headrace=") {
            // The program is on the path.
        } else if line.starts_with("headrace up") && begins(&line) && self.server.is_none() {
            self.server = Some(self.start(&line, &self.path().join("headrace-data")));
        } else if let (true, Some(at)) = (begins(&line), option(&line, "--listen")) {
            let data = self.path().join(option(&line, "--data-dir").unwrap_or_else(|| "another".to_owned()));
            self.others.retain(|(name, _)| *name != at);
            let server = self.start(&line, &data);
            self.others.push((at, server));
        } else if begins(&line) {
            let mut other = self.start(&line, &self.path().join("another"));
            other.stop();
            std::fs::remove_dir_all(self.path().join("another")).unwrap();
        } else {
            let batch = if line.contains(ANY_BATCH) { self.last_batch() } else { String::new() };
            let line = shorter(&line, &self.last_request()).replace(ANY_BATCH, &batch);
            self.succeeds(&line, at);
        }
    }

    /// Starts a server as the line says, on a free port.
    fn start(&self, line: &str, data: &Path) -> Server {
        let line = self.here(&without(&without(line, "--listen"), "--data-dir"));
        let mut command = Command::new("sh");
        for (name, _) in program().get_envs() {
            command.env_remove(name);
        }
        command.args(["-c", &format!("exec {line} \"$@\""), "sh"]).stdin(Stdio::null());
        self.dress(&mut command);
        command.env_remove("HEADRACE_BASE_URL");
        Server::begin(command, data, &[], "")
    }

    fn last_request(&self) -> String {
        let listed = self.shell("headrace trace --last --json");
        let text = String::from_utf8_lossy(&listed.stdout).into_owned();
        let at = text.find("req_").unwrap_or(text.len());
        text.get(at..).and_then(|rest| rest.split('"').next()).unwrap_or_default().to_owned()
    }

    fn last_batch(&self) -> String {
        let listed = self.succeeds("headrace batches list --limit 1 --json", "the last batch");
        let listed: Value = serde_json::from_str(&listed).unwrap();
        listed["data"][0]["id"].as_str().unwrap().to_owned()
    }

    /// Runs everything on a page that can be run, in order. The page's servers and exports end with it.
    fn page(&mut self, page: &str) {
        let exports = self.exports.len();
        for block in blocks(page) {
            if block.note.starts_with("not run: ") {
                continue;
            }
            if let Some(name) = block.note.strip_prefix("file: ") {
                std::fs::write(self.path().join(name), self.here(&block.text)).unwrap();
                let documents = match block.language.as_str() {
                    "json" => vec![block.text.as_str()],
                    "jsonl" => block.text.lines().collect(),
                    _ => Vec::new(),
                };
                for document in &documents {
                    let read: Result<Value, _> = serde_json::from_str(document);
                    assert!(read.is_ok(), "{}: {read:?}", block.at);
                }
                if !documents.is_empty() {
                    continue;
                }
            }
            match (block.language.as_str(), block.note.strip_prefix("output of: ")) {
                ("sh", None) => commands(&block.text).iter().for_each(|line| self.run(line, &block.at)),
                // Run by tests/sdk/test_examples.py.
                ("python", None) => {}
                ("toml", None) => self.configuration(&block),
                (_, Some(command)) => self.sample(command, &block),
                _ => panic!(
                    "{}: what is this block? Say `<!-- output of: … -->` or `<!-- not run: … -->`",
                    block.at
                ),
            }
        }
        for (_, mut server) in self.others.drain(..) {
            server.stop();
        }
        if page.starts_with("docs/") {
            self.exports.truncate(exports);
        }
    }

    /// Checks that a configuration can be served, after creating its files.
    fn configuration(&self, block: &Block) {
        let here = self.path().display().to_string();
        let text = block.text.replace("/var/lib/", &format!("{here}/")).replace("/etc/headrace", &here);
        let text = text.replace("\"/models/", &format!("\"{here}/models/")).replace("4GiB", "4MiB");
        std::fs::write(self.path().join("example.toml"), text).unwrap();
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        std::fs::write(self.path().join("cert.pem"), made.cert.pem()).unwrap();
        std::fs::write(self.path().join("key.pem"), made.signing_key.serialize_pem()).unwrap();
        std::fs::write(self.path().join("worker-secret"), "examples-0123456789abcdefghijklmnopqrstuvwx")
            .unwrap();
        let checked = self.succeeds("headrace config check --config example.toml", &block.at);
        assert!(checked.contains("no faults"), "{}: {checked}", block.at);
    }

    /// Checks that a sample has the shape of its command's present output: the same rows in the same order, with any
    /// figures.
    fn sample(&self, command: &str, block: &Block) {
        let real = self.succeeds(command, &block.at);
        let mut rest = real.lines();
        for shown in block.text.lines().skip(1).filter_map(label).filter(|label| *label != "…") {
            let found = rest.by_ref().any(|line| label(line) == Some(shown));
            assert!(found, "{}: the row `{shown}` is not where the sample shows it in\n{real}", block.at);
        }
    }
}

/// Whether a line starts a server.
fn begins(line: &str) -> bool {
    line.strip_prefix("headrace ").and_then(label).is_some_and(|word| word == "up" || word == "serve")
}

/// The value of an option in a line.
fn option(line: &str, name: &str) -> Option<String> {
    let (_, rest) = line.split_once(&format!(" {name} "))?;
    rest.split_whitespace().next().map(str::to_owned)
}

/// The line without an option and its value.
fn without(line: &str, name: &str) -> String {
    match option(line, name) {
        Some(value) => line.replace(&format!(" {name} {value}"), ""),
        None => line.to_owned(),
    }
}

/// The pages of the documentation, as its contents list them. Each listed page exists, and each page is listed.
fn book() -> Vec<String> {
    let contents = std::fs::read_to_string(root().join("docs/README.md")).unwrap();
    let links = contents.split("](").skip(1).filter_map(|rest| rest.split([')', '#']).next());
    let links: Vec<&str> = links.filter(|link| !link.starts_with("..") && !link.is_empty()).collect();
    for folder in ["", "recipes/", "benchmarks/", "internals/"] {
        for entry in std::fs::read_dir(root().join("docs").join(folder)).unwrap() {
            let name = format!("{folder}{}", entry.unwrap().file_name().to_string_lossy());
            let listed = name == "README.md" || !name.ends_with(".md") || links.contains(&name.as_str());
            assert!(listed, "docs/README.md does not list {name}");
        }
    }
    links.iter().map(|link| format!("docs/{link}")).collect()
}

/// The first word of a line.
fn label(line: &str) -> Option<&str> {
    line.split_whitespace().next()
}

fn finish_reason(answer: Value) -> Option<String> {
    Some(answer.get("choices")?.get(0)?.get("finish_reason")?.as_str()?.to_owned())
}

/// The same command with less work, and with an existing request id.
fn shorter(line: &str, request: &str) -> String {
    let mut line = line.replace("req_0192...", request).replace("--requests 200", "--requests 16");
    for (long, short) in [
        ("--duration 2m", "--duration 1s"),
        ("--warmup 10s", "--warmup 1s"),
        ("0.39b", "tiny"),
        ("/tmp/", "./"),
    ] {
        line = line.replace(long, short);
    }
    let bounded = ["--requests", "--duration", "--replay"].iter().any(|flag| line.contains(flag));
    if line.starts_with("headrace bench") && !bounded {
        line.push_str(" --duration 2s");
    }
    line
}

#[test]
fn the_pages_read_from_top_to_bottom_are_true() {
    let mut environment = ReaderEnvironment::new();
    // A reader may have tried it before: the README's second command starts a server in the same directory.
    environment.start("headrace up", &environment.path().join("headrace-data")).stop();
    environment.page("README.md");
    environment.page("CONTRIBUTING.md");
    for page in book() {
        environment.page(&page);
    }
    environment.page("demo-model/README.md");
    environment.server.take().unwrap().stop();
}

/// A reader may leave the server of one page running beside that of the next, and beside the first server's console.
#[test]
fn each_recipe_has_ports_of_its_own() {
    let mut taken: Vec<(String, String)> =
        vec![("8080".to_owned(), "`up`".to_owned()), ("8081".to_owned(), "its console".to_owned())];
    for page in book().into_iter().filter(|page| page.starts_with("docs/recipes/")) {
        let mut own: Vec<String> = blocks(&page)
            .iter()
            .flat_map(|block| commands(&block.text))
            .filter(|line| begins(line))
            .filter_map(|line| option(&line, "--listen"))
            .filter_map(|at| Some(at.rsplit_once(':')?.1.to_owned()))
            .collect();
        own.sort_unstable();
        own.dedup();
        for port in own {
            let other = taken.iter().find(|(used, _)| *used == port);
            assert!(other.is_none(), "{page} listens at {port}, where {} does", other.unwrap().1);
            taken.push((port, page.clone()));
        }
    }
    assert!(taken.len() > 8, "{taken:?}");
}

/// The examples in the help of a command and of its subcommands, without their explanations.
fn examples(path: &[&str]) -> Vec<(String, String)> {
    let output = program().args(path).arg("--help").env("COLUMNS", "500").output().unwrap();
    let help = said(&output);
    assert!(output.status.success(), "{path:?}: {help}");
    let (mut found, mut section) = (Vec::new(), "");
    for line in help.lines() {
        if !line.starts_with(' ') && !line.is_empty() {
            section = line;
        }
        let text = line.trim_start();
        if section.starts_with("Example") && text.starts_with("headrace ") {
            let command = text.split("  ").next().unwrap().to_owned();
            found.push((command, format!("headrace {} --help", path.join(" "))));
        } else if ["Commands:", "Start:", "Ask:", "Look:", "Manage:"].contains(&section)
            && line.starts_with("  ")
            && !line.starts_with("   ")
        {
            let name = text.split_whitespace().next().unwrap();
            if name != "help" {
                found.extend(examples(&[path, &[name]].concat()));
            }
        }
    }
    found
}

#[test]
fn the_examples_of_every_help_text_work() {
    let mut environment = ReaderEnvironment::new();
    let data = environment.path().join("headrace-data");
    environment
        .exports
        .push(("HEADRACE_API_KEY".to_owned(), "sk-examples-0123456789abcdefghijkl".to_owned()));
    environment
        .exports
        .push(("HEADRACE_BOOTSTRAP_KEY".to_owned(), "sk-examples-0123456789abcdefghijkl".to_owned()));
    environment.server = Some(environment.start("headrace up", &data));
    environment.succeeds("headrace projects records default --level full", "a policy that records contents");
    environment.succeeds(&format!("headrace chat '{QUESTION}'"), "a call to trace");
    environment.succeeds("headrace chat 'Where is my refund?'", "a call to find by its text");
    environment.succeeds("headrace datasets create refunds", "a dataset to replay");
    // The files that examples read.
    environment
        .succeeds("headrace audit export > audit.jsonl && headrace audit key > audit-keys.json", "an export");
    let body = r#"{"messages": [{"role": "user", "content": "What is a KV cache?"}]}"#;
    for name in ["body.json", "turn1.json", "turn2.json", "prompt.txt"] {
        std::fs::write(environment.path().join(name), body).unwrap();
    }
    let call = format!(r#"{{"custom_id":"a","method":"POST","url":"/v1/chat/completions","body":{body}}}"#);
    let call = call.replacen("\"messages\"", "\"model\": \"headrace-demo\", \"messages\"", 1);
    std::fs::write(environment.path().join("requests.jsonl"), call).unwrap();
    let all = examples(&[]);
    assert!(all.len() > 20, "{all:?}");
    for (command, at) in all.iter().filter(|(command, _)| command.starts_with("headrace chat ")) {
        let checked = RIGHT.iter().any(|(question, _)| command.contains(question));
        assert!(checked, "{at}: {command}: say in RIGHT what a right answer is");
    }
    for (command, at) in all {
        environment.run(&command, &at);
    }
    environment.server.take().unwrap().stop();
}

#[test]
fn what_up_says_to_paste_works() {
    let mut environment = ReaderEnvironment::new();
    let server = Server::up_with_fresh_key(&environment.path().join("elsewhere"));
    let welcome = server.welcome.clone();
    environment.server = Some(server);
    let lines = welcome.lines().skip_while(|line| !line.starts_with("Ask it:")).skip(1);
    let pasted: Vec<&str> = lines.filter(|line| line.starts_with("  ")).collect();
    let shell: String = pasted.iter().map(|line| format!("{}\n", line.trim())).collect();
    let wanted =
        |line: &String| ["curl ", "headrace ", "HEADRACE_"].iter().any(|start| line.starts_with(start));
    let all: Vec<String> = commands(&shell).into_iter().filter(wanted).collect();
    assert_eq!(all.len(), 5, "{all:?}");
    let began = std::time::Instant::now();
    for line in all {
        environment.succeeds(line.split("   ").next().unwrap(), "what `up` says");
    }
    assert!(began.elapsed() < PATIENCE);
    environment.server.take().unwrap().stop();
}
