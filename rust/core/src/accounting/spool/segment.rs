//! Segment files of one writer. Segments are append-only; a full one is followed by the next number.

use std::{
    fs::{self, DirBuilder, File, OpenOptions, TryLockError},
    io::{self, IoSlice, Read, Seek, SeekFrom, Write},
    mem,
    os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use super::frame::encode_segment_header;
use crate::accounting::record::json_writer::write_object;

/// Size at which a segment is followed by the next one.
pub const SEGMENT_BYTES: u64 = 64 * 1024 * 1024;
/// File that a writer locks while it lives. It contains the number of the last segment, so that numbers never repeat.
const LOCK_FILE: &str = "lock";
const BOOT_ID_FILE: &str = "/proc/sys/kernel/random/boot_id";
/// Index of the start time among those fields of `/proc/self/stat` that follow the name of the program.
const START_TIME_FIELD: usize = 19;
/// Maximum number of folders that the first start may create: the writer's folder and its parents.
const MAX_NEW_FOLDERS: usize = 4;

/// Description of a writer, which is stored in the header of its segments.
#[derive(Debug, Clone)]
pub struct WriterIdentity {
    pub node: String,
    /// Name of the writer's folder.
    pub writer: String,
}

/// Writer of the segments in one folder. Holds the lock of the folder.
#[derive(Debug)]
pub struct SegmentWriter {
    folder: PathBuf,
    identity: WriterIdentity,
    lock: File,
    segment: Option<Segment>,
    last_number: u64,
    /// Files and folders that may not be on the disk yet, besides the current segment; `None` if records need not be
    /// durable.
    unsynced: Option<Vec<Arc<File>>>,
}

#[derive(Debug)]
struct Segment {
    file: Arc<File>,
    bytes: u64,
}

impl SegmentWriter {
    /// Opens the folder of a writer in `root`, and locks it. If another process holds the lock, uses a folder with the
    /// process id in its name. The other process can be an old worker with the same number that is still draining.
    pub fn open(root: &Path, mut identity: WriterIdentity, is_durable: bool) -> io::Result<Self> {
        let mut locked = lock_folder(root.join(&identity.writer))?;
        if locked.is_none() {
            identity.writer = format!("{}-{}", identity.writer, std::process::id());
            locked = lock_folder(root.join(&identity.writer))?;
        }
        let (folder, lock) = locked.ok_or(io::ErrorKind::ResourceBusy)?;
        // The writer's folder and its parents may be new.
        let folders = || folder.ancestors().take(MAX_NEW_FOLDERS).flat_map(File::open).map(Arc::new).collect();
        let unsynced = is_durable.then(folders);
        let mut writer = Self { folder, identity, lock, segment: None, last_number: 0, unsynced };
        writer.last_number = writer.find_last_number()?;
        Ok(writer)
    }

    /// Appends `parts` to the current segment. After an error, the segment contains none of them, or is abandoned.
    pub fn append(&mut self, parts: &mut [IoSlice<'_>], now: impl Fn() -> Duration) -> io::Result<u64> {
        let total: usize = parts.iter().map(|part| part.len()).sum();
        let is_full = |segment: &Segment| segment.bytes + total as u64 > SEGMENT_BYTES;
        if self.segment.as_ref().is_none_or(is_full) {
            let full = self.segment.take();
            if let (Some(full), Some(unsynced)) = (full, &mut self.unsynced) {
                unsynced.push(full.file);
            }
            self.segment = Some(self.create_segment(now())?);
        }
        let Some(segment) = &mut self.segment else { return Err(io::ErrorKind::NotFound.into()) };
        if let Err(error) = write_all_vectored(&segment.file, parts) {
            // A torn frame in the middle would hide all later ones, so a file that cannot be shortened is abandoned.
            if segment.file.set_len(segment.bytes).is_err() {
                self.segment = None;
            }
            return Err(error);
        }
        segment.bytes += total as u64;
        Ok(total as u64)
    }

    /// Returns the files and folders that may not be on the disk yet.
    pub fn take_unsynced(&mut self) -> Vec<Arc<File>> {
        let mut files = self.unsynced.as_mut().map(mem::take).unwrap_or_default();
        files.extend(self.segment.as_ref().map(|segment| Arc::clone(&segment.file)));
        files
    }

    /// Returns false if the file of the segment or of the lock was deleted, because further frames would be lost.
    pub fn is_intact(&self) -> bool {
        let exists = |file: &File| file.metadata().is_ok_and(|metadata| metadata.nlink() > 0);
        exists(&self.lock) && self.segment.as_ref().is_none_or(|segment| exists(&segment.file))
    }

    /// Replaces the file of the current segment.
    #[cfg(test)]
    pub fn use_file_for_test(&mut self, file: File) {
        self.segment = Some(Segment { file: Arc::new(file), bytes: 0 });
    }

    fn create_segment(&mut self, now: Duration) -> io::Result<Segment> {
        // Numbers follow the clock, so that they do not start at 1 again after the folder was deleted.
        let number = now.as_secs().max(self.last_number + 1);
        let path = self.folder.join(format!("{number:016}.seg"));
        let mut file = OpenOptions::new().append(true).create_new(true).mode(0o600).open(&path)?;
        self.last_number = number;
        let header = encode_segment_header(&self.header_json(now));
        let written = file.write_all(&header).and_then(|()| self.store_last_number());
        if let Err(error) = written {
            drop(fs::remove_file(&path));
            return Err(error);
        }
        if let Some(unsynced) = &mut self.unsynced {
            unsynced.push(Arc::new(File::open(&self.folder)?));
        }
        Ok(Segment { file: Arc::new(file), bytes: header.len() as u64 })
    }

    fn header_json(&self, now: Duration) -> Vec<u8> {
        let mut json = Vec::new();
        write_object(&mut json, |header| {
            header.text("node", &self.identity.node);
            header.text("writer", &self.identity.writer);
            header.number("pid", std::process::id());
            header.number("process_start", read_process_start());
            header.text("boot_id", fs::read_to_string(BOOT_ID_FILE).unwrap_or_default().trim());
            header.number("started_at", now.as_millis() as u64);
        });
        json
    }

    fn store_last_number(&mut self) -> io::Result<()> {
        self.lock.seek(SeekFrom::Start(0))?;
        self.lock.write_all(format!("{:016}", self.last_number).as_bytes())
    }

    fn find_last_number(&mut self) -> io::Result<u64> {
        let mut stored = String::new();
        // A damaged number is ignored, because the names of the segments and the clock provide numbers too.
        drop(self.lock.read_to_string(&mut stored));
        let mut last = stored.trim().parse().unwrap_or(0);
        for entry in fs::read_dir(&self.folder)? {
            let name = entry?.file_name();
            last = last.max(name.to_str().and_then(parse_segment_name).unwrap_or(0));
        }
        Ok(last)
    }
}

/// Returns the clock ticks from the start of the system to that of this process. Readers use it to find out if the
/// process still runs, even if its id was reused or the clock was set.
fn read_process_start() -> u64 {
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields = stat.rsplit_once(')').map(|(_, fields)| fields.split_whitespace());
    fields.and_then(|mut fields| fields.nth(START_TIME_FIELD)?.parse().ok()).unwrap_or(0)
}

/// Returns the number in the name of a segment file.
fn parse_segment_name(name: &str) -> Option<u64> {
    name.strip_suffix(".seg")?.parse().ok()
}

/// Creates and locks a folder. Returns `None` if another process holds its lock.
fn lock_folder(folder: PathBuf) -> io::Result<Option<(PathBuf, File)>> {
    DirBuilder::new().recursive(true).mode(0o700).create(&folder)?;
    let mut options = OpenOptions::new();
    let lock = options.read(true).write(true).create(true).truncate(false).mode(0o600).open(folder.join(LOCK_FILE))?;
    match lock.try_lock() {
        Ok(()) => Ok(Some((folder, lock))),
        Err(TryLockError::WouldBlock) => Ok(None),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

fn write_all_vectored(mut file: &File, mut parts: &mut [IoSlice<'_>]) -> io::Result<()> {
    IoSlice::advance_slices(&mut parts, 0);
    while !parts.is_empty() {
        match file.write_vectored(parts) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => IoSlice::advance_slices(&mut parts, written),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => (),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Returns the bytes of all segments in the folders of all writers. A folder that cannot be read counts as empty.
pub fn measure_folder(root: &Path) -> u64 {
    let entries = |folder: &Path| fs::read_dir(folder).into_iter().flatten().flatten();
    let segments = entries(root).flat_map(|writer| entries(&writer.path()));
    segments
        .filter(|entry| entry.file_name().to_str().is_some_and(|name| parse_segment_name(name).is_some()))
        .filter_map(|entry| entry.metadata().ok())
        .map(|metadata| metadata.len())
        .sum()
}
