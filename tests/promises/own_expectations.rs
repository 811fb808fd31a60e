//! The API answers as Kubernetes does: exchanges of our own, in `tests/expectations`, which need nothing beside the checkout.
//!
//! A file has sections (`== what they show`), each in a namespace of its own, `{ns}`, with the service account that pods
//! need. Exchanges stand between empty lines: method and path, headers, a body; then `-> code media-type`, headers, a body.
//! An answer in JSON is compared as documents, of which there are several where it is a watch, any other as text. In what
//! is expected
//! - `<uid>`, `<time>`, `<rv>`, `<token>` and `<any>` are a value of that form, within texts as well; with a number, as in
//!   `<rv1>`, it is the same each time, and `{rv1}` puts it into a later request;
//! - a member `"..."` allows members that are not named, and as the last entry of a list more entries; `managedFields` is
//!   looked at where it is named;
//! - a header is looked at where it is named, with `-` for one that must not be there, and a body where there is one.

use std::collections::BTreeMap;

use http::Method;
use serde_json::{Value, json};
use tests::{Api, ApiServer, Connection};

/// One request and what comes back.
#[derive(Debug, Default)]
struct Exchange {
    line: usize,
    request: Part,
    answer: Part,
}

/// The first line, headers and body.
#[derive(Debug, Default)]
struct Part {
    first: String,
    headers: Vec<(String, String)>,
    body: String,
}

impl Part {
    fn add(&mut self, line: &str) {
        let header = line
            .split_once(": ")
            .filter(|(name, _)| self.body.is_empty() && name.bytes().all(|b| b.is_ascii_lowercase() || b == b'-'));
        match header {
            Some((name, value)) => self.headers.push((name.to_owned(), value.to_owned())),
            None => self.body.extend([line, "\n"]),
        }
    }
}

/// Sections of a file: what each shows, and its exchanges.
fn sections(text: &str) -> Vec<(String, Vec<Exchange>)> {
    let mut out: Vec<(String, Vec<Exchange>)> = Vec::new();
    let (mut open, mut answered) = (false, false);
    for (number, line) in text.lines().enumerate() {
        if let Some(title) = line.strip_prefix("== ") {
            out.push((title.to_owned(), Vec::new()));
            open = false;
        } else if line.is_empty() {
            open = false;
        } else if !line.starts_with('#') {
            let exchanges = &mut out.last_mut().expect("a section comes first").1;
            if !open {
                let request = Part { first: line.to_owned(), ..Part::default() };
                exchanges.push(Exchange { line: number + 1, request, ..Exchange::default() });
                (open, answered) = (true, false);
                continue;
            }
            let exchange = exchanges.last_mut().expect("it is open");
            match line.strip_prefix("-> ") {
                Some(first) => {
                    exchange.answer.first = first.to_owned();
                    answered = true;
                }
                None if answered => exchange.answer.add(line),
                None => exchange.request.add(line),
            }
        }
    }
    out
}

/// What placeholders of a section have stood for so far.
type Bound = BTreeMap<String, String>;

/// Puts values in place of `{name}`.
fn filled(text: &str, bound: &Bound) -> String {
    bound.iter().fold(text.to_owned(), |text, (name, value)| text.replace(&format!("{{{name}}}"), value))
}

/// The first placeholder of a text: where it begins and ends, and its name.
fn placeholder(text: &str) -> Option<(usize, usize, &str)> {
    let mut from = 0;
    while let Some(begin) = text[from..].find('<').map(|at| from + at) {
        let end = begin + text[begin..].find('>')?;
        let name = &text[begin + 1..end];
        if ["uid", "time", "rv", "token", "any"].contains(&name.trim_end_matches(|c: char| c.is_ascii_digit())) {
            return Some((begin, end + 1, name));
        }
        from = begin + 1;
    }
    None
}

fn has_form(form: &str, value: &str) -> bool {
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    match form {
        "uid" => value.len() == 36 && value.bytes().all(|b| b.is_ascii_hexdigit() || b == b'-'),
        "time" => proto::time::parse_rfc3339(value).is_ok(),
        "rv" => digits(value),
        "token" => !value.is_empty(),
        _ => true,
    }
}

