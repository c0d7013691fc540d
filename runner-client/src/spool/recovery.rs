//! What a start finds in the folder.
//!
//! A segment with a footer is taken at its word: its records are looked at when they are read. A segment without one was
//! being written when the process ended, or is damaged; it is searched, checked record by record, and given a footer.
//! That is one segment per signal after a crash, whatever the size of the spool.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;

use super::acks::Acks;
use super::error::SpoolError;
use super::folder::Folder;
use super::format::{
    ACKS_EXTENSION, FOOTER, FOOTER_LEN, Head, MAX_SEGMENT_FILE, SEGMENT_EXTENSION, SEGMENT_HEADER, SEGMENT_HEADER_LEN,
    SegmentName, Summary, VERSION,
};
use super::record::{Amount, Dropped, PerSignal};
use super::scan::{self, Bounds, Lossy, Mark, Source};
use super::segment::Segment;
use super::{aside, disk};

/// How many files [`Recovery::set_aside`] names.
const NAMED: usize = 64;

/// What a start found.
#[derive(Debug, Clone, Default)]
pub struct Recovery {
    /// What waits to be delivered.
    pub waiting: PerSignal<Amount>,
    /// What was damaged, as far as it can be told; it is not in `waiting`. What a power loss took without leaving a
    /// trace is not in it: that is bounded by the [`SyncPolicy`](super::SyncPolicy).
    pub lost: Vec<Dropped>,
    /// Bytes that were cut off behind the last whole record of a segment: what was being written in the end.
    pub torn_bytes: u64,
    /// Segments that had to be searched, since they had no footer.
    pub searched_segments: u64,
    /// Files that were set aside: the first of them, at most 64.
    pub set_aside: Vec<SetAside>,
    /// How many files were set aside.
    pub set_aside_files: u64,
    /// What was left where it is: folders, and files in a folder that was not the spool's alone from the beginning.
    pub ignored_entries: u64,
}

/// A file that is no part of the spool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SetAside {
    /// Its name in the folder `set-aside`.
    pub name: String,
    /// What was wrong with it.
    pub fault: &'static str,
}

/// A segment that was found.
#[derive(Debug)]
pub(super) struct FoundSegment {
    pub(super) segment: Segment,
    /// What a search did not find in it.
    pub(super) lost: Vec<Stretch>,
}

/// Records in a row that are lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stretch {
    pub(super) seq: u64,
    /// The `seq` behind the last one.
    pub(super) next_seq: u64,
    /// The items of all of them.
    pub(super) items: u64,
}

/// Reads the folder; the segments of a signal come in the order in which they were written. Whatever is in the folder,
/// the start goes on, but for a newer format; then nothing is changed.
pub(super) fn recover(
    folder: &Folder,
    max_set_aside_bytes: u64,
    now_unix_ms: u64,
) -> Result<(PerSignal<Vec<FoundSegment>>, Recovery), SpoolError> {
    let listing = Listing::of(folder)?;
    let mut recovery = Recovery { ignored_entries: listing.ignored, ..Recovery::default() };
    let mut segments = PerSignal::<Vec<FoundSegment>>::default();
    let mut garbage = listing.garbage;
    for (name, has_acks) in listing.segments {
        match examine(folder, name, has_acks, &mut recovery) {
            Ok(Some(found)) => segments.get_mut(name.signal).push(found),
            Ok(None) => remove(folder, name, &[SEGMENT_EXTENSION, ACKS_EXTENSION]),
            Err(fault) => {
                garbage.push((name.file(SEGMENT_EXTENSION).into(), fault));
                remove(folder, name, &[ACKS_EXTENSION]);
            }
        }
    }
    for (name, fault) in garbage {
        put_aside(folder, &name, fault, now_unix_ms, &mut recovery);
    }
    if recovery.set_aside_files > 0 {
        // What can't be deleted now is deleted when the next file is set aside.
        let _ = aside::trim(folder, max_set_aside_bytes);
    }
    Ok((segments, recovery))
}

