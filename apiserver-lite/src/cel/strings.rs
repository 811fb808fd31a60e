//! Functions of texts and lists, as cel-go's and Kubernetes' extensions have them.

use std::cmp::Ordering;
use std::sync::Arc;

use super::calls::shown;
use super::eval::{Budget, Failure};
use super::value::Value;

type Out<'a> = Result<Value<'a>, Failure>;

/// A double as Go's shortest form.
pub fn double(number: f64) -> String {
    if number.is_infinite() {
        return if number > 0.0 { "+Inf".into() } else { "-Inf".into() };
    }
    let size = number.abs();
    if size != 0.0 && !(1e-4..1e21).contains(&size) {
        let text = format!("{number:e}");
        let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
        let (sign, digits) = exponent.strip_prefix('-').map_or(('+', exponent), |d| ('-', d));
        return format!("{mantissa}e{sign}{digits:0>2}");
    }
    format!("{number}")
}

fn int(number: usize) -> Value<'static> {
    Value::Int(i64::try_from(number).unwrap_or(i64::MAX))
}

/// Calls a function of this module; None for others.
pub fn call<'a>(name: &str, args: &[Value<'a>], budget: &mut Budget) -> Option<Out<'a>> {
    match args {
        [Value::Text(text), rest @ ..] => of_text(name, text, rest, budget),
        [list, rest @ ..] if list.is_list() => of_list(name, list, rest, budget),
        [Value::Int(end)] if name == "lists.range" => {
            let end = (*end).max(0);
            Some(
                budget
                    .spend(usize::try_from(end).unwrap_or(usize::MAX))
                    .map(|()| Value::list((0..end).map(Value::Int).collect())),
            )
        }
        _ => None,
    }
}

fn of_text<'a>(name: &str, text: &str, rest: &[Value<'a>], budget: &mut Budget) -> Option<Out<'a>> {
    use Value::{Bool, Int, Text};
    if let Err(failure) = budget.traverse(text.len()) {
        return Some(Err(failure));
    }
    let error = |why: String| Some(Err(Failure::new(why)));
    let chars = || text.chars().collect::<Vec<char>>();
    let made = |text: String| Some(Ok(Value::text(text)));
    match (name, rest) {
        ("contains", [Text(part)]) => Some(Ok(Bool(text.contains(&**part)))),
        ("startsWith", [Text(part)]) => Some(Ok(Bool(text.starts_with(&**part)))),
        ("endsWith", [Text(part)]) => Some(Ok(Bool(text.ends_with(&**part)))),
        ("charAt", [Int(at)]) => {
            let chars = chars();
            match usize::try_from(*at).ok().filter(|at| *at <= chars.len()) {
                Some(at) => made(chars.get(at).map(ToString::to_string).unwrap_or_default()),
                None => error(format!("index out of range: {at}")),
            }
        }
        ("indexOf" | "lastIndexOf", [Text(part), from @ ..]) => index_of(name, text, part, from),
        ("lowerAscii", []) => made(text.to_ascii_lowercase()),
        ("upperAscii", []) => made(text.to_ascii_uppercase()),
        ("trim", []) => made(text.trim().to_owned()),
        ("strings.quote", []) => made(crate::status::quote(text)),
        ("replace", [Text(from), Text(to), limit @ ..]) => match limit {
            [] => Some(replaced(text, (from, to), usize::MAX, budget)),
            // A negative one is no limit.
            [Int(limit)] => Some(replaced(text, (from, to), usize::try_from(*limit).unwrap_or(usize::MAX), budget)),
            _ => None,
        },
        ("split", [Text(by), limit @ ..]) => {
            let parts = |most: usize| -> Vec<Value<'a>> {
                if by.is_empty() {
                    let chars = chars();
                    let cut = chars.len().min(most.saturating_sub(1));
                    let rest: String = chars[cut..].iter().collect();
                    let singles = chars[..cut].iter().map(|c| Value::text(c.to_string()));
                    return singles.chain((!rest.is_empty()).then(|| Value::text(rest))).collect();
                }
                text.splitn(most, &**by).map(|p| Value::text(p.to_owned())).collect()
            };
            match limit {
                [] => Some(Ok(Value::list(parts(usize::MAX)))),
                [Int(limit)] => Some(Ok(Value::list(match usize::try_from(*limit) {
                    Ok(0) => Vec::new(),
                    Ok(most) => parts(most),
                    Err(_) => parts(usize::MAX),
                }))),
                _ => None,
            }
        }
        ("substring", [Int(from), to @ ..]) => {
            let chars = chars();
            let end = match to {
                [] => i64::try_from(chars.len()).unwrap_or(i64::MAX),
                [Int(end)] => *end,
                _ => return None,
            };
            let place = |at: i64| usize::try_from(at).ok().filter(|at| *at <= chars.len());
            match (place(*from), place(end)) {
                (Some(from), Some(end)) if from <= end => made(chars[from..end].iter().collect()),
                (Some(_), Some(_)) => error(format!("invalid substring range. start: {from}, end: {end}")),
                (None, _) => error(format!("index out of range: {from}")),
                (_, None) => error(format!("index out of range: {end}")),
            }
        }
        ("format", [args]) if args.is_list() => {
            let args = args.members().unwrap_or_default();
            Some(pay_for_all(&args, budget).and_then(|()| format_text(text, &args)))
        }
        _ => None,
    }
}

