//! JSONPath as printer columns and selectable fields use it.
//!
//! Follows client-go's `jsonpath`, oddities included: `.a.b`, `.a['b']` (where `['b.c']` is two steps and `['b\\.c']`
//! one), `.list[0]`, `.list[-1]`, `.list[*]`, `.list[1:5:2]`, `.list[0,2]`, `.a.*`, `..name` and
//! `.list[?(@.type=="Ready")].status`. A path that meets something else than it expects finds nothing at all.
//!
//! Limits: a path of very many steps, or of very many parts between commas, counts as malformed. One that would look at
//! more values than any object has finds nothing: whoever may define columns may not keep the server busy with them.

use std::cell::Cell;

use serde_json::Value;

/// Deepest nesting of paths in paths.
const MAX_NESTED: usize = 8;
/// Most steps of a path, and parts between commas: far more than objects are deep.
const MAX_STEPS: usize = 500;
/// Most values that a path finds. A path of several `..` meets a value in many ways.
const MAX_FOUND: usize = 10_000;

/// Most values that are looked at for one path, each time it is met counted: an object of the largest size is looked at
/// whole, and no more than that.
const MAX_LOOKED: usize = 1_000_000;
/// Most values that are looked at for the paths of a page of objects, of whatever number: a tenth of a second.
const MAX_OF_PAGE: usize = 10_000_000;
/// Values that are looked at for any path, however many the others took. Most columns need some ten.
const FREE: usize = 1000;

/// How many values may still be looked at for a path, and for all of a page.
pub struct Looks {
    path: Cell<usize>,
    page: Cell<usize>,
}

impl Looks {
    /// For the paths of many objects.
    pub fn of_page() -> Self {
        Looks { path: Cell::new(0), page: Cell::new(MAX_OF_PAGE) }
    }

    /// Begins with another path.
    fn begin(&self) {
        self.path.set(self.page.get().clamp(FREE, MAX_LOOKED));
    }

    fn spend(&self, count: usize) -> Result<(), Mismatch> {
        self.page.set(self.page.get().saturating_sub(count));
        self.path.set(self.path.get().checked_sub(count).ok_or(Mismatch)?);
        Ok(())
    }
}

/// A path that was read.
#[derive(Debug, Clone, PartialEq)]
pub struct Path(Vec<Step>);

#[derive(Debug, Clone, PartialEq)]
enum Step {
    Member(Box<str>),
    Slice(Slice),
    /// Every member or item.
    All,
    /// The value and every value below that has something in it.
    Below,
    Filter(Box<Filter>),
    Union(Vec<Path>),
    /// A value that stands in the path itself, for each value that is met.
    Constant(Value),
    /// A word that means nothing.
    Unknown,
}

/// Items from one place to another, counted from the end where they are negative.
#[derive(Debug, Clone, PartialEq)]
struct Slice {
    from: Option<i64>,
    to: Option<i64>,
    step: Option<i64>,
    /// One item was asked for, and `to` only follows from it.
    single: bool,
}

#[derive(Debug, Clone, PartialEq)]
struct Filter {
    left: Path,
    operator: Operator,
    right: Path,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Operator {
    Exists,
    Equal,
    Unequal,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
    Unknown,
}

/// What a path meets is not what it is about.
struct Mismatch;

impl Path {
    /// Reads a path such as `.spec.replicas`; None for one that is malformed.
    pub fn parse(text: &str) -> Option<Self> {
        Path::nested(text, 0)
    }

