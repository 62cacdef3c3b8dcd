//! Streams that are checked in portions. Events are held until their texts are checked together with enough of the text
//! that follows. So a match is complete before any part of it is sent. Text is settled if further text cannot change
//! the matches in it.

use std::{
    borrow::Cow,
    collections::{BTreeSet, HashMap, VecDeque},
    ops::Range,
    sync::Arc,
    time::Instant,
};

use bytes::Bytes;
use penstock_llm::texts::{
    JsonForm, TextKind, TextPart,
    event::{EventTexts, SlotKey},
    frames::{EventSplitter, StreamEncoding, UnreadableEvent, event_json, rewrite_event, without_repeated_keys},
    json_text::{JsonTextDecoder, encode_json_text},
};
use serde_json::json;

use super::{
    runner::{self, new_check_result, new_result},
    unreadable::{TOO_LARGE, UNREADABLE_STREAM},
};
use crate::guardrails::{
    hook::Hook,
    results::HookResult,
    window::{MIN_PORTION_BYTES, PlaceholderNames, WindowMatch},
};

/// Maximum bytes of events that are held of one stream.
const MAX_HELD_BYTES: usize = 4 * 1024 * 1024;
/// A text without a word boundary is cut anywhere after this many bytes.
const MAX_UNBROKEN_BYTES: usize = 4096;

/// A text that is not settled yet.
#[derive(Debug)]
struct OpenText {
    key: SlotKey,
    text: String,
    has_ended: bool,
    /// Reads the escapes of a text that is JSON.
    decoder: Option<JsonTextDecoder>,
}

/// A delta of a held event.
struct HeldDelta {
    slot: usize,
    place: TextPart,
    /// Settled part of the delta, with replacements.
    settled: String,
    /// Range of the part that is not settled, in the text of the slot.
    open: Range<usize>,
}

struct HeldEvent {
    raw: Bytes,
    deltas: Vec<HeldDelta>,
    /// Whole texts that the event contains and that were replaced, each with its replacement.
    copies: Vec<(TextPart, String)>,
}

/// Matches that one check has found so far.
#[derive(Debug, Default, Clone)]
struct CheckTally {
    kinds: BTreeSet<&'static str>,
    has_failed: bool,
    has_replaced: bool,
}

/// How a stream continues after a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WindowStep {
    Continue,
    /// A hook denied the stream, so held events must not be sent.
    Denied,
}

/// Checks of one stream.
pub(super) struct StreamWindow {
    encoding: StreamEncoding,
    splitter: EventSplitter,
    hooks: Vec<Arc<Hook>>,
    tallies: Vec<Vec<CheckTally>>,
    names: PlaceholderNames,
    slots: Vec<OpenText>,
    slot_indexes: HashMap<SlotKey, usize>,
    held: VecDeque<HeldEvent>,
    held_bytes: usize,
    unchecked_bytes: usize,
    /// Bytes of new text after which a portion is checked.
    portion_bytes: usize,
    unreadable: Option<&'static str>,
    started_at: Instant,
}

impl StreamWindow {
    /// Returns the checks of a stream; `None` if its events can be separated only at its end.
    pub fn new(encoding: StreamEncoding, hooks: Vec<Arc<Hook>>) -> Option<Self> {
        let tallies = hooks.iter().map(|hook| vec![CheckTally::default(); hook.checks.len()]).collect();
        Some(Self {
            encoding,
            splitter: EventSplitter::new(encoding)?,
            hooks,
            tallies,
            names: PlaceholderNames::default(),
            slots: Vec::new(),
            slot_indexes: HashMap::new(),
            held: VecDeque::new(),
            held_bytes: 0,
            unchecked_bytes: 0,
            portion_bytes: MIN_PORTION_BYTES,
            unreadable: None,
            started_at: Instant::now(),
        })
    }

    /// Returns a window that checks every event, for a hook that holds back almost nothing.
    pub fn of_every_event(encoding: StreamEncoding, hook: Arc<Hook>) -> Option<Self> {
        Some(Self { portion_bytes: 1, ..Self::new(encoding, vec![hook])? })
    }

