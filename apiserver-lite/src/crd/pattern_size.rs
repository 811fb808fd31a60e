//! How large a regular expression becomes, and what Go's `regexp/syntax` refuses before it compiles one.
//!
//! A walk over the text, without building anything: repetitions are checked against Go's limits, alone and nested, and
//! the states of the machine that would be built are counted. Follows `regexp/syntax/parse.go`; only what may be costly
//! or is often got wrong is told here in Go's words, other mistakes are found by the compiler.

use proto::cursor::Cursor;

/// Most repetitions, alone and multiplied along nested ones.
const MOST_REPEATS: u64 = 1000;
/// Groups in groups.
const DEEPEST: usize = 250;
/// States of an automaton over bytes for any character, for a class of Unicode, and for a letter beyond ASCII.
const ANY: u64 = 12;
const UNICODE: u64 = 400;
const WIDE: u64 = 3;

/// About how many states the expression has once its repetitions are written out.
///
/// # Errors
/// Go's complaint, without the `error parsing regexp: ` before it.
pub fn states(text: &str) -> Result<u64, String> {
    let mut walk =
        Walk { text: Cursor::new(text), outer: Vec::new(), level: Piece::EMPTY, last: None, repeat: None, fold: false };
    while let Some(c) = walk.text.peek() {
        let repeat = walk.repeat.take();
        walk.step(c, repeat)?;
    }
    if !walk.outer.is_empty() {
        return Err(complaint("missing closing )", text));
    }
    walk.flush();
    Ok(walk.level.states.saturating_mul(if walk.fold { 2 } else { 1 }))
}

fn complaint(why: &str, part: &str) -> String {
    format!("{why}: `{part}`")
}

/// A part of an expression: its states, and the largest product of repetitions within.
#[derive(Clone, Copy)]
struct Piece {
    states: u64,
    repeats: u64,
}

impl Piece {
    const EMPTY: Piece = Piece { states: 0, repeats: 1 };

    fn of(states: u64) -> Self {
        Piece { states, repeats: 1 }
    }
}

struct Walk<'t> {
    text: Cursor<'t>,
    /// What came before in the groups around.
    outer: Vec<Piece>,
    level: Piece,
    /// What a repetition would repeat.
    last: Option<Piece>,
    /// Where a repetition began that ends here.
    repeat: Option<usize>,
    /// Letters of both cases.
    fold: bool,
}

