//! Caches of other programs, laid out as those programs lay them out. Must not know how they are read.

use std::fs;
use std::os::unix::fs::symlink;

use super::*;

/// A home directory with a cache of each program.
fn home() -> (tempfile::TempDir, ModelFolders) {
    let home = tempfile::tempdir().unwrap();
    let root = home.path().to_owned();
    let write = |path: &str, bytes: &[u8]| {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    };
    let hub = ".cache/huggingface/hub";
    let qwen = format!("{hub}/models--Qwen--Qwen3-0.6B");
    write(&format!("{qwen}/refs/main"), b"abc123\n");
    write(&format!("{qwen}/snapshots/abc123/config.json"), b"{}");
    write(&format!("{qwen}/snapshots/abc123/tokenizer.json"), b"{}");
    write(&format!("{qwen}/blobs/w"), &[0; 1000]);
    symlink("../../blobs/w", root.join(format!("{qwen}/snapshots/abc123/model.safetensors"))).unwrap();
    let partial = format!("{hub}/models--meta-llama--Llama-3.2-1B");
    write(&format!("{partial}/snapshots/f00/config.json"), b"{}");
    write(&format!("{partial}/refs/main"), b"../../../etc");
    let broken = format!("{hub}/models--gpt2/snapshots/1");
    write(&format!("{broken}/config.json"), b"{}");
    symlink("../../blobs/gone", root.join(format!("{broken}/model.safetensors"))).unwrap();
    let gguf = format!("{hub}/models--bartowski--Qwen3-0.6B-GGUF/snapshots/2");
    write(&format!("{gguf}/Qwen3-0.6B-Q4_K_M.gguf"), b"GGUFxx");
    write(&format!("{gguf}/Qwen3-0.6B-Q8_0.gguf"), b"GGUFxxxx");
    write(&format!("{gguf}/mmproj-F16.gguf"), b"GGUF");
    write(&format!("{hub}/models--a--parts/snapshots/3/m-00001-of-00002.gguf"), b"GGUF");
    write(&format!("{hub}/models--a--parts/snapshots/3/m-00002-of-00002.gguf"), b"GGUF");
    write(&format!("{hub}/datasets--a--b/snapshots/3/m.gguf"), b"GGUF");

    let ollama = ".ollama/models";
    let digest = "a".repeat(64);
    let manifest = |digest: &str| {
        serde_json::json!({"schemaVersion": 2, "layers": [
            {"mediaType": "application/vnd.ollama.image.template", "digest": "sha256:00", "size": 1},
            {"mediaType": "application/vnd.ollama.image.model", "digest": digest, "size": 4}]})
        .to_string()
    };
    write(&format!("{ollama}/blobs/sha256-{digest}"), b"GGUF");
    let manifests = format!("{ollama}/manifests/registry.ollama.ai");
    write(&format!("{manifests}/library/llama3.2/1b"), manifest(&format!("sha256:{digest}")).as_bytes());
    write(&format!("{manifests}/library/llama3.2/latest"), manifest(&format!("sha256:{digest}")).as_bytes());
    write(
        &format!("{manifests}/somebody/tuned/latest"),
        manifest(&format!("sha256:{}", "b".repeat(64))).as_bytes(),
    );
    write(&format!("{manifests}/library/evil/latest"), manifest("sha256:../../../../etc/passwd").as_bytes());
    write(&format!("{manifests}/library/nonsense/latest"), b"{");
    write(
        &format!("{ollama}/manifests/hf.co/bartowski/Tiny/Q4_0"),
        manifest(&format!("sha256:{digest}")).as_bytes(),
    );

    write(".lmstudio/models/lmstudio-community/Phi-4-GGUF/Phi-4-Q4_K_M.gguf", b"GGUF");
    write(".cache/llama.cpp/ggml-org_gemma-3-1b-it-GGUF_gemma-3-1b-it-Q4_K_M.gguf", b"GGUF");
    let places = ModelFolders::of(|name| (name == "HOME").then(|| root.clone()));
    (home, places)
}

#[test]
fn what_each_program_has_stored_is_found_by_its_name() {
    let (_home, places) = home();
    let list = places.list();
    let rows: Vec<_> = list
        .iter()
        .filter(|stored| !stored.path.starts_with("/usr/share"))
        .map(|stored| {
            (stored.name.as_str(), stored.program, stored.format, stored.bytes, stored.fault.is_none())
        })
        .collect();
    assert_eq!(
        rows,
        [
            ("a/parts:m-00001-of-00002", "Hugging Face", "GGUF", 4, true),
            ("bartowski/Qwen3-0.6B-GGUF:Qwen3-0.6B-Q4_K_M", "Hugging Face", "GGUF", 6, true),
            ("bartowski/Qwen3-0.6B-GGUF:Qwen3-0.6B-Q8_0", "Hugging Face", "GGUF", 8, true),
            ("ggml-org_gemma-3-1b-it-GGUF_gemma-3-1b-it-Q4_K_M", "llama.cpp", "GGUF", 4, true),
            ("gpt2", "Hugging Face", "safetensors", 0, false),
            ("hf.co/bartowski/Tiny:Q4_0", "Ollama", "GGUF", 4, true),
            ("llama3.2:1b", "Ollama", "GGUF", 4, true),
            ("llama3.2:latest", "Ollama", "GGUF", 4, true),
            ("lmstudio-community/Phi-4-GGUF:Phi-4-Q4_K_M", "LM Studio", "GGUF", 4, true),
            ("meta-llama/Llama-3.2-1B", "Hugging Face", "safetensors", 0, false),
            ("Qwen/Qwen3-0.6B", "Hugging Face", "safetensors", 1000, true),
            ("somebody/tuned:latest", "Ollama", "GGUF", 0, false),
        ]
    );
    assert!(list.iter().all(|stored| stored.fault.is_some() || stored.path.exists()));
}

