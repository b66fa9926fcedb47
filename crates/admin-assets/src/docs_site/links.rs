//! Resolves links of pages: to a page of the documentation, to the repository, or to the web, but never to a script.
//! Must not know how pages look.

use super::packed;

/// The prefix of all pages' addresses.
pub const ROOT: &str = "/docs/";

/// The address of files in the repository that are not in the documentation.
const REPOSITORY: &str = "https://github.com/headrace/headrace/blob/main/";

/// Returns a file's name, which is its address after [`ROOT`]. `file` is a path from the root of the repository.
pub(crate) fn name(file: &str) -> String {
    let inside = file.strip_prefix("docs/");
    let bare = inside.unwrap_or(file).strip_suffix(".md");
    match (inside, bare) {
        // The first page has an empty name.
        (Some(_), Some("README")) => String::new(),
        (Some(inside), None) => inside.to_owned(),
        (Some(_), Some(bare)) => bare.to_owned(),
        (None, bare) => {
            let bare = bare.unwrap_or(file);
            bare.strip_suffix("/README").unwrap_or(bare).to_lowercase()
        }
    }
}

/// Returns whether a file of the repository is in the documentation.
fn is_ours(file: &str) -> bool {
    packed::texts().iter().any(|(ours, _)| *ours == file)
        || packed::PICTURES.iter().any(|(ours, _)| *ours == file)
}

/// Returns the address for a link in a file.
pub(crate) fn target(file: &str, link: &str) -> String {
    if link.starts_with("https://") || link.starts_with("http://") || link.starts_with('#') {
        return link.to_owned();
    }
    let (path, anchor) = link.split_once('#').map_or((link, None), |(path, anchor)| (path, Some(anchor)));
    // Drop links with any other scheme, and links that would leave this server.
    if path.contains(':') || path.starts_with('/') || path.contains('\\') {
        return "#".to_owned();
    }
    let mut whole: Vec<&str> = file.split('/').collect();
    whole.pop();
    for part in path.split('/') {
        match part {
            "." | "" => {}
            ".." => drop(whole.pop()),
            part => whole.push(part),
        }
    }
    let whole = whole.join("/");
    let address =
        if is_ours(&whole) { format!("{ROOT}{}", name(&whole)) } else { format!("{REPOSITORY}{whole}") };
    anchor.map_or_else(|| address.clone(), |anchor| format!("{address}#{anchor}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_between_pages_work_and_no_other_scheme_does() {
        for (file, link, wanted) in [
            ("docs/README.md", "tour.md", "/docs/tour"),
            ("docs/recipes/why.md", "../errors.md#queue_full", "/docs/errors#queue_full"),
            ("docs/errors/queue_full.md", "../errors.md", "/docs/errors"),
            ("docs/tour.md", "README.md", "/docs/"),
            ("docs/README.md", "../README.md", "/docs/readme"),
            ("docs/README.md", "../demo-model/README.md", "/docs/demo-model"),
            ("README.md", "docs/pictures/console-now.png", "/docs/pictures/console-now.png"),
            ("README.md", "LICENSE", "https://github.com/headrace/headrace/blob/main/LICENSE"),
            ("docs/tour.md", "#the-end", "#the-end"),
            ("docs/tour.md", "https://example.com/x", "https://example.com/x"),
            ("docs/tour.md", "javascript:alert(1)", "#"),
            ("docs/tour.md", "data:text/html,x", "#"),
            ("docs/tour.md", "//elsewhere.example/x", "#"),
            ("docs/tour.md", "/\\elsewhere.example", "#"),
        ] {
            assert_eq!(target(file, link), wanted, "{link} in {file}");
        }
    }
}
