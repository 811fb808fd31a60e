//! Whether a pattern is a regular expression in Go's syntax, and what is wrong with one that is not, in Go's words.
//!
//! Nothing is matched with it here: whoever it is for reads it again. Followed: Go `regexp/syntax` with its Perl flags.
//!
//! Limits: the size of the program that Go would make of it is not reckoned; names of Unicode classes are not looked up.

use proto::cursor::Cursor;

/// The most repetitions that a count may ask for.
const MAX_REPEAT: u32 = 1000;

/// Reads a pattern from its beginning to its end.
struct Reader<'a> {
    text: Cursor<'a>,
    /// Groups that are open.
    depth: usize,
    /// Whether there is something that can be repeated.
    operand: bool,
    /// Where the last repetition began, while nothing has come after it.
    repeated: Option<usize>,
    /// The rest has been searched for the end of a named class, and has none.
    no_named: bool,
}

/// # Errors
/// What Go's parser says of the first mistake.
pub(super) fn check(pattern: &str) -> Result<(), String> {
    let mut reader = Reader { text: Cursor::new(pattern), depth: 0, operand: false, repeated: None, no_named: false };
    while let Some(c) = reader.text.peek() {
        reader.piece(c)?;
    }
    if reader.depth > 0 { Err(complaint("missing closing )", pattern)) } else { Ok(()) }
}

fn complaint(what: &str, part: &str) -> String {
    format!("error parsing regexp: {what}: `{part}`")
}

impl<'a> Reader<'a> {
    /// One thing has been read that can be repeated, or cannot.
    fn done(&mut self, operand: bool) {
        (self.operand, self.repeated) = (operand, None);
    }

    fn piece(&mut self, c: char) -> Result<(), String> {
        let start = self.text.at;
        match c {
            '(' => self.open(),
            ')' if self.depth == 0 => Err(complaint("unexpected )", self.text.whole)),
            '[' => self.class(),
            '\\' => self.escape(),
            '*' | '+' | '?' => {
                self.text.take();
                self.repetition(start)
            }
            '{' => match self.count() {
                Some(fits) if !fits => Err(complaint("invalid repeat count", self.text.since(start))),
                Some(_) => self.repetition(start),
                None => {
                    self.text.take();
                    self.done(true);
                    Ok(())
                }
            },
            c => {
                self.text.take();
                self.depth -= usize::from(c == ')');
                self.done(c != '|');
                Ok(())
            }
        }
    }

    /// An operator that was just read; one of the lazy kind has a question mark more.
    fn repetition(&mut self, start: usize) -> Result<(), String> {
        if self.text.peek() == Some('?') {
            self.text.take();
        }
        if let Some(first) = self.repeated {
            return Err(complaint("invalid nested repetition operator", self.text.since(first)));
        }
        if !self.operand {
            return Err(complaint("missing argument to repetition operator", self.text.since(start)));
        }
        self.repeated = Some(start);
        Ok(())
    }

