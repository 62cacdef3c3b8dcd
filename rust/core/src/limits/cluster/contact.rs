//! File of the node with the time when a worker last reached Redis, and the number by which it divides limits. A
//! process that replaces a killed one learns from it which shares the other workers have reserved.

use std::{
    collections::{BTreeSet, HashSet},
    fs::{self, File, OpenOptions},
    io::Write,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
};

use crate::limits::{node_counters::NodeCounters, now_ms};

/// Bytes of the file: two numbers of 20 digits, separated by a space.
const FILE_BYTES: usize = 41;
/// Maximum number of counters in `RedisContact::saved`. When it is reached, `saved` is cleared, so the file may contain
/// a counter twice.
const MAX_SAVED_SHARES: usize = 100_000;

#[derive(Debug)]
pub(super) struct RedisContact {
    file: Option<File>,
    /// Time at which the previous process of this worker last reached Redis; 0: never.
    pub time_ms: u64,
    /// Number by which the previous process divided limits to get its share; 0: not known.
    pub divisor: u64,
    /// True if a process of this worker ran before.
    pub is_restart: bool,
    /// Time and divisor that this process has written to the file last.
    last: Mutex<(u64, u64)>,
    /// File with the counters of which this worker took a share, one per line.
    shares: Option<PathBuf>,
    /// Counters, with their group values, that this process has added to the file.
    saved: Mutex<HashSet<(Box<str>, Box<str>)>>,
}

impl RedisContact {
    /// Reads the file that the previous process of a worker left. Without a folder, there is no file.
    pub fn open(ledger: &NodeCounters, worker: &str) -> Self {
        let path = ledger.folder().map(|folder| folder.join(format!("redis-contact-{worker}")));
        let is_restart = path.as_deref().is_some_and(Path::exists);
        let open = |path: &Path| OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path);
        let file = path.and_then(|path| open(&path).ok());
        let mut bytes = [0; FILE_BYTES];
        // An invalid file counts as contact with Redis now, so only windows that begin later have a share.
        let (time_ms, divisor) = match file.as_ref().map(|file| file.read_exact_at(&mut bytes, 0)) {
            Some(Ok(())) => parse(&bytes).unwrap_or((now_ms(), 0)),
            _ => (0, 0),
        };
        let shares = ledger.folder().map(|folder| folder.join(format!("limit-shares-{worker}")));
        let contact = Self {
            file,
            time_ms,
            divisor,
            is_restart,
            last: Mutex::new((time_ms, divisor)),
            shares,
            saved: Mutex::default(),
        };
        if contact.time_ms == 0 {
            contact.write(0, 0);
        }
        contact
    }

    /// Saves the time at which this worker sends something to Redis, and the divisor that it announces. If `divisor` is
    /// 0, the saved divisor stays.
    pub fn save(&self, time_ms: u64, divisor: u64) {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let new = (last.0.max(time_ms), if divisor > 0 { divisor } else { last.1 });
        if *last != new {
            *last = new;
            self.write(new.0, new.1);
        }
    }

    /// Adds a counter of which this worker took a share to the file.
    pub fn add_share(&self, counter_id: &str, group: &str) {
        let mut saved = self.saved.lock().unwrap_or_else(PoisonError::into_inner);
        if saved.len() >= MAX_SAVED_SHARES {
            saved.clear();
        }
        if let Some(path) = &self.shares
            && saved.insert((counter_id.into(), group.into()))
            && let Ok(mut file) = OpenOptions::new().create(true).append(true).open(path)
        {
            drop(file.write_all(encode_share(counter_id, group).as_bytes()));
        }
    }

    /// Returns the counters of which processes of this worker took a share. Removes those for which `is_kept` is false.
    pub fn load_shares(&self, is_kept: impl Fn(&(Box<str>, Box<str>)) -> bool) -> Vec<(Box<str>, Box<str>)> {
        let Some(path) = &self.shares else { return Vec::new() };
        let text = fs::read_to_string(path).unwrap_or_default();
        let all: BTreeSet<(Box<str>, Box<str>)> =
            text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        let current: Vec<_> = all.into_iter().filter(is_kept).collect();
        if !text.is_empty() {
            let lines: String = current.iter().map(|(counter_id, group)| encode_share(counter_id, group)).collect();
            let draft = path.with_extension("new");
            drop(fs::write(&draft, lines).and_then(|()| fs::rename(&draft, path)));
        }
        current
    }

    fn write(&self, time_ms: u64, divisor: u64) {
        if let Some(file) = &self.file {
            drop(file.write_all_at(format!("{time_ms:020} {divisor:020}").as_bytes(), 0));
        }
    }
}

fn encode_share(counter_id: &str, group: &str) -> String {
    format!("{}\n", serde_json::json!([counter_id, group]))
}

fn parse(bytes: &[u8]) -> Option<(u64, u64)> {
    let (time, divisor) = std::str::from_utf8(bytes).ok()?.split_once(' ')?;
    Some((time.parse().ok()?, divisor.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn next_process_of_a_worker_reads_what_the_last_one_sent_to_redis() {
        let folder = std::env::temp_dir().join(format!("penstock-contact-{:x}", fastrand::u128(..)));
        std::fs::create_dir(&folder).unwrap();
        let open = || RedisContact::open(&NodeCounters::new(Some(&folder)), "a-1");
        let first = open();
        assert_eq!((first.time_ms, first.divisor, first.is_restart), (0, 0, false));
        first.save(70, 3);
        first.save(80, 0);
        first.save(75, 4);
        let second = open();
        assert_eq!((second.time_ms, second.divisor, second.is_restart), (80, 4, true));
        let before = now_ms();
        first.add_share("l:fixed:day", "x\ny");
        second.add_share("l:fixed:day", "x\ny");
        second.add_share("m:fixed:day", "");
        let shares = second.load_shares(|(counter_id, _)| counter_id.starts_with('l'));
        assert_eq!(shares, [("l:fixed:day".into(), "x\ny".into())]);
        assert_eq!(open().load_shares(|_| true), shares);
        std::fs::write(folder.join("redis-contact-a-1"), [b'x'; FILE_BYTES]).unwrap();
        assert!(open().time_ms >= before);
        std::fs::remove_dir_all(&folder).unwrap();
        assert!(!RedisContact::open(&NodeCounters::new(None), "a-1").is_restart);
    }
}
