//! A snapshot of 100,000 keys, compiled; keys looked up in it.

use std::{fmt::Write, hint::black_box};

use criterion::{Criterion, criterion_group, criterion_main};
use penstock_core::state::snapshot::Snapshot;
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

const KEYS: usize = 100_000;

fn compile(c: &mut Criterion) {
    let bytes = published(KEYS);
    let mut group = c.benchmark_group("snapshot");
    group
        .sample_size(10)
        .bench_function("compile 100,000 keys", |b| b.iter(|| Snapshot::compile(black_box(&bytes)).is_ok()));
    group.finish();
}

fn look_up(c: &mut Criterion) {
    let Ok(snapshot) = Snapshot::compile(&published(KEYS)) else { return };
    // Each look-up is of another key, or it would measure the processor's cache.
    let known: Vec<_> = (0..KEYS).step_by(7).map(text).collect();
    let (mut turn, unknown) = (known.iter().cycle(), text(2 * KEYS));
    let mut group = c.benchmark_group("snapshot/key");
    group.bench_function("known", |b| {
        b.iter(|| turn.next().is_some_and(|text| snapshot.find_key(black_box(text)).is_some()));
    });
    group.bench_function("unknown", |b| b.iter(|| snapshot.find_key(black_box(&unknown)).is_some()));
    group.finish();
}

criterion_group!(benches, compile, look_up);
criterion_main!(benches);