/// A text with at most so many places replaced. What it grows by is paid for before it is made: a text put into itself is
/// as long as its square.
fn replaced<'a>(text: &str, (from, to): (&str, &str), most: usize, budget: &mut Budget) -> Out<'a> {
    if to.len() > from.len() {
        let places = text.matches(from).take(most).count();
        budget.traverse(places.saturating_mul(to.len() - from.len()))?;
    }
    Ok(Value::text(text.replacen(from, to, most)))
}

/// Pays for texts that become part of one: a list may name the same one many times.
fn pay_for_all(items: &[Value<'_>], budget: &mut Budget) -> Result<(), Failure> {
    let length = |item: &Value<'_>| if let Value::Text(text) = item { text.len() } else { 0 };
    budget.traverse(items.iter().map(length).fold(0, usize::saturating_add))
}

fn index_of<'a>(name: &str, text: &str, part: &str, from: &[Value<'a>]) -> Option<Out<'a>> {
    let (chars, wanted): (Vec<char>, Vec<char>) = (text.chars().collect(), part.chars().collect());
    let last = name == "lastIndexOf";
    let start = match from {
        [] if last => chars.len(),
        [] => 0,
        [Value::Int(at)] => match usize::try_from(*at).ok().filter(|at| *at <= chars.len()) {
            Some(at) => at,
            None => return Some(Err(Failure::new(format!("index out of range: {at}")))),
        },
        _ => return None,
    };
    let fits = |at: usize| chars.get(at..at + wanted.len()).is_some_and(|part| part == wanted);
    let most = chars.len().saturating_sub(wanted.len());
    let found = if wanted.len() > chars.len() {
        None
    } else if last {
        (0..=start.min(most)).rev().find(|at| fits(*at))
    } else {
        (start..=most).find(|at| fits(*at))
    };
    Some(Ok(found.map_or(Value::Int(-1), int)))
}

