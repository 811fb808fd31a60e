//! Functions and operators with the types they take, read from `overloads.txt`.
//!
//! One line each: `name(types) result`, or `type.name(types) result` for what is called on a value. Functions of a
//! namespace, such as `optional.of`, look the same; which of the two it is tells the value before the dot.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use super::authz;
use super::types::Type;

#[derive(Debug)]
pub struct Overload {
    /// The first argument is the value that it is called on.
    pub member: bool,
    pub args: Vec<Type>,
    pub result: Type,
}

static TABLE: LazyLock<HashMap<String, Vec<Overload>>> = LazyLock::new(|| {
    let mut table: HashMap<String, Vec<Overload>> = HashMap::new();
    for line in include_str!("overloads.txt").lines() {
        if let Some((name, overload)) = read(line) {
            table.entry(name).or_default().push(overload);
        }
    }
    // Numbers of different types can be compared.
    for sign in ["_<_", "_<=_", "_>_", "_>=_"] {
        let numbers = [Type::Int, Type::Uint, Type::Double];
        let mut pairs: Vec<(Type, Type)> =
            [Type::Bool, Type::Text, Type::Bytes, Type::Timestamp, Type::Duration].map(|t| (t.clone(), t)).into();
        pairs.extend(numbers.iter().flat_map(|a| numbers.iter().map(|b| (a.clone(), b.clone()))));
        let overloads =
            pairs.into_iter().map(|(a, b)| Overload { member: false, args: vec![a, b], result: Type::Bool });
        table.insert(sign.into(), overloads.collect());
    }
    table
});

/// Namespaces of functions.
pub const SPACES: [&str; 6] = ["optional", "sets", "strings", "lists", "format", "jsonpatch"];

pub fn of(name: &str) -> &'static [Overload] {
    TABLE.get(name).map_or(&[], Vec::as_slice)
}

fn read(line: &str) -> Option<(String, Overload)> {
    let (head, result) = line.rsplit_once(' ')?;
    let result = ty(result)?;
    let open = argument_list(head)?;
    let (before, args) = (&head[..open], head[open + 1..].strip_suffix(')')?);
    let mut args: Vec<Type> = split(args).into_iter().map(ty).collect::<Option<_>>()?;
    let Some((target, name)) = before.rsplit_once('.') else {
        return Some((before.to_owned(), Overload { member: false, args, result }));
    };
    // A function of a namespace goes by its whole name.
    let whole = matches!(target, "sets" | "strings" | "lists" | "jsonpatch")
        || target == "optional"
        || target == "ip" && name == "isCanonical"
        || target == "format" && name != "validate";
    if whole {
        return Some((before.to_owned(), Overload { member: false, args, result }));
    }
    args.insert(0, ty(target)?);
    Some((name.to_owned(), Overload { member: true, args, result }))
}

/// Where the list of arguments opens: the parenthesis that the last one closes.
fn argument_list(head: &str) -> Option<usize> {
    let mut depth = 0;
    for (at, c) in head.char_indices().rev() {
        match c {
            ')' => depth += 1,
            '(' => {
                depth -= 1;
                if depth == 0 {
                    return Some(at);
                }
            }
            _ => {}
        }
    }
    None
}

/// Splits at commas outside of parentheses.
fn split(text: &str) -> Vec<&str> {
    let (mut out, mut depth, mut start) = (Vec::new(), 0, 0);
    for (at, c) in text.char_indices() {
        match c {
            '(' => depth += 1,
            ')' => depth -= 1,
            ',' if depth == 0 => {
                out.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    if start < text.len() {
        out.push(&text[start..]);
    }
    out
}

fn ty(text: &str) -> Option<Type> {
    Some(match text {
        "dyn" => Type::Dyn,
        "bool" => Type::Bool,
        "int" => Type::Int,
        "uint" => Type::Uint,
        "double" => Type::Double,
        "string" => Type::Text,
        "bytes" => Type::Bytes,
        "timestamp" => Type::Timestamp,
        "duration" => Type::Duration,
        "type" => Type::Kind,
        "url" => Type::Opaque("kubernetes.URL"),
        "quantity" => Type::Opaque("kubernetes.Quantity"),
        "ip" => Type::Opaque("net.IP"),
        "cidr" => Type::Opaque("net.CIDR"),
        "format" => Type::Opaque("kubernetes.NamedFormat"),
        "semver" => Type::Opaque("kubernetes.Semver"),
        "authorizer" => Type::Opaque(authz::AUTHORIZER),
        "pathcheck" => Type::Opaque(authz::PATH_CHECK),
        "groupcheck" => Type::Opaque(authz::GROUP_CHECK),
        "resourcecheck" => Type::Opaque(authz::RESOURCE_CHECK),
        "decision" => Type::Opaque(authz::DECISION),
        parameter if parameter.len() == 1 => Type::Parameter(parameter.chars().next()?),
        composed => {
            let (name, inside) = composed.strip_suffix(')')?.split_once('(')?;
            let inner = split(inside);
            match (name, inner.as_slice()) {
                ("list", [item]) => Type::list(ty(item)?),
                ("optional", [inner]) => Type::optional(ty(inner)?),
                ("map", [key, value]) => Type::Map(Arc::new(ty(key)?), Arc::new(ty(value)?)),
                _ => return None,
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_is_a_function() {
        for line in include_str!("overloads.txt").lines() {
            assert!(read(line).is_some(), "{line}");
        }
        assert!(of("startsWith")[0].member && !of("optional.of")[0].member);
        assert_eq!(of("getQuery")[0].result, Type::map(Type::list(Type::Text)));
    }
}
