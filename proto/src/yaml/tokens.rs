//! What libyaml makes of a text before any grammar: its tokens, and what it says where there are none.
//!
//! Only kinds and places count here, for the words of a complaint ([`super::fault`]); values are read by the other parser.
//! The rules are those of YAML 1.1, of which the most wondrous is that a scalar may turn out to have been a key when its
//! colon comes, up to 1024 characters later but on the same line. Followed: `scannerc.go`.

use std::collections::VecDeque;

/// Farthest that a colon may be from what it makes a key.
const LONGEST_KEY: usize = 1024;
/// Most brackets in brackets, and blocks in blocks.
const DEEPEST: usize = 10_000;
/// What is said of more.
pub const TOO_DEEP: &str = "exceeded max depth of 10000";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    StreamEnd,
    Directive,
    DocumentStart,
    DocumentEnd,
    BlockSequenceStart,
    BlockMappingStart,
    BlockEnd,
    FlowSequenceStart,
    FlowSequenceEnd,
    FlowMappingStart,
    FlowMappingEnd,
    BlockEntry,
    FlowEntry,
    Key,
    Value,
    Alias,
    /// An anchor, or a tag: what may stand before a node.
    Anchor,
    Tag,
    Scalar,
}

/// A place in the text, lines and columns from zero.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Mark {
    pub line: usize,
    column: usize,
    index: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Token {
    pub kind: Kind,
    pub start: Mark,
}

/// What is wrong, where it was noticed, and where what it is part of begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fault {
    pub problem: &'static str,
    pub at: Mark,
    pub within: Mark,
    /// Noticed before any grammar.
    pub of_tokens: bool,
}

/// What may turn out to be a key.
#[derive(Clone, Copy, Default)]
struct Candidate {
    possible: bool,
    /// Nothing else may stand there.
    required: bool,
    number: usize,
    mark: Mark,
}

pub struct Tokens<'a> {
    rest: std::str::Chars<'a>,
    mark: Mark,
    tokens: VecDeque<Token>,
    /// How many were taken.
    taken: usize,
    ended: bool,
    /// Column of the innermost block; -1 outside of all.
    indent: isize,
    indents: Vec<isize>,
    /// One for the block, and one for each bracket that is open.
    candidates: Vec<Candidate>,
    /// None before it is possible any more: nothing is looked for in thousands of open brackets.
    first_possible: usize,
    key_allowed: bool,
}

type Scanned<T = ()> = Result<T, Fault>;

impl<'a> Tokens<'a> {
    pub fn new(text: &'a str) -> Self {
        Tokens {
            rest: text.chars(),
            mark: Mark::default(),
            tokens: VecDeque::new(),
            taken: 0,
            ended: false,
            indent: -1,
            indents: Vec::new(),
            candidates: vec![Candidate::default()],
            first_possible: 0,
            key_allowed: true,
        }
    }

    /// The next token, not taken.
    pub fn peek(&mut self) -> Scanned<Token> {
        loop {
            if let Some(token) = self.tokens.front().copied() {
                self.drop_stale()?;
                let taken = self.taken;
                if self.ended || !self.young().iter().any(|c| c.possible && c.number == taken) {
                    return Ok(token);
                }
            }
            self.fetch()?;
        }
    }

    pub fn take(&mut self) {
        self.tokens.pop_front();
        self.taken += 1;
    }

    fn char(&self) -> char {
        self.ahead(0)
    }

    /// Zero behind the end.
    fn ahead(&self, by: usize) -> char {
        self.rest.clone().nth(by).unwrap_or('\0')
    }

    fn skip(&mut self) {
        if let Some(c) = self.rest.next() {
            self.mark.index += 1;
            self.mark.column += 1;
            let broken = matches!(c, '\n' | '\u{85}' | '\u{2028}' | '\u{2029}') || c == '\r' && self.char() != '\n';
            if broken {
                self.mark.line += 1;
                self.mark.column = 0;
            }
        }
    }

    fn in_flow(&self) -> bool {
        self.candidates.len() > 1
    }

    fn column(&self) -> isize {
        isize::try_from(self.mark.column).unwrap_or(isize::MAX)
    }

    fn fault<T>(&self, problem: &'static str, within: Mark) -> Scanned<T> {
        Err(Fault { problem, at: self.mark, within, of_tokens: true })
    }

    fn push(&mut self, kind: Kind, start: Mark) {
        self.tokens.push_back(Token { kind, start });
    }

