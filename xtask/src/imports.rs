//! Finds the names that the files of a crate import from each other, from their text: `use` declarations and paths.
//! Knows only the necessary parts of Rust, and no rule. Skips tests.

use std::collections::{BTreeMap, BTreeSet};

use crate::tokens::{Token, tokens};

/// The files of a crate by module: `""` for `lib.rs` or `main.rs`, `a::b` for `a/b.rs`.
pub(crate) type Sources = BTreeMap<String, String>;

/// For each module, the modules that it imports from, with the imported names.
pub(crate) type Imports = BTreeMap<String, BTreeMap<String, BTreeSet<String>>>;

/// A path of a `use` declaration.
#[derive(Debug, Clone)]
struct Use {
    path: Vec<String>,
    /// The name in this file.
    alias: String,
    /// Whether the name is re-exported.
    public: bool,
}

/// The imports in one file.
#[derive(Debug, Default)]
struct Said {
    uses: Vec<Use>,
    /// Paths in the code.
    paths: Vec<Vec<String>>,
}

/// Finds the imports of all modules.
pub(crate) fn imports(sources: &Sources) -> Imports {
    let said: BTreeMap<&str, Said> =
        sources.iter().map(|(module, text)| (module.as_str(), read(text))).collect();
    let mut imports = Imports::new();
    for (module, said_here) in &said {
        let taken = imports.entry((*module).to_owned()).or_default();
        let uses = said_here.uses.iter().filter(|one| !(one.public && is_face(&said, module, &one.path)));
        for path in uses.map(|one| &one.path).chain(&said_here.paths) {
            let Some(from) = home(&said, module, path, 0).filter(|from| from != module) else { continue };
            taken.entry(from).or_default().extend(path.last().cloned());
        }
    }
    imports
}

/// Returns `true` if a re-export only publishes a child's name, which is not an import.
fn is_face(said: &BTreeMap<&str, Said>, module: &str, path: &[String]) -> bool {
    module.is_empty() || start(said, module, path).is_some_and(|(from, _)| from == module)
}

/// The module where a path starts, and the rest of the path. `None` if it does not start in this crate.
fn start<'p>(
    said: &BTreeMap<&str, Said>,
    module: &str,
    path: &'p [String],
) -> Option<(String, &'p [String])> {
    let (first, rest) = path.split_first()?;
    match first.as_str() {
        "crate" => Some((String::new(), rest)),
        "self" => Some((module.to_owned(), rest)),
        "super" => {
            let ups = path.iter().take_while(|word| *word == "super").count();
            let mut at = module;
            for _ in 0..ups {
                at = at.rsplit_once("::").map_or("", |(parent, _)| parent);
            }
            Some((at.to_owned(), path.get(ups..)?))
        }
        child => said.contains_key(join(module, child).as_str()).then(|| (module.to_owned(), path)),
    }
}

/// The module that defines the name of a path. Follows re-exports.
fn home(said: &BTreeMap<&str, Said>, module: &str, path: &[String], depth: usize) -> Option<String> {
    const MOST_HOPS: usize = 8;
    let (mut at, mut rest) = start(said, module, path)?;
    while let Some((next, behind)) = rest.split_first() {
        let child = join(&at, next);
        if said.contains_key(child.as_str()) {
            (at, rest) = (child, behind);
            continue;
        }
        let handed_on = said.get(at.as_str())?.uses.iter().find(|one| one.alias == *next);
        let further = handed_on.filter(|_| depth < MOST_HOPS).and_then(|one| {
            let path: Vec<String> = one.path.iter().chain(behind).cloned().collect();
            home(said, &at, &path, depth + 1)
        });
        return Some(further.unwrap_or(at));
    }
    Some(at)
}

fn join(module: &str, child: &str) -> String {
    if module.is_empty() { child.to_owned() } else { format!("{module}::{child}") }
}