/// Whether a text is as expected.
fn fits(expected: &str, found: &str, bound: &mut Bound) -> bool {
    let Some((begin, end, name)) = placeholder(expected) else { return expected == found };
    let Some(rest) = found.strip_prefix(&expected[..begin]) else { return false };
    let after = &expected[end..];
    let literal = &after[..placeholder(after).map_or(after.len(), |(begin, ..)| begin)];
    let length = if literal.is_empty() { Some(rest.len()) } else { rest.find(literal) };
    let Some(value) = length.map(|length| &rest[..length]) else { return false };
    let form = name.trim_end_matches(|c: char| c.is_ascii_digit());
    if !has_form(form, value) {
        return false;
    }
    if form != name && bound.entry(name.to_owned()).or_insert_with(|| value.to_owned()) != value {
        return false;
    }
    fits(after, &rest[value.len()..], bound)
}

/// Where a document differs from what is expected.
fn differences(expected: &Value, found: &Value, path: &str, bound: &mut Bound, out: &mut Vec<String>) {
    match (expected, found) {
        (Value::Object(wanted), Value::Object(there)) => {
            for (key, value) in wanted.iter().filter(|(key, _)| key.as_str() != "...") {
                match there.get(key) {
                    Some(other) => differences(value, other, &format!("{path}.{key}"), bound, out),
                    None => out.push(format!("{path}.{key}: missing, wanted {value}")),
                }
            }
            let more = wanted.contains_key("...");
            for (key, value) in there.iter().filter(|(key, _)| !more && !wanted.contains_key(key.as_str())) {
                if key.as_str() != "managedFields" {
                    out.push(format!("{path}.{key}: unexpected {value}"));
                }
            }
        }
        (Value::Array(wanted), Value::Array(there))
            if wanted.last().is_some_and(|last| last == "...") && there.len() + 1 >= wanted.len() =>
        {
            let (wanted, there) = (wanted[..wanted.len() - 1].to_vec(), there[..wanted.len() - 1].to_vec());
            differences(&Value::Array(wanted), &Value::Array(there), path, bound, out);
        }
        (Value::Array(wanted), Value::Array(there)) if wanted.len() == there.len() => {
            for (at, (value, other)) in wanted.iter().zip(there).enumerate() {
                differences(value, other, &format!("{path}[{at}]"), bound, out);
            }
        }
        (Value::String(wanted), Value::String(there)) if fits(wanted, there, bound) => {}
        (Value::String(wanted), _) if wanted == "<any>" => {}
        _ if expected == found => {}
        _ => out.push(format!("{path}: {found}, wanted {expected}")),
    }
}

fn documents(text: &str) -> Result<Vec<Value>, serde_json::Error> {
    serde_json::Deserializer::from_str(text).into_iter().collect()
}

/// Asks, and says how the answer differs from what is expected.
async fn check(server: &ApiServer, exchange: &Exchange, bound: &mut Bound) -> Vec<String> {
    let first = filled(&exchange.request.first, bound);
    let (method, path) = first.split_once(' ').expect("method and path");
    let headers: Vec<(String, String)> =
        exchange.request.headers.iter().map(|(name, value)| (name.clone(), filled(value, bound))).collect();
    let mut sent: Vec<(&str, &str)> = headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    for (name, value) in
        [("accept", "application/json"), ("content-type", "application/json"), ("user-agent", "expectations/1")]
    {
        if !sent.iter().any(|(known, _)| *known == name) {
            sent.push((name, value));
        }
    }
    let method = Method::from_bytes(method.as_bytes()).expect("a method");
    let body = filled(&exchange.request.body, bound);
    let mut connection = Connection::http1(server).await.expect("a connection");
    let answer = connection.with(method, &path.replace(' ', "%20"), &sent, body).await.expect("an answer");

    let mut out = Vec::new();
    let (code, media) = exchange.answer.first.split_once(' ').unwrap_or((&exchange.answer.first, ""));
    let named = |name: &str| answer.headers().get(name).and_then(|value| value.to_str().ok()).unwrap_or("-").to_owned();
    if answer.status().as_str() != code {
        out.push(format!("status {}, wanted {code}", answer.status().as_str()));
    }
    let found = named("content-type");
    if !media.is_empty() && found != media {
        out.push(format!("content-type {found}, wanted {media}"));
    }
    for (name, value) in &exchange.answer.headers {
        let found = named(name);
        if !fits(&filled(value, bound), &found, bound) {
            out.push(format!("{name}: {found}, wanted {value}"));
        }
    }
    let found = String::from_utf8_lossy(answer.body()).into_owned();
    let expected = filled(&exchange.answer.body, bound);
    let is_text = !media.is_empty() && !media.starts_with("application/json");
    match (documents(&expected), documents(&found)) {
        _ if expected.trim_end().is_empty() => {}
        (Ok(wanted), Ok(there)) if !is_text => {
            differences(&Value::Array(wanted), &Value::Array(there), "", bound, &mut out);
        }
        _ if fits(expected.trim_end(), found.trim_end(), bound) => {}
        _ => out.push(format!("another text, wanted {expected}")),
    }
    if !out.is_empty() {
        out.push(format!("the answer was {found}"));
    }
    out
}