    /// Adds a chunk, and appends the bytes that may be sent to `output`. At the end of the stream, `chunk` is `None`.
    pub fn push(&mut self, chunk: Option<Bytes>, output: &mut Vec<u8>) -> WindowStep {
        if self.unreadable.is_some() {
            output.extend_from_slice(&chunk.unwrap_or_default());
            return WindowStep::Continue;
        }
        let is_end = chunk.is_none();
        let read = match chunk {
            Some(chunk) => self.read_chunk(chunk, output),
            None => self.read_end(),
        };
        let step = match read {
            Ok(step) => step,
            Err(UnreadableEvent) => self.give_up(UNREADABLE_STREAM, output),
        };
        if step == WindowStep::Denied || self.unreadable.is_some() {
            return step;
        }
        if self.held_bytes > MAX_HELD_BYTES {
            return self.give_up(TOO_LARGE, output);
        }
        if (is_end || self.unchecked_bytes >= self.portion_bytes) && self.check_slots(is_end) == WindowStep::Denied {
            return WindowStep::Denied;
        }
        self.release(output);
        WindowStep::Continue
    }

    fn read_chunk(&mut self, chunk: Bytes, output: &mut Vec<u8>) -> Result<WindowStep, UnreadableEvent> {
        for raw in self.splitter.push(chunk)? {
            if self.read_event(raw)? == WindowStep::Denied {
                return Ok(WindowStep::Denied);
            }
            // One chunk may contain many portions.
            if self.unchecked_bytes >= self.portion_bytes {
                if self.check_slots(false) == WindowStep::Denied {
                    return Ok(WindowStep::Denied);
                }
                self.release(output);
            }
        }
        Ok(WindowStep::Continue)
    }

    fn read_end(&mut self) -> Result<WindowStep, UnreadableEvent> {
        let rest = self.splitter.finish();
        if rest.is_empty() { Ok(WindowStep::Continue) } else { self.read_event(rest) }
    }

    /// Stops the checks of a stream that cannot be read or is too large to hold. Denies the stream if a hook is set to
    /// deny or may redact; otherwise the rest passes unchecked.
    fn give_up(&mut self, reason: &'static str, output: &mut Vec<u8>) -> WindowStep {
        self.unreadable = Some(reason);
        if self.hooks.iter().any(|hook| runner::must_read(hook)) {
            return WindowStep::Denied;
        }
        for event in self.held.drain(..) {
            output.extend_from_slice(&event.raw);
        }
        output.extend_from_slice(&self.splitter.finish());
        WindowStep::Continue
    }

    fn read_event(&mut self, raw: Bytes) -> Result<WindowStep, UnreadableEvent> {
        let raw = without_repeated_keys(self.encoding, &raw).unwrap_or(raw);
        let texts = event_json(self.encoding, &raw)?.map(|event| EventTexts::read(&event)).unwrap_or_default();
        let mut deltas = Vec::with_capacity(texts.deltas.len());
        for (key, place) in texts.deltas {
            let slot = self.slot_of(key, place.json_form());
            let OpenText { text, decoder, .. } = &mut self.slots[slot];
            let begin = text.len();
            match decoder {
                Some(decoder) => decoder.decode(&place.text, text),
                None => text.push_str(&place.text),
            }
            self.unchecked_bytes += place.text.len();
            let open = begin..text.len();
            deltas.push(HeldDelta { slot, place, settled: String::new(), open });
        }
        let mut copies = Vec::new();
        for copy in texts.copies {
            let Some(matches) = self.find(copy.kind, &copy.text, copy.text.len()) else {
                return Ok(WindowStep::Denied);
            };
            if !matches.is_empty() {
                let replaced = settle(&copy.text, 0..copy.text.len(), &matches);
                copies.push((copy, replaced));
            }
        }
        for slot in &mut self.slots {
            slot.has_ended |= texts.ended.includes(&slot.key);
        }
        self.held_bytes += raw.len();
        self.held.push_back(HeldEvent { raw, deltas, copies });
        Ok(WindowStep::Continue)
    }

    fn slot_of(&mut self, key: SlotKey, form: JsonForm) -> usize {
        let slots = &mut self.slots;
        let index = *self.slot_indexes.entry(key.clone()).or_insert_with(|| {
            let decoder = (form == JsonForm::Delta).then(JsonTextDecoder::default);
            slots.push(OpenText { key, text: String::new(), has_ended: false, decoder });
            slots.len() - 1
        });
        slots[index].has_ended = false;
        index
    }

