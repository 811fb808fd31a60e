//! Tokens to a tree; macros are expanded on the way.

use super::ast::{Expr, Fold, Kind, Macro};
use super::issue::Issue;
use super::lex::{Token, lex};
use super::words::is_reserved;

/// Deepest tree. Whoever walks it recurses, so chains of operators and of selections count as they nest.
const MAX_DEPTH: usize = 120;

/// Reads an expression.
///
/// # Errors
/// Characters that belong to no token, and the first place where the text is no expression.
pub fn parse(text: &str) -> Result<Expr, Vec<Issue>> {
    let mut complaints = Vec::new();
    match whole(text, &mut complaints) {
        Ok(expr) if complaints.is_empty() => return Ok(expr),
        Ok(_) => {}
        Err(issue) => complaints.push(issue),
    }
    Err(complaints)
}

fn whole(text: &str, complaints: &mut Vec<Issue>) -> Parsed {
    let mut parser = Parser { tokens: lex(text, complaints)?, next: 0, depth: 0 };
    let expr = parser.expr()?;
    match parser.peek() {
        Token::End => Ok(expr),
        _ => Err(parser.unexpected("<EOF>")),
    }
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

struct Parser {
    tokens: Vec<(usize, Token)>,
    next: usize,
    depth: usize,
}

type Parsed = Result<Expr, Issue>;

impl Parser {
    fn peek(&self) -> &Token {
        &self.tokens[self.next.min(self.tokens.len() - 1)].1
    }

    fn at(&self) -> usize {
        self.tokens[self.next.min(self.tokens.len() - 1)].0
    }

    fn advance(&mut self) -> (usize, Token) {
        let token = self.tokens[self.next.min(self.tokens.len() - 1)].clone();
        self.next += 1;
        token
    }

    fn is(&self, sign: &str) -> bool {
        matches!(self.peek(), Token::Sign(s) if *s == sign)
    }

    /// Takes a sign if it is next; where it stands.
    fn take(&mut self, sign: &str) -> Option<usize> {
        self.is(sign).then(|| self.advance().0)
    }

    fn expect(&mut self, sign: &str) -> Result<usize, Issue> {
        self.take(sign).ok_or_else(|| self.unexpected(&format!("'{sign}'")))
    }

    fn unexpected(&self, wanted: &str) -> Issue {
        let found = match self.peek() {
            Token::End => "<EOF>".to_owned(),
            Token::Sign(sign) => (*sign).to_owned(),
            Token::Name(name) => name.clone(),
            Token::Int(number) => number.to_string(),
            Token::Smallest => "9223372036854775808".into(),
            Token::Uint(number) => format!("{number}u"),
            Token::Double(number) => number.to_string(),
            Token::Text(text) => format!("'{text}'"),
            Token::Bytes(_) => "bytes".into(),
        };
        Issue { at: self.at(), text: format!("Syntax error: mismatched input '{found}' expecting {wanted}") }
    }

    /// Notes that the tree gets one deeper here.
    fn deeper(&mut self) -> Result<(), Issue> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(Issue { at: self.at(), text: format!("expression recursion limit exceeded: {MAX_DEPTH}") });
        }
        Ok(())
    }

    /// Reads a chain whose every link makes the tree one deeper; afterwards the depth is what it was.
    fn chain(&mut self, read: impl FnOnce(&mut Self) -> Parsed) -> Parsed {
        let depth = self.depth;
        let out = read(self);
        self.depth = depth;
        out
    }

    fn expr(&mut self) -> Parsed {
        self.deeper()?;
        let condition = self.or()?;
        let out = match self.take("?") {
            None => condition,
            Some(at) => {
                let yes = self.or()?;
                self.expect(":")?;
                let no = self.expr()?;
                Expr::new(at, Kind::Choice(condition.into(), yes.into(), no.into()))
            }
        };
        self.depth -= 1;
        Ok(out)
    }

    fn or(&mut self) -> Parsed {
        self.logical("||", Self::and, Kind::Or)
    }

    fn and(&mut self) -> Parsed {
        self.logical("&&", Self::relation, Kind::And)
    }

    /// Terms joined by one sign, as a balanced tree: rules with hundreds of alternatives are written.
    fn logical(&mut self, sign: &str, term: fn(&mut Self) -> Parsed, join: fn(Box<Expr>, Box<Expr>) -> Kind) -> Parsed {
        let (mut terms, mut signs) = (vec![term(self)?], Vec::new());
        while let Some(at) = self.take(sign) {
            signs.push(at);
            terms.push(term(self)?);
        }
        let levels = terms.len().next_power_of_two().trailing_zeros() as usize;
        if self.depth + levels > MAX_DEPTH {
            return Err(Issue { at: self.at(), text: format!("expression recursion limit exceeded: {MAX_DEPTH}") });
        }
        Ok(balanced(&mut terms.into_iter(), &signs, join))
    }

    fn relation(&mut self) -> Parsed {
        self.chain(Self::relations)
    }

    fn relations(&mut self) -> Parsed {
        let mut left = self.sum()?;
        loop {
            let name = match self.peek() {
                Token::Sign(sign @ ("<" | "<=" | ">" | ">=" | "==" | "!=")) => format!("_{sign}_"),
                Token::Name(name) if name == "in" => "@in".into(),
                _ => return Ok(left),
            };
            let (at, _) = self.advance();
            self.deeper()?;
            let right = self.sum()?;
            left = Expr::call(at, &name, vec![left, right]);
        }
    }

    fn sum(&mut self) -> Parsed {
        self.chain(Self::sums)
    }

    fn sums(&mut self) -> Parsed {
        let mut left = self.product()?;
        while let Token::Sign(sign @ ("+" | "-")) = *self.peek() {
            let (at, _) = self.advance();
            self.deeper()?;
            let right = self.product()?;
            left = Expr::call(at, &format!("_{sign}_"), vec![left, right]);
        }
        Ok(left)
    }

    fn product(&mut self) -> Parsed {
        self.chain(Self::products)
    }

    fn products(&mut self) -> Parsed {
        let mut left = self.unary()?;
        while let Token::Sign(sign @ ("*" | "/" | "%")) = *self.peek() {
            let (at, _) = self.advance();
            self.deeper()?;
            let right = self.unary()?;
            left = Expr::call(at, &format!("_{sign}_"), vec![left, right]);
        }
        Ok(left)
    }

    fn unary(&mut self) -> Parsed {
        let Token::Sign(sign @ ("!" | "-")) = *self.peek() else { return self.member() };
        let (at, _) = self.advance();
        let mut count = 1;
        while self.take(sign).is_some() {
            count += 1;
        }
        // A minus belongs to the number after it.
        if sign == "-" && count == 1 {
            match *self.peek() {
                Token::Smallest => {
                    self.next += 1;
                    return self.suffixes(Expr::new(at, Kind::Int(i64::MIN)));
                }
                Token::Int(number) => {
                    self.next += 1;
                    return self.suffixes(Expr::new(at, Kind::Int(-number)));
                }
                Token::Double(number) => {
                    self.next += 1;
                    return self.suffixes(Expr::new(at, Kind::Double(-number)));
                }
                _ => {}
            }
        }
        let operand = self.member()?;
        let name = if sign == "!" { "!_" } else { "-_" };
        Ok(if count % 2 == 1 { Expr::call(at, name, vec![operand]) } else { operand })
    }

    fn member(&mut self) -> Parsed {
        let primary = self.primary()?;
        self.suffixes(primary)
    }

    fn suffixes(&mut self, operand: Expr) -> Parsed {
        self.chain(|parser| parser.suffix_chain(operand))
    }

    fn suffix_chain(&mut self, mut operand: Expr) -> Parsed {
        loop {
            self.deeper()?;
            if let Some(at) = self.take(".?") {
                let field = self.name()?;
                let operand_box = Box::new(operand);
                operand = Expr::new(at, Kind::Select { operand: operand_box, field, test: false, optional: true });
            } else if let Some(at) = self.take(".") {
                let field = self.name()?;
                match self.is("(") {
                    true => operand = self.call(Some(operand), field)?,
                    false => {
                        let operand_box = Box::new(operand);
                        operand =
                            Expr::new(at, Kind::Select { operand: operand_box, field, test: false, optional: false });
                    }
                }
            } else if self.is("[") || self.is("[?") {
                let optional = self.is("[?");
                let (at, _) = self.advance();
                let index = self.expr()?;
                self.expect("]")?;
                operand = Expr::new(at, Kind::Index { operand: operand.into(), index: index.into(), optional });
            } else if let Some(name) = Some(&operand).filter(|_| self.is("{")).and_then(qualified) {
                operand = self.message(name)?;
            } else {
                return Ok(operand);
            }
        }
    }

    /// `Type{field: value}`.
    fn message(&mut self, name: String) -> Parsed {
        let at = self.expect("{")?;
        let mut fields = Vec::new();
        while !self.is("}") {
            let optional = self.take("?").is_some();
            let field = self.name()?;
            let colon = self.expect(":")?;
            fields.push((colon, field, self.expr()?, optional));
            if self.take(",").is_none() {
                break;
            }
        }
        self.expect("}")?;
        Ok(Expr::new(at, Kind::Message { name, fields }))
    }

    fn name(&mut self) -> Result<String, Issue> {
        match self.peek().clone() {
            Token::Name(name) => {
                self.next += 1;
                Ok(name)
            }
            _ => Err(self.unexpected("IDENTIFIER")),
        }
    }

    fn primary(&mut self) -> Parsed {
        let at = self.at();
        let kind = match self.peek().clone() {
            Token::Sign("(") => {
                self.next += 1;
                let inner = self.expr()?;
                self.expect(")")?;
                return Ok(inner);
            }
            Token::Sign("[") => return self.list(),
            Token::Sign("[?") => return self.list(),
            Token::Sign("{") => return self.map(),
            Token::Sign(".") => {
                self.next += 1;
                return match self.peek() {
                    Token::Name(_) => self.primary(),
                    _ => Err(self.unexpected("IDENTIFIER")),
                };
            }
            Token::Name(name) => {
                self.next += 1;
                match name.as_str() {
                    "true" => Kind::Bool(true),
                    "false" => Kind::Bool(false),
                    "null" => Kind::Null,
                    _ if self.is("(") => return self.call(None, name),
                    reserved if is_reserved(reserved) => {
                        return Err(Issue { at, text: format!("reserved identifier: {reserved}") });
                    }
                    _ => Kind::Name(name),
                }
            }
            Token::Int(number) => self.literal(Kind::Int(number)),
            Token::Uint(number) => self.literal(Kind::Uint(number)),
            Token::Double(number) => self.literal(Kind::Double(number)),
            Token::Text(text) => self.literal(Kind::Text(text)),
            Token::Bytes(bytes) => self.literal(Kind::Bytes(bytes)),
            Token::Smallest => return Err(Issue { at, text: "invalid int literal".into() }),
            _ => return Err(self.unexpected("{'[', '{', '(', '.', '-', '!', 'true', 'false', 'null', NUM_FLOAT, NUM_INT, NUM_UINT, STRING, BYTES, IDENTIFIER}")),
        };
        Ok(Expr::new(at, kind))
    }

    fn literal(&mut self, kind: Kind) -> Kind {
        self.next += 1;
        kind
    }

    fn list(&mut self) -> Parsed {
        let optional_first = self.is("[?");
        let (at, _) = self.advance();
        let mut items = Vec::new();
        let mut optional = optional_first;
        while optional || !self.is("]") {
            optional = optional || self.take("?").is_some();
            items.push((self.expr()?, std::mem::take(&mut optional)));
            if self.take(",").is_none() {
                break;
            }
        }
        self.expect("]")?;
        Ok(Expr::new(at, Kind::List(items)))
    }

    fn map(&mut self) -> Parsed {
        let at = self.expect("{")?;
        let mut entries = Vec::new();
        while !self.is("}") {
            let optional = self.take("?").is_some();
            let key = self.expr()?;
            self.expect(":")?;
            entries.push((key, self.expr()?, optional));
            if self.take(",").is_none() {
                break;
            }
        }
        self.expect("}")?;
        Ok(Expr::new(at, Kind::Map(entries)))
    }

    fn call(&mut self, target: Option<Expr>, name: String) -> Parsed {
        let at = self.expect("(")?;
        let mut args = Vec::new();
        while !self.is(")") {
            args.push(self.expr()?);
            if self.take(",").is_none() {
                break;
            }
        }
        self.expect(")")?;
        expand(at, target, name, args)
    }
}

