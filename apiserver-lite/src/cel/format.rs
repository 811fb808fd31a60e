//! `format`: texts with places for values, as the first version of cel-go's function fills them.
//!
//! A format that is written in an expression, with its values in a list, is checked with the expression: every clause has
//! its value, and one of a type that it takes. What stands in a list or map is written as expressions have it; by itself
//! a text is a text.

use super::ast::{Expr, Kind};
use super::calls::{shown, size_of};
use super::check::Types;
use super::equal;
use super::eval::{Budget, Failure};
use super::issue::Issue;
use super::types::Type;
use super::value::Value;
use crate::status::quote;

/// Digits behind the point where a clause does not say how many.
const USUAL: usize = 6;
/// More digits than these are noise.
const MOST: usize = 100;

/// How a value is written.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Clause {
    Text,
    Decimal,
    Fixed(usize),
    Scientific,
    Binary,
    Hexadecimal { upper: bool },
    Octal,
}

#[derive(Debug, PartialEq)]
enum Piece<'f> {
    Said(&'f str),
    /// A value, or why its clause is none.
    Value(Result<Clause, String>),
    /// The format ends where a clause begins.
    End,
}

/// The pieces of a format, one after the other.
struct Pieces<'f>(&'f str);

impl<'f> Iterator for Pieces<'f> {
    type Item = Piece<'f>;

    fn next(&mut self) -> Option<Piece<'f>> {
        let Some(clause) = self.0.strip_prefix('%') else {
            let (said, rest) = self.0.split_at(self.0.find('%').unwrap_or(self.0.len()));
            self.0 = rest;
            return (!said.is_empty()).then_some(Piece::Said(said));
        };
        if let Some(rest) = clause.strip_prefix('%') {
            self.0 = rest;
            return Some(Piece::Said("%"));
        }
        if clause.is_empty() {
            self.0 = "";
            return Some(Piece::End);
        }
        Some(Piece::Value(match read(clause) {
            Ok((clause, rest)) => {
                self.0 = rest;
                Ok(clause)
            }
            Err(why) => {
                self.0 = "";
                Err(format!("could not parse formatting clause: {why}"))
            }
        }))
    }
}

/// A clause, and what follows it.
fn read(text: &str) -> Result<(Clause, &str), String> {
    let mut rest = text;
    let mut precision = USUAL;
    if let Some(digits) = text.strip_prefix('.') {
        let end = digits.find(|c: char| !c.is_ascii_digit());
        let end = end.ok_or("error while parsing precision: could not find end of precision specifier")?;
        precision = digits[..end].parse().map_err(|_| {
            let parsed = quote(&digits[..end]);
            let why = if end == 0 { "invalid syntax" } else { "value out of range" };
            format!(
                "error while parsing precision: error while converting precision to integer: strconv.Atoi: parsing \
                 {parsed}: {why}"
            )
        })?;
        rest = &digits[end..];
    }
    let clause = match rest.as_bytes().first() {
        Some(b's') => Clause::Text,
        Some(b'd') => Clause::Decimal,
        Some(b'f') => Clause::Fixed(precision.min(MOST)),
        Some(b'e') => Clause::Scientific,
        Some(b'b') => Clause::Binary,
        Some(b'x') => Clause::Hexadecimal { upper: false },
        Some(b'X') => Clause::Hexadecimal { upper: true },
        Some(b'o') => Clause::Octal,
        other => {
            return Err(format!("unrecognized formatting clause \"{}\"", char::from(other.copied().unwrap_or(b'%'))));
        }
    };
    Ok((clause, &rest[1..]))
}

impl Clause {
    /// What a value of a type that it does not take is told.
    fn refuses(self, name: &str) -> String {
        let takes = match self {
            Clause::Text => {
                "string clause can only be used on strings, bools, bytes, ints, doubles, maps, lists, types, durations, \
                 and timestamps"
            }
            Clause::Decimal => "decimal clause can only be used on integers",
            Clause::Fixed(_) => "fixed-point clause can only be used on doubles",
            Clause::Scientific => "scientific clause can only be used on doubles",
            Clause::Binary => "only integers and bools can be formatted as binary",
            Clause::Hexadecimal { .. } => "only integers, byte buffers, and strings can be formatted as hex",
            Clause::Octal => "octal clause can only be used on integers",
        };
        format!("error during formatting: {takes}, was given {name}")
    }