    /// `{2}`, `{2,}` or `{2,3}`, and whether it may be; `None` and nothing read for what is no count.
    fn count(&mut self) -> Option<bool> {
        let inner = self.text.rest().strip_prefix('{')?;
        // Whatever else comes is no count: a brace further on is not looked for.
        let (inner, end) = inner.split_at(inner.find(|c: char| !c.is_ascii_digit() && c != ',')?);
        if !end.starts_with('}') {
            return None;
        }
        let number = |text: &str| {
            let leading = text.len() > 1 && text.starts_with('0');
            let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit()) && !leading;
            digits.then(|| text.parse::<u32>().unwrap_or(u32::MAX))
        };
        let (least, most) = match inner.split_once(',') {
            None => (number(inner)?, Some(number(inner)?)),
            Some((least, "")) => (number(least)?, None),
            Some((least, most)) => (number(least)?, Some(number(most)?)),
        };
        self.text.at += inner.len() + 2;
        Some(least <= MAX_REPEAT && most.is_none_or(|most| most <= MAX_REPEAT && least <= most))
    }

    fn open(&mut self) -> Result<(), String> {
        let start = self.text.at;
        self.text.take();
        self.depth += 1;
        self.done(false);
        let Some(inner) = self.text.rest().strip_prefix('?') else { return Ok(()) };
        if let Some(name) = inner.strip_prefix("P<").or_else(|| inner.strip_prefix('<')) {
            let Some((name, _)) = name.split_once('>') else {
                return Err(complaint("invalid named capture", self.text.whole.get(start..).unwrap_or_default()));
            };
            let to_name = self.text.rest().find('<').unwrap_or(0) + 1;
            self.text.at += to_name + name.len() + 1;
            let word = !name.is_empty() && name.chars().all(|c| c == '_' || c.is_ascii_alphanumeric());
            return if word { Ok(()) } else { Err(complaint("invalid named capture", self.text.since(start))) };
        }
        self.text.take();
        self.flags(start)
    }

    /// `(?i)`, `(?i-s:`: letters, a minus, letters.
    fn flags(&mut self, start: usize) -> Result<(), String> {
        let (mut off, mut some) = (false, false);
        while let Some(c) = self.text.take() {
            match c {
                'i' | 'm' | 's' | 'U' => some = true,
                '-' if !off => (off, some) = (true, false),
                ':' | ')' if !off || some => {
                    self.depth -= usize::from(c == ')');
                    return Ok(());
                }
                _ => break,
            }
        }
        Err(complaint("invalid or unsupported Perl syntax", self.text.since(start)))
    }

    fn escape(&mut self) -> Result<(), String> {
        let start = self.text.at;
        if let Some(quoted) = self.text.rest().strip_prefix("\\Q") {
            let length = quoted.find("\\E").map_or(quoted.len(), |end| end + 2);
            self.text.at += 2 + length;
            self.done(length > 2);
            return Ok(());
        }
        match self.text.rest().chars().nth(1) {
            Some('A' | 'b' | 'B' | 'z') => self.text.at += 2,
            Some('d' | 'D' | 's' | 'S' | 'w' | 'W') => self.text.at += 2,
            Some('p' | 'P') => self.unicode_class(start)?,
            _ => drop(self.character(start)?),
        }
        self.done(true);
        Ok(())
    }

    /// `\pL` or `\p{Name}`.
    fn unicode_class(&mut self, start: usize) -> Result<(), String> {
        self.text.at += 2;
        if self.text.take() != Some('{') {
            return Ok(());
        }
        while let Some(c) = self.text.take() {
            if c == '}' {
                return Ok(());
            }
        }
        Err(complaint("invalid character class range", self.text.since(start)))
    }

    /// A backslash and what it makes of the characters after it.
    fn character(&mut self, start: usize) -> Result<char, String> {
        self.text.take();
        let wrong = |reader: &Self| Err(complaint("invalid escape sequence", reader.text.since(start)));
        let octal = |c: Option<char>| c.and_then(|c| c.to_digit(8));
        let Some(c) = self.text.take() else { return Err(complaint("trailing backslash at end of expression", "")) };
        match c {
            '1'..='7' if octal(self.text.peek()).is_none() => wrong(self),
            '0'..='7' => {
                let mut code = c.to_digit(8).unwrap_or(0);
                for _ in 0..2 {
                    let Some(digit) = octal(self.text.peek()) else { break };
                    code = code * 8 + digit;
                    self.text.take();
                }
                Ok(char::from_u32(code).unwrap_or_default())
            }
            'x' => {
                let digits = match self.text.rest().strip_prefix('{') {
                    Some(inner) => {
                        let digits = inner.split_once('}').map(|(digits, _)| digits);
                        self.text.at += digits.map_or(inner.len() + 1, |digits| digits.len() + 2);
                        digits
                    }
                    None => {
                        let digits = self.text.rest().get(..2);
                        self.text.at += digits.map_or(self.text.rest().len(), str::len);
                        digits
                    }
                };
                let hex = digits.filter(|d| !d.is_empty() && d.bytes().all(|b| b.is_ascii_hexdigit()));
                let code = hex.and_then(|digits| u32::from_str_radix(digits, 16).ok());
                code.and_then(char::from_u32).map_or_else(|| wrong(self), Ok)
            }
            'a' => Ok('\u{7}'),
            'f' => Ok('\u{c}'),
            'n' => Ok('\n'),
            'r' => Ok('\r'),
            't' => Ok('\t'),
            'v' => Ok('\u{b}'),
            c if c.is_ascii() && !c.is_ascii_alphanumeric() => Ok(c),
            _ => wrong(self),
        }
    }

    fn class(&mut self) -> Result<(), String> {
        let start = self.text.at;
        self.text.take();
        if self.text.peek() == Some('^') {
            self.text.take();
        }
        let mut first = true;
        loop {
            let Some(c) = self.text.peek() else { return Err(self.unclosed(start)) };
            if c == ']' && !first {
                self.text.take();
                self.done(true);
                return Ok(());
            }
            // A minus stands for itself at an end only.
            let after = self.text.rest().chars().nth(1);
            if c == '-' && !first && after != Some(']') {
                let pair = self.text.rest().char_indices().nth(2).map_or(self.text.rest().len(), |(end, _)| end);
                return Err(complaint(
                    "invalid character class range",
                    self.text.rest().get(..pair).unwrap_or_default(),
                ));
            }
            first = false;
            if let Some(named) = self.named() {
                let length = named.len() + 4;
                let part = self.text.rest().get(..length).unwrap_or_default();
                let name = named.strip_prefix('^').unwrap_or(named);
                if !POSIX.contains(&name) {
                    return Err(complaint("invalid character class range", part));
                }
                self.text.at += length;
                continue;
            }
            match (c, after) {
                ('\\', Some('d' | 'D' | 's' | 'S' | 'w' | 'W')) => self.text.at += 2,
                ('\\', Some('p' | 'P')) => self.unicode_class(self.text.at)?,
                _ => self.range(start)?,
            }
        }
    }

    /// What the class that began there lacks.
    fn unclosed(&self, class: usize) -> String {
        complaint("missing closing ]", self.text.whole.get(class..).unwrap_or_default())
    }

    /// What stands between `[:` and the next `:]`.
    fn named(&mut self) -> Option<&'a str> {
        let inner = self.text.rest().strip_prefix("[:").filter(|_| !self.no_named)?;
        let found = inner.split_once(":]");
        self.no_named = found.is_none();
        found.map(|(name, _)| name)
    }

    /// A character of the class that began at `class`, or two with a minus between.
    fn range(&mut self, class: usize) -> Result<(), String> {
        let start = self.text.at;
        let low = self.one(class)?;
        let mut ahead = self.text.rest().chars();
        if ahead.next() != Some('-') || ahead.next() == Some(']') {
            return Ok(());
        }
        self.text.take();
        let high = self.one(class)?;
        if high < low { Err(complaint("invalid character class range", self.text.since(start))) } else { Ok(()) }
    }

    fn one(&mut self, class: usize) -> Result<char, String> {
        match self.text.peek() {
            None => Err(self.unclosed(class)),
            Some('\\') => self.character(self.text.at),
            Some(_) => Ok(self.text.take().unwrap_or_default()),
        }
    }
}

