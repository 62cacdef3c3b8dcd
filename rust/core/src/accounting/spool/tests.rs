//! Tests of the spool: frames, segments, full disks, and limits.

use std::{
    fs::{self, OpenOptions},
    os::unix::fs::PermissionsExt,
    path::Path,
    sync::Arc,
};

use bytes::Bytes;
use serde_json::{Value, json};

use super::{frame::*, *};

const OWNER: Source = Source::Admitted(1);

fn test_folder() -> PathBuf {
    let folder = std::env::temp_dir().join(format!("penstock-spool-{}", Uuid::from_u128(fastrand::u128(..))));
    fs::create_dir(&folder).unwrap();
    folder
}

fn open_spool(root: &Path, change: impl FnOnce(&mut Settings)) -> Arc<Spool> {
    let mut settings = Settings { spool_path: Some(root.to_str().unwrap().into()), ..Settings::default() };
    change(&mut settings);
    Arc::new(Spool::from_settings(&settings).unwrap())
}

fn segment_paths(root: &Path) -> Vec<PathBuf> {
    let mut paths: Vec<_> = fs::read_dir(root)
        .into_iter()
        .flatten()
        .flat_map(|writer| fs::read_dir(writer.unwrap().path()).unwrap())
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "seg"))
        .collect();
    paths.sort();
    paths
}

/// Returns kind, flags and payload of all frames, in the order in which they were written.
fn read_frames(root: &Path) -> Vec<(u8, u8, Vec<u8>)> {
    let mut frames = Vec::new();
    for path in segment_paths(root) {
        let data = fs::read(path).unwrap();
        let (_, start) = read_segment_header(&data).unwrap();
        let mut reader = FrameReader::new(&data, start);
        frames.extend(reader.by_ref().map(|frame| (frame.kind, frame.flags, frame.payload.to_vec())));
        assert_eq!(reader.offset(), data.len());
    }
    frames
}

fn write_end(spool: &Spool, source: Source, text: &[u8]) -> Written {
    spool.write(source, Uuid::nil(), true, |batch| {
        batch.add_json(FrameKind::End, 0, |out| out.extend_from_slice(text));
    })
}

#[test]
fn files_are_private_and_a_restarted_writer_opens_the_next_segment() {
    let root = test_folder();
    for text in [b"one", b"two"] {
        let spool = open_spool(&root, |settings| settings.worker = 3);
        assert_eq!(write_end(&spool, OWNER, text), Written::Complete);
    }
    let paths = segment_paths(&root);
    assert_eq!(paths.len(), 2);
    let folder = root.join("edge-3");
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&folder), mode(&folder.join("lock")), mode(&paths[0])), (0o700, 0o600, 0o600));
    assert_eq!(paths[0].file_name().unwrap().len(), "0000000000000001.seg".len());
    let header: Value = serde_json::from_slice(read_segment_header(&fs::read(&paths[0]).unwrap()).unwrap().0).unwrap();
    assert_eq!((&header["writer"], &header["pid"]), (&json!("edge-3"), &json!(std::process::id())));
    assert!(header["started_at"].as_u64().unwrap() > 1_700_000_000_000 && header["node"].is_string());
    assert!(header["process_start"].as_u64().unwrap() > 0 && header["boot_id"].as_str().unwrap().len() == 36);
    assert_eq!(read_frames(&root), [(6, 0, b"one".to_vec()), (6, 0, b"two".to_vec())]);
}

#[test]
fn numbers_do_not_repeat_after_segments_were_deleted() {
    let root = test_folder();
    let write_once = || assert_eq!(write_end(&open_spool(&root, |_| ()), OWNER, b"x"), Written::Complete);
    write_once();
    let first = segment_paths(&root).pop().unwrap();
    fs::remove_file(&first).unwrap();
    write_once();
    assert!(segment_paths(&root).pop().unwrap() > first);
}

#[test]
fn a_second_writer_of_the_same_name_gets_a_folder_of_its_own() {
    let root = test_folder();
    let spools = [open_spool(&root, |_| ()), open_spool(&root, |_| ())];
    for spool in &spools {
        assert_eq!(write_end(spool, OWNER, b"x"), Written::Complete);
    }
    let names: Vec<_> = segment_paths(&root)
        .iter()
        .map(|path| path.parent().unwrap().file_name().unwrap().to_str().unwrap().to_owned())
        .collect();
    assert_eq!(names, ["edge-1".to_owned(), format!("edge-1-{}", std::process::id())]);
}

