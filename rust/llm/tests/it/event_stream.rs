//! The event stream decoder agrees with Amazon's own library about which frames are valid and what they contain.

use aws_smithy_eventstream::frame::{read_message_from, write_headers_to};
use aws_smithy_types::{
    DateTime,
    event_stream::{Header, HeaderValue},
};
use bytes::{BufMut, Bytes};
use penstock_llm::stream::aws_event_stream::FrameDecoder;
use proptest::{collection::vec, prelude::*};

fn header_value() -> impl Strategy<Value = HeaderValue> {
    prop_oneof![
        any::<bool>().prop_map(HeaderValue::Bool),
        any::<i8>().prop_map(HeaderValue::Byte),
        any::<i16>().prop_map(HeaderValue::Int16),
        any::<i32>().prop_map(HeaderValue::Int32),
        any::<i64>().prop_map(HeaderValue::Int64),
        vec(0u8..0x80, 0..20).prop_map(|bytes| HeaderValue::ByteArray(bytes.into())),
        "[a-zA-Z]{0,20}".prop_map(|text| HeaderValue::String(text.into())),
        any::<i32>().prop_map(|seconds| HeaderValue::Timestamp(DateTime::from_secs(seconds.into()))),
        any::<u128>().prop_map(HeaderValue::Uuid),
    ]
}

fn header() -> impl Strategy<Value = Header> {
    let name = prop_oneof!["[a-z]{0,8}", Just(":event-type".to_owned()), Just(":exception-type".to_owned())];
    (name, header_value()).prop_map(|(name, value)| Header::new(name, value))
}

/// Encodes a frame with right lengths and checksums around these bytes.
fn encode_frame(headers: &[u8], payload: &[u8]) -> Vec<u8> {
    let mut frame = Vec::new();
    frame.put_u32((16 + headers.len() + payload.len()) as u32);
    frame.put_u32(headers.len() as u32);
    frame.put_u32(crc32fast::hash(&frame));
    frame.extend_from_slice(headers);
    frame.extend_from_slice(payload);
    frame.put_u32(crc32fast::hash(&frame));
    frame
}

const NAMES: [&str; 3] = [":event-type", ":exception-type", ":error-code"];

/// Returns event name and payload as the library reads them, or its error.
fn read_with_library(frame: &[u8]) -> Result<(String, Bytes), String> {
    let message = read_message_from(frame).map_err(|error| error.to_string())?;
    let exception_headers = message.headers().iter().filter(|header| NAMES.contains(&header.name().as_str()));
    let name = exception_headers.filter_map(|header| header.value().as_string().ok()).next_back();
    Ok((name.map_or_else(String::new, |name| name.as_str().to_owned()), message.payload().clone()))
}

proptest! {
    #[test]
    fn reads_what_the_library_writes_and_rejects_what_it_rejects(
        headers in vec(header(), 0..5),
        payload in vec(any::<u8>(), 0..40),
        change in (any::<prop::sample::Index>(), 0u8..0x80, any::<bool>()),
    ) {
        let mut bytes = Vec::new();
        write_headers_to(&headers, &mut bytes).unwrap();
        let (at, byte, is_changed) = change;
        if is_changed && !bytes.is_empty() {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        let frame = encode_frame(&bytes, &payload);
        let expected = read_with_library(&frame);
        // The library rejects invalid UTF-8 in every header. The decoder ignores headers that it does not use, and
        // replaces invalid UTF-8 in others. Such frames are skipped.
        prop_assume!(!expected.as_ref().is_err_and(|error| error.contains("UTF-8")));
        let mut decoder = FrameDecoder::new(frame.len());
        decoder.push_chunk(&frame);
        let found = decoder.next_frame().unwrap().ok().map(|frame| (frame.event_name, frame.payload));
        prop_assert_eq!(found, expected.ok());
    }
}
