//! Which names the files of a crate take from each other, read from their text: `use` declarations and paths.
//! Knows as much of Rust as that needs, and no rule. Tests are passed over.

use std::collections::{BTreeMap, BTreeSet};

use crate::tokens::{Token, tokens};

/// The files of a crate by their module: `""` for `lib.rs` or `main.rs`, `a::b` for `a/b.rs`.
pub(crate) type Sources = BTreeMap<String, String>;

/// For each module those that it imports, with the names taken.
pub(crate) type Imports = BTreeMap<String, BTreeMap<String, BTreeSet<String>>>;

/// A path of a `use` declaration.
#[derive(Debug, Clone)]
struct Use {
    path: Vec<String>,
    /// What it is called in this file.
    alias: String,
    /// It is handed on.
    public: bool,
}

/// What a file says.
#[derive(Debug, Default)]
struct Said {
    uses: Vec<Use>,
    /// Paths in its code.
    paths: Vec<Vec<String>>,
}

/// What imports what.
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

/// Whether a path that is handed on only lets a child's name be known: that is no import.
fn is_face(said: &BTreeMap<&str, Said>, module: &str, path: &[String]) -> bool {
    module.is_empty() || start(said, module, path).is_some_and(|(from, _)| from == module)
}

/// Where a path starts, and what is left of it: at a module of this crate, or nowhere in it.
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

/// The module that defines what a path names: names that are handed on are followed.
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

/// Reads a file.
fn read(text: &str) -> Said {
    let all = tokens(text);
    let mut said = Said::default();
    // How deep the braces are now, and where inline modules begin.
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

/// The path that begins with this word.
fn path_at(first: Token<'_>, after: &[Token<'_>]) -> Vec<String> {
    let mut path: Vec<String> = [first].iter().filter_map(Token::word).collect();
    let mut rest = after;
    while let [Token::Path, Token::Word(word), behind @ ..] = rest {
        path.push((*word).to_owned());
        rest = behind;
    }
    path
}

/// A path as the file's own module would write it, from so many inline modules deep; `None` if it stays inside them.
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

/// The paths of a `use` tree, each with what it is called.
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

/// What stands between the commas that stand in no braces.
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

/// What follows an item that is compiled for tests only, if one begins here.
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