#[test]
fn full_segments_are_followed_by_the_next() {
    let root = test_folder();
    let spool = open_spool(&root, |settings| settings.record_body_bytes = usize::MAX);
    let entry = SpoolEntry::new(Arc::clone(&spool), Uuid::nil(), Duration::ZERO);
    let chunk = vec![b'x'; 20 * 1024 * 1024];
    (0..4).for_each(|_| entry.add_body_chunk(FrameKind::UpstreamResponse, &chunk));
    entry.end(OWNER, false, |out, _| out.extend_from_slice(b"{}"));
    assert_eq!(segment_paths(&root).len(), 2);
    let frames = read_frames(&root);
    assert_eq!(frames.iter().filter(|frame| frame.0 == 4).map(|frame| frame.2.len()).sum::<usize>(), 4 * chunk.len());
    assert!(segment_paths(&root).iter().all(|path| fs::metadata(path).unwrap().len() <= segment::SEGMENT_BYTES));
    fs::remove_dir_all(root).unwrap();
}

#[test]
fn frames_wait_in_memory_while_the_folder_is_missing() {
    let root = test_folder();
    let missing = root.join("file").join("spool");
    fs::write(root.join("file"), b"").unwrap();
    let spool = open_spool(&missing, |_| ());
    let entry = SpoolEntry::new(Arc::clone(&spool), Uuid::nil(), Duration::ZERO);
    entry.add_complete_body(FrameKind::ClientRequest, Bytes::from_static(b"hello"));
    entry.begin(OWNER, |out| out.extend_from_slice(b"begin"));
    entry.end(OWNER, false, |out, status| out.extend_from_slice(status.name().as_bytes()));
    assert_eq!(write_end(&spool, Source::Refused, b"refused"), Written::WithoutBodies);
    assert!(spool.counters().waiting_bytes > 0);
    fs::remove_file(root.join("file")).unwrap();
    spool.maintain();
    let frames = read_frames(&missing);
    assert_eq!(
        frames,
        [(1, 0, b"begin".to_vec()), (6, FLAG_DROPPED, b"dropped".to_vec()), (6, 0, b"refused".to_vec())]
    );
    let counters = spool.counters();
    assert_eq!((counters.waiting_bytes, counters.records, counters.records_dropped), (0, 1, 0));
    assert_eq!((counters.refused_records, counters.bodies_dropped), (1, 1));
    // The frames that follow are written at once.
    assert_eq!(write_end(&spool, OWNER, b"later"), Written::Complete);
    fs::remove_dir_all(&missing).unwrap();
    spool.maintain();
    assert_eq!(write_end(&spool, OWNER, b"reopened"), Written::Complete);
    assert_eq!(read_frames(&missing), [(6, 0, b"reopened".to_vec())]);
}

#[test]
fn workspaces_share_the_memory_fairly() {
    let root = test_folder();
    fs::write(root.join("file"), b"").unwrap();
    let spool = open_spool(&root.join("file"), |settings| settings.outbox_bytes = 12_000);
    let fill = |owner| {
        (0..50).filter(|_| write_end(&spool, Source::Admitted(owner), &[b'x'; 972]) != Written::Dropped).count()
    };
    assert_eq!((fill(1), fill(2)), (6, 4));
    assert_eq!((spool.counters().records, spool.counters().records_dropped), (10, 90));
}

#[test]
fn a_write_that_fails_leaves_no_torn_frame() {
    let root = test_folder();
    let spool = open_spool(&root, |_| ());
    write_end(&spool, OWNER, b"one");
    spool
        .lock_state()
        .writer
        .as_mut()
        .unwrap()
        .use_file_for_test(OpenOptions::new().append(true).open("/dev/full").unwrap());
    assert_eq!(write_end(&spool, OWNER, b"two"), Written::WithoutBodies);
    assert!(spool.lock_state().retry_at.is_some());
    spool.maintain();
    write_end(&spool, OWNER, b"three");
    assert_eq!(
        read_frames(&root).into_iter().map(|frame| frame.2).collect::<Vec<_>>(),
        [&b"one"[..], b"two", b"three"]
    );
}