    fn nested(text: &str, depth: usize) -> Option<Self> {
        if depth > MAX_NESTED {
            return None;
        }
        let mut steps = Vec::new();
        let mut rest = text;
        while let Some(next) = rest.chars().next() {
            if steps.len() > MAX_STEPS {
                return None;
            }
            if let Some(after) = rest.strip_prefix("[?(") {
                let (filter, after) = filter(after, depth)?;
                steps.push(Step::Filter(Box::new(filter)));
                rest = after;
            } else if let Some(after) = rest.strip_prefix("..") {
                if steps.last() == Some(&Step::Below) {
                    return None;
                }
                steps.push(Step::Below);
                rest = after;
                if after.starts_with(|c: char| c == '_' || c.is_alphanumeric()) {
                    rest = member(after, &mut steps);
                }
            } else if let Some(after) = rest.strip_prefix('.') {
                rest = member(after, &mut steps);
            } else if let Some(after) = rest.strip_prefix([' ', '@', '$']) {
                rest = after;
            } else if let Some(after) = rest.strip_prefix('[') {
                let (inside, after) = after.split_once(']').filter(|(inside, _)| !inside.contains('\n'))?;
                bracket(inside, depth, &mut steps)?;
                rest = after;
            } else if matches!(next, '"' | '\'') {
                let (text, after) = quoted(rest)?;
                steps.push(Step::Constant(text.into()));
                rest = after;
            } else if matches!(next, '+' | '-') || next.is_ascii_digit() {
                let end = rest[1..].find(|c: char| c != '.' && !c.is_ascii_digit()).map_or(rest.len(), |at| at + 1);
                steps.push(Step::Constant(constant(&rest[..end])?));
                rest = &rest[end..];
            } else if next == '_' || next.is_alphabetic() {
                let end = rest.find(ends).unwrap_or(rest.len());
                steps.push(match &rest[..end] {
                    "true" => Step::Constant(true.into()),
                    "false" => Step::Constant(false.into()),
                    _ => Step::Unknown,
                });
                rest = &rest[end..];
            } else if next == '}' {
                // What follows stands beside the path.
                break;
            } else {
                return None;
            }
        }
        Some(Path(steps))
    }

    /// Every value at the path, in order.
    #[cfg(test)]
    pub fn find<'a>(&'a self, value: &'a Value) -> Vec<&'a Value> {
        let looks = Looks::of_page();
        looks.begin();
        self.walk(vec![value], &looks).unwrap_or_default()
    }

    pub fn first<'a>(&'a self, value: &'a Value) -> Option<&'a Value> {
        self.first_of_page(value, &Looks::of_page())
    }

    /// The same for one of the paths of a page.
    pub fn first_of_page<'a>(&'a self, value: &'a Value, looks: &Looks) -> Option<&'a Value> {
        looks.begin();
        self.walk(vec![value], looks).ok()?.into_iter().next()
    }

    fn walk<'a>(&'a self, values: Vec<&'a Value>, looks: &Looks) -> Result<Vec<&'a Value>, Mismatch> {
        let mut found = values;
        for step in &self.0 {
            found = step.follow(found, looks)?;
            found.truncate(MAX_FOUND);
        }
        Ok(found)
    }
}

/// Where a name ends.
fn ends(c: char) -> bool {
    matches!(c, ' ' | '\t' | '\r' | '\n' | '.' | ',' | '[' | ']' | '$' | '@' | '{' | '}')
}

/// A member's name, up to the next step; a backslash takes the next character into it. Returns what comes after it.
fn member<'a>(text: &'a str, steps: &mut Vec<Step>) -> &'a str {
    let mut out = String::new();
    let mut rest = text;
    while let Some(c) = rest.chars().next().filter(|c| !ends(*c)) {
        rest = &rest[c.len_utf8()..];
        if c != '\\' {
            out.push(c);
        } else if let Some(next) = rest.chars().next() {
            rest = &rest[next.len_utf8()..];
            if next != '\\' {
                out.push(next);
            }
        }
    }
    // Escaped or not, the star alone is every member.
    let said = &text[..text.len() - rest.len()];
    steps.push(if said == "*" { Step::All } else { Step::Member(out.into()) });
    rest
}

/// A text in quotes that a path begins with, and what comes after it.
fn quoted(text: &str) -> Option<(String, &str)> {
    let mut chars = text.char_indices();
    let (_, quote) = chars.next()?;
    let mut out = String::new();
    while let Some((at, c)) = chars.next() {
        match c {
            '\n' => return None,
            c if c == quote => return Some((out, &text[at + 1..])),
            '\\' => out.push(match chars.next()?.1 {
                'n' => '\n',
                'r' => '\r',
                't' => '\t',
                c @ ('\\' | '"' | '\'') => c,
                _ => return None,
            }),
            c => out.push(c),
        }
    }
    None
}

fn constant(text: &str) -> Option<Value> {
    let digits = text.strip_prefix('+').unwrap_or(text);
    match digits.parse::<i64>() {
        Ok(whole) => Some(whole.into()),
        Err(_) => digits.parse::<f64>().ok().map(Value::from),
    }
}