fn of_list<'a>(name: &str, list: &Value<'a>, rest: &[Value<'a>], budget: &mut Budget) -> Option<Out<'a>> {
    use Value::{Bool, Int};
    let items = list.members()?;
    if let Err(failure) = budget.spend(items.len()) {
        return Some(Err(failure));
    }
    let contains = |items: &[Value<'a>], one: &Value<'a>| items.iter().any(|i| i.equals(one));
    let is_subset = |a: &[Value<'a>], b: &[Value<'a>]| a.iter().all(|one| contains(b, one));
    let pairs = |other: &Value<'a>, budget: &mut Budget| -> Result<Vec<Value<'a>>, Failure> {
        let other = other.members().unwrap_or_default();
        budget.spend(items.len().saturating_mul(other.len()))?;
        Ok(other)
    };
    let out: Out<'a> = match (name, rest) {
        ("join", []) => pay_for_all(&items, budget).map(|()| Value::text(items.iter().map(shown).collect::<String>())),
        ("join", [Value::Text(by)]) => pay_for_all(&items, budget)
            .and_then(|()| budget.traverse(items.len().saturating_mul(by.len())))
            .map(|()| Value::text(items.iter().map(shown).collect::<Vec<_>>().join(by))),
        ("isSorted", []) => Ok(Bool(items.windows(2).all(|w| w[0].compare(&w[1]).is_some_and(Ordering::is_le)))),
        ("sum", []) => {
            let mut sum = match items.first() {
                Some(Value::Double(_)) => Value::Double(0.0),
                Some(Value::Uint(_)) => Value::Uint(0),
                Some(Value::Duration(_)) => Value::Duration(0),
                _ => Int(0),
            };
            for item in items {
                match super::calls::call("_+_", &[sum, item], budget) {
                    Ok(next) => sum = next,
                    Err(failure) => return Some(Err(failure)),
                }
            }
            Ok(sum)
        }
        ("min" | "max", []) => {
            let better = if name == "min" { Ordering::Less } else { Ordering::Greater };
            let best =
                items.into_iter().reduce(|best, item| if item.compare(&best) == Some(better) { item } else { best });
            best.ok_or_else(|| Failure::new(format!("{name} called on empty list")))
        }
        ("indexOf", [one]) => Ok(items.iter().position(|i| i.equals(one)).map_or(Int(-1), int)),
        ("lastIndexOf", [one]) => Ok(items.iter().rposition(|i| i.equals(one)).map_or(Int(-1), int)),
        ("reverse", []) => Ok(Value::list(items.into_iter().rev().collect())),
        ("slice", [Int(from), Int(to)]) => {
            let place = |at: i64| usize::try_from(at).ok().filter(|at| *at <= items.len());
            match (place(*from), place(*to)) {
                (Some(from), Some(to)) if from <= to => Ok(Value::list(items[from..to].to_vec())),
                _ => Err(Failure::new(format!("cannot slice({from}, {to}), list is length {}", items.len()))),
            }
        }
        ("distinct", []) => {
            if let Err(failure) = budget.spend(items.len().saturating_mul(items.len())) {
                return Some(Err(failure));
            }
            let mut out: Vec<Value<'a>> = Vec::new();
            for item in items {
                if !contains(&out, &item) {
                    out.push(item);
                }
            }
            Ok(Value::list(out))
        }
        ("sort", []) => {
            let mut items = items;
            items.sort_by(|a, b| a.compare(b).unwrap_or(Ordering::Equal));
            Ok(Value::list(items))
        }
        ("flatten", []) => flattened(items, 1, budget),
        ("flatten", [Int(depth)]) if *depth < 0 => Err(Failure::new("level must be non-negative")),
        ("flatten", [Int(depth)]) => flattened(items, *depth, budget),
        ("first", []) => Ok(Value::Optional(items.into_iter().next().map(Arc::new))),
        ("last", []) => Ok(Value::Optional(items.into_iter().next_back().map(Arc::new))),
        ("unwrapOpt" | "optional.unwrap", []) => {
            let values = items.into_iter().filter_map(|item| match item {
                Value::Optional(value) => value.map(|value| Ok((*value).clone())),
                _ => Some(Err(Failure::no_overload())),
            });
            values.collect::<Result<Vec<_>, _>>().map(Value::list)
        }
        ("sets.contains", [other]) => pairs(other, budget).map(|other| Bool(is_subset(&other, &items))),
        ("sets.equivalent", [other]) => {
            pairs(other, budget).map(|other| Bool(is_subset(&other, &items) && is_subset(&items, &other)))
        }
        ("sets.intersects", [other]) => {
            pairs(other, budget).map(|other| Bool(items.iter().any(|i| contains(&other, i))))
        }
        _ => return None,
    };
    Some(out)
}

/// Lists in a list, so many levels of them, as their items.
fn flattened<'a>(items: Vec<Value<'a>>, levels: i64, budget: &mut Budget) -> Out<'a> {
    let mut items = items;
    for _ in 0..levels {
        if !items.iter().any(Value::is_list) {
            break;
        }
        items = items.into_iter().flat_map(|i| i.members().filter(|_| i.is_list()).unwrap_or(vec![i])).collect();
        budget.spend(items.len())?;
    }
    Ok(Value::list(items))
}

