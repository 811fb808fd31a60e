//! Reads the first document of a text into a tree.

use std::collections::{HashMap, HashSet};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use saphyr_parser::{Event, Parser, ScalarStyle, ScanError, Span, StrInput, Tag};
use serde_json::{Map, Number, Value};

use super::go;
use super::resolve::{Scalar, resolve};
use crate::json::Parsed;

/// Nesting deeper than this is refused; the parser itself stops at 255 brackets.
const MAX_DEPTH: usize = 200;
/// Text that aliases may repeat. Upstream counts nodes alone, and each of them may be as long as the document.
const MAX_ALIASED_BYTES: usize = 16 << 20;
/// What is kept for aliases, of which one may be in another, each with a copy of all that is in it.
const MAX_KEPT_BYTES: usize = 64 << 20;
/// What a node takes beside its text, about.
const NODE_BYTES: usize = 32;

/// The text is not YAML, or holds what JSON cannot; the sender must change it. Worded as go-yaml.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum YamlError {
    /// The line is left out on the first one, as upstream.
    #[error("yaml: {}{problem}", line.map(|l| format!("line {l}: ")).unwrap_or_default())]
    Syntax { line: Option<usize>, problem: String },
    #[error("yaml: {0}")]
    Meaning(String),
    /// Maps with keys that are no text, numbers JSON has not.
    #[error("{0}")]
    NotJson(String),
}

/// Reads the first document. `duplicates` holds at most one text, go-yaml's own error that lists them all.
///
/// # Errors
/// When the text is not YAML or has no form in JSON.
pub fn read(text: &[u8]) -> Result<Parsed, YamlError> {
    let text = std::str::from_utf8(text).map_err(|_| YamlError::Meaning("invalid leading UTF-8 octet".into()))?;
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    if text.chars().any(is_control) {
        return Err(YamlError::Meaning("control characters are not allowed".into()));
    }
    let mut reader = Reader {
        text,
        unfit: None,
        events: Parser::new_from_str(text),
        refused: None,
        anchors: HashMap::new(),
        duplicates: Vec::new(),
        nodes: 0,
        aliased: 0,
        bytes: 0,
        aliased_bytes: 0,
        kept_bytes: 0,
    };
    let value = reader.document();
    let value = reader.refused.take().map_or(value, |error| Err(syntax(&error, text)));
    // JSON is YAML, and our reader of that goes deeper.
    if value.as_ref().is_err_and(|error| *error == too_deep())
        && let Ok(parsed) = crate::json::parse(text.as_bytes())
    {
        return Ok(parsed);
    }
    let value = match (value, reader.unfit.take()) {
        // The whole text is read before any of it gets a meaning.
        (Err(error @ YamlError::Syntax { .. }), _) => return Err(error),
        (_, Some(unfit)) => return Err(unfit),
        (value, None) => value?,
    };
    let mut duplicates = Vec::new();
    if !reader.duplicates.is_empty() {
        duplicates.push(format!("yaml: unmarshal errors:\n  {}", reader.duplicates.join("\n  ")));
    }
    Ok(Parsed { value, duplicates })
}

fn is_control(c: char) -> bool {
    !matches!(c, '\t' | '\n' | '\r' | ' '..='~' | '\u{85}' | '\u{a0}'..='\u{d7ff}' | '\u{e000}'..='\u{fffd}' | '\u{10000}'..)
}

/// Go's `strconv.FormatFloat(f, 'g', -1, 64)`: an exponent below 1e-4 and from 1e6 on.
pub(super) fn go_float(float: f64) -> String {
    let text = format!("{float:e}");
    let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..6).contains(&exponent) {
        return format!("{float}");
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{mantissa}e{sign}{:02}", exponent.unsigned_abs())
}

struct Reader<'a> {
    text: &'a str,
    /// What is wrong with the first key that cannot be one.
    unfit: Option<YamlError>,
    events: Parser<'a, StrInput<'a>>,
    /// What the parser says is wrong. It is worded at the end, for that takes a stack of its own.
    refused: Option<ScanError>,
    /// Finished nodes by anchor, with the number of nodes and the bytes of text in each.
    anchors: HashMap<usize, (Value, usize, usize)>,
    duplicates: Vec<String>,
    /// Nodes built, and how many of them came from aliases.
    nodes: usize,
    aliased: usize,
    /// Bytes of text in them, and how many of these came from aliases.
    bytes: usize,
    aliased_bytes: usize,
    kept_bytes: usize,
}

/// A node and, for scalars, what kind of key it would make.
struct Node {
    value: Value,
    key: Key,
    line: usize,
}

