//! Tokens to a tree; macros are expanded on the way.
//!
//! The parser gets lost and finds its way back where that of cel-go does, whose grammar it follows.

use super::ast::{Expr, Fold, Kind, Macro};
use super::issue::{self, Issue, NOWHERE};
use super::kinds::Kinds;
use super::lex::Token;
use super::recover::{Reader, Stop};
use super::words::is_reserved;

/// How deep expressions nest, and how high their trees are at most, as cel-go has it. Whoever walks a tree recurses, so
/// chains of operators and of selections count as they nest.
pub(super) const MAX_DEPTH: usize = 250;

/// The longest text, in characters, as cel-go has it.
const MAX_LENGTH: usize = 100_000;

/// Reads an expression.
///
/// # Errors
/// Characters that belong to no token, places where the text is no expression, and what makes no sense in it.
pub fn parse(text: &str) -> Result<Expr, Vec<Issue>> {
    let size = text.chars().count();
    if size > MAX_LENGTH {
        let text = format!("expression code point size exceeds limit: size: {size}, limit {MAX_LENGTH}");
        return Err(vec![Issue { at: NOWHERE, text }]);
    }
    let mut parser = Parser { reader: Reader::new(text), depth: 0, meaning: Vec::new() };
    let read = parser.whole();
    let mut issues = parser.reader.issues;
    // What a text means that is no expression is nobody's question.
    if issues.is_empty() {
        issues = parser.meaning;
    }
    match read {
        Ok(expr) if issues.is_empty() => return Ok(expr),
        Ok(_) | Err(Stop::Lost) => {}
        Err(Stop::Over(issue)) => issues.push(issue),
    }
    Err(issues)
}

/// The name that a chain of selections spells, such as `Object.spec`.
fn qualified(expr: &Expr) -> Option<String> {
    match &expr.kind {
        Kind::Name(name) => Some(name.clone()),
        Kind::Select { operand, field, test: false, optional: false } => {
            Some(format!("{}.{field}", qualified(operand)?))
        }
        _ => None,
    }
}

/// Joins terms in their order; `signs` are the places of the signs between them.
fn balanced(terms: &mut impl Iterator<Item = Expr>, signs: &[usize], join: fn(Box<Expr>, Box<Expr>) -> Kind) -> Expr {
    let middle = signs.len() / 2;
    match signs.get(middle) {
        None => terms.next().unwrap_or_else(|| Expr::new(0, Kind::Null)),
        Some(at) => {
            let left = balanced(terms, &signs[..middle], join);
            let right = balanced(terms, &signs[middle + 1..], join);
            Expr::new(*at, join(left.into(), right.into()))
        }
    }
}

/// Signs that go on with an operand.
const SUFFIXES: Kinds = Kinds::of(&[".", "["]);

struct Parser<'a> {
    reader: Reader<'a>,
    /// Expressions within expressions at this place.
    depth: usize,
    /// Complaints about what is an expression, but has no meaning.
    meaning: Vec<Issue>,
}

type Parsed<T = Expr> = Result<T, Stop>;

/// Stands for what could not be read.
fn nothing(at: usize) -> Expr {
    Expr::new(at, Kind::Null)
}

