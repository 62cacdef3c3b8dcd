//! Masks stored secrets in Amazon's binary event streams, whose frames have lengths and checksums.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use penstock_llm::{
    stream::aws_event_stream::edit_frame,
    texts::frames::{EventSplitter, StreamEncoding},
};
use serde_json::Value;

use crate::response::mask_secrets::{SecretMask, mask_chunks};

/// Returns a transform that masks the secrets in each frame. Bytes that are not frames are masked as plain bytes.
pub fn mask_frames(secrets: Vec<Vec<u8>>) -> impl FnMut(Option<Bytes>) -> Bytes + Send + 'static {
    let mask = SecretMask::new(&secrets);
    let mut splitter = EventSplitter::new(StreamEncoding::AwsFrames);
    let mut mask_rest = mask_chunks(secrets);
    move |chunk| {
        let Some(frames) = &mut splitter else { return mask_rest(chunk) };
        let Some(chunk) = chunk else {
            let rest = frames.finish();
            return [mask_rest(Some(rest)), mask_rest(None)].concat().into();
        };
        let Ok(complete) = frames.push(chunk) else {
            let rest = frames.finish();
            splitter = None;
            return mask_rest(Some(rest));
        };
        complete.iter().map(|frame| mask_frame(&mask, frame)).collect::<Vec<_>>().concat().into()
    }
}

fn mask_frame(mask: &SecretMask, frame: &Bytes) -> Bytes {
    let edited = edit_frame(frame, |headers| mask.mask_in_place(headers), |payload| mask_payload(mask, payload));
    edited.map_or_else(|| mask.mask(frame).into(), Bytes::from)
}

/// Masks a payload, and the base64-encoded JSON in a payload of `InvokeModelWithResponseStream`.
fn mask_payload(mask: &SecretMask, payload: &[u8]) -> Vec<u8> {
    let rewritten = || {
        let mut value: Value = serde_json::from_slice(payload).ok()?;
        let inner = STANDARD.decode(value["bytes"].as_str()?).ok()?;
        if !mask.finds_in(&inner) {
            return None;
        }
        value["bytes"] = STANDARD.encode(mask.mask(&inner)).into();
        Some(value.to_string())
    };
    match rewritten() {
        Some(rewritten) => mask.mask(rewritten.as_bytes()),
        None => mask.mask(payload),
    }
}

#[cfg(test)]
mod tests {
    use penstock_llm::stream::aws_event_stream::{FrameDecoder, encode_frame};
    use serde_json::json;

    use super::*;

    const SECRET: &str = "stored-secret-0123";

    fn stream() -> Vec<u8> {
        let inner = json!({"type": "error", "message": format!("wrong {SECRET}")}).to_string();
        let invoked = json!({"bytes": STANDARD.encode(inner), "p": "abc"}).to_string();
        [
            encode_frame("event", "contentBlockDelta", br#"{"delta":{"text":"hi"}}"#),
            encode_frame("exception", "accessDenied", format!(r#"{{"message":"key {SECRET}"}}"#).as_bytes()),
            encode_frame("event", "chunk", invoked.as_bytes()),
        ]
        .concat()
    }

    #[test]
    fn masks_payloads_at_any_cut_and_keeps_frames_readable() {
        let stream = stream();
        for step in 1..=stream.len() {
            let mut mask = mask_frames(vec![SECRET.into()]);
            let mut decoder = FrameDecoder::new(4096);
            for chunk in stream.chunks(step) {
                decoder.push_chunk(&mask(Some(Bytes::copy_from_slice(chunk))));
            }
            decoder.push_chunk(&mask(None));
            let mut payloads = Vec::new();
            while let Some(frame) = decoder.next_frame() {
                payloads.push(String::from_utf8(frame.unwrap().payload.to_vec()).unwrap());
            }
            assert_eq!(payloads[..2], [r#"{"delta":{"text":"hi"}}"#, r#"{"message":"key ***"}"#], "{step}");
            let invoked: Value = serde_json::from_str(&payloads[2]).unwrap();
            let inner = STANDARD.decode(invoked["bytes"].as_str().unwrap()).unwrap();
            assert_eq!(inner, br#"{"type":"error","message":"wrong ***"}"#);
        }
    }

    #[test]
    fn masks_what_is_not_a_frame() {
        for text in
            [format!("\0\0\0\x01 no frame {SECRET} end"), format!("\x7f huge {SECRET}"), format!("\0\0\x01 {SECRET}")]
        {
            let mut mask = mask_frames(vec![SECRET.into()]);
            let mut out: Vec<u8> = text
                .as_bytes()
                .chunks(5)
                .flat_map(|chunk| mask(Some(Bytes::copy_from_slice(chunk))).to_vec())
                .collect();
            out.extend(mask(None));
            assert_eq!(String::from_utf8(out).unwrap(), text.replace(SECRET, "***"));
        }
    }
}
