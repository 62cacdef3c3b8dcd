//! Counters that all workers of a node share: one small file for each limit and group value, locked while it changes.
//! They outlive the processes. A worker reads a file only when its lease is used up.

use std::{
    collections::HashMap,
    fs::{self, File, OpenOptions, TryLockError},
    io::{self, ErrorKind},
    os::unix::fs::{FileExt, MetadataExt},
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

use sha2::{Digest, Sha256};

use super::{
    counter::{RecordedUsage, UsageCounter},
    group_counts::{TenantCounts, TenantId},
    now_ms,
    window::LimitWindow,
};

/// Maximum wait for another worker that changes the same counter. A change takes microseconds, or some tens of
/// milliseconds if the worker has to wait for a CPU meanwhile.
pub const MAX_LOCK_WAIT: Duration = Duration::from_millis(100);
/// Maximum wait on the event loop of a worker, where other requests would wait, too.
const BRIEF_LOCK_WAIT: Duration = Duration::from_micros(100);
/// Maximum wait while a worker that has locked a counter seems to be stopped.
const MAX_STALLED_LOCK_WAIT: Duration = Duration::from_millis(1);
/// How long waits are limited to `MAX_STALLED_LOCK_WAIT` after one has timed out, so that a stopped worker does not block
/// the others.
const STALL_DURATION: Duration = Duration::from_secs(1);
/// Pause between two attempts to lock.
const LOCK_PAUSE: Duration = Duration::from_micros(50);
/// Maximum bytes of a counter file.
const MAX_FILE_BYTES: usize = 16 * 1024;
/// File beside the counters with the workers of all nodes, which the control process writes.
const MEMBERS_FILE: &str = "members";
/// File beside the counters with a random id of the node.
const NODE_ID_FILE: &str = "node-id";
/// Bytes of the header before the encoded counter: the length of the counter and the id of the organisation, of 4 bytes
/// each, and the time at which it stops counting.
const HEADER_BYTES: usize = 16;

/// Workers of all nodes, according to the store.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct KnownMembers {
    /// Number of workers; 0: not known.
    pub count: u64,
    /// When this node last showed the store that it is alive; 0: the nodes share no store.
    pub seen_ms: u64,
    /// Start of the first windows in which the other nodes leave a share for this node.
    pub from_ms: u64,
}

/// Folder of counters.
#[derive(Debug)]
pub struct CounterFolder {
    path: PathBuf,
    /// Numbers of files in the folder by organisation, as far as this process knows.
    file_counts: Mutex<TenantCounts>,
    /// Time until which waits for a lock are short, because one timed out.
    stalled_until: Mutex<Option<Instant>>,
    /// True if no wait for a lock exceeds `BRIEF_LOCK_WAIT`.
    has_brief_waits: bool,
}

/// Storage of the counters.
#[derive(Debug)]
pub enum NodeCounters {
    Folder(CounterFolder),
    /// In the memory of this process, if the settings name no folder.
    Memory(Mutex<HashMap<[u8; 16], UsageCounter>>),
}

impl NodeCounters {
    pub fn new(folder: Option<&Path>) -> Self {
        folder.map_or_else(
            || Self::Memory(Mutex::default()),
            |folder| {
                Self::Folder(CounterFolder {
                    path: folder.to_owned(),
                    file_counts: Mutex::default(),
                    stalled_until: Mutex::default(),
                    has_brief_waits: false,
                })
            },
        )
    }

    /// Returns the same counters for use on an event loop: calls fail with `ErrorKind::WouldBlock` at once if another
    /// worker has locked the counter.
    #[must_use]
    pub fn with_brief_waits(mut self) -> Self {
        if let Self::Folder(folder) = &mut self {
            folder.has_brief_waits = true;
        }
        self
    }

    /// Returns true if a worker that has locked a counter seems to be stopped, so that nobody should wait for it.
    pub fn is_stalled(&self) -> bool {
        matches!(self, Self::Folder(folder) if folder.is_stalled(Instant::now()))
    }

    /// Reports that a wait for a lock has lasted `MAX_LOCK_WAIT`.
    pub fn mark_stalled(&self) {
        if let Self::Folder(folder) = self {
            *folder.stalled_until() = Some(Instant::now() + STALL_DURATION);
        }
    }