    fn insert(&mut self, number: Option<usize>, kind: Kind, start: Mark) {
        let at = number.map_or(self.tokens.len(), |number| number.saturating_sub(self.taken).min(self.tokens.len()));
        self.tokens.insert(at, Token { kind, start });
    }

    fn drop_stale(&mut self) -> Scanned {
        let mark = self.mark;
        let is_stale =
            |c: &Candidate| c.possible && (c.mark.line < mark.line || c.mark.index + LONGEST_KEY < mark.index);
        if let Some(missing) = self.young().iter().find(|c| is_stale(c) && c.required) {
            return self.fault("could not find expected ':'", missing.mark);
        }
        let first = self.first_possible.min(self.candidates.len() - 1);
        self.candidates[first..].iter_mut().filter(|c| is_stale(c)).for_each(|c| c.possible = false);
        let old = self.candidates[first..].iter().take_while(|c| !c.possible).count();
        self.first_possible = (first + old).min(self.candidates.len() - 1);
        Ok(())
    }

    /// Those that may be possible, the last one always among them.
    fn young(&self) -> &[Candidate] {
        &self.candidates[self.first_possible.min(self.candidates.len() - 1)..]
    }

    /// Notes that what comes may be a key.
    fn save_candidate(&mut self) -> Scanned {
        if !self.key_allowed {
            return Ok(());
        }
        let required = !self.in_flow() && self.indent == self.column();
        let number = self.taken + self.tokens.len();
        self.remove_candidate()?;
        if let Some(last) = self.candidates.last_mut() {
            *last = Candidate { possible: true, required, number, mark: self.mark };
        }
        self.first_possible = self.first_possible.min(self.candidates.len() - 1);
        Ok(())
    }

    fn remove_candidate(&mut self) -> Scanned {
        if let Some(last) = self.candidates.last().filter(|last| last.possible && last.required) {
            return self.fault("could not find expected ':'", last.mark);
        }
        if let Some(last) = self.candidates.last_mut() {
            last.possible = false;
        }
        Ok(())
    }

    /// Begins a block where the column is beyond the one around it.
    fn roll(&mut self, column: isize, number: Option<usize>, kind: Kind, mark: Mark) -> Scanned {
        if !self.in_flow() && self.indent < column {
            self.indents.push(self.indent);
            if self.indents.len() > DEEPEST {
                return self.fault(TOO_DEEP, mark);
            }
            self.indent = column;
            self.insert(number, kind, mark);
        }
        Ok(())
    }

    fn unroll(&mut self, column: isize) {
        while !self.in_flow() && self.indent > column {
            self.push(Kind::BlockEnd, self.mark);
            self.indent = self.indents.pop().unwrap_or(-1);
        }
    }

    fn fetch(&mut self) -> Scanned {
        self.pass_blanks();
        self.drop_stale()?;
        self.unroll(self.column());
        let (c, next) = (self.char(), self.ahead(1));
        let start = self.mark;
        let indicator = self.at_document_indicator();
        match c {
            '\0' if self.rest.as_str().is_empty() => {
                // The end is on a line of its own.
                if self.mark.column > 0 {
                    self.mark.line += 1;
                    self.mark.column = 0;
                }
                self.leave_blocks()?;
                self.ended = true;
                self.push(Kind::StreamEnd, self.mark);
                Ok(())
            }
            '%' if start.column == 0 => {
                self.leave_blocks()?;
                while !is_end_of_line(self.char()) {
                    self.skip();
                }
                self.push(Kind::Directive, start);
                Ok(())
            }
            '-' | '.' if indicator => {
                self.leave_blocks()?;
                (0..3).for_each(|_| self.skip());
                self.push(if c == '-' { Kind::DocumentStart } else { Kind::DocumentEnd }, start);
                Ok(())
            }
            '[' | '{' => {
                self.save_candidate()?;
                self.candidates.push(Candidate::default());
                if self.candidates.len() > DEEPEST + 1 {
                    return self.fault(TOO_DEEP, start);
                }
                self.one(if c == '[' { Kind::FlowSequenceStart } else { Kind::FlowMappingStart }, true)
            }
            ']' | '}' => {
                self.remove_candidate()?;
                if self.in_flow() {
                    self.candidates.pop();
                }
                self.one(if c == ']' { Kind::FlowSequenceEnd } else { Kind::FlowMappingEnd }, false)
            }
            ',' => {
                self.remove_candidate()?;
                self.one(Kind::FlowEntry, true)
            }
            '-' if is_space(next) => {
                if !self.in_flow() && !self.key_allowed {
                    return self.fault("block sequence entries are not allowed in this context", start);
                }
                self.roll(self.column(), None, Kind::BlockSequenceStart, start)?;
                self.remove_candidate()?;
                self.one(Kind::BlockEntry, true)
            }
            '?' if self.in_flow() || is_space(next) => {
                if !self.in_flow() && !self.key_allowed {
                    return self.fault("mapping keys are not allowed in this context", start);
                }
                self.roll(self.column(), None, Kind::BlockMappingStart, start)?;
                self.remove_candidate()?;
                let allowed = !self.in_flow();
                self.one(Kind::Key, allowed)
            }
            ':' if self.in_flow() || is_space(next) => self.value(),
            '*' | '&' => self.anchor(if c == '*' { Kind::Alias } else { Kind::Anchor }),
            '!' => self.tag(),
            '|' | '>' if !self.in_flow() => self.block_scalar(),
            '\'' | '"' => self.quoted(c),
            _ if is_space(c) || ",[]{}#&*!|>'\"%@`".contains(c) => {
                self.fault("found character that cannot start any token", start)
            }
            '?' | ':' if self.in_flow() => self.fault("found character that cannot start any token", start),
            _ => self.plain(),
        }
    }

