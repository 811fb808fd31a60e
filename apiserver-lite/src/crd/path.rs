//! The part of JSONPath that printer columns and selectable fields use: members, indices, filters by equality.
//!
//! Follows client-go's `jsonpath`: `.a.b`, `.a['b']`, `.list[0]`, `.list[-1]`, `.list[*]`, `.list[1:3]`, `..name` and
//! `.list[?(@.type=="Ready")].status`.

use serde_json::Value;

/// Deepest nesting of filters in filters.
const MAX_NESTED: usize = 8;
/// Most values that a path finds. A path of several `..` meets a value in many ways.
const MAX_FOUND: usize = 10_000;

/// A path that was read.
#[derive(Debug, Clone, PartialEq)]
pub struct Path(Vec<Step>);

#[derive(Debug, Clone, PartialEq)]
enum Step {
    Member(Box<str>),
    Index(i64),
    Slice(Option<i64>, Option<i64>),
    /// Every member or item.
    All,
    /// Every value below that has a member of this name.
    Below(Box<str>),
    Filter(Box<Filter>),
}

#[derive(Debug, Clone, PartialEq)]
struct Filter {
    left: Operand,
    operator: Option<Operator>,
    right: Operand,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Operator {
    Equal,
    Unequal,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

#[derive(Debug, Clone, PartialEq)]
enum Operand {
    At(Path),
    Constant(Value),
}

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
        let mut rest = text.trim();
        rest = rest.strip_prefix('$').unwrap_or(rest);
        while !rest.is_empty() {
            if let Some(after) = rest.strip_prefix("..") {
                let (name, after) = name(after);
                if name.is_empty() {
                    return None;
                }
                steps.push(Step::Below(name.into()));
                rest = after;
            } else if let Some(after) = rest.strip_prefix('.') {
                if after.starts_with('[') || after.is_empty() {
                    rest = after;
                    continue;
                }
                let (name, after) = name(after);
                steps.push(if name == "*" { Step::All } else { Step::Member(name.into()) });
                rest = after;
            } else if let Some(after) = rest.strip_prefix('[') {
                let end = closing(after)?;
                steps.push(bracket(&after[..end], depth)?);
                rest = &after[end + 1..];
            } else {
                return None;
            }
        }
        Some(Path(steps))
    }

    /// Every value at the path, in order.
    pub fn find<'a>(&self, value: &'a Value) -> Vec<&'a Value> {
        let mut found = vec![value];
        for step in &self.0 {
            let mut next = Vec::new();
            for value in found {
                step.follow(value, &mut next);
                if next.len() >= MAX_FOUND {
                    next.truncate(MAX_FOUND);
                    break;
                }
            }
            found = next;
        }
        found
    }

    pub fn first<'a>(&self, value: &'a Value) -> Option<&'a Value> {
        self.find(value).into_iter().next()
    }
}

/// A member's name, up to the next step; a backslash takes the next character as it is.
fn name(text: &str) -> (String, &str) {
    let mut out = String::new();
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '.' | '[' => return (out, &text[at..]),
            '\\' => out.extend(chars.next().map(|(_, c)| c)),
            c => out.push(c),
        }
    }
    (out, "")
}

/// Where a bracket ends, quotes and inner brackets minded.
fn closing(text: &str) -> Option<usize> {
    let (mut depth, mut quote) = (0, None);
    for (at, c) in text.char_indices() {
        match (quote, c) {
            (Some(open), c) if c == open => quote = None,
            (Some(_), _) => {}
            (None, '\'' | '"') => quote = Some(c),
            (None, '[') => depth += 1,
            (None, ']') if depth == 0 => return Some(at),
            (None, ']') => depth -= 1,
            _ => {}
        }
    }
    None
}

fn bracket(inside: &str, depth: usize) -> Option<Step> {
    let inside = inside.trim();
    if inside == "*" {
        return Some(Step::All);
    }
    if let Some(filter) = inside.strip_prefix("?(").and_then(|f| f.strip_suffix(')')) {
        return Filter::parse(filter, depth + 1).map(|f| Step::Filter(Box::new(f)));
    }
    if let Some(name) = unquoted(inside) {
        return Some(Step::Member(name.into()));
    }
    if let Some((from, to)) = inside.split_once(':') {
        let end = |text: &str| if text.is_empty() { Some(None) } else { text.parse().ok().map(Some) };
        return Some(Step::Slice(end(from.trim())?, end(to.trim())?));
    }
    inside.parse().ok().map(Step::Index)
}

fn unquoted(text: &str) -> Option<&str> {
    ['\'', '"'].into_iter().find_map(|q| text.strip_prefix(q)?.strip_suffix(q))
}

impl Filter {
    fn parse(text: &str, depth: usize) -> Option<Self> {
        const OPERATORS: [(&str, Operator); 6] = [
            ("==", Operator::Equal),
            ("!=", Operator::Unequal),
            ("<=", Operator::LessOrEqual),
            (">=", Operator::GreaterOrEqual),
            ("<", Operator::Less),
            (">", Operator::Greater),
        ];
        let mut quote = None;
        for (at, c) in text.char_indices() {
            match (quote, c) {
                (Some(open), c) if c == open => quote = None,
                (Some(_), _) => {}
                (None, '\'' | '"') => quote = Some(c),
                _ => {
                    if let Some((sign, operator)) = OPERATORS.iter().find(|(sign, _)| text[at..].starts_with(sign)) {
                        return Some(Filter {
                            left: Operand::parse(&text[..at], depth)?,
                            operator: Some(*operator),
                            right: Operand::parse(&text[at + sign.len()..], depth)?,
                        });
                    }
                }
            }
        }
        Some(Filter { left: Operand::parse(text, depth)?, operator: None, right: Operand::Constant(Value::Null) })
    }

