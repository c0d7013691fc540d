//! Files in the folder that are no part of the spool are set aside: out of the way, and there for whoever wants to know.

use std::ffi::OsStr;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;

use super::folder::{Folder, SET_ASIDE};

/// What a file costs at least, so that empty ones are bounded too.
const MIN_COST: u64 = 4096;

/// Moves a file into the folder `set-aside`, under a name that begins with the time and holds nothing unprintable.
/// Returns that name. `number` counts what is set aside at this time.
pub(super) fn set_aside(folder: &Folder, name: &OsStr, now_unix_ms: u64, mut number: u64) -> io::Result<String> {
    let aside = folder.path().join(SET_ASIDE);
    if !fs::symlink_metadata(&aside).is_ok_and(|found| found.is_dir()) {
        DirBuilder::new().mode(0o700).create(&aside)?;
    }
    let readable: String = name.to_string_lossy().chars().take(80).map(readable).collect();
    loop {
        let new_name = format!("{now_unix_ms:013}-{number:06}-{readable}");
        if fs::symlink_metadata(aside.join(&new_name)).is_err() {
            fs::rename(folder.path().join(name), aside.join(&new_name))?;
            return Ok(new_name);
        }
        number += 1;
    }
}

/// Deletes the oldest files that were set aside until the others take at most `max_bytes`.
pub(super) fn trim(folder: &Folder, max_bytes: u64) -> io::Result<()> {
    let mut files: Vec<(PathBuf, u64)> = Vec::new();
    for entry in fs::read_dir(folder.path().join(SET_ASIDE))? {
        let entry = entry?;
        let found = entry.metadata()?;
        if !found.is_dir() {
            files.push((entry.path(), found.len().max(MIN_COST)));
        }
    }
    files.sort();
    let mut bytes: u64 = files.iter().map(|(_, bytes)| bytes).sum();
    for (path, cost) in files {
        if bytes <= max_bytes {
            break;
        }
        fs::remove_file(path)?;
        bytes -= cost;
    }
    Ok(())
}

const fn readable(character: char) -> char {
    match character {
        'a'..='z' | 'A'..='Z' | '0'..='9' | '.' | '-' | '_' => character,
        _ => '_',
    }
}