/// Classes in brackets and colons.
const POSIX: [&str; 14] = [
    "alnum", "alpha", "ascii", "blank", "cntrl", "digit", "graph", "lower", "print", "punct", "space", "upper", "word",
    "xdigit",
];

#[cfg(test)]
mod tests {
    use super::check;

    #[test]
    fn mistakes_are_told_as_go_tells_them() {
        for (pattern, why) in [
            ("[", "missing closing ]: `[`"),
            ("a[b", "missing closing ]: `[b`"),
            ("[]a][b[c", "missing closing ]: `[b[c`"),
            ("[a-", "missing closing ]: `[a-`"),
            ("[[:", "missing closing ]: `[[:`"),
            ("[z-a]", "invalid character class range: `z-a`"),
            ("[[:word]:]]]", "invalid character class range: `[:word]:]`"),
            ("(", "missing closing ): `(`"),
            ("(a", "missing closing ): `(a`"),
            ("a)", "unexpected ): `a)`"),
            ("*", "missing argument to repetition operator: `*`"),
            ("a|*", "missing argument to repetition operator: `*`"),
            ("(+)", "missing argument to repetition operator: `+`"),
            ("a**", "invalid nested repetition operator: `**`"),
            ("a+*b", "invalid nested repetition operator: `+*`"),
            ("x{1001}", "invalid repeat count: `{1001}`"),
            ("x{2,1}", "invalid repeat count: `{2,1}`"),
            ("\\", "trailing backslash at end of expression: ``"),
            ("\\y", "invalid escape sequence: `\\y`"),
            ("\\1", "invalid escape sequence: `\\1`"),
            ("\\xzz", "invalid escape sequence: `\\xzz`"),
            ("(?<n", "invalid named capture: `(?<n`"),
            ("(?P<a b>x)", "invalid named capture: `(?P<a b>`"),
            ("(?=a)", "invalid or unsupported Perl syntax: `(?=`"),
        ] {
            assert_eq!(check(pattern), Err(format!("error parsing regexp: {why}")), "{pattern}");
        }
    }

    #[test]
    fn what_go_takes_is_taken() {
        for pattern in [
            "",
            "error|warn.*",
            "^a+?$",
            "(?i)x(?:y)(?P<n>z)(?<m>z)",
            "[]a-]",
            "[^]-z]",
            "[a\\]\\d[:alpha:]-]",
            "x{2,}y{3}{",
            "a{,2}",
            "{{a}{1,2,3}{02}{1",
            "[[:a][[:b]",
            "\\Q*+\\E+",
            "\\x41\\x{1F600}\\012\\pL\\p{Greek}",
            "()*",
            "ä+",
            "\\.\\-\\[",
            "{",
            "a|b|",
            "[\\x00-\\x7f]",
        ] {
            assert_eq!(check(pattern), Ok(()), "{pattern}");
        }
    }
    /// Each bracket used to look through all that followed.
    #[test]
    fn many_brackets_cost_no_more_than_other_text() {
        let count = 1 << 20;
        for part in ["{", "[a]", "[[:]", "{1", "{,", "[:"] {
            let (pattern, began) = (part.repeat(count), std::time::Instant::now());
            // Whether it is one is not asked here.
            let _ = check(&pattern);
            assert!(began.elapsed() < std::time::Duration::from_secs(20), "{part}");
        }
    }
}