enum Key {
    /// Text of the key and Go's `%#v` of it.
    Text(String, String),
    Merge,
    /// A list or a map, which no key can be.
    Composite,
    /// One that go-yaml takes and JSON does not: its type and its value.
    Unsupported(String),
}

impl<'a> Reader<'a> {
    fn next(&mut self) -> Result<(Event<'a>, Span), YamlError> {
        match self.events.next_event() {
            Some(Ok(event)) => Ok(event),
            Some(Err(error)) => {
                self.refused = Some(error);
                Err(end_of_stream())
            }
            None => Ok((Event::StreamEnd, Span::default())),
        }
    }

    fn document(&mut self) -> Result<Value, YamlError> {
        loop {
            match self.next()? {
                (Event::StreamStart | Event::DocumentStart(_) | Event::Nothing, _) => {}
                (Event::StreamEnd | Event::DocumentEnd, _) => return Ok(Value::Null),
                event => return self.node(event, 0).map(|n| n.value),
            }
        }
    }

    fn count(&mut self, nodes: usize, aliased: usize) -> Result<(), YamlError> {
        self.nodes += nodes;
        self.aliased += aliased;
        // Upstream's rule: small documents may consist of aliases, large ones at most to a tenth.
        let ratio = match self.nodes {
            0..=400_000 => 0.99,
            4_000_000.. => 0.10,
            nodes => 0.99 - 0.89 * ((nodes - 400_000) as f64 / 3_600_000.0),
        };
        if self.aliased > 100 && self.nodes > 1000 && self.aliased as f64 / self.nodes as f64 > ratio {
            return Err(excessive());
        }
        Ok(())
    }

    /// Text that an alias is about to repeat.
    fn count_bytes(&mut self, aliased: usize) -> Result<(), YamlError> {
        self.bytes += aliased;
        self.aliased_bytes += aliased;
        if self.aliased_bytes > MAX_ALIASED_BYTES {
            return Err(excessive());
        }
        Ok(())
    }