    fn matches(&self, value: &Value) -> bool {
        let (Some(left), operator) = (self.left.value(value), self.operator) else { return false };
        let Some(operator) = operator else { return true };
        let Some(right) = self.right.value(value) else { return false };
        let order = match (left, right) {
            (Value::Number(a), Value::Number(b)) => a.as_f64().partial_cmp(&b.as_f64()),
            (Value::String(a), Value::String(b)) => Some(a.cmp(b)),
            (a, b) if a == b => Some(std::cmp::Ordering::Equal),
            _ => None,
        };
        match operator {
            Operator::Equal => order.is_some_and(std::cmp::Ordering::is_eq),
            Operator::Unequal => !order.is_some_and(std::cmp::Ordering::is_eq),
            Operator::Less => order.is_some_and(std::cmp::Ordering::is_lt),
            Operator::LessOrEqual => order.is_some_and(std::cmp::Ordering::is_le),
            Operator::Greater => order.is_some_and(std::cmp::Ordering::is_gt),
            Operator::GreaterOrEqual => order.is_some_and(std::cmp::Ordering::is_ge),
        }
    }
}

impl Operand {
    fn parse(text: &str, depth: usize) -> Option<Self> {
        let text = text.trim();
        if let Some(path) = text.strip_prefix('@') {
            return Path::nested(path, depth).map(Operand::At);
        }
        if let Some(text) = unquoted(text) {
            return Some(Operand::Constant(text.into()));
        }
        serde_json::from_str(text).ok().map(Operand::Constant)
    }

    fn value<'a>(&'a self, at: &'a Value) -> Option<&'a Value> {
        match self {
            Operand::At(path) => path.first(at),
            Operand::Constant(value) => Some(value),
        }
    }
}

impl Step {
    fn follow<'a>(&self, value: &'a Value, out: &mut Vec<&'a Value>) {
        match (self, value) {
            (Step::Member(name), Value::Object(map)) => out.extend(map.get(&**name)),
            (Step::Index(index), Value::Array(items)) => {
                let at = if *index < 0 {
                    usize::try_from(index.unsigned_abs()).ok().and_then(|back| items.len().checked_sub(back))
                } else {
                    usize::try_from(*index).ok()
                };
                out.extend(at.and_then(|at| items.get(at)));
            }
            (Step::Slice(from, to), Value::Array(items)) => {
                let length = i64::try_from(items.len()).unwrap_or(i64::MAX);
                let place = |at: Option<i64>, absent: i64| {
                    let at = at.map_or(absent, |at| if at < 0 { at + length } else { at });
                    usize::try_from(at.clamp(0, length)).unwrap_or(0)
                };
                out.extend(items.get(place(*from, 0)..place(*to, length)).into_iter().flatten());
            }
            (Step::All, Value::Array(items)) => out.extend(items),
            (Step::All, Value::Object(map)) => out.extend(map.values()),
            (Step::Below(name), value) => below(name, value, out),
            (Step::Filter(filter), Value::Array(items)) => out.extend(items.iter().filter(|i| filter.matches(i))),
            (Step::Filter(filter), Value::Object(map)) => out.extend(map.values().filter(|i| filter.matches(i))),
            _ => {}
        }
    }
}

fn below<'a>(name: &str, value: &'a Value, out: &mut Vec<&'a Value>) {
    match value {
        Value::Object(map) => {
            out.extend(map.get(name));
            map.values().for_each(|inner| below(name, inner, out));
        }
        Value::Array(items) => items.iter().for_each(|inner| below(name, inner, out)),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn paths_find_members_items_and_what_a_filter_picks() {
        let value =
            json!({"spec": {"a.b": 1, "list": [{"type": "X", "n": 1}, {"type": "Ready", "n": 2}], "m": {"k": "v"}}});
        let find = |path: &str| {
            Path::parse(path).unwrap_or_else(|| panic!("{path}")).find(&value).into_iter().cloned().collect::<Vec<_>>()
        };
        assert_eq!(find(".spec.m.k"), [json!("v")]);
        assert_eq!(find(".spec.a\\.b"), [json!(1)]);
        assert_eq!(find(".spec['a.b']"), [json!(1)]);
        assert_eq!(find(".spec.list[?(@.type==\"Ready\")].n"), [json!(2)]);
        assert_eq!(find(".spec.list[?(@.n>0)].type"), [json!("X"), json!("Ready")]);
        assert_eq!(find(".spec.list[*].n"), [json!(1), json!(2)]);
        assert_eq!(find(".spec.list[-1:].n"), [json!(2)]);
        assert_eq!(find(".spec.list[0].type"), [json!("X")]);
        assert_eq!(find("..k"), [json!("v")]);
        assert_eq!(find(&format!(".spec.list[{}]", i64::MIN)), [] as [Value; 0]);
        let filters = |count: usize| format!("{}.x{}", ".a[?(@".repeat(count), ")]".repeat(count));
        assert!(Path::parse(&filters(3)).is_some() && Path::parse(&filters(50_000)).is_none());
        let deep = (0..100).fold(json!(1), |inner, _| json!({"a": inner}));
        assert_eq!(Path::parse(&"..a".repeat(9)).map(|p| p.find(&deep).len()), Some(MAX_FOUND));
        assert!(find(".spec.none.k").is_empty() && Path::parse(".a[").is_none() && Path::parse("a").is_none());
    }
}
