//! Writes a tree as libyaml's emitter lays it out: block style, two spaces, sequences not indented below their key,
//! plain scalars where they read back as text, lines folded after column 80.

use std::cmp::Ordering;

use serde_json::{Map, Name, Number, Value};

use super::resolve::{Scalar, resolve};

/// Past this column a scalar breaks at the next space.
const WIDTH: usize = 80;
/// Longer keys take the `? key` form.
const MAX_SIMPLE_KEY: usize = 128;
/// What would be indented by more characters is written as JSON, which is YAML too: every line repeats its indentation, and a
/// small document that is nested thousands of times would become gigabytes of blanks.
const DEEPEST_INDENT: isize = 360;

/// Appends a document that ends with a line end.
pub fn write(value: &Value, out: &mut Vec<u8>) {
    let mut emitter = Emitter { out, column: 0, indent: -1, whitespace: true, indention: true };
    emitter.node(value, false);
    emitter.write_indent();
}

struct Emitter<'a> {
    out: &'a mut Vec<u8>,
    /// In characters.
    column: usize,
    /// -1 at the root.
    indent: isize,
    /// The last character was white space.
    whitespace: bool,
    /// Only indentation stands on this line so far.
    indention: bool,
}

#[derive(Clone, Copy, PartialEq)]
enum Style {
    Plain,
    SingleQuoted,
    DoubleQuoted,
    Literal,
}

