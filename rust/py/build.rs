//! Writes the digest of the engine's sources into the extension. `penstock serve` compares it with the files of a
//! checkout, because an extension that was built from other sources fails at some later call.

use std::env;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

/// Crates that the extension is built from. `python/penstock/engine_build.py` has the same list.
const CRATES: [&str; 4] = ["core", "llm", "net", "py"];

fn main() -> io::Result<()> {
    // Read when the script runs: a target folder may have been copied with the compiled script.
    let manifest =
        env::var_os("CARGO_MANIFEST_DIR").ok_or_else(|| io::Error::other("CARGO_MANIFEST_DIR is not set"))?;
    let root = Path::new(&manifest).join("..");
    let mut output = io::stdout();
    let mut hash = Sha256::new();
    for name in CRATES {
        let folder = root.join(name).join("src");
        writeln!(output, "cargo:rerun-if-changed={}", folder.display())?;
        let mut files = Vec::new();
        list_sources(&folder, &mut files)?;
        let mut entries: Vec<(String, PathBuf)> = Vec::with_capacity(files.len());
        for file in files {
            let path = file.strip_prefix(&root).map_err(io::Error::other)?;
            entries.push((path.to_string_lossy().into_owned(), file));
        }
        entries.sort();
        for (path, file) in entries {
            hash.update(path.as_bytes());
            hash.update([0]);
            hash.update(fs::read(file)?);
            hash.update([0]);
        }
    }
    writeln!(output, "cargo:rerun-if-changed=build.rs")?;
    write!(output, "cargo:rustc-env=PENSTOCK_SOURCES_SHA256=")?;
    for byte in hash.finalize() {
        write!(output, "{byte:02x}")?;
    }
    writeln!(output)
}

/// Adds the `.rs` files of a folder and its subfolders.
fn list_sources(folder: &Path, files: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            list_sources(&path, files)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    Ok(())
}