    fn node(&mut self, (event, span): (Event<'a>, Span), depth: usize) -> Result<Node, YamlError> {
        if depth > MAX_DEPTH {
            return Err(too_deep());
        }
        let before = (self.nodes, self.bytes);
        let line = span.start.line();
        let (anchor, node) = match event {
            Event::Alias(id) => {
                let (size, bytes) = self.anchors.get(&id).map(|(_, size, bytes)| (*size, *bytes)).ok_or_else(|| {
                    let name = anchor_name(self.text, span.start.line(), span.start.col());
                    YamlError::Meaning(format!("anchor '{name}' value contains itself"))
                })?;
                self.count(size, size)?;
                self.count_bytes(bytes)?;
                let value = self.anchors.get(&id).map_or(Value::Null, |(value, ..)| value.clone());
                let key = key_of(&value);
                return Ok(Node { value, key, line });
            }
            Event::Scalar(text, style, anchor, tag) => {
                self.count(1, 0)?;
                self.bytes += text.len();
                (anchor, scalar(&text, style, tag.as_deref(), line)?)
            }
            Event::SequenceStart(anchor, _) => {
                self.count(1, 0)?;
                let mut list = Vec::new();
                loop {
                    match self.next()? {
                        (Event::SequenceEnd, _) => break,
                        (Event::StreamEnd, _) => return Err(end_of_stream()),
                        event => list.push(self.node(event, depth + 1)?.value),
                    }
                }
                (anchor, Node { value: Value::Array(list), key: Key::Composite, line })
            }
            Event::MappingStart(anchor, _) => {
                self.count(1, 0)?;
                (anchor, Node { value: self.mapping(depth)?, key: Key::Composite, line })
            }
            _ => return Err(end_of_stream()),
        };
        if anchor != 0 {
            let (nodes, bytes) = (self.nodes - before.0, self.bytes - before.1);
            self.kept_bytes += nodes * NODE_BYTES + bytes;
            if self.kept_bytes > MAX_KEPT_BYTES {
                return Err(excessive());
            }
            self.anchors.insert(anchor, (node.value.clone(), nodes, bytes));
        }
        Ok(node)
    }

    fn mapping(&mut self, depth: usize) -> Result<Value, YamlError> {
        let mut map = Map::new();
        let mut seen: HashSet<String> = HashSet::new();
        loop {
            let key = match self.next()? {
                (Event::MappingEnd, _) => return Ok(Value::Object(map)),
                (Event::StreamEnd, _) => return Err(end_of_stream()),
                event => self.node(event, depth + 1)?,
            };
            let event = self.next()?;
            let value = self.node(event, depth + 1)?;
            match key.key {
                Key::Text(text, shown) => {
                    if !seen.insert(shown.clone()) {
                        self.duplicates.push(format!("line {}: key {shown} already set in map", value.line));
                    }
                    map.insert(text.into(), value.value);
                }
                Key::Merge => self.merge(&mut map, &mut seen, value.value, value.line)?,
                // go-yaml is done with all keys before their form in JSON matters.
                Key::Composite if !matches!(self.unfit, Some(YamlError::Meaning(_))) => {
                    self.unfit = Some(YamlError::Meaning(format!("invalid map key: {}", go::inner(&key.value))));
                }
                Key::Unsupported(key) if self.unfit.is_none() => {
                    let value = go::outer(&value.value);
                    self.unfit =
                        Some(YamlError::NotJson(format!("unsupported map key of type: {key}, value: {value}")));
                }
                Key::Composite | Key::Unsupported(_) => {}
            }
        }
    }

    /// `<<: *anchor` or a list of such; go-yaml lets a later list item yield to an earlier one.
    fn merge(
        &mut self,
        map: &mut Map<String, Value>,
        seen: &mut HashSet<String>,
        value: Value,
        line: usize,
    ) -> Result<(), YamlError> {
        let wrong = || YamlError::Meaning("map merge requires map or sequence of maps as the value".into());
        let sources = match value {
            Value::Array(list) => list.into_iter().rev().collect(),
            other => vec![other],
        };
        for source in sources {
            let Value::Object(source) = source else { return Err(wrong()) };
            for (key, value) in source {
                let shown = format!("{key:?}");
                if !seen.insert(shown.clone()) {
                    self.duplicates.push(format!("line {line}: key {shown} already set in map"));
                }
                map.insert(key, value);
            }
        }
        Ok(())
    }
}

fn excessive() -> YamlError {
    YamlError::Meaning("document contains excessive aliasing".into())
}

fn too_deep() -> YamlError {
    YamlError::Meaning(format!("exceeded max depth of {MAX_DEPTH}"))
}

fn end_of_stream() -> YamlError {
    YamlError::Meaning("found unexpected end of stream".into())
}

/// The key that an alias of a finished value makes.
fn key_of(value: &Value) -> Key {
    match value {
        Value::String(text) => Key::Text(text.clone(), format!("{text:?}")),
        Value::Number(number) => Key::Text(number.to_string(), number.to_string()),
        Value::Bool(truth) => Key::Text(truth.to_string(), truth.to_string()),
        Value::Null => null_key(),
        Value::Array(_) | Value::Object(_) => Key::Composite,
    }
}

fn null_key() -> Key {
    Key::Unsupported("%!s(<nil>), key: <nil>".into())
}

fn scalar(text: &str, style: ScalarStyle, tag: Option<&Tag>, line: usize) -> Result<Node, YamlError> {
    let as_text = |text: &str| Node {
        value: Value::String(text.to_owned()),
        key: Key::Text(text.to_owned(), format!("{text:?}")),
        line,
    };
    let wanted = match tag {
        Some(tag) if tag.is_yaml_core_schema() => Some(&*tag.suffix),
        // A tag of somebody's own, and `!`, leave text as it is.
        Some(_) => return Ok(as_text(text)),
        None if style != ScalarStyle::Plain => return Ok(as_text(text)),
        None => None,
    };
    let meaning = match wanted {
        None => resolve(text),
        Some("bool" | "int" | "float" | "null" | "timestamp") => resolve(text),
        Some("binary") => {
            let packed: String = text.chars().filter(|c| !matches!(c, '\r' | '\n')).collect();
            let bytes = BASE64
                .decode(packed)
                .map_err(|_| YamlError::Meaning("!!binary value contains invalid base64 data".into()))?;
            return Ok(as_text(&String::from_utf8_lossy(&bytes)));
        }
        Some(_) => return Ok(as_text(text)),
    };
    if let Some(wanted) = wanted {
        let found = kind(&meaning);
        if wanted != found && !(wanted == "float" && found == "int") {
            return Err(YamlError::Meaning(format!("cannot decode !!{found} `{text}` as a !!{wanted}")));
        }
    }
    let (value, key) = match meaning {
        Scalar::Null => (Value::Null, null_key()),
        Scalar::Bool(truth) => (Value::Bool(truth), Key::Text(truth.to_string(), truth.to_string())),
        Scalar::Int(number) => (number.into(), Key::Text(number.to_string(), number.to_string())),
        Scalar::Uint(number) => (number.into(), Key::Unsupported(format!("uint64, key: {number:#x}"))),
        Scalar::Float(number) => {
            let shown = match number {
                n if n.is_nan() => ".nan".to_owned(),
                f64::INFINITY => ".inf".to_owned(),
                f64::NEG_INFINITY => "-.inf".to_owned(),
                n => go_float(n),
            };
            (float_value(number, &shown)?, Key::Text(shown.clone(), shown))
        }
        Scalar::Merge => (Value::String(text.to_owned()), Key::Merge),
        Scalar::Timestamp | Scalar::Text => return Ok(as_text(text)),
    };
    Ok(Node { value, key, line })
}

/// A float comes through JSON, which writes a whole number without a point: it is an integer from there on.
#[expect(clippy::cast_possible_truncation, reason = "the range is checked")]
fn float_value(float: f64, shown: &str) -> Result<Value, YamlError> {
    if float.fract() == 0.0 && float.abs() < 9.2e18 {
        return Ok(Value::Number((float as i64).into()));
    }
    Number::from_f64(float).map(Value::Number).ok_or_else(|| {
        let shown = match shown {
            ".nan" => "NaN",
            ".inf" => "+Inf",
            _ => "-Inf",
        };
        YamlError::NotJson(format!("json: unsupported value: {shown}"))
    })
}

fn kind(meaning: &Scalar) -> &'static str {
    match meaning {
        Scalar::Null => "null",
        Scalar::Bool(_) => "bool",
        Scalar::Int(_) | Scalar::Uint(_) => "int",
        Scalar::Float(_) => "float",
        Scalar::Timestamp => "timestamp",
        Scalar::Merge => "merge",
        Scalar::Text => "str",
    }
}