    /// Checks all texts, and settles the part of each that further text cannot change.
    fn check_slots(&mut self, is_end: bool) -> WindowStep {
        self.unchecked_bytes = 0;
        for index in 0..self.slots.len() {
            let slot = &mut self.slots[index];
            if slot.text.is_empty() {
                continue;
            }
            let (text, kind) = (std::mem::take(&mut slot.text), slot.key.kind);
            let has_ended = is_end || slot.has_ended;
            let settled = if has_ended { text.len() } else { self.settled_end(kind, &text) };
            let Some(matches) = self.find(kind, &text, settled) else { return WindowStep::Denied };
            let cut = if has_ended { text.len() } else { cut_before(&text, settled, &matches) };
            self.settle_slot(index, &text, cut, &matches);
            text[cut..].clone_into(&mut self.slots[index].text);
        }
        WindowStep::Continue
    }

    /// Returns the matches that are replaced; `None` if a hook denies the text. A match that begins in the part that is
    /// not settled may become another one, so it waits.
    fn find(&mut self, kind: TextKind, text: &str, settled: usize) -> Option<Vec<WindowMatch>> {
        let mut replaced: Vec<WindowMatch> = Vec::new();
        for (hook, tallies) in self.hooks.iter().zip(&mut self.tallies) {
            for (check, tally) in hook.checks.iter().zip(tallies) {
                let Some(window) = check.check.check.window().filter(|window| window.includes(kind)) else {
                    continue;
                };
                for found in window.find(text, settled, &mut self.names) {
                    tally.kinds.insert(found.kind);
                    if found.replacement.is_some() {
                        tally.has_replaced = true;
                        replaced.push(found);
                    } else {
                        tally.has_failed = true;
                        if hook.denies {
                            return None;
                        }
                    }
                }
            }
        }
        replaced.sort_by_key(|found| found.range.start);
        let mut end = 0;
        replaced.retain(|found| {
            let is_kept = found.range.start >= end;
            if is_kept {
                end = found.range.end;
            }
            is_kept
        });
        Some(replaced)
    }

    /// Returns the position up to which a text is settled: more text cannot change a match that begins before it.
    fn settled_end(&self, kind: TextKind, text: &str) -> usize {
        let windows = self.hooks.iter().flat_map(|hook| &hook.checks).filter_map(|check| check.check.check.window());
        let settled = windows
            .filter(|window| window.includes(kind))
            .map(|window| window.settled_end(text))
            .min()
            .unwrap_or(text.len());
        text.floor_char_boundary(settled)
    }
    /// Settles the deltas of a text up to a position.
    fn settle_slot(&mut self, slot: usize, text: &str, cut: usize, matches: &[WindowMatch]) {
        let is_json = self.slots[slot].decoder.as_ref().is_some_and(JsonTextDecoder::is_json);
        let deltas = self.held.iter_mut().flat_map(|event| &mut event.deltas).filter(|delta| delta.slot == slot);
        for delta in deltas {
            let Range { start, end } = delta.open;
            if start < cut {
                let settled = settle(text, start..end.min(cut), matches);
                delta.settled.push_str(&if is_json { encode_json_text(&settled) } else { settled.as_str().into() });
            }
            delta.open = start.max(cut) - cut..end.max(cut) - cut;
        }
    }

    /// Appends the events at the front whose texts are settled.
    fn release(&mut self, output: &mut Vec<u8>) {
        while self.held.front().is_some_and(|event| event.deltas.iter().all(|delta| delta.open.is_empty())) {
            let Some(event) = self.held.pop_front() else { return };
            self.held_bytes -= event.raw.len();
            let deltas = event.deltas.iter().filter(|delta| delta.settled != delta.place.text);
            let deltas = deltas.map(|delta| (&delta.place, delta.settled.as_str()));
            let changes: Vec<_> =
                deltas.chain(event.copies.iter().map(|(place, text)| (place, text.as_str()))).collect();
            let raw = if changes.is_empty() { event.raw } else { rewrite_event(self.encoding, &event.raw, &changes) };
            output.extend_from_slice(&raw);
        }
    }

    /// Returns the results of all hooks.
    pub fn results(&self) -> Vec<HookResult> {
        self.hooks.iter().zip(&self.tallies).map(|(hook, tallies)| self.result(hook, tallies)).collect()
    }