    fn takes(self, ty: &Type) -> bool {
        use Type::{Bool, Bytes, Double, Duration, Dyn, Int, Null, Text, Timestamp, Uint};
        match (self, ty) {
            (_, Dyn) => true,
            (Clause::Text, Type::List(_) | Type::Map(..) | Type::Kind | Null) => true,
            (Clause::Text, Int | Uint | Double | Bool | Text | Bytes | Timestamp | Duration) => true,
            (Clause::Decimal | Clause::Octal, Int | Uint) => true,
            // Not a number and infinity are written as texts.
            (Clause::Fixed(_) | Clause::Scientific, Double | Text) => true,
            (Clause::Binary, Int | Uint | Bool) => true,
            (Clause::Hexadecimal { .. }, Int | Uint | Text | Bytes) => true,
            _ => false,
        }
    }
}

/// What is wrong with a format that is written at some place, with these values.
pub fn complaint(at: usize, text: &str, args: &[(Expr, bool)], types: &Types) -> Option<Issue> {
    let mut left = args.iter();
    let mut count = 0;
    for piece in Pieces(text) {
        let clause = match piece {
            Piece::Said(_) => continue,
            Piece::End => return Some(Issue { at, text: "unexpected end of string".into() }),
            Piece::Value(clause) => clause,
        };
        let Some((arg, _)) = left.next() else {
            return Some(Issue { at, text: format!("index {count} out of range") });
        };
        match clause {
            Ok(clause) => {
                if let Some(wrong) = unfit(clause, arg, types) {
                    return Some(Issue { at: wrong.at, text: clause.refuses(&types.of(wrong).name()) });
                }
            }
            Err(text) => return Some(Issue { at, text }),
        }
        count += 1;
    }
    let given = args.len();
    let text = format!("too many arguments supplied to string.format (expected {count}, got {given})");
    (given > count).then_some(Issue { at, text })
}

/// The part of a value that a clause does not take.
fn unfit<'e>(clause: Clause, arg: &'e Expr, types: &Types) -> Option<&'e Expr> {
    if !clause.takes(types.of(arg)) {
        return Some(arg);
    }
    if clause != Clause::Text {
        return None;
    }
    match &arg.kind {
        Kind::List(items) => items.iter().find_map(|(item, _)| unfit(clause, item, types)),
        Kind::Map(entries) => {
            entries.iter().flat_map(|(key, value, _)| [key, value]).find_map(|part| unfit(clause, part, types))
        }
        _ => None,
    }
}

/// Fills a format with the values of a list.
///
/// # Errors
/// A format that is none, a value that is missing or of the wrong type, and when the budget is used up.
pub fn fill<'a>(text: &str, list: &Value<'a>, budget: &mut Budget) -> Result<Value<'a>, Failure> {
    let mut out = String::new();
    let mut printer = Printer { out: &mut out, unpaid: 0, budget };
    // Of the values, which may be many, only those are looked at that a clause asks for.
    let mut count = 0;
    for piece in Pieces(text) {
        let clause = match piece {
            // What the format says itself is paid for with it.
            Piece::Said(said) => {
                printer.out.push_str(said);
                continue;
            }
            Piece::End => Err("unexpected end of string".into()),
            Piece::Value(clause) => clause,
        };
        let Some(arg) = list.item(count) else { return Err(Failure::new(format!("index {count} out of range"))) };
        printer.budget.decode(list, [&arg])?;
        printer.fill(clause.map_err(Failure::new)?, &arg)?;
        count += 1;
    }
    Ok(Value::text(out))
}

/// Bytes of a text that are made for the price of a step.
const BYTES: usize = 10;

/// Writes values. What is made is paid for as it grows: values share their parts, and written out one may be larger than
/// anything.
struct Printer<'o, 'b> {
    out: &'o mut String,
    /// Bytes that are made and not paid for, fewer than a step is worth.
    unpaid: usize,
    budget: &'b mut Budget,
}

impl Printer<'_, '_> {
    fn pay(&mut self, bytes: usize) -> Result<(), Failure> {
        self.unpaid = self.unpaid.saturating_add(bytes);
        self.budget.spend(self.unpaid / BYTES)?;
        self.unpaid %= BYTES;
        Ok(())
    }