fn bracket(inside: &str, depth: usize, steps: &mut Vec<Step>) -> Option<()> {
    if inside.contains(',') {
        let one = |text: &str| Path::nested(&format!("[{}]", text.trim_matches(' ')), depth + 1);
        let all: Option<Vec<Path>> = inside.split(',').take(MAX_STEPS + 1).map(one).collect();
        steps.push(Step::Union(all.filter(|all| all.len() <= MAX_STEPS)?));
        return Some(());
    }
    let name = inside.strip_prefix('\'').and_then(|name| name.strip_suffix('\''));
    if let Some(name) = name.filter(|name| !name.contains('\'')) {
        steps.extend(Path::nested(&format!(".{name}"), depth + 1)?.0);
        return Some(());
    }
    let parts: Vec<&str> = if inside == "*" { vec!["", ""] } else { inside.split(':').collect() };
    if parts.len() > 3 {
        return None;
    }
    let number = |at: usize| match parts.get(at) {
        None | Some(&"") => Some(None),
        Some(text) if text.trim_start_matches('-').starts_with(|c: char| c.is_ascii_digit()) => {
            text.parse().ok().map(Some)
        }
        Some(_) => None,
    };
    let (from, to, step) = (number(0)?, number(1)?, number(2)?);
    let single = parts.len() == 1;
    steps.push(Step::Slice(Slice { from, to, step, single }));
    Some(())
}

/// A filter, its opening left out, and what comes after it.
fn filter(text: &str, depth: usize) -> Option<(Filter, &str)> {
    const OPERATORS: [char; 4] = ['!', '<', '>', '='];
    let (mut quote, mut closed) = (None, false);
    let mut end = None;
    let mut before = ' ';
    for (at, c) in text.char_indices() {
        match c {
            '\n' => return None,
            '"' | '\'' if quote.is_none() => quote = Some(c),
            '"' | '\'' if before != '\\' && quote == Some(c) => closed = true,
            ')' if quote.is_some() == closed => {
                end = Some(at);
                break;
            }
            _ => {}
        }
        before = c;
    }
    let (inside, after) = text.split_at(end?);
    let after = after.strip_prefix(")]")?;
    let read = |text: &str| Path::nested(text, depth + 1);
    let parts = inside.find(OPERATORS).filter(|at| *at > 0).and_then(|at| {
        let (left, rest) = inside.split_at(at);
        let right = rest.trim_start_matches(OPERATORS);
        (!right.is_empty()).then(|| (left, &rest[..rest.len() - right.len()], right))
    });
    let filter = match parts {
        None => Filter { left: read(inside)?, operator: Operator::Exists, right: Path(Vec::new()) },
        Some((left, sign, right)) => {
            let operator = match sign {
                "==" => Operator::Equal,
                "!=" => Operator::Unequal,
                "<" => Operator::Less,
                "<=" => Operator::LessOrEqual,
                ">" => Operator::Greater,
                ">=" => Operator::GreaterOrEqual,
                _ => Operator::Unknown,
            };
            Filter { left: read(left)?, operator, right: read(right)? }
        }
    };
    Some((filter, after))
}

impl Filter {
    fn matches(&self, value: &Value, looks: &Looks) -> Result<bool, Mismatch> {
        let left = self.left.walk(vec![value], looks);
        if self.operator == Operator::Exists {
            // A path that cannot be followed counts as one that was.
            return Ok(left.map_or(true, |found| !found.is_empty()));
        }
        let (left, right) = (left?, self.right.walk(vec![value], looks)?);
        if left.is_empty() || right.is_empty() {
            return Ok(false);
        }
        let ([left], [right]) = (&*left, &*right) else { return Err(Mismatch) };
        let order = match (left, right) {
            (Value::String(a), Value::String(b)) => a.cmp(b),
            (Value::Number(a), Value::Number(b)) if a.is_f64() == b.is_f64() => match a.as_i64().zip(b.as_i64()) {
                Some((a, b)) => a.cmp(&b),
                None => a.as_f64().partial_cmp(&b.as_f64()).ok_or(Mismatch)?,
            },
            (Value::Bool(a), Value::Bool(b)) if matches!(self.operator, Operator::Equal | Operator::Unequal) => {
                a.cmp(b)
            }
            _ => return Err(Mismatch),
        };
        Ok(match self.operator {
            Operator::Equal => order.is_eq(),
            Operator::Unequal => order.is_ne(),
            Operator::Less => order.is_lt(),
            Operator::LessOrEqual => order.is_le(),
            Operator::Greater => order.is_gt(),
            Operator::GreaterOrEqual => order.is_ge(),
            Operator::Exists | Operator::Unknown => return Err(Mismatch),
        })
    }
}