/// Fills `%s`, `%d`, `%f`, `%e`, `%b`, `%x`, `%X` and `%o` of a format.
fn format_text<'a>(text: &str, args: &[Value<'a>]) -> Out<'a> {
    let mut out = String::new();
    let mut args = args.iter();
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        if chars.peek() == Some(&'%') {
            chars.next();
            out.push('%');
            continue;
        }
        let mut precision = None;
        if chars.peek() == Some(&'.') {
            chars.next();
            let mut digits = String::new();
            while let Some(digit) = chars.next_if(char::is_ascii_digit) {
                digits.push(digit);
            }
            // More digits than these are noise.
            precision = digits.parse::<usize>().ok().map(|p| p.min(100));
        }
        let Some(verb) = chars.next() else {
            return Err(Failure::new("could not parse formatting clause: unexpected end of format string"));
        };
        let Some(arg) = args.next() else { return Err(Failure::new("index out of range: format arguments")) };
        out.push_str(&clause(verb, precision, arg)?);
    }
    Ok(Value::text(out))
}

fn clause(verb: char, precision: Option<usize>, arg: &Value<'_>) -> Result<String, Failure> {
    let wrong = || Failure::new(format!("error during formatting: unsupported argument {} for %{verb}", arg.kind()));
    Ok(match (verb, arg) {
        ('s', value) => printed(value),
        ('d', Value::Int(_) | Value::Uint(_)) => shown(arg),
        ('f', Value::Double(number)) => format!("{number:.*}", precision.unwrap_or(6)),
        ('e', Value::Double(number)) => {
            let text = format!("{number:.*e}", precision.unwrap_or(6));
            let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
            let (sign, digits) = exponent.strip_prefix('-').map_or(('+', exponent), |d| ('-', d));
            format!("{mantissa}e{sign}{digits:0>2}")
        }
        ('b', Value::Int(number)) => {
            if *number < 0 {
                format!("-{:b}", number.unsigned_abs())
            } else {
                format!("{number:b}")
            }
        }
        ('b', Value::Uint(number)) => format!("{number:b}"),
        ('b', Value::Bool(truth)) => i32::from(*truth).to_string(),
        ('o', Value::Int(number)) => {
            if *number < 0 {
                format!("-{:o}", number.unsigned_abs())
            } else {
                format!("{number:o}")
            }
        }
        ('o', Value::Uint(number)) => format!("{number:o}"),
        ('x' | 'X', value) => {
            let text = match value {
                Value::Int(number) if *number < 0 => format!("-{:x}", number.unsigned_abs()),
                Value::Int(number) => format!("{number:x}"),
                Value::Uint(number) => format!("{number:x}"),
                Value::Text(text) => text.bytes().map(|b| format!("{b:02x}")).collect(),
                Value::Bytes(bytes) => bytes.iter().map(|b| format!("{b:02x}")).collect(),
                _ => return Err(wrong()),
            };
            if verb == 'X' { text.to_uppercase() } else { text }
        }
        _ => return Err(wrong()),
    })
}

/// A value as `%s` prints it.
fn printed(value: &Value<'_>) -> String {
    match value {
        value if value.is_list() => {
            let items: Vec<String> = value.members().unwrap_or_default().iter().map(printed).collect();
            format!("[{}]", items.join(", "))
        }
        value if value.is_map() => {
            let keys = value.members().unwrap_or_default();
            let mut entries: Vec<String> = keys
                .iter()
                .map(|key| format!("{}: {}", printed(key), value.entry(key).map(|v| printed(&v)).unwrap_or_default()))
                .collect();
            entries.sort();
            format!("{{{}}}", entries.join(", "))
        }
        Value::Null => "null".into(),
        Value::Bytes(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        Value::Kind(name) => name.to_string(),
        other => shown(other),
    }
}
