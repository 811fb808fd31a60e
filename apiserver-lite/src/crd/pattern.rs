//! Regular expressions as Go's `regexp` reads them.
//!
//! Go's syntax is RE2: its classes `\d`, `\s`, `\w` and the edge `\b` know ASCII alone, `\Q...\E` quotes, a brace that
//! begins no repetition is itself, and a class has no operators. The text is brought into the syntax of the `regex`
//! crate, which is otherwise the same.

use regex::{Regex, RegexBuilder};

use super::pattern_size;

/// Bytes that a compiled expression may take, and that matching may keep of what it found out.
const MAX_SIZE: usize = 8 << 20;
const MAX_CACHE: usize = 512 << 10;
/// States that an expression may have: as many compile within some ten milliseconds.
const MAX_STATES: u64 = 60_000;
/// Beyond as many states other work of the thread goes elsewhere meanwhile.
const QUICK: u64 = 3_000;

/// # Errors
/// Why the text is no regular expression, or that it is too large; as Go says it after `error parsing regexp: `.
pub fn compile(text: &str) -> Result<Regex, String> {
    let states = size(text)?;
    if states > QUICK { crate::aside(|| build(text, MAX_SIZE)) } else { build(text, MAX_SIZE) }
}

/// The same for an expression of the server's own, which may be larger.
///
/// # Errors
/// As [`compile`].
pub fn compile_own(text: &str) -> Result<Regex, String> {
    crate::aside(|| build(text, 4 * MAX_SIZE))
}

fn build(text: &str, most: usize) -> Result<Regex, String> {
    let built = RegexBuilder::new(&translate(text)).size_limit(most).dfa_size_limit(MAX_CACHE).build();
    built.map_err(|error| match error {
        regex::Error::CompiledTooBig(_) => too_large(text),
        error => last_line(&error),
    })
}

/// The same without compiling: for what may never be used.
///
/// # Errors
/// As [`compile`].
pub fn check(text: &str) -> Result<(), String> {
    size(text)?;
    regex_syntax::parse(&translate(text)).map(drop).map_err(|error| last_line(&error))
}

/// About how many states an expression has, which is what compiling it costs.
///
/// # Errors
/// As [`compile`].
pub fn size(text: &str) -> Result<u64, String> {
    let states = pattern_size::states(text)?;
    if states > MAX_STATES { Err(too_large(text)) } else { Ok(states) }
}

fn too_large(text: &str) -> String {
    format!("expression too large: `{text}`")
}

fn last_line(error: &impl std::fmt::Display) -> String {
    error.to_string().lines().last().unwrap_or_default().trim_start_matches("error: ").to_owned()
}

fn translate(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 8);
    let mut rest = text.chars().peekable();
    let mut class = false;
    let mut class_start = false;
    // A minus after a class within a class is itself, and begins no range.
    let mut after_class = false;
    while let Some(c) = rest.next() {
        let at_start = std::mem::take(&mut class_start);
        let no_range = std::mem::take(&mut after_class);
        match c {
            '\\' => match rest.next() {
                Some('Q') if !class => quoted(&mut rest, &mut out),
                Some(escape) => {
                    after_class = class && matches!(escape, 'd' | 'D' | 'w' | 'W' | 's' | 'S' | 'p' | 'P');
                    out.push_str(&escaped(escape, class));
                    if matches!(escape, 'p' | 'P' | 'x') && rest.peek() == Some(&'{') {
                        to_brace(&mut rest, &mut out);
                    }
                }
                None => out.push('\\'),
            },
            '[' if !class => {
                class = true;
                class_start = true;
                out.push('[');
                if rest.peek() == Some(&'^') {
                    rest.next();
                    out.push('^');
                }
            }
            // A named class such as `[:alpha:]` stands as it is.
            '[' if rest.peek() == Some(&':') => {
                out.push('[');
                for c in rest.by_ref() {
                    out.push(c);
                    if c == ']' {
                        break;
                    }
                }
            }
            '[' => out.push_str("\\["),
            // The first bracket of a class is one of its characters.
            ']' if class && at_start => out.push_str("\\]"),
            ']' if class => {
                class = false;
                out.push(']');
            }
            '&' | '~' if class => {
                out.push('\\');
                out.push(c);
            }
            '-' if class && (no_range || before_class(rest.clone())) => out.push_str("\\-"),
            '-' if class && rest.peek() == Some(&'-') => out.push_str("\\-"),
            '{' if !class && is_repetition(rest.clone()) => {
                out.push('{');
                to_brace(&mut rest, &mut out);
            }
            '{' | '}' if !class => {
                out.push('\\');
                out.push(c);
            }
            other => out.push(other),
        }
    }
    out
}

