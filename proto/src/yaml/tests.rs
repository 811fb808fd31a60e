//! Reading and writing against what upstream makes of the same text.

use serde_json::{Value, json};

use super::{parse, read, write};

fn text(value: &Value) -> String {
    let mut out = Vec::new();
    write(value, &mut out);
    String::from_utf8(out).expect("YAML is text")
}

fn value(text: &str) -> Value {
    parse(text.as_bytes()).unwrap_or_else(|e| panic!("{text}: {e}"))
}

#[test]
fn words_and_numbers_mean_what_yaml_1_1_says() {
    for (from, to) in [
        ("yes", json!(true)),
        ("Off", json!(false)),
        ("y", json!(true)),
        ("yEs", json!("yEs")),
        ("~", json!(null)),
        ("", json!(null)),
        ("NULL", json!(null)),
        ("017", json!(15)),
        ("0o17", json!(15)),
        ("08", json!(8)),
        ("0x1f", json!(31)),
        ("0b101", json!(5)),
        ("-0b101", json!(-5)),
        ("1_000", json!(1000)),
        ("+12", json!(12)),
        ("18446744073709551615", json!(18_446_744_073_709_551_615u64)),
        ("-9223372036854775808", json!(i64::MIN)),
        ("1.0", json!(1)),
        ("1e3", json!(1000)),
        (".5", json!(0.5)),
        ("1.2.3", json!("1.2.3")),
        ("2026-01-02", json!("2026-01-02")),
        ("2026-01-02T03:04:05Z", json!("2026-01-02T03:04:05Z")),
        ("12:30", json!("12:30")),
        ("\"yes\"", json!("yes")),
        ("!!str yes", json!("yes")),
        ("!!int \"3\"", json!(3)),
        ("!!binary aGVsbG8=", json!("hello")),
        ("!own text", json!("text")),
        ("[a, {b: 1}]", json!(["a", {"b": 1}])),
        ("1: a\ntrue: b\n1.5: c\n", json!({"1": "a", "true": "b", "1.5": "c"})),
        ("a: &x {b: 1}\nc: *x\n", json!({"a": {"b": 1}, "c": {"b": 1}})),
        ("a: &x {b: 1, c: 2}\nd:\n  <<: *x\n  c: 3\n", json!({"a": {"b": 1, "c": 2}, "d": {"b": 1, "c": 3}})),
        ("a: |\n  x\n  y\nb: >-\n  x\n  y\n", json!({"a": "x\ny\n", "b": "x y"})),
        ("a: 1\n---\nb: 2\n", json!({"a": 1})),
        ("# only a comment\n", json!(null)),
        ("{\"a\":\t\"b\\u00e9\"}", json!({"a": "b\u{e9}"})),
    ] {
        assert_eq!(value(from), to, "{from}");
    }
}

#[test]
fn duplicates_are_told_with_their_line() {
    let parsed = read(b"a: 1\nb:\n  k: 1\n  k: 2\na: 3\n").expect("YAML");
    assert_eq!(parsed.value, json!({"a": 3, "b": {"k": 2}}));
    let told =
        "yaml: unmarshal errors:\n  line 4: key \"k\" already set in map\n  line 5: key \"a\" already set in map";
    assert_eq!(parsed.duplicates, [told]);
}

