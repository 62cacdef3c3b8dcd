//! Stream metering at any chunk boundaries: usage, termination, model and text of the response.

use penstock_llm::{
    api_format::ApiFormat::{self, Anthropic, Gemini, OpenAi},
    operation::Operation,
    stream::meter::{SseMeter, StreamSummary},
    usage::{ToolUses, Usage},
};
use proptest::prelude::*;

fn meter_chunks<'a>(api_format: ApiFormat, chunks: impl IntoIterator<Item = &'a [u8]>) -> StreamSummary {
    let mut meter = SseMeter::new(api_format);
    for chunk in chunks {
        meter.feed(chunk);
    }
    meter.finish()
}

const CHAT_STREAM: &str = concat!(
    "data: {\"id\":\"c\",\"model\":\"\",\"choices\":[],\"prompt_filter_results\":[],\"usage\":null}\n\n",
    "data: {\"id\":\"c\",\"model\":\"gpt-4o-2024\",\"choices\":[{\"delta\":{\"content\":\"[DONE] \\\"error\\\": 1\"}}],\"usage\":null}\n\n",
    ": ping\n\n",
    "data: {\"id\":\"c\",\"model\":\"gpt-4o-2024\",\"choices\":[],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":12,\"total_tokens\":21}}\n\n",
    "data: [DONE]\n\n",
);

const MESSAGES_STREAM: &str = concat!(
    "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"id\":\"m\",\"model\":\"claude-x\",\"usage\":{\"input_tokens\":25,\"cache_read_input_tokens\":7,\"output_tokens\":1}}}\n\n",
    "event: ping\ndata: {\"type\": \"ping\"}\n\n",
    "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\"message_stop\"}}\n\n",
    "event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\"},\"usage\":{\"input_tokens\":0,\"output_tokens\":15}}\n\n",
    "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n",
);

fn expected_chat() -> StreamSummary {
    StreamSummary {
        usage: Some(Usage { input: 9, output: 12, ..Usage::default() }),
        is_terminated: true,
        has_finish_reasons: false,
        has_error_event: false,
        model: Some("gpt-4o-2024".into()),
        deltas: None,
        background_response_id: None,
    }
}

fn expected_messages() -> StreamSummary {
    StreamSummary {
        usage: Some(Usage { input: 25, cache_read: 7, output: 15, ..Usage::default() }),
        is_terminated: true,
        has_finish_reasons: false,
        has_error_event: false,
        model: Some("claude-x".into()),
        deltas: None,
        background_response_id: None,
    }
}

#[test]
fn meters_a_stream_of_each_api_format() {
    assert_eq!(meter_chunks(OpenAi, [CHAT_STREAM.as_bytes()]), expected_chat());
    assert_eq!(meter_chunks(Anthropic, [MESSAGES_STREAM.as_bytes()]), expected_messages());
}

#[test]
fn meters_streams_with_any_line_ending_and_a_byte_order_mark() {
    for end in ["\r\n", "\r"] {
        let stream = format!("\u{feff}{}", MESSAGES_STREAM.replace('\n', end));
        assert_eq!(meter_chunks(Anthropic, [stream.as_bytes()]), expected_messages());
        assert_eq!(meter_chunks(Anthropic, stream.as_bytes().chunks(5)), expected_messages());
    }
}

#[test]
fn a_truncated_stream_is_not_terminated() {
    let metered = meter_chunks(OpenAi, [&CHAT_STREAM.as_bytes()[..CHAT_STREAM.len() - 10]]);
    assert!(!metered.is_terminated);
    assert_eq!(metered.usage, expected_chat().usage);
    assert!(!meter_chunks(Anthropic, [&MESSAGES_STREAM.as_bytes()[..MESSAGES_STREAM.len() - 40]]).is_terminated);
}

#[test]
fn finish_reason_finishes_a_choice_unless_an_event_is_partial() {
    let chunk = |reason: &str| format!("data: {{\"choices\":[{{\"delta\":{{}},\"finish_reason\": {reason}}}]}}\n\n");
    let usage = "data: {\"choices\":[],\"usage\":null}\n\n";
    let finished = |stream: &str| meter_chunks(OpenAi, stream.as_bytes().chunks(7)).has_finish_reasons;
    assert!(finished(&(chunk("null") + &chunk("\"stop\""))) && finished(&(chunk("\"length\"") + usage)));
    assert!(!finished(&chunk("null")) && !finished(&(chunk("\"stop\"") + "data: {\"id")));
    assert!(!meter_chunks(Anthropic, [chunk("\"stop\"").as_bytes()]).has_finish_reasons);
}

#[test]
fn several_choices_are_finished_once_each_of_them_is() {
    // A tool call has an `index` of its own, so the chunk is parsed in full. Other chunks are only scanned while there
    // is one choice.
    for delta in [r#"{"tool_calls":[{"index":3,"function":{"arguments":"\"index\":9"}}]}"#, r#"{"content":"a"}"#] {
        check_finished_choices(delta);
    }
}