    /// Changes the counter of a limit and a group value. Creates the counter if there is none. `tenant` is the
    /// organisation of the limit; 0 if the caller does not know it.
    ///
    /// # Errors
    /// If the file cannot be read, written or locked in time. Then nothing has changed.
    pub fn update<R>(
        &self,
        tenant: TenantId,
        limit_id: &str,
        group: &str,
        window: LimitWindow,
        change: impl FnOnce(&mut UsageCounter) -> R,
    ) -> io::Result<R> {
        let name = counter_name(limit_id, group);
        match self {
            Self::Memory(counters) => {
                let mut counters = counters.lock().unwrap_or_else(PoisonError::into_inner);
                Ok(change(counters.entry(name).or_default()))
            }
            Self::Folder(folder) => folder.update(tenant, name, window, change),
        }
    }

    /// Returns the counter of a limit and a group value, without creating or changing it. A counter that does not exist
    /// is returned as an unused one.
    ///
    /// # Errors
    /// If the file cannot be read or locked in time.
    pub fn read(&self, limit_id: &str, group: &str) -> io::Result<UsageCounter> {
        let name = counter_name(limit_id, group);
        match self {
            Self::Memory(counters) => {
                let counters = counters.lock().unwrap_or_else(PoisonError::into_inner);
                Ok(counters.get(&name).cloned().unwrap_or_default())
            }
            Self::Folder(folder) => {
                let file = folder.lock_file(&counter_path(&folder.path, name), false)?;
                file.map_or_else(|| Ok(UsageCounter::default()), |file| read_counter(&file))
            }
        }
    }

    /// Sets the usage of a budget according to the ledger, for the period that starts at `start_ms`.
    ///
    /// # Errors
    /// Same errors as `update`.
    pub fn set_recorded(&self, limit_id: &str, group: &str, start_ms: u64, known: RecordedUsage) -> io::Result<()> {
        let window = LimitWindow::Period { start_ms, end_ms: None };
        self.update(0, limit_id, group, window, |counter| counter.set_recorded(window, now_ms(), known))
    }

    /// Returns the state of the workers of all nodes that the control process last read from the store.
    pub fn known_members(&self) -> KnownMembers {
        let text = self.folder().and_then(|folder| fs::read_to_string(folder.join(MEMBERS_FILE)).ok());
        let mut numbers = text.iter().flat_map(|text| text.split_whitespace()).map(|word| word.parse().unwrap_or(0));
        let mut next = || numbers.next().unwrap_or(0);
        KnownMembers { count: next(), seen_ms: next(), from_ms: next() }
    }

    /// Returns the folder of the counters, if they are in one.
    pub fn folder(&self) -> Option<&Path> {
        match self {
            Self::Folder(folder) => Some(&folder.path),
            Self::Memory(_) => None,
        }
    }

    /// Returns an id of this node, which outlives its processes if there is a folder.
    pub fn node_id(&self) -> u64 {
        let new = fastrand::u64(..);
        let Self::Folder(folder) = self else { return new };
        let path = folder.path.join(NODE_ID_FILE);
        let written = folder.path.join(format!("{NODE_ID_FILE}-{new:x}"));
        // Only one of several workers creates the file, with its whole content.
        let is_written = fs::create_dir_all(&folder.path).and_then(|()| fs::write(&written, format!("{new:x}")));
        if is_written.is_ok() {
            drop(fs::hard_link(&written, &path));
            drop(fs::remove_file(&written));
        }
        let text = fs::read_to_string(&path).unwrap_or_default();
        u64::from_str_radix(text.trim(), 16).unwrap_or(new)
    }

    /// Returns the usage of a budget in its current period, according to the ledger.
    ///
    /// # Errors
    /// Same errors as `update`.
    pub fn read_recorded(&self, limit_id: &str, group: &str, window: LimitWindow) -> io::Result<RecordedUsage> {
        let start_ms = window.part_at(now_ms()).start_ms;
        Ok(self.read(limit_id, group)?.recorded_in(start_ms))
    }

    /// Removes the counters of past windows. Returns their number.
    ///
    /// # Errors
    /// If a file cannot be read or removed.
    pub fn remove_past(&self, now_ms: u64) -> io::Result<usize> {
        let Self::Folder(folder) = self else { return Ok(0) };
        let (mut removed, mut remaining) = (0, TenantCounts::default());
        for shard in read_folder(&folder.path)? {
            for path in read_folder(&shard)? {
                let file = match folder.lock_file(&path, false) {
                    // A worker uses the counter, so it is not over.
                    Err(error) if error.kind() == ErrorKind::WouldBlock => continue,
                    file => file?,
                };
                let Some(file) = file else { continue };
                match read_header(&file)? {
                    Some(header) if header.reset_ms > now_ms => remaining.add(header.tenant, 1),
                    _ => {
                        fs::remove_file(&path)?;
                        removed += 1;
                    }
                }
            }
        }
        *folder.file_counts() = remaining;
        Ok(removed)
    }

