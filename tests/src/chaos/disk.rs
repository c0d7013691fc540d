//! A small disk for a spool, which can be filled to the last byte.

use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const SIZE: &str = "size=24m,mode=0700";
const FILLER: &str = "filler";
const CHUNK: usize = 64 * 1024;

/// A tmpfs of 24 MiB where this process may mount one; gone when dropped. Otherwise a folder like any other.
#[derive(Debug)]
pub(super) struct SmallDisk {
    folder: PathBuf,
    is_mounted: bool,
}

impl SmallDisk {
    pub(super) fn new(folder: PathBuf) -> std::io::Result<Self> {
        fs::create_dir_all(&folder)?;
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", SIZE, "telemetry-chaos"]).arg(&folder);
        let mounted = mount.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
        Ok(Self { folder, is_mounted: mounted.is_ok_and(|status| status.success()) })
    }

    /// Where it is.
    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Whether it is a disk of its own, and can be filled.
    pub(super) const fn is_mounted(&self) -> bool {
        self.is_mounted
    }

    /// Takes all the room that is left. Whoever frees some has it until this is called again.
    pub(super) fn fill(&self) {
        if !self.is_mounted {
            return;
        }
        let filler = OpenOptions::new().create(true).append(true).open(self.folder.join(FILLER));
        let Ok(mut file) = filler else { return };
        for chunk in [CHUNK, 1] {
            while file.write_all(&vec![0; chunk]).is_ok() {}
        }
    }

    /// Gives it back.
    pub(super) fn free(&self) {
        // It may not be there.
        let _ = fs::remove_file(self.folder.join(FILLER));
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        if self.is_mounted {
            // Lazily: whoever still has a file open in it keeps it until the end.
            let _ = Command::new("umount").arg("-l").arg(&self.folder).status();
        }
    }
}