#[test]
fn bodies_are_left_out_of_a_nearly_full_spool_and_records_wait_while_it_is_full() {
    let root = test_folder();
    let spool = open_spool(&root, |settings| settings.spool_bytes = 10_000);
    let record = |body: usize| {
        let entry = SpoolEntry::new(Arc::clone(&spool), Uuid::nil(), Duration::ZERO);
        entry.add_complete_body(FrameKind::ClientRequest, vec![b'x'; body].into());
        entry.begin(OWNER, |out| out.extend_from_slice(b"{}"));
        entry.end(OWNER, false, |out, status| out.extend_from_slice(status.name().as_bytes()));
    };
    record(8_900);
    // Other writers use the rest.
    fs::create_dir(root.join("control")).unwrap();
    fs::write(root.join("control/0000000000000001.seg"), encode_segment_header(&[b' '; 600])).unwrap();
    spool.maintain();
    record(10);
    let ends = |frames: Vec<(u8, u8, Vec<u8>)>| {
        frames.into_iter().filter(|frame| frame.0 == 6).map(|frame| frame.2).collect::<Vec<_>>()
    };
    assert_eq!(ends(read_frames(&root)), [&b"complete"[..], b"dropped"]);
    assert_eq!(spool.counters().bodies_dropped, 1);
    assert_eq!(write_end(&spool, Source::Refused, b"refused"), Written::Dropped);
    (0..30).for_each(|_| record(0));
    assert!(spool.counters().waiting_bytes > 0 && spool.counters().used_bytes < 10_100);
    let before = read_frames(&root).len();
    // The log worker deletes what it has read.
    fs::write(&segment_paths(&root)[1], b"").unwrap();
    spool.maintain();
    assert_eq!(spool.counters().waiting_bytes, 0);
    assert_eq!((spool.counters().records, spool.counters().records_dropped), (32, 0));
    assert!(before < 64);
}

#[test]
fn records_without_a_valid_key_have_a_small_rate() {
    let root = test_folder();
    let spool = open_spool(&root, |_| ());
    let written = (0..2000).filter(|_| write_end(&spool, Source::Refused, &[b'x'; 1000]) == Written::Complete).count();
    assert!((510..1500).contains(&written), "{written}");
    assert_eq!(write_end(&spool, OWNER, b"x"), Written::Complete);
    let counters = spool.counters();
    assert_eq!(counters.refused_records + counters.refused_records_dropped, 2000);
}

#[test]
fn bodies_are_cut_at_the_limit_and_flagged() {
    let root = test_folder();
    let spool = open_spool(&root, |settings| settings.record_body_bytes = 10);
    let entry = SpoolEntry::new(Arc::clone(&spool), Uuid::nil(), Duration::ZERO);
    entry.add_complete_body(FrameKind::ClientRequest, Bytes::from_static(b"0123456789"));
    entry.begin(OWNER, |out| out.extend_from_slice(b"{}"));
    entry.add_body_chunk(FrameKind::UpstreamResponse, b"01234");
    entry.add_body_chunk(FrameKind::UpstreamResponse, b"56789");
    entry.add_body_chunk(FrameKind::UpstreamResponse, b"x");
    entry.add_body_chunk(FrameKind::UpstreamResponse, b"y");
    entry.end(OWNER, false, |out, status| out.extend_from_slice(status.name().as_bytes()));
    let expected = [
        (1, 0, b"{}".to_vec()),
        (2, 0, b"0123456789".to_vec()),
        (4, FLAG_CUT, b"0123456789".to_vec()),
        (6, 0, b"cut".to_vec()),
    ];
    assert_eq!(read_frames(&root), expected);
}

#[test]
fn a_body_that_is_cut_after_it_was_written_ends_with_a_flagged_frame() {
    let root = test_folder();
    let spool = open_spool(&root, |settings| settings.record_body_bytes = 8192);
    let entry = SpoolEntry::new(Arc::clone(&spool), Uuid::nil(), Duration::ZERO);
    entry.add_body_chunk(FrameKind::ClientResponse, &[b'x'; 8192]);
    entry.add_body_chunk(FrameKind::ClientResponse, b"more");
    entry.end(OWNER, false, |out, _| out.extend_from_slice(b"{}"));
    let frames = read_frames(&root);
    assert_eq!(frames[0].1, 0);
    assert_eq!(frames[1], (5, FLAG_CUT, Vec::new()));
}
