//! `resource.Quantity`: a decimal number with a suffix that remembers in which family of suffixes it was written.
//!
//! Follows `k8s.io/apimachinery/pkg/api/resource`: nano precision rounded away from zero, at most 2^63-1, canonical text.
//!
//! A value is kept as an integer of nanos in 128 bits, so sums and comparisons are exact. Beside it stands how Go would
//! keep it, which expressions can tell: as a 64 bit integer of some power of ten, or as a decimal number of any size.

use std::cmp::Ordering;
use std::fmt;
use std::str::FromStr;

/// Which suffixes the canonical text uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Format {
    /// Ki, Mi, Gi, ...
    BinarySi,
    /// n, u, m, none, k, M, G, ...
    #[default]
    DecimalSi,
    /// e3, e6, ...
    DecimalExponent,
}

#[derive(Debug, Clone, Copy)]
pub struct Quantity {
    nanos: i128,
    format: Format,
    /// The power of ten that Go counts the value in; None for one that it keeps as a decimal number.
    power: Option<i8>,
}

impl Default for Quantity {
    fn default() -> Self {
        Quantity::ZERO
    }
}

/// The text is no quantity; worded as upstream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ParseError {
    #[error("quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'")]
    Format,
    #[error("unable to parse quantity's suffix")]
    Suffix,
    #[error("unable to parse numeric part of quantity")]
    Numeric,
}

const NANO: i128 = 1_000_000_000;
const MAX: i128 = i64::MAX as i128 * NANO;

impl Quantity {
    pub const ZERO: Quantity = Quantity { nanos: 0, format: Format::DecimalSi, power: Some(0) };

    pub fn from_integer(value: i64, format: Format) -> Self {
        Quantity { nanos: i128::from(value) * NANO, format, power: Some(0) }
    }

    pub fn from_milli(value: i64, format: Format) -> Self {
        Quantity { nanos: i128::from(value) * 1_000_000, format, power: Some(-3) }
    }

    pub fn format(&self) -> Format {
        self.format
    }

    /// The value as an integer, rounded up; what Go's `Value()` gives.
    pub fn value(&self) -> i64 {
        self.scaled(NANO)
    }

    /// The value in thousandths, rounded up; what Go's `MilliValue()` gives.
    pub fn milli_value(&self) -> i64 {
        self.scaled(1_000_000)
    }

    /// The value in thousandths, rounded up, however many they are: `MilliValue()` ends at 9 Pi.
    pub fn thousandths(&self) -> i128 {
        self.divided(1_000_000)
    }

    fn divided(&self, unit: i128) -> i128 {
        self.nanos.div_euclid(unit) + i128::from(self.nanos.rem_euclid(unit) != 0)
    }

    fn scaled(&self, unit: i128) -> i64 {
        let quotient = self.divided(unit);
        i64::try_from(quotient).unwrap_or(if quotient < 0 { i64::MIN } else { i64::MAX })
    }

    pub fn is_zero(&self) -> bool {
        self.nanos == 0
    }

    /// -1, 0 or 1.
    pub fn sign(&self) -> i32 {
        match self.nanos.cmp(&0) {
            Ordering::Less => -1,
            Ordering::Equal => 0,
            Ordering::Greater => 1,
        }
    }

    /// The value is a whole number.
    pub fn is_integer(&self) -> bool {
        self.nanos % NANO == 0
    }

    /// What Go's `AsInt64()` gives: None for what it counts in a part of one, even where that is a whole number, and for
    /// what it keeps as a decimal number.
    pub fn as_integer(&self) -> Option<i64> {
        // Beyond 64 bits values are cut here, and Go does not.
        self.power
            .filter(|power| *power >= 0)
            .and_then(|_| i64::try_from(self.nanos / NANO).ok())
            .filter(|n| *n != i64::MAX)
    }

