//! Tests of the decoder: types, limits, damaged lines and repeated identifiers.

use std::collections::HashMap;

use arrow_array::{
    Array,
    cast::AsArray,
    types::{Float64Type, Int64Type, TimestampMicrosecondType},
};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

const ID_TEXT: &str = "01989f3a-0000-7000-8000-000000000001";

fn make_decoder() -> RecordDecoder {
    let columns = [
        ("id", "UUID"),
        ("created_at", "timestamp"),
        ("organisation_id", "category"),
        ("workspace_id", "category"),
        ("trace_id", "string"),
        ("total_units", "integer"),
        ("response_time", "number"),
        ("is_success", "boolean"),
        ("metadata", "map of strings"),
        ("decisions", "JSON"),
        ("usage", "JSON"),
    ];
    let typed = columns.map(|(name, kind)| (name.to_owned(), ColumnType::from_name(kind).unwrap()));
    RecordDecoder::new(typed.into(), r#""strategy": ?"fallback", ?"target": ?[1-9]"#).unwrap()
}

/// Returns a record line with these fields after those that every record needs.
fn make_line(fields: &str) -> String {
    let separator = if fields.is_empty() { "" } else { "," };
    format!(r#"{{"id":"{ID_TEXT}","created_at":"2026-11-02T00:00:00.5Z"{separator}{fields}}}"#)
}

fn decode(lines: &[impl AsRef<[u8]>]) -> DecodedRecords {
    let lines: Vec<_> = lines.iter().map(AsRef::as_ref).collect();
    make_decoder().decode(&lines, "node-1", &HashMap::new()).unwrap()
}

fn integers(lines: &[String]) -> Vec<Option<i64>> {
    let decoded = decode(&with_own_ids(lines));
    let missing = || vec![None; decoded.batch.num_rows()];
    decoded
        .batch
        .column_by_name("total_units")
        .map_or_else(missing, |column| column.as_primitive::<Int64Type>().iter().collect())
}

fn with_own_ids(lines: &[String]) -> Vec<String> {
    lines.iter().enumerate().map(|(at, line)| line.replace(ID_TEXT, &Uuid::from_u128(at as u128).to_string())).collect()
}

fn texts<'d>(decoded: &'d DecodedRecords, column: &str) -> Vec<Option<&'d str>> {
    decoded.batch.column_by_name(column).unwrap().as_string::<i32>().iter().collect()
}