impl Emitter<'_> {
    fn put(&mut self, c: char) {
        self.out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
        self.column += 1;
    }

    fn line_break(&mut self) {
        self.out.push(b'\n');
        self.column = 0;
    }

    fn write_indent(&mut self) {
        let indent = self.indent.max(0).unsigned_abs();
        if !self.indention || self.column > indent || self.column == indent && !self.whitespace {
            self.line_break();
        }
        while self.column < indent {
            self.put(' ');
        }
        self.whitespace = true;
        self.indention = true;
    }

    fn indicator(&mut self, text: &str, need_space: bool, is_space: bool, is_indention: bool) {
        if need_space && !self.whitespace {
            self.put(' ');
        }
        self.out.extend_from_slice(text.as_bytes());
        self.column += text.len();
        self.whitespace = is_space;
        self.indention = self.indention && is_indention;
    }

    fn node(&mut self, value: &Value, in_mapping: bool) {
        match value {
            Value::Object(map) if map.is_empty() => self.empty("{", "}"),
            Value::Array(list) if list.is_empty() => self.empty("[", "]"),
            Value::Object(_) | Value::Array(_) if self.indent >= DEEPEST_INDENT => self.flow(value),
            Value::Object(map) => self.mapping(map),
            Value::Array(list) => self.sequence(list, in_mapping),
            Value::String(text) => self.text(text, false),
            Value::Null => self.plain("null", true),
            Value::Bool(truth) => self.plain(if *truth { "true" } else { "false" }, true),
            Value::Number(number) => self.plain(&number_text(number), true),
        }
    }

    fn empty(&mut self, open: &str, close: &str) {
        self.indicator(open, true, true, false);
        self.indicator(close, false, false, false);
    }

    fn flow(&mut self, value: &Value) {
        let mut json = Vec::new();
        crate::json::write_sorted(value, &mut json);
        if !self.whitespace {
            self.put(' ');
        }
        self.out.extend_from_slice(&json);
        self.column += json.len();
        (self.whitespace, self.indention) = (false, false);
    }

    fn mapping(&mut self, map: &Map<String, Value>) {
        let outer = self.indent;
        self.indent = if outer < 0 { 0 } else { outer + 2 };
        let mut members: Vec<(&Name, &Value)> = map.iter().collect();
        members.sort_by(|a, b| natural(a.0, b.0));
        for (key, value) in members {
            self.write_indent();
            if key.len() <= MAX_SIMPLE_KEY && !key.chars().any(is_break) {
                self.text(key, true);
                self.indicator(":", false, false, false);
            } else {
                self.indicator("?", true, false, true);
                self.text(key, false);
                self.write_indent();
                self.indicator(":", true, false, true);
            }
            self.node(value, true);
        }
        self.indent = outer;
    }

    fn sequence(&mut self, list: &[Value], in_mapping: bool) {
        let outer = self.indent;
        if outer < 0 {
            self.indent = 0;
        } else if !in_mapping || self.indention {
            self.indent += 2;
        }
        for value in list {
            self.write_indent();
            self.indicator("-", true, false, true);
            self.node(value, false);
        }
        self.indent = outer;
    }

    fn text(&mut self, text: &str, is_key: bool) {
        let outer = self.indent;
        self.indent = if outer < 0 { 2 } else { outer + 2 };
        match style(text, is_key) {
            Style::Plain => self.plain(text, !is_key),
            Style::SingleQuoted => self.single_quoted(text, !is_key),
            Style::DoubleQuoted => self.double_quoted(text, !is_key),
            Style::Literal => self.literal(text),
        }
        self.indent = outer;
    }

    fn plain(&mut self, text: &str, may_break: bool) {
        if !self.whitespace {
            self.put(' ');
        }
        let mut after_space = false;
        let mut chars = text.chars().peekable();
        while let Some(c) = chars.next() {
            if c != ' ' {
                self.put(c);
                self.indention = false;
                after_space = false;
                continue;
            }
            if may_break && !after_space && self.column > WIDTH && chars.peek() != Some(&' ') {
                self.write_indent();
            } else {
                self.put(c);
            }
            after_space = true;
        }
        self.whitespace = false;
        self.indention = false;
    }

    fn single_quoted(&mut self, text: &str, may_break: bool) {
        self.indicator("'", true, false, false);
        let (mut after_space, mut after_break, mut first) = (false, false, true);
        let mut chars = text.chars().peekable();
        while let Some(c) = chars.next() {
            if c == ' ' {
                let fits = self.column <= WIDTH || first || matches!(chars.peek(), None | Some(' '));
                if may_break && !after_space && !fits {
                    self.write_indent();
                } else {
                    self.put(c);
                }
                after_space = true;
            } else if is_break(c) {
                if !after_break && c == '\n' {
                    self.line_break();
                }
                self.write_break(c);
                self.indention = true;
                after_break = true;
            } else {
                if after_break {
                    self.write_indent();
                }
                if c == '\'' {
                    self.put(c);
                }
                self.put(c);
                self.indention = false;
                (after_space, after_break) = (false, false);
            }
            first = false;
        }
        self.indicator("'", false, false, false);
    }

    fn write_break(&mut self, c: char) {
        if c == '\n' {
            self.line_break();
        } else {
            self.put(c);
            self.column = 0;
        }
    }

    fn double_quoted(&mut self, text: &str, may_break: bool) {
        self.indicator("\"", true, false, false);
        let (mut after_space, mut first) = (false, true);
        let mut chars = text.chars().peekable();
        while let Some(c) = chars.next() {
            if c == ' ' {
                if may_break && !after_space && self.column > WIDTH && !first && chars.peek().is_some() {
                    self.write_indent();
                    if chars.peek() == Some(&' ') {
                        self.put('\\');
                    }
                } else {
                    self.put(c);
                }
                after_space = true;
            } else {
                match is_printable(c) && !is_break(c) && c != '"' && c != '\\' {
                    true => self.put(c),
                    false => self.escaped(c),
                }
                after_space = false;
            }
            first = false;
        }
        self.indicator("\"", false, false, false);
    }

    fn escaped(&mut self, c: char) {
        let short = match c {
            '\0' => '0',
            '\u{7}' => 'a',
            '\u{8}' => 'b',
            '\t' => 't',
            '\n' => 'n',
            '\u{b}' => 'v',
            '\u{c}' => 'f',
            '\r' => 'r',
            '\u{1b}' => 'e',
            '"' => '"',
            '\\' => '\\',
            '\u{85}' => 'N',
            '\u{a0}' => '_',
            '\u{2028}' => 'L',
            '\u{2029}' => 'P',
            _ => {
                let code = u32::from(c);
                let text = match code {
                    0..=0xff => format!("\\x{code:02X}"),
                    0x100..=0xffff => format!("\\u{code:04X}"),
                    _ => format!("\\U{code:08X}"),
                };
                text.chars().for_each(|c| self.put(c));
                return;
            }
        };
        self.put('\\');
        self.put(short);
    }

    fn literal(&mut self, text: &str) {
        self.indicator("|", true, false, false);
        if text.starts_with(|c| c == ' ' || is_break(c)) {
            self.indicator("2", false, false, false);
        }
        let mut ends = text.chars().rev();
        match (ends.next().is_some_and(is_break), ends.next()) {
            (false, _) => self.indicator("-", false, false, false),
            (true, None) => self.indicator("+", false, false, false),
            (true, Some(before)) if is_break(before) => self.indicator("+", false, false, false),
            _ => {}
        }
        self.line_break();
        self.indention = true;
        self.whitespace = true;
        let mut after_break = true;
        for c in text.chars() {
            if is_break(c) {
                self.write_break(c);
                self.indention = true;
                after_break = true;
            } else {
                if after_break {
                    self.write_indent();
                }
                self.put(c);
                self.indention = false;
                after_break = false;
            }
        }
    }
}

fn is_break(c: char) -> bool {
    matches!(c, '\n' | '\r' | '\u{85}' | '\u{2028}' | '\u{2029}')
}

/// What libyaml's Go port takes for printable: nothing beyond the basic plane, no tab. Unlike it, no separators of lines
/// and paragraphs either: newer parsers, ours among them, do not take them for line ends, and would read the indentation
/// after them as text.
fn is_printable(c: char) -> bool {
    matches!(c, '\n' | ' '..='~' | '\u{a0}'..='\u{d7ff}' | '\u{e000}'..='\u{fffd}')
        && !matches!(c, '\u{feff}' | '\u{2028}' | '\u{2029}')
}