#[test]
fn broken_text_is_refused() {
    for (from, told) in [
        ("a: b: c\n", "yaml: mapping values are not allowed in this context"),
        ("x: 1\na: b: c\n", "yaml: line 2: mapping values are not allowed in this context"),
        ("a: .nan\n", "json: unsupported value: NaN"),
        ("a: *b\n", "yaml: unknown anchor 'b' referenced"),
        ("x: 1\ny: [\u{e9}, *own-1]\n", "yaml: unknown anchor 'own-1' referenced"),
        ("a: &own [*own]\n", "yaml: anchor 'own' value contains itself"),
        ("a: b\n\tc: d\n", "yaml: line 2: found a tab character that violates indentation"),
        ("k: v\nm:\n  a: b\n  c\n\td: e\n", "yaml: line 5: found a tab character that violates indentation"),
        ("a: |\n\tb\n", "yaml: line 2: found a tab character where an indentation space is expected"),
        ("a: \"\\xZZ\"\n", "yaml: did not find expected hexdecimal number"),
        ("a: !foo!bar b\n", "yaml: found undefined tag handle"),
        ("[a, 1, ~]: b\n", "yaml: invalid map key: []interface {}{\"a\", 1, interface {}(nil)}"),
        (
            "a: {{ .Values.x }}\n",
            "yaml: invalid map key: map[interface {}]interface {}{\".Values.x\":interface {}(nil)}",
        ),
        ("{{b: 1.5, 1: x}: y}\n", "yaml: invalid map key: map[interface {}]interface {}{1:\"x\", \"b\":1.5}"),
        ("a: \"b\" c\n", "yaml: did not find expected key"),
        ("a:\n  b: 'it's'\nc: d\n", "yaml: line 1: did not find expected key"),
        ("a: 1\nb: \"c\",\n", "yaml: line 1: did not find expected key"),
        ("a: 1\nb:\n- x\n- 'c' d\n", "yaml: line 3: did not find expected key"),
        ("- x\n- 'c' d\n", "yaml: line 1: did not find expected '-' indicator"),
        ("a: {b: 1\nc: d\n", "yaml: line 1: did not find expected ',' or '}'"),
        ("a: [1, 2\nb: 3\n", "yaml: line 1: did not find expected ',' or ']'"),
        ("{\n  \"a\": 1\n  \"b\": 2\n}\n", "yaml: line 2: did not find expected ',' or '}'"),
        ("{\n  \"a\": [1, 2},\n  \"b\": 2\n}\n", "yaml: line 1: did not find expected ',' or ']'"),
        ("a: {b: }}\n", "yaml: did not find expected key"),
        ("a: [,]\n", "yaml: did not find expected node content"),
        ("x: 1\ny: ]\n", "yaml: line 1: did not find expected node content"),
        ("a: [1, 2]]\nb: c\n", "yaml: did not find expected key"),
        ("v: [A,", "yaml: line 1: did not find expected node content"),
        ("{\"a\": \"b\", \"c\": \"d\n", "yaml: line 2: found unexpected end of stream"),
        ("a: 1\n b: 2\n", "yaml: line 2: mapping values are not allowed in this context"),
        ("a: {b: c: d}\nx\n", "yaml: did not find expected ',' or '}'"),
        ("k: v\nlist\n- a\n", "yaml: line 3: could not find expected ':'"),
        ("a: {b: [c, d}\n", "yaml: did not find expected ',' or ']'"),
        ("- a\n- {b: c\n- d\n", "yaml: line 3: did not find expected ',' or '}'"),
        ("a: 'b\nc: d\n", "yaml: line 3: found unexpected end of stream"),
        ("a: b\n@c: d\n", "yaml: line 2: found character that cannot start any token"),
        ("a: {\n  b: \"c\",\n  d: \"e\" f\n}\n", "yaml: line 2: did not find expected ',' or '}'"),
        ("a: [\n  b,\n  'c' d\n]\n", "yaml: line 2: did not find expected ',' or ']'"),
        ("null: x\n", "unsupported map key of type: %!s(<nil>), key: <nil>, value: \"x\""),
        ("null:\n", "unsupported map key of type: %!s(<nil>), key: <nil>, value: <nil>"),
        ("null: x\n[a]: b\n", "yaml: invalid map key: []interface {}{\"a\"}"),
        ("[a]: b\nc: *d\n", "yaml: unknown anchor 'd' referenced"),
        ("x:\n  {a: 1", "yaml: line 2: did not find expected ',' or '}'"),
        ("a: \u{1}\n", "yaml: control characters are not allowed"),
        ("a: !!int b\n", "yaml: cannot decode !!str `b` as a !!int"),
    ] {
        let error = parse(from.as_bytes()).expect_err(from);
        assert_eq!(error.to_string(), told, "{from}");
    }
}

#[test]
fn aliases_cannot_blow_a_document_up() {
    let mut bomb = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n");
    for level in 1..12 {
        let previous = format!("*a{}", level - 1);
        bomb += &format!("a{level}: &a{level} [{}]\n", vec![previous; 10].join(", "));
    }
    assert!(parse(bomb.as_bytes()).is_err());
    // Few nodes, each of which is long.
    let long = format!("a: &a {}\nb: [{}]\n", "x".repeat(1 << 20), vec!["*a"; 500].join(", "));
    assert_eq!(parse(long.as_bytes()).expect_err("too much").to_string(), "yaml: document contains excessive aliasing");
    let nested: String = (0..150).map(|level| format!("&a{level} [")).collect();
    let nested = format!("{nested}{}{}", "x".repeat(1 << 20), "]".repeat(150));
    assert_eq!(
        parse(nested.as_bytes()).expect_err("too much").to_string(),
        "yaml: document contains excessive aliasing"
    );
    let some = format!("a: &a {}\nb: [{}]\n", "x".repeat(1 << 10), vec!["*a"; 500].join(", "));
    assert!(parse(some.as_bytes()).is_ok());
    let deep = "[".repeat(100_000);
    assert!(parse(deep.as_bytes()).is_err());
    let deep = "- ".repeat(100_000);
    assert!(parse(deep.as_bytes()).is_err());
}