impl Slice {
    /// The places that it takes of a list.
    fn places(&self, length: usize) -> Result<(usize, usize, usize), Mismatch> {
        let length = i64::try_from(length).unwrap_or(i64::MAX);
        let from = self.from.unwrap_or(0);
        let to = match self.to {
            Some(to) if to < 0 => to.saturating_add(length),
            Some(to) => to,
            None if self.single => match from.saturating_add(1) {
                to if to <= 0 => to.saturating_add(length),
                to => to,
            },
            None => length,
        };
        let from = if from < 0 { from.saturating_add(length) } else { from };
        if from == to {
            return Ok((0, 0, 1));
        }
        if !(0..length).contains(&from) || !(0..=length).contains(&to) || from > to {
            return Err(Mismatch);
        }
        let step = self.step.unwrap_or(1);
        if step <= 0 {
            return Err(Mismatch);
        }
        let place = |at: i64| usize::try_from(at).map_err(|_| Mismatch);
        Ok((place(from)?, place(to)?, place(step)?))
    }
}

impl Step {
    fn follow<'a>(&'a self, values: Vec<&'a Value>, looks: &Looks) -> Result<Vec<&'a Value>, Mismatch> {
        let mut out = Vec::new();
        looks.spend(values.len())?;
        if let Step::Union(paths) = self {
            for path in paths {
                looks.spend(values.len())?;
                out.extend(path.walk(values.clone(), looks)?);
                if out.len() >= MAX_FOUND {
                    break;
                }
            }
            return Ok(out);
        }
        for value in values {
            match (self, value) {
                (Step::Constant(constant), _) => out.push(constant),
                (Step::Unknown, _) => return Err(Mismatch),
                (Step::Filter(filter), Value::Array(items)) => {
                    for item in items {
                        looks.spend(1)?;
                        if filter.matches(item, looks)? {
                            out.push(item);
                        }
                    }
                }
                (Step::Filter(_), _) => return Err(Mismatch),
                (_, Value::Null) => {}
                (Step::Member(name), Value::Object(map)) => out.extend(map.get(&**name)),
                (Step::Slice(slice), Value::Array(items)) => {
                    let (from, to, step) = slice.places(items.len())?;
                    looks.spend((to - from) / step)?;
                    out.extend(items.get(from..to).into_iter().flatten().step_by(step));
                }
                (Step::Slice(_), _) => return Err(Mismatch),
                (Step::All, Value::Array(items)) => {
                    looks.spend(items.len())?;
                    out.extend(items);
                }
                (Step::All, Value::Object(map)) => {
                    looks.spend(map.len())?;
                    out.extend(map.values());
                }
                (Step::Below, value) => below(value, looks, &mut out)?,
                _ => {}
            }
            if out.len() >= MAX_FOUND {
                break;
            }
        }
        Ok(out)
    }
}