/// What the folder holds.
#[derive(Default)]
struct Listing {
    /// Whether there are acknowledgements beside a segment.
    segments: BTreeMap<SegmentName, bool>,
    garbage: Vec<(OsString, &'static str)>,
    ignored: u64,
}

impl Listing {
    fn of(folder: &Folder) -> Result<Self, SpoolError> {
        let fail = |source| SpoolError::Io { action: "list", path: folder.path().to_owned(), source };
        let mut listing = Self::default();
        let mut acks = Vec::new();
        for entry in folder.entries().map_err(fail)? {
            let entry = entry.map_err(fail)?;
            let (name, kind) = (entry.file_name(), entry.file_type().map_err(fail)?);
            let known = name.to_str().and_then(SegmentName::parse);
            if kind.is_file() {
                refuse_newer(folder, &name)?;
            }
            match known {
                Some((name, SEGMENT_EXTENSION)) if kind.is_file() => {
                    listing.segments.insert(name, false);
                }
                Some((name, _)) if kind.is_file() => acks.push(name),
                _ if kind.is_dir() || (known.is_none() && !folder.is_exclusive()) => listing.ignored += 1,
                Some(_) => listing.garbage.push((name, "not a regular file")),
                None => listing.garbage.push((name, "not a file of the spool")),
            }
        }
        for name in acks {
            match listing.segments.get_mut(&name) {
                Some(has_acks) => *has_acks = true,
                // Its segment was deleted just before the process ended.
                None => remove(folder, name, &[ACKS_EXTENSION]),
            }
        }
        Ok(listing)
    }
}

/// Fails if a newer version wrote the file. Files that can't be read are no obstacle.
fn refuse_newer(folder: &Folder, name: &OsStr) -> Result<(), SpoolError> {
    let path = folder.path().join(name);
    match File::open(&path).and_then(|file| head(&file)) {
        Ok(Head::Newer(found)) => Err(SpoolError::NewerFormat { file: path, found, supported: VERSION }),
        _ => Ok(()),
    }
}

fn head(file: &dyn Source) -> io::Result<Head> {
    let mut bytes = [0; SEGMENT_HEADER];
    let read = file.read_at(&mut bytes, 0)?;
    Ok(if read == bytes.len() { Head::read(&bytes) } else { Head::Unknown })
}

/// Reads a segment. `None`: there was nothing in it yet. An error says why it is none.
fn examine(
    folder: &Folder,
    name: SegmentName,
    has_acks: bool,
    recovery: &mut Recovery,
) -> Result<Option<FoundSegment>, &'static str> {
    let unreadable = |_| "can't be read";
    let file = folder.open(&name.file(SEGMENT_EXTENSION)).map_err(unreadable)?;
    let file_len = file.metadata().map_err(unreadable)?.len();
    if file_len > MAX_SEGMENT_FILE {
        return Err("larger than any segment");
    }
    // A block that can't be read costs what is in it.
    let source = Lossy(&file);
    let head = head(&source).map_err(unreadable)?;
    if matches!(head, Head::Segment(other) if other != name) {
        return Err("the header is of another segment");
    }
    let sealed = footer(&source, &name, file_len);
    let (summary, lost) = sealed.map_or_else(|| search(&source, &name, file_len), |summary| (summary, Vec::new()));
    let records = summary.next_seq - name.seq;
    if sealed.is_none() {
        recovery.searched_segments += 1;
        match head {
            _ if records > 0 => {
                recovery.torn_bytes += file_len - summary.end;
                mend(folder, &name, &summary);
            }
            _ if file_len == 0 => {}
            Head::Segment(_) if file_len == SEGMENT_HEADER_LEN => {}
            Head::Segment(_) => return Err("no record in it is whole"),
            _ => return Err("not a segment"),
        }
    }
    let acks = if has_acks { acks(folder, &name, records) } else { Acks::default() };
    Ok((records > 0).then(|| FoundSegment { segment: Segment::with(name, summary, acks), lost }))
}

fn footer(source: &dyn Source, name: &SegmentName, file_len: u64) -> Option<Summary> {
    let mut bytes = [0; FOOTER];
    let read = source.read_at(&mut bytes, file_len.checked_sub(FOOTER_LEN)?).ok()?;
    if read == bytes.len() { Summary::read(&bytes, name, file_len) } else { None }
}

/// What is done with in a segment. If that can't be read, its records are delivered once more, which does no harm.
fn acks(folder: &Folder, name: &SegmentName, records: u64) -> Acks {
    folder.open(&name.file(ACKS_EXTENSION)).and_then(|file| Acks::load(&file, name.salt, records)).unwrap_or_default()
}

/// Searches a segment for records, and checks them. Damaged ones count as records of it, and as lost.
fn search(source: &dyn Source, name: &SegmentName, file_len: u64) -> (Summary, Vec<Stretch>) {
    let bounds = Bounds::of_file(name, file_len);
    let mut summary = Summary::empty(name);
    let mut lost: Vec<Stretch> = Vec::new();
    // Stretches stay as a reader meets them: each is an entry among the acknowledgements, whose items it looks up.
    let mut lose = |seq, next_seq, items| {
        if seq < next_seq {
            lost.push(Stretch { seq, next_seq, items });
        }
    };
    let mut mark = Mark::first(name);
    while let Ok(Some(found)) = scan::find(source, name.salt, mark, bounds) {
        let header = &found.header;
        lose(mark.seq, header.seq, header.items_before - mark.items);
        if matches!(scan::payload(source, &found), Ok(Some(_))) {
            summary.push(header, found.end());
            mark = found.after();
        } else {
            lose(header.seq, header.seq + 1, header.items);
            summary.push(header, found.offset);
            mark = found.after_damage();
        }
    }
    (summary, lost)
}

/// Cuts off what is behind the last record and adds the footer, so that this is the last search.
fn mend(folder: &Folder, name: &SegmentName, summary: &Summary) {
    let mended = folder.open_or_create(&name.file(SEGMENT_EXTENSION)).and_then(|file| {
        file.set_len(summary.end)?;
        disk::write(&file, summary.end, &[&summary.write(name.salt)]).map_err(|error| error.source)?;
        disk::sync(&file)
    });
    if let Err(error) = mended {
        tracing::debug!(%error, "a segment of the spool can't be given a footer; the next start searches it again");
    }
}

fn put_aside(folder: &Folder, name: &OsStr, fault: &'static str, now_unix_ms: u64, recovery: &mut Recovery) {
    match aside::set_aside(folder, name, now_unix_ms, recovery.set_aside_files) {
        Ok(name) => {
            recovery.set_aside_files += 1;
            if recovery.set_aside.len() < NAMED {
                recovery.set_aside.push(SetAside { name, fault });
            }
        }
        Err(error) => {
            recovery.ignored_entries += 1;
            tracing::debug!(%error, "a file in the spool folder can't be set aside; it is left alone");
        }
    }
}

fn remove(folder: &Folder, name: SegmentName, extensions: &[&str]) {
    for extension in extensions {
        // What stays behind is found again at the next start.
        let _ = folder.remove(&name.file(extension));
    }
}