/// The name behind the sign of an anchor or an alias, which stands at a line (from one) and a column (from zero).
fn anchor_name(text: &str, line: usize, column: usize) -> String {
    let line = text.lines().nth(line.saturating_sub(1)).unwrap_or_default();
    let name = line.chars().skip(column + 1);
    name.take_while(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-')).collect()
}

/// Words the parser's complaint as libyaml does: in the words that it has for the text, or for what it would take, in its
/// words for what the parser found. Scanner errors count lines from one, the grammar's from zero.
fn syntax(error: &ScanError, text: &str) -> YamlError {
    let info = error.info();
    // Anchors are looked up as a text is read, by whoever reads values.
    if !info.ends_with("found unknown anchor")
        && let Some((problem, line)) = super::fault::find(text)
    {
        return YamlError::Syntax { line, problem: problem.into() };
    }
    let problem = info.rsplit_once(", ").map_or(info, |(_, problem)| problem);
    let line = error.marker().line();
    let grammar = (info.starts_with("while parsing") && !info.contains("quoted scalar"))
        || problem == "the handle wasn't declared"
        || info.contains("did not find expected <");
    // The parser tells where the scalar starts, libyaml where it found the fault.
    let mut fault = line;
    let problem = match problem {
        "simple key expect ':'" | "simple key expected" => "could not find expected ':'",
        p if p.starts_with("unexpected character") || p.starts_with("tab") => {
            "found character that cannot start any token"
        }
        "expected ',' or ']'" => "did not find expected ',' or ']'",
        "did not find expected next token" | "unexpected eof" => "found unexpected end of stream",
        "found a tab" => {
            fault = line_with_tab(text, line);
            "found a tab character that violates indentation"
        }
        "a block scalar content cannot start with a tab" => {
            fault = line + 1;
            "found a tab character where an indentation space is expected"
        }
        "did not find expected hexadecimal number" => "did not find expected hexdecimal number",
        "the handle wasn't declared" => "found undefined tag handle",
        "found unknown anchor" => {
            let name = anchor_name(text, line, error.marker().col());
            // The anchors are looked up as the text is read.
            return YamlError::Syntax { line: None, problem: format!("unknown anchor '{name}' referenced") };
        }
        "recursion limit exceeded" => return too_deep(),
        p => p,
    };
    let line = if grammar { fault.saturating_sub(1) } else { fault };
    let known = if grammar { line > 0 } else { line > 1 };
    YamlError::Syntax { line: known.then_some(line), problem: problem.into() }
}

/// The first line behind a given one that has a tab among the blanks it starts with.
fn line_with_tab(text: &str, start: usize) -> usize {
    let indented = |line: &str| line.trim_start_matches(' ').starts_with('\t');
    text.lines().skip(start).position(indented).map_or(start, |behind| start + behind + 1)
}
