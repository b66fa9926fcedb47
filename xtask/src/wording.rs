//! Budgets for wording: idioms in comments and pages, type names of one plain word, and names defined in many places.
//!
//! `xtask/wording.toml` holds a budget per crate. A count above its budget fails, and so does a budget above its count:
//! budgets can only fall. `cargo run --release -p xtask -- wording` lowers them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use crate::files;
use crate::shell::{Failure, read};

/// The file of budgets.
const BUDGETS: &str = "xtask/wording.toml";
/// The row of Markdown pages, and of the console's JavaScript.
const PAGES: &str = "pages";
const SCRIPTS: &str = "console-js";
/// The row of the whole workspace.
const WORKSPACE: &str = "workspace";

/// Words that hide the noun of a sentence. `docs/glossary.md` names what to write instead.
const IDIOMS: &[&str] = &[
    "whoever",
    "nobody",
    "somebody",
    "anybody",
    "whatever",
    "what of",
    "of which",
    "by what",
    "told",
    "tells",
    "stands",
    "stood",
    "goes on",
    "go on with",
    "so many",
    "so much",
    "let go",
    "held to",
    "mostly none",
];
/// Endings such as "the row; `None`: it has none".
const NONE_TAIL: &str = "`None`: ";

/// A name that is defined in this number of places, or more, is counted.
const MANY_PLACES: usize = 4;
/// The longest subject of a commit, in characters.
const MAX_SUBJECT: usize = 72;
/// Commits after this one are counted.
const FIRST_COMMIT: &str = "e4b11b00";

/// Counts by row and kind.
type Counts = BTreeMap<String, BTreeMap<String, u64>>;

/// Compares the counts of a tree with its budgets.
///
/// # Errors
/// Fails if a file cannot be read.
pub(crate) fn violations(root: &Path) -> Result<Vec<String>, Failure> {
    Ok(compare(&budgets(root)?, &count(root)?))
}

/// Lowers the budgets to the counts of the tree. Budgets of new crates are added.
///
/// # Errors
/// Fails if a count is above its budget, or if a file cannot be read or written.
pub(crate) fn lower(root: &Path) -> Result<(), Failure> {
    let (budgets, counts) = (budgets(root)?, count(root)?);
    let known = counts.iter().filter(|(row, _)| budgets.contains_key(*row));
    let known: Counts = known.map(|(row, kinds)| (row.clone(), kinds.clone())).collect();
    let above: Vec<String> =
        compare(&budgets, &known).into_iter().filter(|fault| fault.contains("above its budget")).collect();
    if !above.is_empty() {
        return Err(Failure::new(above.join("\n"), "rewrite the text or the names that were added"));
    }
    files::write(&root.join(BUDGETS), &written(&counts))
}

fn budgets(root: &Path) -> Result<Counts, Failure> {
    let broken = |error: String| Failure::new(format!("{BUDGETS}: {error}"), "write `kind = count` lines");
    let table: toml::Table =
        read(&root.join(BUDGETS))?.parse().map_err(|error| broken(format!("{error}")))?;
    let row = |(name, kinds): (&String, &toml::Value)| {
        let kinds = kinds.as_table().ok_or_else(|| broken(format!("`{name}` is not a table")))?;
        let kinds = kinds.iter().map(|(kind, count)| {
            let count = count.as_integer().and_then(|count| u64::try_from(count).ok());
            Ok((kind.clone(), count.ok_or_else(|| broken(format!("`{name}.{kind}` is not a count")))?))
        });
        Ok((name.clone(), kinds.collect::<Result<_, Failure>>()?))
    };
    table.iter().map(row).collect()
}

fn written(counts: &Counts) -> String {
    let mut text = "# Budgets of `xtask/src/wording.rs`. They can only fall: `cargo run --release -p xtask -- wording`.\n\
                    # idioms: banned phrases in comments. words: words of comments. one_word: types named by one plain word.\n"
        .to_owned();
    for (row, kinds) in counts {
        text += &format!("\n[{row}]\n");
        for (kind, count) in kinds {
            text += &format!("{kind} = {count}\n");
        }
    }
    text
}

/// Kinds that are counted for information and have no budget.
const UNBOUNDED: &[&str] = &["words", "types"];