    fn result(&self, hook: &Hook, tallies: &[CheckTally]) -> HookResult {
        if let Some(reason) = self.unreadable {
            return runner::unreadable_result(hook, reason);
        }
        let mut result = new_result(hook);
        for (check, tally) in hook.checks.iter().zip(tallies) {
            let explanation: Cow<'_, str> = match (tally.has_failed, tally.has_replaced) {
                (true, _) => "found in the stream".into(),
                (false, true) => "replaced in the stream".into(),
                (false, false) => "nothing was found in the stream".into(),
            };
            let data = json!({"verdict": !tally.has_failed, "explanation": explanation, "detected": tally.kinds});
            let mut one = new_check_result(&check.check, !tally.has_failed, data);
            one.is_transformed = tally.has_replaced;
            result.is_transformed |= tally.has_replaced;
            result.checks.push(one);
        }
        result.milliseconds = self.started_at.elapsed().as_millis() as u64;
        runner::conclude(hook, &mut result);
        result
    }
}

/// Returns the position up to which a text may be sent. It is not within a match and, if possible, between two words.
/// Checks then find the same matches in the rest as in the whole text.
fn cut_before(text: &str, settled: usize, matches: &[WindowMatch]) -> usize {
    let is_word = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
    let between = text[..settled].char_indices().rev().find(|(_, letter)| !is_word(*letter));
    let mut cut = match between {
        Some((at, letter)) => at + letter.len_utf8(),
        None if settled < MAX_UNBROKEN_BYTES => 0,
        None => settled,
    };
    while let Some(across) = matches.iter().find(|found| found.range.start < cut && cut < found.range.end) {
        cut = across.range.start;
    }
    cut
}