#[test]
fn decodes_every_type() {
    let line = make_line(concat!(
        r#""organisation_id":"o","trace_id":"a \"b\" \u00fc","total_units":7,"response_time":1.25,"is_success":true,"#,
        r#""metadata":{"team":"r\u00e9d","_user":"ann"},"decisions":[{"target": 1}],"usage":{"input":1}"#,
    ));
    let decoded = decode(&[line]);
    assert_eq!(decoded.invalid_count, 0);
    let column = |name: &str| decoded.batch.column_by_name(name).unwrap();
    assert_eq!(column("id").as_fixed_size_binary().value(0), Uuid::try_parse(ID_TEXT).unwrap().as_bytes());
    let field = decoded.batch.schema_ref().field_with_name("id").unwrap().clone();
    assert_eq!(field.metadata()["ARROW:extension:name"], "arrow.uuid");
    assert_eq!(column("created_at").as_primitive::<TimestampMicrosecondType>().value(0), 1_793_577_600_500_000);
    assert_eq!(texts(&decoded, "trace_id"), [Some("a \"b\" ü")]);
    assert_eq!(column("total_units").as_primitive::<Int64Type>().value(0), 7);
    assert_eq!(column("response_time").as_primitive::<Float64Type>().value(0).to_bits(), 1.25_f64.to_bits());
    assert!(column("is_success").as_boolean().value(0));
    assert_eq!(texts(&decoded, "decisions"), [Some(r#"[{"target": 1}]"#)]);
    assert_eq!(texts(&decoded, "usage"), [Some(r#"{"input":1}"#)]);
    let entry = column("metadata").as_map().value(0);
    let entries: Vec<_> = (0..2).map(|column| entry.column(column).as_string::<i32>()).collect();
    assert_eq!(entries[0].iter().flatten().collect::<Vec<_>>(), ["team", "_user"]);
    assert_eq!(entries[1].iter().flatten().collect::<Vec<_>>(), ["réd", "ann"]);
    let heads: Vec<_> = decoded.heads().collect();
    assert_eq!((heads[0].0.created_at, heads[0].1), (1_793_577_600_500_000, "o"));
    assert_eq!(decoded.time_range(), Some((1_793_577_600_500_000, 1_793_577_600_500_000)));
}

#[test]
fn values_of_another_type_become_null() {
    for value in ["\"7\"", "7.0", "7e2", "true", "null", "[7]", "{}", "9223372036854775808", "-9223372036854775809"] {
        assert_eq!(
            integers(&[make_line(&format!(r#""total_units":{value}"#)), make_line("")]),
            [None, None],
            "{value}"
        );
    }
    let line = make_line(
        r#""trace_id":5,"response_time":"1","is_success":"true","metadata":[1],"decisions":null,"usage":null"#,
    );
    let decoded = decode(&[line]);
    for column in ["trace_id", "response_time", "is_success", "metadata"] {
        assert!(decoded.batch.column_by_name(column).unwrap().is_null(0), "{column}");
    }
    for column in ["usage", "decisions"] {
        assert!(decoded.batch.column_by_name(column).is_none(), "{column}");
    }
    let huge = decode(&[make_line(r#""response_time":1e999"#)]);
    assert!(huge.batch.column_by_name("response_time").unwrap().is_null(0));
}

#[test]
fn integers_reach_the_limits_of_64_bits() {
    let lines = [i64::MIN, -1, 0, i64::MAX].map(|number| make_line(&format!(r#""total_units":{number}"#)));
    assert_eq!(integers(&lines), [Some(i64::MIN), Some(-1), Some(0), Some(i64::MAX)]);
}

#[test]
fn map_keeps_strings_and_the_last_of_repeated_keys() {
    let decoded = decode(&[make_line(r#""metadata":{"a":1,"b":"c","b":"d","e":null}"#)]);
    let entry = decoded.batch.column_by_name("metadata").unwrap().as_map().value(0);
    assert_eq!(entry.len(), 1);
    assert_eq!(entry.column(1).as_string::<i32>().value(0), "d");
}

#[test]
fn lines_that_are_no_records_are_counted() {
    let good = make_line("");
    let torn = good.len() - 1;
    let invalid: Vec<Vec<u8>> = vec![
        b"".to_vec(),
        b"{".to_vec(),
        b"[]".to_vec(),
        b"\xff".to_vec(),
        good.as_bytes()[..torn].to_vec(),
        [good.as_bytes(), b"}"].concat(),
        good.replace(ID_TEXT, "x").into_bytes(),
        good.replace(":00.5Z", ":00.5").into_bytes(),
        good.replace("\"2026-11-02T00:00:00.5Z\"", "1").into_bytes(),
        br#"{"id":"01989f3a-0000-7000-8000-000000000001"}"#.to_vec(),
        br#"{"created_at":"2026-11-02T00:00:00Z"}"#.to_vec(),
        make_line(r#""organisation_id":5"#).into_bytes(),
        make_line(r#""workspace_id":["w"]"#).into_bytes(),
        [make_line(r#""trace_id":"#).as_bytes().split_last().unwrap().1, b"\"\xff\"}"].concat(),
    ];
    let expected = invalid.len();
    let decoded = decode(&[invalid, vec![good.into_bytes()]].concat());
    assert_eq!((decoded.invalid_count, decoded.batch.num_rows()), (expected, 1));
}

#[test]
fn unknown_and_missing_fields_change_nothing() {
    let lines = [
        make_line(r#""total_units":1,"later_field":{"a":[1]}"#),
        make_line(""),
        make_line(r#""later_field":2,"total_units":3,"\u0074race_id":"t""#),
    ];
    assert_eq!(integers(&lines), [Some(1), None, Some(3)]);
    let decoded = decode(&with_own_ids(&lines));
    assert_eq!(texts(&decoded, "trace_id"), [None, None, Some("t")]);
    assert!(decoded.batch.column_by_name("later_field").is_none());
}

#[test]
fn last_line_of_an_identifier_and_last_value_of_a_key_count() {
    let lines = ["1", "2", "3"].map(|trace| make_line(&format!(r#""trace_id":"0","trace_id":"{trace}""#)));
    let decoded = decode(&lines);
    assert_eq!((decoded.batch.num_rows(), decoded.invalid_count), (1, 0));
    assert_eq!(texts(&decoded, "trace_id"), [Some("3")]);
}

#[test]
fn organisation_and_workspace_are_empty_instead_of_null() {
    let lines = ["", r#""organisation_id":"o""#, r#""organisation_id":null,"workspace_id":"w""#, ""].map(make_line);
    let decoded = decode(&with_own_ids(&lines));
    assert_eq!(texts(&decoded, "organisation_id"), ["", "o", "", ""].map(Some));
    assert_eq!(texts(&decoded, "workspace_id"), ["", "", "w", ""].map(Some));
    assert_eq!(decoded.heads().map(|(_, organisation)| organisation).collect::<Vec<_>>(), ["", "o", "", ""]);
    assert_eq!(texts(&decoded, "node"), [Some("node-1"); 4]);
}

#[test]
fn fallbacks_are_found_in_the_decisions() {
    let decisions = [
        r#""decisions":[{"step":"chose","strategy":"fallback","target":1}]"#,
        r#""decisions":[{"strategy": "fallback", "target": 12}]"#,
        r#""decisions":[{"strategy":"fallback","target":0}]"#,
        r#""decisions":null"#,
        "",
    ];
    let decoded = decode(&with_own_ids(&decisions.map(make_line)));
    let fallbacks = decoded.batch.column_by_name("is_fallback").unwrap().as_boolean();
    assert_eq!(fallbacks.iter().collect::<Vec<_>>(), [true, true, false, false, false].map(Some));
}

#[test]
fn locations_of_bodies_are_added_to_their_records() {
    let lines = with_own_ids(&[make_line(""), make_line("")]);
    let lines: Vec<_> = lines.iter().map(String::as_bytes).collect();
    let location = BodyLocation { key: "pack".to_owned(), offset: 3, length: 4 };
    let locations = HashMap::from([(Uuid::from_u128(1).into_bytes(), location)]);
    let decoded = make_decoder().decode(&lines, "node-1", &locations).unwrap();
    assert_eq!(texts(&decoded, "body_key"), [None, Some("pack")]);
    let offsets = decoded.batch.column_by_name("body_offset").unwrap().as_primitive::<Int64Type>();
    assert_eq!(offsets.iter().collect::<Vec<_>>(), [None, Some(3)]);
}

#[test]
fn decoder_needs_the_columns_of_every_record() {
    assert!(RecordDecoder::new(vec![("id".to_owned(), ColumnType::Uuid)], "").is_none());
    assert_eq!(ColumnType::from_name("text"), None);
}

proptest! {
    #[test]
    fn decodes_what_a_general_parser_reads(
        units in any::<Option<i64>>(),
        time in proptest::option::of(proptest::num::f64::NORMAL),
        trace in any::<Option<String>>(),
        metadata in proptest::collection::btree_map(any::<String>(), any::<String>(), 0..4),
    ) {
        let record = json!({
            "id": ID_TEXT, "created_at": "2026-11-02T00:00:00Z", "metadata": metadata, "total_units": units,
            "response_time": time, "trace_id": trace,
        });
        let decoded = decode(&[record.to_string()]);
        let column = |name: &str| decoded.batch.column_by_name(name);
        prop_assert_eq!(column("total_units").map(|column| column.as_primitive::<Int64Type>().value(0)), units);
        prop_assert_eq!(column("response_time").map(|column| column.as_primitive::<Float64Type>().value(0)), time);
        prop_assert_eq!(column("trace_id").map(|column| column.as_string::<i32>().value(0).to_owned()), trace);
        let entry = column("metadata").unwrap().as_map().value(0);
        let read: Value = (0..entry.len())
            .map(|at| (0..2).map(|side| entry.column(side).as_string::<i32>().value(at).to_owned()).collect())
            .map(|pair: Vec<String>| (pair[0].clone(), Value::from(pair[1].clone())))
            .collect::<serde_json::Map<_, _>>()
            .into();
        prop_assert_eq!(read, json!(metadata));
    }

    #[test]
    fn arbitrary_bytes_are_no_fault(line in any::<Vec<u8>>(), at in 0..100_usize, byte in any::<u8>()) {
        let mut damaged = make_line(r#""total_units":1,"metadata":{"a":"b"}"#).into_bytes();
        let position = at % damaged.len();
        damaged[position] = byte;
        let decoded = decode(&[line, damaged]);
        prop_assert_eq!(decoded.batch.num_rows() + decoded.invalid_count, 2);
    }
}