/// Reads a file's imports.
fn read(text: &str) -> Said {
    let all = tokens(text);
    let mut said = Said::default();
    // The current depth of braces, and the depths at which inline modules start.
    let (mut depth, mut inline) = (0_usize, Vec::new());
    let mut rest = all.as_slice();
    let mut before: Option<Token<'_>> = None;
    while let Some((&token, after)) = rest.split_first() {
        if let Some(behind) = behind_test(rest) {
            rest = behind;
            continue;
        }
        rest = after;
        match token {
            Token::Mark('{') => depth += 1,
            Token::Mark('}') => {
                depth = depth.saturating_sub(1);
                inline.retain(|start| *start < depth);
            }
            Token::Word("mod") if matches!(after, [Token::Word(_), Token::Mark('{'), ..]) => {
                inline.push(depth)
            }
            Token::Word("use") => {
                let end = after.iter().position(|token| *token == Token::Mark(';')).unwrap_or(after.len());
                let (tree, behind) = after.split_at(end);
                let public = matches!(before, Some(Token::Word("pub") | Token::Mark(')')));
                let mut paths = Vec::new();
                expand(tree, &[], &mut paths);
                said.uses.extend(paths.into_iter().filter_map(|(path, alias)| {
                    Some(Use { path: outside(path, inline.len())?, alias, public })
                }));
                rest = behind;
            }
            Token::Word(_) if !matches!(before, Some(Token::Path | Token::Mark('.' | '\''))) => {
                let path = path_at(token, after);
                if path.len() > 1 {
                    said.paths.extend(outside(path, inline.len()));
                }
            }
            _ => {}
        }
        before = Some(token);
    }
    said
}

/// The path that starts with this word.
fn path_at(first: Token<'_>, after: &[Token<'_>]) -> Vec<String> {
    let mut path: Vec<String> = [first].iter().filter_map(Token::word).collect();
    let mut rest = after;
    while let [Token::Path, Token::Word(word), behind @ ..] = rest {
        path.push((*word).to_owned());
        rest = behind;
    }
    path
}

/// Rewrites a path inside `inline` nested inline modules as the file's own module would write it. `None` if the path
/// stays inside them.
fn outside(path: Vec<String>, inline: usize) -> Option<Vec<String>> {
    let ups = path.iter().take_while(|word| *word == "super").count();
    match path.first().map(String::as_str) {
        Some("super") if ups < inline => None,
        Some("super") if ups == inline => Some([vec!["self".to_owned()], path.get(ups..)?.to_vec()].concat()),
        Some("super") => Some(path.get(inline..)?.to_vec()),
        Some("self") if inline > 0 => None,
        _ => Some(path),
    }
}

/// The paths of a `use` tree, each with its name.
fn expand(tree: &[Token<'_>], prefix: &[String], out: &mut Vec<(Vec<String>, String)>) {
    let mut path = prefix.to_vec();
    let mut alias = None;
    let mut rest = tree;
    while let Some((token, after)) = rest.split_first() {
        rest = after;
        match token {
            Token::Word("as") => {
                alias = after.first().and_then(Token::word);
                break;
            }
            Token::Word(word) => path.push((*word).to_owned()),
            Token::Mark('*') => path.push("*".to_owned()),
            Token::Mark('{') => {
                let inner = after.get(..after.len().saturating_sub(1)).unwrap_or_default();
                for part in parts(inner) {
                    expand(part, &path, out);
                }
                return;
            }
            _ => {}
        }
    }
    // `a::{self}` is `a`.
    if path.len() > 1 && path.last().is_some_and(|word| word == "self") {
        path.pop();
    }
    if let Some(last) = path.last().cloned() {
        out.push((path, alias.unwrap_or(last)));
    }
}

/// Splits tokens at the commas outside of braces.
fn parts<'t, 's>(tokens: &'t [Token<'s>]) -> Vec<&'t [Token<'s>]> {
    let mut depth = 0_usize;
    let split = tokens.split(|token| {
        match token {
            Token::Mark('{') => depth += 1,
            Token::Mark('}') => depth = depth.saturating_sub(1),
            _ => {}
        }
        depth == 0 && *token == Token::Mark(',')
    });
    split.filter(|part| !part.is_empty()).collect()
}

/// The tokens after an item that is compiled for tests only. `None` if no such item starts here.
fn behind_test<'t, 's>(tokens: &'t [Token<'s>]) -> Option<&'t [Token<'s>]> {
    const ATTRIBUTE: [Token<'_>; 7] = [
        Token::Mark('#'),
        Token::Mark('['),
        Token::Word("cfg"),
        Token::Mark('('),
        Token::Word("test"),
        Token::Mark(')'),
        Token::Mark(']'),
    ];
    let mut rest = tokens.strip_prefix(&ATTRIBUTE)?;
    let mut depth = 0_usize;
    while let Some((token, after)) = rest.split_first() {
        rest = after;
        match token {
            Token::Mark('{') => depth += 1,
            Token::Mark('}') => {
                depth = depth.saturating_sub(1);
                if depth == 0 {
                    break;
                }
            }
            Token::Mark(';') if depth == 0 => break,
            _ => {}
        }
    }
    Some(rest)
}