#[test]
fn trees_are_laid_out_as_upstream_does() {
    let long = "only the following media types are accepted: application/json;stream=watch, \
                application/vnd.kubernetes.protobuf;stream=watch";
    let tree = json!({
        "kind": "Status", "message": long, "metadata": {}, "code": 406,
        "list": [{"a": 1, "b": [1, [2, 3]]}, "x", [], null],
        "data": {"text": "hello\nworld", "end": "a\n", "ends": "a\n\n", "tab": "a\tb\nc", "lead": " a\nb", "trail": "a \nb"},
        "quoted": {"yes": "yes", "1": "1", "time": "2026-01-02T03:04:05Z", "colon": "a: b", "hash": "a #b", "star": "*",
                   "empty": "", "apostrophe": "'tis", "dash": "- a", "sixty": "1:30", "emoji": "\u{1f600}", "nbsp": "a\u{a0}b"},
        "float": 1.5, "large": 1234567.5, "small": 0.00001, "a10": 1, "a9": 2, "truth": true
    });
    let expected = r#"a9: 2
a10: 1
code: 406
data:
  end: |
    a
  ends: |+
    a

  lead: |2-
     a
    b
  tab: "a\tb\nc"
  text: |-
    hello
    world
  trail: "a \nb"
float: 1.5
kind: Status
large: 1.2345675e+06
list:
- a: 1
  b:
  - 1
  - - 2
    - 3
- x
- []
- null
message: 'only the following media types are accepted: application/json;stream=watch,
  application/vnd.kubernetes.protobuf;stream=watch'
metadata: {}
quoted:
  "1": "1"
  apostrophe: '''tis'
  colon: 'a: b'
  dash: '- a'
  emoji: "\U0001F600"
  empty: ""
  hash: 'a #b'
  nbsp: a b
  sixty: "1:30"
  star: '*'
  time: "2026-01-02T03:04:05Z"
  "yes": "yes"
small: 1e-05
truth: true
"#;
    let written = text(&tree);
    assert_eq!(written.replace('\u{a0}', " "), expected, "{written}");
    assert_eq!(value(&written), tree);
}

#[test]
fn long_keys_and_scalars_survive() {
    let tree = json!({"k".repeat(200): "v", "a\nb": {"x": "word ".repeat(60)}, "p": "a ".repeat(90) + "b"});
    assert_eq!(value(&text(&tree)), tree, "{}", text(&tree));
    assert_eq!(text(&json!("plain")), "plain\n");
    assert_eq!(text(&json!([])), "[]\n");
}

/// The words for what is wrong are looked for by a scanner of their own, which nothing may hold up.
#[test]
fn the_fault_of_a_hostile_text_is_found_in_no_time() {
    let long = 1 << 20;
    for text in
        ["[".repeat(long), "{a: ".repeat(long), "[a, ".repeat(100_000), "a: b: ".repeat(long), "- ".repeat(long)]
    {
        let begun = std::time::Instant::now();
        super::fault::find(&text);
        super::fault::find(&format!("{text}}}"));
        assert!(begun.elapsed() < std::time::Duration::from_secs(30), "{}", &text[..9]);
    }
    let most = "exceeded max depth of 10000";
    assert_eq!(super::fault::find(&"[".repeat(long)), Some((most, None)));
    assert_eq!(super::fault::find(&"- ".repeat(long)), Some((most, None)));
    let closed = format!("{}{}", "[".repeat(9_999), "a,".repeat(long));
    assert_eq!(super::fault::find(&closed), None, "it is not looked into so deep");
    let wide = format!("a: [{}1", "1, ".repeat(long));
    assert_eq!(super::fault::find(&wide), Some(("did not find expected ',' or ']'", Some(1))));
}