/// Replays a file of expectations.
async fn replay(name: &str) {
    let file = tests::repository().join("tests/expectations").join(format!("{name}.txt"));
    let text = std::fs::read_to_string(file).expect("a file of expectations");
    let server = ApiServer::start(name, &["--controllers=-*", "--scheduler=false"]).expect("the server starts");
    let api = Api::new(&server);
    let (mut failed, mut count) = (Vec::new(), 0);
    for (number, (title, exchanges)) in sections(&text).into_iter().enumerate() {
        let namespace = format!("{name}-{number}");
        let made = api.post("/api/v1/namespaces", &json!({"metadata": {"name": namespace}})).await.expect("an answer");
        assert_eq!(made.0, 201, "{}", made.1);
        let path = format!("/api/v1/namespaces/{namespace}/serviceaccounts");
        let made = api.post(&path, &json!({"metadata": {"name": "default"}})).await.expect("an answer");
        assert_eq!(made.0, 201, "{}", made.1);
        let mut bound = Bound::from([("ns".to_owned(), namespace)]);
        for exchange in exchanges {
            count += 1;
            let differing = check(&server, &exchange, &mut bound).await;
            if !differing.is_empty() {
                let what = format!("{name}.txt:{}: {title}: {}", exchange.line, exchange.request.first);
                failed.push(format!("{what}\n    {}", differing.join("\n    ")));
            }
        }
    }
    assert!(count > 20, "{count} exchanges were found");
    assert!(failed.is_empty(), "{} of {count} exchanges differ:\n{}", failed.len(), failed.join("\n"));
}

#[tokio::test(flavor = "multi_thread")]
async fn reads_are_answered_as_expected() {
    replay("reads").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn writes_are_answered_as_expected() {
    replay("writes").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn custom_resources_are_answered_as_expected() {
    replay("custom").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn access_and_admission_are_answered_as_expected() {
    replay("access").await;
}

#[test]
fn placeholders_stand_for_their_form_and_for_one_value() {
    let mut bound = Bound::new();
    assert!(fits("at <rv1>, now <rv>.", "at 12, now 13.", &mut bound));
    assert!(fits("<rv1>", "12", &mut bound) && !fits("<rv1>", "13", &mut bound) && !fits("<rv>", "x", &mut bound));
    assert!(fits("<none>", "<none>", &mut bound) && !fits("<time>", "today", &mut bound));
    let found = sections("== a\nGET /a\nb: c\n{\n-> 200 text/plain\nx\n\n# not this\nGET /b\n-> 404\n");
    assert_eq!((found.len(), found[0].1.len()), (1, 2));
    let (first, second) = (&found[0].1[0], &found[0].1[1]);
    assert_eq!((&*first.request.body, &*first.answer.body, &*second.answer.first), ("{\n", "x\n", "404"));
    let mut out = Vec::new();
    differences(&json!({"a": "<any>", "...": 0}), &json!({"a": 1, "b": 2}), "", &mut bound, &mut out);
    assert!(out.is_empty(), "{out:?}");
    differences(&json!({"a": 1}), &json!({"a": 2, "b": 2, "managedFields": []}), "", &mut bound, &mut out);
    assert_eq!(out, [".a: 2, wanted 1", ".b: unexpected 2"]);
}