    /// Returns true if there is a counter of this limit and group value.
    pub fn has_counter(&self, limit_id: &str, group: &str) -> bool {
        let name = counter_name(limit_id, group);
        match self {
            Self::Memory(counters) => counters.lock().unwrap_or_else(PoisonError::into_inner).contains_key(&name),
            Self::Folder(folder) => counter_path(&folder.path, name).exists(),
        }
    }

    /// Returns true if an organisation has so many counters that its new group values must share one.
    pub fn is_full(&self, tenant: TenantId) -> bool {
        matches!(self, Self::Folder(folder) if folder.file_counts().is_full(tenant))
    }
}

#[cfg(test)]
impl NodeCounters {
    /// Returns the counters in a folder that seems to have as many files of an organisation as it may have.
    pub(super) fn full(folder: &Path, organisation: &str) -> Self {
        let counters = Self::new(Some(folder));
        if let Self::Folder(folder) = &counters {
            *folder.file_counts() = TenantCounts::full(super::group_counts::tenant_id(organisation));
        }
        counters
    }
}

fn read_folder(folder: &Path) -> io::Result<Vec<PathBuf>> {
    match fs::read_dir(folder) {
        // The control process stores its own files beside the folders, which are not folders themselves.
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(Vec::new()),
        entries => entries?.map(|entry| Ok(entry?.path())).collect(),
    }
}

fn counter_name(limit_id: &str, group: &str) -> [u8; 16] {
    let mut hasher = Sha256::new();
    hasher.update((limit_id.len() as u64).to_le_bytes());
    hasher.update(limit_id.as_bytes());
    hasher.update(group.as_bytes());
    let digest: [u8; 32] = hasher.finalize().into();
    digest.first_chunk().copied().unwrap_or_default()
}

fn counter_path(folder: &Path, name: [u8; 16]) -> PathBuf {
    let [first, ..] = name;
    folder.join(format!("{first:02x}")).join(format!("{:032x}", u128::from_be_bytes(name)))
}

impl CounterFolder {
    fn update<R>(
        &self,
        tenant: TenantId,
        name: [u8; 16],
        window: LimitWindow,
        change: impl FnOnce(&mut UsageCounter) -> R,
    ) -> io::Result<R> {
        let path = counter_path(&self.path, name);
        let file = loop {
            // A file that was removed between opening and locking is opened again.
            if let Some(file) = self.lock_file(&path, true)? {
                break file;
            }
        };
        // The ledger does not know when a period ends, so `set_recorded` keeps the time that a worker wrote.
        let header = read_header(&file)?;
        if header.is_none() {
            self.file_counts().add(tenant, 1);
        }
        let known_reset = header.map_or(u64::MAX, |header| header.reset_ms);
        // The ledger does not know the organisation either.
        let tenant = if tenant == 0 { header.map_or(0, |header| header.tenant) } else { tenant };
        let mut counter = read_counter(&file)?;
        let result = change(&mut counter);
        let encoded = counter.encode();
        let reset_ms = counter.reset_ms(window).unwrap_or(known_reset);
        let mut bytes = Vec::with_capacity(HEADER_BYTES + encoded.len());
        bytes.extend((encoded.len() as u32).to_le_bytes());
        bytes.extend(tenant.to_le_bytes());
        bytes.extend(reset_ms.to_le_bytes());
        bytes.extend(encoded);
        file.write_all_at(&bytes, 0)?;
        Ok(result)
    }