fn compare(budgets: &Counts, counts: &Counts) -> Vec<String> {
    let mut faults = Vec::new();
    for (row, kinds) in counts {
        for (kind, &count) in kinds.iter().filter(|(kind, _)| !UNBOUNDED.contains(&kind.as_str())) {
            let budget = budgets.get(row).and_then(|kinds| kinds.get(kind)).copied().unwrap_or(0);
            if count > budget {
                faults.push(format!("wording: `{row}` has {count} {kind}, above its budget of {budget}"));
            } else if count < budget {
                faults.push(format!(
                    "wording: `{row}` has {count} {kind}, below its budget of {budget}: run `cargo run --release -p xtask -- wording`"
                ));
            }
        }
    }
    let stale = budgets.keys().filter(|row| !counts.contains_key(*row));
    faults.extend(stale.map(|row| format!("wording: `{row}` has a budget in {BUDGETS} and no text")));
    faults
}

/// Counts a tree.
fn count(root: &Path) -> Result<Counts, Failure> {
    let mut counts = Counts::new();
    let mut definitions: BTreeMap<String, u64> = BTreeMap::new();
    let mut all_types: BTreeSet<String> = BTreeSet::new();
    for path in tracked(root)? {
        let Some(row) = row_of(&path) else { continue };
        let text = read(&root.join(&path))?;
        let kinds = counts.entry(row.to_owned()).or_default();
        let prose = match path.rsplit('.').next() {
            Some("rs" | "js") => comments(&text),
            _ => text.clone(),
        };
        *kinds.entry("idioms".to_owned()).or_default() += idioms(&prose);
        *kinds.entry("words".to_owned()).or_default() += prose.split_whitespace().count() as u64;
        if path.ends_with(".rs") && path.contains("/src/") {
            for name in types(&text) {
                *definitions.entry(name.clone()).or_default() += 1;
                *kinds.entry("one_word".to_owned()).or_default() += u64::from(is_one_word(&name));
                all_types.insert(name);
            }
            *kinds.entry("functions_named_told".to_owned()).or_default() +=
                text.lines().filter(|line| line.contains("fn told(") || line.contains("fn told<")).count()
                    as u64;
        }
    }
    let workspace = counts.entry(WORKSPACE.to_owned()).or_default();
    let in_many = definitions.values().filter(|places| **places >= MANY_PLACES as u64).count() as u64;
    workspace.insert("names_in_four_places".to_owned(), in_many);
    workspace.insert("types".to_owned(), all_types.len() as u64);
    let one_word = all_types.iter().filter(|name| is_one_word(name)).count() as u64;
    workspace.insert("one_word_names".to_owned(), one_word);
    workspace.insert("long_subjects".to_owned(), long_subjects(root));
    Ok(counts)
}

/// Paths of the tracked files, relative to the root.
fn tracked(root: &Path) -> Result<Vec<String>, Failure> {
    let listed = git(root, &["ls-files"]);
    let listed =
        listed.ok_or_else(|| Failure::new("`git ls-files` failed", "run in a clone, with git installed"))?;
    Ok(listed.lines().filter(|path| root.join(path).is_file()).map(str::to_owned).collect())
}