    /// A token of one character.
    fn one(&mut self, kind: Kind, key_allowed: bool) -> Scanned {
        self.key_allowed = key_allowed;
        let start = self.mark;
        self.skip();
        self.push(kind, start);
        Ok(())
    }

    fn leave_blocks(&mut self) -> Scanned {
        self.unroll(-1);
        self.remove_candidate()?;
        self.key_allowed = false;
        Ok(())
    }

    /// Between tokens: blanks, comments and line breaks.
    fn pass_blanks(&mut self) {
        loop {
            while self.char() == ' ' || self.char() == '\t' && (self.in_flow() || !self.key_allowed) {
                self.skip();
            }
            if self.char() == '#' {
                while !is_end_of_line(self.char()) {
                    self.skip();
                }
            }
            if !is_break(self.char()) {
                return;
            }
            self.skip();
            if !self.in_flow() {
                self.key_allowed = true;
            }
        }
    }

    fn at_document_indicator(&self) -> bool {
        let rest = self.rest.as_str();
        self.mark.column == 0 && (rest.starts_with("---") || rest.starts_with("...")) && is_space(self.ahead(3))
    }

    fn value(&mut self) -> Scanned {
        let start = self.mark;
        match self.candidates.last().copied().filter(|c| c.possible) {
            Some(key) => {
                self.insert(Some(key.number), Kind::Key, key.mark);
                let column = isize::try_from(key.mark.column).unwrap_or(isize::MAX);
                self.roll(column, Some(key.number), Kind::BlockMappingStart, key.mark)?;
                if let Some(last) = self.candidates.last_mut() {
                    last.possible = false;
                }
                self.one(Kind::Value, false)
            }
            None => {
                if !self.in_flow() && !self.key_allowed {
                    return self.fault("mapping values are not allowed in this context", start);
                }
                self.roll(self.column(), None, Kind::BlockMappingStart, start)?;
                let allowed = !self.in_flow();
                self.one(Kind::Value, allowed)
            }
        }
    }

    fn anchor(&mut self, kind: Kind) -> Scanned {
        self.save_candidate()?;
        self.key_allowed = false;
        let start = self.mark;
        self.skip();
        let mut length = 0;
        while self.char().is_ascii_alphanumeric() || matches!(self.char(), '_' | '-') {
            self.skip();
            length += 1;
        }
        let c = self.char();
        if length == 0 || !(is_space(c) || "?:,]}%@`".contains(c)) {
            return self.fault("did not find expected alphabetic or numeric character", start);
        }
        self.push(kind, start);
        Ok(())
    }

    /// What a tag says is for the other parser.
    fn tag(&mut self) -> Scanned {
        self.save_candidate()?;
        self.key_allowed = false;
        let start = self.mark;
        while !(is_space(self.char()) || self.in_flow() && ",[]{}".contains(self.char())) {
            self.skip();
        }
        self.push(Kind::Tag, start);
        Ok(())
    }

