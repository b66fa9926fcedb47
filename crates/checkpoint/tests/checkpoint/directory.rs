//! Files on disk and several weight files: names and links that lead out, missing pieces, and false claims of an index.

use std::collections::BTreeMap;
use std::path::Path;

use headrace_checkpoint::Checkpoint;
use safetensors::SafeTensors;
use serde_json::{Value, json};

use crate::support::{Files, WEIGHTS, check_refused};

const INDEX: &str = "model.safetensors.index.json";
const UP: &str = "model.layers.0.mlp.up_proj.weight";

/// The checkpoint split into three weight files, with an index that the test may change.
fn sharded(change: impl FnOnce(&mut Value)) -> Files {
    let whole = SafeTensors::deserialize(WEIGHTS).unwrap();
    let mut shards: BTreeMap<String, Vec<_>> = BTreeMap::new();
    let mut map = serde_json::Map::new();
    for (position, (name, view)) in whole.tensors().into_iter().enumerate() {
        let file = format!("model-0000{}-of-00003.safetensors", position % 3 + 1);
        map.insert(name.clone(), json!(file));
        shards.entry(file).or_default().push((name, view));
    }
    let mut files = Files::good().without("model.safetensors");
    for (name, tensors) in shards {
        files = files.with(&name, safetensors::serialize(tensors, None).unwrap());
    }
    let mut index = json!({"metadata": {"total_size": 267_008}, "weight_map": map});
    change(&mut index);
    files.with(INDEX, index.to_string())
}

#[test]
fn several_files_are_one_checkpoint() {
    let (whole, parts) = (Files::good().open().unwrap(), sharded(|_| {}).open().unwrap());
    assert!(whole.tensor_names().eq(parts.tensor_names()));
    for name in whole.tensor_names() {
        let (a, b) = (whole.tensor(name).unwrap(), parts.tensor(name).unwrap());
        assert_eq!((a.dtype, a.shape, a.bytes), (b.dtype, b.shape, b.bytes));
    }
    assert_eq!(parts.weight_bytes(), whole.weight_bytes());
}

#[test]
fn a_lying_index_is_refused() {
    let at = |file: &'static str| sharded(move |index| index["weight_map"][UP] = json!(file));
    let shard = |name: &str, files: Files| files.without(name);
    check_refused(vec![
        ("parent", at("../model.safetensors"), &[INDEX, UP, "../model.safetensors", "plain name"]),
        ("parent inside", at("x/../model.safetensors"), &[UP, "plain name"]),
        ("root", at("/etc/passwd"), &[UP, "/etc/passwd", "plain name"]),
        ("folder", at("sub/model.safetensors"), &[UP, "plain name"]),
        ("here", at("./model.safetensors"), &[UP, "plain name"]),
        ("trailing slash", at("model.safetensors/"), &[UP, "plain name"]),
        ("backslash", at("..\\model.safetensors"), &[UP, "plain name"]),
        ("NUL", at("model\0.safetensors"), &[UP, "plain name"]),
        ("empty", at(""), &[UP, "plain name"]),
        ("dots", at(".."), &[UP, "plain name"]),
        ("another kind", at("pytorch_model.bin"), &[UP, ".safetensors file"]),
        ("another file", at("config.json"), &[UP, ".safetensors file"]),
        (
            "not there",
            at("model-00009-of-00003.safetensors"),
            &["model-00009-of-00003.safetensors", "no such file"],
        ),
        ("not text", sharded(|index| index["weight_map"][UP] = json!(3)), &[INDEX, UP, "found 3"]),
        (
            "a tensor that the file lacks",
            sharded(|index| index["weight_map"]["ghost"] = json!("model-00002-of-00003.safetensors")),
            &["model-00002-of-00003.safetensors", "tensor \"ghost\"", "is not in this file"],
        ),
        (
            "a tensor that the index lacks",
            sharded(|index| {
                index["weight_map"].as_object_mut().unwrap().remove(UP);
            }),
            &[INDEX, UP, "is missing"],
        ),
        ("no map", sharded(|index| *index = json!({})), &[INDEX, "weight_map", "is missing"]),
        (
            "empty map",
            sharded(|index| index["weight_map"] = json!({})),
            &[INDEX, "weight_map", "names 0 tensors"],
        ),
        ("map of another kind", sharded(|index| index["weight_map"] = json!([])), &[INDEX, "weight_map"]),
        (
            "too many files",
            sharded(|index| {
                let map = (0..2_000).map(|n| (format!("t{n}"), json!(format!("{n}.safetensors"))));
                index["weight_map"] = Value::Object(map.collect());
            }),
            &[INDEX, "weight_map", "names 2000 files", "1024"],
        ),
        (
            "a file missing",
            shard("model-00001-of-00003.safetensors", sharded(|_| {})),
            &["model-00001-of-00003.safetensors", "no such file", "whole repository"],
        ),
        ("no index", shard(INDEX, sharded(|_| {})), &[INDEX, "several safetensors files"]),
    ]);
}

#[test]
fn missing_files_are_named() {
    let without = |name: &str| Files::good().without(name);
    check_refused(vec![
        ("config", without("config.json"), &["config.json: no such file", "download"]),
        ("tokenizer", without("tokenizer.json"), &["tokenizer.json: no such file"]),
        ("weights", without("model.safetensors"), &["model.safetensors: no such file", "convert"]),
        (
            "twice",
            {
                let mut files = Files::good();
                files.0.push(files.0[0].clone());
                files
            },
            &["config.json: is given twice"],
        ),
        ("a path", Files::good().with("../config.json", *b"{}"), &["../config.json", "plain name"]),
    ]);
}