fn git(root: &Path, arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").arg("-C").arg(root).args(arguments).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Subjects above [`MAX_SUBJECT`] since [`FIRST_COMMIT`]. A clone without that commit counts none.
fn long_subjects(root: &Path) -> u64 {
    let subjects = git(root, &["log", "--no-merges", "--format=%s", &format!("{FIRST_COMMIT}..HEAD")]);
    let subjects = subjects.unwrap_or_default();
    subjects.lines().filter(|subject| subject.chars().count() > MAX_SUBJECT).count() as u64
}

/// The budget row of a file. `None` if its text is not counted.
fn row_of(path: &str) -> Option<&str> {
    if path.ends_with(".rs") {
        // The patterns themselves stand in this file.
        return match path.strip_prefix("crates/") {
            _ if path == "xtask/src/wording.rs" => None,
            Some(rest) => rest.split('/').next(),
            None => path.starts_with("xtask/").then_some("xtask"),
        };
    }
    if path.ends_with(".js") && path.starts_with("crates/admin-assets/") {
        return Some(SCRIPTS);
    }
    // The change log keeps its words, and the glossary lists the words that are replaced.
    let is_page = path.ends_with(".md") && (path.starts_with("docs/") || !path.contains('/'));
    (is_page && !["CHANGELOG.md", "docs/glossary.md"].contains(&path)).then_some(PAGES)
}

/// The text of the line comments of a source.
fn comments(source: &str) -> String {
    let mut text = String::new();
    for line in source.lines() {
        if let Some(comment) = line.trim_start().strip_prefix("//") {
            text += comment.trim_start_matches(['/', '!']);
            text.push('\n');
        }
    }
    text
}

fn idioms(text: &str) -> u64 {
    let lower = text.to_lowercase();
    let phrases: usize = IDIOMS.iter().map(|phrase| occurrences(&lower, phrase)).sum();
    (phrases + text.matches(NONE_TAIL).count()) as u64
}

/// How often a phrase occurs as whole words.
fn occurrences(text: &str, phrase: &str) -> usize {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    text.match_indices(phrase)
        .filter(|(at, _)| {
            let before = text.get(..*at).and_then(|before| before.chars().next_back());
            let after = text.get(at + phrase.len()..).and_then(|after| after.chars().next());
            !before.is_some_and(is_word) && !after.is_some_and(is_word)
        })
        .count()
}

/// Names of the structs, enums, traits and unions that a source defines.
fn types(source: &str) -> Vec<String> {
    let name = |line: &str| {
        let mut rest = line.trim_start();
        if let Some(public) = rest.strip_prefix("pub") {
            rest = public.trim_start();
            if rest.starts_with('(') {
                rest = rest.split_once(')')?.1.trim_start();
            }
        }
        rest = rest.strip_prefix("unsafe ").unwrap_or(rest);
        let rest =
            ["struct ", "enum ", "trait ", "union "].iter().find_map(|kind| rest.strip_prefix(kind))?;
        let name: String = rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
        name.starts_with(|c: char| c.is_ascii_uppercase()).then_some(name)
    };
    source.lines().filter_map(name).collect()
}

/// Whether a type's name is one plain word, such as `Reader`.
fn is_one_word(name: &str) -> bool {
    let mut letters = name.chars();
    name.len() > 1
        && letters.next().is_some_and(|c| c.is_ascii_uppercase())
        && letters.all(|c| c.is_ascii_lowercase() || c.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shell::Place;

    #[test]
    fn the_tree_is_within_its_budgets() {
        let faults = violations(&Place::find().unwrap().root).unwrap();
        assert!(faults.is_empty(), "{}", faults.join("\n"));
    }

    #[test]
    fn counts_idioms_as_whole_words() {
        for (text, count) in [
            ("Whoever is told of it.", 2),
            ("It is untold, and understands.", 0),
            ("The row; `None`: it has none.", 1),
            ("`None` if it has none.", 0),
            ("Goes on, so much is known; goes  on.", 2),
        ] {
            assert_eq!(idioms(text), count, "{text}");
        }
        assert_eq!(comments("let x = 1; // told\n  /// told\n//! told\n").matches("told").count(), 2);
    }

    #[test]
    fn finds_type_names_of_one_word() {
        let source = "pub struct Told;\n  pub(crate) enum JobKind {\n trait Read2: Send {}\nstruct KV;\n// struct No;\n";
        let names = types(source);
        assert_eq!(names, ["Told", "JobKind", "Read2", "KV"]);
        let plain: Vec<bool> = names.iter().map(|name| is_one_word(name)).collect();
        assert_eq!(plain, [true, false, true, false]);
    }

    #[test]
    fn budgets_can_only_fall() {
        let counts = |count| Counts::from([("a".to_owned(), BTreeMap::from([("idioms".to_owned(), count)]))]);
        assert!(compare(&counts(2), &counts(2)).is_empty());
        assert!(compare(&counts(2), &counts(3)).concat().contains("above"));
        assert!(compare(&counts(2), &counts(1)).concat().contains("below"));
        assert!(compare(&counts(2), &Counts::new()).concat().contains("no text"));
        assert!(compare(&Counts::new(), &counts(1)).concat().contains("above"));
    }
}