    /// Opens and locks a file. `None` if another process has removed it meanwhile, or if it does not exist and `create`
    /// is false.
    fn lock_file(&self, path: &Path, create: bool) -> io::Result<Option<File>> {
        let open = || OpenOptions::new().read(true).write(true).create(create).truncate(false).open(path);
        let file = match open() {
            Err(error) if error.kind() == ErrorKind::NotFound && create => {
                fs::create_dir_all(path.parent().unwrap_or(path))?;
                open()?
            }
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            file => file?,
        };
        let began = Instant::now();
        loop {
            match file.try_lock() {
                Ok(()) => {
                    return Ok(Some(file).filter(|file| file.metadata().is_ok_and(|metadata| metadata.nlink() > 0)));
                }
                Err(TryLockError::Error(error)) => return Err(error),
                Err(TryLockError::WouldBlock) if self.has_brief_waits => {
                    if began.elapsed() > BRIEF_LOCK_WAIT {
                        return Err(ErrorKind::WouldBlock.into());
                    }
                    thread::sleep(LOCK_PAUSE);
                }
                Err(TryLockError::WouldBlock) if began.elapsed() > self.max_lock_wait(began) => {
                    *self.stalled_until() = Some(Instant::now() + STALL_DURATION);
                    return Err(ErrorKind::TimedOut.into());
                }
                Err(TryLockError::WouldBlock) => thread::sleep(LOCK_PAUSE),
            }
        }
    }

    fn file_counts(&self) -> MutexGuard<'_, TenantCounts> {
        self.file_counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn max_lock_wait(&self, now: Instant) -> Duration {
        if self.is_stalled(now) { MAX_STALLED_LOCK_WAIT } else { MAX_LOCK_WAIT }
    }

    fn is_stalled(&self, now: Instant) -> bool {
        self.stalled_until().is_some_and(|end| now < end)
    }