fn check_finished_choices(delta: &str) {
    let choice =
        |index: u8, reason: &str| format!("{{\"index\": {index},\"delta\":{delta},\"finish_reason\":{reason}}}");
    let (open, over) = (|index| choice(index, "null"), |index| choice(index, "\"stop\""));
    for (chunks, finished) in [
        (vec![open(0), over(0)], true),
        (vec![open(0), open(1), over(0)], false),
        (vec![open(0), over(0), open(1)], false),
        (vec![open(1), open(0), over(1)], false),
        (vec![open(0), over(1)], false),
        (vec![open(0), open(1), over(0), over(1)], true),
        (vec![over(0), open(2), open(1), over(2), open(1), over(1)], true),
        (vec![format!("{},{}", over(0), open(1))], false),
        (vec![format!("{},{}", open(0), over(1))], false),
        (vec![format!("{},{}", over(0), over(1))], true),
        (vec![open(0), over(0), open(0)], true),
        (vec![over(127), over(200)], true),
    ] {
        let events = chunks.iter().map(|choices| format!("data: {{\"choices\":[{choices}],\"usage\":null}}\n\n"));
        let stream = events.collect::<Vec<_>>().concat();
        for size in [1, 7, stream.len()] {
            assert_eq!(
                meter_chunks(OpenAi, stream.as_bytes().chunks(size)).has_finish_reasons,
                finished,
                "{stream} by {size}"
            );
        }
    }
}

#[test]
fn counts_a_last_event_without_its_blank_line() {
    assert_eq!(meter_chunks(OpenAi, [CHAT_STREAM.trim_end().as_bytes()]), expected_chat());
}

#[test]
fn detects_error_events_and_ignores_null_errors() {
    let errors = [
        "data: {\"error\":{\"message\":\"x\",\"type\":\"overloaded_error\"}}\n\n",
        "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\"}}\n\n",
        "data: {\"type\":\"response.failed\",\"response\":{\"error\":{\"code\":\"x\"},\"usage\":null}}\n\n",
    ];
    for api_format in [OpenAi, Anthropic] {
        assert!(
            errors
                .iter()
                .all(|event| meter_chunks(api_format, [CHAT_STREAM.as_bytes(), event.as_bytes()]).has_error_event)
        );
        assert!(!meter_chunks(api_format, ["data: {\"error\":null,\"x\":\"error\"}\n\n".as_bytes()]).has_error_event);
    }
}

#[test]
fn a_responses_api_stream_ends_with_its_last_event() {
    let stream = concat!(
        "data: {\"type\":\"response.created\",\"response\":{\"model\":\"gpt-5\",\"error\":null,\"usage\":null}}\n\n",
        "data: {\"type\":\"response.completed\",\"response\":{\"model\":\"gpt-5\",\"error\":null,\"usage\":{\"input_tokens\":3,\"output_tokens\":4}}}\n\n",
    );
    let metered = meter_chunks(OpenAi, [stream.as_bytes()]);
    assert_eq!(metered.usage, Some(Usage { input: 3, output: 4, ..Usage::default() }));
    assert!(metered.is_terminated && !metered.has_error_event);
    assert_eq!(metered.model.as_deref(), Some("gpt-5"));
}

#[test]
fn detects_a_background_response_from_its_first_event() {
    let begun = |background: &str| {
        let event = format!(
            "data: {{\"type\":\"response.created\",\"response\":{{\"id\":\"resp_1\",\"background\":{background},\"model\":\"gpt-5\"}}}}\n\n"
        );
        meter_chunks(OpenAi, [event.as_bytes()]).background_response_id
    };
    assert_eq!((begun("true").as_deref(), begun("false")), (Some("resp_1"), None));
}

#[test]
fn finds_usage_in_a_huge_or_invalid_event() {
    let tail = "\"usage\":{\"prompt_tokens\":1,\"completion_tokens\":2}}\n\ndata: [DONE]\n\n";
    let huge = format!("data: {{\"junk\":\"{}\",{tail}", "x".repeat(1_000_000));
    let metered = meter_chunks(OpenAi, huge.as_bytes().chunks(16_384));
    assert_eq!((metered.usage, metered.is_terminated), (Some(Usage { input: 1, output: 2, ..Usage::default() }), true));
    let broken = format!("data: {{\"junk\":nonsense,{tail}");
    assert_eq!(meter_chunks(OpenAi, [broken.as_bytes()]).usage, metered.usage);
}