impl Parser<'_> {
    /// Reads a part that is a rule of its own; `kinds` may follow it, and the rule that it is part of may end with it.
    fn rule(&mut self, kinds: Kinds, may_end: bool, read: impl FnOnce(&mut Self) -> Parsed) -> Parsed {
        self.part(kinds, may_end, read).map(|read| read.unwrap_or_else(|| nothing(self.reader.at())))
    }

    fn part<T>(&mut self, kinds: Kinds, may_end: bool, read: impl FnOnce(&mut Self) -> Parsed<T>) -> Parsed<Option<T>> {
        self.reader.enter(kinds, may_end);
        let read = read(self);
        self.reader.leave(read)
    }

    fn means_nothing(&mut self, at: usize, text: impl Into<String>) -> Expr {
        issue::keep(&mut self.meaning, Issue { at, text: text.into() });
        nothing(at)
    }

    /// A node of the tree. Its parts may have been read one after the other, so how deep reading goes says nothing of it.
    fn node(at: usize, kind: Kind) -> Parsed {
        Self::bounded(Expr::new(at, kind))
    }

    fn bounded(expr: Expr) -> Parsed {
        if expr.height > MAX_DEPTH { Err(Self::too_deep()) } else { Ok(expr) }
    }

    fn too_deep() -> Stop {
        let text = format!("expression recursion limit exceeded: {MAX_DEPTH}");
        Stop::Over(Issue { at: NOWHERE, text })
    }

    fn whole(&mut self) -> Parsed {
        let expr = self.rule(Kinds::END, false, Self::expr)?;
        self.reader.expect(Kinds::END, Kinds::NONE, false)?;
        Ok(expr)
    }

    fn expr(&mut self) -> Parsed {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(Self::too_deep());
        }
        let read = self.choice();
        self.depth -= 1;
        read
    }

    fn choice(&mut self) -> Parsed {
        let condition = self.logical(Kinds::of(&["?"]), true)?;
        let Some(at) = self.reader.take("?") else { return Ok(condition) };
        let yes = self.logical(Kinds::of(&[":"]), false)?;
        self.reader.expect(Kinds::of(&[":"]), Kinds::EXPRESSION, false)?;
        let no = self.rule(Kinds::NONE, true, Self::expr)?;
        Self::node(at, Kind::Choice(condition.into(), yes.into(), no.into()))
    }

    /// Terms joined by `&&` and `||`, as balanced trees: rules with hundreds of alternatives are written.
    fn logical(&mut self, kinds: Kinds, may_end: bool) -> Parsed {
        self.reader.enter(kinds, may_end);
        let (mut all, mut signs) = (Vec::new(), Vec::new());
        let (mut terms, mut inner) = (Vec::new(), Vec::new());
        let whole = loop {
            terms.push(self.operation(1)?);
            if let Some(at) = self.reader.take("&&") {
                inner.push(at);
                continue;
            }
            all.push(Self::joined(std::mem::take(&mut terms), &std::mem::take(&mut inner), Kind::And)?);
            match self.reader.take("||") {
                Some(at) => signs.push(at),
                None => break Self::joined(all, &signs, Kind::Or)?,
            }
        };
        self.reader.leave(Ok(()))?;
        Ok(whole)
    }

    fn joined(terms: Vec<Expr>, signs: &[usize], join: fn(Box<Expr>, Box<Expr>) -> Kind) -> Parsed {
        Self::bounded(balanced(&mut terms.into_iter(), signs, join))
    }

    /// Operands and the operators between them of at least this rank, from the left; each makes the tree one higher.
    fn operation(&mut self, least: u8) -> Parsed {
        let mut left = self.operand()?;
        loop {
            let rank = match self.reader.peek() {
                Token::Sign("<" | "<=" | ">" | ">=" | "==" | "!=" | "in") => 1,
                Token::Sign("+" | "-") => 2,
                Token::Sign("*" | "/" | "%") => 3,
                _ => 0,
            };
            if rank < least {
                return Ok(left);
            }
            let (at, token) = self.reader.advance();
            let right = self.operation(rank + 1)?;
            let name = match token {
                Token::Sign("in") => "@in".to_owned(),
                Token::Sign(sign) => format!("_{sign}_"),
                _ => return self.reader.no_way(0),
            };
            left = Self::bounded(Expr::call(at, &name, vec![left, right]))?;
        }
    }

    /// What operators stand between. Whichever rule of the grammar gets lost here, the way back is the same.
    fn operand(&mut self) -> Parsed {
        const OPERATORS: Kinds =
            Kinds::of(&["&&", "||", "<", "<=", ">", ">=", "==", "!=", "in", "+", "-", "*", "/", "%"]);
        self.rule(OPERATORS, true, Self::unary)
    }

    fn unary(&mut self) -> Parsed {
        self.reader.branch(Kinds::EXPRESSION)?;
        let sign = match self.reader.peek() {
            Token::Sign(sign @ ("!" | "-")) => *sign,
            _ => return self.member(),
        };
        if sign == "-" {
            let next = self.reader.kind(1);
            // A minus belongs to the number after it.
            if Kinds::INT.or(Kinds::DOUBLE).has(next) {
                return self.member();
            }
            if !Kinds::OPERAND.has(next) {
                return self.reader.no_way(1);
            }
        }
        let (at, _) = self.reader.advance();
        let follow = Kinds::OPERAND.or(Kinds::sign(sign));
        let mut count = 1;
        self.reader.round(follow);
        while self.reader.take(sign).is_some() {
            count += 1;
            self.reader.round(follow);
        }
        let operand = self.member()?;
        let name = if sign == "!" { "!_" } else { "-_" };
        Self::bounded(if count % 2 == 1 { Expr::call(at, name, vec![operand]) } else { operand })
    }

    fn member(&mut self) -> Parsed {
        let primary = self.rule(SUFFIXES, true, Self::primary)?;
        self.suffixes(primary)
    }

    fn suffixes(&mut self, mut operand: Expr) -> Parsed {
        loop {
            if self.reader.is(".") {
                operand = self.selected(operand)?;
            } else if let Some(at) = self.reader.take("[") {
                self.reader.branch(Kinds::EXPRESSION.or(Kinds::of(&["?"])))?;
                let optional = self.reader.take("?").is_some();
                let index = self.rule(Kinds::of(&["]"]), false, Self::expr)?;
                self.reader.expect(Kinds::of(&["]"]), SUFFIXES, true)?;
                operand = Self::node(at, Kind::Index { operand: operand.into(), index: index.into(), optional })?;
            } else if let Some(name) = Some(&operand).filter(|_| self.reader.is("{")).and_then(qualified) {
                operand = self.message(name)?;
            } else {
                return Ok(operand);
            }
        }
    }

    /// A field of an operand, or a function called on it.
    fn selected(&mut self, operand: Expr) -> Parsed {
        let (next, after) = (self.reader.kind(1), self.reader.kind(2));
        if next == Kinds::NAME && after == Kinds::of(&["("]) {
            self.reader.advance();
            let field = self.name()?;
            return self.call(Some(operand), field);
        }
        let optional = next == Kinds::of(&["?"]);
        if !optional && !Kinds::NAME.or(Kinds::ESCAPED).has(next) {
            return self.reader.no_way(1);
        }
        let (at, _) = self.reader.advance();
        if optional {
            self.reader.advance();
        }
        let field = self.part(SUFFIXES, true, Self::name)?.unwrap_or_default();
        // The only names of types that are not plain.
        if matches!(&*field, "Timestamp" | "Duration") && qualified(&operand).as_deref() == Some("google.protobuf") {
            return Self::node(at, Kind::Name(format!("google.protobuf.{field}")));
        }
        Self::node(at, Kind::Select { operand: operand.into(), field, test: false, optional })
    }

    /// A name. Backquotes are read, but mean nothing here.
    fn name(&mut self) -> Parsed<String> {
        self.reader.branch(Kinds::NAME.or(Kinds::ESCAPED))?;
        match self.reader.advance() {
            (_, Token::Name(name)) => Ok(name),
            (at, Token::Escaped(_)) => {
                self.meaning.push(Issue { at, text: "unsupported syntax: '`'".into() });
                Ok(String::new())
            }
            _ => self.reader.no_way(0),
        }
    }

    fn primary(&mut self) -> Parsed {
        let at = self.reader.at();
        let kind = match self.reader.peek().clone() {
            Token::Sign("(") => {
                self.reader.advance();
                let inner = self.rule(Kinds::of(&[")"]), false, Self::expr)?;
                self.reader.expect(Kinds::of(&[")"]), Kinds::NONE, true)?;
                return Ok(inner);
            }
            Token::Sign("[") => return self.list(),
            Token::Sign("{") => return self.map(),
            Token::Sign(".") => {
                if self.reader.kind(1) != Kinds::NAME {
                    return self.reader.no_way(1);
                }
                self.reader.advance();
                return self.primary();
            }
            Token::Sign("-") => {
                if !Kinds::INT.or(Kinds::DOUBLE).has(self.reader.kind(1)) {
                    return self.reader.no_way(1);
                }
                self.reader.advance();
                match self.reader.advance().1 {
                    Token::Smallest => Kind::Int(i64::MIN),
                    Token::Int(number) => Kind::Int(-number),
                    Token::Double(number) => Kind::Double(-number),
                    Token::Wrong(_, why) => return Ok(self.means_nothing(at, why)),
                    _ => return self.reader.no_way(0),
                }
            }
            Token::Name(name) => {
                self.reader.advance();
                let is_reserved = is_reserved(&name);
                if is_reserved {
                    self.meaning.push(Issue { at, text: format!("reserved identifier: {name}") });
                }
                if self.reader.is("(") {
                    return self.call(None, name);
                }
                if is_reserved {
                    return Ok(nothing(at));
                }
                Kind::Name(name)
            }
            Token::Sign("true") => self.literal(Kind::Bool(true)),
            Token::Sign("false") => self.literal(Kind::Bool(false)),
            Token::Sign("null") => self.literal(Kind::Null),
            Token::Int(number) => self.literal(Kind::Int(number)),
            Token::Uint(number) => self.literal(Kind::Uint(number)),
            Token::Double(number) => self.literal(Kind::Double(number)),
            Token::Text(text) => self.literal(Kind::Text(text)),
            Token::Bytes(bytes) => self.literal(Kind::Bytes(bytes.into())),
            Token::Smallest => {
                self.reader.advance();
                return Ok(self.means_nothing(at, "invalid int literal"));
            }
            Token::Wrong(_, why) => {
                self.reader.advance();
                return Ok(self.means_nothing(at, why));
            }
            _ => return self.reader.no_way(0),
        };
        Ok(Expr::new(at, kind))
    }

    fn literal(&mut self, kind: Kind) -> Kind {
        self.reader.advance();
        kind
    }

    /// Whether a comma goes on with a list: one may also stand before the end of it.
    fn goes_on(&mut self) -> bool {
        let begins = Kinds::EXPRESSION.or(Kinds::of(&["?"])).or(Kinds::ESCAPED);
        self.reader.is(",") && begins.has(self.reader.kind(1)) && self.reader.take(",").is_some()
    }

    /// The items between brackets, read as a rule of their own; a comma may come after the last.
    fn between<T>(
        &mut self,
        close: &str,
        begins: Kinds,
        read: impl FnOnce(&mut Self) -> Parsed<Vec<T>>,
    ) -> Parsed<Vec<T>> {
        let (close, comma) = (Kinds::sign(close), Kinds::of(&[","]));
        self.reader.branch(begins.or(close).or(comma))?;
        let mut items = Vec::new();
        if begins.has(self.reader.kind(0)) {
            items = self.part(comma.or(close), false, read)?.unwrap_or_default();
        }
        self.reader.branch(comma.or(close))?;
        self.reader.take(",");
        self.reader.expect(close, Kinds::NONE, true)?;
        Ok(items)
    }

    fn list(&mut self) -> Parsed {
        let (at, _) = self.reader.advance();
        let begins = Kinds::EXPRESSION.or(Kinds::of(&["?"]));
        let items = self.between("]", begins, |parser| {
            let mut items = Vec::new();
            loop {
                let optional = parser.reader.take("?").is_some();
                items.push((parser.rule(Kinds::of(&[","]), true, Self::expr)?, optional));
                if !parser.goes_on() {
                    return Ok(items);
                }
            }
        })?;
        Self::node(at, Kind::List(items))
    }

    fn map(&mut self) -> Parsed {
        let (at, _) = self.reader.advance();
        let begins = Kinds::EXPRESSION.or(Kinds::of(&["?"]));
        let entries = self.between("}", begins, |parser| {
            let mut entries = Vec::new();
            loop {
                let optional = parser.reader.take("?").is_some();
                let key = parser.rule(Kinds::of(&[":"]), false, Self::expr)?;
                parser.reader.expect(Kinds::of(&[":"]), Kinds::EXPRESSION, false)?;
                entries.push((key, parser.rule(Kinds::of(&[","]), true, Self::expr)?, optional));
                if !parser.goes_on() {
                    return Ok(entries);
                }
            }
        })?;
        Self::node(at, Kind::Map(entries))
    }

    /// `Type{field: value}`.
    fn message(&mut self, name: String) -> Parsed {
        let (at, _) = self.reader.advance();
        let begins = Kinds::NAME.or(Kinds::ESCAPED).or(Kinds::of(&["?"]));
        let fields = self.between("}", begins, |parser| {
            let mut fields = Vec::new();
            loop {
                let optional = parser.reader.take("?").is_some();
                let field = parser.part(Kinds::of(&[":"]), false, Self::name)?.unwrap_or_default();
                let colon = parser.reader.expect(Kinds::of(&[":"]), Kinds::EXPRESSION, false)?;
                fields.push((colon, field, parser.rule(Kinds::of(&[","]), true, Self::expr)?, optional));
                if !parser.goes_on() {
                    return Ok(fields);
                }
            }
        })?;
        Self::node(at, Kind::Message { name, fields })
    }

    fn call(&mut self, target: Option<Expr>, name: String) -> Parsed {
        let (at, _) = self.reader.advance();
        let close = Kinds::of(&[")"]);
        let mut args = Vec::new();
        self.reader.branch(Kinds::EXPRESSION.or(close))?;
        if Kinds::EXPRESSION.has(self.reader.kind(0)) {
            let read = self.part(close, false, |parser| {
                let mut args = vec![parser.rule(Kinds::of(&[","]), true, Self::expr)?];
                while parser.reader.take(",").is_some() {
                    args.push(parser.rule(Kinds::of(&[","]), true, Self::expr)?);
                }
                Ok(args)
            })?;
            args = read.unwrap_or_default();
        }
        let after = if target.is_some() { SUFFIXES } else { Kinds::NONE };
        self.reader.expect(close, after, true)?;
        match expand(at, target, name, args) {
            Ok(expr) => Self::bounded(expr),
            Err(issue) => Ok(self.means_nothing(issue.at, issue.text)),
        }
    }
}