impl Walk<'_> {
    fn flush(&mut self) {
        if let Some(last) = self.last.take() {
            self.level.states = self.level.states.saturating_add(last.states);
            self.level.repeats = self.level.repeats.max(last.repeats);
        }
    }

    fn atom(&mut self, states: u64) {
        self.flush();
        self.last = Some(Piece::of(states));
    }

    fn step(&mut self, c: char, repeat: Option<usize>) -> Result<(), String> {
        match c {
            '(' => self.open(),
            ')' => {
                self.text.at += 1;
                self.close()
            }
            '|' => {
                self.text.at += 1;
                self.flush();
                self.level.states = self.level.states.saturating_add(1);
                Ok(())
            }
            '*' | '+' | '?' => {
                let start = self.text.at;
                self.text.at += 1;
                self.repeated(start, repeat, None)
            }
            '{' => match counts(self.text.rest()) {
                Some((length, range)) => {
                    let start = self.text.at;
                    self.text.at += length;
                    self.repeated(start, repeat, Some(range))
                }
                None => {
                    self.text.at += 1;
                    self.atom(1);
                    Ok(())
                }
            },
            '[' => {
                let states = self.class()?;
                self.atom(states);
                Ok(())
            }
            '\\' => self.escape(),
            _ => {
                self.text.at += c.len_utf8();
                self.atom(if c == '.' {
                    ANY
                } else if c.is_ascii() {
                    1
                } else {
                    WIDE
                });
                Ok(())
            }
        }
    }

    fn open(&mut self) -> Result<(), String> {
        let start = self.text.at;
        self.text.at += 1;
        if self.text.rest().starts_with('?') {
            self.text.at += 1;
            let rest = self.text.rest();
            if rest.starts_with("P<") || rest.starts_with('<') {
                let Some(end) = rest.find('>') else {
                    return Err(complaint("invalid named capture", &self.text.whole[start..]));
                };
                self.text.at += end + 1;
            } else {
                let flags = rest.find(|c: char| !matches!(c, 'i' | 'm' | 's' | 'U' | '-')).unwrap_or(rest.len());
                self.fold |= rest[..flags].contains('i');
                self.text.at += flags;
                match self.text.take() {
                    Some(':') => {}
                    // Flags for what follows, and no group.
                    Some(')') if flags > 0 => return Ok(()),
                    None => return Err(complaint("missing closing )", self.text.whole)),
                    Some(_) => {
                        return Err(complaint(
                            "invalid or unsupported Perl syntax",
                            &self.text.whole[start..self.text.at],
                        ));
                    }
                }
            }
        }
        self.flush();
        if self.outer.len() >= DEEPEST {
            return Err(complaint("expression nests too deeply", self.text.whole));
        }
        self.outer.push(std::mem::replace(&mut self.level, Piece::EMPTY));
        Ok(())
    }

    fn close(&mut self) -> Result<(), String> {
        self.flush();
        let Some(outer) = self.outer.pop() else { return Err(complaint("unexpected )", self.text.whole)) };
        let mut group = std::mem::replace(&mut self.level, outer);
        group.states = group.states.saturating_add(2);
        self.last = Some(group);
        Ok(())
    }

    /// A repetition from `start` to here; `before` is where one began that it follows directly.
    fn repeated(&mut self, start: usize, before: Option<usize>, range: Option<Counts>) -> Result<(), String> {
        if self.text.rest().starts_with('?') {
            self.text.at += 1;
        }
        let said = &self.text.whole[start..self.text.at];
        if let Some(Counts { min, max }) = range
            && (min > MOST_REPEATS || max.is_some_and(|max| max > MOST_REPEATS || min > max))
        {
            return Err(complaint("invalid repeat count", said));
        }
        if let Some(before) = before {
            return Err(complaint("invalid nested repetition operator", &self.text.whole[before..self.text.at]));
        }
        let Some(piece) = &mut self.last else {
            return Err(complaint("missing argument to repetition operator", said));
        };
        let times = range.map_or(1, |range| range.max.unwrap_or(range.min));
        piece.states = piece.states.saturating_mul(times.max(1)).saturating_add(1);
        piece.repeats = piece.repeats.saturating_mul(times).max(1);
        if range.is_some_and(|r| r.min > 1 || r.max.is_some_and(|max| max > 1)) && piece.repeats > MOST_REPEATS {
            return Err(complaint("invalid repeat count", said));
        }
        self.repeat = Some(start);
        Ok(())
    }

    fn escape(&mut self) -> Result<(), String> {
        self.text.at += 1;
        let Some(c) = self.text.take() else { return Err(complaint("trailing backslash at end of expression", "")) };
        if c == 'Q' {
            let rest = self.text.rest();
            let (inside, skipped) = rest.find("\\E").map_or((rest, rest.len()), |end| (&rest[..end], end + 2));
            inside.chars().for_each(|c| self.atom(if c.is_ascii() { 1 } else { WIDE }));
            self.text.at += skipped;
            return Ok(());
        }
        let states = self.escaped(c);
        self.atom(states);
        Ok(())
    }

    /// States of what an escape stands for; goes past what belongs to it.
    fn escaped(&mut self, c: char) -> u64 {
        if matches!(c, 'p' | 'P' | 'x') && self.text.rest().starts_with('{') {
            let rest = self.text.rest();
            self.text.at += rest.find('}').map_or(rest.len(), |end| end + 1);
        }
        match c {
            'p' | 'P' => UNICODE,
            'D' | 'W' | 'S' => ANY,
            _ => 1,
        }
    }

    fn class(&mut self) -> Result<u64, String> {
        let start = self.text.at;
        let unclosed = || complaint("missing closing ]", &self.text.whole[start..]);
        let mut states = 1;
        let mut inner = Walk { outer: Vec::new(), ..*self };
        inner.text.at += 1;
        if inner.text.rest().starts_with('^') {
            inner.text.at += 1;
            states += ANY;
        }
        let mut first = true;
        loop {
            match inner.text.take() {
                None => return Err(unclosed()),
                Some(']') if !first => break,
                Some('\\') => match inner.text.take() {
                    None => return Err(complaint("trailing backslash at end of expression", "")),
                    Some(c) => states += inner.escaped(c),
                },
                Some('[') if inner.text.rest().starts_with(':') => {
                    let rest = inner.text.rest();
                    inner.text.at += rest.find(":]").map_or(0, |end| end + 2);
                    states += ANY;
                }
                Some(c) => states += if c.is_ascii() { 1 } else { WIDE },
            }
            first = false;
        }
        self.text.at = inner.text.at;
        Ok(states)
    }
}

