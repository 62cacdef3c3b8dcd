//! Benchmark of decoding Amazon's event stream, next to Amazon's own library; see
//! `docs/adr/0006-aws-event-stream.md`.

use std::hint::black_box;

use aws_smithy_eventstream::frame::{DecodedFrame, MessageFrameDecoder};
use bytes::BytesMut;
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use penstock_llm::stream::aws_event_stream::{FrameDecoder, encode_frame};

const MAX_FRAME_BYTES: usize = 1 << 24;

fn bench_decode(c: &mut Criterion) {
    let mut group = c.benchmark_group("event stream frame");
    group.throughput(Throughput::Elements(1));
    for payload_bytes in [110, 250, 20_000] {
        let frame = encode_frame("event", "contentBlockDelta", &vec![b'x'; payload_bytes]);
        let mut decoder = FrameDecoder::new(MAX_FRAME_BYTES);
        group.bench_function(format!("{payload_bytes} bytes, ours"), |b| {
            b.iter(|| {
                decoder.push_chunk(black_box(&frame));
                decoder.next_frame()
            });
        });
        group.bench_function(format!("{payload_bytes} bytes, aws-smithy-eventstream"), |b| {
            let (mut decoder, mut buffer) = (MessageFrameDecoder::new(), BytesMut::new());
            b.iter(|| {
                buffer.extend_from_slice(black_box(&frame));
                library_event_name(&mut decoder, &mut buffer)
            });
        });
    }
    group.finish();
}

/// Decodes a frame with Amazon's library and returns what the gateway needs of it.
fn library_event_name(decoder: &mut MessageFrameDecoder, buffer: &mut BytesMut) -> Option<(String, bytes::Bytes)> {
    let Ok(DecodedFrame::Complete(message)) = decoder.decode_frame(buffer) else { return None };
    let header = message.headers().iter().find(|header| header.name().as_str() == ":event-type")?;
    Some((header.value().as_string().ok()?.as_str().to_owned(), message.payload().clone()))
}

criterion_group!(benches, bench_decode);
criterion_main!(benches);
