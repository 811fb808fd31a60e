//! Regular expressions as Go's `regexp` reads them.
//!
//! Go's syntax is RE2: its classes `\d`, `\s`, `\w` and the edge `\b` know ASCII alone, `\Q...\E` quotes, a brace that
//! begins no repetition is itself, and a class has no operators. The text is brought into the syntax of the `regex`
//! crate, which is otherwise the same.

use regex::{Regex, RegexBuilder};

/// Bytes that a compiled expression may take; Go limits repetitions instead.
const MAX_SIZE: usize = 32 << 20;

/// # Errors
/// Why the text is no regular expression.
pub fn compile(text: &str) -> Result<Regex, String> {
    RegexBuilder::new(&translate(text)).size_limit(MAX_SIZE).build().map_err(|error| match error {
        regex::Error::CompiledTooBig(_) => "expression too large".to_owned(),
        error => error.to_string().lines().last().unwrap_or_default().trim_start_matches("error: ").to_owned(),
    })
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
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
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
        assert!(compile("(a").is_err() && compile("a**[").is_err() && compile("(?=a)").is_err());
    }
}
