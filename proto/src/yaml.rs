//! YAML as Kubernetes reads and writes it (`sigs.k8s.io/yaml`): YAML 1.1 words for booleans, the first document only,
//! duplicate keys refused, keys sorted on the way out.

use saphyr_parser::{Event, Parser, ScalarStyle};
use serde_json::{Map, Number, Value};

use crate::json::{MAX_DEPTH, write_string};

/// The text is not YAML that has a JSON form.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum YamlError {
    #[error("error converting YAML to JSON: yaml: {0}")]
    Syntax(String),
    #[error("error converting YAML to JSON: yaml: unmarshal errors:\n  line {line}: key {key:?} already set in map")]
    Duplicate { line: usize, key: String },
    #[error("error converting YAML to JSON: yaml: nested too deep")]
    TooDeep,
}

/// Reads the first document; empty text is null.
///
/// # Errors
/// See [`YamlError`].
pub fn parse(text: &[u8]) -> Result<Value, YamlError> {
    let text = std::str::from_utf8(text).map_err(|_| YamlError::Syntax("control characters are not allowed".into()))?;
    let mut reader = Reader { parser: Parser::new_from_str(text), anchors: Vec::new(), budget: MAX_NODES };
    loop {
        match reader.next()?.0 {
            Event::StreamEnd => return Ok(Value::Null),
            Event::DocumentStart(_) => {
                let (event, line) = reader.next()?;
                return reader.value(event, line, 0);
            }
            _ => {}
        }
    }
}

/// Nodes that aliases may multiply a document to: enough for any manifest, too few for a bomb.
const MAX_NODES: usize = 1_000_000;

struct Reader<'a> {
    parser: Parser<'a, saphyr_parser::StrInput<'a>>,
    anchors: Vec<(usize, Value)>,
    budget: usize,
}

impl<'a> Reader<'a> {
    fn next(&mut self) -> Result<(Event<'a>, usize), YamlError> {
        match self.parser.next_event() {
            Some(Ok((event, span))) => Ok((event, span.start.line())),
            Some(Err(error)) => Err(YamlError::Syntax(format!("line {}: {}", error.marker().line(), error.info()))),
            None => Ok((Event::StreamEnd, 0)),
        }
    }

    fn value(&mut self, event: Event<'a>, line: usize, depth: usize) -> Result<Value, YamlError> {
        if depth > MAX_DEPTH {
            return Err(YamlError::TooDeep);
        }
        self.spend(1)?;
        let (anchor, value) = match event {
            Event::Scalar(text, style, anchor, tag) => {
                let quoted = style != ScalarStyle::Plain || tag.is_some_and(|t| t.suffix == "str");
                (anchor, if quoted { Value::String(text.into_owned()) } else { plain(&text) })
            }
            Event::SequenceStart(anchor, _) => {
                let mut list = Vec::new();
                loop {
                    match self.next()? {
                        (Event::SequenceEnd, _) => break,
                        (event, line) => list.push(self.value(event, line, depth + 1)?),
                    }
                }
                (anchor, Value::Array(list))
            }
            Event::MappingStart(anchor, _) => (anchor, self.mapping(depth)?),
            Event::Alias(anchor) => {
                let found = self.anchors.iter().rev().find(|(id, _)| *id == anchor).map(|(_, v)| v.clone());
                let value = found.ok_or_else(|| YamlError::Syntax(format!("line {line}: unknown anchor")))?;
                self.spend(size(&value))?;
                return Ok(value);
            }
            _ => return Err(YamlError::Syntax(format!("line {line}: did not find expected node content"))),
        };
        if anchor > 0 {
            self.anchors.push((anchor, value.clone()));
        }
        Ok(value)
    }

    fn spend(&mut self, nodes: usize) -> Result<(), YamlError> {
        self.budget = self
            .budget
            .checked_sub(nodes)
            .ok_or_else(|| YamlError::Syntax("document contains excessive aliasing".into()))?;
        Ok(())
    }

    fn mapping(&mut self, depth: usize) -> Result<Value, YamlError> {
        let mut map = Map::new();
        let mut merged = Vec::new();
        loop {
            let (event, line) = self.next()?;
            if event == Event::MappingEnd {
                break;
            }
            let key = match self.value(event, line, depth + 1)? {
                Value::String(text) => text,
                Value::Number(number) => number.to_string(),
                Value::Bool(truth) => truth.to_string(),
                other => return Err(YamlError::Syntax(format!("line {line}: invalid map key: {other}"))),
            };
            let (event, line) = self.next()?;
            let value = self.value(event, line, depth + 1)?;
            if key == "<<" {
                merged.push(value);
            } else if map.insert(key.clone(), value).is_some() {
                return Err(YamlError::Duplicate { line, key });
            }
        }
        for source in merged {
            let sources = if let Value::Array(list) = source { list } else { vec![source] };
            for (key, value) in
                sources.into_iter().filter_map(|s| if let Value::Object(m) = s { Some(m) } else { None }).flatten()
            {
                map.entry(key).or_insert(value);
            }
        }
        Ok(Value::Object(map))
    }
}