#[test]
fn one_weight_file_may_have_any_name() {
    let files = Files::good().without("model.safetensors").with("weights.safetensors", WEIGHTS);
    assert!(files.open().unwrap().has_tensor(UP));
}

fn message(dir: &Path) -> String {
    Checkpoint::open(dir).map(drop).unwrap_err().to_string()
}

#[test]
fn a_directory_gives_what_memory_gives_also_after_its_pages_went() {
    for files in [Files::good(), sharded(|_| {})] {
        let dir = tempfile::tempdir().unwrap();
        files.write_to(dir.path());
        let (disk, memory) = (Checkpoint::open(dir.path()).unwrap(), files.open().unwrap());
        assert_eq!(disk.fingerprint(), memory.fingerprint());
        assert_eq!(disk.config(), memory.config());
        disk.release_pages();
        memory.release_pages();
        for name in memory.tensor_names() {
            assert_eq!(disk.tensor(name).unwrap().bytes, memory.tensor(name).unwrap().bytes);
        }
    }
}

#[test]
fn what_is_not_a_model_directory_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    assert!(message(dir.path()).contains("config.json: no such file"));
    assert!(message(&dir.path().join("absent")).contains("absent"));
    std::fs::write(dir.path().join("file"), "x").unwrap();
    assert!(message(&dir.path().join("file")).contains("is not a directory"));
}

#[test]
fn truncated_and_empty_files_on_disk_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    Files::good().write_to(dir.path());
    for length in [0, 1, 8, 9, 2_000, 2_496, 100_000, WEIGHTS.len() - 1] {
        std::fs::write(dir.path().join("model.safetensors"), &WEIGHTS[..length]).unwrap();
        let message = message(dir.path());
        assert!(message.starts_with("model.safetensors: "), "{length} bytes: {message}");
    }
}

#[test]
fn a_sparse_file_of_a_claimed_terabyte_costs_nothing() {
    let dir = tempfile::tempdir().unwrap();
    Files::good().write_to(dir.path());
    for name in ["tokenizer.json", "config.json"] {
        let file = std::fs::File::create(dir.path().join(name)).unwrap();
        // Some file systems do not support files of that size. Then there is nothing to refuse.
        if file.set_len(1 << 40).is_ok() {
            let message = message(dir.path());
            assert!(message.contains(name) && message.contains("1099511627776 bytes"), "{message}");
        }
    }
}

#[cfg(unix)]
mod links {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn links_out_of_the_directory_are_refused() {
        let (inside, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        Files::good().write_to(outside.path());
        for name in [
            "config.json",
            "generation_config.json",
            "tokenizer.json",
            "tokenizer_config.json",
            "model.safetensors",
        ] {
            Files::good().write_to(inside.path());
            let link = inside.path().join(name);
            std::fs::remove_file(&link).unwrap();
            symlink(outside.path().join(name), &link).unwrap();
            let message = message(inside.path());
            assert!(message.starts_with(name) && message.contains("symbolic link out of"), "{message}");
            std::fs::remove_file(&link).unwrap();
        }
    }

    #[test]
    fn links_out_of_the_directory_are_refused_for_indexed_files_too() {
        let (inside, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        sharded(|_| {}).write_to(inside.path());
        let name = "model-00002-of-00003.safetensors";
        let moved = outside.path().join(name);
        std::fs::rename(inside.path().join(name), &moved).unwrap();
        symlink(&moved, inside.path().join(name)).unwrap();
        let message = message(inside.path());
        assert!(message.starts_with(name) && message.contains("symbolic link out of"), "{message}");
    }

    #[test]
    fn links_inside_the_directory_and_in_the_hub_cache_are_followed() {
        let dir = tempfile::tempdir().unwrap();
        Files::good().write_to(dir.path());
        std::fs::rename(dir.path().join("model.safetensors"), dir.path().join("blob")).unwrap();
        symlink("blob", dir.path().join("model.safetensors")).unwrap();
        Checkpoint::open(dir.path()).unwrap();

        let cache = tempfile::tempdir().unwrap();
        let (blobs, snapshot) = (cache.path().join("blobs"), cache.path().join("snapshots/abc"));
        std::fs::create_dir_all(&snapshot).unwrap();
        std::fs::create_dir(&blobs).unwrap();
        Files::good().write_to(&blobs);
        for (name, _) in Files::good().0 {
            symlink(format!("../../blobs/{name}"), snapshot.join(name)).unwrap();
        }
        Checkpoint::open(&snapshot).unwrap();
        // Links may point only into the cache's own folder, not beside it.
        std::fs::remove_file(snapshot.join("config.json")).unwrap();
        std::fs::copy(blobs.join("config.json"), cache.path().join("config.json")).unwrap();
        symlink("../../config.json", snapshot.join("config.json")).unwrap();
        assert!(message(&snapshot).contains("symbolic link out of"));
    }

    #[test]
    fn what_is_not_a_regular_file_is_refused_without_waiting_for_it() {
        let dir = tempfile::tempdir().unwrap();
        Files::good().without("model.safetensors").write_to(dir.path());
        let path = dir.path().join("model.safetensors");
        let socket = std::os::unix::net::UnixListener::bind(&path).unwrap();
        assert_eq!(message(dir.path()), "model.safetensors: is not a regular file");
        drop(socket);
        std::fs::remove_file(&path).unwrap();
        std::fs::create_dir(&path).unwrap();
        assert_eq!(message(dir.path()), "model.safetensors: is not a regular file");
        std::fs::remove_dir(&path).unwrap();
        symlink("nowhere", &path).unwrap();
        assert!(message(dir.path()).starts_with("model.safetensors: "));
    }
}
