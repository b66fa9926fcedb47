//! Compresses all pages into one block, and lists the pictures. Pages of one kind are nearly alike, so the block takes
//! a fourth of the size of separately compressed pages.

use std::error::Error;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

/// Pages outside `docs`.
const BESIDE: [&str; 5] =
    ["ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "README.md", "demo-model/README.md"];
/// The library's best compression. The build compresses only once.
const LEVEL: u8 = 10;

fn main() -> Result<(), Box<dyn Error>> {
    let folder = PathBuf::from(std::env::var("CARGO_MANIFEST_DIR")?);
    let out = PathBuf::from(std::env::var("OUT_DIR")?);
    let root = folder.join("../..").canonicalize()?;
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed={}", root.join("docs").display());
    let mut found = Vec::new();
    walk(&root.join("docs"), &mut found)?;
    for path in BESIDE.map(|path| root.join(path)) {
        println!("cargo:rerun-if-changed={}", path.display());
        found.push(path);
    }
    found.sort();

    let (mut texts, mut pages, mut pictures) = (String::new(), String::new(), String::new());
    for path in &found {
        let name = path.strip_prefix(&root)?.to_str().ok_or("a name that is no text")?.replace('\\', "/");
        match path.extension().and_then(|end| end.to_str()) {
            Some("md") => {
                let text = fs::read_to_string(path)?;
                writeln!(pages, "({name:?}, {}),", text.len())?;
                texts.push_str(&text);
            }
            Some("png") => {
                let at = path.to_str().ok_or("a name that is no text")?;
                writeln!(pictures, "({name:?}, include_bytes!({at:?}).as_slice()),")?;
            }
            _ => return Err(format!("{name}: the documentation has pages (.md) and pictures (.png)").into()),
        }
    }
    let packed = miniz_oxide::deflate::compress_to_vec_zlib(texts.as_bytes(), LEVEL);
    fs::write(out.join("pages.zz"), packed)?;
    fs::write(out.join("pages.rs"), format!("&[{pages}]"))?;
    fs::write(out.join("pictures.rs"), format!("&[{pictures}]"))?;
    Ok(())
}

fn walk(at: &Path, found: &mut Vec<PathBuf>) -> Result<(), Box<dyn Error>> {
    for entry in fs::read_dir(at)? {
        let path = entry?.path();
        if path.is_dir() {
            // Adding a file changes its folder.
            println!("cargo:rerun-if-changed={}", path.display());
            walk(&path, found)?;
        } else {
            found.push(path);
        }
    }
    Ok(())
}