fn size(value: &Value) -> usize {
    match value {
        Value::Array(list) => 1 + list.iter().map(size).sum::<usize>(),
        Value::Object(map) => 1 + map.values().map(size).sum::<usize>(),
        _ => 1,
    }
}

/// An unquoted scalar by YAML 1.1 rules.
fn plain(text: &str) -> Value {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => return Value::Null,
        "y" | "Y" | "yes" | "Yes" | "YES" | "on" | "On" | "ON" | "true" | "True" | "TRUE" => {
            // goyaml keeps the single letters as text where the target is not a boolean.
            return if text.len() == 1 { Value::String(text.into()) } else { Value::Bool(true) };
        }
        "n" | "N" | "no" | "No" | "NO" | "off" | "Off" | "OFF" | "false" | "False" | "FALSE" => {
            return if text.len() == 1 { Value::String(text.into()) } else { Value::Bool(false) };
        }
        _ => {}
    }
    number(text).unwrap_or_else(|| Value::String(text.into()))
}

fn number(text: &str) -> Option<Value> {
    if !text.starts_with(|c: char| c.is_ascii_digit() || matches!(c, '+' | '-' | '.')) {
        return None;
    }
    let compact = text.replace('_', "");
    let (sign, digits) = match compact.strip_prefix('-') {
        Some(rest) => (-1, rest),
        None => (1, compact.strip_prefix('+').unwrap_or(&compact)),
    };
    let radix = |prefix: &str, radix| {
        digits.strip_prefix(prefix).filter(|d| !d.is_empty()).and_then(|d| i64::from_str_radix(d, radix).ok())
    };
    let octal =
        (digits.len() > 1 && digits.starts_with('0')).then(|| i64::from_str_radix(&digits[1..], 8).ok()).flatten();
    if let Some(value) = radix("0x", 16).or_else(|| radix("0b", 2)).or_else(|| radix("0o", 8)).or(octal) {
        return Some((sign * value).into());
    }
    if digits.bytes().all(|b| b.is_ascii_digit()) && !digits.is_empty() {
        return match compact.trim_start_matches('+').parse::<i64>() {
            Ok(value) => Some(value.into()),
            Err(_) => digits.parse::<u64>().ok().filter(|_| sign > 0).map(Into::into),
        };
    }
    let is_float = digits.bytes().all(|b| b.is_ascii_digit() || matches!(b, b'.' | b'e' | b'E' | b'+' | b'-'))
        && digits.bytes().any(|b| b.is_ascii_digit());
    let float = is_float.then(|| compact.parse::<f64>().ok()).flatten()?;
    // A whole number in float form becomes an integer, as JSON numbers do on their way through Go.
    Number::from_f64(float).map(Value::Number)
}

/// Appends a tree as one document.
pub fn write(value: &Value, out: &mut Vec<u8>) {
    match value {
        Value::Object(map) if !map.is_empty() => write_map(map, 0, out),
        Value::Array(list) if !list.is_empty() => write_list(list, 0, out),
        other => {
            write_scalar(other, 0, out);
            out.push(b'\n');
        }
    }
}

fn pad(indent: usize, out: &mut Vec<u8>) {
    out.resize(out.len() + indent, b' ');
}

fn write_map(map: &Map<String, Value>, indent: usize, out: &mut Vec<u8>) {
    for (index, (key, value)) in map.iter().enumerate() {
        if index > 0 {
            pad(indent, out);
        }
        write_text(key, indent, out);
        out.push(b':');
        match value {
            Value::Object(inner) if !inner.is_empty() => {
                out.push(b'\n');
                pad(indent + 2, out);
                write_map(inner, indent + 2, out);
            }
            // Lists sit at the indent of their key.
            Value::Array(inner) if !inner.is_empty() => {
                out.push(b'\n');
                pad(indent, out);
                write_list(inner, indent, out);
            }
            other => {
                out.push(b' ');
                write_scalar(other, indent + 2, out);
                out.push(b'\n');
            }
        }
    }
}

fn write_list(list: &[Value], indent: usize, out: &mut Vec<u8>) {
    for (index, value) in list.iter().enumerate() {
        if index > 0 {
            pad(indent, out);
        }
        out.extend_from_slice(b"- ");
        match value {
            Value::Object(inner) if !inner.is_empty() => write_map(inner, indent + 2, out),
            Value::Array(inner) if !inner.is_empty() => write_list(inner, indent + 2, out),
            other => {
                write_scalar(other, indent + 2, out);
                out.push(b'\n');
            }
        }
    }
}