fn variable(expr: &Expr) -> Result<String, Issue> {
    match &expr.kind {
        Kind::Name(name) => Ok(name.clone()),
        _ => Err(Issue { at: expr.at, text: "argument must be a simple name".into() }),
    }
}

/// Turns calls of macros into what they stand for.
fn expand(at: usize, target: Option<Expr>, name: String, mut args: Vec<Expr>) -> Parsed {
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
        let first = variable(&args[0])?;
        let second = if two { Some(variable(&args[1])?) } else { None };
        let body = args.pop().unwrap_or_else(|| Expr::new(at, Kind::Null));
        let fixed = if two { 2 } else { 1 };
        let filter = if args.len() > fixed { args.pop() } else { None };
        return Ok(Expr::new(at, Kind::Fold(Box::new(Fold { macro_kind, range, first, second, filter, body }))));
    }
    if matches!(name.as_str(), "optMap" | "optFlatMap") && count == 2 {
        let body = args.pop().unwrap_or_else(|| Expr::new(at, Kind::Null));
        let variable = variable(&args[0])?;
        let flat = name == "optFlatMap";
        return Ok(Expr::new(at, Kind::OptionalMap { operand: range.into(), name: variable, body: body.into(), flat }));
    }
    Ok(Expr::new(at, Kind::Call { name, target: Some(range.into()), args }))
}