    /// Adds; the sum keeps this quantity's format unless it is zero.
    pub fn add(&mut self, other: Quantity) {
        if self.is_zero() {
            self.format = other.format;
        }
        let sum = self.nanos.saturating_add(other.nanos);
        self.power = match (self.power, other.power) {
            (Some(_), power @ Some(_)) if self.is_zero() && !other.is_zero() => power,
            (power @ Some(_), Some(_)) if other.is_zero() => power,
            (Some(one), Some(two)) => {
                let power = one.min(two);
                // Both are counted in the smaller unit.
                let fits = |nanos: i128| fits(nanos, power);
                (fits(self.nanos) && fits(other.nanos) && fits(sum)).then_some(power)
            }
            _ => None,
        };
        self.nanos = sum;
    }

    pub fn subtract(&mut self, other: Quantity) {
        self.add(Quantity { nanos: other.nanos.saturating_neg(), ..other });
    }
}

impl PartialEq for Quantity {
    fn eq(&self, other: &Self) -> bool {
        self.nanos == other.nanos
    }
}

impl Eq for Quantity {}

impl PartialOrd for Quantity {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Quantity {
    fn cmp(&self, other: &Self) -> Ordering {
        self.nanos.cmp(&other.nanos)
    }
}

/// A suffix: base 2 or 10, its exponent, and the family.
fn suffix(text: &str) -> Option<(u32, i32, Format)> {
    let decimal = |exponent| Some((10, exponent, Format::DecimalSi));
    let binary = |exponent| Some((2, exponent, Format::BinarySi));
    match text {
        "n" => decimal(-9),
        "u" => decimal(-6),
        "m" => decimal(-3),
        "" => decimal(0),
        "k" => decimal(3),
        "M" => decimal(6),
        "G" => decimal(9),
        "T" => decimal(12),
        "P" => decimal(15),
        "E" => decimal(18),
        "Ki" => binary(10),
        "Mi" => binary(20),
        "Gi" => binary(30),
        "Ti" => binary(40),
        "Pi" => binary(50),
        "Ei" => binary(60),
        _ => {
            let digits = text.strip_prefix(['e', 'E'])?;
            let exponent: i64 = digits.parse().ok()?;
            let exponent = i32::try_from(exponent.clamp(-1000, 1000)).ok()?;
            Some((10, exponent, Format::DecimalExponent))
        }
    }
}

impl FromStr for Quantity {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let bytes = text.as_bytes();
        let mut at = usize::from(matches!(bytes.first(), Some(b'+' | b'-')));
        let negative = bytes.first() == Some(&b'-');
        let number_start = at;
        while bytes.get(at).is_some_and(u8::is_ascii_digit) {
            at += 1;
        }
        let whole = &text[number_start..at];
        let mut fraction = "";
        if bytes.get(at) == Some(&b'.') {
            let start = at + 1;
            at = start;
            while bytes.get(at).is_some_and(u8::is_ascii_digit) {
                at += 1;
            }
            fraction = &text[start..at];
        }
        if text.is_empty() || at == number_start {
            return Err(ParseError::Format);
        }
        let tail = &text[at..];
        let letters = tail.bytes().take_while(|b| b"eEinumkKMGTP".contains(b)).count();
        let after = &tail[letters..];
        let digits = after.strip_prefix(['+', '-']).unwrap_or(after);
        if !digits.bytes().all(|b| b.is_ascii_digit()) {
            return Err(ParseError::Format);
        }
        let (base, exponent, format) = suffix(tail).ok_or(ParseError::Suffix)?;
        if whole.is_empty() && fraction.is_empty() {
            return Err(ParseError::Numeric);
        }
        let nanos = magnitude(whole, fraction, base, exponent);
        let power = power(whole, fraction, base, exponent);
        Ok(Quantity { nanos: if negative { -nanos } else { nanos }, format, power })
    }
}

/// Whether a value takes 64 bits when it is counted in a power of ten.
fn fits(nanos: i128, power: i8) -> bool {
    let unit = u32::try_from(power + 9).ok().and_then(|power| 10_i128.checked_pow(power));
    unit.is_some_and(|unit| i64::try_from(nanos / unit).is_ok())
}

