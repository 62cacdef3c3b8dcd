//! A snapshot of 1,000 keys, compiled; one key looked up in it.

use std::{fmt::Write, hint::black_box};

use criterion::{Criterion, criterion_group, criterion_main};
use penstock_core::snapshot::Snapshot;
use serde_json::json;
use sha2::{Digest, Sha256};

fn published(keys: usize) -> Vec<u8> {
    let rows: Vec<_> = (0..keys)
        .map(
            |index| json!({"id": format!("k-{index}"), "name": format!("key {index}"), "sha256": digest(&text(index))}),
        )
        .collect();
    json!({"epoch": "1", "keys": rows}).to_string().into_bytes()
}

fn text(index: usize) -> String {
    format!("pk-{index:032x}")
}

fn digest(text: &str) -> String {
    Sha256::digest(text.as_bytes()).iter().fold(String::new(), |mut hex, byte| {
        let _ = write!(hex, "{byte:02x}");
        hex
    })
}

fn compile(c: &mut Criterion) {
    let bytes = published(1_000);
    c.bench_function("snapshot/compile 1,000 keys", |b| b.iter(|| Snapshot::compile(black_box(&bytes)).is_ok()));
}

fn look_up(c: &mut Criterion) {
    let Ok(snapshot) = Snapshot::compile(&published(1_000)) else { return };
    let (known, unknown) = (text(500), text(5_000));
    let mut group = c.benchmark_group("snapshot/key");
    group.bench_function("known", |b| b.iter(|| snapshot.key(black_box(&known)).is_some()));
    group.bench_function("unknown", |b| b.iter(|| snapshot.key(black_box(&unknown)).is_some()));
    group.finish();
}

criterion_group!(benches, compile, look_up);
criterion_main!(benches);