fn below<'a>(value: &'a Value, looks: &Looks, out: &mut Vec<&'a Value>) -> Result<(), Mismatch> {
    if out.len() >= MAX_FOUND {
        return Ok(());
    }
    looks.spend(1)?;
    match value {
        Value::Object(map) if !map.is_empty() => {
            out.push(value);
            map.values().try_for_each(|inner| below(inner, looks, out))
        }
        Value::Array(items) if !items.is_empty() => {
            out.push(value);
            items.iter().try_for_each(|inner| below(inner, looks, out))
        }
        Value::String(text) if !text.is_empty() => {
            out.push(value);
            Ok(())
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn find(path: &str, value: &Value) -> Vec<Value> {
        let path = Path::parse(path).unwrap_or_else(|| panic!("{path}"));
        path.find(value).into_iter().cloned().collect()
    }

    #[test]
    fn paths_find_members_items_and_what_a_filter_picks() {
        let value = json!({"spec": {"a.b": 1, "a": {"b": 5}, "m": {"k": "v"}, "none": null,
            "list": [{"type": "X", "n": 1}, {"type": "Ready", "n": 2}, {"type": "Z", "n": 3, "ok": true}]}});
        for (path, found) in [
            (".spec.m.k", json!(["v"])),
            ("$.spec.m.k", json!(["v"])),
            (".spec.a\\.b", json!([1])),
            (".spec['a\\.b']", json!([1])),
            (".spec['a.b']", json!([5])),
            (".spec.list[?(@.type==\"Ready\")].n", json!([2])),
            (".spec.list[?(@.n>1)].type", json!(["Ready", "Z"])),
            (".spec.list[?(@.ok)].n", json!([3])),
            (".spec.list[?(@.ok==true)].n", json!([3])),
            (".spec.list[*].n", json!([1, 2, 3])),
            (".spec.list.*.n", json!([1, 2, 3])),
            (".spec.m.*", json!(["v"])),
            (".spec.list[-1:].n", json!([3])),
            (".spec.list[-1].n", json!([3])),
            (".spec.list[-2].n", json!([2])),
            (".spec.list[].n", json!([1])),
            (".spec.list[0:3:2].n", json!([1, 3])),
            (".spec.list[0,2].n", json!([1, 3])),
            (".spec.m['k','x']", json!(["v"])),
            (".spec.list[1:1]", json!([])),
            ("..k", json!(["v"])),
            (".spec.none", json!([null])),
            (".spec.none.k", json!([])),
            // What is no list has no items, and numbers are of one kind or the other.
            (".spec.m[*]", json!([])),
            (".spec.m[?(@.k)]", json!([])),
            (".spec.list[?(@.n>1.5)].type", json!([])),
            (".spec.list[?(@.type==1)]", json!([])),
            (".spec.list[9]", json!([])),
            (".spec.list[2:1]", json!([])),
            (".spec.list[0:1:0]", json!([])),
            (".spec.list[?(@.n=1)]", json!([])),
        ] {
            assert_eq!(json!(find(path, &value)), found, "{path}");
        }
        assert!(find(&format!(".spec.list[{}]", i64::MIN), &value).is_empty());
        for malformed in [".a[", ".a[x]", ".a[\"b\"]", ".a[?(@.b]", ".a[1:2:3:4]", ".a[-]", ".a....b", ".a#(", ".a[]#"]
        {
            let told = Path::parse(malformed).is_none();
            assert_eq!(told, malformed != ".a#(", "{malformed}");
        }
        for long in [".a".repeat(100_000), format!(".a[{}0]", "1:1,".repeat(100_000))] {
            assert_eq!(Path::parse(&long), None);
        }
        let deep = (0..100).fold(json!(1), |inner, _| json!({"a": inner}));
        assert_eq!(find(&"..a".repeat(9), &deep).len(), MAX_FOUND);
    }

    #[test]
    fn a_path_looks_at_no_more_values_than_an_object_has() {
        let rows = json!(vec![json!({"n": vec![1; 1000], "s": ""}); 1000]);
        assert_eq!(find(".l[?(@.s==\"\")].s", &json!({"l": rows})).len(), 1000);
        assert_eq!(find("..x", &json!({"l": rows, "x": "found"})), [] as [Value; 0], "a million numbers are too many");
        let few = json!({"l": vec![json!({"n": vec![1; 100]}); 100], "x": "found"});
        assert_eq!(find("..x", &few), ["found"]);
    }

    #[test]
    fn the_objects_of_a_page_share_what_is_looked_at() {
        let dear = json!({"l": vec![json!({"n": vec![1; 1000]}); 500], "x": "found"});
        let (below, plain) = (Path::parse("..x").expect("a path"), Path::parse(".x").expect("a path"));
        let looks = Looks::of_page();
        let found = |path: &Path| path.first_of_page(&dear, &looks).is_some();
        let rows: Vec<bool> = (0..30).map(|_| found(&below)).collect();
        assert!(rows[..18].iter().all(|found| *found) && !rows[20..].contains(&true), "{rows:?}");
        assert!(found(&plain), "what needs little is always found");
    }
}