    fn stalled_until(&self) -> MutexGuard<'_, Option<Instant>> {
        self.stalled_until.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// First bytes of the file of a counter.
#[derive(Debug, Clone, Copy)]
struct FileHeader {
    /// Length of the encoded counter.
    length: usize,
    tenant: TenantId,
    /// Time at which the counter stops counting.
    reset_ms: u64,
}

/// Returns the header of a file; `None` for a new or damaged file.
fn read_header(file: &File) -> io::Result<Option<FileHeader>> {
    let mut header = [0; HEADER_BYTES];
    match file.read_exact_at(&mut header, 0) {
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(None),
        read => read?,
    }
    let ([length, tenant, low, high], _) = header.as_chunks::<4>() else { return Ok(None) };
    let length = u32::from_le_bytes(*length) as usize;
    let reset_ms = u64::from(u32::from_le_bytes(*high)) << 32 | u64::from(u32::from_le_bytes(*low));
    let header = FileHeader { length, tenant: TenantId::from_le_bytes(*tenant), reset_ms };
    Ok((length <= MAX_FILE_BYTES).then_some(header))
}

/// Reads a counter. A damaged file counts as a new one, because the ledger restores the recorded usage.
fn read_counter(file: &File) -> io::Result<UsageCounter> {
    let Some(FileHeader { length, .. }) = read_header(file)? else { return Ok(UsageCounter::default()) };
    let mut bytes = vec![0; length];
    match file.read_exact_at(&mut bytes, HEADER_BYTES as u64) {
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(UsageCounter::default()),
        read => read?,
    }
    Ok(UsageCounter::decode(&bytes).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::{counter::Amount, window::RateUnit};

    const MINUTE: LimitWindow = LimitWindow::Fixed(RateUnit::Minute);

    struct TestFolder(PathBuf);

    impl TestFolder {
        fn new() -> Self {
            let path = std::env::temp_dir().join(format!("penstock-limits-{:x}", fastrand::u128(..)));
            fs::create_dir(&path).unwrap();
            Self(path)
        }
    }

    impl Drop for TestFolder {
        fn drop(&mut self) {
            drop(fs::remove_dir_all(&self.0));
        }
    }

    fn files(folder: &Path) -> Vec<PathBuf> {
        read_folder(folder).unwrap().iter().flat_map(|shard| read_folder(shard).unwrap()).collect()
    }

    #[test]
    fn workers_together_never_take_more_than_the_limit() {
        let folder = TestFolder::new();
        let granted: u64 = thread::scope(|scope| {
            let workers = (0..4_u64).map(|worker| {
                let counters = NodeCounters::new(Some(&folder.0));
                scope.spawn(move || {
                    let take = |_| {
                        let grant = counters.update(1, "l", "a", MINUTE, |counter| {
                            counter.take(MINUTE, 60_000, 100, worker, Amount::exactly(1))
                        });
                        grant.map_or(0, |grant| grant.amount)
                    };
                    (0..60).map(take).sum::<u64>()
                })
            });
            workers.collect::<Vec<_>>().into_iter().map(|worker| worker.join().unwrap()).sum()
        });
        assert_eq!(granted, 100);
    }

    #[test]
    fn counters_outlive_the_process_and_are_removed_when_they_are_over() {
        let folder = TestFolder::new();
        let remaining = |now| {
            let counters = NodeCounters::new(Some(&folder.0));
            counters
                .update(1, "l", "a", MINUTE, |counter| counter.take(MINUTE, now, 5, 1, Amount::exactly(2)).remaining)
                .unwrap()
        };
        assert_eq!((remaining(60_000), remaining(60_001)), (3, 1));
        // Files of the control process are ignored.
        fs::write(folder.0.join(MEMBERS_FILE), "7 9").unwrap();
        let counters = NodeCounters::new(Some(&folder.0));
        assert_eq!((counters.remove_past(119_999).unwrap(), counters.remove_past(120_000).unwrap()), (0, 1));
        assert!(files(&folder.0).is_empty());
        assert_eq!(counters.known_members(), KnownMembers { count: 7, seen_ms: 9, from_ms: 0 });
        assert_eq!(remaining(120_000), 3);
    }

    #[test]
    fn files_count_for_the_organisation_that_used_them() {
        let folder = TestFolder::new();
        let counters = NodeCounters::new(Some(&folder.0));
        let tenants = |counters: &NodeCounters| {
            let NodeCounters::Folder(folder) = counters else { return Vec::new() };
            [7, 8, 0].map(|tenant| folder.file_counts().count(tenant)).to_vec()
        };
        for (tenant, group) in [(7, "a"), (7, "b"), (8, "a"), (7, "a")] {
            let limit_id = tenant.to_string();
            counters.update(tenant, &limit_id, group, MINUTE, |_| ()).unwrap();
        }
        // The ledger does not know whose limit it is.
        counters.set_recorded("7", "a", 1, RecordedUsage::default()).unwrap();
        counters.set_recorded("9", "a", 1, RecordedUsage::default()).unwrap();
        assert_eq!(tenants(&counters), [2, 1, 1]);
        let restarted = NodeCounters::new(Some(&folder.0));
        restarted.remove_past(0).unwrap();
        assert_eq!(tenants(&restarted), [2, 1, 1]);
    }

    #[test]
    fn all_workers_of_a_node_have_one_id() {
        let folder = TestFolder::new();
        let ids: Vec<u64> = thread::scope(|scope| {
            let workers: Vec<_> =
                (0..4).map(|_| scope.spawn(|| NodeCounters::new(Some(&folder.0)).node_id())).collect();
            workers.into_iter().map(|worker| worker.join().unwrap()).collect()
        });
        assert!(ids.iter().all(|id| *id == ids[0]), "{ids:?}");
        assert_eq!(NodeCounters::new(Some(&folder.0)).node_id(), ids[0]);
        assert_eq!(fs::read_dir(&folder.0).unwrap().count(), 1);
        assert_ne!(NodeCounters::new(None).node_id(), ids[0]);
    }

    #[test]
    fn damaged_file_counts_as_new() {
        let folder = TestFolder::new();
        let counters = NodeCounters::new(Some(&folder.0));
        let take = || {
            counters
                .update(1, "l", "a", MINUTE, |counter| counter.take(MINUTE, 60_000, 5, 1, Amount::exactly(2)).remaining)
                .unwrap()
        };
        assert_eq!(take(), 3);
        for bytes in [&b""[..], b"short", &[255; 64], &[8, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8]] {
            fs::write(&files(&folder.0)[0], bytes).unwrap();
            assert_eq!(take(), 3, "{bytes:?}");
        }
    }

    #[test]
    fn waits_for_a_worker_that_has_no_cpu_but_not_long_for_a_stopped_one() {
        let folder = TestFolder::new();
        let counters = NodeCounters::new(Some(&folder.0));
        let update = || counters.update(1, "l", "a", MINUTE, |_| ());
        update().unwrap();
        let locked_file = File::open(&files(&folder.0)[0]).unwrap();
        locked_file.lock().unwrap();
        thread::scope(|scope| {
            scope.spawn(|| {
                thread::sleep(Duration::from_millis(20));
                locked_file.unlock().unwrap();
            });
            update().unwrap();
        });
        locked_file.lock().unwrap();
        let began = Instant::now();
        let errors = [update(), update(), update()].map(|result| result.unwrap_err().kind());
        assert_eq!(errors, [ErrorKind::TimedOut; 3]);
        // Only the first of them waits.
        assert!(began.elapsed() < 2 * MAX_LOCK_WAIT, "{:?}", began.elapsed());
    }
}