fn write_scalar(value: &Value, indent: usize, out: &mut Vec<u8>) {
    match value {
        Value::String(text) => write_text(text, indent, out),
        other => crate::json::write_sorted(other, out),
    }
}

fn write_text(text: &str, indent: usize, out: &mut Vec<u8>) {
    let lines = text.contains('\n');
    if lines && block_fits(text) {
        // Keep, strip or clip the line ends at the end.
        let trailing = text.len() - text.trim_end_matches('\n').len();
        out.extend_from_slice(match trailing {
            0 => b"|-",
            1 => b"|",
            _ => b"|+",
        });
        for line in text.strip_suffix('\n').unwrap_or(text).split('\n') {
            out.push(b'\n');
            if !line.is_empty() {
                pad(indent, out);
                out.extend_from_slice(line.as_bytes());
            }
        }
        return;
    }
    if is_plain(text) {
        out.extend_from_slice(text.as_bytes());
    } else if text.chars().any(|c| c.is_control() || c == '\u{feff}') {
        write_string(text, out);
    } else if !matches!(plain(text), Value::String(_)) || text.len() == 1 && "yYnN".contains(text) || text.is_empty() {
        // Text that would read as something else.
        out.push(b'"');
        out.extend_from_slice(text.as_bytes());
        out.push(b'"');
    } else {
        out.push(b'\'');
        out.extend_from_slice(text.replace('\'', "''").as_bytes());
        out.push(b'\'');
    }
}

/// A literal block holds any printable text that does not begin with space.
fn block_fits(text: &str) -> bool {
    !text.starts_with([' ', '\n', '\t']) && !text.chars().any(|c| c.is_control() && c != '\n' && c != '\t')
}

/// Text that reads back as itself without quotes.
fn is_plain(text: &str) -> bool {
    let Some(first) = text.chars().next() else { return false };
    if !matches!(plain(text), Value::String(_)) || text.len() == 1 && "yYnN".contains(text) {
        return false;
    }
    let leading = "-?:".contains(first) && text[1..].starts_with(|c: char| !c.is_whitespace());
    if !leading && "-?:,[]{}#&*!|>'\"%@`=<".contains(first) {
        return false;
    }
    if text.starts_with("---") || text.starts_with("...") || looks_like_time(text) {
        return false;
    }
    !text.starts_with(' ')
        && !text.ends_with([' ', ':'])
        && !text.contains(": ")
        && !text.contains(" #")
        && !text.chars().any(char::is_control)
}

/// YAML 1.1 has a type for times; unquoted they would not stay text.
fn looks_like_time(text: &str) -> bool {
    let bytes = text.as_bytes();
    bytes.len() >= 8 && bytes[..4].iter().all(u8::is_ascii_digit) && bytes[4] == b'-' && {
        let rest = &bytes[5..];
        rest.iter()
            .all(|b| b.is_ascii_digit() || matches!(b, b'-' | b':' | b'T' | b't' | b'Z' | b'z' | b'.' | b'+' | b' '))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn manifests_become_trees() {
        let text = b"a: 1\nb: [x, \"2\", yes]\nc:\n  d: |\n    line\n    more\n  e: ~\n# comment\nf: 0644\n---\nsecond: true\n";
        let value = json!({"a": 1, "b": ["x", "2", true], "c": {"d": "line\nmore\n", "e": null}, "f": 420});
        assert_eq!(parse(text), Ok(value));
        assert_eq!(parse(b""), Ok(Value::Null));
        assert_eq!(parse(b"{\"a\": {\"b\": 1}}"), Ok(json!({"a": {"b": 1}})));
    }

    #[test]
    fn bad_text_is_refused() {
        assert!(matches!(parse(b"a: 1\na: 2\n"), Err(YamlError::Duplicate { .. })));
        assert!(parse(b"a: [1\n").is_err());
        assert!(parse(b"\xff").is_err());
        let bomb = "a: &a [x,x,x,x,x,x,x,x,x]\n".to_owned()
            + &(1..9)
                .map(|i| {
                    format!(
                        "{0}: &{0} [*{1},*{1},*{1},*{1},*{1},*{1},*{1},*{1},*{1}]\n",
                        char::from(b'a' + i),
                        char::from(b'a' + i - 1)
                    )
                })
                .collect::<String>();
        assert!(parse(bomb.as_bytes()).is_err());
    }

    #[test]
    fn what_is_written_reads_back_the_same() {
        let value = json!({"text": "a: b", "time": "2026-01-01T00:00:00Z", "number": "1", "yes": "yes", "list": [{"a": 1, "b": []}, ["x"], {}],
            "lines": "one\ntwo\n", "bare": "one\n\ntwo", "quote": "it's", "empty": "", "dash": "-", "n": 1.5, "null": null, "colon": "a:b"});
        let mut out = Vec::new();
        write(&value, &mut out);
        assert_eq!(parse(&out), Ok(value), "{}", String::from_utf8_lossy(&out));
    }
}