/// How often a repetition may be; without end when `max` is None.
#[derive(Clone, Copy)]
struct Counts {
    min: u64,
    max: Option<u64>,
}

/// The repetition that a text begins with, and its length; None where the brace is itself.
fn counts(text: &str) -> Option<(usize, Counts)> {
    let inside = text.strip_prefix('{')?;
    let inside = &inside[..inside.find('}')?];
    // Go takes no number with a zero in front; one that is too large stands for more than there may be.
    let number = |text: &str| {
        let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        (digits && (text.len() == 1 || !text.starts_with('0'))).then(|| text.parse().unwrap_or(u64::MAX))
    };
    let counts = match inside.split_once(',') {
        None => Counts { min: number(inside)?, max: Some(number(inside)?) },
        Some((min, "")) => Counts { min: number(min)?, max: None },
        Some((min, max)) => Counts { min: number(min)?, max: Some(number(max)?) },
    };
    Some((inside.len() + 2, counts))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repetitions_are_limited_as_in_go() {
        for (text, why) in [
            ("a{1001}", "invalid repeat count: `{1001}`"),
            ("a{2,1}", "invalid repeat count: `{2,1}`"),
            ("(a{100}){11}", "invalid repeat count: `{11}`"),
            ("((a{10}){10}){11,}?", "invalid repeat count: `{11,}?`"),
            ("((a{10}b|c){10}){0,11}", "invalid repeat count: `{0,11}`"),
            ("x{99999999999999999999}", "invalid repeat count: `{99999999999999999999}`"),
            ("a**", "invalid nested repetition operator: `**`"),
            ("a{2}{3}", "invalid nested repetition operator: `{2}{3}`"),
            ("a|*", "missing argument to repetition operator: `*`"),
            ("(?=a)", "invalid or unsupported Perl syntax: `(?=`"),
            ("a)", "unexpected ): `a)`"),
            ("(a", "missing closing ): `(a`"),
            ("a[b", "missing closing ]: `[b`"),
            ("a\\", "trailing backslash at end of expression: ``"),
        ] {
            assert_eq!(states(text), Err(why.to_owned()), "{text}");
        }
        for text in
            ["a{1000}", "(a{100}){10}", "((a{100})*){10}", "a{01}", "a{,5}", "(?i)a{3}", "[]{9999}]", "\\Q{9999}"]
        {
            assert!(states(text).is_ok(), "{text}: {:?}", states(text));
        }
        assert_eq!(states(&"(".repeat(300)).map_err(|e| e.starts_with("expression nests too deeply")), Err(true));
    }

    #[test]
    fn states_follow_what_is_repeated() {
        assert!(states("^[a-z0-9]([-a-z0-9]*[a-z0-9])?$").is_ok_and(|n| n < 60));
        assert!(states("^.{0,1000}$").is_ok_and(|n| (10_000..20_000).contains(&n)));
        assert!(states("(\\p{L}{30}){30}").is_ok_and(|n| n > 300_000));
        assert!(states(&".{1000}".repeat(100)).is_ok_and(|n| n > 1_000_000));
    }
}