fn style(text: &str, is_key: bool) -> Style {
    let wanted = if text.contains('\n') {
        Style::Literal
    } else if resolve(text) == Scalar::Text && !is_base_60(text) {
        Style::Plain
    } else {
        Style::DoubleQuoted
    };
    let facts = Facts::of(text);
    match wanted {
        Style::Literal if is_key || !facts.literal => Style::DoubleQuoted,
        Style::Plain if !facts.plain && facts.single_quoted => Style::SingleQuoted,
        Style::Plain if !facts.plain => Style::DoubleQuoted,
        style => style,
    }
}

/// Which styles a text allows.
struct Facts {
    plain: bool,
    single_quoted: bool,
    literal: bool,
}

impl Facts {
    fn of(text: &str) -> Facts {
        let mut facts = Facts { plain: true, single_quoted: true, literal: true };
        if text.starts_with("---") || text.starts_with("...") {
            facts.plain = false;
        }
        let (mut after_space, mut after_break, mut after_blank) = (false, false, true);
        let mut chars = text.chars().peekable();
        let mut first = true;
        while let Some(c) = chars.next() {
            let last = chars.peek().is_none();
            let before_blank = matches!(chars.peek(), None | Some(' ' | '\t'));
            facts.plain &= match c {
                '#' if first => false,
                ',' | '[' | ']' | '{' | '}' | '&' | '*' | '!' | '|' | '>' | '\'' | '"' | '%' | '@' | '`' => !first,
                '?' | '-' => !(first && before_blank),
                ':' => !before_blank,
                '#' => !after_blank,
                _ => true,
            };
            if !is_printable(c) {
                facts = Facts { plain: false, single_quoted: false, literal: false };
            }
            if c == ' ' {
                facts.plain &= !first && !last && !after_break;
                facts.single_quoted &= !after_break;
                facts.literal &= !last;
                (after_space, after_break) = (true, false);
            } else if is_break(c) {
                facts.plain = false;
                facts.single_quoted &= !after_space;
                facts.literal &= !after_space;
                (after_space, after_break) = (false, true);
            } else {
                (after_space, after_break) = (false, false);
            }
            after_blank = c == ' ' || c == '\t' || is_break(c);
            first = false;
        }
        facts
    }
}

/// `[-+]?[0-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?`: times of day to YAML 1.1 parsers.
fn is_base_60(text: &str) -> bool {
    let body = text.strip_prefix(['-', '+']).unwrap_or(text);
    let mut parts = body.split(':');
    let head = parts.next().unwrap_or_default();
    let tail: Vec<&str> = parts.collect();
    let Some((last, middle)) = tail.split_last() else { return false };
    let sexagesimal = |part: &str| matches!(part.as_bytes(), [b'0'..=b'9'] | [b'0'..=b'5', b'0'..=b'9']);
    let (last, fraction) = last.split_once('.').unwrap_or((last, ""));
    head.starts_with(|c: char| c.is_ascii_digit())
        && head.bytes().all(|b| b.is_ascii_digit() || b == b'_')
        && middle.iter().all(|p| sexagesimal(p))
        && sexagesimal(last)
        && fraction.bytes().all(|b| b.is_ascii_digit() || b == b'_')
}

/// Integers as they are, floats as Go's `%g`.
fn number_text(number: &Number) -> String {
    if number.is_i64() || number.is_u64() {
        return number.to_string();
    }
    let float = number.as_f64().unwrap_or(0.0);
    let size = float.abs();
    // A whole number reads back as an integer, since it comes through JSON, which writes it without a point.
    if size < 9.2e18 && float.fract() == 0.0 {
        return format!("{float:.0}");
    }
    super::read::go_float(float)
}

/// Digits compare as numbers and come before letters, as go-yaml sorts keys.
fn natural(a: &str, b: &str) -> Ordering {
    if a.is_ascii() && b.is_ascii() && !a.bytes().chain(b.bytes()).any(|c| !c.is_ascii_alphabetic()) {
        return a.cmp(b);
    }
    let (left, right): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    for (at, (&l, &r)) in left.iter().zip(&right).enumerate() {
        if l == r {
            continue;
        }
        match (l.is_alphabetic(), r.is_alphabetic()) {
            (true, true) => return l.cmp(&r),
            (true, false) => return Ordering::Greater,
            (false, true) => return Ordering::Less,
            (false, false) => {}
        }
        // A zero inside a longer number counts as a digit of it.
        let zero = l == '0' || r == '0';
        let inside = left[..at].iter().rev().take_while(|c| c.is_ascii_digit()).any(|c| *c != '0');
        let start = i64::from(zero && inside);
        let run = |chars: &[char]| {
            let digits = chars[at..].iter().take_while(|c| c.is_ascii_digit());
            digits.fold((start, 0), |(sum, count), c| {
                (sum.wrapping_mul(10).wrapping_add(i64::from(u32::from(*c) - u32::from('0'))), count + 1)
            })
        };
        let ((left_value, left_count), (right_value, right_count)) = (run(&left), run(&right));
        return left_value.cmp(&right_value).then(left_count.cmp(&right_count)).then(l.cmp(&r));
    }
    left.len().cmp(&right.len())
}