/// Copies up to `\E` so that every character stands for itself.
fn quoted(rest: &mut std::iter::Peekable<std::str::Chars<'_>>, out: &mut String) {
    while let Some(c) = rest.next() {
        if c == '\\' && rest.peek() == Some(&'E') {
            rest.next();
            return;
        }
        out.push_str(&regex::escape(c.encode_utf8(&mut [0; 4])));
    }
}

fn escaped(escape: char, in_class: bool) -> String {
    match (escape, in_class) {
        ('d', false) => "[0-9]".into(),
        ('d', true) => "0-9".into(),
        ('D', _) => "[^0-9]".into(),
        ('w', false) => "[0-9A-Za-z_]".into(),
        ('w', true) => "0-9A-Za-z_".into(),
        ('W', _) => "[^0-9A-Za-z_]".into(),
        ('s', false) => "[\\t\\n\\f\\r ]".into(),
        ('s', true) => "\\t\\n\\f\\r ".into(),
        ('S', _) => "[^\\t\\n\\f\\r ]".into(),
        ('b', false) => "(?-u:\\b)".into(),
        ('B', false) => "(?-u:\\B)".into(),
        // Punctuation stands for itself after a backslash, whether or not it has a meaning without one.
        (c, _) if c.is_ascii_punctuation() => regex::escape(c.encode_utf8(&mut [0; 4])),
        (c, _) => format!("\\{c}"),
    }
}

/// What follows begins with a class, which ends no range.
fn before_class(mut rest: std::iter::Peekable<std::str::Chars<'_>>) -> bool {
    rest.next() == Some('\\') && rest.next().is_some_and(|c| matches!(c, 'd' | 'D' | 'w' | 'W' | 's' | 'S' | 'p' | 'P'))
}

/// What follows a brace makes it a repetition: `3}`, `3,}` or `3,5}`.
fn is_repetition(rest: std::iter::Peekable<std::str::Chars<'_>>) -> bool {
    let inside: String = rest.take_while(|c| *c != '}' && (c.is_ascii_digit() || *c == ',')).collect();
    let digits = |text: &str| {
        let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        digits && (text.len() == 1 || !text.starts_with('0'))
    };
    match inside.split_once(',') {
        None => digits(&inside),
        Some((from, to)) => digits(from) && (to.is_empty() || digits(to)),
    }
}

/// Copies up to a brace that ends what is at hand.
fn to_brace(rest: &mut std::iter::Peekable<std::str::Chars<'_>>, out: &mut String) {
    for c in rest.by_ref() {
        out.push(c);
        if c == '}' {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(pattern: &str, text: &str) -> bool {
        compile(pattern).unwrap_or_else(|e| panic!("{pattern}: {e}")).is_match(text)
    }

    #[test]
    fn classes_know_ascii_alone() {
        assert!(matches("^\\d+$", "123") && !matches("^\\d+$", "١٢"));
        assert!(matches("^[\\w.-]+$", "a_b.c-d") && !matches("^\\w+$", "é"));
        assert!(matches("^[^\\s]+$", "ab") && !matches("^\\S+$", "a b"));
        assert!(matches("\\bfoo\\b", "a foo b"));
        assert!(matches("^[\\w-.]+$", "a-.") && matches("^[a-\\d]+$", "a-1") && !matches("^[\\w-.]+$", "+"));
    }

    #[test]
    fn what_go_takes_literally_is_literal() {
        assert!(matches("^a{b}$", "a{b}"));
        assert!(matches("^a{2,3}$", "aaa") && !matches("^a{2,3}$", "a"));
        assert!(matches("^[[]x$", "[x") && matches("^[]a]+$", "]a") && matches("^[a&&b]+$", "&a"));
        assert!(matches("^\\Qa.b\\E$", "a.b") && !matches("^\\Qa.b\\E$", "axb"));
        assert!(matches("^[[:alpha:]]+$", "abc") && matches("^\\/x\\-$", "/x-"));
        assert!(matches("^\\p{Lu}\\x{41}$", "ÉA"));
        assert!(matches("^\\$\\{[a-z]+\\}$", "${ab}"));
    }

    #[test]
    fn broken_expressions_say_why() {
        assert!(matches("^a{01}$", "a{01}"));
        assert!(compile("(a").is_err() && compile("a**[").is_err() && compile("(?=a)").is_err());
    }

    /// Nested repetitions once took seconds to compile, on a thread that others waited for.
    #[test]
    fn what_is_too_large_is_refused_before_it_is_compiled() {
        for text in ["(\\p{L}{30}){30}", "(?i)(\\pL{10}){90}", &"[^a]{1000}".repeat(9)] {
            assert_eq!(check(text), Err(format!("expression too large: `{text}`")));
            assert_eq!(compile(text).map(drop), Err(format!("expression too large: `{text}`")));
        }
        assert!(matches("^.{0,1000}$", "abc") && matches("^(a{10}){100}$", &"a".repeat(1000)));
        assert_eq!(check("(a{1000}){2}"), Err("invalid repeat count: `{2}`".into()));
    }
}