/// The name of a macro's variable; `or` is what to say of anything else.
fn variable(expr: &Expr, or: &str) -> Result<String, Issue> {
    match &expr.kind {
        Kind::Name(name) => Ok(name.clone()),
        _ => Err(Issue { at: expr.at, text: or.into() }),
    }
}

/// Turns calls of macros into what they stand for.
fn expand(at: usize, target: Option<Expr>, name: String, mut args: Vec<Expr>) -> Result<Expr, Issue> {
    let count = args.len();
    let Some(range) = target else {
        if name == "has" && count == 1 {
            return match args.remove(0) {
                Expr { kind: Kind::Select { operand, field, optional: false, .. }, .. } => {
                    Ok(Expr::new(at, Kind::Select { operand, field, test: true, optional: false }))
                }
                other => Err(Issue { at: other.at, text: "invalid argument to has() macro".into() }),
            };
        }
        return Ok(Expr::new(at, Kind::Call { name, target: None, args }));
    };
    let kind = match (name.as_str(), count) {
        ("all", 2 | 3) => Some(Macro::All),
        ("exists", 2 | 3) => Some(Macro::Exists),
        ("exists_one" | "existsOne", 2 | 3) => Some(Macro::ExistsOne),
        ("map", 2 | 3) => Some(Macro::Map),
        ("filter", 2) => Some(Macro::Filter),
        ("transformList", 3 | 4) => Some(Macro::Map),
        ("transformMap", 3 | 4) => Some(Macro::TransformMap),
        ("transformMapEntry", 3 | 4) => Some(Macro::TransformMapEntry),
        ("sortBy", 2) => Some(Macro::SortBy),
        _ => None,
    };
    if let Some(macro_kind) = kind {
        let two = name.starts_with("transform") || count == 3 && name != "map";
        let older = matches!(macro_kind, Macro::Map | Macro::Filter) && !two;
        let wrong = if older { "argument is not an identifier" } else { "argument must be a simple name" };
        let first = variable(&args[0], wrong)?;
        let second = if two { Some(variable(&args[1], wrong)?) } else { None };
        let body = args.pop().unwrap_or_else(|| Expr::new(at, Kind::Null));
        let fixed = if two { 2 } else { 1 };
        let filter = if args.len() > fixed { args.pop() } else { None };
        return Ok(Expr::new(at, Kind::Fold(Box::new(Fold { macro_kind, range, first, second, filter, body }))));
    }
    if matches!(name.as_str(), "optMap" | "optFlatMap") && count == 2 {
        let body = args.pop().unwrap_or_else(|| Expr::new(at, Kind::Null));
        let variable = variable(&args[0], &format!("{name}() variable name must be a simple identifier"))?;
        let flat = name == "optFlatMap";
        return Ok(Expr::new(at, Kind::OptionalMap { operand: range.into(), name: variable, body: body.into(), flat }));
    }
    Ok(Expr::new(at, Kind::Call { name, target: Some(range.into()), args }))
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXPRESSION: &str = "expecting {'[', '{', '(', '.', '-', '!', 'true', 'false', 'null', NUM_FLOAT, NUM_INT, \
                              NUM_UINT, STRING, BYTES, IDENTIFIER}";

    /// What is complained about, by place; the long list of what an expression begins with is shortened.
    fn told(text: &str) -> Vec<String> {
        let mut issues = parse(text).expect_err(text);
        issues.sort_by_key(|issue| issue.at);
        let shown = |issue: Issue| {
            let text = issue.text.replace("Syntax error: ", "").replace(EXPRESSION, "expecting E");
            format!("{}: {text}", issue.at + 1)
        };
        issues.into_iter().map(shown).collect()
    }

    #[test]
    fn mistakes_are_told_as_the_parsers_of_antlr_tell_them() {
        for (text, expected) in [
            ("a | b", &["3: token recognition error at: '| '", "5: extraneous input 'b' expecting <EOF>"][..]),
            (
                "*@a | b",
                &[
                    "1: extraneous input '*' expecting E",
                    "2: token recognition error at: '@'",
                    "5: token recognition error at: '| '",
                    "7: extraneous input 'b' expecting <EOF>",
                ],
            ),
            ("1 + $", &["5: token recognition error at: '$'", "6: mismatched input '<EOF>' expecting E"]),
            (
                r#""\xFh""#,
                &[
                    r#"1: token recognition error at: '"\xFh'"#,
                    "6: token recognition error at: '\"'",
                    "7: mismatched input '<EOF>' expecting E",
                ],
            ),
            ("1 + 2\n3 +", &["7: mismatched input '3' expecting <EOF>"]),
            ("T{}()", &["4: mismatched input '(' expecting <EOF>"]),
            (r#"{"a": 1}."a""#, &[r#"10: no viable alternative at input '."a"'"#]),
            ("a.", &["3: no viable alternative at input '.'"]),
            ("a.true", &["3: no viable alternative at input '.true'"]),
            ("a == 'b' 'c'", &["10: extraneous input ''c'' expecting <EOF>"]),
            ("size(a > 0", &["11: missing ')' at '<EOF>'"]),
            ("a['b' == 1", &["11: missing ']' at '<EOF>'"]),
            ("f(g(1", &["6: mismatched input '<EOF>' expecting ')'"]),
            ("f(1 2)", &["5: extraneous input '2' expecting ')'"]),
            ("(1 + 2", &["7: missing ')' at '<EOF>'"]),
            ("1 + 2)", &["6: extraneous input ')' expecting <EOF>"]),
            ("[1, 2", &["6: mismatched input '<EOF>' expecting {']', ','}"]),
            ("[1 2]", &["4: extraneous input '2' expecting {']', ','}"]),
            ("{'a' 1}", &["6: missing ':' at '1'"]),
            ("a ? b", &["6: mismatched input '<EOF>' expecting ':'"]),
            ("a &&", &["5: mismatched input '<EOF>' expecting E"]),
            ("a && || b", &["6: extraneous input '||' expecting E"]),
            ("!", &["2: extraneous input '<EOF>' expecting E"]),
            ("!-a", &["3: no viable alternative at input '-a'"]),
            ("", &["1: mismatched input '<EOF>' expecting E"]),
            (
                "f(",
                &["3: mismatched input '<EOF>' expecting {'[', '{', '(', ')', '.', '-', '!', 'true', 'false', \
                'null', NUM_FLOAT, NUM_INT, NUM_UINT, STRING, BYTES, IDENTIFIER}"],
            ),
            ("f(1,)", &["5: mismatched input ')' expecting E"]),
            (
                r"a.matches('\d+')",
                &[
                    r"11: token recognition error at: ''\d'",
                    "14: mismatched input '+' expecting {'[', '{', '(', ')', '.', '-', '!', 'true', 'false', 'null', \
                     NUM_FLOAT, NUM_INT, NUM_UINT, STRING, BYTES, IDENTIFIER}",
                    "15: token recognition error at: '')'",
                    "17: mismatched input '<EOF>' expecting E",
                ],
            ),
        ] {
            assert_eq!(told(text), expected, "{text}");
        }
    }

    #[test]
    fn what_is_an_expression_without_meaning_is_told_everywhere() {
        let expected = [
            "12: reserved identifier: var",
            "12: argument is not an identifier",
            "17: reserved identifier: var",
            "23: reserved identifier: var",
        ];
        assert_eq!(told("[1, 2].map(var, var * var)"), expected);
        assert_eq!(
            told("a.all(1, true) || has(b)"),
            ["7: argument must be a simple name", "23: invalid argument to has() macro"]
        );
        assert_eq!(told("99999999999999999999 == 1"), ["1: invalid int literal"]);
    }
}