#[test]
fn a_name_leads_to_one_or_to_what_to_do() {
    let (_home, places) = home();
    let rows = [
        ("Qwen/Qwen3-0.6B", Ok("snapshots/abc123")),
        ("qwen/qwen3-0.6b", Ok("snapshots/abc123")),
        ("Qwen3-0.6B", Ok("snapshots/abc123")),
        ("llama3.2", Ok("blobs/sha256-aaaa")),
        ("llama3.2:1b", Ok("blobs/sha256-aaaa")),
        ("bartowski/Qwen3-0.6B-GGUF:Q8_0", Ok("Qwen3-0.6B-Q8_0.gguf")),
        ("Phi-4-GGUF", Ok("Phi-4-Q4_K_M.gguf")),
        ("bartowski/Qwen3-0.6B-GGUF", Err("could be any of several")),
        ("meta-llama/Llama-3.2-1B", Err("has no weights")),
        ("gpt2", Err("lacks a part of its weights")),
        ("somebody/tuned", Err("ollama pull fetches them")),
        ("Qwen/Qwen3-4B", Err("there are Qwen/Qwen3-0.6B")),
        ("Qwen/Qwen3-4B", Err("hf download Qwen/Qwen3-4B")),
        ("mistral:7b", Err("ollama pull mistral:7b")),
    ];
    for (name, expected) in rows {
        match (places.find(name), expected) {
            (FoundCheckpoint::One(stored), Ok(part)) => {
                assert!(stored.path.display().to_string().contains(part), "{name}: {stored:?}");
            }
            (FoundCheckpoint::None(why), Err(part)) => assert!(why.contains(part), "{name}: {why}"),
            (found, _) => panic!("{name}: {found:?}"),
        }
    }
    let FoundCheckpoint::None(why) = ModelFolders::default().find("Qwen/Qwen3-0.6B") else { panic!() };
    assert!(why.contains("no model of another program is stored on this machine"), "{why}");
}

#[test]
fn places_follow_each_program_s_own_variables() {
    let of = |pairs: &[(&str, &str)]| {
        ModelFolders::of(|name| {
            pairs.iter().find(|(known, _)| *known == name).map(|(_, value)| PathBuf::from(value))
        })
    };
    let home = ("HOME", "/h");
    assert_eq!(of(&[home]).hub, [PathBuf::from("/h/.cache/huggingface/hub")]);
    assert_eq!(of(&[home, ("XDG_CACHE_HOME", "/x")]).hub, [PathBuf::from("/x/huggingface/hub")]);
    assert_eq!(of(&[home, ("HF_HOME", "/f")]).hub, [PathBuf::from("/f/hub")]);
    assert_eq!(of(&[home, ("HF_HOME", "/f"), ("HF_HUB_CACHE", "/c")]).hub, [PathBuf::from("/c")]);
    assert_eq!(of(&[home, ("OLLAMA_MODELS", "/o")]).ollama, [PathBuf::from("/o")]);
    assert_eq!(of(&[home]).ollama[0], PathBuf::from("/h/.ollama/models"));
    assert_eq!(of(&[home, ("LLAMA_CACHE", "/l")]).llama_cpp[0], PathBuf::from("/l"));
    assert_eq!(of(&[]).hub, [] as [PathBuf; 0], "without a home there is none");
}

#[test]
fn names_are_told_from_paths() {
    for name in ["Qwen/Qwen3-0.6B", "llama3.2:1b", "llama3.2", "hf.co/a/b:Q4_0"] {
        assert!(could_be_a_name(Path::new(name)), "{name}");
    }
    for path in ["/a/b", "./a", "../a", "~/a", "a/../b", "m.gguf", "a b", "a/b/c/d/e", ""] {
        assert!(!could_be_a_name(Path::new(path)), "{path}");
    }
}

#[test]
fn no_directory_is_read_without_end() {
    let dir = tempfile::tempdir().unwrap();
    for n in 0..20 {
        fs::write(dir.path().join(format!("{n}.gguf")), b"GGUF").unwrap();
    }
    let mut budget = EntryBudget(7);
    assert_eq!(gguf_files(dir.path(), &mut budget).len(), 7);
    assert!(entries(dir.path(), &mut budget).is_empty());
}
