//! Benchmark of a snapshot of 100,000 keys: compile it and look keys up in it.

use std::{fmt::Write, hint::black_box};

use criterion::{Criterion, criterion_group, criterion_main};
use penstock_core::state::snapshot::Snapshot;
use serde_json::json;
use sha2::{Digest, Sha256};

fn build_snapshot_json(keys: usize) -> Vec<u8> {
    let rows: Vec<_> = (0..keys)
        .map(
            |index| json!({"id": format!("k-{index}"), "name": format!("key {index}"), "sha256": sha256_hex(&api_key(index))}),
        )
        .collect();
    json!({"epoch": "1", "keys": rows}).to_string().into_bytes()
}

fn api_key(index: usize) -> String {
    format!("pk-{index:032x}")
}

fn sha256_hex(text: &str) -> String {
    Sha256::digest(text.as_bytes()).iter().fold(String::new(), |mut hex, byte| {
        let _ = write!(hex, "{byte:02x}");
        hex
    })
}

const KEY_COUNT: usize = 100_000;

fn bench_compile(c: &mut Criterion) {
    let bytes = build_snapshot_json(KEY_COUNT);
    let mut group = c.benchmark_group("snapshot");
    group
        .sample_size(10)
        .bench_function("compile 100,000 keys", |b| b.iter(|| Snapshot::compile(black_box(&bytes)).is_ok()));
    group.finish();
}

fn bench_key_lookup(c: &mut Criterion) {
    let Ok(snapshot) = Snapshot::compile(&build_snapshot_json(KEY_COUNT)) else { return };
    // Each lookup uses another key; otherwise the benchmark would measure the CPU cache.
    let keys: Vec<_> = (0..KEY_COUNT).step_by(7).map(api_key).collect();
    let (mut turn, unknown) = (keys.iter().cycle(), api_key(2 * KEY_COUNT));
    let mut group = c.benchmark_group("snapshot/key");
    group.bench_function("known", |b| {
        b.iter(|| turn.next().is_some_and(|text| snapshot.find_key(black_box(text)).is_some()));
    });
    group.bench_function("unknown", |b| b.iter(|| snapshot.find_key(black_box(&unknown)).is_some()));
    group.finish();
}

criterion_group!(benches, bench_compile, bench_key_lookup);
criterion_main!(benches);
