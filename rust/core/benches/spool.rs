//! Benchmark of the spool: the frames of one request, with and without bodies. Each request makes two system calls.

use std::sync::Arc;

use bytes::Bytes;
use criterion::{Criterion, criterion_group, criterion_main};
use penstock_core::{
    accounting::spool::{Source, Spool, SpoolEntry, frame::FrameKind},
    process::settings::Settings,
};
use uuid::Uuid;

const RECORD_BYTES: usize = 1200;
const BEGIN_BYTES: usize = 400;

fn bench_spool(c: &mut Criterion) {
    let root = std::env::temp_dir().join(format!("penstock-spool-bench-{}", std::process::id()));
    let settings = Settings { spool_path: root.to_str().map(Into::into), ..Settings::default() };
    let Some(spool) = Spool::from_settings(&settings).map(Arc::new) else { return };
    let mut group = c.benchmark_group("spool");
    let (begin, end) = (vec![b'x'; BEGIN_BYTES], vec![b'x'; RECORD_BYTES]);
    for body_bytes in [0, 1024, 16 * 1024] {
        let body = Bytes::from(vec![b'x'; body_bytes]);
        group.bench_function(format!("request with bodies of {body_bytes} bytes"), |b| {
            b.iter(|| {
                let entry = SpoolEntry::new(Arc::clone(&spool), Uuid::nil(), std::time::Duration::ZERO);
                if body_bytes > 0 {
                    entry.add_complete_body(FrameKind::ClientRequest, body.clone());
                }
                entry.begin(Source::Admitted(1), |out| out.extend_from_slice(&begin));
                if body_bytes > 0 {
                    entry.add_complete_body(FrameKind::UpstreamResponse, body.clone());
                }
                entry.end(Source::Admitted(1), false, |out, _| out.extend_from_slice(&end));
            });
            // The log worker deletes what it has read.
            for writer in std::fs::read_dir(&root).into_iter().flatten().flatten() {
                for file in std::fs::read_dir(writer.path()).into_iter().flatten().flatten() {
                    if file.file_name() != "lock" {
                        drop(std::fs::remove_file(file.path()));
                    }
                }
            }
            spool.maintain();
        });
    }
    group.finish();
    drop(std::fs::remove_dir_all(root));
}

criterion_group!(benches, bench_spool);
criterion_main!(benches);