/// Returns a range of a text with matches replaced. A match that begins before the range was already replaced.
fn settle(text: &str, range: Range<usize>, matches: &[WindowMatch]) -> String {
    let mut settled = String::with_capacity(range.len());
    let mut at = range.start;
    for found in matches {
        if found.range.end <= at || found.range.start >= range.end {
            continue;
        }
        if found.range.start >= at {
            settled.push_str(&text[at..found.range.start]);
            settled.push_str(found.replacement.as_deref().unwrap_or_default());
        }
        at = found.range.end.min(range.end);
    }
    settled.push_str(&text[at..range.end]);
    settled
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::{
        guardrails::hook::{HookForm, HookKind, HookReference, StreamMode, parse_hooks},
        parse::document_reader::{ConfigReader, Strictness},
    };

    fn window(hook: Value) -> StreamWindow {
        let mut hook = hook;
        hook["stream"] = "window".into();
        let mut reading = ConfigReader::new(Strictness::Strict);
        let hooks = parse_hooks(&json!([hook]), HookForm::Short(HookKind::Guardrail), &mut reading);
        reading.finish().unwrap();
        let [HookReference::Inline(hook)] = &hooks[..] else { panic!("{hooks:?}") };
        assert_eq!(hook.stream_mode(), StreamMode::Window);
        StreamWindow::new(StreamEncoding::SseEvents, vec![Arc::clone(hook)]).unwrap()
    }

    fn event(text: &str) -> String {
        format!("data: {}\n\n", json!({"choices": [{"index": 0, "delta": {"content": text}}]}))
    }

    /// Pushes a text in deltas of this length. Returns the output before the end, the whole output, and the last step.
    fn push_in_deltas(window: &mut StreamWindow, text: &str, delta_chars: usize) -> (String, String, WindowStep) {
        let mut output = Vec::new();
        let letters: Vec<char> = text.chars().collect();
        for delta in letters.chunks(delta_chars) {
            let delta: String = delta.iter().collect();
            if window.push(Some(event(&delta).into()), &mut output) == WindowStep::Denied {
                return (text_of(&output), text_of(&output), WindowStep::Denied);
            }
        }
        let early = text_of(&output);
        let step = window.push(None, &mut output);
        (early, text_of(&output), step)
    }

    fn text_of(stream: &[u8]) -> String {
        let texts =
            penstock_llm::texts::stream::StreamTexts::read(StreamEncoding::SseEvents, &Bytes::copy_from_slice(stream))
                .unwrap();
        texts.parts().iter().map(|part| part.text.clone()).collect()
    }

    fn filler(bytes: usize) -> String {
        "lorem ipsum ".repeat(bytes / 12)
    }

    #[test]
    fn a_denied_word_never_leaves_wherever_it_stands() {
        for (before, delta_bytes) in [(0, 1), (240, 3), (500, 1), (509, 7), (2000, 4), (5000, 300)] {
            let mut window = window(json!({"contains": {"words": ["canary-word"], "operator": "none"}, "deny": true}));
            let text = format!("{}canary-word {}", filler(before), filler(3000));
            let (_, sent, step) = push_in_deltas(&mut window, &text, delta_bytes);
            assert_eq!((step, sent.contains("can")), (WindowStep::Denied, false), "{before} {delta_bytes}: {sent}");
            assert!(text.starts_with(&sent) && sent.len() + 1024 >= before.min(text.len()), "{}", sent.len());
            let result = &window.results()[0];
            assert!(result.denies && !result.verdict, "{result:?}");
        }
    }

    #[test]
    fn text_without_a_match_leaves_early_and_unchanged() {
        let mut window = window(json!({"contains": {"words": ["canary"], "operator": "none"}, "gateway.pii":
            {"categories": ["EMAIL_ADDRESS"]}, "gateway.secrets": {}, "deny": true}));
        let text = filler(4000);
        let (early, sent, step) = push_in_deltas(&mut window, &text, 5);
        assert_eq!((sent, step), (text.clone(), WindowStep::Continue));
        assert!(early.len() + 1024 > text.len(), "{}", early.len());
    }

    #[test]
    fn a_match_is_replaced_wherever_it_is_cut() {
        for delta_bytes in [1, 2, 5, 13, 200] {
            for before in [0, 120, 252, 504, 516, 1020, 3000] {
                let mut window =
                    window(json!({"gateway.pii": {"categories": ["EMAIL_ADDRESS", "CREDIT_CARD"], "redact": true}}));
                let text =
                    |email: &str, card: &str| format!("{}{email}, {email} and {card} {}", filler(before), filler(900));
                let (early, sent, _) =
                    push_in_deltas(&mut window, &text("ann@mail.example", "4111 1111 1111 1111"), delta_bytes);
                assert_eq!(sent, text("{{EMAIL_ADDRESS_1}}", "{{CREDIT_CARD_1}}"), "{delta_bytes} {before}");
                assert!(sent.starts_with(&early));
                assert!(window.results()[0].is_transformed && window.results()[0].verdict);
            }
        }
    }

    #[test]
    fn copies_and_tool_arguments_are_checked() {
        let done = format!("data: {}\n\n", json!({"type": "response.output_text.done", "text": "a canary"}));
        let call = format!(
            "data: {}\n\n",
            json!({"choices": [{"delta": {"tool_calls": [{"index": 0, "function": {"arguments": "{\"a\":\"canary\"}"}}]}}]})
        );
        for stream in [done, call] {
            let denying = json!({"contains": {"words": ["canary"], "operator": "none"}, "deny": true});
            let (mut window, mut output) = (window(denying), Vec::new());
            let step = match window.push(Some(stream.into()), &mut output) {
                WindowStep::Continue => window.push(None, &mut output),
                step @ WindowStep::Denied => step,
            };
            assert_eq!((step, output), (WindowStep::Denied, Vec::new()));
        }
    }

    #[test]
    fn a_stream_that_cannot_be_read_is_denied_or_passes_as_skipped() {
        let hook = |denies: bool| json!({"contains": {"words": ["canary"], "operator": "none"}, "deny": denies});
        let stream = Bytes::from_static(b"data: <xml>\n\n");
        let redacting = json!({"regexReplace": {"rule": "canary", "redactText": "#"}});
        let mut output = Vec::new();
        for must_read in [hook(true), redacting] {
            let mut denying = window(must_read);
            assert_eq!(denying.push(Some(stream.clone()), &mut output), WindowStep::Denied);
            assert!(denying.results()[0].denies && output.is_empty());
        }
        let mut observing = window(hook(false));
        assert_eq!(observing.push(Some(stream), &mut output), WindowStep::Continue);
        assert_eq!(observing.results()[0].skipped, Some(UNREADABLE_STREAM));
    }

    #[test]
    fn checks_that_need_the_whole_text_are_reported() {
        for (check, is_fine) in [
            (json!({"wordCount": {}}), false),
            (json!({"contains": {"words": ["a"]}}), false),
            (json!({"regexMatch": {"rule": "a+", "not": true}}), false),
            (json!({"regexMatch": {"rule": "^a", "not": true}}), false),
            (json!({"regexMatch": {"rule": "\\ba{1,9}\\b", "not": true}}), true),
        ] {
            let mut hook = check.clone();
            hook["stream"] = "window".into();
            let mut reading = ConfigReader::new(Strictness::Strict);
            parse_hooks(&json!([hook]), HookForm::Short(HookKind::Guardrail), &mut reading);
            assert_eq!(reading.finish().is_ok(), is_fine, "{check}");
        }
    }
}