/// The largest power that a value of 64 bits can be counted in, unless it is zero.
const LARGEST: i32 = 18;

/// The power of ten that Go counts in what it reads. It estimates how many digits there will be: a text that is longer
/// than it has to be may become a decimal number.
fn power(whole: &str, fraction: &str, base: u32, exponent: i32) -> Option<i8> {
    let digits = |text: &str| i32::try_from(text.len()).unwrap_or(i32::MAX / 4);
    let whole = digits(whole.trim_start_matches('0')).max(1);
    if base == 2 {
        let left = 15 - whole - exponent * 3 / 10 - 1;
        return (fraction.is_empty() && left >= 0).then_some(0);
    }
    let power = exponent.saturating_sub(digits(fraction));
    let counted = whole.saturating_add(digits(fraction)) <= SHORT_DIGITS && power >= -9;
    if counted { i8::try_from(power.min(LARGEST)).ok() } else { None }
}

/// So many digits fit into 64 bits: nearly all amounts are short and whole.
const SHORT: usize = 18;
const SHORT_DIGITS: i32 = 18;

/// `whole.fraction * base^exponent` in nanos, rounded up, at most [`MAX`].
fn magnitude(whole: &str, fraction: &str, base: u32, exponent: i32) -> i128 {
    if fraction.is_empty() && whole.len() <= SHORT && (-9..=60).contains(&exponent) {
        let value = whole.bytes().fold(0, |value: u64, digit| value * 10 + u64::from(digit - b'0'));
        let unit = match (base, u32::try_from(exponent + 9)) {
            (2, _) => Some((1 << exponent) * NANO),
            (_, Ok(power)) => 10_i128.checked_pow(power),
            _ => None,
        };
        // Zero is zero in any unit.
        let product = unit.map_or(if value == 0 { Some(0) } else { None }, |unit| unit.checked_mul(value.into()));
        return product.map_or(MAX, |nanos| nanos.min(MAX));
    }
    let digits = whole.bytes().chain(fraction.bytes()).skip_while(|b| *b == b'0');
    // Decimal exponent of the last digit, in nanos.
    let mut scale = 9 - i64::try_from(fraction.len()).unwrap_or(i64::MAX / 2);
    scale += if base == 10 { i64::from(exponent) } else { 0 };
    let mut value: i128 = 0;
    let mut lost = false;
    for digit in digits {
        match value
            .checked_mul(10)
            .and_then(|v| v.checked_add(i128::from(digit - b'0')))
            .filter(|v| *v <= i128::MAX >> 62)
        {
            Some(next) => value = next,
            None => {
                lost |= digit != b'0';
                scale += 1;
            }
        }
    }
    if value == 0 {
        return 0;
    }
    if base == 2 {
        match value.checked_mul(1i128 << exponent) {
            Some(next) => value = next,
            None => return MAX,
        }
    }
    while scale > 0 {
        value = match value.checked_mul(10) {
            Some(next) => next,
            None => return MAX,
        };
        scale -= 1;
    }
    while scale < 0 && value > 0 {
        lost |= value % 10 != 0;
        value /= 10;
        scale += 1;
    }
    (value + i128::from(lost)).min(MAX)
}

impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.nanos == 0 {
            return f.write_str("0");
        }
        let small = self.nanos.abs() < 1024 * NANO;
        if self.format == Format::BinarySi && !small && self.is_integer() {
            let (mut value, mut power) = (self.nanos / NANO, 0);
            while value % 1024 == 0 && power < 6 {
                value /= 1024;
                power += 1;
            }
            return write!(f, "{value}{}", ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"][power]);
        }
        let (mut value, mut exponent) = (self.nanos, -9);
        while value % 1000 == 0 && exponent < 18 {
            value /= 1000;
            exponent += 3;
        }
        if self.format == Format::DecimalExponent {
            return if exponent == 0 { write!(f, "{value}") } else { write!(f, "{value}e{exponent}") };
        }
        let suffix = ["n", "u", "m", "", "k", "M", "G", "T", "P", "E"];
        write!(f, "{value}{}", suffix[usize::try_from((exponent + 9) / 3).unwrap_or(3)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn canonical(text: &str) -> String {
        text.parse::<Quantity>().map_or_else(|e| format!("{e:?}"), |q| q.to_string())
    }

    #[test]
    fn text_becomes_canonical() {
        for (from, to) in [
            ("0", "0"),
            ("0.5", "500m"),
            ("1000m", "1"),
            ("1500m", "1500m"),
            ("1024Ki", "1Mi"),
            ("1.5Gi", "1536Mi"),
            ("100Ki", "100Ki"),
            ("0.5Ki", "512"),
            ("1023", "1023"),
            ("1000", "1k"),
            ("1e3", "1e3"),
            ("1E3", "1e3"),
            ("12e-1", "1200e-3"),
            ("0.1n", "1n"),
            ("-1500m", "-1500m"),
            ("+5", "5"),
            (".5", "500m"),
            ("5.", "5"),
            ("9223372036854775808", "9223372036854775807"),
            ("10E", "9223372036854775807"),
            ("1.1Ki", "1126400m"),
            ("007", "7"),
            ("0E", "0"),
            ("0e60", "0"),
            ("1e60", "9223372036854775807"),
            ("8Ei", "9223372036854775807"),
            ("7Ei", "7Ei"),
            ("123456789012345678n", "123456789012345678n"),
            ("9e18", "9e18"),
        ] {
            assert_eq!(canonical(from), to, "{from}");
        }
    }

    #[test]
    fn other_text_is_refused() {
        for text in ["", "a", "1 ", "--1", "1.2.3", "1Zi", "1ki", "1e", "1mm", "0x1"] {
            assert!(text.parse::<Quantity>().is_err(), "{text}");
        }
    }

    #[test]
    fn values_round_up() {
        let quantity: Quantity = "1500m".parse().expect("valid");
        assert_eq!((quantity.value(), quantity.milli_value()), (2, 1500));
        let quantity: Quantity = "-1500m".parse().expect("valid");
        assert_eq!(quantity.value(), -1);
    }
    #[test]
    fn what_is_counted_in_parts_is_no_integer() {
        let quantity = |text: &str| text.parse::<Quantity>().expect(text);
        for (text, integer) in [
            ("1000", Some(1000)),
            ("0", Some(0)),
            ("-7", Some(-7)),
            ("007", Some(7)),
            ("1000m", None),
            ("1.0", None),
            ("1.5", None),
            ("1.5k", Some(1500)),
            ("5e3", Some(5000)),
            ("50000000G", Some(50_000_000_000_000_000)),
            ("1Ti", Some(1 << 40)),
            // So many digits, or so large a unit, is taken for more than 64 bits.
            ("1Pi", None),
            ("1.5Ki", None),
            ("999999999999999999", Some(999_999_999_999_999_999)),
            ("1000000000000000000", None),
            ("1E", Some(1_000_000_000_000_000_000)),
            ("10E", None),
            ("1e30", None),
        ] {
            assert_eq!(quantity(text).as_integer(), integer, "{text}");
        }
        let sum = |a: &str, b: &str| {
            let mut sum = quantity(a);
            sum.add(quantity(b));
            sum.as_integer()
        };
        assert_eq!((sum("1", "2k"), sum("500m", "500m"), sum("1", "0m")), (Some(2001), None, Some(1)));
        assert_eq!((sum("0m", "3"), sum("1", "1Pi"), sum("9E", "1E")), (Some(3), None, None));
        let mut less = quantity("3");
        less.subtract(quantity("1"));
        assert_eq!(less.as_integer(), Some(2));
    }
}