    fn push(&mut self, text: &str) -> Result<(), Failure> {
        self.pay(text.len())?;
        self.out.push_str(text);
        Ok(())
    }

    fn fill(&mut self, clause: Clause, arg: &Value<'_>) -> Result<(), Failure> {
        if clause == Clause::Text {
            return self.whole(arg);
        }
        // Two digits for each byte of a text are too many to be made before they are paid for.
        let long = matches!(arg, Value::Text(_) | Value::Bytes(_));
        let digits = if long { size_of(arg).saturating_mul(2) } else { 0 };
        self.pay(digits)?;
        let made = digits_of(clause, arg).ok_or_else(|| Failure::new(clause.refuses(arg.kind())))?;
        self.pay(made.len().saturating_sub(digits))?;
        self.out.push_str(&made);
        Ok(())
    }

    /// A value by itself.
    fn whole(&mut self, value: &Value<'_>) -> Result<(), Failure> {
        match value {
            Value::Text(text) => self.push(text),
            Value::Bytes(bytes) => self.push(text_of(bytes)?),
            Value::Double(_) | Value::Timestamp(_) | Value::Duration(_) => self.push(&shown(value)),
            Value::Null | Value::Bool(_) | Value::Int(_) | Value::Uint(_) | Value::Kind(_) => self.part(value),
            value if value.is_list() => self.part(value),
            Value::Map(_) | Value::Members(..) => self.part(value),
            other => Err(Failure::new(Clause::Text.refuses(other.kind()))),
        }
    }

    /// A value in a list or map.
    fn part(&mut self, value: &Value<'_>) -> Result<(), Failure> {
        match value {
            Value::Text(text) => self.quoted("", text),
            Value::Bytes(bytes) => self.quoted("b", text_of(bytes)?),
            Value::Null => self.push("null"),
            Value::Kind(name) => self.push(name),
            Value::Double(number) if number.is_finite() => self.push(&format!("{number:.USUAL$}")),
            Value::Double(_) => self.quoted("", &shown(value)),
            Value::Bool(_) | Value::Int(_) | Value::Uint(_) => self.push(&shown(value)),
            Value::Timestamp(_) => self.push(&format!("timestamp({})", quote(&shown(value)))),
            Value::Duration(_) => self.push(&format!("duration({})", quote(&shown(value)))),
            value if value.is_list() => {
                self.push("[")?;
                for (at, item) in value.walk().into_iter().flatten().enumerate() {
                    self.push(if at > 0 { ", " } else { "" })?;
                    self.part(&item)?;
                }
                self.push("]")
            }
            Value::Map(_) | Value::Members(..) => self.entries(value),
            other => Err(Failure::new(format!("error during formatting: no formatting function for {}", other.kind()))),
        }
    }

    /// A map, by the keys as they are written.
    fn entries(&mut self, map: &Value<'_>) -> Result<(), Failure> {
        let mut entries = Vec::with_capacity(map.count());
        let start = self.out.len();
        for key in map.walk().into_iter().flatten() {
            self.budget.spend(map.effort() / equal::PARTS)?;
            if !matches!(key, Value::Text(_) | Value::Bool(_) | Value::Int(_) | Value::Uint(_)) {
                let why = format!("no formatting function for map key of type {}", key.kind());
                return Err(Failure::new(format!("error during formatting: {why}")));
            }
            self.part(&key)?;
            let key_ends = self.out.len() - start;
            self.push(":")?;
            map.entry(&key).map_or(Ok(()), |found| self.part(&found))?;
            entries.push((self.out.split_off(start), key_ends));
        }
        entries.sort_by(|(a, a_ends), (b, b_ends)| a[..*a_ends].cmp(&b[..*b_ends]));
        // The entries are paid for, but not what stands around and between them.
        self.pay(entries.len().saturating_mul(2))?;
        self.out.push('{');
        for (at, (entry, _)) in entries.iter().enumerate() {
            self.out.push_str(if at > 0 { ", " } else { "" });
            self.out.push_str(entry);
        }
        self.out.push('}');
        Ok(())
    }

    /// Quotes may make four letters of one.
    fn quoted(&mut self, before: &str, text: &str) -> Result<(), Failure> {
        self.pay(text.len())?;
        let quoted = quote(text);
        self.pay(quoted.len() - text.len())?;
        self.out.push_str(before);
        self.out.push_str(&quoted);
        Ok(())
    }
}