/// An image or a long response arrives as one event of several megabytes, whose beginning is not buffered.
#[test]
fn reads_termination_and_usage_of_a_huge_last_event() {
    let picture = "A".repeat(1_000_000);
    let used = Some(Usage { input: 3, output: 4, ..Usage::default() });
    let response = format!(
        "data: {{\"type\":\"response.completed\",\"response\":{{\"output\":[{{\"result\":\"{picture}\"}}],\"error\":null,\"usage\":{{\"input_tokens\":3,\"output_tokens\":4}}}}}}\n\n"
    );
    let metered = meter_chunks(OpenAi, response.as_bytes().chunks(16_384));
    assert_eq!((metered.usage, metered.is_terminated), (used, true));
    let content = |end: &str| {
        format!(
            "data: {{\"candidates\":[{{\"content\":{{\"parts\":[{{\"inlineData\":{{\"data\":\"{picture}\"}}}}]}}{end}}}],\"usageMetadata\":{{\"promptTokenCount\":3,\"candidatesTokenCount\":4}},\"modelVersion\":\"gemini-2.5-flash\"}}\n\n"
        )
    };
    let looked_up = ",\"finishReason\":\"STOP\",\"groundingMetadata\":{\"webSearchQueries\":[\"a\",\"b\"]}";
    let metered = meter_chunks(Gemini, content(looked_up).as_bytes().chunks(16_384));
    let tools = ToolUses { web_searches: 1, ..ToolUses::default() };
    assert_eq!((metered.usage, metered.is_terminated), (used.map(|usage| Usage { tool_uses: tools, ..usage }), true));
    let metered = meter_chunks(Gemini, content("").as_bytes().chunks(16_384));
    assert_eq!((metered.usage, metered.is_terminated), (used, false));
}

const RESPONSES_STREAM: &str = concat!(
    "event: response.created\ndata: {\"type\":\"response.created\",\"response\":{\"model\":\"gpt-5\",\"usage\":null}}\n\n",
    "event: response.output_text.delta\ndata: {\"type\":\"response.output_text.delta\",\"delta\":\"\\\"response.failed\\\" \\u00e9\"}\n\n",
    "event: response.output_text.done\ndata: {\"type\":\"response.output_text.done\",\"text\":\"twice\"}\n\n",
    "event: response.incomplete\ndata: {\"type\":\"response.incomplete\",\"response\":{\"error\":null,\"usage\":null}}\n\n",
);

const FAILING_STREAM: &str = concat!(
    "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n: ping\n\n",
    "data: {\"choices\":[{\"delta\":\ndata: {\"content\":\"two lines\"}}]}\n\n",
    "data: {\"error\":{\"message\":\"x\"}}\n\ndata: [DO",
);

/// Generates an operation and its stream, with any line endings, with or without a byte order mark.
fn any_stream() -> impl Strategy<Value = (Operation, String)> {
    let streams = vec![
        (Operation::ChatComplete, CHAT_STREAM),
        (Operation::Messages, MESSAGES_STREAM),
        (Operation::CreateModelResponse, RESPONSES_STREAM),
        (Operation::ChatComplete, FAILING_STREAM),
        (Operation::Complete, "data: {\"choices\":[{\"text\":\"a\"}]}\n\ndata: {\"choices\":[{\"text\":\"b\"}]}\n\n"),
    ];
    let ends = prop::sample::select(vec!["\n", "\r\n", "\r"]);
    (prop::sample::select(streams), ends, prop::sample::select(vec!["", "\u{feff}"]))
        .prop_map(|((operation, stream), end, mark)| (operation, format!("{mark}{}", stream.replace('\n', end))))
}

#[test]
fn each_final_response_event_terminates_the_stream() {
    for (end, failed) in [("completed", false), ("incomplete", false), ("failed", true)] {
        let error = if failed { "{}" } else { "null" };
        let event =
            format!("data: {{\"type\":\"response.{end}\",\"response\":{{\"error\":{error},\"usage\":null}}}}\n\n");
        let metered = meter_chunks(OpenAi, [RESPONSES_STREAM.split_at(200).0.as_bytes(), b"\n\n", event.as_bytes()]);
        assert_eq!((metered.is_terminated, metered.has_error_event), (true, failed), "{end}");
    }
    assert!(!meter_chunks(OpenAi, [RESPONSES_STREAM.rsplit_once("event:").unwrap().0.as_bytes()]).is_terminated);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn chunk_boundaries_do_not_change_the_usage((operation, stream) in any_stream(), mut cuts in prop::collection::vec(0..1000usize, 0..20)) {
        cuts.sort_unstable();
        let feed = |cuts: &[usize]| {
            let mut meter = SseMeter::with_deltas(operation.api_format().unwrap(), operation);
            let mut from = 0;
            for cut in cuts.iter().copied().chain([stream.len()]).map(|cut| cut.min(stream.len())) {
                meter.feed(&stream.as_bytes()[from..cut]);
                from = cut;
            }
            meter.finish()
        };
        let whole = feed(&[]);
        prop_assert_eq!(&feed(&cuts), &whole);
        match (operation, whole.usage) {
            (Operation::ChatComplete, Some(_)) => prop_assert_eq!(whole, expected_chat()),
            (Operation::Messages, _) => prop_assert_eq!(whole, expected_messages()),
            (Operation::CreateModelResponse, _) => {
                prop_assert_eq!(whole.deltas.unwrap().buffered_text(), "\"response.failed\" é");
                prop_assert!(whole.is_terminated && !whole.has_error_event);
            }
            (Operation::Complete, _) => prop_assert_eq!(whole.deltas.unwrap().buffered_text(), "ab"),
            _ => prop_assert!(whole.has_error_event && !whole.is_terminated),
        }
    }
}