    fn block_scalar(&mut self) -> Scanned {
        self.remove_candidate()?;
        self.key_allowed = true;
        let start = self.mark;
        self.skip();
        let mut indent = 0;
        for _ in 0..2 {
            match self.char() {
                '0' => return self.fault("found an indentation indicator equal to 0", start),
                c @ '1'..='9' => {
                    indent = self.indent.max(0) + isize::try_from(c.to_digit(10).unwrap_or(0)).unwrap_or(0);
                    self.skip();
                }
                '+' | '-' => self.skip(),
                _ => {}
            }
        }
        while matches!(self.char(), ' ' | '\t') {
            self.skip();
        }
        if self.char() == '#' {
            while !is_end_of_line(self.char()) {
                self.skip();
            }
        }
        if !is_end_of_line(self.char()) {
            return self.fault("did not find expected comment or line break", start);
        }
        self.skip();
        self.block_breaks(&mut indent, start)?;
        while self.column() == indent && !self.rest.as_str().is_empty() {
            while !is_end_of_line(self.char()) {
                self.skip();
            }
            self.skip();
            self.block_breaks(&mut indent, start)?;
        }
        self.push(Kind::Scalar, start);
        Ok(())
    }

    /// Empty lines, and the blanks before the next one; the first that has a text says how far it is indented.
    fn block_breaks(&mut self, indent: &mut isize, start: Mark) -> Scanned {
        let mut most = 0;
        loop {
            while (*indent == 0 || self.column() < *indent) && self.char() == ' ' {
                self.skip();
            }
            most = most.max(self.column());
            if (*indent == 0 || self.column() < *indent) && self.char() == '\t' {
                return self.fault("found a tab character where an indentation space is expected", start);
            }
            if !is_break(self.char()) {
                break;
            }
            self.skip();
        }
        if *indent == 0 {
            *indent = most.max(self.indent + 1).max(1);
        }
        Ok(())
    }

    fn quoted(&mut self, quote: char) -> Scanned {
        self.save_candidate()?;
        self.key_allowed = false;
        let start = self.mark;
        self.skip();
        loop {
            if self.at_document_indicator() {
                return self.fault("found unexpected document indicator", start);
            }
            if self.rest.as_str().is_empty() {
                return self.fault("found unexpected end of stream", start);
            }
            let c = self.char();
            match c {
                '\'' if quote == c && self.ahead(1) == '\'' => {
                    self.skip();
                    self.skip();
                }
                _ if c == quote => break,
                '\\' if quote == '"' => self.escape(start)?,
                _ => self.skip(),
            }
        }
        self.skip();
        self.push(Kind::Scalar, start);
        Ok(())
    }

    fn escape(&mut self, start: Mark) -> Scanned {
        let digits = match self.ahead(1) {
            'x' => 2,
            'u' => 4,
            'U' => 8,
            '0' | 'a' | 'b' | 't' | '\t' | 'n' | 'v' | 'f' | 'r' | 'e' | ' ' | '"' | '\'' | '\\' | 'N' | '_' | 'L'
            | 'P' | '/' => 0,
            c if is_break(c) => 0,
            _ => return self.fault("found unknown escape character", start),
        };
        self.skip();
        self.skip();
        if !(0..digits).all(|at| self.ahead(at).is_ascii_hexdigit()) {
            return self.fault("did not find expected hexdecimal number", start);
        }
        (0..digits).for_each(|_| self.skip());
        Ok(())
    }

    fn plain(&mut self) -> Scanned {
        self.save_candidate()?;
        self.key_allowed = false;
        let start = self.mark;
        let indent = self.indent + 1;
        let mut broken = false;
        loop {
            if self.at_document_indicator() || self.char() == '#' {
                break;
            }
            while !is_space(self.char()) {
                let c = self.char();
                let ends = c == ':' && is_space(self.ahead(1)) || self.in_flow() && ",?[]{}".contains(c);
                if ends {
                    break;
                }
                broken = false;
                self.skip();
            }
            if !matches!(self.char(), ' ' | '\t') && !is_break(self.char()) {
                break;
            }
            while matches!(self.char(), ' ' | '\t') || is_break(self.char()) {
                if broken && self.column() < indent && self.char() == '\t' {
                    return self.fault("found a tab character that violates indentation", start);
                }
                broken |= is_break(self.char());
                self.skip();
            }
            if !self.in_flow() && self.column() < indent {
                break;
            }
        }
        self.push(Kind::Scalar, start);
        if broken {
            self.key_allowed = true;
        }
        Ok(())
    }
}

fn is_break(c: char) -> bool {
    matches!(c, '\r' | '\n' | '\u{85}' | '\u{2028}' | '\u{2029}')
}

fn is_end_of_line(c: char) -> bool {
    is_break(c) || c == '\0'
}

/// A blank, a line break, or the end.
fn is_space(c: char) -> bool {
    is_end_of_line(c) || matches!(c, ' ' | '\t')
}