fn text_of(bytes: &[u8]) -> Result<&str, Failure> {
    let why = "error during formatting: could not convert argument \"invalid UTF-8 in bytes, cannot convert to string\" to \
               string";
    std::str::from_utf8(bytes).map_err(|_| Failure::new(why))
}

/// A value in digits; None for one that the clause does not take.
fn digits_of(clause: Clause, arg: &Value<'_>) -> Option<String> {
    let signed = |number: i64, digits: String| if number < 0 { format!("-{digits}") } else { digits };
    Some(match (clause, arg) {
        (Clause::Decimal, Value::Int(_) | Value::Uint(_)) => shown(arg),
        (Clause::Fixed(precision), arg) => fixed(float(arg)?, precision),
        (Clause::Scientific, arg) => scientific(float(arg)?),
        (Clause::Binary, Value::Bool(truth)) => u8::from(*truth).to_string(),
        (Clause::Binary, Value::Int(number)) => signed(*number, format!("{:b}", number.unsigned_abs())),
        (Clause::Binary, Value::Uint(number)) => format!("{number:b}"),
        (Clause::Octal, Value::Int(number)) => signed(*number, format!("{:o}", number.unsigned_abs())),
        (Clause::Octal, Value::Uint(number)) => format!("{number:o}"),
        (Clause::Hexadecimal { upper }, value) => {
            let mut text = match value {
                Value::Int(number) => signed(*number, format!("{:x}", number.unsigned_abs())),
                Value::Uint(number) => format!("{number:x}"),
                Value::Text(text) => hexadecimal(text.as_bytes()),
                Value::Bytes(bytes) => hexadecimal(bytes),
                _ => return None,
            };
            if upper {
                text.make_ascii_uppercase();
            }
            text
        }
        _ => return None,
    })
}

fn hexadecimal(bytes: &[u8]) -> String {
    let digits = bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]);
    digits.map(|digit| char::from_digit(digit.into(), 16).unwrap_or_default()).collect()
}

fn float(value: &Value<'_>) -> Option<f64> {
    match value {
        Value::Double(number) => Some(*number),
        Value::Text(text) => match &**text {
            "NaN" => Some(f64::NAN),
            "Infinity" => Some(f64::INFINITY),
            "-Infinity" => Some(f64::NEG_INFINITY),
            _ => None,
        },
        _ => None,
    }
}

/// A number that has no digits.
fn without_digits(number: f64) -> Option<String> {
    match number {
        number if number.is_nan() => Some("NaN".into()),
        number if number.is_infinite() => Some(if number > 0.0 { "\u{221e}" } else { "-\u{221e}" }.into()),
        _ => None,
    }
}

/// With a comma after thousands, as one writes in the United States.
fn fixed(number: f64, precision: usize) -> String {
    if let Some(text) = without_digits(number) {
        return text;
    }
    let text = format!("{number:.precision$}");
    let (sign, digits) = text.strip_prefix('-').map_or(("", &*text), |digits| ("-", digits));
    let (whole, fraction) = digits.split_at(digits.find('.').unwrap_or(digits.len()));
    let mut grouped = String::with_capacity(text.len() * 4 / 3 + 1);
    grouped.push_str(sign);
    for (at, digit) in whole.chars().enumerate() {
        if at > 0 && (whole.len() - at).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped + fraction
}

/// `1.052033 × 10⁰³`: six digits behind the point, whatever the clause says.
fn scientific(number: f64) -> String {
    if let Some(text) = without_digits(number) {
        return text;
    }
    let text = format!("{number:.USUAL$e}");
    let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let (sign, digits) = exponent.strip_prefix('-').map_or(("", exponent), |digits| ("\u{207b}", digits));
    let raised = |digit: char| match digit {
        '1' => '\u{b9}',
        '2' => '\u{b2}',
        '3' => '\u{b3}',
        other => char::from_u32(0x2070 + other.to_digit(10).unwrap_or_default()).unwrap_or(other),
    };
    let digits: String = format!("{digits:0>2}").chars().map(raised).collect();
    format!("{mantissa}\u{202f}\u{d7}\u{202f}10{sign}{digits}")
}
