//! A certificate and its key in two files, replaced together although two files can't be renamed at once.
//!
//! Invariant: at every moment, and after a crash at any, the certificate in place has its key either in place or beside it
//! under the name of the key with `.next` behind. So the order is: the new key beside the old one, then the new certificate
//! in place (from here on the key beside is the one), then the new key in place. [`CredentialFiles::load`] finishes what a
//! crash left undone.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use crate::credentials::Credentials;
use crate::load::{LoadError, LoadFault};

/// What stands behind the name of a file that waits to take its place.
const NEXT: &str = ".next";

/// Where a certificate chain and its key are. Both may be the same file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CredentialFiles {
    /// The chain, PEM, leaf first.
    pub certificate: PathBuf,
    /// The private key, PEM.
    pub key: PathBuf,
}

impl CredentialFiles {
    /// Reads both. If a replacement was interrupted after the certificate was put in place, the key beside is taken and put
    /// in place as well, where this process may do that.
    ///
    /// # Errors
    /// [`LoadError`], which names the file.
    pub fn load(&self) -> Result<Credentials, LoadError> {
        let fault = match Credentials::from_files(&self.certificate, &self.key) {
            Ok(credentials) => return Ok(credentials),
            Err(fault) => fault,
        };
        let next = beside(&self.key);
        if !matches!(fault.fault(), LoadFault::KeyMismatch { .. } | LoadFault::Missing) {
            return Err(fault);
        }
        let credentials = Credentials::from_files(&self.certificate, &next).map_err(|_| fault)?;
        let _ = fs::rename(&next, &self.key);
        Ok(credentials)
    }

    /// Replaces both, so that whoever loads them finds the old pair or the new one, also after a crash. The key is readable
    /// by its owner only; an existing certificate keeps its mode.
    ///
    /// # Errors
    /// A file can't be written: whatever was there is still good.
    pub fn replace(&self, chain_pem: &str, key_pem: &str) -> io::Result<()> {
        if self.certificate == self.key {
            return write_atomically(&self.key, format!("{chain_pem}{key_pem}"), 0o600);
        }
        let (next_key, next_certificate) = (beside(&self.key), beside(&self.certificate));
        write_new(&next_key, key_pem.as_bytes(), 0o600)?;
        write_new(&next_certificate, chain_pem.as_bytes(), mode_of(&self.certificate).unwrap_or(0o644))?;
        sync_folder(&next_key)?;
        fs::rename(&next_certificate, &self.certificate)?;
        sync_folder(&self.certificate)?;
        fs::rename(&next_key, &self.key)?;
        sync_folder(&self.key)
    }
}

/// Writes a file so that readers find the old content or the new, also after a crash.
///
/// # Errors
/// The file can't be written; what was there is still there.
pub fn write_atomically(path: &Path, content: impl AsRef<[u8]>, mode: u32) -> io::Result<()> {
    let next = beside(path);
    write_new(&next, content.as_ref(), mode)?;
    fs::rename(&next, path)?;
    sync_folder(path)
}

fn write_new(path: &Path, content: &[u8], mode: u32) -> io::Result<()> {
    // One that is left from before may have another mode, or be a link to somewhere else.
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(path)?;
    file.write_all(content)?;
    file.sync_all()
}

fn sync_folder(path: &Path) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(folder)?.sync_all()
}

fn mode_of(path: &Path) -> Option<u32> {
    use std::os::unix::fs::PermissionsExt as _;
    Some(fs::metadata(path).ok()?.permissions().mode() & 0o777)
}

fn beside(path: &Path) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(NEXT);
    name.into()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use telemetry_proto::RunnerId;

    use super::*;
    use crate::authority::{ClusterAuthority, Issued, KeyKind, RunnerRequest};
    use crate::cluster::ClusterName;

    fn issue() -> Issued {
        let authority = ClusterAuthority::create(&ClusterName::new("c").unwrap(), KeyKind::Ed25519).unwrap();
        authority.issue_runner(&RunnerRequest::new(RunnerId::new("r7").unwrap())).unwrap()
    }

    fn files(folder: &Path) -> CredentialFiles {
        CredentialFiles { certificate: folder.join("runner.pem"), key: folder.join("runner-key.pem") }
    }

    #[test]
    fn a_crash_at_any_step_of_a_replacement_leaves_a_pair_that_loads() {
        let (old, new) = (issue(), issue());
        let leaf = |issued: &Issued| issued.credentials().unwrap().leaf().clone();
        for crash_after in 0..=4 {
            let folder = tempfile::tempdir().unwrap();
            let files = files(folder.path());
            files.replace(&old.chain_pem, &old.key_pem).unwrap();
            let steps: [&dyn Fn(); 4] = [
                &|| write_new(&beside(&files.key), new.key_pem.as_bytes(), 0o600).unwrap(),
                &|| write_new(&beside(&files.certificate), new.chain_pem.as_bytes(), 0o644).unwrap(),
                &|| fs::rename(beside(&files.certificate), &files.certificate).unwrap(),
                &|| fs::rename(beside(&files.key), &files.key).unwrap(),
            ];
            steps[..crash_after].iter().for_each(|step| step());
            let expected = if crash_after < 3 { &old } else { &new };
            assert_eq!(*files.load().unwrap().leaf(), leaf(expected), "after step {crash_after}");
            let in_place = Credentials::from_files(&files.certificate, &files.key).unwrap();
            assert_eq!(*in_place.leaf(), leaf(expected), "finished after step {crash_after}");
            files.replace(&old.chain_pem, &old.key_pem).unwrap();
            assert_eq!(*files.load().unwrap().leaf(), leaf(&old), "what was left over is in nobody's way");
        }
    }

    #[test]
    fn keys_are_their_owners_and_one_file_may_hold_both() {
        let folder = tempfile::tempdir().unwrap();
        let issued = issue();
        let one = folder.path().join("both.pem");
        let files = CredentialFiles { certificate: one.clone(), key: one.clone() };
        files.replace(&issued.chain_pem, &issued.key_pem).unwrap();
        files.load().unwrap();
        assert_eq!(fs::metadata(&one).unwrap().permissions().mode() & 0o777, 0o600);
        let broken = CredentialFiles { certificate: folder.path().join("no"), key: one };
        assert!(matches!(broken.load().unwrap_err().fault(), LoadFault::Missing));
        assert!(broken.load().unwrap_err().to_string().contains("no: no such file"));
    }

    #[test]
    fn a_key_that_belongs_to_nothing_is_still_refused() {
        let folder = tempfile::tempdir().unwrap();
        let files = files(folder.path());
        files.replace(&issue().chain_pem, &issue().key_pem).unwrap();
        fs::write(beside(&files.key), issue().key_pem).unwrap();
        assert!(matches!(files.load().unwrap_err().fault(), LoadFault::KeyMismatch { .. }));
    }
}
